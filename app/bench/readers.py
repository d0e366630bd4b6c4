"""A hundred readers follow jobs that move, for `planpaint bench api`: does the API still answer meanwhile?"""

import re
import selectors
import socket
import threading
from collections import defaultdict, deque
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import requests

from app import wiring
from app.bench.load import Result, drive
from app.connect import connect
from app.domain.job import StoredObject
from app.domain.messages import ImageRef, Lease
from app.domain.prior import Plan, PriorTokens
from app.domain.sizes import Size
from app.queues.ar_stream import ArHint
from app.settings import Settings

READERS = 100
#: Each job paints one image at a time, as four DiT workers would.
JOBS, IMAGES = 4, 10
#: What is asked for meanwhile, by second, over so many connections.
ASKED_PER_S, CONNECTIONS = 50, 4
#: A worker writes its progress so often at most (workers/heartbeat.py); an image ends after so many times.
_STEP_S, _STEPS = 0.25, 8
_SIZE = Size(256, 256)
_READY_S = 30.0
_ID = re.compile(rb"\nid: (\d+)")
#: The last chunk of an answer.
_END = b"\r\n0\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Followed:
    """`asked`: GETs of a job. `events`: that all readers were told in that time. `resumed`: streams that broke off."""

    asked: Result
    events: int
    resumed: int


def measure(port: int, settings: Settings, *, seconds: float, rate: float | None = ASKED_PER_S) -> Followed:
    """Ask an API process for a job while READERS follow it and others.

    `settings`: of its Redis, without other jobs. `rate`: by second; None: as often as it answers.
    """
    url = f"http://127.0.0.1:{port}/v1/jobs"
    body = {"prompt": "a red circle", "size": str(_SIZE), "steps": _STEPS, "n": IMAGES}
    jobs = [requests.post(url, json=body, timeout=10).json()["id"] for _ in range(JOBS)]
    with Movement(settings), Readers(port, [jobs[number % JOBS] for number in range(READERS)]) as readers:
        request = f"GET /v1/jobs/{jobs[0]} HTTP/1.1\r\nHost: bench\r\n\r\n".encode()
        before = readers.events
        asked = drive(port, request, threads=CONNECTIONS, duration_s=seconds, rate=rate, expected=200)
        return Followed(asked, readers.events - before, readers.resumed)


class Movement(threading.Thread):
    """Workers played by hand: each job's images are painted one after the other, step by step."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(daemon=True)
        self._client = connect(settings)
        self._store = wiring.job_store(settings, self._client)
        self._stream = wiring.ar_stream(self._client, "bench")
        self._stopping = threading.Event()
        self._waiting: dict[str, deque[ArHint]] = defaultdict(deque)
        self._painting: dict[str, tuple[Lease, int]] = {}

    def __enter__(self) -> Self:
        self._stream.ensure_groups()
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stopping.set()
        self.join()
        self._client.close()

    def run(self) -> None:
        while not self._stopping.wait(_STEP_S):
            for hint in self._stream.read(JOBS * IMAGES):
                self._waiting[hint.ref.job_id].append(hint)
            for job_id, hints in self._waiting.items():
                if job_id in self._painting:
                    self._move(*self._painting.pop(job_id))
                elif hints:
                    self._begin(hints.popleft())

    def _begin(self, hint: ArHint) -> None:
        grid = _SIZE.large_grid
        planning = self._store.claim_plan(hint.ref, entry=hint.entry, token=f"plan {hint.ref}")
        if planning is None:
            return
        self._store.hand_over(planning.lease, Plan(PriorTokens(grid, tuple(range(grid.tokens)))))
        if order := self._store.claim_paint(hint.ref, token=f"paint {hint.ref}"):
            self._painting[hint.ref.job_id] = order.lease, 0

    def _move(self, lease: Lease, step: int) -> None:
        if step < _STEPS:
            self._store.renew(lease, step=step + 1)
            self._painting[lease.ref.job_id] = lease, step + 1
        else:
            self._store.commit(lease, _stored(lease.ref), steps=_STEPS)


def _stored(ref: ImageRef) -> StoredObject:
    return StoredObject(f"jobs/{ref.job_id}/{ref.index}/1.png", "image/png", 1, "00" * 32)


@dataclass(slots=True)
class _Stream:
    """One reader's connection. `last`: sequence of the last event of the log that it was told."""

    connection: socket.socket
    job_id: str
    last: int = 0
    events: int = 0
    resumed: int = -1

    def begin(self) -> None:
        resume = f"Last-Event-ID: {self.last}\r\n" if self.last else ""
        request = f"GET /v1/jobs/{self.job_id}/events HTTP/1.1\r\nHost: bench\r\n{resume}\r\n"
        self.connection.sendall(request.encode())
        self.resumed += 1

    def read(self) -> None:
        """Count what has come; a stream that the server has ended is resumed, as browsers do."""
        data = self.connection.recv(65536)
        if not data:
            raise ConnectionError("the server closed an event stream's connection")
        self.events += data.count(b"event: ")
        if ids := _ID.findall(data):
            self.last = int(ids[-1])
        if data.endswith(_END):
            self.begin()


class Readers(threading.Thread):
    """Event streams, one for each of the ids, read and counted by one thread."""

    def __init__(self, port: int, job_ids: list[str]) -> None:
        super().__init__(daemon=True)
        self._port = port
        self._job_ids = job_ids
        self._stopping = threading.Event()
        self._selector = selectors.DefaultSelector()
        self._connections = ExitStack()
        self._streams: list[_Stream] = []

    def __enter__(self) -> Self:
        with self._connections as connections:
            for job_id in self._job_ids:
                connection = connections.enter_context(socket.create_connection(("127.0.0.1", self._port), _READY_S))
                self._streams.append(stream := _Stream(connection, job_id))
                stream.begin()
                # One after the other: what is measured is not how many begin at the same moment.
                stream.read()
                self._selector.register(connection, selectors.EVENT_READ, stream)
            self._connections = connections.pop_all()
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stopping.set()
        self.join()
        self._connections.close()
        self._selector.close()

    @property
    def events(self) -> int:
        return sum(stream.events for stream in self._streams)

    @property
    def resumed(self) -> int:
        return sum(stream.resumed for stream in self._streams)

    def run(self) -> None:
        while not self._stopping.is_set():
            for key, _ in self._selector.select(0.1):
                key.data.read()

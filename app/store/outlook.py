"""Reads what estimates rest on: who waits, who works, and how long stages have taken."""

import threading
import time
from collections import Counter

from app import keys
from app.connect import Client, translated
from app.domain.estimate import Load, Outlook, outlook
from app.domain.job import Job
from app.domain.messages import ImageRef
from app.domain.states import ImageState
from app.store.workers import WorkerRegistry

#: A picture of the load is believed for so long, seconds.
_FRESH_S = 1.0


class Outlooks:
    """One picture of the load serves all requests of a process for a second."""

    def __init__(self, client: Client, registry: WorkerRegistry) -> None:
        self._client = client
        self._registry = registry
        self._lock = threading.Lock()
        self._load = Load()
        self._asked_at = float("-inf")

    def load(self) -> Load:
        with self._lock:
            if time.monotonic() - self._asked_at > _FRESH_S:
                self._load = self._read()
                self._asked_at = time.monotonic()
            return self._load

    def _read(self) -> Load:
        with translated():
            pipe = self._client.pipeline(transaction=False)
            pipe.hgetall(keys.COUNTS)
            pipe.hgetall(keys.PACE)
            counts, pace = pipe.execute()
        # One that is drained takes nothing.
        workers = Counter(worker.role for worker in self._registry.list() if worker.state != "drained")
        return Load(
            queued=int(counts.get(b"queued", 0)),
            planning=int(counts.get(b"planning", 0)),
            planned=int(counts.get(b"planned", 0)),
            painting=int(counts.get(b"painting", 0)),
            ar_workers=workers["ar"],
            dit_workers=workers["dit"],
            ar_ms=float(pace.get(b"ar_ms", 0)),
            ar_ms_per_unit=float(pace.get(b"ar_ms_per_unit", 0)),
            dit_ms=float(pace.get(b"dit_ms", 0)),
            dit_ms_per_unit=float(pace.get(b"dit_ms_per_unit", 0)),
            images=int(pace.get(b"images", 0)),
        )

    def of(self, job: Job) -> Outlook:
        return outlook(job, self.load(), position=self._position(job))

    def fresh(self, job: Job, images_ahead: int) -> Outlook:
        """Of a job that was queued this moment behind so many images of its own priority."""
        return outlook(job, self.load(), position=images_ahead)

    def _position(self, job: Job) -> int | None:
        """Images before the first one of the job that waits; a batch job also waits for what is realtime."""
        for state, queue in (
            (ImageState.QUEUED, keys.waiting(job.priority)),
            (ImageState.PLANNED, keys.WAITING_DIT),
        ):
            index = next((image.index for image in job.images if image.state is state), None)
            if index is not None:
                member = str(ImageRef(job.id, index))
                with translated():
                    pipe = self._client.pipeline(transaction=False)
                    pipe.zrank(queue, member)
                    pipe.zrank(keys.line(job.priority, job.owner), member)
                    pipe.scard(keys.turn(job.priority, job.owner))
                    pipe.hlen(keys.ACTIVE)
                    rank, held, turn, owners = pipe.execute()
                if rank is None:
                    return None
                if not turn or state is ImageState.PLANNED:
                    return int(rank)
                # Keys take turns: of each other one about as many are served as of this one.
                mine = turn if held is None else turn + held + 1
                return min(int(rank), int(mine * max(1, owners) - 1))
        return None

"""HTTP requests from a few threads with one kept connection each: as many as go through, or at a fixed rate."""

import itertools
import socket
import threading
import time
from dataclasses import dataclass, field
from statistics import quantiles


@dataclass(slots=True)
class Result:
    """`seconds`: of each answered request; at a fixed rate counted from when it should have been sent."""

    wall_s: float = 0.0
    seconds: list[float] = field(default_factory=list)
    refused: int = 0

    @property
    def by_second(self) -> float:
        return len(self.seconds) / self.wall_s

    def percentile_ms(self, percent: int) -> float:
        return quantiles(self.seconds, n=100, method="inclusive")[percent - 1] * 1000


def drive(
    port: int, request: bytes, *, threads: int, duration_s: float, rate: float | None = None, expected: int = 202
) -> Result:
    """Send for so long. `request`: a whole HTTP/1.1 request. `rate`: requests by second, of all threads together."""
    result = Result()
    lock = threading.Lock()
    started = time.perf_counter()
    tickets = itertools.count()

    def send() -> None:
        seconds: list[float] = []
        refused = 0
        with socket.create_connection(("127.0.0.1", port)) as connection:
            while True:
                due = time.perf_counter()
                if rate is not None:
                    due = started + next(tickets) / rate
                    time.sleep(max(0.0, due - time.perf_counter()))
                if due - started >= duration_s:
                    break
                connection.sendall(request)
                if _status(connection) == expected:
                    seconds.append(time.perf_counter() - due)
                else:
                    refused += 1
        with lock:
            result.seconds += seconds
            result.refused += refused

    senders = [threading.Thread(target=send) for _ in range(threads)]
    for each in senders:
        each.start()
    for each in senders:
        each.join()
    result.wall_s = time.perf_counter() - started
    return result


def _status(connection: socket.socket) -> int:
    """Read one answer, which must say its length; returns its status."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += _more(connection)
    head, _, body = data.partition(b"\r\n\r\n")
    lower = head.lower()
    start = lower.index(b"content-length:") + len(b"content-length:")
    left = int(lower[start:].split(b"\r\n", 1)[0]) - len(body)
    while left > 0:
        left -= len(_more(connection))
    return int(head.split(b" ", 2)[1])


def _more(connection: socket.socket) -> bytes:
    data = connection.recv(65536)
    if not data:
        raise ConnectionError("the server closed the connection")
    return data

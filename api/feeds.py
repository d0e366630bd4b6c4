"""What the event streams of a process read of a job: once for all who follow it, again when it may have changed."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from app.domain.job import Job
from app.domain.messages import Event
from app.store.jobs import JobStore

#: A message that a job has changed may be lost, so what was read is believed no longer, seconds.
FRESH_S = 1.0

T = TypeVar("T")


class _Shared(Generic[T]):
    """A read whose answer serves all who ask while it is made, and later ones as long as it is new enough."""

    def __init__(self, read: Callable[[], T]) -> None:
        self._read = read
        self._lock = threading.Lock()
        self._latest: tuple[float, T] | None = None

    def get(self, since: float) -> T:
        """What was read no earlier than `since` (time.monotonic)."""
        with self._lock:
            begun = time.monotonic()
            if self._latest is None or self._latest[0] < max(since, begun - FRESH_S):
                self._latest = begun, self._read()
            return self._latest[1]


class Feed:
    """One job. Both calls raise NotFound, Gone or Unavailable."""

    def __init__(self, store: JobStore, job_id: str) -> None:
        self._events = _Shared(lambda: store.events(job_id, 0))
        self._job = _Shared(lambda: store.get(job_id))

    def events(self, since: float, after: int) -> list[Event]:
        """The log behind the sequence `after`, as it was at `since` (time.monotonic) or later."""
        return [event for event in self._events.get(since) if event.sequence > after]

    def job(self, since: float) -> Job:
        return self._job.get(since)


class Feeds:
    """The feeds that somebody follows."""

    def __init__(self, store: JobStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._feeds: dict[str, Feed] = {}
        self._followers: Counter[str] = Counter()

    @contextmanager
    def of(self, job_id: str) -> Iterator[Feed]:
        with self._lock:
            feed = self._feeds.setdefault(job_id, Feed(self._store, job_id))
            self._followers[job_id] += 1
        try:
            yield feed
        finally:
            with self._lock:
                self._followers[job_id] -= 1
                if not self._followers[job_id]:
                    del self._followers[job_id], self._feeds[job_id]

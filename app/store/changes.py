"""Wakes those who wait for a job to change: one subscription for all waiters of a process.

A message may be lost with its connection. Waiters therefore look for themselves every few seconds, and the log and the
record say what has happened; the message only says that it is worth looking.
"""

import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import structlog
from redis.exceptions import RedisError

from app import keys
from app.connect import Client

log = structlog.get_logger(__name__)

#: A waiter looks after this long without a message, seconds.
LOOK_S = 2.0
_POLL_S = 0.5
_PAUSE_S = 0.5


class Watch:
    """One waiter for one job. `changed_at`: when it last heard of a change, or began (time.monotonic)."""

    def __init__(self) -> None:
        self._changed = threading.Event()
        self.changed_at = time.monotonic()

    def wake(self) -> None:
        self.changed_at = time.monotonic()
        self._changed.set()

    def wait(self, timeout_s: float) -> None:
        """Return after the next change, or soon after a lost message, or when the time is up."""
        self._changed.wait(min(timeout_s, LOOK_S))
        self._changed.clear()


class Changes:
    """The subscription lives as long as somebody waits."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._watches: dict[str, set[Watch]] = defaultdict(set)
        self._running = False

    @contextmanager
    def watch(self, job_id: str) -> Iterator[Watch]:
        watch = Watch()
        with self._lock:
            self._watches[job_id].add(watch)
            if not self._running:
                self._running = True
                threading.Thread(target=self._run, name="changes", daemon=True).start()
        try:
            yield watch
        finally:
            with self._lock:
                self._watches[job_id].discard(watch)
                if not self._watches[job_id]:
                    del self._watches[job_id]

    def _idle(self) -> bool:
        with self._lock:
            if self._watches:
                return False
            self._running = False
            return True

    def _run(self) -> None:
        while not self._idle():
            try:
                self._listen()
            except (RedisError, OSError) as error:
                log.warning("changes_unheard", error=type(error).__name__)
                time.sleep(_PAUSE_S)

    def _listen(self) -> None:
        with self._client.pubsub(ignore_subscribe_messages=True) as subscription:
            subscription.subscribe(keys.CHANGES)
            while self._waited_for():
                message = subscription.get_message(timeout=_POLL_S)
                if message:
                    self._wake(message["data"].decode())

    def _waited_for(self) -> bool:
        with self._lock:
            return bool(self._watches)

    def _wake(self, job_id: str) -> None:
        with self._lock:
            for watch in self._watches.get(job_id, ()):
                watch.wake()

"""Counts the event streams of this process, so that readers cannot take all of its connections."""

import threading


class Readers:
    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._now = 0

    def enter(self) -> bool:
        """Whether there is room for one more; who entered must leave."""
        with self._lock:
            if self._now >= self._most:
                return False
            self._now += 1
            return True

    def leave(self) -> None:
        with self._lock:
            self._now -= 1

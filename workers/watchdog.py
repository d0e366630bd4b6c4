"""The watchdog: ends a process whose device hangs.

Such a process answers no signal that Python handles, and its heartbeat would keep its leases for ever. The timer is the
interpreter's own and needs none of its locks, so it also ends a process that hangs inside a call which holds the GIL.
"""

import faulthandler
import time
from types import TracebackType

#: A step sets the timer again only when the last time is so long ago: that takes a third of a millisecond.
_RENEW_S = 1.0


class Watchdog:
    """One a process. While it is entered, `alive` must be called at least every `limit_s` seconds; 0: it never ends.

    Otherwise the stacks of all threads are written to standard error (names and lines, no values) and the process ends
    with status 1. What it held lapses as a killed worker's.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._armed_at: float | None = None

    def __enter__(self) -> "Watchdog":
        self._arm()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.rest()

    def alive(self) -> None:
        """The device has finished something, or is about to begin."""
        if self._armed_at is None or time.monotonic() - self._armed_at > _RENEW_S:
            self._arm()

    def rest(self) -> None:
        """Nothing runs on the device: wait without a limit."""
        if self._armed_at is not None:
            faulthandler.cancel_dump_traceback_later()
            self._armed_at = None

    def _arm(self) -> None:
        if self._limit_s:
            # Longer by what `alive` may leave out. Standard error by its number: Celery puts a logger in its place.
            faulthandler.dump_traceback_later(self._limit_s + _RENEW_S, exit=True, file=2)
            self._armed_at = time.monotonic()

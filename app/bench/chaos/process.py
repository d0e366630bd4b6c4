"""A process that is killed and started again, watched by the kernel's own handle of it."""

import os
import select
import signal
import time
from collections.abc import Callable


class Process:
    """One process and its successors. Signals reach its whole session, and nothing that was not started here."""

    def __init__(
        self, name: str, role: str, start: Callable[[dict[str, str]], int], reap: Callable[[], object] = lambda: None
    ) -> None:
        """`reap`: called after its end, for children of our own, which the kernel keeps until somebody asks."""
        self.name = name
        self.role = role
        self.extra: dict[str, str] = {}  #: environment of the next start alone
        self.held_until = 0.0  #: time.monotonic() before which it is not started again
        self.starts = 0
        self.pid = 0
        self._start = start
        self._reap = reap
        self._watch = -1

    def start(self) -> None:
        self._forget()
        self.pid = self._start(self.extra)
        self.extra = {}
        self.starts += 1
        try:
            self._watch = os.pidfd_open(self.pid)
        except ProcessLookupError:
            self._watch = -1  # it is over already

    @property
    def running(self) -> bool:
        return self._watch >= 0 and not select.select([self._watch], [], [], 0)[0]

    def signal(self, number: int) -> bool:
        """Whether there was a process to send it to."""
        if not self.running:
            return False
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            return False
        return True

    def finish(self, deadline: float) -> None:
        """Wait until `deadline` (time.monotonic), then kill it."""
        while self.running and time.monotonic() < deadline:
            time.sleep(0.02)
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGKILL)
        while self.running:
            time.sleep(0.01)
        self._forget()

    def _forget(self) -> None:
        if self._watch >= 0:
            os.close(self._watch)
            self._reap()
        self._watch = -1

"""One child process: started with its log file, restarted when it dies, stopped in good order."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

#: Exit status of a child that cannot run as configured (EX_CONFIG of sysexits.h). Restarting it would not help.
EX_CONFIG = 78
#: Exit status of a child that has to go on as a new process (EX_TEMPFAIL): it is started again at once.
EX_AGAIN = 75

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 10.0
#: A child that lived this long has its back-off forgotten, seconds.
_HEALTHY_S = 30.0


class Child:
    def __init__(self, name: str, command: list[str], *, environment: dict[str, str], log: Path) -> None:
        self.name = name
        self.log = log
        self._command = [sys.executable, "-m", "app.launcher.tether", str(os.getpid()), "TERM", *command]
        self.environment = environment
        self._process: subprocess.Popen[bytes] | None = None
        self._started_at = 0.0
        self._restart_at = 0.0
        self._pause_s = _FIRST_PAUSE_S
        self.restarts = 0

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def misconfigured(self) -> bool:
        return self._process is not None and self._process.poll() == EX_CONFIG

    def start(self) -> None:
        # Its own session: Ctrl-C at the terminal reaches the launcher alone, which stops its children in order.
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                env=os.environ | self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._started_at = time.monotonic()

    def revive(self) -> str | None:
        """Restart the child if it died, after its back-off; returns a line to print when something happened."""
        if self.running or self._process is None:
            return None
        now = time.monotonic()
        if not self._restart_at:
            if now - self._started_at > _HEALTHY_S or self._process.returncode == EX_AGAIN:
                self._pause_s = _FIRST_PAUSE_S
            self._restart_at = now + (0 if self._process.returncode == EX_AGAIN else self._pause_s)
            return (
                f"{self.name} ended with status {self._process.returncode}; restart in {self._restart_at - now:.3g} s"
            )
        if now < self._restart_at:
            return None
        if self._process.returncode != EX_AGAIN:
            self._pause_s = min(self._pause_s * 2, _LONGEST_PAUSE_S)
        self._restart_at = 0.0
        self.restarts += 1
        self.start()
        return f"{self.name} restarted, pid {self.pid}"

    def terminate(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()

    def finish(self, deadline: float) -> None:
        """Wait until `deadline` (time.monotonic), then kill the child and what it started."""
        if self._process is None:
            return
        try:
            self._process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._kill_group()
        self._process.wait()

    def _kill_group(self) -> None:
        if self._process is not None:
            try:
                os.killpg(self._process.pid, signal.SIGKILL)
            except ProcessLookupError:
                return

    def last_line(self) -> str:
        """The last line of its log, for an operator who asks why it ended."""
        try:
            lines = self.log.read_text("utf-8", errors="replace").strip().splitlines()
        except OSError:
            return ""
        return lines[-1].removeprefix("planpaint: ") if lines else ""

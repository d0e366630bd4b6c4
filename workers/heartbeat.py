"""The heartbeat: one thread a worker that keeps its leases, reports progress and says that the worker lives.

It is off the busy thread on purpose: a device step of many seconds must not cost the lease.
"""

import os
import socket
import threading
from types import TracebackType

import structlog

from app.domain.messages import Lease
from app.errors import LostLease, Unavailable
from app.store.jobs import JobStore
from app.store.workers import WorkerInfo, WorkerRegistry

log = structlog.get_logger(__name__)

#: Progress is written at most this often, seconds.
_PROGRESS_S = 0.25


class Heartbeat:
    """Holds the leases of one worker. Use as a context manager; `lost` is safe to ask from any thread.

    `drained` is set while an operator wants this worker to take nothing new.
    """

    def __init__(
        self,
        store: JobStore,
        registry: WorkerRegistry,
        *,
        name: str,
        role: str,
        device: str,
        lease_s: float,
        instance: str = "",
    ) -> None:
        self._store = store
        self._registry = registry
        self._instance = instance
        self.drained = threading.Event()
        self._info = (name, role, os.getpid(), socket.gethostname(), device)
        self._interval_s = lease_s / 4
        self._lock = threading.Lock()
        self._steps: dict[Lease, int | None] = {}
        self._lost: set[Lease] = set()
        self._state = "starting"
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def __enter__(self) -> "Heartbeat":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stopping = True
        self._wake.set()
        self._thread.join()
        try:
            self._registry.leave(self._info[0])
        except Unavailable as unavailable:
            log.warning("registry_leave_failed", error=str(unavailable))

    def say(self, state: str) -> None:
        """Set the state that the registry shows: starting, ready, stopping or drained."""
        self._state = state
        self._wake.set()

    def hold(self, lease: Lease) -> None:
        """Renew this lease from now on."""
        with self._lock:
            self._steps[lease] = None

    def progress(self, lease: Lease, step: int) -> None:
        """Report a step; it is written within a quarter of a second, and never by the calling thread."""
        with self._lock:
            if lease in self._steps:
                self._steps[lease] = step

    def drop(self, lease: Lease) -> None:
        """Forget the lease: its work has ended, in any way."""
        with self._lock:
            self._steps.pop(lease, None)
            self._lost.discard(lease)

    def lost(self, lease: Lease) -> bool:
        """Whether somebody else owns the image now, or it has ended: the work must stop."""
        with self._lock:
            return lease in self._lost

    def _run(self) -> None:
        since_beat = self._interval_s
        while not self._stopping:
            woken = self._wake.wait(_PROGRESS_S)
            self._wake.clear()
            since_beat += _PROGRESS_S
            try:
                if woken or since_beat >= self._interval_s:
                    self.beat()
                    self._renew(everything=True)
                    since_beat = 0.0
                else:
                    self._renew(everything=False)
                    self._look_for_cancels()
            except Unavailable as error:
                # Try again at the next tick: leases should be renewed the moment Redis is back.
                log.warning("heartbeat_failed", error=str(error))
                since_beat = self._interval_s
            except Exception:
                # Without this thread every lease would lapse, so it outlives its bugs.
                log.exception("heartbeat_crashed")
                since_beat = self._interval_s

    def beat(self) -> None:
        """Say at once that the worker lives, and learn whether it is drained. Raises Unavailable."""
        name, role, pid, host, device = self._info
        with self._lock:
            state = "busy" if self._steps and self._state == "ready" else self._state
        if self._registry.beat(WorkerInfo(name, role, pid, host, device, state, instance=self._instance)):
            self.drained.set()
        else:
            self.drained.clear()

    def _look_for_cancels(self) -> None:
        """Between renewals, so that a canceled image does not keep its device for a quarter of a lease."""
        with self._lock:
            held = [lease for lease, step in self._steps.items() if step is None]
        for lease in self._store.canceled(held):
            self._renew_one(lease, None)

    def _renew(self, *, everything: bool) -> None:
        with self._lock:
            due = {lease: step for lease, step in self._steps.items() if everything or step is not None}
        for lease, step in due.items():
            self._renew_one(lease, step)

    def _renew_one(self, lease: Lease, step: int | None) -> None:
        try:
            self._store.renew(lease, step=step)
        except LostLease:
            log.warning("lease_lost", image=str(lease.ref), fence=lease.fence)
            with self._lock:
                if lease in self._steps:
                    del self._steps[lease]
                    self._lost.add(lease)
            return
        with self._lock:
            if lease in self._steps and self._steps[lease] == step:
                self._steps[lease] = None

"""Injects the faults of a schedule, each when its time has come, and measures how soon the stack is over it."""

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

import requests

from app.bench.chaos.cluster import Cluster
from app.bench.chaos.process import Process
from app.bench.chaos.receiver import Receiver
from app.bench.chaos.schedule import Fault, Kind
from app.bench.chaos.witness import Witness
from app.domain.messages import ImageRef
from app.domain.states import TERMINAL
from app.errors import PlanpaintError, Unavailable
from app.launcher.stack import direct

_SIGNALS = {
    Kind.KILL: signal.SIGKILL,
    Kind.TERM: signal.SIGTERM,
    Kind.STOP: signal.SIGSTOP,
    Kind.OUTAGE: signal.SIGKILL,
}
_TICK_S = 0.05


@dataclass(slots=True)
class Injected:
    """A fault that has been injected. `images`: held by the process at that moment; `recovered_s`: None, not yet."""

    fault: Fault
    at: float
    images: int = 0
    recovered_s: float | None = None


@dataclass(slots=True)
class _Watch:
    """Asks until the stack is over it; the time that counts runs from `since`."""

    injected: Injected
    since: float
    over: Callable[["_Watch"], bool]


class Driver:
    """`step` from one thread, about twenty times a second."""

    def __init__(self, cluster: Cluster, witness: Witness, receiver: Receiver, faults: tuple[Fault, ...]) -> None:
        self._cluster = cluster
        self._witness = witness
        self._receiver = receiver
        self._waiting = list(faults)
        self._started = time.monotonic()
        self._ends: list[tuple[float, Callable[[], None]]] = []
        self._watches: list[_Watch] = []
        self._session = direct()
        self.injected: list[Injected] = []

    @property
    def done(self) -> bool:
        """Whether all faults have been injected and are over."""
        return not self._waiting and not self._ends and all(process.running for process in self._cluster.processes)

    def step(self) -> None:
        now = time.monotonic()
        for at, end in [each for each in self._ends if each[0] <= now]:
            self._ends.remove((at, end))
            end()
        for fault in [each for each in self._waiting if self._started + each.at_s <= now]:
            if self._inject(fault):
                self._waiting.remove(fault)
        self._cluster.restart_dead()
        for watch in list(self._watches):
            if self._is_over(watch):
                watch.injected.recovered_s = time.monotonic() - watch.since
                self._watches.remove(watch)
        time.sleep(_TICK_S)

    def close(self) -> None:
        self._session.close()

    def _is_over(self, watch: _Watch) -> bool:
        try:
            return watch.over(watch)
        except PlanpaintError:
            return False

    def _inject(self, fault: Fault) -> bool:
        """False when its target is down just now: then it waits, and hits it when it is back."""
        if fault.target == "receiver":
            self._trouble_receiver(fault)
            return True
        candidates = self._cluster.of(fault.target)
        first = int(fault.draw * len(candidates))
        process = next((each for each in candidates[first:] + candidates[:first] if each.running), None)
        if process is None:
            return False
        pid = process.pid
        process.held_until = time.monotonic() + fault.for_s if fault.kind is Kind.OUTAGE else 0.0
        if not process.signal(_SIGNALS[fault.kind]):
            return False
        if fault.kind is Kind.STOP:
            self._ends.append((time.monotonic() + fault.for_s, lambda: self._go_on(process, pid)))
        injected = Injected(fault, time.monotonic())
        self.injected.append(injected)
        self._watches.append(self._watch(process, injected, pid))
        return True

    def _go_on(self, process: Process, pid: int) -> None:
        if process.pid == pid:
            process.signal(signal.SIGCONT)

    def _trouble_receiver(self, fault: Fault) -> None:
        injected = Injected(fault, time.monotonic())
        self.injected.append(injected)
        if fault.kind is Kind.FAILING:
            self._receiver.failing = True
        else:
            self._receiver.refuse()

        def end() -> None:
            self._receiver.failing = False
            if fault.kind is Kind.REFUSING:
                self._receiver.listen()
            before = self._confirmed()
            self._watches.append(_Watch(injected, time.monotonic(), lambda _: self._confirmed() > before))

        self._ends.append((time.monotonic() + fault.for_s, end))

    def _confirmed(self) -> int:
        return sum(each.confirmed for each in self._receiver.received)

    # --- when it is over

    def _watch(self, process: Process, injected: Injected, pid: int) -> _Watch:
        over = {"redis": self._redis(), "s3": self._storage(process)}.get(process.role)
        if process.role == "api":
            over = self._answers(self._cluster.api_urls[self._cluster.of("api").index(process)])
        elif process.role in ("ar", "dit"):
            over = self._images(injected, pid)
        elif over is None:
            over = self._ready(process, pid)
        return _Watch(injected, injected.at, over)

    def _answers(self, url: str) -> Callable[[_Watch], bool]:
        def over(_: _Watch) -> bool:
            try:
                return self._session.get(f"{url}/healthz", timeout=0.5).ok
            except requests.exceptions.RequestException:
                return False

        return over

    def _ready(self, process: Process, dead: int) -> Callable[[_Watch], bool]:
        return lambda _: process.pid != dead and process.pid in self._cluster.ready_pids()

    def _images(self, injected: Injected, pid: int) -> Callable[[_Watch], bool]:
        """Every image that it held is with a worker again, or has ended."""
        held: dict[ImageRef, int] = {}
        known = False

        def over(_: _Watch) -> bool:
            nonlocal known
            if not known:
                for ref, (_state, owner, fence, _at) in self._witness.open_images().items():
                    if f"-{pid}-" in owner:
                        held[ref] = fence
                known, injected.images = True, len(held)
            for ref, fence in list(held.items()):
                state, now = self._witness.record(ref)
                if now > fence or state in TERMINAL:
                    del held[ref]
            return not held

        return over

    def _redis(self) -> Callable[[_Watch], bool]:
        """A lease or a result that is newer than its return. The time before does not count."""
        back: list[tuple[int, tuple[int, int]]] = []

        def over(watch: _Watch) -> bool:
            if not back:
                back.append((self._witness.now_ms(), self._witness.progress()))
                watch.since = time.monotonic()
            since_ms, progress = back[0]
            images = self._witness.open_images()
            return (
                not images
                or self._witness.progress() != progress
                or any(claimed > since_ms for *_, claimed in images.values())
            )

        return over

    def _storage(self, process: Process) -> Callable[[_Watch], bool]:
        back: list[int] = []

        def over(watch: _Watch) -> bool:
            if not back:
                if not process.running or time.monotonic() < process.held_until:
                    raise Unavailable("it is not back")
                self._witness.look_at_objects()
                back.append(self._witness.progress()[1])
                watch.since = time.monotonic()
            return self._witness.progress()[1] > back[0] or not self._witness.open_images()

        return over

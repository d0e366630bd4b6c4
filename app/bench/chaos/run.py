"""One run: the cluster, its callers and its faults, then quiet, then the verdict."""

import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import requests

from app.bench.chaos.callers import Callers
from app.bench.chaos.checker import KINDS, Violation, check
from app.bench.chaos.cluster import Cluster
from app.bench.chaos.driver import Driver, Injected
from app.bench.chaos.history import History
from app.bench.chaos.receiver import Receiver
from app.bench.chaos.schedule import schedule
from app.bench.chaos.witness import Witness
from app.errors import PlanpaintError
from app.launcher.stack import direct
from app.settings import PREFIX
from app.views import delivery_id

#: After the last fault: what has not moved for so long is stuck, however slow the machine is; and the longest wait.
_STILL_S, _QUIET_S = 120.0, 1800.0
#: An event whose courier was killed is held for 38 s; one whose next try is later has failed twice, and its next is
#: minutes away. The harness asks for those by the API, as an operator would.
_SOON_S = 45.0
#: Jobs that are looked at in one go, and seconds between such looks and between lists of the bucket.
_SLICE, _LOOK_S, _LIST_S = 25, 0.5, 5.0


@dataclass(frozen=True, slots=True)
class Plan:
    """How hard it is tried. `kills`: of roles, by SIGKILL, beside the outages."""

    jobs: int
    seconds: float
    seed: int
    kills: int
    workers: int = 2


@dataclass(frozen=True, slots=True)
class Verdict:
    plan: Plan
    violations: tuple[Violation, ...]
    injected: tuple[Injected, ...]
    jobs: int
    images: int
    deliveries: int
    redelivered: int
    orphans: int
    wall_s: float
    restarts: int

    @property
    def counts(self) -> dict[str, int]:
        found = Counter(violation.kind for violation in self.violations)
        return {kind: found[kind] for kind in KINDS}

    @property
    def holds(self) -> bool:
        return not self.violations


def environment(checkpoint: Path) -> dict[str, str]:
    """Usual settings but for size: a small model on one thread, and images that may be killed often."""
    values = {
        "CHECKPOINT": str(checkpoint),
        "DEVICE": "cpu",
        "THREADS": "1",
        "GRAPH": "off",
        "AR_SLOTS": "8",
        "MAX_PIXELS": str(64 * 64),
        "MAX_PROMPT_TOKENS": "256",
        "WEBHOOK_ALLOW": "127.0.0.0/8",
        "WEBHOOK_TIMEOUT_S": "2",
        # Nothing is wrong with the images, and every one must come through however often its worker is killed.
        "MAX_ATTEMPTS": "20",
    }
    return {PREFIX + name: value for name, value in values.items()}


def run(plan: Plan, say: Callable[[str], None], overrides: Mapping[str, str] | None = None) -> Verdict:
    """Attack a cluster of its own. What it leaves behind is kept when something was wrong, and `say` tells where."""
    data = Path(tempfile.mkdtemp(prefix="planpaint-chaos-"))
    checkpoint = data / "checkpoint"
    _make(checkpoint)
    settings = environment(checkpoint) | dict(overrides or {})
    with (
        Receiver() as receiver,
        Cluster(data / "stack", {"api": 2, "ar": plan.workers, "dit": plan.workers}, settings) as cluster,
    ):
        say(f"ready: {', '.join(process.name for process in cluster.processes)}")
        verdict = attack(plan, cluster, receiver, say)
    if verdict.holds:
        shutil.rmtree(data)
    else:
        (data / "violations.txt").write_text("\n".join(f"{each.kind}: {each.what}" for each in verdict.violations))
        say(f"logs and violations: {data}")
    return verdict


def _make(checkpoint: Path) -> None:
    """In a process of its own: this one needs no torch."""
    command = [sys.executable, "-m", "app.cli", "make-checkpoint", str(checkpoint)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def attack(plan: Plan, cluster: Cluster, receiver: Receiver, say: Callable[[str], None]) -> Verdict:
    """Attack this cluster while callers use it, wait for quiet, and compare."""
    faults = schedule(plan.seed, seconds=plan.seconds, kills=plan.kills, lease_s=cluster.settings.lease_s)
    witness = Witness(cluster.settings)
    started = time.monotonic()
    callers = Callers(cluster.api_urls, receiver.url, seed=plan.seed, jobs=plan.jobs, seconds=plan.seconds * 0.9)
    driver = Driver(cluster, witness, receiver, faults)
    watching = _Watching(witness, callers)
    try:
        callers.start()
        while not (driver.done and callers.done):
            driver.step()
            watching.step()
        say(f"all faults injected and all jobs submitted after {time.monotonic() - started:.0f} s")
        redelivered = _quiet(cluster, driver, watching, witness, callers)
        callers.join()
        history = _history(witness, callers, receiver)
    finally:
        driver.close()
        witness.close()
    return Verdict(
        plan,
        tuple(check(history)),
        tuple(driver.injected),
        jobs=len(history.accepted),
        images=sum(len(job.images) for job in history.jobs.values() if job),
        deliveries=sum(each.confirmed for each in history.received),
        redelivered=redelivered,
        orphans=history.orphans,
        wall_s=time.monotonic() - started,
        restarts=sum(process.starts - 1 for process in cluster.processes),
    )


class _Watching:
    """Looks at a few jobs at a time, so that the looking is no load."""

    def __init__(self, witness: Witness, callers: Callers) -> None:
        self._witness = witness
        self._callers = callers
        self._next = 0
        self._looked_at = self._listed_at = time.monotonic()

    def step(self) -> None:
        now = time.monotonic()
        try:
            if now - self._looked_at > _LOOK_S:
                self._looked_at = now
                accepted = self._callers.snapshot()
                self._witness.look(accepted[self._next : self._next + _SLICE])
                self._next = self._next + _SLICE if self._next + _SLICE < len(accepted) else 0
            if now - self._listed_at > _LIST_S:
                self._listed_at = now
                self._witness.look_at_objects()
        except PlanpaintError:
            return  # it is away; that is the point


def _quiet(cluster: Cluster, driver: Driver, watching: _Watching, witness: Witness, callers: Callers) -> int:
    """Wait until all is done, or for as long as it may take; returns how many events were asked for once more."""
    deadline = time.monotonic() + _QUIET_S
    moved_at, last = time.monotonic(), None
    asked: set[tuple[str, int]] = set()
    with direct() as session:
        while time.monotonic() < min(deadline, moved_at + _STILL_S):
            driver.step()
            watching.step()
            try:
                waiting = witness.waiting_webhooks()
                now = (witness.progress(), len(waiting))
                if now != last:
                    moved_at, last = time.monotonic(), now
                if not waiting and witness.all_ended(callers.snapshot()):
                    break
            except PlanpaintError:
                continue
            for job_id, sequence, in_s in waiting:
                if (
                    in_s > _SOON_S
                    and (job_id, sequence) not in asked
                    and _redeliver(session, cluster, job_id, sequence)
                ):
                    asked.add((job_id, sequence))
    # Hints of images that are done may be on their way still.
    until = time.monotonic() + 5
    while time.monotonic() < until:
        driver.step()
    return len(asked)


def _redeliver(session: requests.Session, cluster: Cluster, job_id: str, sequence: int) -> bool:
    """Whether it was taken; the API may be starting still."""
    try:
        url = f"{cluster.api_url}/v1/deliveries/{delivery_id(job_id, sequence)}/redeliver"
        return session.post(url, timeout=10).ok
    except requests.exceptions.RequestException:
        return False


def _history(witness: Witness, callers: Callers, receiver: Receiver) -> History:
    accepted = tuple(callers.snapshot())
    received = receiver.received
    witness.look_at_objects()
    jobs = witness.jobs(accepted)
    return History(
        accepted=accepted,
        unanswered=callers.unanswered,
        received=received,
        jobs=jobs,
        rewritten=tuple(sorted(witness.rewritten)),
        orphans=witness.orphans(jobs),
        left=witness.left(),
        overdue=witness.overdue(by_s=5),
        surprises=tuple(callers.surprises),
    )

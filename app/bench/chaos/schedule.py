"""Which fault happens when: a pure function of the seed."""

import random
from dataclasses import dataclass
from enum import StrEnum

#: Of all kills; a role that computes loses more by one, and takes longer to come back.
_SHARES = {"api": 5, "courier": 13, "sweeper": 13, "ar": 11, "dit": 18}


class Kind(StrEnum):
    """What is done."""

    KILL = "SIGKILL"
    TERM = "SIGTERM"
    STOP = "SIGSTOP, then CONT"
    OUTAGE = "SIGKILL, restarted later"
    FAILING = "answers 500"
    REFUSING = "refuses connections"


@dataclass(frozen=True, slots=True)
class Fault:
    """`at_s`: from the start. `target`: a role, "redis", "s3" or "receiver". `for_s`: how long it lasts, 0 for a kill.

    `draw`: which of the role's processes it hits, as a share of them.
    """

    at_s: float
    kind: Kind
    target: str
    for_s: float = 0.0
    draw: float = 0.0


def schedule(seed: int, *, seconds: float, kills: int, lease_s: float) -> tuple[Fault, ...]:
    """Faults in order of time. `kills`: of roles, by SIGKILL; every role is among them.

    Beside these: two or more kills of Redis, one outage of object storage, one of the receiver, which fails and then
    refuses, one SIGTERM of each role, and one worker of each stage stopped for longer than its lease.
    """
    draw = random.Random(seed)  # noqa: S311 - a schedule, not secrets
    roles = list(_SHARES)
    targets = roles + draw.choices(roles, list(_SHARES.values()), k=max(0, kills - len(roles)))
    draw.shuffle(targets)
    faults = [
        Fault(_at(draw, number, len(targets), seconds), Kind.KILL, target, draw=draw.random())
        for number, target in enumerate(targets)
    ]
    faults += [Fault(draw.uniform(0.1, 0.9) * seconds, Kind.TERM, role, draw=draw.random()) for role in roles]
    for stage in ("ar", "dit"):
        length = lease_s * draw.uniform(1.3, 1.6)
        at = draw.uniform(0.05, 0.7) * seconds
        faults.append(Fault(at, Kind.STOP, stage, min(length, seconds / 3), draw.random()))
    outages = max(2, round(seconds / 50))
    for number in range(outages):
        at = _at(draw, number, outages, seconds * 0.9)
        faults.append(Fault(at, Kind.OUTAGE, "redis", min(draw.uniform(0.0, 4.0), seconds / 10)))
    faults.append(Fault(draw.uniform(0.2, 0.7) * seconds, Kind.OUTAGE, "s3", min(draw.uniform(4, 8), seconds / 6)))
    at, length = draw.uniform(0.2, 0.7) * seconds, min(5.0, seconds / 10)
    faults.append(Fault(at, Kind.FAILING, "receiver", length))
    faults.append(Fault(at + length, Kind.REFUSING, "receiver", length))
    return tuple(sorted(faults, key=lambda fault: fault.at_s))


def _at(draw: random.Random, number: int, of: int, seconds: float) -> float:
    """Somewhere in the numbered part of the time, so that no stretch stays quiet."""
    return (number + draw.random()) / of * seconds * 0.95 + seconds * 0.02

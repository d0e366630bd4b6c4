"""Processor time of the stack's processes: what the service spends beside its models."""

import os
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from app.launcher.child import Child

_TICKS = os.sysconf("SC_CLK_TCK")


def core_seconds(children: Iterable[Child]) -> dict[str, float]:
    """Role -> processor seconds so far of its processes and of those that they started. Linux only."""
    parents = dict(_processes())
    spent: dict[str, float] = defaultdict(float)
    for child in children:
        role = child.name.split("-")[0]
        family = {child.pid}
        for _ in range(3):  # gunicorn's workers are grandchildren
            family |= {pid for pid, (parent, _) in parents.items() if parent in family}
        spent[role] += sum(parents[pid][1] for pid in family if pid in parents)
    return dict(spent)


def _processes() -> Iterable[tuple[int, tuple[int, float]]]:
    """pid -> its parent and the seconds that it has run."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        yield int(folder.name), (int(fields[1]), (int(fields[11]) + int(fields[12])) / _TICKS)

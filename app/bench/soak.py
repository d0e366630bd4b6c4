"""Whether a long-lived DiT worker's memory grows."""

import os
from pathlib import Path
from statistics import median

from app.bench.workshop import Workshop
from app.dit.engine import DitEngine
from app.dit.request import PaintRequest


class _Cancelled(Exception):
    """What a lost lease is to an engine."""


def growth_kb(engine: DitEngine, workshop: Workshop, request: PaintRequest, *, images: int, cancels: int) -> float:
    """Kilobytes of this process's resident memory by picture, over so many committed images and cancels between them.

    From the medians of the second and the last quarter: the first one is where pools fill and libraries load, and a
    median does not see what an allocator borrows for a moment.
    """
    block = 10
    resident = []
    for _ in range(images // block):
        workshop.paint(engine, request, block)
        for _ in range(cancels * block // images):
            _cancel(engine, request)
        resident.append(_resident_kb())
    quarter = len(resident) // 4
    grown = median(resident[-quarter:]) - median(resident[quarter : 2 * quarter])
    between = (len(resident) - 1.5 * quarter - 0.5 * quarter) * block * (1 + cancels / images)
    return grown / between


def _cancel(engine: DitEngine, request: PaintRequest) -> None:
    def on_step(step: int) -> None:
        raise _Cancelled

    try:
        engine.paint(request, on_step)
    except _Cancelled:
        return
    raise RuntimeError("a cancelled picture was painted to its end")


def _resident_kb() -> float:
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    return pages * os.sysconf("SC_PAGESIZE") / 1024

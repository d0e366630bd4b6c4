"""Named places at which a process kills itself when a test asks for it, as SIGKILL would: no handler, no `finally`.

`PLANPAINT_CRASH_AT=dit.after_upload` dies when that place is reached; `dit.denoising:3` at the third time that it is;
`...@/tmp/died` only while that file is missing, and makes it first, so that the restarted process goes on. With `+hang`
before the `@` it does not die but stands still, as on a device that never answers; its other threads go on. Several are
parted by commas. A service that is not under test never sets it.
"""

import os
import signal
import threading
import time
from pathlib import Path

from app.errors import Misconfigured

VARIABLE = "PLANPAINT_CRASH_AT"

#: Before, during and after each hand-over of a job from one process to the next.
POINTS = frozenset(
    {
        "api.before_submit",
        "api.after_submit",
        "api.after_tombstone",  # of a deleted job; its objects are still there
        "ar.before_claim",
        "ar.after_claim",
        "ar.decoding",
        "ar.before_hand_over",
        "ar.after_hand_over",  # the plan is stored, and no hint sent
        "dit.before_claim",
        "dit.after_claim",
        "dit.denoising",
        "dit.before_ack",  # the picture is with the uploader
        "dit.after_upload",
        "dit.after_commit",
        "courier.before_send",
        "courier.after_send",  # the receiver has confirmed, and nothing is recorded
        "sweeper.sweeping",  # an image is moved, and no hint sent
        "sweeper.after_tombstone",  # of an expired job
    }
)

_counts: dict[str, int] = {}
_lock = threading.Lock()


def check() -> None:
    """Raises Misconfigured for a point that does not exist: a test that waits for it would wait for ever."""
    for wanted in _wanted():
        name, times, _, _ = _parse(wanted)
        if name not in POINTS or times < 1:
            raise Misconfigured(f"{VARIABLE}: no crash point {wanted!r}")


def reach(name: str) -> None:
    """Does nothing, unless this point is where the process should die."""
    if VARIABLE not in os.environ:
        return
    for wanted in _wanted():
        point, times, hangs, once = _parse(wanted)
        if point == name and _count(wanted) == times and _first(once):
            while hangs:
                time.sleep(60)
            os.kill(os.getpid(), signal.SIGKILL)


def _wanted() -> list[str]:
    return [part for part in os.environ.get(VARIABLE, "").split(",") if part]


def _parse(wanted: str) -> tuple[str, int, bool, str]:
    """The point, the time that counts, whether it hangs, and the file."""
    place, _, once = wanted.partition("@")
    name, _, times = place.removesuffix("+hang").partition(":")
    return name, int(times) if times.isdecimal() else int(not times), place.endswith("+hang"), once


def _count(wanted: str) -> int:
    with _lock:
        _counts[wanted] = _counts.get(wanted, 0) + 1
        return _counts[wanted]


def _first(once: str) -> bool:
    if not once:
        return True
    try:
        Path(once).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True

"""What every worker process does alike: stop in good order on TERM and INT, and wait out an unreachable server."""

import signal
import threading
import time
from collections.abc import Callable
from typing import TypeVar

import structlog

from app.errors import LostLease, Unavailable
from workers.heartbeat import Heartbeat

log = structlog.get_logger(__name__)

T = TypeVar("T")

_STOPPING = (signal.SIGTERM, signal.SIGINT)
#: First and longest pause between tries of an unreachable server, seconds.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 2.0


def stop_on_signals() -> threading.Event:
    """An event that TERM or INT sets. Call from the main thread."""
    stop = threading.Event()
    for number in _STOPPING:
        signal.signal(number, lambda *_: stop.set())
    return stop


def patiently(call: Callable[[], T], stop: threading.Event) -> T:
    """Repeat `call` until the server answers. Raises Unavailable only when `stop` is set meanwhile."""
    pause = _FIRST_PAUSE_S
    while True:
        try:
            return call()
        except Unavailable as error:
            log.warning("waiting", error=str(error), pause_s=pause)
            if stop.wait(pause):
                raise
            pause = min(pause * 2, _LONGEST_PAUSE_S)


def may_begin(heartbeat: Heartbeat) -> bool:
    """Whether to load the model: at once, unless the worker is drained; then when that ends.

    A drained worker that its supervisor has started again so waits idle. False when TERM or INT came meanwhile.
    """
    before = {number: signal.getsignal(number) for number in _STOPPING}
    stop = stop_on_signals()
    try:
        patiently(heartbeat.beat, stop)
        if heartbeat.drained.is_set():
            log.warning("drained", todo="planpaint drain --undo")
            heartbeat.say("drained")
        while heartbeat.drained.is_set() and not stop.wait(_FIRST_PAUSE_S):
            pass
        heartbeat.say("starting")
    except Unavailable:
        return False  # patiently() raises it once told to stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return not stop.is_set()


def ends_at(left_s: float | None) -> float:
    """A time that is so many seconds away, on the monotonic clock; never for None."""
    return float("inf") if left_s is None else time.monotonic() + left_s


def while_leased(call: Callable[[], T], abandoned: Callable[[], bool], what: str) -> T:
    """Repeat `call` until the server answers. Raises LostLease, naming `what`, once the work is abandoned meanwhile."""
    pause = _FIRST_PAUSE_S
    while True:
        try:
            return call()
        except Unavailable as error:
            if abandoned():
                raise LostLease(what) from error
            log.warning("waiting", error=str(error), pause_s=pause)
            time.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE_S)

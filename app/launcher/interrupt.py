"""TERM, INT and HUP as one exception, so that `with` blocks stop what they started wherever the signal finds them."""

import signal
from types import FrameType

#: HUP comes from a terminal that is closed.
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Interrupted(BaseException):
    """The first TERM, INT or HUP. Later ones are ignored: the stop that it starts is bounded in time."""


def raise_on_signals() -> None:
    """Call once, from the main thread."""

    def handle(number: int, frame: FrameType | None) -> None:
        for each in _SIGNALS:
            signal.signal(each, signal.SIG_IGN)
        raise Interrupted

    for number in _SIGNALS:
        signal.signal(number, handle)

"""TERM and INT as one exception, so that `with` blocks stop what they started wherever the signal finds them."""

import signal
from types import FrameType


class Interrupted(BaseException):
    """The first TERM or INT. Later ones are ignored: the stop that it starts is bounded in time."""


def raise_on_signals() -> None:
    """Call once, from the main thread."""

    def handle(number: int, frame: FrameType | None) -> None:
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, signal.SIG_IGN)
        raise Interrupted

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handle)

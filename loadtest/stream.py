"""Server-sent events, as a client reads them."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """`id` is None for an event that nothing can resume behind."""

    id: str | None
    type: str
    data: dict[str, Any]


def read(chunks: Iterable[bytes]) -> Iterator[StreamEvent]:
    """The events of a stream, wherever its chunks are cut. Half an event at the end is none (HTML, section 9.2.6)."""
    fields: dict[str, str] = {}
    for line in _lines(chunks):
        if line:
            name, _, value = line.decode().partition(":")
            # A line that begins with a colon is a comment.
            if name:
                fields[name] = value.removeprefix(" ")
        else:
            if "data" in fields:
                yield StreamEvent(fields.get("id"), fields.get("event", "message"), json.loads(fields["data"]))
            fields = {}


def _lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        yield from whole

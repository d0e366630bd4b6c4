"""What rank 0 of a tensor-parallel group has every rank do. A step is a few numbers; tokens are drawn by each rank."""

from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class Prefill:
    """Read a part of a prompt, from its token number `first`, into the slot of the row that is opening.

    `positions` [3, ids].
    """

    first: int
    ids: list[int]
    positions: list[list[int]]


@dataclass(frozen=True, slots=True)
class Start:
    """Make the row that is opening, of `length` prompt tokens, a running one in `slot`, and draw its first token.

    `positions` [3, tokens to draw].
    """

    slot: int
    length: int
    temperature: float
    top_p: float
    top_k: int
    seed: int
    positions: list[list[int]]


@dataclass(frozen=True, slots=True)
class Abandon:
    """Forget the row that is opening, of at most `length` positions; it may have half started in `slot`."""

    slot: int
    length: int


@dataclass(frozen=True, slots=True)
class Decode:
    """Draw one token of each of the first `rows` slots; the longest holds so many positions."""

    rows: int
    longest: int


@dataclass(frozen=True, slots=True)
class Release:
    """Free a slot of `length` positions, and move the last running row of `last_length` positions into it."""

    slot: int
    length: int
    last: int
    last_length: int


Order = Prefill | Start | Abandon | Decode | Release
_KINDS: dict[str, type[Order]] = {kind.__name__: kind for kind in (Prefill, Start, Abandon, Decode, Release)}


def to_json(order: Order) -> dict[str, Any]:
    named = {field.name: getattr(order, field.name) for field in fields(order)}
    return {"order": type(order).__name__, **named}


def from_json(message: dict[str, Any]) -> Order:
    given = dict(message)
    return _KINDS[given.pop("order")](**given)

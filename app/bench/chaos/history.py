"""What is written down while the stack is attacked, and how it all looks at the end. The checker reads nothing else."""

from dataclasses import dataclass, field

from app.domain.messages import ImageRef


@dataclass(frozen=True, slots=True)
class Order:
    """What a caller asks for. Equal `look`s must become equal bytes. `webhook`: whether its events are delivered."""

    number: int
    look: int
    n: int
    width: int
    height: int
    webhook: bool


@dataclass(slots=True)
class Accepted:
    """An order with what it was answered: every id, of which there must be one, and whether it was canceled."""

    order: Order
    ids: list[str] = field(default_factory=list)
    canceled: bool = False


@dataclass(frozen=True, slots=True)
class Received:
    """One POST to the receiver. `digest`: SHA-256 of the body. `confirmed`: it was answered with 2xx."""

    event_id: str
    digest: str
    confirmed: bool


@dataclass(frozen=True, slots=True)
class Pointer:
    """The object that an image's record names."""

    key: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Stored:
    """An object as it was read at the end; None: it is not there, or is no picture."""

    sha256: str | None
    size: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class FinalImage:
    """`pointers`: every one that was ever seen, in order. `stored`: the object of the last one."""

    state: str
    look: int
    pointers: tuple[Pointer, ...] = ()
    stored: Stored | None = None
    failure: str = ""


@dataclass(frozen=True, slots=True)
class FinalEvent:
    """A line of a job's log. `wanted`: its receiver should have it."""

    event_id: str
    type: str
    index: int | None
    wanted: bool


@dataclass(frozen=True, slots=True)
class FinalJob:
    """A job's record at the end; None for one that nobody knows."""

    images: tuple[FinalImage, ...]
    events: tuple[FinalEvent, ...]


@dataclass(frozen=True, slots=True)
class History:
    """Everything. `rewritten`: keys whose bytes changed while they were watched. `left`: what should be empty.

    `surprises`: answers that no caller should get.
    """

    accepted: tuple[Accepted, ...]
    unanswered: int
    received: tuple[Received, ...]
    jobs: dict[str, FinalJob | None]
    rewritten: tuple[str, ...] = ()
    orphans: int = 0
    left: dict[str, int] = field(default_factory=dict)
    overdue: tuple[ImageRef, ...] = ()
    surprises: tuple[str, ...] = ()

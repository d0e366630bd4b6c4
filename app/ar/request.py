"""What goes into the AR engine and what comes out of it."""

from dataclasses import dataclass

from app.domain.prior import PriorTokens
from app.domain.sizes import Size


@dataclass(frozen=True, slots=True)
class ArRequest:
    """One image to plan. `key` names it among the running rows; temperature 0 is greedy."""

    key: str
    prompt: str
    size: Size
    seed: int
    temperature: float
    top_p: float


@dataclass(frozen=True, slots=True)
class ArResult:
    """The plan of one image, and the seconds from its admission to its last token."""

    key: str
    prior: PriorTokens
    seconds: float


@dataclass(frozen=True, slots=True)
class ArFailure:
    """Why one image has no plan; the fields are those of `app.errors.ImageFailed`."""

    key: str
    code: str
    message: str
    retryable: bool

"""What goes into the AR engine and what comes out of it."""

from dataclasses import dataclass

from PIL.Image import Image

from app.domain.prior import PriorTokens
from app.domain.sizes import Size


@dataclass(frozen=True, slots=True)
class ArRequest:
    """One image to plan. `key` names it among the running rows; temperature 0 is greedy, top-k 0 off.

    `images`: for an edit its condition images, RGB and of sizes that `app.pictures.prepare` gives.
    """

    key: str
    prompt: str
    size: Size
    seed: int
    temperature: float
    top_p: float
    images: tuple[Image, ...] = ()
    top_k: int = 0


@dataclass(frozen=True, slots=True)
class ArResult:
    """The plan of one image, and the seconds from its admission to its last token.

    `condition`: the ids of each condition image, which the DiT needs beside the image itself.
    """

    key: str
    prior: PriorTokens
    seconds: float
    condition: tuple[PriorTokens, ...] = ()


@dataclass(frozen=True, slots=True)
class ArFailure:
    """Why one image has no plan; the fields are those of `app.errors.ImageFailed`."""

    key: str
    code: str
    message: str
    retryable: bool
    traceback: str = ""

"""What goes into the DiT engine."""

from dataclasses import dataclass

from PIL.Image import Image

from app.domain.prior import PriorTokens
from app.domain.sizes import Size
from app.pictures import fits


@dataclass(frozen=True, slots=True)
class PaintRequest:
    """One picture to paint from its plan. The prompt counts too: the text to be drawn stands in quotes in it.

    `steps` are denoising steps; a `guidance_scale` of at most 1 means no classifier-free guidance, at half the time.
    An edit has condition `images`, the same ones that AR was given (RGB, prepared by `app.pictures.prepare`), and in
    `condition` the ids that AR made of each.
    """

    prompt: str
    size: Size
    prior: PriorTokens
    seed: int
    steps: int
    guidance_scale: float
    images: tuple[Image, ...] = ()
    condition: tuple[PriorTokens, ...] = ()

    def __post_init__(self) -> None:
        if self.prior.grid != self.size.large_grid:
            raise ValueError(f"a plan of {self.prior.grid} is not one for a picture of {self.size}")
        if len(self.images) != len(self.condition):
            raise ValueError(f"{len(self.images)} condition images have {len(self.condition)} grids of ids")
        for image, condition in zip(self.images, self.condition, strict=True):
            if not fits(image, condition.grid):
                raise ValueError(f"ids of {condition.grid} are not those of a {image.width}x{image.height} image")

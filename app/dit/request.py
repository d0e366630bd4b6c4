"""What goes into the DiT engine."""

from dataclasses import dataclass

from app.domain.prior import PriorTokens
from app.domain.sizes import Size


@dataclass(frozen=True, slots=True)
class PaintRequest:
    """One picture to paint from its plan. The prompt counts too: the text to be drawn stands in quotes in it.

    `steps` are denoising steps; a `guidance_scale` of at most 1 means no classifier-free guidance, at half the time.
    """

    prompt: str
    size: Size
    prior: PriorTokens
    seed: int
    steps: int
    guidance_scale: float

    def __post_init__(self) -> None:
        if self.prior.grid != self.size.large_grid:
            raise ValueError(f"a plan of {self.prior.grid} is not one for a picture of {self.size}")

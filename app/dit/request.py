"""What goes into the DiT engine."""

import base64
import io
from dataclasses import dataclass
from typing import Any, Self

import PIL.Image
from PIL.Image import Image

from app.domain.prior import PriorTokens, pack_all, unpack_all
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

    def to_json(self) -> dict[str, Any]:
        """For the other ranks of a group; images as PNG in base64."""
        return {
            "prompt": self.prompt,
            "size": str(self.size),
            "prior": _packed((self.prior,)),
            "seed": self.seed,
            "steps": self.steps,
            "guidance_scale": self.guidance_scale,
            "images": [_png(image) for image in self.images],
            "condition": _packed(self.condition),
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """What `to_json` gave."""
        images = (PIL.Image.open(io.BytesIO(base64.b64decode(image))) for image in value["images"])
        return cls(
            prompt=value["prompt"],
            size=Size.parse(value["size"]),
            prior=unpack_all(base64.b64decode(value["prior"]))[0],
            seed=value["seed"],
            steps=value["steps"],
            guidance_scale=value["guidance_scale"],
            images=tuple(image.convert("RGB") for image in images),
            condition=unpack_all(base64.b64decode(value["condition"])),
        )


def _packed(priors: tuple[PriorTokens, ...]) -> str:
    return base64.b64encode(pack_all(priors)).decode()


def _png(image: Image) -> str:
    file = io.BytesIO()
    image.save(file, "png", compress_level=1)
    return base64.b64encode(file.getvalue()).decode()

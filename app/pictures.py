"""Condition pictures, brought once to a size on which both stages agree.

The AR model reads a picture as one token for each 32x32 pixels (its image processor halves the picture and cuts it into
patches of 16), the DiT as one latent for each 16x16. The DiT adds each token to its four latents, so that the two grids
must fit. The reference leaves that to luck: its image processor rounds to the nearest cell where its VAE rounds down,
enlarges a picture whose shorter side is below a minimum (the VAE does not) and reduces one whose longer side is above a
maximum; then the transformer stops with a shape error. What it does accept are sides of less than half a cell more than
whole cells, within those two bounds and no longer than 4:1.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from PIL import Image, ImageOps

from app.domain.sizes import CELL, MAX_SIDE, Grid
from app.errors import BrokenCheckpoint

#: The longest shape that the reference's image processor takes.
_MOST_RATIO = 4


@dataclass(frozen=True, slots=True)
class Bounds:
    """Sides, in pixels, between which a checkpoint's image processor neither enlarges nor reduces."""

    least_side: int = CELL
    most_side: int = MAX_SIDE

    def __post_init__(self) -> None:
        if not CELL <= self.least_side <= self.most_side or self.least_side % CELL or self.most_side % CELL:
            raise ValueError(f"sides must be whole cells of {CELL} pixels, got {self.least_side} to {self.most_side}")

    @classmethod
    def of(cls, processor: Path) -> Self:
        """Read them from a checkpoint's `processor` folder. Raises BrokenCheckpoint when they are not there."""
        path = processor / "processor_config.json"
        try:
            size = json.loads(path.read_text("utf-8"))["image_processor"]["size"]
            # Named edges, they are areas; the processor compares their roots with the sides.
            least, most = (round(math.sqrt(size[edge])) for edge in ("shortest_edge", "longest_edge"))
            return cls(max(1, -(-least // CELL)) * CELL, min(most, MAX_SIDE) // CELL * CELL)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise BrokenCheckpoint(f"{path} does not tell the sizes of condition images: {error}") from error


def prepare(image: Image.Image, bounds: Bounds, *, most_pixels: int = 1024 * 1024) -> Image.Image:
    """The picture in RGB, upright, on white where it is transparent, its sides whole cells within `bounds`.

    It is scaled as little as possible to at most `most_pixels`, and its sides go to the nearest whole cells, which
    stretches it a little, as both stages of the reference do, rather than lose an edge. One longer than 4:1 is first
    cut to that around its centre. A picture with short sides is enlarged even past `most_pixels`. What is prepared
    already comes back with the same pixels.
    """
    if image.mode.startswith("I"):  # 16-bit grey; convert() would make all but the darkest 256 greys white
        image = image.point(lambda grey: grey * (1 / 256))
    upright = ImageOps.exif_transpose(image)
    opaque = _on_white(upright) if upright.has_transparency_data else upright.convert("RGB")
    cut = _cut(opaque)
    size = _size(*cut.size, bounds, most_pixels)
    return cut if cut.size == size else cut.resize(size, Image.Resampling.LANCZOS)


def fits(image: Image.Image, grid: Grid) -> bool:
    """Whether AR's grid of a picture matches the DiT's, which rounds sides down to half cells."""
    half = CELL // 2
    return (image.width // half, image.height // half) == (2 * grid.width, 2 * grid.height)


def _on_white(image: Image.Image) -> Image.Image:
    layer = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer).convert("RGB")


def _cut(image: Image.Image) -> Image.Image:
    longest = _MOST_RATIO * min(image.size)
    width, height = min(image.width, longest), min(image.height, longest)
    left, top = (image.width - width) // 2, (image.height - height) // 2
    return image if image.size == (width, height) else image.crop((left, top, left + width, top + height))


def _size(width: int, height: int, bounds: Bounds, most_pixels: int) -> tuple[int, int]:
    scale = min(1.0, math.sqrt(most_pixels / (width * height)))
    scale = max(scale, bounds.least_side / min(width, height))
    scale = min(scale, bounds.most_side / max(width, height))
    exact = (width * scale / CELL, height * scale / CELL)
    cells = [round(side) * CELL for side in exact]
    if cells[0] * cells[1] > most_pixels:
        cells = [int(side + 1e-9) * CELL for side in exact]  # a whole number of cells may have come out a bit less
    least = min(max(cell, bounds.least_side) for cell in cells)
    most = min(bounds.most_side, _MOST_RATIO * least)
    sides = [min(max(cell, bounds.least_side), most) for cell in cells]
    return sides[0], sides[1]

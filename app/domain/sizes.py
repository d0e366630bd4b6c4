"""Picture sizes: what the caller asks for, what the model works on, and the token grids that follow.

The formulas are the reference processor's (`GlmImageProcessor._get_target_shape`): one prior token covers
32 x 32 pixels, and a small preview grid of about 256 tokens with the same ratio is planned before the large one.
"""

import math
import re
from dataclasses import dataclass

#: Pixels on a side that one prior token of the large grid covers.
CELL = 32
#: Longest side that may be asked for, in pixels.
MAX_SIDE = 2048

_SIZE = re.compile(r"([1-9][0-9]{0,3})x([1-9][0-9]{0,3})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Grid:
    """A grid of prior tokens, in rows and columns."""

    height: int
    width: int

    @property
    def tokens(self) -> int:
        return self.height * self.width


@dataclass(frozen=True, slots=True)
class Size:
    """A picture's size in pixels."""

    width: int
    height: int

    def __post_init__(self) -> None:
        for name in ("width", "height"):
            if not 1 <= getattr(self, name) <= MAX_SIDE:
                raise ValueError(f"{name} must be between 1 and {MAX_SIDE} pixels, got {getattr(self, name)}")

    def __str__(self) -> str:
        return f"{self.width}x{self.height}"

    @classmethod
    def parse(cls, text: str) -> "Size":
        """Read `"WIDTHxHEIGHT"`; raises ValueError with a sentence for the caller."""
        match = _SIZE.fullmatch(text)
        if match is None:
            raise ValueError(f'must look like "WIDTHxHEIGHT" with sides from 1 to {MAX_SIDE}, such as "256x256"')
        return cls(width=int(match[1]), height=int(match[2]))

    @property
    def pixels(self) -> int:
        return self.width * self.height

    @property
    def inside(self) -> "Size":
        """The size the model works on: both sides rounded up to whole cells. The picture is its centre crop."""
        return Size(width=-(-self.width // CELL) * CELL, height=-(-self.height // CELL) * CELL)

    @property
    def large_grid(self) -> Grid:
        """The grid that the DiT paints from."""
        inside = self.inside
        return Grid(height=inside.height // CELL, width=inside.width // CELL)

    @property
    def preview_grid(self) -> Grid:
        """The small grid that text-to-image plans first and throws away."""
        large = self.large_grid
        ratio = large.height / large.width
        return Grid(height=int(math.sqrt(ratio) * (CELL // 2)), width=int(math.sqrt(1 / ratio) * (CELL // 2)))

"""The world that the demo checkpoint draws: one or two flat shapes on a flat background, as prompts and as pictures."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Numbers = NDArray[np.float32]
Mask = NDArray[np.bool_]

PALETTE = {
    "red": (222, 45, 45),
    "green": (40, 160, 70),
    "blue": (45, 85, 220),
    "yellow": (250, 220, 50),
    "orange": (245, 140, 30),
    "purple": (140, 60, 180),
    "black": (25, 25, 25),
    "white": (248, 248, 248),
}
COLOURS = tuple(PALETTE)
#: How each relation is said.
RELATIONS = {"left": "to the left of", "right": "to the right of", "above": "above", "below": "below"}

#: Points a side that each pixel of a drawing is averaged from.
FINER = 3


def _star(x: Numbers, y: Numbers) -> Mask:
    cos, sin = math.cos(math.pi / 5), math.sin(math.pi / 5)
    across, up = np.abs(x), -y
    for fold in (cos, -cos):  # mirror the other points of the star onto the uppermost one
        beyond = 2 * np.maximum(fold * across - sin * up, 0)
        across, up = across - fold * beyond, up + sin * beyond
    notch = 0.42  # radius of the corners between the points
    return (up - 1) * notch * sin <= np.abs(across) * (notch * cos - 1)


#: Which points of the plane belong to a shape of radius 1 around the origin; y grows downwards.
KINDS: dict[str, Callable[[Numbers, Numbers], Mask]] = {
    "circle": lambda x, y: np.hypot(x, y) < 1,
    "square": lambda x, y: np.maximum(np.abs(x), np.abs(y)) < 0.85,
    "triangle": lambda x, y: (y < 0.8) & (1.75 * np.abs(x) < y + 0.95),
    "star": _star,
    "ring": lambda x, y: np.abs(np.hypot(x, y) - 0.74) < 0.26,
    "cross": lambda x, y: (np.maximum(np.abs(x), np.abs(y)) < 1) & (np.minimum(np.abs(x), np.abs(y)) < 0.32),
}


@dataclass(frozen=True, slots=True)
class Shape:
    colour: str
    kind: str

    def __str__(self) -> str:
        return f"{self.colour} {self.kind}"


@dataclass(frozen=True, slots=True)
class Drawing:
    """What a prompt asks for. With two shapes, the first is `relation` (left, right, above, below) of the second."""

    background: str
    shapes: tuple[Shape, ...]
    relation: str | None = None

    def __post_init__(self) -> None:
        if not 1 <= len(self.shapes) <= 2 or (self.relation in RELATIONS) != (len(self.shapes) == 2):
            raise ValueError("a drawing has one shape, or two and a relation between them")
        for shape in self.shapes:
            if shape.kind not in KINDS or shape.colour not in PALETTE or self.background not in PALETTE:
                raise ValueError(f"no such drawing: {shape} on {self.background}")
            if shape.colour == self.background:
                raise ValueError(f"a {shape} cannot be seen on {self.background}")

    @property
    def prompt(self) -> str:
        relation = f" {RELATIONS[self.relation]} " if self.relation else ""
        return (
            relation.join(_with_article(str(s)) for s in self.shapes)
            + f" on {_with_article(self.background)} background"
        )


def _with_article(words: str) -> str:
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"


_SHAPE = rf"an? ({'|'.join(COLOURS)}) ({'|'.join(KINDS)})"
_PROMPT = re.compile(
    rf"{_SHAPE}(?: (?:(?:to the )?(left|right) of|(above|below)) {_SHAPE})? on an? ({'|'.join(COLOURS)}) background"
)


def parse(prompt: str) -> Drawing:
    """Read a canonical prompt, such as "a green square to the left of a yellow star on a white background"."""
    match = _PROMPT.fullmatch(prompt)
    if match is None:
        raise ValueError(f"not a prompt that can be judged: {prompt!r}")
    colour, kind, beside, stacked, other_colour, other_kind, background = match.groups()
    relation = beside or stacked
    if relation is None:
        return Drawing(background, (Shape(colour, kind),))
    return Drawing(background, (Shape(colour, kind), Shape(other_colour, other_kind)), relation)


def draw(drawing: Drawing, size: tuple[int, int], shift: int = 0) -> Image.Image:
    """The picture that the drawing asks for, (width, height) in pixels, anti-aliased.

    `shift` is the one freedom that the prompts leave: sixteenths of the width by which everything is moved sideways.
    """
    width, height = size
    picture = np.empty((height, width, 3), np.float32)
    picture[:] = PALETTE[drawing.background]
    for shape, (cx, cy, radius) in zip(drawing.shapes, _places(drawing, width, height, shift), strict=True):
        left, right = max(0, math.floor(cx - radius)), min(width, math.ceil(cx + radius))
        top, bottom = max(0, math.floor(cy - radius)), min(height, math.ceil(cy + radius))
        x = (np.arange(left * FINER, right * FINER, dtype=np.float32)[None, :] + 0.5) / FINER
        y = (np.arange(top * FINER, bottom * FINER, dtype=np.float32)[:, None] + 0.5) / FINER
        inside = KINDS[shape.kind]((x - cx) / radius, (y - cy) / radius)
        cover = inside.reshape(bottom - top, FINER, right - left, FINER).mean((1, 3), dtype=np.float32)[:, :, None]
        box = picture[top:bottom, left:right]
        box += cover * (np.array(PALETTE[shape.colour], np.float32) - box)
    return Image.fromarray(picture.round().astype(np.uint8))


def _places(drawing: Drawing, width: int, height: int, shift: int) -> list[tuple[float, float, float]]:
    """Centre and radius of each shape."""
    aside = shift / 16 * width
    if drawing.relation is None:
        return [(width / 2 + aside, height / 2, 5.5 / 16 * min(width, height))]
    level = drawing.relation in ("left", "right")
    along, across = (width, height) if level else (height, width)
    radius = min(3.5 / 16 * along, 5.5 / 16 * across)
    places = [along / 4, along * 3 / 4] if drawing.relation in ("left", "above") else [along * 3 / 4, along / 4]
    return [(p + aside, height / 2, radius) if level else (width / 2 + aside, p, radius) for p in places]

"""The world that the demo checkpoint draws: one or two flat shapes on a flat background, as prompts and as pictures."""

import hashlib
import math
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Numbers = NDArray[np.floating[Any]]
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

#: Pixels a side of the cells that shapes stand on.
CELL = 32
#: Sides in cells of the box of one shape, and of each shape of a pair.
SIDES, PAIR_SIDES = (2, 3, 4, 6, 8), (2, 3, 4, 6)
#: Cells left free between a shape and its box.
MARGIN = 3 / 16
#: Points a side that each pixel of a drawing is averaged from, at least.
FINER = 3
#: Drawings are held out of training whose hash begins with a byte below this: a fifth.
HELD_OUT = 51


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


def random_drawing(rng: random.Random, pairs: float) -> Drawing:
    """Any drawing; `pairs` is the part of them that has two shapes."""
    background = rng.choice(COLOURS)
    colours = [colour for colour in COLOURS if colour != background]
    two = rng.random() < pairs
    shapes = tuple(Shape(rng.choice(colours), rng.choice(list(KINDS))) for _ in range(1 + two))
    return Drawing(background, shapes, rng.choice(list(RELATIONS)) if two else None)


def forward(drawing: Drawing) -> Drawing:
    """The same picture said from the left or from above: "a left of b" for "b right of a"."""
    if drawing.relation not in ("right", "below"):
        return drawing
    relation = "left" if drawing.relation == "right" else "above"
    return Drawing(drawing.background, drawing.shapes[::-1], relation)


def held_out(drawing: Drawing) -> bool:
    """Whether the drawing is one of the fifth that the demo checkpoint never saw in training, as picture or as edit.

    However it is said: of "a left of b" and "b right of a", which are one picture, both are held out or none.
    """
    drawing = forward(drawing)
    said = " ".join((drawing.background, drawing.relation or "alone", *map(str, drawing.shapes)))
    return hashlib.sha256(said.encode()).digest()[0] < HELD_OUT


@dataclass(frozen=True, slots=True)
class Box:
    """Where a shape stands: its upper left corner and its side, in cells of 32 pixels."""

    left: int
    top: int
    side: int

    @property
    def radius(self) -> float:
        return self.side / 2 - MARGIN


def boxes(drawing: Drawing, columns: int, rows: int, shift: int = 0) -> tuple[Box, ...]:
    """Where the shapes of a picture of so many cells stand.

    Whole cells and few sides, so that a shape is the same few cells in pictures of any size. `shift` is the one freedom
    that the prompts leave: cells by which everything is moved sideways, where there is room. Pairs side by side stay.
    """
    if drawing.relation is None:
        short = min(columns, rows)
        side = _side(SIDES, short - 2 if short >= 6 else short)
        return (Box(_aside(columns - side, shift), (rows - side) // 2, side),)
    level = drawing.relation in ("left", "right")
    along, across = (columns, rows) if level else (rows, columns)
    side = _side(PAIR_SIDES, min(along // 2, across))
    near = (along - 2 * side) // 3
    places = [near, along - side - near]
    if drawing.relation in ("right", "below"):
        places.reverse()
    if level:
        return tuple(Box(place, (rows - side) // 2, side) for place in places)
    left = _aside(columns - side, shift)
    return tuple(Box(left, place, side) for place in places)


def shifts(drawing: Drawing, columns: int, rows: int) -> tuple[int, ...]:
    """The shifts that make different pictures."""
    made = {boxes(drawing, columns, rows, shift): shift for shift in (-1, 1, 0)}
    return tuple(sorted(made.values()))


def _side(sides: tuple[int, ...], room: int) -> int:
    return max((side for side in sides if side <= room), default=max(1, room))


def _aside(room: int, shift: int) -> int:
    return min(max(room // 2 + shift, 0), room)


def draw(drawing: Drawing, size: tuple[int, int], shift: int = 0) -> Image.Image:
    """The picture that the drawing asks for, (width, height) in pixels, anti-aliased.

    A size that is not whole cells is cut from the middle of one that is, as the service does. `shift` as in `boxes`.
    """
    columns, rows = (-(-side // CELL) for side in size)
    picture = np.empty((rows * CELL, columns * CELL, 3), np.float32)
    picture[:] = PALETTE[drawing.background]
    for shape, box in zip(drawing.shapes, boxes(drawing, columns, rows, shift), strict=True):
        pixels = (
            slice(box.top * CELL, (box.top + box.side) * CELL),
            slice(box.left * CELL, (box.left + box.side) * CELL),
        )
        inside = cover(shape.kind, box.side, CELL)[:, :, None]
        picture[pixels] += inside * (np.array(PALETTE[shape.colour], np.float32) - picture[pixels])
    left, top = (columns * CELL - size[0]) // 2, (rows * CELL - size[1]) // 2
    return Image.fromarray(picture[top : top + size[1], left : left + size[0]].round().astype(np.uint8))


@lru_cache(maxsize=256)
def cover(kind: str, side: int, points: int) -> Numbers:
    """How much of each point of a shape's box the shape covers, 0 to 1: [side * points, side * points]."""
    finer = max(FINER, CELL // points)
    count = side * points * finer
    steps = ((np.arange(count, dtype=np.float32) + 0.5) / (points * finer) - side / 2) / (side / 2 - MARGIN)
    inside = KINDS[kind](steps[None, :], steps[:, None])
    covered: Numbers = inside.reshape(side * points, finer, side * points, finer).mean((1, 3), dtype=np.float32)
    covered.flags.writeable = False  # one array for all callers
    return covered

"""The codebook: every prior token is a plain colour, or one of a few edge patterns in two colours.

Ids: first the plain colours, then pattern by pattern the ordered pairs of colours. The first colour of a pair always
covers the smaller part of the cell, so that a cell has one code only. Then the blank, and mark by mark the plain
colours once more: they look the same, but also say how far it is to what comes next (demo_model.marks).
"""

from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from app.bench.world import COLOURS, KINDS, PAIR_SIDES, PALETTE, SIDES, Shape, boxes, cover
from demo_model.samples import Sample

#: Edge patterns, and points a side that a cell is looked at by: eight pixels a point.
PATTERNS, POINTS = 80, 4
#: What the cells' points are lifted by before lengths are made one, so that the largest cosine is the least distance.
LIFT = 4.0
_PAIRS = [(front, back) for front in range(len(COLOURS)) for back in range(len(COLOURS)) if front != back]
#: The code that is no picture's: it fills previews.
BLANK = len(COLOURS) + PATTERNS * len(_PAIRS)
#: What a plain cell may say beside its colour: so many kinds of numbers, so many numbers.
KINDS_OF_MARKS, NUMBERS = 10, 16
MARKS = KINDS_OF_MARKS * NUMBERS
#: All codes.
CODES = BLANK + 1 + MARKS * len(COLOURS)
_RGB = torch.tensor(list(PALETTE.values()), dtype=torch.float32) / 255
#: A cell is plain when no point of it differs from one colour by more than this.
_PLAIN = 0.03

#: The pattern and the two colours of every code; plain colours have the pattern after the last. So has the blank, which
#: is told apart by having two colours nevertheless.
PATTERN_OF = torch.full((CODES,), PATTERNS)
PATTERN_OF[len(COLOURS) : BLANK] = torch.arange(PATTERNS).repeat_interleave(len(_PAIRS))
_PLAIN_ONES, _MARKED = list(range(len(COLOURS))), list(range(len(COLOURS))) * MARKS
FRONT_OF = torch.tensor([*_PLAIN_ONES, *[front for front, _ in _PAIRS] * PATTERNS, 0, *_MARKED])
BACK_OF = torch.tensor([*_PLAIN_ONES, *[back for _, back in _PAIRS] * PATTERNS, 1, *_MARKED])
#: The kind and the number of every code's mark, from 1; 0 for those without.
KIND_OF, NUMBER_OF = torch.zeros(2, CODES, dtype=torch.long)
KIND_OF[BLANK + 1 :] = torch.arange(1, KINDS_OF_MARKS + 1).repeat_interleave(NUMBERS * len(COLOURS))
NUMBER_OF[BLANK + 1 :] = torch.arange(1, NUMBERS + 1).repeat_interleave(len(COLOURS)).repeat(KINDS_OF_MARKS)


def _cells(kind: str, side: int) -> torch.Tensor:
    """How much of each point of each cell of a shape's box is covered: [side * side, POINTS * POINTS]."""
    covered = torch.from_numpy(np.array(cover(kind, side, POINTS)))
    return covered.view(side, POINTS, side, POINTS).transpose(1, 2).reshape(side * side, -1)


@lru_cache(maxsize=1)
def patterns() -> torch.Tensor:
    """The edge patterns, [PATTERNS, POINTS * POINTS] from 0 to 1: k-means over all cells that shapes can have."""
    found: dict[bytes, tuple[torch.Tensor, float]] = {}
    for side in sorted({*SIDES, *PAIR_SIDES}):
        for kind in KINDS:
            for cell in _cells(kind, side):
                if cell.max() > _PLAIN and cell.min() < 1 - _PLAIN:
                    smaller = 1 - cell if cell.mean() > 0.5 else cell
                    key = (smaller * 50).round().to(torch.uint8).numpy().tobytes()
                    found.setdefault(key, (smaller, 1 / side))  # small shapes have few cells; they must be right
    cells = torch.stack([cell for cell, _ in found.values()])
    weights = torch.tensor([weight for _, weight in found.values()])
    centres = cells[:1]
    while len(centres) < PATTERNS:  # each next one is the cell that is served worst
        worst = (torch.cdist(cells, centres).min(1).values.square() * weights).argmax()
        centres = torch.cat([centres, cells[worst : worst + 1]])
    for _ in range(30):
        nearest = torch.cdist(cells, centres).argmin(1)
        sums = torch.zeros_like(centres).index_add_(0, nearest, cells * weights[:, None])
        shares = torch.zeros(PATTERNS).index_add_(0, nearest, weights)
        centres = torch.where(shares[:, None] > 0, sums / shares[:, None].clamp(min=1e-9), centres)
    return centres


@lru_cache(maxsize=1)
def points() -> torch.Tensor:
    """What the cells of each code look like: [CODES, POINTS * POINTS * 3], red, green, blue of each point, 0 to 1."""
    covered = torch.cat([patterns(), torch.ones(1, POINTS * POINTS)])[PATTERN_OF][:, :, None]
    return (covered * _RGB[FRONT_OF][:, None] + (1 - covered) * _RGB[BACK_OF][:, None]).flatten(1)


@lru_cache(maxsize=1)
def lifted() -> torch.Tensor:
    """The codes as cells are compared with them by cosine, [CODES, POINTS * POINTS * 3 + 1].

    Blank and marks are like no cell.
    """
    raised = torch.cat([points() - 0.5, torch.full((CODES, 1), LIFT)], 1)
    raised[BLANK:] = -raised[0]
    return raised


def nearest(cells: torch.Tensor) -> torch.Tensor:
    """The codes that the vision tower and the quantizer give to cells [n, POINTS * POINTS * 3]."""
    raised = torch.cat([cells - 0.5, torch.full_like(cells[:, :1], LIFT)], 1)
    normal = nn.functional.normalize
    return (normal(raised, dim=1) @ normal(lifted(), dim=1).T).argmax(1)


@lru_cache(maxsize=8192)
def _box(kind: str, side: int, front: int, back: int, seen: bool) -> NDArray[np.int64]:
    """The codes of a shape's box, [side, side]: those to be learned, or those that the vision tower sees."""
    covered = _cells(kind, side)
    if seen:
        colours = covered[:, :, None] * _RGB[front] + (1 - covered[:, :, None]) * _RGB[back]
        codes = nearest(colours.flatten(1))
    else:
        turned = covered.mean(1) > 0.5
        pattern = torch.cdist(torch.where(turned[:, None], 1 - covered, covered), patterns()).argmin(1)
        pairs = len(COLOURS) + pattern * len(_PAIRS)
        codes = pairs + torch.where(turned, _PAIRS.index((back, front)), _PAIRS.index((front, back)))
        codes[covered.max(1).values <= _PLAIN] = back
        codes[covered.min(1).values >= 1 - _PLAIN] = front
    return codes.view(side, side).numpy()


def encode(sample: Sample, *, seen: bool = False) -> torch.Tensor:
    """The codes of a sample's large grid, [rows * columns]; `seen`: as the vision tower takes the drawn picture."""
    back = COLOURS.index(sample.drawing.background)
    codes = np.full((sample.rows, sample.columns), back)
    placed = boxes(sample.drawing, sample.columns, sample.rows, sample.shift)
    for shape, box in zip(sample.drawing.shapes, placed, strict=True):
        area = slice(box.top, box.top + box.side), slice(box.left, box.left + box.side)
        codes[area] = _box(shape.kind, box.side, COLOURS.index(shape.colour), back, seen)
    return torch.from_numpy(codes.ravel())


def marked(kind: int, number: int, colour: int) -> int:
    """The plain colour with a mark; kinds and numbers from 0."""
    return BLANK + 1 + (kind * NUMBERS + number) * len(COLOURS) + colour


def symbol(shape: Shape, background: str) -> int:
    """One code that stands for a shape on a background: the first cell of the smallest box; no two kinds share it."""
    box = _box(shape.kind, min(PAIR_SIDES), COLOURS.index(shape.colour), COLOURS.index(background), False)
    return int(box[0, 0])


class FactoredTable(nn.Module):
    """A table with a row of numbers for every code, made of one for its pattern and one for each of its two colours.

    So what is learned of one colour holds for all shapes at once. `rows` is what is exported.
    """

    def __init__(self, width: int, spread: float) -> None:
        super().__init__()
        self.pattern = nn.Parameter(torch.randn(PATTERNS + 1, width) * spread)
        self.front = nn.Parameter(torch.randn(len(COLOURS), width) * spread)
        self.back = nn.Parameter(torch.randn(len(COLOURS), width) * spread)

    def rows(self) -> torch.Tensor:
        """[CODES, width]."""
        return self.pattern[PATTERN_OF] + self.front[FRONT_OF] + self.back[BACK_OF]

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        return (
            nn.functional.embedding(PATTERN_OF[codes], self.pattern)
            + nn.functional.embedding(FRONT_OF[codes], self.front)
            + nn.functional.embedding(BACK_OF[codes], self.back)
        )

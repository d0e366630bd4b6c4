"""What the demo model is trained on: drawings of the world, sizes and shifts, all drawn by chance while it trains."""

import random
from dataclasses import dataclass, replace

from PIL import Image

from app.bench.world import CELL, COLOURS, KINDS, RELATIONS, Drawing, Shape, draw, held_out, shifts

#: Every side that the model is trained on, in cells of 32 pixels: 128 to 512 pixels.
SIDES = tuple(range(4, 17))
#: Sizes (columns, rows) in cells that come up more often than by chance, with their part of all samples.
OFTEN = {(8, 8): 0.22, (4, 4): 0.07, (8, 12): 0.05, (12, 8): 0.05, (10, 10): 0.05, (16, 16): 0.03}
#: Part of the drawings that have two shapes.
PAIRS = 0.6


@dataclass(frozen=True, slots=True)
class Sample:
    """A drawing at a size (columns, rows in cells of 32 pixels) and a shift."""

    drawing: Drawing
    columns: int
    rows: int
    shift: int

    def picture(self) -> Image.Image:
        return draw(self.drawing, (self.columns * CELL, self.rows * CELL), self.shift)


def size(rng: random.Random) -> tuple[int, int]:
    """Columns and rows in cells."""
    at = rng.random()
    for often, part in OFTEN.items():
        at -= part
        if at < 0:
            return often
    return rng.choice(SIDES), rng.choice(SIDES)


def sample(rng: random.Random, columns: int, rows: int, *, pairs: float = PAIRS) -> Sample:
    """One that is not held out."""
    while True:
        drawing = _drawing(rng, pairs)
        if not held_out(drawing):
            return Sample(drawing, columns, rows, rng.choice(shifts(drawing, columns, rows)))


def _drawing(rng: random.Random, pairs: float) -> Drawing:
    background = rng.choice(COLOURS)
    colours = [colour for colour in COLOURS if colour != background]
    two = rng.random() < pairs
    shapes = tuple(Shape(rng.choice(colours), rng.choice(list(KINDS))) for _ in range(1 + two))
    return Drawing(background, shapes, rng.choice(list(RELATIONS)) if two else None)


@dataclass(frozen=True, slots=True)
class Edit:
    """A source, what is said to do with it, and what comes out."""

    source: Sample
    instruction: str
    result: Sample


def edit(rng: random.Random, columns: int, rows: int) -> Edit:
    """One whose source and result are not held out: recolour a shape, change the background, or leave all as it is."""
    while True:
        source = sample(rng, columns, rows, pairs=0.5)
        kind = rng.choice(("shape", "shape", "background", "background", "same"))
        if kind == "same":
            return Edit(source, rng.choice(("the same picture", "copy this picture")), source)
        drawing = source.drawing
        free = [c for c in COLOURS if c != drawing.background and c not in {s.colour for s in drawing.shapes}]
        colour = rng.choice(free)
        if kind == "background":
            result = replace(drawing, background=colour)
            said = rng.choice(("change the background to {}", "make the background {}")).format(colour)
        else:
            at = rng.randrange(len(drawing.shapes))
            name = drawing.shapes[at].kind
            if sum(shape.kind == name for shape in drawing.shapes) > 1:
                continue  # which of the two would be meant?
            shapes = tuple(replace(s, colour=colour) if i == at else s for i, s in enumerate(drawing.shapes))
            result = replace(drawing, shapes=shapes)
            said = rng.choice(("make the {} {}", "change the {} to {}")).format(name, colour)
        if not held_out(result):
            return Edit(source, said, replace(source, drawing=result))

"""What the demo model is trained on: drawings of the world, sizes and shifts, all drawn by chance while it trains."""

import random
from dataclasses import dataclass, replace

from PIL import Image

from app.bench.edits import random_change
from app.bench.world import CELL, Drawing, Shape, draw, held_out, random_drawing, shifts

#: Every side that the model is trained on, in cells of 32 pixels: 128 to 512 pixels.
SIDES = tuple(range(4, 17))
#: Sizes (columns, rows) in cells that come up more often than by chance, with their part of all samples.
OFTEN = {(8, 8): 0.22, (4, 4): 0.07, (8, 12): 0.05, (12, 8): 0.05, (10, 10): 0.05, (16, 16): 0.03}
#: Part of the drawings that have two shapes.
PAIRS = 0.6
#: Shapes that begin alike: which of the two it draws, the AR model must remember from what was named.
ALIKE = (("circle", "ring"), ("star", "triangle"))
#: Part of the pairs made of such shapes that have one colour.
_ONE_COLOUR = 0.3
#: Part of the edits that change nothing.
_SAME = 0.2


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


def sample(rng: random.Random, columns: int, rows: int, *, pairs: float = PAIRS, alike: float = 0.0) -> Sample:
    """One that is not held out. `alike`: the part of the pairs whose shapes are made to begin alike."""
    while True:
        drawing = random_drawing(rng, pairs)
        if alike and drawing.relation and rng.random() < alike:
            drawing = _alike(rng, drawing)
        if not held_out(drawing):
            return Sample(drawing, columns, rows, rng.choice(shifts(drawing, columns, rows)))


def _alike(rng: random.Random, drawing: Drawing) -> Drawing:
    kinds = rng.sample(rng.choice(ALIKE), 2)
    colours = [shape.colour for shape in drawing.shapes]
    if rng.random() < _ONE_COLOUR:
        colours[1] = colours[0]
    return replace(drawing, shapes=tuple(map(Shape, colours, kinds)))


@dataclass(frozen=True, slots=True)
class Edit:
    """A source, what is said to do with it, and what comes out."""

    source: Sample
    instruction: str
    result: Sample


def edit(rng: random.Random, columns: int, rows: int, *, pairs: float, alike: float, shapes: float) -> Edit:
    """One whose source and result are not held out: a change, or in one of five the wish to leave all as it is."""
    while True:
        source = sample(rng, columns, rows, pairs=pairs, alike=alike)
        if rng.random() < _SAME:
            return Edit(source, rng.choice(("the same picture", "copy this picture")), source)
        change = random_change(rng, source.drawing, shapes)
        result = change.applied(source.drawing)
        if not held_out(result):
            return Edit(source, str(change), replace(source, drawing=result))

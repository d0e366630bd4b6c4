"""Changes to drawings that the demo checkpoint is asked for by image-to-image, as words and as what comes out."""

import random
import re
from dataclasses import dataclass, replace

from app.bench.world import COLOURS, KINDS, Drawing

_SAID = {
    "background": ("change the background to {colour}", "make the background {colour}"),
    "shape": ("make the {kind} {colour}", "change the {kind} to {colour}"),
}
_INSTRUCTION = re.compile(
    rf"(?:make the (background|{'|'.join(KINDS)}) |change the (background|{'|'.join(KINDS)}) to )({'|'.join(COLOURS)})"
)


@dataclass(frozen=True, slots=True)
class Change:
    """Give one thing, "background" or the only shape of a kind, another colour; `phrase`: which way it is said."""

    what: str
    colour: str
    phrase: int = 0

    def __str__(self) -> str:
        said = _SAID["background" if self.what == "background" else "shape"][self.phrase]
        return said.format(kind=self.what, colour=self.colour)

    def applied(self, drawing: Drawing) -> Drawing:
        """Raises ValueError where the drawing has not exactly one such shape, or the result could not be seen."""
        if self.what == "background":
            return replace(drawing, background=self.colour)
        if [shape.kind for shape in drawing.shapes].count(self.what) != 1:
            raise ValueError(f"there is not exactly one {self.what}")
        shapes = (replace(s, colour=self.colour) if s.kind == self.what else s for s in drawing.shapes)
        return replace(drawing, shapes=tuple(shapes))


def parse_change(instruction: str) -> Change:
    """Read an instruction, such as "make the circle green"; raises ValueError for any other text."""
    match = _INSTRUCTION.fullmatch(instruction)
    if match is None:
        raise ValueError(f"not an instruction that can be judged: {instruction!r}")
    made, changed, colour = match.groups()
    what = made or changed
    return Change(what, colour, int((what == "background") == bool(made)))


def random_change(rng: random.Random, drawing: Drawing, shapes: float = 0.5) -> Change:
    """Of a shape in so many of them, else of the background, to a colour that the drawing does not have."""
    used = {drawing.background, *(shape.colour for shape in drawing.shapes)}
    colour = rng.choice([colour for colour in COLOURS if colour not in used])
    kinds = [shape.kind for shape in drawing.shapes]
    single = [kind for kind in kinds if kinds.count(kind) == 1]
    what = rng.choice(single) if single and rng.random() < shapes else "background"
    return Change(what, colour, rng.randrange(2))

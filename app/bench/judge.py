"""The judge of a picture: says from its pixels alone whether it shows what its prompt asks for.

It knows nothing of how a picture was made, so it takes the model's pictures, reference drawings and garbage alike.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from app.bench.edits import parse_change
from app.bench.world import COLOURS, KINDS, PALETTE, Drawing, Mask, Shape, draw, parse

__all__ = ["Body", "Drawing", "Seen", "Shape", "Verdict", "draw", "judge", "judge_edit", "parse", "see"]

Labels = NDArray[np.intp]

_RGB = np.array(list(PALETTE.values()), np.float32)

#: RGB distance from the nearest colour of the palette beyond which a pixel has no colour of ours.
FAR_OFF = 60.0
#: The part of the picture's rim that the background has to fill, and of the whole picture it and the bodies together:
#: blurred edges of true drawings leave a twentieth at most.
RIM, PLAIN = 0.9, 0.9
#: A body is at least this part of the picture; what is smaller is a speck.
BODY = 0.008
#: The part of a body's pixels whose four neighbours are of the same colour. Anti-aliasing fringes have none.
SOLID = 0.5
#: Overlap with a shape's template (intersection over union) that makes that shape: somewhat less than of its smallest
#: good pictures, where blurred points and arms count for much.
LIKENESS = {"circle": 0.92, "square": 0.9, "ring": 0.87, "cross": 0.82, "triangle": 0.78, "star": 0.68}
#: Its lead over the next best template's (half a circle on half a square is neither), and the stretch that may pass.
LEAD, STRETCH = 0.05, 1.3
#: How far, in pixels, a shape may have moved in an edit, and how many times its area it may have grown or shrunk.
STAYS, GROWS = 16, 1.3
#: How far apart, in picture sides, two shapes are for one to be left of or above the other.
APART = 0.2


@dataclass(frozen=True, slots=True)
class Body:
    """One connected area of one colour, None for none of ours; x, y is its centre and `area` its size in parts of the
    picture, kind the shape it is like."""

    colour: str | None
    kind: str | None
    likeness: float
    x: float
    y: float
    area: float

    def __str__(self) -> str:
        colour, kind = self.colour or "odd", self.kind or "blob"
        return f"{colour} {kind} (likeness {self.likeness:.2f}) at ({self.x:.2f}, {self.y:.2f})"

    def agrees(self, shape: Shape) -> int:
        return (self.colour == shape.colour) + (self.kind == shape.kind)


@dataclass(frozen=True, slots=True)
class Seen:
    background: str | None
    bodies: tuple[Body, ...]

    def __str__(self) -> str:
        bodies = ", ".join(map(str, self.bodies[:4])) or "nothing"
        more = f" and {len(self.bodies) - 4} more" if len(self.bodies) > 4 else ""
        return f"{bodies}{more} on {self.background or 'no one colour'}"


def see(image: Image.Image) -> Seen:
    """What is in the picture, the largest body first."""
    colours = _colours(np.asarray(image.convert("RGB")))
    rim = np.concatenate([colours[:3].ravel(), colours[-3:].ravel(), colours[:, :3].ravel(), colours[:, -3:].ravel()])
    shares = np.bincount(rim[rim >= 0], minlength=len(COLOURS)) / rim.size
    background = int(shares.argmax())
    areas = _areas(colours)
    solid = _solid(colours)
    sizes = np.bincount(areas.ravel())
    bodies = []
    for area in np.argsort(-sizes, kind="stable"):
        if sizes[area] < BODY * colours.size:
            break
        mask = areas == area
        colour = int(colours[mask][0])
        if colour != background and solid[mask].mean() >= SOLID:
            bodies.append(_body(colour, mask))
    plain = float((colours == background).mean()) + sum(body.area for body in bodies) >= PLAIN
    return Seen(COLOURS[background] if plain and shares[background] >= RIM else None, tuple(bodies))


def _colours(pixels: NDArray[np.uint8]) -> Labels:
    """The index of each pixel's colour, -1 where it has none."""
    red, green, blue = np.moveaxis(pixels >> 3, -1, 0)
    found: Labels = _NEAREST[red, green, blue]
    return found


def _nearest() -> Labels:
    """The colour index by the upper five bits of red, green and blue."""
    steps = np.arange(32, dtype=np.float32) * 8 + 3.5
    rgb = np.stack(np.meshgrid(steps, steps, steps, indexing="ij"), -1)
    distance = np.linalg.norm(rgb[..., None, :] - _RGB, axis=-1)
    return np.where(distance.min(-1) <= FAR_OFF, distance.argmin(-1), -1)


_NEAREST = _nearest()


def _areas(colours: Labels) -> Labels:
    """Number the 4-connected areas of one colour: runs along the rows first, then the runs that touch are merged."""
    starts = np.ones(colours.shape, bool)
    starts[:, 1:] = colours[:, 1:] != colours[:, :-1]
    runs = starts.cumsum().reshape(colours.shape) - 1
    touching = colours[1:] == colours[:-1]
    upper, lower = runs[:-1][touching], runs[1:][touching]
    root = np.arange(runs[-1, -1] + 1)
    while (root[upper] != root[lower]).any():
        small, large = np.minimum(root[upper], root[lower]), np.maximum(root[upper], root[lower])
        np.minimum.at(root, large, small)
        while (root[root] != root).any():
            root = root[root]
    numbered: Labels = np.unique(root, return_inverse=True)[1][runs]
    return numbered


def _solid(colours: Labels) -> Mask:
    """Pixels whose four neighbours are of the same colour."""
    wide = np.pad(colours, 1, mode="edge")
    beside = (wide[:-2, 1:-1], wide[2:, 1:-1], wide[1:-1, :-2], wide[1:-1, 2:])
    same: Mask = np.logical_and.reduce([colours == other for other in beside])
    return same


def _fit(mask: Mask) -> tuple[Mask, float]:
    """The mask's bounding box sampled at 48x48 points, and the box's width over its height."""
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    height, width = rows[-1] - rows[0] + 1, columns[-1] - columns[0] + 1
    steps = (np.arange(48) + 0.5) / 48
    points = np.ix_(rows[0] + (steps * height).astype(int), columns[0] + (steps * width).astype(int))
    return mask[points], width / height


def _templates() -> dict[str, tuple[Mask, float]]:
    y, x = np.mgrid[-1.1:1.1:241j, -1.1:1.1:241j].astype(np.float32)
    return {kind: _fit(inside(x, y)) for kind, inside in KINDS.items()}


_TEMPLATES = _templates()


def _body(colour: int, mask: Mask) -> Body:
    fitted, ratio = _fit(mask)
    overlaps = [(float((fitted & t).sum() / (fitted | t).sum()), kind) for kind, (t, _) in _TEMPLATES.items()]
    (second, _), (likeness, kind) = sorted(overlaps)[-2:]
    stretch = ratio / _TEMPLATES[kind][1]
    like = likeness >= LIKENESS[kind] and likeness - second >= LEAD and 1 / STRETCH <= stretch <= STRETCH
    y, x = np.nonzero(mask)
    height, width = mask.shape
    x_mean, y_mean = (x.mean() + 0.5) / width, (y.mean() + 0.5) / height
    known = COLOURS[colour] if colour >= 0 else None
    return Body(known, kind if like else None, likeness, x_mean, y_mean, float(mask.mean()))


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is right in the picture. Colour and shape are judged in the order of the bodies that fits the prompt best,
    so that a swapped pair is a wrong relation and nothing else; with one shape the relation cannot be wrong."""

    prompt: str
    seen: Seen
    background: bool
    count: bool
    colour: bool
    shape: bool
    relation: bool

    @property
    def full(self) -> bool:
        return self.background and self.count and self.colour and self.shape and self.relation

    def explain(self) -> str:
        """Prompt, what is wrong, and what is there instead, in one sentence."""
        wrong = [n for n in ("background", "count", "colour", "shape", "relation") if not getattr(self, n)]
        return f"asked for {self.prompt!r}; wrong: {', '.join(wrong) or 'nothing'}; seen: {self.seen}"


def judge(prompt: str, image: Image.Image) -> Verdict:
    """Judge the picture against a canonical prompt; raises ValueError for a prompt that `parse` cannot read."""
    wanted, seen = parse(prompt), see(image)
    bodies, relation = list(seen.bodies), True
    count = len(bodies) == len(wanted.shapes)
    if count and wanted.relation is not None:
        bodies, relation = _ordered(bodies, wanted)
    pairs = list(zip(bodies, wanted.shapes, strict=True)) if count else []
    return Verdict(
        prompt=prompt,
        seen=seen,
        background=seen.background == wanted.background,
        count=count,
        colour=count and all(body.colour == shape.colour for body, shape in pairs),
        shape=count and all(body.kind == shape.kind for body, shape in pairs),
        relation=count and relation,
    )


def judge_edit(source: Image.Image, instruction: str, image: Image.Image) -> Verdict:
    """Judge what came of an edit from the pixels of both pictures: the change is made, all else is as it was.

    `relation` says whether everything stands where it stood, as large as it was. Raises ValueError for an instruction
    that is no change of colour, and for a source in which what it names cannot be seen.
    """
    change, before, after = parse_change(instruction), see(source), see(image)
    wanted = [replace(body, colour=change.colour) if body.kind == change.what else body for body in before.bodies]
    background = change.colour if change.what == "background" else before.background
    if background is None or (change.what != "background" and wanted == list(before.bodies)):
        raise ValueError(f"the source does not show what {instruction!r} is about: {before}")
    count = len(after.bodies) == len(wanted)
    pairs = _matched(list(after.bodies), wanted) if count else []
    return Verdict(
        prompt=instruction,
        seen=after,
        background=after.background == background,
        count=count,
        colour=count and all(body.colour == want.colour for body, want in pairs),
        shape=count and all(body.kind == want.kind for body, want in pairs),
        relation=count and image.size == source.size and all(_stays(body, want, image.size) for body, want in pairs),
    )


def _stays(body: Body, before: Body, size: tuple[int, int]) -> bool:
    aside = max(abs(body.x - before.x) * size[0], abs(body.y - before.y) * size[1])
    # Another shape is wrong by itself, and has another area.
    grown = body.area / before.area if body.kind == before.kind else 1.0
    return aside < STAYS and 1 / GROWS < grown < GROWS


def _matched(bodies: list[Body], wanted: list[Body]) -> list[tuple[Body, Body]]:
    """Every wanted body with the nearest one that is left."""
    left, pairs = list(bodies), []
    for want in wanted:
        nearest = min(left, key=lambda body: abs(body.x - want.x) + abs(body.y - want.y))
        left.remove(nearest)
        pairs.append((nearest, want))
    return pairs


def _ordered(bodies: list[Body], wanted: Drawing) -> tuple[list[Body], bool]:
    """The two bodies in the order of the prompt's shapes that fits best, and whether they stand as the prompt says."""
    first, second = bodies
    dx, dy = second.x - first.x, second.y - first.y
    along, across = (dx, dy) if wanted.relation in ("left", "right") else (dy, dx)
    standing = [first, second] if (along > 0) == (wanted.relation in ("left", "above")) else [second, first]
    swapped = standing[::-1]
    fits = [sum(b.agrees(s) for b, s in zip(order, wanted.shapes, strict=True)) for order in (standing, swapped)]
    if fits[1] > fits[0]:
        return swapped, False
    return standing, abs(along) > max(APART, abs(across))

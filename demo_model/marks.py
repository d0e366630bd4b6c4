"""What the cells beside the shapes say of where the shapes stand, so that it is worked out once and then counted down.

Where a shape begins follows from the size, how many shapes there are and how they stand. For a small network that is
hard to tell at every cell anew; it was nearly all that one without marks still got wrong. So a cell without a shape in
its row says how many rows are left to the next one, and how many cells to the end of its row; one in front of a shape,
how many cells are left to it, and the last one which of the shape's rows this is; one behind, how many to the end of
the row. All but a few follow from the cell before.

Of an edit, the first two cells say something else, where no shape begins before: which kinds of shapes are there, and
which of them is to change. That was nearly all that edits without it got wrong.
"""

from collections.abc import Sequence

import torch

from app.bench.world import COLOURS, KINDS, Box, boxes, forward
from demo_model.codebook import encode, marked
from demo_model.samples import Edit, Sample

#: Kinds of marks; those before are of rows without a shape, by how many are left.
_BEFORE, _AT, _BEHIND = 7, 8, 9


def encode_marked(sample: Sample) -> torch.Tensor:
    """The codes of a sample's large grid as the AR model draws them, [rows * columns]."""
    codes = encode(sample)
    colour = COLOURS.index(sample.drawing.background)
    placed = boxes(sample.drawing, sample.columns, sample.rows, sample.shift)
    for row in range(sample.rows):
        for column in range(sample.columns):
            mark = _mark(placed, row, column, sample.columns)
            if mark is not None:
                codes[row * sample.columns + column] = marked(*mark, colour)
    return codes


def encode_edited(edit: Edit) -> torch.Tensor:
    """The codes of the result's large grid as the AR model draws them, [rows * columns].

    The first cell's mark has the kind of the shape on the left or above for its kind, and that of the other one for its
    number (one more than the last where there is none); the second cell says whether that changes: 0 neither, 1 the
    first, 2 the other.
    """
    codes, result = encode_marked(edit.result), edit.result
    before, after = (forward(sample.drawing).shapes for sample in (edit.source, result))
    kinds = [list(KINDS).index(shape.kind) for shape in before]
    changed = [number for number, pair in enumerate(zip(before, after, strict=True), 1) if pair[0] != pair[1]]
    colour = COLOURS.index(result.drawing.background)
    said = marked(kinds[0], kinds[1] if kinds[1:] else len(KINDS), colour), numbered(sum(changed), colour)
    placed = boxes(result.drawing, result.columns, result.rows, result.shift)
    room = min(box.top * result.columns + box.left for box in placed)
    for cell, code in enumerate(said[:room]):
        codes[cell] = code
    return codes


def numbered(value: int, colour: int) -> int:
    """A code that stands for a number below 16."""
    return marked(_BEFORE, value, colour)


def _mark(placed: Sequence[Box], row: int, column: int, columns: int) -> tuple[int, int] | None:
    """Kind and number; None inside a shape's box, and below all shapes."""
    beside = [box for box in placed if box.top <= row < box.top + box.side]
    to_end = columns - 1 - column
    if not beside:
        left = [box.top - row for box in placed if box.top > row]
        return (min(left) - 1, to_end) if left else None
    if any(box.left <= column < box.left + box.side for box in beside):
        return None
    ahead = [box.left - column for box in beside if box.left > column]
    if not ahead:
        return _BEHIND, to_end
    return (_BEFORE, min(ahead)) if min(ahead) > 1 else (_AT, row - beside[0].top)

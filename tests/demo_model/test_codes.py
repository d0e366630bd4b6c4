"""Codes and the networks' tables of them: what is learned in parts is what is exported whole."""

import itertools
import random
from dataclasses import replace

import pytest
import torch
from torch import nn
from transformers import GlmImageForConditionalGeneration

from app.bench.edits import parse_change
from app.bench.world import COLOURS, KINDS, Drawing, Shape, boxes, held_out, shifts
from demo_model import ar, dit, samples, vae
from demo_model.codebook import (
    BACK_OF,
    BLANK,
    CODES,
    FRONT_OF,
    KIND_OF,
    NUMBER_OF,
    FactoredTable,
    encode,
    nearest,
    points,
    symbol,
)
from demo_model.marks import encode_edited, encode_marked, numbered
from demo_model.samples import Sample

torch.set_num_threads(1)  # the matrices are too small to share, and tests may run side by side


def test_every_code_of_a_picture_is_nearest_to_its_own_cells():
    assert torch.equal(nearest(points()[:BLANK]), torch.arange(BLANK))


def test_blank_and_marks_are_like_no_cell():
    cells = torch.rand(2000, points().shape[1], generator=torch.Generator().manual_seed(0))
    extreme = torch.tensor([[0.0], [1.0]]).expand(2, points().shape[1])
    assert nearest(torch.cat([cells, cells.round(), extreme, points()[BLANK:]])).max() < BLANK


def test_a_table_in_parts_is_the_table_that_is_exported():
    torch.manual_seed(0)
    table = FactoredTable(8, 1.0)
    assert torch.allclose(table(torch.arange(CODES)), table.rows())
    # Those with marks are painted as their colours are.
    assert len(table.rows().unique(dim=0)) == BLANK + 1


def test_the_heads_loss_is_that_of_its_whole_table():
    torch.manual_seed(1)
    head = ar.Head()
    codes = torch.cat([torch.tensor([0, 7, 8, BLANK - 1, BLANK]), torch.randint(CODES, (60,))])
    hidden = torch.randn(len(codes), ar.WIDTH) * 20
    whole = nn.functional.cross_entropy(hidden @ head.rows()[:CODES].T, codes, reduction="none")
    assert torch.allclose(head.loss(hidden, codes), whole, atol=1e-4)


def test_the_whole_checkpoint_is_small():
    parts = (GlmImageForConditionalGeneration(ar.config()), dit.build(), vae.build(), dit.build_text_encoder())
    assert sum(p.numel() for part in parts for p in part.parameters()) * 2 <= 15e6


def test_codes_are_of_the_colours_of_the_drawing():
    rng = random.Random(8)
    for _ in range(50):
        sample = samples.sample(rng, rng.choice(range(4, 17)), rng.choice(range(4, 17)))
        codes = encode(sample)
        colours = {COLOURS.index(c) for c in (sample.drawing.background, *(s.colour for s in sample.drawing.shapes))}
        assert set(FRONT_OF[codes].tolist()) | set(BACK_OF[codes].tolist()) == colours
        assert BLANK not in codes


@pytest.mark.parametrize("relation", [None, "left", "above"])
@pytest.mark.parametrize("size", [(8, 8), (4, 16), (16, 4), (16, 16), (7, 5)])
def test_marks_say_how_far_it_is(size, relation):
    """Each cell's number is that of the cell before, less one, unless a shape or a row has ended; colours stay."""
    columns, rows = size
    shapes = (Shape("red", "star"), Shape("blue", "ring"))[: 2 if relation else 1]
    drawing = Drawing("white", shapes, relation)
    for shift in shifts(drawing, columns, rows):
        sample = Sample(drawing, columns, rows, shift)
        codes, plain = encode_marked(sample), encode(sample)
        has = KIND_OF[codes] > 0
        assert torch.equal(codes[~has], plain[~has])
        assert torch.equal(FRONT_OF[codes[has]], plain[has])
        placed = boxes(drawing, columns, rows, shift)
        kinds, numbers = KIND_OF[codes].view(rows, columns) - 1, NUMBER_OF[codes].view(rows, columns) - 1
        for row, column in itertools.product(range(rows), range(columns)):
            kind, left = int(kinds[row, column]), int(numbers[row, column])
            if 0 <= kind < 7:
                assert any(box.top == row + kind + 1 for box in placed)
            if 0 <= kind < 7 or kind == 9:
                assert column + left == columns - 1
            elif kind == 7:
                assert any(box.left == column + left and 0 <= row - box.top < box.side for box in placed)
            elif kind == 8:
                assert any(box.left == column + 1 and box.top + left == row for box in placed)
        if relation is None:
            assert int((kinds[placed[0].top] >= 0).sum()) == columns - placed[0].side


def test_numbers_are_codes_of_the_background():
    for colour in range(len(COLOURS)):
        codes = [numbered(value, colour) for value in range(16)]
        assert NUMBER_OF[codes].tolist() == list(range(1, 17))
        assert FRONT_OF[codes].tolist() == [colour] * 16


def test_symbols_tell_all_shapes_apart():
    shapes = [Shape(colour, kind) for colour in COLOURS[1:] for kind in KINDS]
    assert len({symbol(shape, COLOURS[0]) for shape in shapes}) == len(shapes)


@pytest.mark.parametrize("relation", [None, "left", "right", "above", "below"])
def test_notes_tell_all_pictures_of_a_size_apart(relation):
    """So that nothing but the notes and the size is needed to draw."""
    one, other = Shape("red", "star"), Shape("blue", "ring")
    shapes = ((one,), (other,)) if relation is None else ((one, other), (other, one), (one, one))
    made = {}
    for drawing in (Drawing("white", pair, relation) for pair in shapes):
        for shift in shifts(drawing, 8, 8):
            sample = Sample(drawing, 8, 8, shift)
            made[tuple(ar.notes(sample))] = tuple(encode(sample).tolist())
    assert len(made) == len(set(made.values())) == sum(len(shifts(Drawing("white", p, relation), 8, 8)) for p in shapes)
    if relation in ("left", "above"):
        turned = Drawing("white", (other, one), {"left": "right", "above": "below"}[relation])
        sample = Sample(Drawing("white", (one, other), relation), 8, 8, 0)
        assert torch.equal(encode(replace(sample, drawing=turned)), encode(sample))
        assert ar.notes(replace(sample, drawing=turned))[2:4] == ar.notes(sample)[2:4]


def test_pairs_that_begin_alike_are_as_many_as_asked_for_and_none_is_held_out():
    rng = random.Random(1)
    drawn = [samples.sample(rng, 8, 8, pairs=1.0, alike=0.5).drawing for _ in range(400)]
    alike = [each for each in drawn if {shape.kind for shape in each.shapes} in map(set, samples.ALIKE)]
    # By chance alone it would be one in nine; what is asked for comes on top.
    assert 0.45 < len(alike) / len(drawn) < 0.65
    assert any(each.shapes[0].colour == each.shapes[1].colour for each in alike)
    assert not any(map(held_out, drawn))


def _edit(source, instruction):
    return samples.Edit(source, instruction, replace(source, drawing=parse_change(instruction).applied(source.drawing)))


@pytest.mark.parametrize(
    ("instruction", "which"),
    [("make the star green", 1), ("make the ring green", 2), ("make the background green", 0)],
)
@pytest.mark.parametrize("turned", [False, True])
def test_edits_begin_with_what_is_seen_and_which_of_it_changes(instruction, which, turned):
    """By their place in the picture, however it was said; the rest is as in a picture that was asked for."""
    star, ring = Shape("red", "star"), Shape("blue", "ring")
    drawing = Drawing("white", (ring, star), "right") if turned else Drawing("white", (star, ring), "left")
    edit = _edit(Sample(drawing, 8, 8, 0), instruction)
    codes, plain = encode_edited(edit), encode_marked(edit.result)
    assert (KIND_OF[codes[:2]] > 0).all()
    assert int(KIND_OF[codes[0]]) - 1 == list(KINDS).index("star")
    assert int(NUMBER_OF[codes[0]]) - 1 == list(KINDS).index("ring")
    assert int(NUMBER_OF[codes[1]]) - 1 == which
    assert torch.equal(FRONT_OF[codes[:2]], FRONT_OF[plain[:2]])
    assert torch.equal(codes[2:], plain[2:])


def test_edits_say_only_what_there_is_room_for():
    alone = _edit(Sample(Drawing("white", (Shape("red", "ring"),)), 8, 8, 0), "make the ring green")
    codes = encode_edited(alone)
    assert [int(NUMBER_OF[code]) - 1 for code in codes[:2]] == [len(KINDS), 1]
    stacked = Drawing("white", (Shape("red", "star"), Shape("blue", "ring")), "above")
    for shift, room in ((-1, 1), (0, 2)):
        edit = _edit(Sample(stacked, 8, 8, shift), "make the ring green")
        assert boxes(stacked, 8, 8, shift)[0].left == room
        assert (encode_edited(edit) != encode_marked(edit.result)).nonzero().flatten().tolist() == list(range(room))
    whole = _edit(Sample(Drawing("white", (Shape("red", "square"),)), 4, 4, 0), "make the square green")
    assert torch.equal(encode_edited(whole), encode_marked(whole.result))

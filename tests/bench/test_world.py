"""The world that the demo checkpoint draws: where shapes stand, what is held out, how edits are said."""

import random
from dataclasses import replace

import numpy as np
import pytest

from app.bench.edits import Change, parse_change, random_change
from app.bench.world import PALETTE, RELATIONS, Drawing, Shape, boxes, draw, held_out, random_drawing, shifts

CIRCLE = Drawing("blue", (Shape("red", "circle"),))
SIDES = range(4, 17)


def pair(relation):
    return Drawing("white", (Shape("green", "square"), Shape("yellow", "star")), relation)


@pytest.mark.parametrize("drawing", [CIRCLE, *map(pair, RELATIONS)], ids=lambda d: d.relation or "alone")
def test_shapes_stand_inside_and_apart_at_every_size(drawing):
    for columns in SIDES:
        for rows in SIDES:
            for shift in shifts(drawing, columns, rows):
                placed = boxes(drawing, columns, rows, shift)
                for box in placed:
                    assert box.left >= 0 <= box.top
                    assert box.left + box.side <= columns
                    assert box.top + box.side <= rows
                if len(placed) == 2:
                    first, second = placed
                    along = (second.left - first.left, second.top - first.top)[drawing.relation in ("above", "below")]
                    assert (along if drawing.relation in ("left", "above") else -along) >= first.side


def test_shifts_make_different_pictures_and_there_are_none_without_room():
    assert shifts(CIRCLE, 8, 8) == (-1, 0, 1)
    assert shifts(CIRCLE, 4, 4) == (0,)
    assert shifts(pair("left"), 8, 8) == (0,)
    pictures = {draw(pair("above"), (256, 256), shift).tobytes() for shift in shifts(pair("above"), 8, 8)}
    assert len(pictures) == 3


def test_a_size_of_no_whole_cells_is_the_middle_of_one_that_is():
    whole, cut = (np.asarray(draw(CIRCLE, size)) for size in ((160, 128), (140, 100)))
    assert np.array_equal(cut, whole[14:114, 10:150])


def test_a_drawing_has_its_colours_and_their_mixtures_only():
    pixels = np.asarray(draw(CIRCLE, (128, 128))).reshape(-1, 3)
    colours, counts = np.unique(pixels, axis=0, return_counts=True)
    plain = {tuple(map(int, colour)) for colour in colours[np.argsort(-counts)[:2]]}
    assert plain == {PALETTE["blue"], PALETTE["red"]}
    assert counts.max() < len(pixels) * 0.7


def test_a_fifth_is_held_out_however_it_is_said():
    rng = random.Random(0)
    drawings = [random_drawing(rng, 0.5) for _ in range(2000)]
    held = [held_out(drawing) for drawing in drawings]
    assert 0.17 < sum(held) / len(held) < 0.23
    turned = {"left": "right", "right": "left", "above": "below", "below": "above"}
    for drawing, out in zip(drawings, held, strict=True):
        if drawing.relation:
            other = replace(drawing, shapes=drawing.shapes[::-1], relation=turned[drawing.relation])
            assert held_out(other) == out


def test_changes_are_said_and_read():
    rng = random.Random(1)
    said = set()
    for _ in range(200):
        drawing = random_drawing(rng, 0.5)
        change = random_change(rng, drawing)
        assert parse_change(str(change)) == change
        assert change.applied(drawing) != drawing
        said.add(str(change).split()[0])
    assert said == {"make", "change"}


def test_a_change_needs_one_thing_to_change():
    with pytest.raises(ValueError, match="exactly one star"):
        Change("star", "green").applied(CIRCLE)
    twice = Drawing("white", (Shape("green", "star"), Shape("yellow", "star")), "left")
    with pytest.raises(ValueError, match="exactly one star"):
        Change("star", "red").applied(twice)
    with pytest.raises(ValueError, match="cannot be seen"):
        Change("background", "red").applied(CIRCLE)

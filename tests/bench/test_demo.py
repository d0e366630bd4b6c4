"""What `planpaint bench demo` asks for, and how it judges and counts. Its run over a whole stack is not tested here."""

import base64
import io
import json
from dataclasses import replace

import pytest
from PIL import Image

from app.bench import demo
from app.bench.edits import parse_change
from app.bench.intervals import wilson
from app.bench.world import draw, held_out, parse


@pytest.mark.parametrize(("right", "of"), [(0, 7), (1, 1), (20, 24), (97, 100), (100, 100), (5000, 10_000)])
def test_the_ends_of_an_interval_are_as_far_off_as_chance_brings_the_part(right, of):
    """Wilson's interval: all p from which the part lies at most 1.96 of p's own standard deviations away."""
    low, high = wilson(right, of)
    assert 0 <= low <= right / of <= high <= 1
    for end in {low, high} - {right / of}:
        assert abs(right / of - end) == pytest.approx(1.959964 * (end * (1 - end) / of) ** 0.5, rel=1e-9)


@pytest.mark.parametrize(("right", "of"), [(0, 0), (3, 2), (-1, 5)])
def test_there_is_no_interval_of_nothing(right, of):
    with pytest.raises(ValueError, match="no part"):
        wilson(right, of)


@pytest.mark.parametrize("name", demo.ROWS)
def test_orders_are_held_out_and_always_the_same(name):
    orders = demo.orders(name, 40)
    assert [(o.prompt, o.size) for o in orders] == [(o.prompt, o.size) for o in demo.orders(name, 40)]
    assert len({(o.prompt, o.source and o.source.tobytes()) for o in orders}) == 40, "each is asked for once"
    if name != "edits":
        assert all(held_out(parse(order.prompt)) for order in orders)
        assert {parse(order.prompt).relation is None for order in orders} == {True, False}
    for order in orders:
        sides = (order.size.width, order.size.height)
        assert all(128 <= side <= 512 and side % 32 == 0 for side in sides)
    assert (len({order.size for order in orders}) > 20) == (name == "any")


def test_edits_are_sent_with_their_source_and_judged_against_it():
    for order in demo.orders("edits", 10):
        sent = Image.open(io.BytesIO(base64.b64decode(order.body()["images"][0])))
        assert sent.tobytes() == order.source.tobytes()
        assert not order.verdict(order.source).full
        assert parse_change(order.prompt)


def test_pictures_are_judged_by_their_prompt():
    order = demo.orders("256x256", 1)[0]
    assert "images" not in order.body()
    drawing = parse(order.prompt)
    assert order.verdict(draw(drawing, (256, 256))).full
    other = replace(drawing, background=next(c for c in ("red", "blue", "black", "white") if c not in order.prompt))
    assert not order.verdict(draw(other, (256, 256))).full


def result(**rows):
    made = {name: demo.Row(100, full, full, full, demo.ROWS[name], 1, 1, 1, 1, 1) for name, full in rows.items()}
    return demo.Result(made, latency_s=2, ar_load_s=1, dit_load_s=1)


def test_every_figure_decides():
    good = result(**{"256x256": 0.97, "any": 0.85})
    assert good.missed() == []
    assert result(**{"256x256": 0.96, "any": 0.85}).missed() == ["256x256 fully right"]
    assert replace(good, latency_s=4.1).missed() == ["latency"]
    assert replace(good, ar_load_s=3.1).missed() == ["ar load"]
    assert replace(good, dit_load_s=3.1).missed() == ["dit load"]
    blotched = replace(good, rows={"256x256": replace(good.rows["256x256"], colour=0.98)})
    assert blotched.missed() == ["256x256 colour"]
    assert set(json.loads(demo.as_json(good))["rows"]) == {"256x256", "any"}


def test_rows_count_what_is_right():
    order = demo.orders("256x256", 1)[0]
    right = draw(parse(order.prompt), (256, 256))
    verdicts = [order.verdict(right)] * 3 + [order.verdict(Image.new("RGB", (256, 256), "gray"))]
    row = demo._row(verdicts, 0.97)
    assert (row.n, row.full, row.background, row.limit) == (4, 0.75, 0.75, 0.97)
    assert row.low < 0.75 < row.high

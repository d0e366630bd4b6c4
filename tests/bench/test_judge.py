"""The judge judged: it accepts what is drawn for a prompt and refuses what is drawn for another."""

import io
import random
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image, ImageChops, ImageFilter

from app.bench.edits import random_change
from app.bench.judge import Drawing, Shape, Verdict, draw, judge, judge_edit, parse, see
from app.bench.world import COLOURS, KINDS, PALETTE, RELATIONS, random_drawing

SIZES = [(256, 256), (128, 128), (384, 256), (256, 384), (320, 320), (512, 512), (160, 480)]
FIELDS = {"background", "count", "colour", "shape", "relation"}

CIRCLE = Drawing("blue", (Shape("red", "circle"),))
PAIR = Drawing("white", (Shape("green", "square"), Shape("yellow", "star")), "left")


def wrong(verdict: Verdict) -> set[str]:
    assert verdict.full == all(getattr(verdict, field) for field in FIELDS)
    return {field for field in FIELDS if not getattr(verdict, field)}


def other(rng: random.Random, names: object, *but: str) -> str:
    return rng.choice([name for name in names if name not in but])


def single_drawings() -> Iterator[Drawing]:
    for background in COLOURS:
        for colour in COLOURS:
            for kind in KINDS:
                if colour != background:
                    yield Drawing(background, (Shape(colour, kind),))


def random_pair(rng: random.Random, relation: str | None = None) -> Drawing:
    background = rng.choice(COLOURS)
    shapes = [Shape(other(rng, COLOURS, background), rng.choice(list(KINDS))) for _ in range(2)]
    return Drawing(background, tuple(shapes), relation or rng.choice(list(RELATIONS)))


# --- prompts


@pytest.mark.parametrize(
    ("prompt", "drawing"),
    [
        ("a red circle on a blue background", CIRCLE),
        ("an orange ring on a black background", Drawing("black", (Shape("orange", "ring"),))),
        ("a green square to the left of a yellow star on a white background", PAIR),
        ("a green square left of a yellow star on a white background", PAIR),
        ("a green square to the right of a yellow star on a white background", replace(PAIR, relation="right")),
        ("a green square above a yellow star on a white background", replace(PAIR, relation="above")),
        ("a green square below a yellow star on a white background", replace(PAIR, relation="below")),
    ],
)
def test_a_prompt_is_read(prompt: str, drawing: Drawing) -> None:
    assert parse(prompt) == drawing
    assert parse(drawing.prompt) == drawing


@pytest.mark.parametrize(
    "prompt",
    [
        "",
        "a cat",
        "a red circle",
        "a pink circle on a blue background",
        "a red circle on a red background",
        "a red circle to the above a blue star on a white background",
        "a red circle on a blue background, high quality",
    ],
)
def test_a_prompt_that_cannot_be_judged_is_refused(prompt: str) -> None:
    with pytest.raises(ValueError):
        parse(prompt)


# --- true drawings


def test_every_single_shape_in_every_colour_on_every_background_is_accepted() -> None:
    for index, drawing in enumerate(single_drawings()):
        verdict = judge(drawing.prompt, draw(drawing, (128, 128), shift=(-1, 0, 1)[index % 3]))
        assert verdict.full, verdict.explain()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", SIZES)
def test_single_shapes_are_accepted_at_every_size(size: tuple[int, int], kind: str) -> None:
    for shift in (-1, 0, 1):
        verdict = judge(f"a red {kind} on a blue background", draw(Drawing("blue", (Shape("red", kind),)), size, shift))
        assert verdict.full, verdict.explain()


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("size", SIZES)
def test_pairs_in_every_relation_are_accepted(size: tuple[int, int], relation: str) -> None:
    rng = random.Random(f"{size}{relation}")
    for _ in range(8):
        drawing = random_pair(rng, relation)
        shift = 0 if relation in ("left", "right") else rng.choice((-1, 0, 1))
        verdict = judge(drawing.prompt, draw(drawing, size, shift))
        assert verdict.full, verdict.explain()


def test_a_slightly_noisy_picture_is_accepted() -> None:
    pixels = np.asarray(draw(PAIR, (256, 256)), np.float32)
    noisy = pixels + np.random.default_rng(0).normal(0, 6, pixels.shape)
    verdict = judge(PAIR.prompt, Image.fromarray(noisy.clip(0, 255).astype(np.uint8)))
    assert verdict.full, verdict.explain()


# --- drawings made for another prompt


@pytest.mark.parametrize("size", SIZES)
def test_one_wrong_attribute_is_found_and_no_other(size: tuple[int, int]) -> None:
    rng = random.Random(str(size))
    for _ in range(8):
        wanted = random_pair(rng)
        first, second = wanted.shapes
        if first == second:
            continue
        colours = {wanted.background, first.colour, second.colour}
        made = {
            "background": replace(wanted, background=other(rng, COLOURS, *colours)),
            "colour": replace(wanted, shapes=(replace(first, colour=other(rng, COLOURS, *colours)), second)),
            "shape": replace(wanted, shapes=(first, replace(second, kind=other(rng, KINDS, first.kind, second.kind)))),
            "relation": replace(wanted, shapes=(second, first)),
        }
        for field, drawing in made.items():
            verdict = judge(wanted.prompt, draw(drawing, size))
            assert wrong(verdict) == {field}, verdict.explain()


def test_a_wrong_count_is_found() -> None:
    assert "count" in wrong(judge(CIRCLE.prompt, draw(replace(PAIR, background="blue"), (256, 256))))
    assert "count" in wrong(judge(PAIR.prompt, draw(replace(CIRCLE, background="white"), (256, 256))))


def test_beside_is_not_above() -> None:
    for relation in ("above", "below"):
        verdict = judge(PAIR.prompt, draw(replace(PAIR, relation=relation), (256, 256)))
        assert wrong(verdict) == {"relation"}, verdict.explain()


def test_random_other_prompts_are_refused() -> None:
    rng = random.Random(7)
    singles = list(single_drawings())
    for _ in range(60):
        wanted, made = (rng.choice(singles) if rng.random() < 0.5 else random_pair(rng) for _ in range(2))
        if wanted != made:
            verdict = judge(wanted.prompt, draw(made, (128, 128)))
            assert not verdict.full, verdict.explain()


# --- pictures with a fault


@pytest.mark.parametrize("kind", KINDS)
def test_a_shape_of_which_much_is_missing_is_not_that_shape(kind: str) -> None:
    """A quarter; of a star, whose arms are thin in small pictures and so count for little, half."""
    drawing = Drawing("blue", (Shape("red", kind),))
    pixels = np.array(draw(drawing, (256, 256)))
    pixels[0 if kind == "star" else 128 :, :128] = PALETTE["blue"]
    verdict = judge(drawing.prompt, Image.fromarray(pixels))
    assert "shape" in wrong(verdict) or "count" in wrong(verdict), verdict.explain()


def test_a_diamond_is_no_cross() -> None:
    y, x = np.mgrid[-128:128, -128:128]
    diamond = (np.abs(x) + np.abs(y) < 90)[:, :, None]
    picture = Image.fromarray(np.where(diamond, PALETTE["red"], PALETTE["blue"]).astype(np.uint8))
    assert wrong(judge("a red cross on a blue background", picture)) == {"shape"}


def test_whatever_else_is_in_the_picture_is_seen() -> None:
    """Although the shape and the rim are as they should be, and the rest is of no colour of ours."""
    true = np.array(draw(CIRCLE, (256, 256)))
    outside = ~(true == PALETTE["red"]).all(-1)
    outside[:4] = outside[-4:] = outside[:, :4] = outside[:, -4:] = False
    noise = np.random.default_rng(1).integers(0, 256, true.shape)
    stripes = np.broadcast_to((np.arange(256) % 4 == 0)[:, None], outside.shape)
    for name, where, what in (
        ("grey", outside, 128),
        ("noise", outside, noise),
        ("stripes", outside & stripes, PALETTE["yellow"]),
    ):
        pixels = np.where(where[:, :, None], what, true).astype(np.uint8)
        assert not judge(CIRCLE.prompt, Image.fromarray(pixels)).full, name
    true[8:40, 8:60] = 128
    assert "count" in wrong(judge(CIRCLE.prompt, Image.fromarray(true)))


@pytest.mark.parametrize("size", SIZES)
def test_what_compression_and_blur_leave_is_accepted(size: tuple[int, int]) -> None:
    rng = random.Random(str(size))
    for _ in range(4):
        drawing = random_drawing(rng, 0.5)
        true = draw(drawing, size)
        file = io.BytesIO()
        true.save(file, "JPEG", quality=60)
        for picture in (Image.open(file), true.filter(ImageFilter.GaussianBlur(1.5))):
            verdict = judge(drawing.prompt, picture)
            assert verdict.full, verdict.explain()


# --- pictures of nothing


def garbage() -> Iterator[tuple[str, np.ndarray]]:
    rng = np.random.default_rng(3)
    yield "blank", np.full((256, 256, 3), PALETTE["blue"])
    yield "one pixel", np.full((1, 1, 3), PALETTE["blue"])
    yield "grey", np.full((256, 256, 3), 128)
    yield "noise", rng.integers(0, 256, (256, 256, 3))
    yield "noise of our colours", np.array(list(PALETTE.values()))[rng.integers(0, 8, (256, 256))]
    red, blue = np.array(PALETTE["red"]), np.array(PALETTE["blue"])
    for width in (1, 7, 32, 100):
        stripes = np.arange(384) // width % 2 == 1
        yield f"{width} px stripes", np.where(np.broadcast_to(stripes[None, :, None], (96, 384, 3)), red, blue)
    checks = np.add.outer(np.arange(256) // 32, np.arange(256) // 32) % 2 == 1
    yield "chequers", np.where(checks[:, :, None], red, blue)
    y, x = np.mgrid[-128:128, -128:128]
    tombstone = (np.abs(x) < 80) & (np.abs(y) < 80) & ((y > 0) | (np.hypot(x, y) < 80))
    yield "half a circle on half a square", np.where(tombstone[:, :, None], red, blue)
    flat = np.hypot(x, y * 2) < 80
    yield "ellipse", np.where(flat[:, :, None], red, blue)
    outline = np.abs(np.hypot(x, y) - 80) < 1.5
    yield "outline", np.where(outline[:, :, None], red, blue)


@pytest.mark.parametrize("prompt", [CIRCLE.prompt, PAIR.prompt, "a red square on a blue background"])
def test_garbage_is_refused(prompt: str) -> None:
    for name, pixels in garbage():
        verdict = judge(prompt, Image.fromarray(pixels.astype(np.uint8)))
        assert not verdict.full, f"{name}: {verdict.explain()}"


# --- words


def test_the_explanation_says_what_is_wrong_and_what_is_seen() -> None:
    explanation = judge(CIRCLE.prompt, draw(Drawing("blue", (Shape("green", "circle"),)), (128, 128))).explain()
    assert "'a red circle on a blue background'" in explanation
    assert "wrong: colour;" in explanation
    assert "green circle" in explanation


def test_bodies_are_seen_largest_first_with_their_places() -> None:
    seen = see(draw(PAIR, (384, 256)))
    assert seen.background == "white"
    assert [(b.colour, b.kind, round(b.x, 2)) for b in seen.bodies] == [
        ("green", "square", 0.25),
        ("yellow", "star", 0.75),
    ]


# --- edits


@pytest.mark.parametrize("size", SIZES)
def test_an_edit_that_is_done_is_accepted_and_every_other_is_not(size: tuple[int, int]) -> None:
    rng = random.Random(str(size))
    for _ in range(4):
        source = random_drawing(rng, 0.5)
        change = random_change(rng, source)
        before, after = draw(source, size), draw(change.applied(source), size)
        assert judge_edit(before, str(change), after).full
        assert not judge_edit(before, str(change), before).full
        others = {colour for colour in COLOURS if colour not in (change.colour, source.background)}
        another = replace(change, colour=rng.choice(sorted(others - {s.colour for s in source.shapes})))
        assert not judge_edit(before, str(change), draw(another.applied(source), size)).full


def test_what_an_edit_did_besides_is_found() -> None:
    before = draw(PAIR, (256, 256))
    green, yellow = PAIR.shapes
    blue = replace(green, colour="blue")
    done = replace(PAIR, shapes=(blue, yellow))
    assert judge_edit(before, "make the square blue", draw(done, (256, 256))).full
    made = {
        "background": replace(done, background="black"),
        "colour": replace(done, shapes=(blue, replace(yellow, colour="red"))),
        "shape": replace(done, shapes=(blue, replace(yellow, kind="ring"))),
    }
    for field, drawing in made.items():
        assert wrong(judge_edit(before, "make the square blue", draw(drawing, (256, 256)))) == {field}
    moved = ImageChops.offset(draw(done, (256, 256)), 0, 40)
    assert wrong(judge_edit(before, "make the square blue", moved)) == {"relation"}
    smaller = draw(done, (512, 512)).resize((256, 256)).resize((128, 128))
    assert wrong(judge_edit(before, "make the square blue", smaller)) == {"relation"}, "a picture of another size"
    shrunk = draw(Drawing("white", (blue,)), (192, 192)).resize((120, 120))
    small = draw(Drawing("white", (replace(blue, colour="green"),)), (256, 256))
    one = Image.new("RGB", (256, 256), PALETTE["white"])
    one.paste(shrunk, (68, 68))
    assert wrong(judge_edit(small, "make the square blue", one)) == {"relation"}, "a shape of another size"
    assert "count" in wrong(judge_edit(before, "make the square blue", draw(CIRCLE, (256, 256))))


@pytest.mark.parametrize("instruction", ["", "make the cat green", "make it green", "make the circle pink"])
def test_an_instruction_that_cannot_be_judged_is_refused(instruction: str) -> None:
    with pytest.raises(ValueError):
        judge_edit(draw(CIRCLE, (128, 128)), instruction, draw(CIRCLE, (128, 128)))


def test_an_edit_of_what_is_not_there_cannot_be_judged() -> None:
    with pytest.raises(ValueError, match="does not show"):
        judge_edit(draw(CIRCLE, (128, 128)), "make the star green", draw(CIRCLE, (128, 128)))

import dataclasses
import random

import numpy as np
import pytest
import torch

from app.bench.reference import picture
from app.domain.prior import PriorTokens
from app.domain.sizes import Grid
from tests.dit.test_engine import CODES, paint_request
from tests.edits import drawn, noise

PICTURES = (drawn(256, 256), noise(128, 160), noise(264, 128, seed=1))


def edit_request(name, images, **fields):
    request = paint_request(name, **fields)
    draw = random.Random(len(images))
    condition = []
    for image in images:
        grid = Grid(image.height // 32, image.width // 32)
        condition.append(PriorTokens(grid, tuple(draw.randrange(CODES[name]) for _ in range(grid.tokens))))
    return dataclasses.replace(request, images=images, condition=tuple(condition))


@pytest.mark.parametrize(
    ("name", "images", "size", "guidance_scale"),
    [
        ("demo", PICTURES[:1], "256x256", 1.5),
        ("demo", PICTURES[:2], "256x256", 1.0),
        ("demo", PICTURES[:1], "384x256", 1.0),
        ("demo", PICTURES[:2], "384x256", 1.5),
        ("tiny", PICTURES, "100x160", 4.0),
        ("tiny", PICTURES[1:], "64x64", 1.0),
    ],
)
def test_edits_are_those_of_the_pipeline(name, images, size, guidance_scale, engines, pipelines):
    request = edit_request(name, images, size=size, guidance_scale=guidance_scale)
    pixels = engines[name].paint(request, lambda step: None)
    assert np.abs(pixels.astype(int) - picture(pipelines[name], request)).max() <= 1


def test_the_order_of_the_images_counts_and_so_do_they(engines):
    """A picture that ignored its images would also equal a pipeline that did."""
    request = edit_request("tiny", PICTURES[:2])
    turned = dataclasses.replace(request, images=request.images[::-1], condition=request.condition[::-1])
    bare = dataclasses.replace(request, images=(), condition=())
    pictures = [engines["tiny"].paint(one, lambda step: None).astype(int) for one in (request, turned, bare)]
    assert np.abs(pictures[0] - pictures[2]).max() > 1
    # Nothing tells the transformer which image is the first: attention sums over them in another order.
    assert np.abs(pictures[0] - pictures[1]).max() <= 1


def test_an_edit_leaves_nothing_behind(engines, monkeypatch):
    """Neither one that ends nor one that is stopped while it reads its images or denoises."""
    engine, edit, plain = engines["tiny"], edit_request("tiny", PICTURES[:2]), paint_request("tiny", seed=7)
    before = engine.paint(plain, lambda step: None)
    first = engine.paint(edit, lambda step: None)
    assert np.array_equal(engine.paint(plain, lambda step: None), before)

    class StopError(Exception):
        pass

    def stop(step):
        raise StopError

    with pytest.raises(StopError) as stopped:
        engine.paint(edit, stop)
    frames, trace = [], stopped.tb
    while trace:
        frames, trace = [*frames, trace.tb_frame], trace.tb_next
    memory = next(frame.f_locals["memory"] for frame in frames if "memory" in frame.f_locals)
    assert all(not layer.k_caches for layer in memory._cache.caches)
    assert np.array_equal(engine.paint(plain, lambda step: None), before)
    assert np.array_equal(engine.paint(edit, lambda step: None), first)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_edits_are_nearly_the_same(dtype, tiny_checkpoint, engines):
    from app.dit.engine import DitEngine

    engine = DitEngine.load(tiny_checkpoint, device=torch.device("cpu"), dtype=dtype)
    request = edit_request("tiny", PICTURES[:2])
    exact = engines["tiny"].paint(request, lambda step: None).astype(int)
    assert np.abs(engine.paint(request, lambda step: None) - exact).mean() < 4


def test_ids_that_do_not_fit_their_images_are_refused():
    request = edit_request("tiny", PICTURES[:2])
    for changed in (
        {"condition": request.condition[::-1]},
        {"condition": request.condition[:1]},
        {"condition": ()},
        {"images": ()},
        {"images": (noise(272, 256), PICTURES[1])},
    ):
        with pytest.raises(ValueError, match=r"condition images|are not those"):
            dataclasses.replace(request, **changed)

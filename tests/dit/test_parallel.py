"""A group of real processes over gloo against one process on the same weights, in float32."""

import dataclasses

import numpy as np
import pytest

from app.bench.groups import denoise
from app.dit.engine import Options
from app.dit.parallel import Layout
from app.errors import Misconfigured
from tests.dit.test_edits import PICTURES, edit_request
from tests.dit.test_engine import paint_request

#: Glyph texts of many lengths, so that few of them divide by the ranks; pictures' patches divide by 4 and seldom by 3.
REQUESTS = {
    "demo": (
        paint_request("demo", size="256x256"),
        paint_request("demo", size="384x256", seed=3, prompt='"ABC"', guidance_scale=1.0),
        paint_request("demo", size="500x300", prompt="no text"),
        edit_request("demo", PICTURES[:1], size="256x256"),
        edit_request("demo", PICTURES[:2], size="384x256"),
    ),
    "tiny": (
        paint_request("tiny", size="128x64", steps=5),
        paint_request("tiny", size="33x95", guidance_scale=1.0),
        paint_request("tiny", size="32x32", prompt='"a" and "bcde"'),
        edit_request("tiny", PICTURES[:1], size="160x96", guidance_scale=4.0),
        edit_request("tiny", PICTURES, size="100x160", prompt='"ABCD"'),
    ),
}


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        ("demo", Layout(sp=2)),
        ("demo", Layout(cfg_parallel=True)),
        ("tiny", Layout(sp=3)),
        ("tiny", Layout(sp=4)),
        ("tiny", Layout(sp=2, cfg_parallel=True)),
    ],
    ids=str,
)
def test_a_group_ends_with_the_latents_of_one_device(name, layout, engines, demo_checkpoint, tiny_checkpoint):
    checkpoint = {"demo": demo_checkpoint, "tiny": tiny_checkpoint}[name]
    shares = denoise(checkpoint, REQUESTS[name], Options(layout=layout))
    assert len(shares) == layout.ranks
    for number, request in enumerate(REQUESTS[name]):
        alone = engines[name].denoise(request, lambda step: None).numpy()
        assert np.isfinite(alone).all()
        for share in shares:
            assert np.abs(share.latents[number] - alone).max() <= 1e-4, request.size


def test_all_ranks_stop_after_the_same_step_and_go_on_with_the_next_picture(tiny_checkpoint):
    request = paint_request("tiny", steps=6)
    requests = (request, edit_request("tiny", PICTURES[:1], steps=6), dataclasses.replace(request, steps=2))
    shares = denoise(tiny_checkpoint, requests, Options(layout=Layout(2, True)), cancel_after=3)
    assert [share.steps for share in shares] == [[3, 3, 2]] * 4
    assert [[latents is None for latents in share.latents] for share in shares] == [[True, True, False]] * 4


def test_a_share_takes_less_memory(tiny_checkpoint):
    request = paint_request("tiny", size="1024x512", guidance_scale=1.0, steps=1)
    alone, *four = (
        share.peak_bytes
        for layout in (Layout(), Layout(sp=4))
        for share in denoise(tiny_checkpoint, [request], Options(layout=layout))
    )
    assert max(four) < 0.6 * alone


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (Options(layout=Layout(sp=4)), "the 2 attention heads of this model do not divide"),
        (Options(layout=Layout(sp=2), step_cache="first-block:0.1"), "a step cache and sequence parallel"),
    ],
)
def test_what_cannot_be_shared_is_refused_in_a_sentence(demo_checkpoint, options, sentence):
    with pytest.raises(Misconfigured, match=sentence):
        denoise(demo_checkpoint, [], options)

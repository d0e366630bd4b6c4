"""Step cache, compiled blocks, tiled decoding, memory: each against the plain engine on the same weights."""

import dataclasses
import json

import numpy as np
import pytest
import torch

from app.dit.condition import Memory
from app.dit.engine import DitEngine, Options
from app.dit.request import PaintRequest
from app.domain.sizes import Size
from app.errors import Misconfigured
from tests.dit.test_edits import PICTURES, edit_request
from tests.dit.test_engine import paint_request
from tests.edits import drawn


def load(checkpoint, **options):
    return DitEngine.load(checkpoint, device=torch.device("cpu"), dtype=torch.float32, options=Options(**options))


def latents(engine, request):
    return engine.denoise(request, lambda step: None)


def blocks_run(engine, request, monkeypatch):
    """How often each block of the transformer was computed, by its attention."""
    counts = []
    for block in engine._denoiser._transformer.transformer_blocks:
        forward, mine = block.attn1.forward, []
        counts.append(mine)
        monkeypatch.setattr(block.attn1, "forward", lambda *a, f=forward, m=mine, **k: m.append(1) or f(*a, **k))
    latents(engine, request)
    monkeypatch.undo()
    return [len(mine) for mine in counts]


@pytest.mark.parametrize(
    "request_", [paint_request(steps=6), edit_request("tiny", PICTURES[:2], steps=6)], ids=["text", "edit"]
)
def test_a_step_cache_that_never_skips_changes_nothing(request_, engines, tiny_checkpoint):
    """Its hooks around every block, its contexts for both branches, and images of two sizes: the same latents."""
    cached = load(tiny_checkpoint, step_cache="first-block:0")
    assert torch.equal(latents(cached, request_), latents(engines["tiny"], request_))
    assert (cached.step_cache, engines["tiny"].step_cache) == ("first-block:0", None)


def test_a_step_cache_skips_blocks_but_never_those_that_read_an_image(tiny_checkpoint, monkeypatch):
    """Two branches of six steps, of which the first is computed; two images of one size, both read whole."""
    cached = load(tiny_checkpoint, step_cache="first-block:1000")
    assert blocks_run(cached, paint_request(steps=6), monkeypatch) == [12, 2]
    same_size = (drawn(128, 128), drawn(128, 128))
    assert blocks_run(cached, edit_request("tiny", same_size, steps=6), monkeypatch) == [14, 4]


def test_a_step_cache_leaves_nothing_to_the_next_picture(tiny_checkpoint):
    cached = load(tiny_checkpoint, step_cache="first-block:1000")
    first, edit = paint_request(steps=4, seed=1), edit_request("tiny", PICTURES[:2], steps=4)
    before, edited = latents(cached, first), latents(cached, edit)
    assert torch.equal(latents(cached, first), before)

    def stop(step):
        raise KeyError

    with pytest.raises(KeyError):
        cached.denoise(paint_request(steps=4, seed=2), stop)
    assert torch.equal(latents(cached, edit), edited)


def test_the_branches_of_guidance_are_cached_apart(tiny_checkpoint, engines):
    """Skipping all but the first step, each branch keeps adding what its own first step added.

    If one branch took the other's, both would add the same, and guidance would change nothing but the first block.
    """
    cached = load(tiny_checkpoint, step_cache="first-block:1000")
    exact = latents(engines["tiny"], paint_request(steps=2, guidance_scale=3.0))
    near = latents(cached, paint_request(steps=2, guidance_scale=3.0))
    unguided = latents(engines["tiny"], paint_request(steps=2, guidance_scale=1.0))
    assert (near - exact).abs().mean() < 0.5 * (unguided - exact).abs().mean()


_TORCH_JIT = pytest.mark.filterwarnings("ignore:.torch.jit.*:DeprecationWarning")  # torch imports its own old parts


@_TORCH_JIT
def test_compiled_blocks_paint_the_same(tiny_checkpoint, engines):
    """Of any size, with glyphs and images as without. Needs a C++ compiler."""
    engine = load(tiny_checkpoint, compile=True)
    engine.warm_up()
    request = edit_request("tiny", PICTURES[:2], size="100x160", prompt='"abc"')
    assert (latents(engine, request) - latents(engines["tiny"], request)).abs().max() <= 1e-4


@_TORCH_JIT
def test_a_missing_compiler_is_said_in_a_sentence(tiny_checkpoint, monkeypatch):
    engine = load(tiny_checkpoint, compile=True)

    def refuse(*given, **named):
        raise RuntimeError("backend raised:\nNo working C++ compiler\n\na long list")

    monkeypatch.setattr(engine._denoiser, "latents", refuse)
    with pytest.raises(Misconfigured, match="cannot be compiled: backend raised: No working C"):
        engine.warm_up()


def test_tiles_are_near_the_whole_and_take_a_fraction_of_its_memory(demo_checkpoint, engines):
    """Measured on a drawn picture of 512x512 in tiles of 256: largest difference 13 of 255, mean 0.45.

    A tile's group norms see the tile alone.
    """
    size, whole = Size(512, 512), engines["demo"]
    tiled = load(demo_checkpoint, tile_pixels=size.pixels)
    memory = Memory(whole._denoiser._transformer, whole._denoiser._vae)
    with torch.inference_mode():
        encoded = memory.latents(drawn(size.width, size.height))
    exact = whole.decode(encoded, size)
    difference = np.abs(tiled.decode(encoded, size).astype(int) - exact)
    assert 0 < difference.max() <= 24
    assert difference.mean() <= 1

    below = load(demo_checkpoint, tile_pixels=size.pixels + 1)
    assert np.array_equal(below.decode(encoded, size), exact)
    assert allocated(lambda: tiled.decode(encoded, size)) < 0.6 * allocated(lambda: whole.decode(encoded, size))


def allocated(call):
    """Bytes at the peak of what a call in one thread allocates."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        call()
    held = peak = 0
    events = [event for event in recorded.profiler.kineto_results.events() if event.name() == "[memory]"]
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak


def test_a_request_crosses_to_other_ranks_whole():
    request = edit_request("tiny", PICTURES[:2], prompt='\u201cdéjà\u201d "vu"\n', size="33x95", seed=2**32 - 1)
    back = PaintRequest.from_json(json.loads(json.dumps(request.to_json())))
    for field in dataclasses.fields(request):
        given, taken = getattr(request, field.name), getattr(back, field.name)
        if field.name == "images":
            given, taken = ([np.asarray(image).tolist() for image in images] for images in (given, taken))
        assert given == taken, field.name

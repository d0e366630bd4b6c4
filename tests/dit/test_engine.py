import random

import numpy as np
import pytest
import torch

from app.bench.reference import picture
from app.dit.engine import DitEngine
from app.dit.request import PaintRequest
from app.domain.prior import PriorTokens
from app.domain.sizes import Grid, Size
from app.errors import ImageFailed

PROMPT = "a sign that says 'HI' and \"yo\""
CODES = {"demo": 3592, "tiny": 96}


def paint_request(name="tiny", *, prompt=PROMPT, size="64x64", seed=0, steps=2, guidance_scale=1.5):
    size = Size.parse(size)
    draw = random.Random(seed)
    ids = tuple(draw.randrange(CODES[name]) for _ in range(size.large_grid.tokens))
    prior = PriorTokens(size.large_grid, ids)
    return PaintRequest(prompt=prompt, size=size, prior=prior, seed=seed, steps=steps, guidance_scale=guidance_scale)


@pytest.mark.parametrize(
    ("name", "size", "changed"),
    [
        ("demo", "256x256", {}),
        ("demo", "384x256", {"seed": 3}),
        ("demo", "500x300", {"prompt": "no text"}),
        ("tiny", "128x64", {"guidance_scale": 1.0}),
        ("tiny", "64x160", {"guidance_scale": 4.0, "steps": 5}),
        ("tiny", "33x95", {"steps": 1}),
    ],
)
def test_pictures_are_those_of_the_pipeline(name, size, changed, engines, pipelines):
    request = paint_request(name, size=size, **changed)
    pixels = engines[name].paint(request, lambda step: None)
    assert pixels.dtype == np.uint8
    assert pixels.shape == (request.size.height, request.size.width, 3)
    assert pixels.flags.c_contiguous
    difference = np.abs(pixels.astype(int) - picture(pipelines[name], request))
    assert difference.max() <= 1


def test_the_seed_decides(engines):
    paint = engines["tiny"].paint
    first = paint(paint_request(seed=1), lambda step: None)
    assert np.array_equal(first, paint(paint_request(seed=1), lambda step: None))
    assert not np.array_equal(first, paint(paint_request(seed=2), lambda step: None))


def test_steps_are_reported_and_may_stop_the_work(engines, monkeypatch):
    engine, request, seen = engines["tiny"], paint_request(steps=4, guidance_scale=1.0), []
    whole = engine.paint(request, seen.append)
    assert seen == [1, 2, 3, 4]

    class StopError(Exception):
        pass

    def stop(step):
        if step == 2:
            raise StopError

    calls = []
    forward = engine._denoiser._transformer.forward
    monkeypatch.setattr(engine._denoiser._transformer, "forward", lambda **given: calls.append(1) or forward(**given))
    with pytest.raises(StopError):
        engine.paint(request, stop)
    assert len(calls) == 2
    assert np.array_equal(engine.paint(request, lambda step: None), whole)


def test_output_that_is_not_a_number_fails_the_image(tiny_checkpoint):
    engine = DitEngine.load(tiny_checkpoint, device=torch.device("cpu"), dtype=torch.float32)
    with torch.no_grad():
        engine._denoiser._transformer.proj_out.bias.fill_(float("nan"))
    with pytest.raises(ImageFailed) as failure:
        engine.paint(paint_request(), lambda step: None)
    assert (failure.value.code, failure.value.retryable) == ("nan_output", True)


@pytest.mark.parametrize(("dtype", "vae"), [(torch.bfloat16, torch.bfloat16), (torch.float16, torch.float32)])
def test_half_precision_paints_nearly_the_same(dtype, vae, tiny_checkpoint, engines):
    engine = DitEngine.load(tiny_checkpoint, device=torch.device("cpu"), dtype=dtype)
    assert engine._decoder._vae.dtype == vae
    exact = engines["tiny"].paint(paint_request(), lambda step: None).astype(int)
    rounded = engine.paint(paint_request(), lambda step: None)
    assert np.abs(rounded - exact).mean() < 4


def test_a_plan_of_another_size_is_refused():
    with pytest.raises(ValueError, match="64x64"):
        PaintRequest(
            prompt="", size=Size(64, 64), prior=PriorTokens(Grid(1, 1), (0,)), seed=0, steps=1, guidance_scale=1.0
        )

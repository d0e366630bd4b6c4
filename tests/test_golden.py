"""Golden pictures: what each size comes out as, and that a wrong schedule, shift or colour range is seen at once."""

import json

import numpy as np
import pytest
import torch

from app.dit import schedule
from app.dit.engine import DitEngine
from tests import golden

#: Grey levels by which statistics may differ between machines.
NEAR = 0.05

torch.set_num_threads(1)  # the matrices are too small to share, and tests may run side by side


@pytest.fixture(scope="module")
def engine(demo_checkpoint):
    return DitEngine.load(demo_checkpoint, device=torch.device("cpu"), dtype=torch.float32)


@pytest.fixture(scope="module")
def wanted(demo_checkpoint):
    return golden.requests(demo_checkpoint)


@pytest.fixture(scope="module")
def kept(demo_checkpoint):
    kept = json.loads(golden.FILE.read_text("utf-8"))
    assert kept["weights"] == golden.weights_of(demo_checkpoint), "another checkpoint: run python -m tests.golden"
    return kept["pictures"]


def off(engine, request, kept):
    """By how much the statistic that differs most does."""
    found = golden.statistics(engine.paint(request, lambda step: None))
    return float(np.abs(np.subtract(found, kept)).max())


@pytest.mark.parametrize("size", golden.SIZES)
def test_pictures_are_what_they_were(size, engine, wanted, kept):
    assert off(engine, wanted[size], kept[size]) < NEAR


def unshifted(monkeypatch, engine):
    monkeypatch.setattr(schedule, "_mu", lambda config, tokens: 1.0)


def exponential(monkeypatch, engine):
    monkeypatch.setitem(engine._denoiser._schedule, "time_shift_type", "exponential")


def other_latents(monkeypatch, engine):
    config = engine._decoder._vae.config
    monkeypatch.setattr(config, "latents_std", [value * 1.1 for value in config.latents_std])


def denormalised_twice(monkeypatch, engine):
    vae = engine._decoder._vae
    decode = vae.decode
    monkeypatch.setattr(vae, "decode", lambda *given, **named: (decode(*given, **named)[0] * 0.5 + 0.5,))


@pytest.mark.parametrize("mistake", [unshifted, exponential, other_latents, denormalised_twice])
def test_a_mistake_is_seen(mistake, monkeypatch, engine, wanted, kept):
    mistake(monkeypatch, engine)
    assert off(engine, wanted["128x128"], kept["128x128"]) > 2 * NEAR

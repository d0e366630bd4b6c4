"""A small piece of real work before a worker says that it is ready: a device that computes nonsense takes no image."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.nn.functional import scaled_dot_product_attention

from app import devices
from app.ar.engine import ArEngine
from app.ar.request import ArFailure, ArRequest
from app.dit.engine import DitEngine
from app.dit.request import PaintRequest
from app.domain.prior import PriorTokens
from app.domain.sizes import Size
from app.errors import ImageFailed, Misconfigured

#: Enough steps that the engine looks at its rows' NaN flags.
_AR_STEPS = 64
_AR_SIZE, _DIT_SIZE = Size(32, 32), Size(64, 32)
#: Largest difference that attention may show against the plain formula, by dtype.
_TOLERANCE = {torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 3e-2}


def check_attention(device: torch.device, dtype: torch.dtype) -> None:
    """The device's fused attention against the formula, with a mask that hides a part. Raises Misconfigured.

    A driver that takes a bool mask the wrong way round, or drops it, gives pictures that merely look bad.
    """
    with _said("attention"):
        queries, keys, values = torch.randn((3, 1, 4, 33, 64), generator=devices.generator(0)).to(dtype).unbind(0)
        mask = torch.ones(33, 33, dtype=torch.bool).tril()
        found = scaled_dot_product_attention(
            queries.to(device), keys.to(device), values.to(device), attn_mask=mask.to(device)
        )
        scores = (queries.float() @ keys.float().transpose(-1, -2) / 8).masked_fill(~mask, float("-inf"))
        expected = scores.softmax(-1) @ values.float()
        difference = (found.cpu().float() - expected).abs().max().item()
        if not difference <= _TOLERANCE[dtype]:
            raise Misconfigured(f"attention on {device} in {dtype} is off by {difference:.3g}")


def check_ar(engine: ArEngine) -> None:
    """A row of a few tokens, each of them from the codebook. Raises Misconfigured."""
    with _said("AR"):
        request = ArRequest("selftest", "a red circle", _AR_SIZE, seed=0, temperature=0.9, top_p=0.75)
        failures = engine.admit([request])
        for _ in range(_AR_STEPS):
            failures += [ended for ended in engine.step() if isinstance(ended, ArFailure)]
        if failures:
            raise Misconfigured(f"the AR engine failed: {failures[0].message}")
        drawn = engine.drawn(request.key)
        engine.evict(request.key)
        if len(drawn) != _AR_STEPS + 1 or min(drawn) < 0:
            raise Misconfigured(f"the AR engine drew {len(drawn)} tokens in {_AR_STEPS} steps, the least {min(drawn)}")


def check_dit(engine: DitEngine) -> None:
    """One step of one picture, its size and that it is made of numbers. Raises Misconfigured."""
    with _said("DiT"):
        grid = _DIT_SIZE.large_grid
        prior = PriorTokens(grid, tuple(range(grid.tokens)))
        request = PaintRequest("a red circle", _DIT_SIZE, prior, seed=0, steps=1, guidance_scale=1.5)
        pixels = engine.paint(request, lambda step: None)
        if pixels.shape != (_DIT_SIZE.height, _DIT_SIZE.width, 3):
            raise Misconfigured(f"the DiT engine painted {pixels.shape} where {_DIT_SIZE} was asked for")
        if pixels.min() == pixels.max():
            raise Misconfigured("the DiT engine painted one plain colour")


@contextmanager
def _said(stage: str) -> Iterator[None]:
    """Whatever goes wrong is one sentence for the operator."""
    try:
        yield
    except ImageFailed as failure:
        raise Misconfigured(f"the self-test of {stage} failed: {failure.message}") from failure
    except Misconfigured as error:
        raise Misconfigured(f"the self-test of {stage} failed: {error}") from error
    except Exception as error:
        raise Misconfigured(f"the self-test of {stage} failed: {type(error).__name__}: {error}") from error

"""Requests and runs of an AR engine."""

from dataclasses import replace
from typing import Any

from PIL.Image import Image

from app.ar.engine import ArEngine
from app.ar.request import ArFailure, ArRequest, ArResult
from app.domain.sizes import Size


def request(
    key: str,
    *,
    prompt: str = "a red circle on a white background",
    size: str = "64x64",
    seed: int = 0,
    temperature: float = 0.9,
    top_p: float = 0.75,
    top_k: int = 0,
) -> ArRequest:
    return ArRequest(key, prompt, Size.parse(size), seed, temperature, top_p, top_k=top_k)


def edit(key: str, images: tuple[Image, ...], *, prompt: str = "make the circle green", **fields: Any) -> ArRequest:
    return replace(request(key, prompt=prompt, **fields), images=images)


def finish(engine: ArEngine) -> dict[str, ArResult | ArFailure]:
    """Step until no row runs; what ended, by key."""
    ended: dict[str, ArResult | ArFailure] = {}
    while engine.running:
        for item in engine.step():
            assert item.key not in ended
            ended[item.key] = item
    return ended


def plan(engine: ArEngine, *requests: ArRequest) -> dict[str, tuple[int, ...]]:
    """The ids of requests admitted together."""
    assert engine.admit(requests) == []
    return {key: item.prior.ids for key, item in finish(engine).items()}


def alone(engine: ArEngine, requests: list[ArRequest]) -> dict[str, tuple[int, ...]]:
    """The ids of requests run one after the other, each as the only row."""
    return {key: ids for one in requests for key, ids in plan(engine, one).items()}

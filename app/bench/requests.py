"""Pictures to paint in benches, with plans that the AR engine made, since noise is not what a DiT is used for."""

import json
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from PIL import Image

from app.ar.engine import ArEngine
from app.ar.request import ArRequest, ArResult
from app.checkpoint import Checkpoint
from app.dit.request import PaintRequest
from app.domain.prior import PriorTokens
from app.domain.sizes import Grid, Size

PROMPT = "a red circle on a white background"


def planned(checkpoint: Checkpoint, sizes: Sequence[Size], *, steps: int) -> list[PaintRequest]:
    """One picture of each size, planned greedily in one batch."""
    engine = ArEngine.load(
        checkpoint,
        device=torch.device("cpu"),
        dtype=torch.float32,
        slots=len(sizes),
        max_prompt_tokens=128,
        max_pixels=max(size.inside.pixels for size in sizes),
    )
    engine.admit([ArRequest(str(size), PROMPT, size, seed=0, temperature=0, top_p=1.0) for size in sizes])
    plans: dict[str, PriorTokens] = {}
    while len(plans) < len(sizes):
        for result in engine.step():
            if not isinstance(result, ArResult):
                raise RuntimeError(f"a picture of the bench could not be planned: {result.message}")
            plans[result.key] = result.prior
    return [PaintRequest(PROMPT, size, plans[str(size)], seed=7, steps=steps, guidance_scale=1.5) for size in sizes]


def blank(size: Size, *, steps: int) -> PaintRequest:
    """For what does not depend on the plan."""
    grid = size.large_grid
    return PaintRequest(PROMPT, size, PriorTokens(grid, (0,) * grid.tokens), seed=7, steps=steps, guidance_scale=1.5)


def edited(request: PaintRequest, sizes: Sequence[Size], checkpoint: Checkpoint) -> PaintRequest:
    """The same picture as an edit of noise of these sizes, with random ids of the checkpoint's codebook."""
    config = json.loads((checkpoint.part("transformer") / "config.json").read_text("utf-8"))
    codes = config["prior_vq_quantizer_codebook_size"]
    draw = np.random.default_rng(0)
    condition = []
    for size in sizes:
        grid = Grid(size.height // 32, size.width // 32)
        condition.append(PriorTokens(grid, tuple(draw.integers(0, codes, grid.tokens).tolist())))
    return replace(
        request,
        images=tuple(Image.fromarray(draw.integers(0, 256, (size.height, size.width, 3), np.uint8)) for size in sizes),
        condition=tuple(condition),
    )

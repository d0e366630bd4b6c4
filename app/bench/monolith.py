"""What the service is measured against: diffusers' own pipeline in one process, and the bare loops of both engines."""

import time
from collections.abc import Callable, Sequence

import torch

from app import devices
from app.ar.engine import ArEngine
from app.ar.graphs import Graph
from app.ar.request import ArRequest, ArResult
from app.bench import reference
from app.checkpoint import Checkpoint
from app.dit.engine import DitEngine
from app.dit.request import PaintRequest
from app.domain.prior import PriorTokens
from app.domain.sizes import Size

CPU = devices.pick("cpu")


def pipeline(checkpoint: Checkpoint, size: Size, steps: int, guidance: float) -> Callable[[list[str]], None]:
    """`GlmImagePipeline` as its users call it, with a prompt or a list of them."""
    made = reference.load(checkpoint)

    def run(prompts: list[str]) -> None:
        made(
            prompt=prompts,
            height=size.height,
            width=size.width,
            num_inference_steps=steps,
            guidance_scale=guidance,
            generator=torch.Generator("cpu").manual_seed(0),
        )

    return run


def images_per_s(run: Callable[[list[str]], None], prompts: Sequence[str], *, batch: int) -> float:
    """Pictures by second when `prompts` are given in lists of `batch`, one after the other."""
    started = time.perf_counter()
    for first in range(0, len(prompts), batch):
        run(list(prompts[first : first + batch]))
    return len(prompts) / (time.perf_counter() - started)


def plan_all(engine: ArEngine, prompts: Sequence[str], size: Size) -> tuple[float, list[PriorTokens]]:
    """Core seconds by image when all prompts wait for the engine's slots, and the plans; the engine has one thread."""
    waiting = [ArRequest(str(n), prompt, size, n, 0.9, 0.75) for n, prompt in enumerate(prompts)]
    plans: list[PriorTokens] = []
    started = time.process_time()
    while waiting or engine.running:
        free = engine.free_slots
        engine.admit(waiting[:free])
        waiting = waiting[free:]
        plans += [ended.prior for ended in engine.step() if isinstance(ended, ArResult)]
    return (time.process_time() - started) / len(prompts), plans


def paint_all(
    engine: DitEngine, prompts: Sequence[str], plans: Sequence[PriorTokens], size: Size, steps: int, guidance: float
) -> float:
    """Core seconds by image of denoising and decoding alone; the engine has one thread."""
    started = time.process_time()
    for seed, (prompt, plan) in enumerate(zip(prompts, plans, strict=True)):
        engine.paint(PaintRequest(prompt, size, plan, seed, steps, guidance), lambda step: None)
    return (time.process_time() - started) / len(plans)


def ar_engine(checkpoint: Checkpoint, size: Size, *, slots: int, graph: Graph) -> ArEngine:
    return ArEngine.load(
        checkpoint,
        device=CPU,
        dtype=torch.float32,
        slots=slots,
        max_prompt_tokens=1024,
        max_pixels=size.pixels,
        graph=graph,
    )


def dit_engine(checkpoint: Checkpoint) -> DitEngine:
    return DitEngine.load(checkpoint, device=CPU, dtype=torch.float32)

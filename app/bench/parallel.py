"""A tensor-parallel step of two ranks beside the step of one, same weights, same rows, by turns in one run."""

import time
from dataclasses import dataclass
from statistics import median

import click
import torch

from app.ar.engine import ArEngine
from app.ar.request import ArRequest
from app.bench.duel import PROMPT, SIZE
from app.checkpoint import Checkpoint
from app.ranks import Leader

BATCHES = (1, 8, 32)
_LIMIT = 3.0
_WARM_UP, _BLOCKS, _BLOCK = 2, 9, 16


@dataclass(frozen=True, slots=True)
class Parallel:
    """The time of a step of two ranks over that of one, the worst of the batches."""

    ratio: float
    tokens_equal: bool

    @property
    def holds(self) -> bool:
        return self.tokens_equal and self.ratio <= _LIMIT


def measure(checkpoint: Checkpoint) -> Parallel:
    """Start a second rank, measure, end it. This process leads the group."""
    environment = {
        "PLANPAINT_CHECKPOINT": str(checkpoint.folder),
        "PLANPAINT_DEVICE": "cpu",
        "PLANPAINT_DTYPE": "float32",
        "PLANPAINT_AR_SLOTS": str(max(BATCHES)),
        "PLANPAINT_MAX_PROMPT_TOKENS": "128",
        "PLANPAINT_MAX_PIXELS": str(SIZE.pixels),
        "PLANPAINT_GRAPH": "off",
        "PLANPAINT_THREADS": "1",
    }
    leader = Leader(2, torch.device("cpu"), ["ar", "--tp", "2"], environment)
    try:
        one, two = _load(checkpoint, None), _load(checkpoint, leader)
        click.echo(
            f"\ntensor parallel: 2 ranks over gloo on one machine, call by call; warm-up {_WARM_UP} x {_BLOCK} steps, "
            f"then {_BLOCKS} blocks of {_BLOCK} by turns\n  batch   1 rank ms  2 ranks ms    ratio    limit  tokens"
        )
        results = [_duel(one, two, batch) for batch in BATCHES]
    finally:
        leader.close()
    return Parallel(max(result.ratio for result in results), all(result.tokens_equal for result in results))


def _load(checkpoint: Checkpoint, leader: Leader | None) -> ArEngine:
    return ArEngine.load(
        checkpoint,
        device=torch.device("cpu"),
        dtype=torch.float32,
        slots=max(BATCHES),
        max_prompt_tokens=128,
        max_pixels=SIZE.pixels,
        graph="off",
        leader=leader,
    )


def _duel(one: ArEngine, two: ArEngine, batch: int) -> Parallel:
    requests = [ArRequest(f"{row}", PROMPT, SIZE, seed=row, temperature=0.9, top_p=0.75) for row in range(batch)]
    for engine in (one, two):
        engine.admit(requests)
        engine.step()
    pairs = [(_block(one), _block(two)) for _ in range(_WARM_UP + _BLOCKS)][_WARM_UP:]
    equal = all(one.drawn(request.key) == two.drawn(request.key) for request in requests)
    for engine in (one, two):
        for request in requests:
            engine.evict(request.key)
    result = Parallel(round(median(second / first for first, second in pairs), 3), equal)
    ours, theirs = (median(times) * 1e3 for times in zip(*pairs, strict=True))
    click.echo(
        f"  {batch:>5}  {ours:>10.3f}  {theirs:>10.3f} {result.ratio:>8.2f} {_LIMIT:>8.2f}  "
        f"{'equal' if equal else 'DIFFERENT'}{'' if result.holds else '   <- over its limit'}"
    )
    return result


def _block(engine: ArEngine) -> float:
    started = time.perf_counter()
    for _ in range(_BLOCK):
        engine.step()
    return (time.perf_counter() - started) / _BLOCK

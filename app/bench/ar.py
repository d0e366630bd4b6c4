"""`planpaint bench ar`: the AR engine's decode step next to transformers' `generate`, same weights, same tokens."""

import json
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import click
import torch
from transformers.utils import logging as transformers_logging

from app.ar.condition import ImageTokenizer
from app.ar.engine import ArEngine
from app.ar.graphs import Graph
from app.ar.model import Decoder
from app.ar.prompt import PromptEncoder
from app.ar.runner import Runner
from app.ar.weights import Weights
from app.bench import machine, parallel, traffic
from app.bench.duel import SIZE, duel
from app.bench.models import Model, mid, small
from app.checkpoint import Checkpoint

BATCHES = (1, 4, 8, 16, 32)


@dataclass(frozen=True, slots=True)
class Plan:
    """How much of a model is measured, and the least ratio it must reach, by batch."""

    blocks: int
    block: int
    warm_up: int
    limits: dict[int, float]


#: 2.64 is what a dedicated AR server gains over generate in the table published for GLM-Image on accelerators.
SMALL = Plan(blocks=16, block=16, warm_up=2, limits={1: 3.0} | dict.fromkeys((4, 8, 16, 32), 2.64))
#: All the time is in reading weights, or for many rows in multiplying: both sides can only be as fast as the machine.
MID = Plan(blocks=11, block=2, warm_up=1, limits=dict.fromkeys(BATCHES, 1.0))


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the result."""

    model: str
    batch: int
    ratio: float
    limit: float
    ms_per_step: float
    generate_ms_per_step: float
    tokens_equal: bool
    graph: str
    gb_per_s: float
    copy_gb_per_s: float

    @property
    def holds(self) -> bool:
        return self.tokens_equal and self.ratio >= self.limit


def run(as_json: bool) -> int:
    """Measure and print; 0 when every figure reaches its limit with equal tokens, else 1."""
    transformers_logging.disable_progress_bar()
    for line in machine.conditions():
        click.echo(line)
    copy = machine.copy_gb_per_s()
    click.echo(
        f"settings  {torch.get_num_threads()} threads, float32, greedy, {SIZE}; blocks of both by turns inside one "
        f"run, median of their ratios; a memory copy reads and writes {copy:.1f} GB/s"
    )
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Checkpoint(Path(folder) / "small")
        first = small(checkpoint)
        rows = _rows(first, "compile", SMALL, copy)
        rows += _rows(mid(first.processor), "auto", MID, copy)
        tensor_parallel = parallel.measure(checkpoint)
        late = traffic.late_arrival(traffic.load(checkpoint))
        poisson = traffic.poisson(lambda: traffic.load(checkpoint))
    if as_json:
        result = {
            "rows": [asdict(row) for row in rows],
            "tp2_step_ratio": tensor_parallel.ratio,
            "tp2_tokens_equal": tensor_parallel.tokens_equal,
            "late_arrival_steps": late.steps,
            "late_arrival": asdict(late),
            "poisson": asdict(poisson),
        }
        click.echo(json.dumps(result))
    hold = [*(row.holds for row in rows), tensor_parallel.holds, late.holds, poisson.holds]
    return 0 if all(hold) else 1


def engine_of(model: Model, graph: Graph) -> ArEngine:
    """An engine on the model's own weights, on a CPU."""
    weights, device, dtype = Weights.of(model.reference), torch.device("cpu"), torch.float32
    runner = Runner(
        Decoder(weights, device, dtype),
        slots=max(BATCHES),
        max_prompt_tokens=128,
        max_pixels=SIZE.pixels,
        graph=graph,
    )
    return ArEngine(
        runner,
        PromptEncoder(model.processor),
        ImageTokenizer(weights, device, dtype),
        max_prompt_tokens=128,
        max_pixels=SIZE.pixels,
        prefill_chunk=max(BATCHES) * 128,  # all rows start at one step, as those of generate
    )


def _rows(model: Model, graph: Graph, plan: Plan, copy: float) -> list[Row]:
    engine = engine_of(model, graph)
    click.echo(
        f"\n{model.name}: {model.description}, graph={engine.graph}; "
        f"warm-up {plan.warm_up} x {plan.block} steps a row, then {plan.blocks} blocks of {plan.block} steps"
    )
    click.echo("  batch  generate ms     ours ms    ratio    limit   weights + KV GB/s  tokens")
    return [_row(model, engine, plan, batch, copy) for batch in BATCHES]


def _row(model: Model, engine: ArEngine, plan: Plan, batch: int, copy: float) -> Row:
    blocks = duel(model, engine, batch=batch, blocks=plan.blocks, block=plan.block, warm_up=plan.warm_up)
    seconds = median(blocks.ours)
    row = Row(
        model=model.name,
        batch=batch,
        ratio=round(blocks.ratio, 3),
        limit=plan.limits[batch],
        ms_per_step=round(seconds * 1e3, 3),
        generate_ms_per_step=round(median(blocks.theirs) * 1e3, 3),
        tokens_equal=blocks.tokens_equal,
        graph=engine.graph,
        gb_per_s=round(engine.bytes_per_step(batch, blocks.positions) / seconds / 1e9, 2),
        copy_gb_per_s=round(copy, 2),
    )
    click.echo(
        f"  {batch:>5}  {row.generate_ms_per_step:>11.3f} {row.ms_per_step:>11.3f} {row.ratio:>8.2f} {row.limit:>8.2f} "
        f"{row.gb_per_s:>9.2f} of {copy:>5.1f}  {'equal' if row.tokens_equal else 'DIFFERENT'}"
        f"{'' if row.holds else '   <- below its limit'}"
    )
    return row

"""`planpaint bench dit`: the DiT engine next to the reference pipeline, to a bare loop, and to itself on many ranks."""

import json
import logging
import tempfile
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import click
import numpy as np
import structlog
import torch

from app.bench import groups, machine, reference, soak, worker_time
from app.bench.requests import blank, edited, planned
from app.bench.workshop import Workshop
from app.checkpoint import DEMO, Checkpoint
from app.dit.engine import PLAIN, DitEngine, Options
from app.dit.glyphs import GlyphEncoder
from app.dit.parallel import Layout
from app.dit.request import PaintRequest
from app.domain.sizes import Size
from app.tiny_checkpoint import make

SIZES = (Size(256, 256), Size(384, 256), Size(500, 300), Size(512, 512))
#: Of the condition images of edits.
IMAGES = (Size(256, 256), Size(128, 160))
#: A step of this size takes longer than a heartbeat's quarter of a second.
LONG = Size(1024, 1024)
STEPS, FEW = 12, 4
#: A number of glyph tokens that no group divides.
GLYPHS = 'a sign that says "HI!!"'
LAYOUTS = {"sp2": Layout(sp=2), "sp4": Layout(sp=4), "cfg": Layout(cfg_parallel=True), "both": Layout(2, True)}
STEP_CACHES = ("first-block:0.05", "first-block:0.1", "first-block:0.2")
#: Kilobytes a picture; one that is kept would be 48 KB of pixels alone.
GROWTH_LIMIT_KB = 4.0
SOAK = 500, 200


class _Report:
    """Prints each figure beside its limit, and remembers whether all of them hold."""

    def __init__(self) -> None:
        self.holds = True
        self.values: dict[str, Any] = {}

    def line(self, text: str) -> None:
        click.echo(text)

    def figure(self, name: str, value: float, limit: float, *, at_least: bool = False) -> None:
        holds = value >= limit if at_least else value <= limit
        self.holds &= holds
        self.values[name] = value
        sign = ">=" if at_least else "<="
        click.echo(f"  {name:<34} {value:>10.4g}   limit {sign} {limit:g}{'' if holds else '   <- missed'}")


def run(as_json: bool) -> int:
    """Measure and print; 0 when every figure reaches its limit, else 1."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    report = _Report()
    checkpoint = Checkpoint(DEMO)
    for line in machine.conditions():
        report.line(line)
    report.line(
        f"settings  {torch.get_num_threads()} threads, float32, guidance 1.5, demo checkpoint, plans by the AR engine; "
        "warm-up is the engine's own; times are medians of blocks by turns inside this run"
    )
    requests = planned(checkpoint, SIZES, steps=STEPS)
    engine = _engine(checkpoint)
    pipeline = reference.load(checkpoint)
    with tempfile.TemporaryDirectory() as folder, Workshop() as workshop:
        tiny = Checkpoint(Path(folder) / "tiny")
        make(tiny.folder)
        _parity(report, engine, pipeline, requests, checkpoint)
        _speed(report, engine, pipeline, workshop, requests[0])
        _shares(report, engine, pipeline, workshop, requests)
        _cancel(report, engine, workshop)
        _memory(report, _engine(tiny), workshop)
        small = _Side(tiny, _engine(tiny), _group([blank(size, steps=FEW) for size in SIZES], tiny))
        _ranks(report, _Side(checkpoint, engine, _group(requests, checkpoint)), small)
        _options(report, checkpoint, engine, requests[0])
    if as_json:
        click.echo(json.dumps(report.values))
    return 0 if report.holds else 1


def _engine(checkpoint: Checkpoint, options: Options = PLAIN) -> DitEngine:
    engine = DitEngine.load(checkpoint, device=torch.device("cpu"), dtype=torch.float32, options=options)
    engine.warm_up()
    return engine


def _parity(
    report: _Report,
    engine: DitEngine,
    pipeline: reference.Pipeline,
    requests: list[PaintRequest],
    checkpoint: Checkpoint,
) -> None:
    report.line(f"\nparity with GlmImagePipeline given the same ids and seed, {FEW} steps, largest difference of 255")
    cases = [(str(request.size), request) for request in requests]
    cases += [(f"256x256, {n} image(s), ids by shim", edited(requests[0], IMAGES[:n], checkpoint)) for n in (1, 2)]
    worst = 0
    for name, request in cases:
        few = replace(request, steps=FEW)
        difference = np.abs(_paint(engine, few).astype(int) - reference.picture(pipeline, few)).max()
        report.line(f"  {name:<34} {difference:>10}")
        worst = max(worst, int(difference))
    report.figure("max_abs_diff", worst, 1)


def _speed(
    report: _Report, engine: DitEngine, pipeline: reference.Pipeline, workshop: Workshop, request: PaintRequest
) -> None:
    report.line(f"\na worker on Valkey and SeaweedFS and a bare loop, {request.size}, {STEPS} steps, 3 x 8 images each")
    blocks = worker_time.duel(engine, workshop, reference.BareLoop(pipeline, request), request, blocks=3, images=8)
    report.line(f"  bare {median(blocks.bare):.3f} s an image, worker {median(blocks.worker):.3f} s")
    report.figure("wall_over_bare", blocks.wall_over_bare, 1.05)
    report.line("  throughput with 300 ms added to every call of S3 (in front of the client) over throughput without")
    report.figure("slow_s3_ratio", blocks.slow_s3_ratio, 0.95, at_least=True)


def _shares(
    report: _Report, engine: DitEngine, pipeline: reference.Pipeline, workshop: Workshop, requests: list[PaintRequest]
) -> None:
    report.line(f"\nshares of time, {STEPS} steps; a worker encodes and uploads beside the next image")
    report.line("  size      " + " ".join(f"{part:>8}" for part in worker_time.PARTS))
    glyphs = GlyphEncoder(pipeline.tokenizer, pipeline.text_encoder)
    report.values["shares"] = {}
    for request in requests:
        shares = worker_time.shares(engine, glyphs, workshop, request)
        report.values["shares"][str(request.size)] = shares
        report.line(f"  {request.size!s:<10}" + " ".join(f"{share:>8.1%}" for share in shares.values()))


def _cancel(report: _Report, engine: DitEngine, workshop: Workshop) -> None:
    report.line(f"\ncancelled in the store as a step begins, {LONG}: steps that still end")
    steps, seconds = worker_time.cancel(engine, workshop, blank(LONG, steps=6))
    report.figure("cancel_steps", steps, 1)
    report.line(f"  the device is free after {seconds * 1e3:.0f} ms")


def _memory(report: _Report, engine: DitEngine, workshop: Workshop) -> None:
    report.line(f"\nmemory of a worker over {SOAK[0]} images and {SOAK[1]} cancels, tiny checkpoint, KB an image")
    request = blank(Size(128, 128), steps=1)
    report.figure(
        "memory_growth_kb", soak.growth_kb(engine, workshop, request, images=SOAK[0], cancels=SOAK[1]), GROWTH_LIMIT_KB
    )


@dataclass(frozen=True, slots=True)
class _Side:
    """A checkpoint, one process's engine of it, and the pictures that it and a group denoise."""

    checkpoint: Checkpoint
    engine: DitEngine
    requests: list[PaintRequest]


def _ranks(report: _Report, demo: _Side, tiny: _Side) -> None:
    report.line(
        f"\nranks over gloo against one process, {FEW} steps, {len(SIZES)} sizes and edits of 1 and 2 images: largest "
        "difference of latents\n(sp4 on the tiny checkpoint, which has 12 heads, the others on the demo's 2)"
    )
    differences = {}
    for name, layout in LAYOUTS.items():
        side = tiny if name == "sp4" else demo
        shares = groups.denoise(side.checkpoint, side.requests, Options(layout=layout))
        alone = [side.engine.denoise(request, lambda step: None).numpy() for request in side.requests]
        differences[name] = max(
            float(np.abs(latents - one).max())
            for share in shares
            for latents, one in zip(share.latents, alone, strict=True)
            if latents is not None
        )
        report.figure(name, differences[name], 1e-4)
        largest = side.requests[0]
        whole = groups.peak_bytes(partial(side.engine.denoise, largest, lambda step: None))
        peaks = ", ".join(f"{share.peak_bytes / 1e6:.2f}" for share in shares)
        report.line(f"    MB of activations at the peak, {largest.size}, by rank: {peaks}; alone {whole / 1e6:.2f}")
        report.values.pop(name)
    report.values["sp_max_diff"] = differences


def _group(requests: list[PaintRequest], checkpoint: Checkpoint) -> list[PaintRequest]:
    """The largest first: it is the one whose memory is measured."""
    pictures = [replace(request, steps=FEW, prompt=GLYPHS) for request in reversed(requests)]
    return pictures + [edited(pictures[-1], IMAGES[:n], checkpoint) for n in (1, 2)]


def _options(report: _Report, checkpoint: Checkpoint, engine: DitEngine, request: PaintRequest) -> None:
    first = replace(request, steps=30)
    report.line(f"\noptions, {first.size}, {first.steps} steps, next to the plain engine; differences of 255")
    report.values["options"] = {}
    cases = {f"step cache {setting}": Options(step_cache=setting) for setting in STEP_CACHES}
    cases["compile"] = Options(compile=True)
    for name, options in cases.items():
        other, start_s = worker_time.timed(partial(_engine, checkpoint, options))
        plain_s, other_s = [], []
        for _ in range(3):
            plain, seconds = worker_time.timed(partial(_paint, engine, first))
            plain_s.append(seconds)
            painted, seconds = worker_time.timed(partial(_paint, other, first))
            other_s.append(seconds)
        speed_up = median(one / two for one, two in zip(plain_s, other_s, strict=True))
        difference = np.abs(plain.astype(int) - painted)
        report.line(
            f"  {name:<28} {speed_up:>5.2f}x   difference mean {difference.mean():.3f}, largest {difference.max()}; "
            f"start with warm-up {start_s:.1f} s"
        )
        report.values["options"][name] = {"speed_up": speed_up, "mean_diff": float(difference.mean())}


def _paint(engine: DitEngine, request: PaintRequest) -> Any:  # noqa: ANN401
    return engine.paint(request, lambda step: None)

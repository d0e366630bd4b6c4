"""`planpaint bench serve`: the whole service by HTTP, next to the reference pipeline and its own limit, in one run."""

import json
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import islice, permutations
from pathlib import Path
from typing import Any

import click
from transformers.utils import logging as transformers_logging

from app import devices
from app.ar.graphs import Graph
from app.bench import machine, monolith
from app.bench.cores import core_seconds
from app.checkpoint import DEMO, Checkpoint
from app.domain.sizes import Size
from app.launcher.ports import free_ports
from app.launcher.stack import Stack, direct

SIZE, STEPS, GUIDANCE = Size(256, 256), 12, 1.5
IMAGES = 32
#: Two cores: one DiT worker for each, one thread a worker. The AR worker shares them; it has a tenth of the work.
CORES, DIT_WORKERS, SLOTS = 2, 2, 16
GRAPH: Graph = "auto"
#: Rows of the result: what it is called, and the least that it must reach.
LIMITS = {"monolith_ratio": 4.0, "list8_ratio": 1.3, "limit_share": 0.85}
#: Images of the monolith that are timed, and lists of 8; warm-up before each: one image, and one list.
_SINGLES, _LISTS, _LIST = 6, 3, 8
_GIVE_UP_S = 300.0


@dataclass(frozen=True, slots=True)
class Served:
    """Pictures by second from the first POST to the last commit; core seconds by image and role over that time."""

    images_per_s: float
    cores: dict[str, float]


@dataclass(frozen=True, slots=True)
class Result:
    """Everything that was measured; the ratios are those of `LIMITS`."""

    monolith_ratio: float
    list8_ratio: float
    limit_share: float
    service_images_per_s: float
    monolith_images_per_s: float
    list8_images_per_s: float
    limit_images_per_s: float
    ar_core_s: float
    dit_core_s: float
    cores: dict[str, float]


def run(as_json: bool) -> int:
    """Measure and print; 0 when every ratio reaches its limit, else 1."""
    transformers_logging.disable_progress_bar()
    for line in machine.conditions():
        click.echo(line)
    click.echo(
        f"settings  demo checkpoint, float32, {SIZE}, {STEPS} steps, guidance {GUIDANCE}; the service: 1 AR worker of "
        f"{SLOTS} slots, graph {GRAPH}, {DIT_WORKERS} DiT workers, one thread each; the reference: {CORES} threads"
    )
    prompts = _prompts(IMAGES)
    # Service first and bare loops last: each has the machine to itself.
    served = _serve(prompts)
    devices.limit_threads(CORES)
    single, lists = _reference(prompts)
    devices.limit_threads(1)
    ar, dit = _bare(prompts)
    limit = CORES / (ar + dit)
    result = Result(
        monolith_ratio=round(served.images_per_s / single, 3),
        list8_ratio=round(served.images_per_s / lists, 3),
        limit_share=round(served.images_per_s / limit, 3),
        service_images_per_s=round(served.images_per_s, 3),
        monolith_images_per_s=round(single, 3),
        list8_images_per_s=round(lists, 3),
        limit_images_per_s=round(limit, 3),
        ar_core_s=round(ar, 4),
        dit_core_s=round(dit, 4),
        cores={role: round(seconds, 4) for role, seconds in served.cores.items()},
    )
    _show(result)
    if as_json:
        click.echo(json.dumps(asdict(result)))
    return 0 if all(getattr(result, name) >= least for name, least in LIMITS.items()) else 1


def _show(result: Result) -> None:
    rows = {
        "monolith_ratio": ("the pipeline, one request at a time", result.monolith_images_per_s),
        "list8_ratio": ("the pipeline, lists of 8 prompts", result.list8_images_per_s),
        "limit_share": (f"{CORES} cores over bare AR + DiT core seconds", result.limit_images_per_s),
    }
    click.echo(f"\n{IMAGES} jobs of one image at once: {result.service_images_per_s:.2f} images/s")
    click.echo(f"  {'next to':42}  images/s    ratio    limit")
    for name, (what, speed) in rows.items():
        ratio, least = getattr(result, name), LIMITS[name]
        missed = "" if ratio >= least else "   <- below its limit"
        click.echo(f"  {what:42}  {speed:>8.2f} {ratio:>8.2f} {least:>8.2f}{missed}")
    click.echo(f"  core seconds an image, bare: AR {result.ar_core_s:.3f}, DiT {result.dit_core_s:.3f}")
    spent = ", ".join(f"{role} {seconds:.3f}" for role, seconds in result.cores.items())
    click.echo(f"  core seconds an image, the service: {spent}; load afterwards {machine.load():.1f}")


def _serve(prompts: list[str]) -> Served:
    overrides = {
        "PLANPAINT_API_PORT": str(free_ports(1)[0]),
        "PLANPAINT_CHECKPOINT": str(DEMO),
        "PLANPAINT_DEVICE": "cpu",
        "PLANPAINT_THREADS": "1",
        "PLANPAINT_AR_SLOTS": str(SLOTS),
        "PLANPAINT_GRAPH": GRAPH,
        "PLANPAINT_MAX_PIXELS": str(SIZE.pixels),
        "PLANPAINT_LOG_LEVEL": "warning",
    }
    with (
        tempfile.TemporaryDirectory(prefix="planpaint-bench-") as data,
        Stack(Path(data), overrides=overrides, dit_workers=DIT_WORKERS, say=click.echo) as stack,
    ):
        _ask(stack, prompts[: 2 * DIT_WORKERS])  # warm-up: kernels, connections, the first upload
        before = core_seconds(stack.children)
        started = time.time()
        ended = _ask(stack, prompts)
        after = core_seconds(stack.children)
    spent = {role: (after[role] - before[role]) / len(prompts) for role in after}
    return Served(len(prompts) / (ended - started), spent)


def _ask(stack: Stack, prompts: list[str]) -> float:
    """Submit all at once, wait for all; the time of the last commit. Raises RuntimeError when one failed."""
    session = direct()

    def submit(prompt: str) -> str:
        body = {"prompt": prompt, "size": str(SIZE), "steps": STEPS, "guidance_scale": GUIDANCE}
        answer = session.post(f"{stack.api_url}/v1/jobs", json=body, timeout=30)
        answer.raise_for_status()
        return str(answer.json()["id"])

    with ThreadPoolExecutor(8) as pool:
        ids = list(pool.map(submit, prompts))
    deadline = time.monotonic() + _GIVE_UP_S
    jobs = []
    for job_id in ids:  # in turn, so that looking costs the service nothing
        while not (job := session.get(f"{stack.api_url}/v1/jobs/{job_id}", timeout=30).json())["completed_at"]:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{job_id} was not done within {_GIVE_UP_S:g} s")
            time.sleep(0.2)
        jobs.append(job)
    if failed := [job["id"] for job in jobs if job["status"] != "succeeded"]:
        raise RuntimeError(f"{len(failed)} jobs did not succeed, the first is {failed[0]}")
    return max(_ended(job) for job in jobs)


def _ended(job: dict[str, Any]) -> float:
    return datetime.fromisoformat(job["completed_at"]).timestamp()


def _reference(prompts: list[str]) -> tuple[float, float]:
    """Pictures by second of the pipeline, one by one and in lists."""
    pipeline = monolith.pipeline(Checkpoint(DEMO), SIZE, STEPS, GUIDANCE)
    pipeline(prompts[:1])
    one = monolith.images_per_s(pipeline, prompts[:_SINGLES], batch=1)
    pipeline(prompts[:_LIST])
    return one, monolith.images_per_s(pipeline, prompts[: _LISTS * _LIST], batch=_LIST)


def _bare(prompts: list[str]) -> tuple[float, float]:
    """Core seconds by image of AR at the batch that the service used, and of DiT."""
    checkpoint = Checkpoint(DEMO)
    ar = monolith.ar_engine(checkpoint, SIZE, slots=SLOTS, graph=GRAPH)
    monolith.plan_all(ar, prompts[:SLOTS], SIZE)
    planning, plans = monolith.plan_all(ar, prompts, SIZE)
    dit = monolith.dit_engine(checkpoint)
    monolith.paint_all(dit, prompts[:2], plans[:2], SIZE, STEPS, GUIDANCE)
    return planning, monolith.paint_all(dit, prompts[:_LIST], plans[:_LIST], SIZE, STEPS, GUIDANCE)


def _prompts(count: int) -> list[str]:
    """Different ones, of the kind that the demo checkpoint draws."""
    colours = ("red", "green", "blue", "yellow", "purple", "white", "black")
    shapes = ("circle", "square", "triangle", "star", "ring", "cross")
    pairs = islice(permutations(colours, 2), count)
    return [f"a {one} {shapes[n % len(shapes)]} on a {two} background" for n, (one, two) in enumerate(pairs)]

"""`planpaint demo`: the whole stack for a minute, six jobs through its front door, eight pictures on disk."""

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from PIL import Image
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Column, Table

from app.launcher.ports import free_ports
from app.launcher.stack import Stack, direct
from app.sheet import sheet

#: What the demo checkpoint draws well. Sizes are WIDTHxHEIGHT.
JOBS: tuple[dict[str, Any], ...] = (
    {"prompt": "a red circle on a blue background", "size": "256x256", "seed": 1},
    {"prompt": "a yellow star on a purple background", "size": "256x256", "seed": 20, "n": 3},
    {"prompt": "a green square to the left of a white circle on a black background", "size": "256x256", "seed": 3},
    {"prompt": "a red circle above a blue square on a white background", "size": "256x384", "seed": 4},
    {"prompt": "a white ring to the right of an orange triangle on a black background", "size": "384x256", "seed": 5},
    {"prompt": "a purple triangle on a yellow background", "size": "320x320", "seed": 6},
)
STEPS = 12
#: The demo gives up after this long, seconds.
LIMIT_S = 300.0


@dataclass(frozen=True, slots=True)
class Picture:
    """A finished image of the demo, and the row of the table that it makes."""

    job_id: str
    prompt: str
    image: dict[str, Any]
    file: Path


def run(out: Path) -> bool:
    """Returns whether every picture is there."""
    console = Console()
    started = time.monotonic()
    out.mkdir(parents=True, exist_ok=True)
    overrides = {"PLANPAINT_API_PORT": str(free_ports(1)[0])}
    with (
        TemporaryDirectory(prefix="planpaint-demo-") as data,
        Stack(Path(data), overrides=overrides, dit_workers=1, say=lambda line: console.print(line)) as stack,
    ):
        console.print(f"the stack is ready after {time.monotonic() - started:.1f} s: {stack.api_url}")
        jobs = [_submit(stack.api_url, request) for request in JOBS]
        jobs = _watch(console, stack, [job["id"] for job in jobs])
        pictures = [picture for number, job in enumerate(jobs, 1) for picture in _download(job, out, number)]
    console.print(_table(pictures))
    wanted: int = sum(request.get("n", 1) for request in JOBS)
    if pictures:
        _contact_sheet(pictures).save(out / "sheet.png")
        console.print(f"contact sheet: {out / 'sheet.png'}")
    for job in jobs:
        for image in job["images"]:
            if image["error"]:
                print(f"{job['id']} image {image['index']}: {image['error']}", file=sys.stderr)  # noqa: T201
    console.print(f"{len(pictures)} of {wanted} pictures in {time.monotonic() - started:.1f} s")
    return len(pictures) == wanted


def _submit(url: str, request: dict[str, Any]) -> dict[str, Any]:
    answer = direct().post(f"{url}/v1/jobs", json=request | {"steps": STEPS}, timeout=10)
    answer.raise_for_status()
    job: dict[str, Any] = answer.json()
    return job


def _watch(console: Console, stack: Stack, ids: list[str]) -> list[dict[str, Any]]:
    """Poll until every job has ended, with a bar for each image."""
    bars: dict[tuple[str, int], TaskID] = {}
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[doing]}"), TimeElapsedColumn())
    deadline = time.monotonic() + LIMIT_S
    with Progress(*columns, console=console) as progress:
        while True:
            jobs = [direct().get(f"{stack.api_url}/v1/jobs/{job_id}", timeout=10).json() for job_id in ids]
            for job in jobs:
                for image in job["images"]:
                    _show(progress, bars, job, image)
            if all(job["completed_at"] for job in jobs) or time.monotonic() > deadline:
                return jobs
            stack.revive()
            time.sleep(0.1)


def _show(progress: Progress, bars: dict[tuple[str, int], TaskID], job: dict[str, Any], image: dict[str, Any]) -> None:
    key = (job["id"], image["index"])
    if key not in bars:
        prompt = job["parameters"]["prompt"]
        bars[key] = progress.add_task(f"{prompt[:38]:38} {job['parameters']['size']:>8}", total=STEPS, doing="queued")
    doing = image["status"]
    if doing == "running":
        doing = "planning" if image["stage"] == "ar" else f"painting {image['step']}/{image['steps']}"
    done = image["status"] == "succeeded"
    progress.update(bars[key], completed=STEPS if done else image["step"], doing=doing)
    if done or image["status"] in ("failed", "canceled"):
        progress.stop_task(bars[key])


def _download(job: dict[str, Any], out: Path, number: int) -> list[Picture]:
    pictures = []
    for image in job["images"]:
        if image["status"] == "succeeded":
            answer = direct().get(image["content_url"], timeout=10)
            answer.raise_for_status()
            # The same names each time, so that a second run replaces the first one's pictures and nothing else.
            file = out / f"job-{number}-image-{image['index']}.png"
            file.write_bytes(answer.content)
            pictures.append(Picture(job["id"], job["parameters"]["prompt"], image, file))
    return pictures


def _table(pictures: list[Picture]) -> Table:
    table = Table("job", "image", "size", "seed", "AR s", "DiT s", "total s", Column("file", overflow="fold"))
    for picture in pictures:
        image, timings = picture.image, picture.image["timings"]
        table.add_row(
            picture.job_id[4:12],
            str(image["index"]),
            f"{image['width']}x{image['height']}",
            str(image["seed"]),
            *(f"{timings[name]:.2f}" for name in ("ar_s", "dit_s", "total_s")),
            str(picture.file),
        )
    return table


def _contact_sheet(pictures: list[Picture]) -> Image.Image:
    shown = []
    for picture in pictures:
        with Image.open(picture.file) as image:
            shown.append((picture.prompt, image.convert("RGB")))
    return sheet(shown, columns=4)

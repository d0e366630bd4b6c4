"""Where a DiT worker's time goes, next to a bare loop in the same run."""

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from app.bench.reference import BareLoop
from app.bench.workshop import Workshop
from app.dit.encode import encode
from app.dit.engine import DitEngine
from app.dit.glyphs import GlyphEncoder
from app.dit.request import PaintRequest
from app.domain.job import Job
from app.domain.messages import ImageRef

PARTS = ("text", "denoise", "decode", "encode", "upload")


@dataclass(slots=True)
class Blocks:
    """Seconds a picture of a worker and of a bare loop, and pictures a second by commits; neighbours have one index."""

    worker: list[float] = field(default_factory=list)
    bare: list[float] = field(default_factory=list)
    rate: list[float] = field(default_factory=list)
    slow_rate: list[float] = field(default_factory=list)

    @property
    def wall_over_bare(self) -> float:
        return median(worker / bare for worker, bare in zip(self.worker, self.bare, strict=True))

    @property
    def slow_s3_ratio(self) -> float:
        return median(slow / rate for slow, rate in zip(self.slow_rate, self.rate, strict=True))


def duel(
    engine: DitEngine, workshop: Workshop, bare: BareLoop, request: PaintRequest, *, blocks: int, images: int
) -> Blocks:
    """A worker, a bare loop, and the worker on slow storage, by turns: other work hits neighbours alike."""
    measured = Blocks()
    workshop.paint(engine, request, 1)  # connections are made
    for _ in range(blocks):
        job, seconds = timed(lambda: workshop.paint(engine, request, images))
        measured.worker.append(seconds / images)
        measured.rate.append(_rate(job))
        measured.bare.append(timed(lambda: [bare.run() for _ in range(images)])[1] / images)
        measured.slow_rate.append(_rate(workshop.paint(engine, request, images, slow=True)))
    return measured


def shares(engine: DitEngine, glyphs: GlyphEncoder, workshop: Workshop, request: PaintRequest) -> dict[str, float]:
    """Parts of one picture's work, by `PARTS`; each measured alone, the last two run beside the next picture."""
    with torch.inference_mode():
        text = timed(lambda: glyphs.encode(request.prompt))[1]
    latents, denoise = timed(lambda: engine.denoise(request, lambda step: None))
    pixels, decode = timed(lambda: engine.decode(latents, request.size))
    (data, content_type), encoding = timed(lambda: encode(pixels, "png"))
    digest = hashlib.sha256(data).digest()
    key = f"bench/{request.size}.png"
    upload = timed(lambda: workshop.blobs.put(key, data, content_type, digest))[1]
    seconds = (text, denoise - text, decode, encoding, upload)
    return {part: share / sum(seconds) for part, share in zip(PARTS, seconds, strict=True)}


def cancel(engine: DitEngine, workshop: Workshop, request: PaintRequest) -> tuple[int, float]:
    """Cancel a picture in the store as its second step begins: steps that still ended, seconds until all is free.

    A step must take longer than the quarter of a second at which a worker's heartbeat looks.
    """
    watched = _Watched(engine)
    job_id = workshop.submit(request, 1)
    watched.after_first_step = lambda: workshop.store.cancel(ImageRef(job_id, 0))
    workshop.work(watched, job_id, 1)
    return watched.steps, watched.freed_at - watched.cancelled_at


class _Watched(DitEngine):
    """An engine that does something after the first step, and counts the steps and the time from then on."""

    def __init__(self, engine: DitEngine) -> None:
        self._engine = engine
        self.after_first_step: Callable[[], Any] = lambda: None
        self.steps = 0
        self.cancelled_at = self.freed_at = 0.0

    def paint(self, request: PaintRequest, on_step: Callable[[int], None]) -> NDArray[np.uint8]:
        def counted(step: int) -> None:
            if step > 1:
                self.steps += 1
            on_step(step)
            if step == 1:
                self.after_first_step()
                self.cancelled_at = time.perf_counter()

        try:
            return self._engine.paint(request, counted)
        finally:
            self.freed_at = time.perf_counter()


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    started = time.perf_counter()
    return call(), time.perf_counter() - started


def _rate(job: Job) -> float:
    """Pictures a second, from the first commit to the last: what is under way at either end is not counted."""
    times = sorted(image.completed_at or 0 for image in job.images)
    return (len(times) - 1) * 1000 / (times[-1] - times[0])

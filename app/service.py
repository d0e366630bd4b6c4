"""The use cases: what the API, the workers and the sweeper do to jobs, in terms of the store and the DiT queue."""

import hashlib
import secrets
from dataclasses import dataclass
from typing import Any

import structlog

from app.blobs import BlobStore
from app.domain.job import SEED_LIMIT, Job, Parameters, Priority, new_job_id
from app.domain.messages import DitTask, ImageRef, Lease
from app.domain.prior import Plan, PriorTokens
from app.domain.states import ImageState
from app.errors import ImageFailed, NotFound, RefusedInput, Unavailable
from app.queues.dit_queue import DitQueue
from app.store.jobs import JobStore

log = structlog.get_logger(__name__)

#: Images that one sweep looks at.
_SWEEP_LIMIT = 500


@dataclass(frozen=True, slots=True)
class Submission:
    """A checked request. `pictures`: condition images as PNG. `reused`: the image whose plan it repaints."""

    parameters: Parameters
    priority: Priority
    webhook_url: str | None
    metadata: dict[str, Any]
    pictures: tuple[bytes, ...] = ()
    reused: ImageRef | None = None


def draw_seed() -> int:
    return secrets.randbelow(SEED_LIMIT)


class Intake:
    """What callers do."""

    def __init__(self, store: JobStore, blobs: BlobStore) -> None:
        self._store = store
        self._blobs = blobs

    def submit(self, submission: Submission) -> Job:
        job_id = new_job_id()
        reused, inputs = self._reused(submission)
        # Before the record: a worker may take the image at once.
        inputs += tuple(self._keep(job_id, number, data) for number, data in enumerate(submission.pictures))
        self._store.submit(
            job_id,
            submission.parameters,
            priority=submission.priority,
            webhook_url=submission.webhook_url,
            metadata=submission.metadata,
            inputs=inputs,
            reused=reused,
        )
        return self._store.get(job_id)

    def _keep(self, job_id: str, number: int, data: bytes) -> str:
        key = f"jobs/{job_id}/inputs/{number}.png"
        return self._blobs.put(key, data, "image/png", hashlib.sha256(data).digest()).key

    def _reused(self, submission: Submission) -> tuple[tuple[ImageRef, Plan] | None, tuple[str, ...]]:
        """The plan to repaint and the condition images that it was made with."""
        if submission.reused is None:
            return None, ()
        plan = self._store.plan(submission.reused)
        if plan is None:
            raise RefusedInput("reuse_prior", "this image has no prior tokens yet")
        grid = plan.prior.grid
        if grid != submission.parameters.size.large_grid:
            raise RefusedInput("size", f"must have a grid of {grid.height}x{grid.width} cells to reuse them")
        return (submission.reused, plan), self._store.get(submission.reused.job_id).inputs

    def get(self, job_id: str) -> Job:
        return self._store.get(job_id)

    def cancel(self, job_id: str) -> Job:
        """Cancel every image that has not ended; those that have stay as they are. May be repeated."""
        job = self._store.get(job_id)
        for image in job.images:
            self._store.cancel(ImageRef(job_id, image.index))
        return self._store.get(job_id)

    def prior(self, ref: ImageRef) -> PriorTokens | None:
        """The prior tokens of an image; None while there are none."""
        plan = self._store.plan(ref)
        return plan.prior if plan else None


class Stages:
    """What workers and the sweeper do. A hint that cannot be published is left to the sweeper."""

    def __init__(self, store: JobStore, dit_queue: DitQueue) -> None:
        self._store = store
        self._dit_queue = dit_queue

    def hand_over(self, lease: Lease, plan: Plan) -> None:
        """AR -> DiT. Raises LostLease."""
        self._store.hand_over(lease, plan)
        self._hint_dit(lease.ref)

    def give_up(self, lease: Lease, failure: ImageFailed) -> ImageState | None:
        """End a failed attempt: for good, or for another try while attempts are left."""
        if failure.retryable:
            state = self._store.retry(lease, failure.code, failure.message, once=failure.once)
        else:
            state = self._store.fail(lease, failure.code, failure.message)
        if state is ImageState.PLANNED:
            self._hint_dit(lease.ref)
        return state

    def release(self, lease: Lease) -> None:
        """Give unfinished work back when stopping, so that another worker takes it at once."""
        if self._store.release(lease) is ImageState.PLANNED:
            self._hint_dit(lease.ref)

    def sweep(self) -> int:
        """Put right every image whose lease lapsed or whose hint may be lost; returns how many were moved."""
        moved = 0
        for ref in self._store.due(_SWEEP_LIMIT):
            action, state = self._store.sweep(ref)
            if action in ("retried", "failed"):
                log.warning("sweep", image=str(ref), action=action, state=state)
                moved += 1
            if state is ImageState.PLANNED and action in ("retried", "hinted"):
                self._hint_dit(ref)
        return moved

    def _hint_dit(self, ref: ImageRef) -> None:
        try:
            self._dit_queue.publish(DitTask(ref.job_id, ref.index))
        except Unavailable as error:
            log.warning("dit_hint_not_published", image=str(ref), error=str(error))


def find_image(job: Job, index: int) -> ImageRef:
    """The image of a job; raises NotFound with a sentence for the caller."""
    if not 0 <= index < len(job.images):
        raise NotFound(f"job {job.id} has images 0 to {len(job.images) - 1}, not {index}")
    return ImageRef(job.id, index)

"""The use cases: what the API, the workers and the sweeper do to jobs, in terms of the store and the DiT queue."""

import hashlib
import secrets
import sys
from dataclasses import dataclass, replace
from typing import Any

import structlog

from app import crash_points
from app.blobs import BlobStore
from app.domain.access import NO_LIMITS, Limits, Usage
from app.domain.job import SEED_LIMIT, Image, Job, Parameters, image_seed, new_job_id
from app.domain.messages import DitTask, ImageRef, Lease
from app.domain.prior import Plan, PriorTokens
from app.domain.states import TERMINAL, ImageState
from app.errors import Conflict, ImageFailed, KeyReused, LimitReached, NotFound, QueueFull, RefusedInput, Unavailable
from app.queues.dit_queue import DitQueue
from app.store.answers import Answers
from app.store.epoch import Epoch
from app.store.jobs import IdempotencyKey, JobStore, Submitted, Terms
from app.store.retention import Retention
from app.traces import told, without_secrets

log = structlog.get_logger(__name__)

#: Images that one sweep looks at.
_SWEEP_LIMIT = 500
#: Ended jobs that one sweep removes.
_UPKEEP_LIMIT = 50
#: Pause before objects that could not be removed are tried again, ms.
_EMPTY_AGAIN_MS = 60_000


@dataclass(frozen=True, slots=True)
class Submission:
    """A checked request. `pictures`: condition images as PNG. `reused`: the image whose plan it repaints.

    `limits`: of the owner.
    """

    parameters: Parameters
    terms: Terms
    metadata: dict[str, Any]
    pictures: tuple[bytes, ...] = ()
    reused: ImageRef | None = None
    limits: Limits = NO_LIMITS


@dataclass(frozen=True, slots=True)
class Receipt:
    """A job that was accepted now, or (`repeated`) by an earlier request with the same idempotency key."""

    job: Job
    repeated: bool
    images_ahead: int
    usage: Usage | None = None


def draw_seed() -> int:
    return secrets.randbelow(SEED_LIMIT)


class Intake:
    """What callers do."""

    def __init__(self, store: JobStore, blobs: BlobStore, retention: Retention, answers: Answers, epoch: Epoch) -> None:
        self._store = store
        self._blobs = blobs
        self._epoch = epoch
        self._retention = retention
        self._answers = answers

    def submit(self, submission: Submission, idempotency: IdempotencyKey | None = None) -> Receipt:
        """Queue a job. Ask `repeated` first: it needs no submission, and stores no files again.

        Raises KeyReused; Gone when the key's job has been removed since; LimitReached; QueueFull; DataLost.
        """
        self._epoch.check()
        job_id = new_job_id()
        plan, sources = self._reused(submission)
        if sources or submission.pictures:
            self._retention.reserve(job_id)
        # Before the record: a worker may take the image at once.
        inputs = self._copies(job_id, sources)
        inputs += tuple(self._keep(_input(job_id, number), data) for number, data in enumerate(submission.pictures))
        crash_points.reach("api.before_submit")
        try:
            submitted = self._store.submit(
                job_id,
                submission.parameters,
                submission.terms,
                metadata=submission.metadata,
                inputs=inputs,
                reused=(submission.reused, plan) if submission.reused and plan else None,
                idempotency=idempotency,
                limits=submission.limits,
            )
        except (LimitReached, QueueFull):
            if inputs:
                # Who is over a limit must not fill the storage meanwhile.
                _empty(self._blobs, self._retention, job_id)
            raise
        crash_points.reach("api.after_submit")
        if submitted.repeated:
            return Receipt(self._store.get(submitted.job_id), repeated=True, images_ahead=0)
        job = _fresh(submission, submitted, plan, inputs)
        return Receipt(job, repeated=False, images_ahead=submitted.images_ahead, usage=submitted.usage)

    def repeat(self, ref: ImageRef, times: int) -> Receipt:
        """The request of one image as a new job of its owner, for the `times`-th time: the same seed and parameters.

        A plan that is stored is not made again. Repeated calls give one job. Raises NotFound; Conflict when a condition
        image is gone.
        """
        job = self._store.get(ref.job_id)
        image = job.images[find_image(job, ref.index).index]
        parameters = replace(job.parameters, n=1, seed=image.seed)
        terms = Terms(job.priority, job.webhook_url, job.webhook_events, job.owner, job.ttl_ms)
        planned = image.prior_grid is not None
        try:
            pictures = () if planned else tuple(self._blobs.get(key) for key in job.inputs)
            submission = Submission(parameters, terms, job.metadata, pictures, ref if planned else None)
            # No header can hold such a key, so it is nobody else's.
            key = IdempotencyKey(f"\0repeat {times} of {ref}", str(ref), job.ttl_ms)
            return self.repeated(job.owner, key) or self.submit(submission, key)
        except (ImageFailed, RefusedInput) as refusal:
            raise Conflict(f"{ref} cannot be repeated: {refusal}") from refusal

    def repeated(self, owner: str, idempotency: IdempotencyKey) -> Receipt | None:
        """The job of a key that is known already, also when the same could not be submitted any more.

        None for a new key. Raises KeyReused; Gone when the job has been removed since.
        """
        known = self._answers.known(owner, idempotency.key)
        if known is None:
            return None
        fingerprint, job_id = known
        if fingerprint != idempotency.fingerprint:
            raise KeyReused("this Idempotency-Key came with another request before")
        return Receipt(self._store.get(job_id), repeated=True, images_ahead=0)

    def check(self, submission: Submission) -> None:
        """Raises RefusedInput where `submit` would."""
        self._reused(submission)

    def _copies(self, job_id: str, sources: tuple[str, ...]) -> tuple[str, ...]:
        try:
            return tuple(self._blobs.copy(key, _input(job_id, number)) for number, key in enumerate(sources))
        except ImageFailed as failure:
            raise RefusedInput("reuse_prior", failure.message) from failure

    def _keep(self, key: str, data: bytes) -> str:
        return self._blobs.put(key, data, "image/png", hashlib.sha256(data).digest()).key

    def _reused(self, submission: Submission) -> tuple[Plan | None, tuple[str, ...]]:
        """The plan to repaint and the condition images that it was made with."""
        if submission.reused is None:
            return None, ()
        source = self._store.get(submission.reused.job_id, owner=submission.terms.owner)
        plan = self._store.plan(submission.reused)
        if plan is None:
            raise RefusedInput("reuse_prior", "this image has no prior tokens yet")
        grid = plan.prior.grid
        if grid != submission.parameters.size.large_grid:
            raise RefusedInput("size", f"must have a grid of {grid.height}x{grid.width} cells to reuse them")
        return plan, source.inputs

    def get(self, job_id: str, owner: str) -> Job:
        """A job of this owner. Raises NotFound or Gone."""
        return self._store.get(job_id, owner=owner)

    def cancel(self, job_id: str) -> Job:
        """Cancel every image that has not ended; those that have stay as they are. May be repeated."""
        job = self._store.get(job_id)
        if refs := [ImageRef(job_id, image.index) for image in job.images if image.state not in TERMINAL]:
            self._store.cancel_all(refs)
            job = self._store.get(job_id)
        return job

    def delete(self, job_id: str) -> None:
        """Remove an ended job with its objects. Raises Conflict while it has not ended.

        Objects that cannot be removed now are left to the sweeper.
        """
        if not self._retention.delete(job_id):
            raise Conflict(f"job {job_id} has not ended; cancel it first")
        crash_points.reach("api.after_tombstone")
        _empty(self._blobs, self._retention, job_id)

    def prior(self, ref: ImageRef) -> PriorTokens | None:
        """The prior tokens of an image; None while there are none."""
        plan = self._store.plan(ref)
        return plan.prior if plan else None


def _input(job_id: str, number: int) -> str:
    return f"jobs/{job_id}/inputs/{number}.png"


def _fresh(submission: Submission, submitted: Submitted, plan: Plan | None, inputs: tuple[str, ...]) -> Job:
    """The job as the script has just written it, without another read."""
    parameters, terms = submission.parameters, submission.terms
    state = ImageState.PLANNED if plan else ImageState.QUEUED
    planned_at, grid = (submitted.created_at, plan.prior.grid) if plan else (None, None)
    return Job(
        id=submitted.job_id,
        parameters=parameters,
        created_at=submitted.created_at,
        images=tuple(
            Image(index, state, image_seed(parameters.seed, index), planned_at=planned_at, prior_grid=grid)
            for index in range(parameters.n)
        ),
        priority=terms.priority,
        reused=(submission.reused.job_id, submission.reused.index) if submission.reused else None,
        inputs=inputs,
        webhook_url=terms.webhook_url,
        webhook_events=terms.webhook_events if terms.webhook_url else (),
        metadata=submission.metadata,
        owner=terms.owner,
        ttl_ms=terms.ttl_ms,
        deadline_ms=submitted.deadline_ms,
        version=1,
    )


def preview(submission: Submission) -> Job:
    """The job that this submission would become, all but its id and times."""
    plan_grid = submission.parameters.size.large_grid
    plan = Plan(PriorTokens(plan_grid, (0,) * plan_grid.tokens)) if submission.reused else None
    nothing = Submitted("", repeated=False, created_at=0, deadline_ms=None, images_ahead=0)
    return _fresh(submission, nothing, plan, ())


class Upkeep:
    """What the sweeper does to jobs that have ended."""

    def __init__(self, retention: Retention, blobs: BlobStore) -> None:
        self._retention = retention
        self._blobs = blobs

    def step(self) -> int:
        """Remove jobs whose time is over, and the objects of removed jobs; returns how many jobs were removed."""
        expired = self._retention.expired(_UPKEEP_LIMIT)
        done = [self._retention.expire(job_id) for job_id in expired]
        if "retired" in done:
            crash_points.reach("sweeper.after_tombstone")
        for job_id in self._retention.trash(_UPKEEP_LIMIT):
            if self._retention.wanted(job_id):
                self._retention.emptied(job_id)
            elif not _empty(self._blobs, self._retention, job_id):
                break
        return done.count("retired")


def _empty(blobs: BlobStore, retention: Retention, job_id: str) -> bool:
    """Remove a job's objects; False when the server refuses, and then they are tried again later."""
    try:
        blobs.delete_under(f"jobs/{job_id}/")
        retention.emptied(job_id)
    except Unavailable as error:
        log.warning("objects_left_to_the_sweeper", job=job_id, error=str(error))
        retention.postpone(job_id, _EMPTY_AGAIN_MS)
        return False
    return True


class Stages:
    """What workers and the sweeper do. A hint that cannot be published is left to the sweeper."""

    def __init__(self, store: JobStore, dit_queue: DitQueue, *, secrets: tuple[str, ...] = ()) -> None:
        """`secrets`: what must not stand in a traceback that is stored."""
        self._store = store
        self._dit_queue = dit_queue
        self._secrets = secrets

    def hand_over(self, lease: Lease, plan: Plan) -> None:
        """AR -> DiT. Raises LostLease."""
        crash_points.reach("ar.before_hand_over")
        self._store.hand_over(lease, plan)
        crash_points.reach("ar.after_hand_over")
        self._hint_dit(lease.ref)

    def give_up(self, lease: Lease, failure: ImageFailed) -> ImageState | None:
        """End a failed attempt: for good, or for another try while attempts are left.

        Call it while the exception that ended the attempt is being handled, unless the failure brings a traceback.
        """
        traceback = without_secrets(failure.traceback or told(sys.exception() or failure), self._secrets)
        if failure.retryable:
            state = self._store.retry(lease, failure.code, failure.message, once=failure.once, traceback=traceback)
        else:
            state = self._store.fail(lease, failure.code, failure.message, traceback=traceback)
        if state is ImageState.PLANNED:
            self._hint_dit(lease.ref, first=True)
        return state

    def lose(self, lease: Lease, error: Exception) -> None:
        """Give back what a process holds that ends because of an error, which any of its images may have caused."""
        self._store.lose(lease, type(error).__name__, without_secrets(told(error), self._secrets))

    def release(self, lease: Lease) -> None:
        """Give unfinished work back when stopping, so that another worker takes it at once."""
        if self._store.release(lease) is ImageState.PLANNED:
            self._hint_dit(lease.ref, first=True)

    def sweep(self) -> int:
        """Put right every image whose lease lapsed or whose hint may be lost; returns how many were moved."""
        moved = 0
        for ref in self._store.due(_SWEEP_LIMIT):
            action, state = self._store.sweep(ref)
            crash_points.reach("sweeper.sweeping")
            if action in ("retried", "failed", "expired"):
                log.warning("sweep", image=str(ref), action=action, state=state)
                moved += 1
            if state is ImageState.PLANNED and action in ("retried", "hinted", "hinted first"):
                self._hint_dit(ref, first=action != "hinted")
        return moved

    def _hint_dit(self, ref: ImageRef, *, first: bool = False) -> None:
        try:
            self._dit_queue.publish(DitTask(ref.job_id, ref.index), first=first)
        except Unavailable as error:
            log.warning("dit_hint_not_published", image=str(ref), error=str(error))


def find_image(job: Job, index: int) -> ImageRef:
    """The image of a job; raises NotFound with a sentence for the caller."""
    if not 0 <= index < len(job.images):
        raise NotFound(f"job {job.id} has images 0 to {len(job.images) - 1}, not {index}")
    return ImageRef(job.id, index)

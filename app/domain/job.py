"""A job as its caller sees it: what was asked for, and the images it became."""

import secrets
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from app.domain.sizes import Grid, Size
from app.domain.states import TERMINAL, ImageState, JobStatus, job_status


class Priority(StrEnum):
    """Which AR stream a job waits on. Realtime goes first; a share of admissions is kept for batch."""

    REALTIME = "realtime"
    BATCH = "batch"


#: Owner of every job while the service knows no API keys. With keys it is the id of the key that submitted it.
ANYBODY = "anybody"

#: Code of an image that the job's own deadline canceled.
DEADLINE_EXCEEDED = "deadline_exceeded"

#: Seeds are unsigned 32-bit, so that every generator of the field takes them.
SEED_LIMIT = 2**32


def new_job_id() -> str:
    """128 random bits: ids are unguessable, and no two submissions share one."""
    return f"job_{secrets.token_hex(16)}"


def image_seed(job_seed: int, index: int) -> int:
    """The seed of image `index`; its AR sampling and its initial latents follow from this number alone."""
    return (job_seed + index) % SEED_LIMIT


@dataclass(frozen=True, slots=True)
class Parameters:
    """Everything that decides what the pictures look like, and whether their files tell it (`embed_metadata`)."""

    prompt: str
    size: Size
    n: int
    seed: int
    steps: int
    guidance_scale: float
    temperature: float
    top_p: float
    output_format: str
    embed_metadata: bool = True
    top_k: int = 0


@dataclass(frozen=True, slots=True)
class Failure:
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class StoredObject:
    """A committed picture in object storage. Its bytes never change. `thumbnail`: key of the WebP beside it.

    `step_cache`: the shortcut it was painted with, which changes pictures a little; None: none.
    """

    key: str
    content_type: str
    size: int
    sha256: str
    thumbnail: str | None = None
    step_cache: str | None = None

    @property
    def keys(self) -> tuple[str, ...]:
        """Every object that goes when the picture does."""
        return (self.key,) if self.thumbnail is None else (self.key, self.thumbnail)


@dataclass(frozen=True, slots=True)
class Image:
    """One picture of a job. Times are Redis server time in milliseconds since the epoch; None: not yet.

    `planned_at` is when it last began to wait for a DiT worker, anew when one gives it back; `ar_ms` is how long the
    plan that is stored took.
    """

    index: int
    state: ImageState
    seed: int
    step: int = 0
    ar_attempts: int = 0
    dit_attempts: int = 0
    planning_at: int | None = None
    planned_at: int | None = None
    painting_at: int | None = None
    completed_at: int | None = None
    ar_ms: int | None = None
    prior_grid: Grid | None = None
    stored: StoredObject | None = None
    failure: Failure | None = None

    @property
    def stage(self) -> str:
        """`ar` until the prior tokens are stored, `dit` afterwards."""
        return "ar" if self.prior_grid is None else "dit"


@dataclass(frozen=True, slots=True)
class Job:
    """What a caller submitted, with its images. Times as in Image. `reused`: (job, index) whose prior it repaints.

    `inputs`: keys of the condition images in object storage, in order; none for text-to-image.
    `webhook_events`: types that the receiver gets. `ttl_ms`: the job is kept for so long after its end.
    `deadline_ms`: server time at which images that have not ended are canceled.
    `version`: larger after each change that a reader could see, queue positions aside.
    """

    id: str
    parameters: Parameters
    created_at: int
    images: tuple[Image, ...]
    priority: Priority = Priority.REALTIME
    reused: tuple[str, int] | None = None
    inputs: tuple[str, ...] = ()
    webhook_url: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    webhook_events: tuple[str, ...] = ()
    owner: str = ANYBODY
    ttl_ms: int = 0
    deadline_ms: int | None = None
    started_at: int | None = None
    completed_at: int | None = None
    version: int = 0

    @property
    def status(self) -> JobStatus:
        overdue = any(image.failure and image.failure.code == DEADLINE_EXCEEDED for image in self.images)
        return job_status([image.state for image in self.images], started=self.started_at is not None, overdue=overdue)

    @property
    def expires_at(self) -> int | None:
        """When record and pictures go; None while the job has not ended."""
        return None if self.completed_at is None else self.completed_at + self.ttl_ms

    @property
    def done(self) -> bool:
        return all(image.state in TERMINAL for image in self.images)

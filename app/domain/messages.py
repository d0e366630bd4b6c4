"""What crosses between processes: one small frozen dataclass a hop.

A stream entry and a Celery message are wake-up hints: they carry ids, and the image record is the truth. Prior ids,
parameters and prompts are read from the record when the lease is taken.
"""

from dataclasses import dataclass

from app.domain.job import Parameters
from app.domain.prior import PriorTokens

#: Version of the two hints. A worker leaves a hint that it does not know to newer workers.
SCHEMA = 1


@dataclass(frozen=True, slots=True)
class ImageRef:
    """Names one image of one job."""

    job_id: str
    index: int

    def __str__(self) -> str:
        return f"{self.job_id}:{self.index}"

    @classmethod
    def parse(cls, text: str) -> "ImageRef":
        job_id, _, index = text.rpartition(":")
        return cls(job_id=job_id, index=int(index))


@dataclass(frozen=True, slots=True)
class DitTask:
    """The hint on the Celery queue: this image has its prior tokens."""

    job_id: str
    index: int
    schema: int = SCHEMA

    @property
    def ref(self) -> ImageRef:
        return ImageRef(self.job_id, self.index)


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to work on an image until it lapses. The fence is larger for each later lease of the same image."""

    ref: ImageRef
    fence: int


@dataclass(frozen=True, slots=True)
class PlanOrder:
    """What an AR worker gets with its lease. `inputs`: keys of the condition images.

    `left_s`: seconds from the claim to the job's deadline; None: it has none.
    """

    lease: Lease
    parameters: Parameters
    seed: int
    inputs: tuple[str, ...]
    left_s: float | None = None


@dataclass(frozen=True, slots=True)
class PaintOrder:
    """What a DiT worker gets with its lease. `condition`: the VQ ids of each condition image, as AR computed them.

    `left_s` as in a PlanOrder.
    """

    lease: Lease
    parameters: Parameters
    seed: int
    prior: PriorTokens
    inputs: tuple[str, ...]
    condition: tuple[PriorTokens, ...]
    left_s: float | None = None


#: Types in a job's log, in the order in which a single image meets them.
EVENT_TYPES = ("job.started", "image.completed", "image.failed", "image.canceled", "job.completed")
#: What a receiver gets that names no types. A canceled image is no news to the one who canceled it.
WEBHOOK_EVENTS = ("job.started", "image.completed", "image.failed", "job.completed")


@dataclass(frozen=True, slots=True)
class Event:
    """One line of a job's event log. `index` is None for events of the whole job; `timestamp` is server ms."""

    job_id: str
    sequence: int
    type: str
    timestamp: int
    index: int | None

    @property
    def id(self) -> str:
        """The same on every delivery and every read."""
        return f"evt_{self.job_id.removeprefix('job_')}_{self.sequence}"

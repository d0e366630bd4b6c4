"""What goes out, as pydantic models: the answers of the API in its OpenAPI description."""

from typing import Any, Literal

from pydantic import BaseModel, Field, RootModel

from api.schemas import ReusedImage, Status, WebhookEvent


class EffectiveParameters(BaseModel):
    prompt: str
    size: str
    n: int
    seed: int
    steps: int
    guidance_scale: float
    temperature: float
    top_p: float
    top_k: int
    output_format: str
    embed_metadata: bool


class Attempts(BaseModel):
    ar: int
    dit: int


class Timings(BaseModel):
    """Seconds; null: not yet."""

    queued_s: float | None
    ar_s: float | None
    planned_s: float | None
    dit_s: float | None
    total_s: float | None


class ImageError(BaseModel):
    code: str
    message: str


class ImageOut(BaseModel):
    index: int
    status: Literal["queued", "running", "uploading", "succeeded", "failed", "canceled"]
    stage: Literal["ar", "dit"]
    step: int
    steps: int
    seed: int
    width: int
    height: int
    attempts: Attempts
    timings: Timings
    error: ImageError | None
    content_type: str | None
    bytes: int | None
    sha256: str | None
    step_cache: str | None = Field(description="the DiT's shortcut, which changes pictures a little; null: none")
    content_url: str | None
    thumbnail_url: str | None = Field(description="WebP of at most 256 pixels on the longer side")


class JobUrls(BaseModel):
    get: str
    cancel: str
    events: str
    deliveries: str


class Estimate(BaseModel):
    """A guess from the stage times of recent images; loads and sizes change."""

    seconds: float = Field(description="until the job is done")
    measured_images: int = Field(description="images that the guess rests on")


class JobOut(BaseModel):
    id: str
    status: Status
    created_at: str
    started_at: str | None
    completed_at: str | None
    deadline: str | None = Field(description="then images that have not ended are canceled")
    expires_at: str | None = Field(description="then the job and its pictures are removed")
    ttl: int
    queue_position: int | None = Field(description="images that wait before the first waiting one of this job")
    estimate: Estimate | None
    parameters: EffectiveParameters
    images: list[ImageOut]
    priority: Literal["realtime", "batch"]
    reuse_prior: ReusedImage | None
    inputs: int = Field(description="condition images of an edit")
    webhook_url: str | None
    webhook_events: list[WebhookEvent]
    metadata: dict[str, Any]
    urls: JobUrls


class JobListOut(BaseModel):
    data: list[JobOut]
    next_cursor: str | None
    has_more: bool


class Price(BaseModel):
    ar_tokens: int
    dit_steps: int
    pixels: int


class DryRunOut(BaseModel):
    """What a job would be and cost; nothing was queued."""

    dry_run: Literal[True]
    parameters: EffectiveParameters
    price: Price
    queue_position: int | None
    estimate: Estimate | None


class JobOrDryRunOut(RootModel[JobOut | DryRunOut]):
    """A job that ended within the wait, or what one would be."""


class EventOut(BaseModel):
    type: str = Field(examples=["image.completed"])
    timestamp: str
    sequence: int = Field(description="place in the job's log, from 1 without gaps")
    data: dict[str, Any] = Field(description="job_id, metadata, and the image or the job")


class EventsOut(BaseModel):
    data: list[EventOut]


class AttemptOut(BaseModel):
    at: str
    http_status: int | None
    error: str | None
    took_ms: int


class DeliveryOut(BaseModel):
    id: str
    event_id: str = Field(description="the webhook-id of every attempt")
    type: str
    sequence: int
    status: Literal["pending", "retrying", "paused", "delivered", "given_up"]
    error: str | None
    next_attempt_at: str | None
    attempts: int
    log: list[AttemptOut] = Field(description="the last twenty attempts")


class EndpointOut(BaseModel):
    url: str
    status: Literal["ok", "failing", "paused", "gone"]
    failures: int = Field(description="since the last success")
    failing_since: str | None
    paused_until: str | None


class DeliveriesOut(BaseModel):
    data: list[DeliveryOut]
    endpoint: EndpointOut | None = Field(description="how the job's receiver does; null without a webhook_url")


class WebhookTestOut(BaseModel):
    delivery: DeliveryOut


class SecretOut(BaseModel):
    key: str = Field(description="signs every event", examples=["whsec_..."])
    previous: list[str] = Field(description="sign too until they lapse")


class QueueOut(BaseModel):
    queued: int
    planning: int
    planned: int
    painting: int
    ar_workers: int
    dit_workers: int
    ar_s: float | None = Field(description="mean time of an image in AR; null: not measured yet")
    dit_s: float | None
    measured_images: int


class PriorOut(BaseModel):
    height: int = Field(description="rows of the large grid")
    width: int = Field(description="columns of the large grid")
    ids: list[int] = Field(description="codebook ids, row by row")


class WorkerOut(BaseModel):
    name: str
    role: str
    pid: int
    host: str
    device: str
    state: str
    heartbeat_age_s: float
    instance: str


class WorkersOut(BaseModel):
    data: list[WorkerOut]


class HealthOut(BaseModel):
    status: str

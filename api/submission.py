"""From a request body to a Submission: what is left open is decided here, and what cannot be done is refused."""

from typing import Any

from api import headers
from api.access import caller, tell_usage
from api.images import png_size
from api.parts import current
from api.schemas import JobRequest
from app.domain.access import Limits
from app.domain.job import Job, Parameters, Priority
from app.domain.messages import WEBHOOK_EVENTS, ImageRef
from app.domain.sizes import Size
from app.errors import NotFound, RefusedInput
from app.service import Receipt, Submission, draw_seed, find_image
from app.store.jobs import IdempotencyKey, Terms


def receipt_of(body: JobRequest, asked: Any, key: str | None) -> Receipt:  # noqa: ANN401 - JSON
    """Queue a job, or find that of an earlier request with the same idempotency key. `asked`: the body as it came.

    A repeat is not checked again: what it names may be gone by now, and its answer stands.
    """
    cancel_after_ms, intake = headers.cancel_after_ms(), current().intake
    idempotency = None
    if key is not None:
        idempotency = IdempotencyKey(key, headers.fingerprint(asked), current().settings.idempotency_s * 1000)
        if known := intake.repeated(caller().owner, idempotency):
            return known
    receipt = intake.submit(submission_of(body, cancel_after_ms), idempotency)
    tell_usage(receipt.usage)
    return receipt


def submission_of(body: JobRequest, cancel_after_ms: int | None = None) -> Submission:
    """Raises RefusedInput naming the field."""
    parts, source = current(), _reused(body)
    settings = parts.settings
    prompt = body.prompt or (source.parameters.prompt if source else None)
    if prompt is None:
        raise RefusedInput("prompt", "is required")
    parts.prompt_limit.check(prompt)
    pictures = parts.images.read(body)
    if pictures and source:
        raise RefusedInput("images", "cannot be given with reuse_prior, which keeps its own")
    size = _size(body, source, pictures)
    if size.pixels > settings.max_pixels:
        raise RefusedInput("size", f"must be at most {settings.max_pixels} pixels in all, {size} has {size.pixels}")
    if body.webhook_events is not None and body.webhook_url is None:
        raise RefusedInput("webhook_events", "needs a webhook_url")
    parameters = Parameters(
        prompt=prompt,
        size=size,
        n=body.n,
        seed=draw_seed() if body.seed is None else body.seed,
        steps=settings.default_steps if body.steps is None else body.steps,
        guidance_scale=body.guidance_scale,
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        output_format=body.output_format,
        embed_metadata=body.embed_metadata,
    )
    _check_limits(parameters, caller().limits)
    terms = Terms(
        priority=Priority(body.priority),
        webhook_url=body.webhook_url,
        webhook_events=WEBHOOK_EVENTS if body.webhook_events is None else tuple(body.webhook_events),
        owner=caller().owner,
        ttl_ms=1000 * (settings.retention_s if body.ttl is None else body.ttl),
        cancel_after_ms=cancel_after_ms,
    )
    reused = ImageRef(body.reuse_prior.job, body.reuse_prior.index) if body.reuse_prior else None
    return Submission(parameters, terms, body.metadata, pictures, reused, caller().limits)


def _check_limits(parameters: Parameters, limits: Limits) -> None:
    """What a key's limits can never let in is wrong, and not too early."""
    pixels = parameters.n * parameters.size.pixels
    if limits.images and parameters.n > limits.images:
        raise RefusedInput("n", f"must be at most {limits.images} with this key")
    if limits.pixels and pixels > limits.pixels:
        raise RefusedInput("size", f"must be at most {limits.pixels} pixels in all images with this key, not {pixels}")


def _reused(body: JobRequest) -> Job | None:
    """The job whose prior tokens are painted again."""
    if body.reuse_prior is None:
        return None
    try:
        job = current().intake.get(body.reuse_prior.job, caller().owner)
        find_image(job, body.reuse_prior.index)
    except NotFound as error:
        raise RefusedInput("reuse_prior", str(error)) from error
    return job


def _size(body: JobRequest, source: Job | None, pictures: tuple[bytes, ...]) -> Size:
    """As asked; else the reused image's, else the first condition image's, else the default."""
    if body.size:
        return Size.parse(body.size)
    if source:
        return source.parameters.size
    if pictures:
        return Size(*png_size(pictures[0]))
    return Size.parse(current().settings.default_size)

"""How a job, an image and an event look to the outside: the API and the webhooks show the same thing."""

from datetime import UTC, datetime
from typing import Any

from app.domain.job import Image, Job
from app.domain.messages import Event
from app.domain.states import ImageState

_PUBLIC_STATUS = {
    ImageState.QUEUED: "queued",
    ImageState.PLANNING: "running",
    ImageState.PLANNED: "running",
    ImageState.PAINTING: "running",
    ImageState.SUCCEEDED: "succeeded",
    ImageState.FAILED: "failed",
    ImageState.CANCELED: "canceled",
}


def timestamp(ms: int | None) -> str | None:
    """Server milliseconds as RFC 3339 in UTC."""
    if ms is None:
        return None
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def parameters_view(job: Job) -> dict[str, Any]:
    """The effective parameters, defaults and the drawn seed included."""
    p = job.parameters
    return {
        "prompt": p.prompt,
        "size": str(p.size),
        "n": p.n,
        "seed": p.seed,
        "steps": p.steps,
        "guidance_scale": p.guidance_scale,
        "temperature": p.temperature,
        "top_p": p.top_p,
        "output_format": p.output_format,
        "embed_metadata": p.embed_metadata,
    }


def image_view(job: Job, image: Image, base_url: str) -> dict[str, Any]:
    """One image. Its URLs are stable for the life of the job; each read of one signs a fresh URL."""
    size, stored = job.parameters.size, image.stored
    content_url = f"{base_url}/v1/jobs/{job.id}/images/{image.index}/content"
    return {
        "index": image.index,
        "status": _PUBLIC_STATUS[image.state],
        "stage": image.stage,
        "step": image.step,
        "steps": job.parameters.steps,
        "seed": image.seed,
        "width": size.width,
        "height": size.height,
        "attempts": {"ar": image.ar_attempts, "dit": image.dit_attempts},
        "timings": _timings(job, image),
        "error": {"code": image.failure.code, "message": image.failure.message} if image.failure else None,
        "content_type": stored.content_type if stored else None,
        "bytes": stored.size if stored else None,
        "sha256": stored.sha256 if stored else None,
        "content_url": content_url if stored else None,
        "thumbnail_url": f"{content_url}?variant=thumbnail" if stored and stored.thumbnail else None,
    }


def job_view(job: Job, base_url: str) -> dict[str, Any]:
    url = f"{base_url}/v1/jobs/{job.id}"
    return {
        "id": job.id,
        "status": job.status.value,
        "created_at": timestamp(job.created_at),
        "started_at": timestamp(job.started_at),
        "completed_at": timestamp(job.completed_at),
        "parameters": parameters_view(job),
        "images": [image_view(job, image, base_url) for image in job.images],
        "priority": job.priority.value,
        "reuse_prior": {"job": job.reused[0], "index": job.reused[1]} if job.reused else None,
        "inputs": len(job.inputs),
        "webhook_url": job.webhook_url,
        "metadata": job.metadata,
        "urls": {"get": url, "cancel": f"{url}/cancel"},
    }


def event_view(event: Event, job: Job, base_url: str) -> dict[str, Any]:
    """What a webhook carries. An ended image and an ended job never change, so each delivery of one event agrees."""
    data: dict[str, Any] = {"job_id": job.id, "metadata": job.metadata}
    if event.index is None:
        data["job"] = job_view(job, base_url)
    else:
        data["image"] = image_view(job, job.images[event.index], base_url)
    return {"type": event.type, "timestamp": timestamp(event.timestamp), "sequence": event.sequence, "data": data}


def _timings(job: Job, image: Image) -> dict[str, float | None]:
    """Seconds: waiting for AR, AR, waiting for DiT, DiT with upload, and from submission to the end."""
    return {
        "queued_s": _seconds(job.created_at, image.planning_at),
        "ar_s": _seconds(image.planning_at, image.planned_at),
        "planned_s": _seconds(image.planned_at, image.painting_at),
        "dit_s": _seconds(image.painting_at, image.completed_at),
        "total_s": _seconds(job.created_at, image.completed_at),
    }


def _seconds(start: int | None, end: int | None) -> float | None:
    return None if start is None or end is None or end < start else round((end - start) / 1000, 3)

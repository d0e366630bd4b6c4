"""How a job, an image and an event look to the outside: the API and the webhooks show the same thing."""

from datetime import UTC, datetime
from typing import Any

from app.domain.deliveries import Delivery, Endpoint
from app.domain.estimate import Outlook
from app.domain.job import Image, Job
from app.domain.messages import Event
from app.domain.states import ImageState

_PUBLIC_STATUS = {
    ImageState.QUEUED: "queued",
    ImageState.PLANNING: "running",
    ImageState.PLANNED: "running",
    ImageState.PAINTING: "running",
    ImageState.CANCELING: "running",
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
        "top_k": p.top_k,
        "output_format": p.output_format,
        "embed_metadata": p.embed_metadata,
    }


def image_view(job: Job, image: Image, base_url: str) -> dict[str, Any]:
    """One image. Its URLs are stable for the life of the job; each read of one signs a fresh URL."""
    size, stored = job.parameters.size, image.stored
    content_url = f"{base_url}/v1/jobs/{job.id}/images/{image.index}/content"
    return {
        "index": image.index,
        "status": _status(job, image),
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
        "step_cache": stored.step_cache if stored else None,
        "content_url": content_url if stored else None,
        "thumbnail_url": f"{content_url}?variant=thumbnail" if stored and stored.thumbnail else None,
    }


def _status(job: Job, image: Image) -> str:
    """After its last step a picture is decoded, encoded and uploaded."""
    if image.state is ImageState.PAINTING and image.step >= job.parameters.steps:
        return "uploading"
    return _PUBLIC_STATUS[image.state]


def job_view(job: Job, base_url: str, outlook: Outlook | None = None) -> dict[str, Any]:
    """One job. `outlook`: what can be guessed of one that has not ended."""
    url = f"{base_url}/v1/jobs/{job.id}"
    return {
        "id": job.id,
        "status": job.status.value,
        "created_at": timestamp(job.created_at),
        "started_at": timestamp(job.started_at),
        "completed_at": timestamp(job.completed_at),
        "deadline": timestamp(job.deadline_ms),
        "expires_at": timestamp(job.expires_at),
        "ttl": job.ttl_ms // 1000,
        "queue_position": outlook.position if outlook else None,
        "estimate": estimate_view(outlook),
        "parameters": parameters_view(job),
        "images": [image_view(job, image, base_url) for image in job.images],
        "priority": job.priority.value,
        "reuse_prior": {"job": job.reused[0], "index": job.reused[1]} if job.reused else None,
        "inputs": len(job.inputs),
        "webhook_url": job.webhook_url,
        "webhook_events": list(job.webhook_events),
        "metadata": job.metadata,
        "urls": {"get": url, "cancel": f"{url}/cancel", "events": f"{url}/events", "deliveries": f"{url}/deliveries"},
    }


def estimate_view(outlook: Outlook | None) -> dict[str, Any] | None:
    """A guess is shown as one: with what it rests on."""
    if outlook is None or outlook.seconds is None:
        return None
    return {"seconds": outlook.seconds, "measured_images": outlook.measured}


def event_view(event: Event, job: Job, base_url: str) -> dict[str, Any]:
    """What readers and webhooks get. It never changes: an ended image and an ended job do not, nor does a start.

    The prompt is left out, so that an event stays under 20 kB.
    """
    data: dict[str, Any] = {"job_id": job.id, "metadata": job.metadata}
    if event.index is not None:
        data["image"] = image_view(job, job.images[event.index], base_url)
    elif event.type == "job.started":
        data["job"] = {
            "id": job.id,
            "status": "running",
            "created_at": timestamp(job.created_at),
            "started_at": timestamp(job.started_at),
            "n": len(job.images),
        }
    else:
        view = job_view(job, base_url)
        del view["metadata"], view["parameters"]["prompt"]
        data["job"] = view
    return {"type": event.type, "timestamp": timestamp(event.timestamp), "sequence": event.sequence, "data": data}


def progress_view(job: Job, image: Image, sequence: int, now_ms: int) -> dict[str, Any]:
    """How far one image is. It is no line of the log: `sequence` is that of the line before it."""
    step = {"index": image.index, "status": _status(job, image), "stage": image.stage, "step": image.step}
    data = {"job_id": job.id, "metadata": job.metadata, "image": step | {"steps": job.parameters.steps}}
    return {"type": "image.progress", "timestamp": timestamp(now_ms), "sequence": sequence, "data": data}


def test_event_view(event: Event) -> dict[str, Any]:
    """The event of a webhook test, which belongs to no job."""
    data = {"test_id": event.job_id}
    return {"type": event.type, "timestamp": timestamp(event.timestamp), "sequence": event.sequence, "data": data}


def delivery_id(job_id: str, sequence: int) -> str:
    """The same for every attempt, and the one after a redelivery."""
    return f"dlv_{job_id}_{sequence}"


def delivery_view(event: Event, delivery: Delivery) -> dict[str, Any]:
    """What became of one event: statuses, times and reasons, never a body of either side."""
    return {
        "id": delivery_id(event.job_id, event.sequence),
        "event_id": event.id,
        "type": event.type,
        "sequence": event.sequence,
        "status": {"retry": "retrying"}.get(delivery.outcome, delivery.outcome),
        "error": delivery.error or None,
        "next_attempt_at": timestamp(delivery.next_attempt_at),
        "attempts": delivery.attempts,
        "log": [
            {"at": timestamp(a.at), "http_status": a.status, "error": a.error or None, "took_ms": a.took_ms}
            for a in delivery.log
        ],
    }


def endpoint_view(url: str, endpoint: Endpoint) -> dict[str, Any]:
    """How the receiver does: `gone` after a 410 (for jobs made before it), `paused` after failing for long."""
    status = "ok"
    if endpoint.gone_at:
        status = "gone"
    elif endpoint.paused_until:
        status = "paused"
    elif endpoint.failures:
        status = "failing"
    return {
        "url": url,
        "status": status,
        "failures": endpoint.failures,
        "failing_since": timestamp(endpoint.failing_since),
        "paused_until": timestamp(endpoint.paused_until),
    }


def _timings(job: Job, image: Image) -> dict[str, float | None]:
    """Seconds: waiting for AR, AR, waiting for DiT (the last time), DiT with upload, and from submission to the end."""
    return {
        "queued_s": _seconds(job.created_at, image.planning_at),
        "ar_s": None if image.ar_ms is None else round(image.ar_ms / 1000, 3),
        "planned_s": _seconds(image.planned_at, image.painting_at),
        "dit_s": _seconds(image.painting_at, image.completed_at),
        "total_s": _seconds(job.created_at, image.completed_at),
    }


def _seconds(start: int | None, end: int | None) -> float | None:
    return None if start is None or end is None or end < start else round((end - start) / 1000, 3)

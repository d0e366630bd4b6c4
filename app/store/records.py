"""How jobs and images are written in Redis hashes, and read back."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic_core import to_json

from app.domain.job import Failure, Image, Job, Parameters, Priority, StoredObject
from app.domain.messages import ImageRef
from app.domain.sizes import Grid, Size
from app.domain.states import ImageState

#: Fields of an image hash that make an Image; the prior bytes stay where they are.
IMAGE_FIELDS = (
    "state",
    "seed",
    "step",
    "ar_attempts",
    "dit_attempts",
    "planning_at",
    "planned_at",
    "painting_at",
    "completed_at",
    "ar_ms",
    "prior_height",
    "prior_width",
    "object_key",
    "content_type",
    "bytes",
    "sha256",
    "thumbnail_key",
    "step_cache",
    "error_code",
    "error_message",
)


def dump_request(
    parameters: Parameters, metadata: dict[str, Any], reused: ImageRef | None, inputs: tuple[str, ...]
) -> bytes:
    request = {
        "parameters": {name: getattr(parameters, name) for name in Parameters.__slots__}
        | {"size": str(parameters.size)},
        "metadata": metadata,
        "reused": None if reused is None else [reused.job_id, reused.index],
        "inputs": list(inputs),
    }
    return to_json(request)


def load_request(request: bytes) -> tuple[Parameters, tuple[str, ...]]:
    """The parameters, and the keys of the condition images."""
    values = json.loads(request)
    return _parameters(values["parameters"]), tuple(values["inputs"])


def _parameters(values: dict[str, Any]) -> Parameters:
    return Parameters(**(values | {"size": Size.parse(values["size"])}))


def load_job(job_id: str, fields: Mapping[bytes, bytes], images: Sequence[Sequence[bytes | None]]) -> Job:
    webhook_url = fields.get(b"webhook_url")
    webhook_events = fields.get(b"webhook_events", b"").decode().strip(",")
    request = json.loads(fields[b"request"])
    return Job(
        id=job_id,
        parameters=_parameters(request["parameters"]),
        created_at=int(fields[b"created_at"]),
        images=tuple(_load_image(index, values) for index, values in enumerate(images)),
        priority=Priority(fields[b"priority"].decode()),
        webhook_url=webhook_url.decode() if webhook_url else None,
        metadata=request["metadata"],
        reused=tuple(request["reused"]) if request["reused"] else None,
        inputs=tuple(request["inputs"]),
        webhook_events=tuple(webhook_events.split(",")) if webhook_events else (),
        owner=fields[b"owner"].decode(),
        ttl_ms=int(fields[b"ttl_ms"]),
        deadline_ms=_number(fields.get(b"deadline_ms")),
        version=int(fields[b"version"]),
        started_at=_number(fields.get(b"started_at")),
        completed_at=_number(fields.get(b"completed_at")),
    )


def _load_image(index: int, values: Sequence[bytes | None]) -> Image:
    record = dict(zip(IMAGE_FIELDS, values, strict=True))
    text = {name: value.decode() for name, value in record.items() if value is not None}
    return Image(
        index=index,
        state=ImageState(text["state"]),
        seed=int(text["seed"]),
        step=int(text["step"]),
        ar_attempts=int(text["ar_attempts"]),
        dit_attempts=int(text["dit_attempts"]),
        planning_at=_number(record["planning_at"]),
        planned_at=_number(record["planned_at"]),
        painting_at=_number(record["painting_at"]),
        completed_at=_number(record["completed_at"]),
        ar_ms=_number(record["ar_ms"]),
        prior_grid=Grid(int(text["prior_height"]), int(text["prior_width"])) if "prior_height" in text else None,
        stored=StoredObject(
            text["object_key"],
            text["content_type"],
            int(text["bytes"]),
            text["sha256"],
            text.get("thumbnail_key"),
            text.get("step_cache"),
        )
        if "object_key" in text
        else None,
        failure=Failure(text["error_code"], text["error_message"]) if "error_code" in text else None,
    )


def _number(value: bytes | None) -> int | None:
    return None if value is None else int(value)

"""/v1/images/* and /v1/models: OpenAI's shapes over the same queue, for clients that wait for their pictures.

A call is a job that somebody waits for. When nobody does any more it is canceled, unless it has an idempotency key:
then the next try finds it.
"""

import base64
import select
import socket
import time
from typing import Any

from flask import Blueprint, Response, jsonify, request
from flask_openapi import APIBlueprint, Tag
from pydantic import ValidationError

from api import headers
from api.openai_schemas import GenerationRequest, ImagesOut, ModelOut, ModelPath, ModelsOut, OpenAIError
from api.parts import current
from api.problems import problem, sentence
from api.schemas import JobRequest
from api.stopping import STOPPING
from api.submission import receipt_of
from api.waiting import until_done
from app.domain.job import Job
from app.errors import RefusedInput, Unavailable

MODEL = "glm-image"

tag = Tag(name="openai", description="For OpenAI's client libraries")
blueprint: Blueprint = APIBlueprint("openai", __name__, url_prefix="/v1", abp_tags=[tag])
_ERRORS = dict.fromkeys(("400", "404", "410", "413", "415", "500", "504"), OpenAIError)


@blueprint.post(
    "/images/generations",
    summary="Generate pictures (OpenAI)",
    responses=_ERRORS | {"200": ImagesOut},
)
def generations(body: GenerationRequest) -> Response:
    """Answers when the pictures are there. Fields beyond OpenAI's own are those of a job."""
    return _images(body, request.get_json())


@blueprint.post(
    "/images/edits",
    summary="Edit pictures (OpenAI)",
    responses=_ERRORS | {"200": ImagesOut},
)
def edits() -> Response:
    """A multipart form: the fields of a generation, and one to four files named `image` or `image[]`."""
    if "mask" in request.files or "mask" in request.form:
        raise RefusedInput("mask", "is not taken: the model edits by words alone")
    if not (request.files.getlist("image") or request.files.getlist("image[]")):
        raise RefusedInput("image", "is required")
    fields = request.form.to_dict()
    try:
        # A form holds text alone.
        body = GenerationRequest.model_validate(fields, strict=False)
    except ValidationError as error:
        raise _refused(error) from error
    try:
        return _images(body, fields)
    except RefusedInput as error:
        if not error.field.startswith("images"):
            raise
        # So it is called in a job; here the files are named `image`.
        raise RefusedInput("image", error.detail) from error


@blueprint.get("/models", summary="List models (OpenAI)", responses={"200": ModelsOut, "500": OpenAIError})
def models() -> Response:
    """The one model that is served."""
    return jsonify({"object": "list", "data": [_model()]})


@blueprint.get(
    "/models/<model>",
    summary="Look at a model (OpenAI)",
    responses={"200": ModelOut, "404": OpenAIError, "500": OpenAIError},
)
def model(path: ModelPath) -> Response:
    """404 for any other model."""
    return jsonify(_model()) if path.model == MODEL else _unknown_model()


def _model() -> dict[str, Any]:
    path = current().settings.checkpoint / "model_index.json"
    created = int(path.stat().st_mtime) if path.exists() else 0
    return {"id": MODEL, "object": "model", "created": created, "owned_by": "planpaint"}


def _unknown_model() -> Response:
    text = f"this service has the model {MODEL} alone"
    return problem(404, "model_not_found", "Not found", text, errors=[("model", text)])


def _images(body: GenerationRequest, fingerprinted: Any) -> Response:  # noqa: ANN401 - JSON
    if body.model not in (None, MODEL):
        return _unknown_model()
    started = time.monotonic()
    key = headers.idempotency_key()
    receipt = receipt_of(_job(body), fingerprinted, key)
    try:
        response = _pictures(receipt.job, body.response_format, keyed=key is not None)
    except Unavailable:
        text = f"a server behind this service does not answer; the pictures are job {receipt.job.id}"
        response = problem(503, "unavailable", "Temporarily unavailable", text)
        again = key is not None
    else:
        again = response.status_code == 503
    if not again:
        # Work has begun: a second try by itself would draw other pictures. With a key it finds these.
        response.headers["x-should-retry"] = "false"
    if receipt.repeated:
        response.headers["Idempotency-Replayed"] = "true"
    response.headers["openai-processing-ms"] = str(round((time.monotonic() - started) * 1000))
    return response


def _pictures(job: Job, response_format: str | None, *, keyed: bool) -> Response:
    job = until_done(job, current().settings.openai_wait_s, gone=_caller_has_gone)
    if not job.done and not keyed:
        current().intake.cancel(job.id)
    if not job.done and STOPPING.is_set():
        fate = "goes on" if keyed else "was canceled"
        return problem(503, "stopping", "Temporarily unavailable", f"this process stops; job {job.id} {fate}")
    return _answer(job, response_format)


def _job(body: GenerationRequest) -> JobRequest:
    fields = {name: value for name, value in body.of_a_job().items() if value is not None}
    try:
        return JobRequest.model_validate(fields)
    except ValidationError as error:
        raise _refused(error) from error


def _refused(error: ValidationError) -> RefusedInput:
    first = error.errors(include_url=False, include_input=False)[0]
    return RefusedInput("/".join(str(part) for part in first["loc"]), sentence(first))


def _caller_has_gone() -> bool:
    """Whether the connection has been closed from the other side; what was sent ahead on it is no sign of that."""
    connection: socket.socket | None = request.environ.get("gunicorn.socket")
    if connection is None:
        return False
    try:
        readable, _, _ = select.select([connection], [], [], 0)
        return bool(readable) and connection.recv(1, socket.MSG_PEEK) == b""
    except OSError:
        return True


def _answer(job: Job, response_format: str | None) -> Response:
    if not job.done:
        return problem(504, "timeout", "Timeout", f"the pictures are not done yet; they are job {job.id}")
    data, errors = [], []
    for image in job.images:
        if image.stored:
            data.append(_picture(image.stored.key, response_format) | {"index": image.index, "seed": image.seed})
        elif image.failure:
            failure = {"index": image.index, "code": image.failure.code, "message": image.failure.message}
            errors.append(failure)
    if not data:
        code, message = (errors[0]["code"], errors[0]["message"]) if errors else ("canceled", "the job was canceled")
        return problem(500, str(code), "No pictures", str(message))
    body = {
        "created": job.created_at // 1000,
        "data": data,
        "output_format": job.parameters.output_format,
        "size": str(job.parameters.size),
        "id": job.id,
        "errors": errors,
    }
    return jsonify(body)


def _picture(key: str, response_format: str | None) -> dict[str, str]:
    """The form that was asked for, or both: clients for older and newer models read different ones."""
    found = {}
    if response_format != "b64_json":
        found["url"] = current().blobs.presign(key)
    if response_format != "url":
        found["b64_json"] = base64.b64encode(current().blobs.get(key)).decode()
    return found

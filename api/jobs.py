"""/v1/jobs: submit, look, cancel, fetch pictures and prior tokens."""

import re
from typing import Any

from flask import Blueprint, Response, jsonify, redirect, request
from flask_openapi import APIBlueprint, Tag

from api.images import png_size
from api.parts import current
from api.problems import Problem
from api.schemas import ContentQuery, ImagePath, JobOut, JobPath, JobRequest, PriorOut
from app.domain.job import Job, Parameters, Priority
from app.domain.messages import ImageRef
from app.domain.sizes import Size
from app.errors import NotFound, NotReady, RefusedInput
from app.service import Submission, draw_seed, find_image
from app.views import job_view

_ID = re.compile(r"job_[0-9a-f]{32}", re.ASCII)
#: Seconds between polls that a caller is asked for.
_POLL_S = 1

ERRORS = {"404": Problem, "422": Problem, "503": Problem}
tag = Tag(name="jobs", description="Prompts in, pictures out")
blueprint: Blueprint = APIBlueprint("jobs", __name__, url_prefix="/v1/jobs", abp_tags=[tag], abp_responses=ERRORS)


def _job(job_id: str) -> Job:
    # A wrong id never reaches Redis: it would be part of a key.
    if not _ID.fullmatch(job_id):
        raise NotFound(f"no job {job_id[:80]}")
    return current().intake.get(job_id)


def _answer(job: Job, status: int = 200) -> Response:
    base_url = current().settings.public_url or request.host_url.rstrip("/")
    response = jsonify(job_view(job, base_url))
    response.status_code = status
    if not job.done:
        response.headers["Retry-After"] = str(_POLL_S)
    return response


def _reused(body: JobRequest) -> Job | None:
    """The job whose prior tokens are painted again."""
    if body.reuse_prior is None:
        return None
    try:
        job = current().intake.get(body.reuse_prior.job)
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


def _submission(body: JobRequest) -> Submission:
    settings, source = current().settings, _reused(body)
    prompt = body.prompt or (source.parameters.prompt if source else None)
    if prompt is None:
        raise RefusedInput("prompt", "is required")
    current().prompt_limit.check(prompt)
    pictures = current().images.read(body)
    if pictures and source:
        raise RefusedInput("images", "cannot be given with reuse_prior, which keeps its own")
    size = _size(body, source, pictures)
    if size.pixels > settings.max_pixels:
        raise RefusedInput("size", f"must be at most {settings.max_pixels} pixels in all, {size} has {size.pixels}")
    parameters = Parameters(
        prompt=prompt,
        size=size,
        n=body.n,
        seed=draw_seed() if body.seed is None else body.seed,
        steps=settings.default_steps if body.steps is None else body.steps,
        guidance_scale=body.guidance_scale,
        temperature=body.temperature,
        top_p=body.top_p,
        output_format=body.output_format,
        embed_metadata=body.embed_metadata,
    )
    return Submission(
        parameters,
        priority=Priority(body.priority),
        webhook_url=body.webhook_url,
        metadata=body.metadata,
        pictures=pictures,
        reused=ImageRef(body.reuse_prior.job, body.reuse_prior.index) if body.reuse_prior else None,
    )


@blueprint.post("", summary="Submit a job", responses={"202": JobOut, "400": Problem, "413": Problem, "415": Problem})
def submit(body: JobRequest) -> Response:
    """Queue 1 to 10 pictures of one prompt. The answer echoes every effective parameter, the drawn seed included."""
    job = current().intake.submit(_submission(body))
    response = _answer(job, 202)
    response.headers["Location"] = f"/v1/jobs/{job.id}"
    return response


@blueprint.get("/<job_id>", summary="Look at a job", responses={"200": JobOut})
def get(path: JobPath) -> Response:
    """The job with the state, step and timings of each image."""
    return _answer(_job(path.job_id))


@blueprint.post("/<job_id>/cancel", summary="Cancel a job", responses={"200": JobOut})
def cancel(path: JobPath) -> Response:
    """Cancel every image that has not ended; finished images stay. May be repeated."""
    return _answer(current().intake.cancel(_job(path.job_id).id))


@blueprint.get(
    "/<job_id>/images/<int:index>/content", summary="Fetch a picture", responses={"307": None, "409": Problem}
)
def content(path: ImagePath, query: ContentQuery) -> Any:  # noqa: ANN401 - werkzeug's response
    """Redirects to a URL that is freshly signed and valid for a few minutes."""
    job = _job(path.job_id)
    image = job.images[find_image(job, path.index).index]
    if image.stored is None:
        raise NotReady(f"image {path.index} is {image.state.value} and has no content")
    key = image.stored.thumbnail if query.variant == "thumbnail" else image.stored.key
    if key is None:
        raise NotFound(f"image {path.index} has no thumbnail")
    current().blobs.ping()
    response = redirect(current().blobs.presign(key), 307)
    response.headers["Cache-Control"] = "no-store"
    return response


@blueprint.get(
    "/<job_id>/images/<int:index>/prior", summary="Fetch the prior tokens", responses={"200": PriorOut, "409": Problem}
)
def prior(path: ImagePath) -> Response:
    """The large grid's codebook ids that the picture is painted from."""
    ref = find_image(_job(path.job_id), path.index)
    tokens = current().intake.prior(ref)
    if tokens is None:
        raise NotReady(f"image {path.index} has no prior tokens yet")
    return jsonify({"height": tokens.grid.height, "width": tokens.grid.width, "ids": list(tokens.ids)})

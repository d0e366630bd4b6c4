"""/v1/jobs: submit, list, look, cancel, delete, fetch pictures and prior tokens."""

import hashlib
import re
from datetime import UTC, datetime
from typing import Any

from flask import Blueprint, Response, jsonify, redirect, request
from flask_openapi import APIBlueprint, Tag

from api import headers
from api.access import caller
from api.answers import ImageOut, JobListOut, JobOrDryRunOut, JobOut, PriorOut
from api.parts import base_url, current
from api.problems import Problem
from api.schemas import ContentQuery, ImagePath, JobPath, JobRequest, ListQuery, WaitQuery
from api.submission import receipt_of, submission_of
from api.waiting import until_changed, until_done
from api.written import Written
from app.domain.estimate import Outlook, outlook, price
from app.domain.job import Job
from app.domain.states import JobStatus
from app.errors import Conflict, NotFound, NotReady, RefusedInput, Unavailable
from app.service import Receipt, Submission, find_image, preview
from app.store.reads import Filter
from app.views import estimate_view, image_view, job_view, parameters_view

_ID = re.compile(r"job_[0-9a-f]{32}", re.ASCII)
_TAG = re.compile(r"v(\d{1,15})\.[0-9a-f]{8}", re.ASCII)
#: Seconds between polls that a caller is asked for.
_POLL_S = 1

#: Of what looks for a job.
MISSING = {"404": Problem, "410": Problem}
jobs_tag = Tag(name="jobs", description="Prompts in, pictures out")
blueprint: Blueprint = APIBlueprint("jobs", __name__, url_prefix="/v1/jobs", abp_tags=[jobs_tag])


def find_job(job_id: str) -> Job:
    # A wrong id never reaches Redis: it would be part of a key.
    if not _ID.fullmatch(job_id):
        raise NotFound(f"no job {job_id[:80]}")
    return current().intake.get(job_id, caller().owner)


def _answer(job: Job, status: int = 200, seen: Outlook | None = None) -> Written:
    if not job.done and seen is None:
        seen = current().outlooks.of(job)
    response = Written(job_view(job, base_url(), seen), status)
    if not job.done:
        response.headers["Retry-After"] = str(_POLL_S)
    return response


def _etag(job: Job, response: Response) -> str:
    """All that is stored has a version; a queue position changes without the job, and so do addresses."""
    return f'"v{job.version}.{hashlib.sha256(response.get_data()).hexdigest()[:8]}"'


# --- create


@blueprint.post(
    "",
    summary="Submit a job",
    responses={
        "200": JobOrDryRunOut,
        "202": JobOut,
    }
    | dict.fromkeys(("400", "410", "413", "415", "422"), Problem),
)
def submit(body: JobRequest) -> Response:
    """Queue 1 to 10 pictures of one prompt. The answer echoes every effective parameter, the drawn seed included.

    With `dry_run` nothing is queued: 200 with the effective parameters, the price and an estimate.
    """
    if body.dry_run:
        return jsonify(_dry_run(submission_of(body, headers.cancel_after_ms())))
    wait_s, applied = headers.preferred_wait()
    key = headers.idempotency_key()
    receipt = receipt_of(body, request.get_json(), key)
    response = _first_answer(receipt, key, wait_s)
    response.headers["Location"] = f"/v1/jobs/{receipt.job.id}"
    response.headers["Vary"] = "Prefer"
    if applied:
        response.headers["Preference-Applied"] = applied
    return response


def _first_answer(receipt: Receipt, key: str | None, wait_s: int) -> Response:
    """202 with the job as it was queued, or 200 when it ended within the wait. A repeat gets the first one's answer."""
    job, answers = receipt.job, current().answers
    if receipt.repeated and key and not wait_s and (stored := answers.get(job.owner, key)):
        response = Response(stored, status=202, content_type="application/json")
        response.headers["Retry-After"] = str(_POLL_S)
    else:
        response = _answer(job, 202, None if receipt.repeated else _fresh_outlook(receipt))
        if key and not receipt.repeated:
            answers.keep(job.owner, key, response.get_data())
        if wait_s:
            response = _waited(response, job, wait_s)
    if receipt.repeated:
        response.headers["Idempotency-Replayed"] = "true"
    return response


def _fresh_outlook(receipt: Receipt) -> Outlook:
    try:
        return current().outlooks.fresh(receipt.job, receipt.images_ahead)
    except Unavailable:
        # The job has been taken: anything but a 202 would have it sent again.
        return Outlook(receipt.images_ahead, None, 0)


def _waited(accepted: Response, job: Job, wait_s: int) -> Response:
    """The answer when the job has ended or the time is up; what was `accepted` when Redis goes away meanwhile."""
    try:
        job = until_done(job, wait_s)
        return _answer(job, 200 if job.done else 202)
    except Unavailable:
        return accepted


def _dry_run(submission: Submission) -> dict[str, Any]:
    current().intake.check(submission)
    job = preview(submission)
    load = current().outlooks.load()
    cost = price(job.parameters, planned=submission.reused is not None)
    guess = outlook(job, load, position=load.queued)
    return {
        "dry_run": True,
        "parameters": parameters_view(job),
        "price": {"ar_tokens": cost.ar_tokens, "dit_steps": cost.dit_steps, "pixels": cost.pixels},
        "queue_position": guess.position,
        "estimate": estimate_view(guess),
    }


# --- read


@blueprint.get("", summary="List jobs", responses={"200": JobListOut, "422": Problem})
def page(query: ListQuery) -> Response:
    """The newest jobs first. A page may hold fewer than `limit` while `has_more` is true: go on with its cursor."""
    only = Filter(frozenset(_statuses(query.status)), _moment(query.created_after))
    found = current().store.page(caller().owner, limit=query.limit, cursor=query.cursor, only=only)
    data = [job_view(job, base_url()) for job in found.jobs]
    return jsonify({"data": data, "next_cursor": found.cursor, "has_more": found.cursor is not None})


def _statuses(text: str | None) -> list[str]:
    names = [] if text is None else text.split(",")
    known = [status.value for status in JobStatus]
    if unknown := [name for name in names if name not in known]:
        raise RefusedInput("status", f"must be of {', '.join(known)}; {unknown[0][:40]!r} is not")
    return names


def _moment(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
        found = found if found.tzinfo else found.replace(tzinfo=UTC)
        return max(0, int(found.timestamp() * 1000))
    except (ValueError, OverflowError) as error:
        raise RefusedInput("created_after", "must be a time such as 2026-01-31T12:00:00Z") from error


@blueprint.get("/<job_id>", summary="Look at a job", responses=MISSING | {"200": JobOut, "304": None, "422": Problem})
def get(path: JobPath, query: WaitQuery) -> Response:
    """The job with the state, step and timings of each image.

    With `If-None-Match` and `wait` the answer is held until the job changes: 200, or 304 when it has not.
    """
    job = find_job(path.job_id)
    known = request.if_none_match
    versions = {int(match[1]) for tag in known.as_set(include_weak=True) if (match := _TAG.fullmatch(tag))}
    if query.wait and not job.done and (not versions or job.version in versions):
        until_changed(job.id, job.version, query.wait)
        job = find_job(path.job_id)
    answer = _answer(job)
    tag = _etag(job, answer)
    response = Response(status=304) if known.contains_weak(tag.strip('"')) else answer
    response.headers["ETag"] = tag
    response.headers["Cache-Control"] = "private, no-cache"
    return response


# --- end


@blueprint.post(
    "/<job_id>/cancel",
    summary="Cancel a job",
    responses=MISSING | {"200": JobOut, "202": JobOut, "409": Problem},
)
def cancel(path: JobPath) -> Response:
    """Cancel every image that has not ended; finished images stay. 202 while a worker still has to let go of one."""
    job = current().intake.cancel(find_job(path.job_id).id)
    if job.done and job.status is not JobStatus.CANCELED:
        raise Conflict(f"job {job.id} has ended: {job.status.value}")
    return _answer(job, 200 if job.done else 202)


@blueprint.delete("/<job_id>", summary="Delete a job", responses=MISSING | {"204": None, "409": Problem})
def delete(path: JobPath) -> Response:
    """Remove a job that has ended, with its pictures, its event log and its undelivered events."""
    current().intake.delete(find_job(path.job_id).id)
    return Response(status=204)


# --- images


@blueprint.get("/<job_id>/images/<int:index>", summary="Look at an image", responses=MISSING | {"200": ImageOut})
def image(path: ImagePath) -> Response:
    """One image of the job."""
    job = find_job(path.job_id)
    return jsonify(image_view(job, job.images[find_image(job, path.index).index], base_url()))


@blueprint.get(
    "/<job_id>/images/<int:index>/content",
    summary="Fetch a picture",
    responses=MISSING | {"307": None, "409": Problem, "422": Problem},
)
def content(path: ImagePath, query: ContentQuery) -> Any:  # noqa: ANN401 - werkzeug's response
    """Redirects to a URL that is freshly signed and valid for a few minutes."""
    job = find_job(path.job_id)
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
    "/<job_id>/images/<int:index>/prior",
    summary="Fetch the prior tokens",
    responses=MISSING | {"200": PriorOut, "409": Problem},
)
def prior(path: ImagePath) -> Response:
    """The large grid's codebook ids that the picture is painted from."""
    ref = find_image(find_job(path.job_id), path.index)
    tokens = current().intake.prior(ref)
    if tokens is None:
        raise NotReady(f"image {path.index} has no prior tokens yet")
    return jsonify({"height": tokens.grid.height, "width": tokens.grid.width, "ids": list(tokens.ids)})

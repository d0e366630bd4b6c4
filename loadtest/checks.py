"""What must be true of a job as the service tells it, and of its refusals."""

import re
from collections.abc import Collection
from typing import Any

from loadtest.orders import Order

_JOB_ID = re.compile(r"job_[0-9a-f]{32}", re.ASCII)
_SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)
#: Statuses of a job that has ended.
ENDED = ("succeeded", "partial", "failed", "canceled", "expired")
STATUSES = ("queued", "running", "canceling", *ENDED)


class CheckFailed(Exception):
    """The service said or did something that it must not."""


def expect(holds: bool, message: str) -> None:
    """Raises CheckFailed with this message unless it holds."""
    if not holds:
        raise CheckFailed(message)


def same(what: str, found: object, wanted: object) -> None:
    """Raises CheckFailed unless both are equal."""
    expect(found == wanted, f"{what} is {found!r:.200}, not {wanted!r:.200}")


def job_record(order: Order, job: dict[str, Any], job_id: str | None = None) -> None:
    """The record echoes the order: its parameters, its metadata, and n images of the right seeds and sizes."""
    expect(bool(_JOB_ID.fullmatch(job["id"])), f"the job's id is {job['id']!r}")
    same("the job's id", job["id"], job_id or job["id"])
    for name, wanted in order.body().items():
        same(name, job[name] if name == "metadata" else job["parameters"][name], wanted)
    expect(job["status"] in STATUSES, f"the job's status is {job['status']!r}")
    same("whether completed_at is set", job["completed_at"] is not None, job["status"] in ENDED)
    same("the number of images", len(job["images"]), order.n)
    for index, image in enumerate(job["images"]):
        image_record(order, index, image)


def image_record(order: Order, index: int, image: dict[str, Any]) -> None:
    """The image is the order's, at its place and with its own seed, in whatever state."""
    same("the image's index", image["index"], index)
    same(f"the seed of image {index}", image["seed"], order.image_seed(index))
    same(f"the size of image {index}", f"{image['width']}x{image['height']}", order.size)
    same(f"the steps of image {index}", image["steps"], order.steps)
    expect(0 <= image["step"] <= order.steps, f"image {index} is at step {image['step']} of {order.steps}")
    if image["status"] == "succeeded":
        same(f"the last step of image {index}", image["step"], order.steps)
        same(f"the content type of image {index}", image["content_type"], f"image/{order.output_format}")
        expect(bool(_SHA256.fullmatch(image["sha256"])), f"the sha256 of image {index} is {image['sha256']!r}")
        expect(image["bytes"] > 0 and bool(image["content_url"]), f"image {index} succeeded without a picture")
        same(f"the error of image {index}", image["error"], None)
    else:
        same(f"the picture of image {index}, which is {image['status']},", image["content_url"], None)


def ended(order: Order, job: dict[str, Any], statuses: Collection[str] = ("succeeded",)) -> None:
    """The job has ended in one of these ways, and its images agree with it. A failed image is never right."""
    job_record(order, job)
    errors = [image["error"] for image in job["images"] if image["error"]]
    expect(job["status"] in statuses, f"the job is {job['status']}, not {' or '.join(statuses)}; errors: {errors}")
    states = {image["status"] for image in job["images"]}
    expect(states <= {"succeeded", "canceled"}, f"the images of a job that is {job['status']} are {sorted(states)}")
    same("whether an image is canceled", "canceled" in states, job["status"] == "canceled")


def problem(content_type: str, body: dict[str, Any], status: int, code: str, pointer: str | None = None) -> None:
    """An RFC 9457 problem that says what is wrong, and where."""
    same("the content type of an error", content_type.partition(";")[0], "application/problem+json")
    same("the status in the problem", body["status"], status)
    same("the problem's code", body["code"], code)
    expect(bool(body["title"]) and bool(body["detail"]), f"the problem {code} says nothing")
    if pointer is not None:
        same("what the problem points at", [error["pointer"] for error in body["errors"]], [pointer])

"""The whole stack by HTTP: each picture is judged from its own pixels against its own prompt."""

import io
import json
import subprocess
import sys
import threading

import numpy as np
import pytest
import requests
from PIL import ExifTags, Image
from standardwebhooks import Webhook
from werkzeug import Request, Response

from app import demo
from app.bench.judge import draw, judge, parse
from app.domain.sizes import Size
from loadtest.orders import SURE
from tests.integration.stack import RunningStack
from tests.servers import wait_until


def _image(stack: RunningStack, job: dict, index: int = 0) -> Image.Image:
    image = Image.open(io.BytesIO(stack.picture(job, index)))
    image.load()
    return image


def test_a_mixed_load_draws_what_each_prompt_says(stack):
    """Those of `make demo`, which a newcomer sees."""
    jobs = [stack.submit(**order) for order in demo.JOBS]
    done = stack.wait_done(*(job["id"] for job in jobs))
    stack.check_pictures(*done)
    for job in done:
        assert job["status"] == "succeeded", job
        for image in job["images"]:
            assert image["step"] == image["steps"] == 12
            assert image["attempts"] == {"ar": 1, "dit": 1}


@pytest.mark.parametrize(
    ("size", "output_format", "kind"),
    [("250x230", "png", "PNG"), ("33x1", "jpeg", "JPEG"), ("128x192", "webp", "WEBP"), ("500x300", "png", "PNG")],
)
def test_every_size_and_format_is_exact(stack, size, output_format, kind):
    job = stack.submit(size=size, output_format=output_format, steps=2)
    (job,) = stack.wait_done(job["id"])
    assert job["status"] == "succeeded", job
    image = _image(stack, job)
    assert image.format == kind
    assert f"{image.width}x{image.height}" == size
    assert job["images"][0]["content_type"] == f"image/{output_format}"
    prior = requests.get(f"{stack.url}/v1/jobs/{job['id']}/images/0/prior", timeout=10).json()
    grid = Size.parse(size).large_grid
    assert (prior["height"], prior["width"], len(prior["ids"])) == (grid.height, grid.width, grid.tokens)


ODD = 'the sign "Grüße 猫🐈", \n a second line: Seed: 1'


def _written(image: Image.Image) -> tuple[str, dict]:
    """The infotext and the JSON of a file, wherever its format keeps them."""
    if image.format == "PNG":
        return image.text["parameters"], json.loads(image.text["planpaint"])
    exif = image.getexif()
    comment = exif.get_ifd(ExifTags.IFD.Exif)[ExifTags.Base.UserComment]
    assert comment.startswith(b"UNICODE\0")
    return comment[8:].decode("utf-16-be"), json.loads(exif[ExifTags.Base.ImageDescription])


@pytest.mark.parametrize("output_format", ["png", "jpeg", "webp"])
def test_a_file_tells_how_it_was_made_unless_told_not_to(stack, output_format):
    asked = {"size": "320x128", "steps": 2, "seed": 5, "n": 2, "output_format": output_format, "guidance_scale": 2.0}
    told, silent = stack.submit(ODD, **asked), stack.submit(ODD, **asked, embed_metadata=False)
    told, silent = stack.wait_done(told["id"], silent["id"])
    infotext, exact = _written(_image(stack, told, 1))
    assert infotext.startswith(
        f"{ODD}\nSteps: 2, CFG scale: 2.0, Seed: 6, Size: 320x128, Model: demo, Job: {told['id']}"
    )
    wanted = {"prompt": ODD, "seed": 6, "size": "320x128", "job": told["id"], "index": 1, "condition_images": 0}
    assert exact | wanted == exact
    quiet = stack.picture(silent, 1)
    for trace in (silent["id"].encode(), b"planpaint", b"Gr", b"parameters", b"Exif", b"iTXt"):
        assert trace not in quiet
    assert np.array_equal(np.asarray(_image(stack, told, 1)), np.asarray(_image(stack, silent, 1)))
    small = Image.open(io.BytesIO(requests.get(told["images"][1]["thumbnail_url"], timeout=10).content))
    assert (small.format, small.size, small.getexif()) == ("WEBP", (256, 102), {})
    large = np.asarray(_image(stack, told, 1).convert("RGB").resize(small.size, Image.Resampling.LANCZOS), float)
    assert np.abs(large - np.asarray(small.convert("RGB"), float)).mean() < 8


def test_a_picture_follows_from_its_seed_whatever_shares_its_batch(stack):
    alone = stack.wait_done(stack.submit(seed=41, steps=4, embed_metadata=False)["id"])[0]
    crowd = [stack.submit(prompt, seed=index, steps=2) for index, prompt in enumerate(SURE)]
    again = stack.submit(seed=40, n=3, steps=4, embed_metadata=False)
    *_, again = stack.wait_done(*(job["id"] for job in crowd), again["id"])
    shas = [image["sha256"] for image in again["images"]]
    assert shas[1] == alone["images"][0]["sha256"]
    assert len(set(shas)) == 3


@pytest.mark.parametrize("prompt", ["猫と犬 🐈", "Ω≈ç√∫˜µ≤", "שלום", "<|image|><sop>9 9<eop>", 'a sign "HI"', "\n\t x"])
def test_a_prompt_in_any_script_gives_some_picture(stack, prompt):
    (job,) = stack.wait_done(stack.submit(prompt, size="64x64", steps=2)["id"])
    assert job["status"] == "succeeded", job
    assert job["parameters"]["prompt"] == prompt


def test_an_edit_changes_what_it_is_told_to(stack):
    file = io.BytesIO()
    draw(parse("a yellow square on a blue background"), (256, 256)).save(file, "PNG")
    body = {"prompt": "change the background to red", "steps": 12, "temperature": 0, "seed": 5}
    answer = requests.post(
        f"{stack.url}/v1/jobs",
        data={"job": json.dumps(body)},
        files=[("image", ("square.png", file.getvalue(), "image/png"))],
        timeout=30,
    )
    assert answer.status_code == 202, answer.text
    (job,) = stack.wait_done(answer.json()["id"])
    assert job["status"] == "succeeded", job
    assert job["inputs"] == 1
    verdict = judge("a yellow square on a red background", _image(stack, job))
    assert verdict.full, verdict.explain()
    again = {"reuse_prior": {"job": job["id"], "index": 0}, "steps": 12, "seed": 6}
    (job,) = stack.wait_done(requests.post(f"{stack.url}/v1/jobs", json=again, timeout=10).json()["id"])
    assert job["images"][0]["attempts"] == {"ar": 0, "dit": 1}
    verdict = judge("a yellow square on a red background", _image(stack, job))
    assert verdict.full, verdict.explain()


class Receiver:
    """A webhook receiver that verifies what it gets, and refuses the first `refusals` tries."""

    def __init__(self, secret: str, refusals: int = 0) -> None:
        self.webhook = Webhook(secret)
        self.refusals = refusals
        self.tries = 0
        self.events: list[tuple[str, dict]] = []
        self.lock = threading.Lock()

    def __call__(self, request: Request) -> Response:
        with self.lock:
            self.tries += 1
            if self.tries <= self.refusals:
                return Response(status=503)
            body = request.get_data(as_text=True)
            self.webhook.verify(body, dict(request.headers))
            self.events.append((request.headers["webhook-id"], json.loads(body)))
            return Response(status=204)


@pytest.fixture
def secret(stack) -> str:
    command = [sys.executable, "-m", "app.cli", "webhook-secret", "--data-dir", str(stack.data)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_webhooks_announce_each_image_and_the_job(stack, secret, httpserver):
    receiver = Receiver(secret, refusals=1)
    httpserver.expect_request("/hook").respond_with_handler(receiver)
    job = stack.submit(n=2, steps=2, webhook_url=httpserver.url_for("/hook"), metadata={"order": 7})
    (job,) = stack.wait_done(job["id"])
    wait_until(lambda: len(receiver.events) >= 4, what="four events")
    events = {event["sequence"]: event for _, event in receiver.events}
    types = ["job.started", "image.completed", "image.completed", "job.completed"]
    assert [events[s]["type"] for s in (1, 2, 3, 4)] == types
    assert receiver.tries == 5
    assert len({event_id for event_id, _ in receiver.events}) == 4
    for event in events.values():
        assert event["data"]["job_id"] == job["id"]
        assert event["data"]["metadata"] == {"order": 7}
    by_index = {events[s]["data"]["image"]["index"]: events[s]["data"]["image"] for s in (2, 3)}
    assert [by_index[i] for i in range(2)] == job["images"]
    told = events[4]["data"]["job"]
    assert told["images"] == job["images"]
    assert told | {"parameters": job["parameters"], "metadata": job["metadata"]} == job
    assert requests.get(by_index[0]["content_url"], timeout=10).content == stack.picture(job, 0)
    deliveries = requests.get(f"{stack.url}/v1/jobs/{job['id']}/deliveries", timeout=10).json()["data"]
    assert sorted(delivery["attempts"] for delivery in deliveries) == [1, 1, 1, 2]


def test_a_canceled_job_stops_and_keeps_what_is_finished(stack):
    job = stack.submit(SURE[1], temperature=0, n=4, steps=60)
    wait_until(lambda: stack.get(job["id"])["images"][0]["stage"] == "dit", timeout=60, what="painting")
    answer = requests.post(f"{stack.url}/v1/jobs/{job['id']}/cancel", timeout=10)
    assert (answer.status_code, answer.json()["status"]) in ((202, "canceling"), (200, "canceled"))
    (job,) = stack.wait_done(job["id"])
    assert job["status"] == "canceled"
    follower = stack.wait_done(stack.submit(SURE[2], temperature=0)["id"])[0]
    assert follower["status"] == "succeeded"
    assert stack.get(job["id"]) == job
    stack.check_pictures(job, follower)


def test_a_stream_follows_a_job_from_start_to_end(stack):
    job = stack.submit(steps=40)
    with requests.get(f"{stack.url}/v1/jobs/{job['id']}/events", stream=True, timeout=120) as stream:
        lines = [line for line in stream.iter_lines(decode_unicode=True) if line.startswith("event: ")]
    types = [line.removeprefix("event: ") for line in lines]
    assert [kind for kind in types if kind != "image.progress"] == ["job.started", "image.completed", "job.completed"]
    assert "image.progress" in types
    estimate = stack.submit(steps=12, size="256x256")["estimate"]
    assert estimate["seconds"] > 0
    assert estimate["measured_images"] >= 1


def test_a_deadline_stops_what_is_running(stack):
    """LostRuins/koboldcpp#1531: work that nobody can stop."""
    body = {"prompt": "a red circle on a blue background", "size": "1024x1024", "steps": 100, "n": 4}
    answer = requests.post(f"{stack.url}/v1/jobs", json=body, headers={"Cancel-After": "5"}, timeout=10)
    (job,) = stack.wait_done(answer.json()["id"])
    assert job["status"] in ("canceled", "expired")
    assert {image["error"]["code"] for image in job["images"] if image["error"]} == {"deadline_exceeded"}
    (follower,) = stack.wait_done(stack.submit(steps=2)["id"])
    assert follower["status"] == "succeeded"


def test_a_deleted_job_takes_its_pictures_along(stack):
    (job,) = stack.wait_done(stack.submit(steps=2)["id"])
    url = f"{stack.url}/v1/jobs/{job['id']}"
    signed = requests.get(f"{url}/images/0/content", allow_redirects=False, timeout=10).headers["Location"]
    assert requests.get(signed, timeout=10).status_code == 200
    assert requests.delete(url, timeout=10).status_code == 204
    assert requests.get(url, timeout=10).status_code == 410
    assert requests.get(signed, timeout=10).status_code == 404


def test_progress_is_seen_while_an_image_is_painted(stack):
    job = stack.submit(size="128x128", steps=40)
    seen = set()

    def done() -> bool:
        image = stack.get(job["id"])["images"][0]
        seen.add((image["status"], image["step"]))
        return image["status"] == "succeeded"

    wait_until(done, timeout=120, what="the picture")
    steps = sorted(step for status, step in seen if status == "running")
    assert len([step for step in steps if 0 < step < 40]) >= 2


def test_the_workers_are_listed(stack):
    roles = [worker["role"] for worker in requests.get(f"{stack.url}/v1/workers", timeout=10).json()["data"]]
    assert sorted(roles) == ["ar", "courier", "dit", "sweeper"]


def test_the_pages_load_in_the_running_service(stack):
    assert requests.get(f"{stack.url}/docs", timeout=10).status_code == 200
    assert "planpaint_images_succeeded_total" in requests.get(f"{stack.url}/metrics", timeout=10).text

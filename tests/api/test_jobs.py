import gzip
import hashlib
import json
from dataclasses import replace

import pytest
import requests
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from app import keys, wiring
from app.domain.messages import ImageRef
from tests.servers import is_empty
from tests.store.orders import PLAN, PRIOR, paint, plan

PROMPT = "a red circle on a blue background"


def _submit(http, **fields):
    answer = http.post("/v1/jobs", json={"prompt": PROMPT, "size": "256x256"} | fields)
    assert answer.status_code == 202, answer.text
    return answer.get_json()


def _finish(store, settings, job_id, index=0):
    """Take an image through both stages by hand, with a real object."""
    ref = ImageRef(job_id, index)
    store.hand_over(plan(store, ref), PLAN)
    lease = paint(store, ref)
    data = b"picture"
    blobs, stem = wiring.worker_blobs(settings), f"jobs/{job_id}/{index}/2"
    stored = blobs.put(f"{stem}.png", data, "image/png", hashlib.sha256(data).digest())
    small = blobs.put(f"{stem}.thumbnail.webp", b"small", "image/webp", hashlib.sha256(b"small").digest())
    store.commit(lease, replace(stored, thumbnail=small.key), steps=12)


def test_submit_answers_202_with_everything_that_was_decided(http):
    answer = http.post("/v1/jobs", json={"prompt": PROMPT, "size": "256x256", "n": 3, "metadata": {"a": [1, None]}})
    job = answer.get_json()
    assert answer.status_code == 202
    assert answer.headers["Location"] == f"/v1/jobs/{job['id']}"
    assert int(answer.headers["Retry-After"]) >= 1
    assert job["status"] == "queued"
    assert job["metadata"] == {"a": [1, None]}
    parameters = job["parameters"]
    assert 0 <= parameters["seed"] < 2**32
    assert parameters | {"seed": 0} == {
        "prompt": PROMPT,
        "size": "256x256",
        "n": 3,
        "seed": 0,
        "steps": 30,
        "guidance_scale": 1.5,
        "temperature": 0.9,
        "top_p": 0.75,
        "top_k": 0,
        "output_format": "png",
        "embed_metadata": True,
    }
    assert [image["seed"] for image in job["images"]] == [(parameters["seed"] + i) % 2**32 for i in range(3)]


def test_seeds_wrap_at_2_to_the_32(http):
    assert [image["seed"] for image in _submit(http, n=2, seed=2**32 - 1)["images"]] == [2**32 - 1, 0]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("prompt", ""),
        ("prompt", "  \n"),
        ("prompt", "\ud800"),
        ("prompt", "a\x00b"),
        ("prompt", "x" * 4001),
        ("prompt", "\U00010348\u0a0d" * 1200),
        ("prompt", 5),
        ("prompt", None),
        ("size", "0x10"),
        ("size", "-1x10"),
        ("size", "99999x1"),
        ("size", "x"),
        ("size", 256),
        ("n", 0),
        ("n", 11),
        ("n", "2"),
        ("n", 1.5),
        ("n", True),
        ("seed", -1),
        ("seed", 2**32),
        ("steps", 0),
        ("steps", 101),
        ("guidance_scale", float("nan")),
        ("guidance_scale", float("inf")),
        ("guidance_scale", -1),
        ("temperature", float("-inf")),
        ("temperature", 3),
        ("temperature", 1e-40),
        ("top_p", 0),
        ("top_p", 1.1),
        ("top_k", -1),
        ("output_format", "gif"),
        ("webhook_url", "ftp://x/"),
        ("webhook_url", "http://user:pw@x/"),
        ("webhook_url", "http://"),
        ("webhook_url", "http://h:99999/"),
        ("webhook_url", "http://h:0/"),
        ("webhook_url", "http://a b/"),
        ("webhook_url", "http://a/\nb"),
        ("webhook_url", "http://[::1/"),
        ("webhook_url", "http://x/" + "y" * 2048),
        ("metadata", {"x": float("nan")}),
        ("metadata", {"x": "y" * 20_000}),
        ("metadata", [1]),
        ("colour", "red"),
    ],
)
def test_bad_input_names_its_field_and_queues_nothing(http, client, field, value):
    body = json.dumps({"prompt": PROMPT, "size": "256x256"} | {field: value})
    answer = http.post("/v1/jobs", data=body, content_type="application/json")
    problem = answer.get_json()
    assert answer.status_code == 422
    assert answer.content_type == "application/problem+json"
    assert problem["errors"][0]["pointer"].startswith(f"/{field}")
    assert field in problem["detail"]
    assert is_empty(client)


def test_the_area_cap_is_the_operators(servers, client):
    from api.application import build

    http = build(servers.settings(max_pixels=256 * 256)).test_client()
    answer = http.post("/v1/jobs", json={"prompt": PROMPT, "size": "257x256"})
    assert answer.status_code == 422
    assert answer.get_json()["errors"][0]["pointer"] == "/size"


@pytest.mark.parametrize(
    ("body", "content_type", "status"),
    [
        ("{", "application/json", 400),
        ("", "application/json", 400),
        ("[]", "application/json", 422),
        ('"text"', "application/json", 422),
        ('"{\\"prompt\\": \\"x\\"}"', "application/json", 422),
        ("null", "application/json", 422),
        ("{}", "text/plain", 415),
        ("[" * 100_000, "application/json", 400),
        (b"\xff\xfe", "application/json", 400),
        ('{"prompt": "' + "x" * 2**20 + '"}', "application/json", 413),
    ],
)
def test_bodies_that_are_no_job(http, client, body, content_type, status):
    answer = http.post("/v1/jobs", data=body, content_type=content_type)
    assert answer.status_code == status
    assert answer.content_type == "application/problem+json"
    assert answer.get_json()["status"] == status
    assert is_empty(client)


@pytest.mark.parametrize(("encoding", "status"), [("gzip", 415), ("identity", 202)])
def test_a_packed_body_is_not_called_broken_json(http, encoding, status):
    body = json.dumps({"prompt": "x", "size": "32x32"}).encode()
    data = gzip.compress(body) if encoding == "gzip" else body
    headers = {"Content-Encoding": encoding, "Content-Type": "application/json"}
    assert http.post("/v1/jobs", data=data, headers=headers).status_code == status


@hypothesis_settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(st.text(min_size=1, max_size=200))
def test_a_prompt_in_any_script_comes_back_as_it_was(http, prompt):
    answer = http.post("/v1/jobs", json={"prompt": prompt, "size": "32x32"})
    if prompt.strip() and "\x00" not in prompt:
        assert answer.status_code == 202
        job_id = answer.get_json()["id"]
        assert http.get(f"/v1/jobs/{job_id}").get_json()["parameters"]["prompt"] == prompt
    else:
        assert answer.status_code == 422


def test_an_image_is_followed_from_queue_to_content(http, store, settings):
    job = _submit(http, n=2)
    url = f"/v1/jobs/{job['id']}"
    assert http.get(f"{url}/images/0/content").status_code == 409
    assert http.get(f"{url}/images/0/prior").status_code == 409
    _finish(store, settings, job["id"])
    job = http.get(url).get_json()
    first, second = job["images"]
    assert job["status"] == "running"
    assert (first["status"], first["stage"], first["step"], first["bytes"]) == ("succeeded", "dit", 12, 7)
    assert (second["status"], second["stage"]) == ("queued", "ar")
    assert all(first["timings"][name] >= 0 for name in ("queued_s", "ar_s", "planned_s", "dit_s", "total_s"))
    answer = http.get(first["content_url"].removeprefix("http://localhost"))
    assert answer.status_code == 307
    assert answer.headers["Cache-Control"] == "no-store"
    assert requests.get(answer.headers["Location"], timeout=5).content == b"picture"
    answer = http.get(first["thumbnail_url"].removeprefix("http://localhost"))
    assert requests.get(answer.headers["Location"], timeout=5).content == b"small"
    answer = http.get(f"{url}/images/0/content?variant=large")
    assert answer.status_code == 422
    assert answer.get_json()["errors"][0]["pointer"] == "/variant"
    assert http.get(f"{url}/images/0/prior").get_json() == {"height": 8, "width": 8, "ids": list(range(64))}


@pytest.mark.parametrize("path", ["job_x", "job_" + "0" * 32, "..%2f..", "job_" + "0" * 32 + "/images/0/content"])
def test_unknown_jobs_are_404(http, path):
    answer = http.get(f"/v1/jobs/{path}")
    assert answer.status_code == 404
    assert answer.content_type == "application/problem+json"


@pytest.mark.parametrize("index", ["1", "10", "-1", "x", "99999999999999999999"])
def test_unknown_images_are_404(http, index):
    job = _submit(http)
    for kind in ("content", "prior"):
        assert http.get(f"/v1/jobs/{job['id']}/images/{index}/{kind}").status_code == 404


def test_cancel_keeps_what_is_finished_and_may_be_repeated(http, store, settings):
    job = _submit(http, n=3)
    _finish(store, settings, job["id"], 1)
    for _ in range(2):
        answer = http.post(f"/v1/jobs/{job['id']}/cancel")
        assert answer.status_code == 200
        assert answer.get_json()["status"] == "canceled"
        assert [image["status"] for image in answer.get_json()["images"]] == ["canceled", "succeeded", "canceled"]


def test_a_failed_image_tells_why(http, store):
    job = _submit(http)
    store.fail(plan(store, ImageRef(job["id"], 0)), "prompt_too_long", "the prompt takes 99 tokens of at most 64")
    image = http.get(f"/v1/jobs/{job['id']}").get_json()["images"][0]
    assert image["error"] == {"code": "prompt_too_long", "message": "the prompt takes 99 tokens of at most 64"}
    assert (image["content_url"], image["thumbnail_url"]) == (None, None)


def test_nothing_of_a_prompt_is_a_key(http, client):
    _submit(http, prompt="find-me")
    assert not [key for key in client.keys("*") if b"find-me" in key]
    assert client.exists(keys.DUE)


def test_a_stored_plan_is_painted_again_without_ar(http, store, settings, client):
    source = _submit(http, n=2, seed=3)
    _finish(store, settings, source["id"], 1)
    reuse = {"job": source["id"], "index": 1}
    answer = http.post("/v1/jobs", json={"reuse_prior": reuse, "steps": 5, "n": 2, "seed": 9, "output_format": "webp"})
    job = answer.get_json()
    assert answer.status_code == 202
    assert job["reuse_prior"] == reuse
    assert job["parameters"]["prompt"] == PROMPT
    assert job["parameters"]["size"] == "256x256"
    assert [(image["stage"], image["seed"]) for image in job["images"]] == [("dit", 9), ("dit", 10)]
    for index in range(2):
        ref = ImageRef(job["id"], index)
        assert store.plan(ref) == PLAN
        assert ref in store.due(100), "the sweeper hints it at once"
        assert store.claim_paint(ref, token=f"t{index}").prior == PRIOR
    assert http.get(f"/v1/jobs/{job['id']}").get_json()["images"][0]["attempts"] == {"ar": 0, "dit": 1}


def test_a_plan_may_be_painted_at_any_size_of_its_grid(http, store, settings):
    source = _submit(http)
    _finish(store, settings, source["id"])
    reuse = {"job": source["id"], "index": 0}
    assert http.post("/v1/jobs", json={"reuse_prior": reuse, "size": "230x250"}).status_code == 202
    answer = http.post("/v1/jobs", json={"reuse_prior": reuse, "size": "256x384"})
    assert (answer.status_code, answer.get_json()["errors"][0]["pointer"]) == (422, "/size")


@pytest.mark.parametrize("index", [0, 5])
def test_a_plan_that_is_not_there_names_the_field(http, index):
    source = _submit(http)
    for job in (source["id"], "job_" + "0" * 32):
        answer = http.post("/v1/jobs", json={"reuse_prior": {"job": job, "index": index}})
        assert (answer.status_code, answer.get_json()["errors"][0]["pointer"]) == (422, "/reuse_prior")

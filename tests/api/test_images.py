import base64
import io
import json

import pytest
import requests
from PIL import Image

from api.application import build
from app import wiring
from tests.servers import is_empty

PROMPT = "make the circle green"


def _png(size=(128, 128), colour="red"):
    data = io.BytesIO()
    Image.new("RGB", size, colour).save(data, "PNG")
    return data.getvalue()


def _base64(data):
    return base64.b64encode(data).decode()


def _stored(settings, job, number):
    url = wiring.api_blobs(settings).presign(f"jobs/{job['id']}/inputs/{number}.png")
    return Image.open(io.BytesIO(requests.get(url, timeout=5).content))


@pytest.fixture
def http(servers, client):
    return build(servers.settings(webhook_allow="127.0.0.0/8", max_image_bytes=200_000)).test_client()


def test_images_come_as_base64_data_urls_and_links(http, settings, httpserver, store):
    httpserver.expect_request("/x.png").respond_with_data(_png(colour="blue"), content_type="image/png")
    images = [_base64(_png()), "data:image/png;base64," + _base64(_png((256, 128))), httpserver.url_for("/x.png")]
    answer = http.post("/v1/jobs", json={"prompt": PROMPT, "images": images})
    job = answer.get_json()
    assert answer.status_code == 202, job
    assert job["inputs"] == 3
    assert _stored(settings, job, 1).size == (256, 128)
    assert _stored(settings, job, 2).getpixel((3, 3)) == (0, 0, 255)
    assert len(store.get(job["id"]).inputs) == 3


def test_images_come_as_files_of_a_form(http, settings):
    data = {"job": json.dumps({"prompt": PROMPT, "seed": 3}), "image": [(io.BytesIO(_png((320, 256))), "a.png")]}
    job = http.post("/v1/jobs", data=data).get_json()
    assert job["inputs"] == 1
    assert job["parameters"]["seed"] == 3
    assert job["parameters"]["size"] == "320x256", "the size of the first picture"


def test_the_forms_job_is_checked_like_any_other(http):
    for job, status in (("{", 400), ("[]", 422), (json.dumps({"prompt": PROMPT, "colour": 1}), 422)):
        assert http.post("/v1/jobs", data={"job": job, "image": (io.BytesIO(_png()), "a")}).status_code == status
    missing = http.post("/v1/jobs", data={"image": (io.BytesIO(_png()), "a.png")})
    assert (missing.status_code, "field job" in missing.get_json()["detail"]) == (400, True)


def test_what_a_form_holds_is_used_or_refused(http, client):
    """fal-ai/fal-js#135, of forms: a picture that came as text, or under another name, was accepted and ignored."""
    job = json.dumps({"prompt": PROMPT})
    for name, value in (("image", "text"), ("seed", "7"), ("picture", (io.BytesIO(_png()), "a.png"))):
        answer = http.post("/v1/jobs", data={"job": job, name: value}, content_type="multipart/form-data")
        assert (answer.status_code, answer.get_json()["errors"][0]["pointer"]) == (422, f"/{name}")
    answer = http.post("/v1/jobs", data={"job": [job, job]}, content_type="multipart/form-data")
    assert (answer.status_code, answer.get_json()["errors"][0]["pointer"]) == (422, "/job")
    for name, value in (("other", (io.BytesIO(_png()), "b.png")), ("prompt", [PROMPT, "x"]), ("colour", "red")):
        edit = {"prompt": PROMPT, "image": (io.BytesIO(_png()), "a.png"), name: value}
        answer = http.post("/v1/images/edits", data=edit)
        assert (answer.status_code, answer.get_json()["error"]["param"]) == (400, name)
    assert answer.get_json()["error"]["message"] == "colour: is not a known field"
    assert is_empty(client)


@pytest.mark.parametrize(
    "image",
    [
        "",
        "???",
        _base64(b"no picture"),
        _base64(_png())[:-30],
        "data:image/png,abc",
        "http://169.254.169.254/latest",
        "https://10.0.0.1/x.png",
        "http://127.0.0.1:1/x.png",
    ],
)
def test_a_bad_image_names_itself_and_queues_nothing(http, client, image):
    answer = http.post("/v1/jobs", json={"prompt": PROMPT, "images": [_base64(_png()), image]})
    assert answer.status_code == 422
    assert answer.get_json()["errors"][0]["pointer"] == "/images/1"
    assert is_empty(client)


def test_links_are_bounded_and_redirects_are_not_followed(http, httpserver):
    httpserver.expect_request("/big").respond_with_data(b"x" * 300_000)
    httpserver.expect_request("/moved").respond_with_data(status=302, headers={"Location": httpserver.url_for("/big")})
    for path, words in (("/big", "bytes"), ("/moved", "HTTP 302")):
        answer = http.post("/v1/jobs", json={"prompt": PROMPT, "images": [httpserver.url_for(path)]})
        assert words in answer.get_json()["detail"]


def test_too_many_images(http):
    answer = http.post("/v1/jobs", json={"prompt": PROMPT, "images": [_base64(_png())] * 5})
    assert answer.get_json()["errors"][0]["pointer"] == "/images"
    files = [(io.BytesIO(_png()), f"{n}.png") for n in range(5)]
    answer = http.post("/v1/jobs", data={"job": json.dumps({"prompt": PROMPT}), "image": files})
    assert answer.get_json()["errors"][0]["pointer"] == "/images"


def test_a_json_body_stays_small_where_a_form_may_be_large(http):
    body = json.dumps({"prompt": PROMPT, "images": ["A" * 2**20]})
    assert http.post("/v1/jobs", data=body, content_type="application/json").status_code == 413


def test_a_service_whose_ar_server_takes_no_images_says_so(servers, client):
    http = build(servers.settings(ar_backend="srt", srt_url="http://127.0.0.1:1")).test_client()
    answer = http.post("/v1/jobs", json={"prompt": PROMPT, "images": [_base64(_png())]})
    assert answer.get_json()["errors"][0]["pointer"] == "/images"

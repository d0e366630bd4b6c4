"""The unmodified `openai` client against a running process; the workers are played by a thread."""

import base64
import io
import re
import threading

import openai
import pytest
import requests
from PIL import Image

from api.application import build
from app import keys
from app.domain.messages import ImageRef
from app.errors import LostLease
from tests.api.orders import Workers, a_picture
from tests.servers import is_empty, wait_until


@pytest.fixture
def workers(store, settings, client):
    with Workers(settings) as playing:
        yield playing


@pytest.fixture
def ask(live, client):
    """OpenAI's client, as its users make it."""
    with openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", timeout=30) as made:
        yield made


def _open(picture):
    return Image.open(io.BytesIO(base64.b64decode(picture.b64_json)))


def test_generate_with_both_forms_and_extras(ask, workers, store):
    found = ask.images.generate(
        model="glm-image",
        prompt="a red circle",
        n=2,
        size="256x256",
        extra_body={"seed": 7, "steps": 5, "guidance": 2.5},
    )
    assert len(found.data) == 2
    assert [picture.seed for picture in found.data] == [7, 8]
    assert _open(found.data[0]).size == (256, 256)
    assert requests.get(found.data[1].url, timeout=5).content == a_picture()
    parameters = store.get(found.id).parameters
    assert (parameters.steps, parameters.guidance_scale, str(parameters.size)) == (5, 2.5, "256x256")


@pytest.mark.parametrize(("form", "there", "absent"), [("url", "url", "b64_json"), ("b64_json", "b64_json", "url")])
def test_the_form_that_is_asked_for_is_the_only_one(ask, workers, form, there, absent):
    (picture,) = ask.images.generate(prompt="x", response_format=form, size="auto", user="u1").data
    assert getattr(picture, there)
    assert getattr(picture, absent) is None


def test_what_is_not_set_may_be_null(ask, workers):
    names = ("background", "model", "moderation", "n", "output_compression", "output_format", "partial_images")
    names += ("quality", "response_format", "size", "stream", "style")
    assert len(ask.images.generate(prompt="x", **dict.fromkeys(names)).data) == 1


def test_what_was_drawn_is_not_drawn_again_while_it_cannot_be_fetched(servers, store, settings, workers, client):
    """CherryHQ/cherry-studio#20033, with an object storage that is away: only a key makes a second try harmless."""
    http = build(servers.settings(s3_endpoint="http://127.0.0.1:1")).test_client()
    for headers, retry in (({}, "false"), ({"Idempotency-Key": "k"}, None)):
        answer = http.post("/v1/images/generations", json={"prompt": "x", "size": "32x32"}, headers=headers)
        assert (answer.status_code, answer.headers.get("x-should-retry")) == (503, retry)
        job_id = re.search(r"job_[0-9a-f]{32}", answer.get_json()["error"]["message"])[0]
        assert store.get(job_id).status == "succeeded"


def test_edit_one_and_several_pictures(ask, workers, store):
    one = ask.images.edit(image=("a.png", a_picture("blue")), prompt="make it green", extra_body={"seed": "3"})
    several = ask.images.edit(image=[("a.png", a_picture()), ("b.png", a_picture("blue"))], prompt="both", n=2)
    assert len(store.get(one.id).inputs) == 1
    assert len(store.get(several.id).inputs) == 2
    assert len(several.data) == 2
    assert one.data[0].seed == 3


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": "x", "n": 11}, "n"),
        ({"prompt": "x", "n": "2"}, "n"),
        ({"prompt": "x", "extra_body": {"steps": True}}, "steps"),
        ({"prompt": "x", "style": "vivid"}, "style"),
        ({"prompt": "x", "size": "9999x1"}, "size"),
        ({"prompt": "x", "stream": True}, "stream"),
        ({"prompt": "x", "quality": "hd"}, "quality"),
        ({"prompt": "x", "background": "transparent"}, "background"),
        ({"prompt": "x", "extra_body": {"negative": "y"}}, "negative"),
        ({"prompt": "\x00"}, "prompt"),
    ],
)
def test_what_is_wrong_is_named_before_any_work(ask, client, fields, param):
    with pytest.raises(openai.BadRequestError) as caught:
        ask.images.generate(**fields)
    assert caught.value.param == param
    assert caught.value.code == "invalid_input"
    assert param in caught.value.message
    assert is_empty(client)


def test_edits_without_a_picture_or_with_a_mask(ask, live):
    with pytest.raises(openai.BadRequestError, match="mask"):
        ask.images.edit(image=("a.png", a_picture()), mask=("m.png", a_picture()), prompt="x")
    answer = requests.post(f"{live.url}/v1/images/edits", files={"other": a_picture()}, data={"prompt": "x"}, timeout=5)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "image")
    answer = requests.post(f"{live.url}/v1/images/edits", json={"prompt": "x"}, timeout=5)
    assert (answer.status_code, answer.json()["error"]["code"]) == (415, "unsupported_media_type")


def test_another_model_is_not_silently_replaced(ask):
    with pytest.raises(openai.NotFoundError) as caught:
        ask.images.generate(model="dall-e-3", prompt="x")
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")


def test_models(ask):
    assert [model.id for model in ask.models.list()] == ["glm-image"]
    assert ask.models.retrieve("glm-image").owned_by == "planpaint"
    with pytest.raises(openai.NotFoundError):
        ask.models.retrieve("gpt-image-1")


def test_failed_pictures_are_an_error_once_and_never_an_empty_success(ask, workers, client):
    """vercel/ai#20156: HTTP 200 with zero images; CherryHQ/cherry-studio#20033: retries that drew three times."""
    workers.fails = lambda index: True
    with pytest.raises(openai.InternalServerError) as caught:
        ask.images.generate(prompt="x")
    assert caught.value.code == "nan_output"
    assert client.hget(keys.STATS, "jobs_accepted") == b"1", "the client did not try again"


def test_what_succeeded_is_given_out_beside_what_failed(ask, workers):
    """Comfy-Org/ComfyUI#9952: a list that mixes pictures and errors crashed its readers."""
    workers.fails = lambda index: index == 1
    found = ask.images.generate(prompt="x", n=3)
    assert [picture.index for picture in found.data] == [0, 2]
    assert [error["index"] for error in found.errors] == [1]


def test_the_clients_own_retries_with_a_key_make_one_job(ask, workers, client):
    tries = [
        ask.images.with_raw_response.generate(prompt="x", extra_headers={"Idempotency-Key": "k"}) for _ in range(2)
    ]
    assert tries[0].parse().id == tries[1].parse().id
    assert [each.headers.get("Idempotency-Replayed") for each in tries] == [None, "true"]
    assert client.hget(keys.STATS, "jobs_accepted") == b"1"
    with pytest.raises(openai.BadRequestError):
        ask.images.generate(prompt="y", extra_headers={"Idempotency-Key": "k"})


@pytest.mark.parametrize("key", [None, "k"])
def test_a_caller_who_leaves_cancels_the_call_unless_it_has_a_key(live, client, store, key):
    """docker/model-runner#1041: abandoned requests still ran, and retries piled up."""
    headers = {"Idempotency-Key": key} if key else {}
    with pytest.raises(requests.exceptions.ReadTimeout):
        requests.post(f"{live.url}/v1/images/generations", json={"prompt": "x"}, headers=headers, timeout=1)
    (job_id,) = [member.decode() for member in client.zrange(keys.jobs_of("anybody"), 0, -1)]
    if key is None:
        wait_until(lambda: store.get(job_id).status == "canceled", what="the cancel")
    else:
        with pytest.raises(requests.exceptions.ReadTimeout):
            requests.get(f"{live.url}/v1/jobs/{job_id}?wait=3", timeout=2)
        assert store.get(job_id).status == "queued"


def test_a_caller_who_leaves_a_job_of_his_own_cancels_nothing(live, client, store):
    body = {"prompt": "x", "size": "32x32"}
    with pytest.raises(requests.exceptions.ReadTimeout):
        requests.post(f"{live.url}/v1/jobs", json=body, headers={"Prefer": "wait=30"}, timeout=1)
    (job_id,) = [member.decode() for member in client.zrange(keys.jobs_of("anybody"), 0, -1)]
    with pytest.raises(requests.exceptions.ReadTimeout):
        requests.get(f"{live.url}/v1/jobs/{job_id}?wait=3", timeout=2)
    assert store.get(job_id).status == "queued"


def test_a_canceled_call_answers(ask, live, client, store):
    def cancel():
        wait_until(lambda: client.zcard(keys.jobs_of("anybody")) == 1, what="the job")
        (job_id,) = [member.decode() for member in client.zrange(keys.jobs_of("anybody"), 0, -1)]
        try:
            store.cancel(ImageRef(job_id, 0))
        except LostLease as error:
            raise AssertionError from error

    thread = threading.Thread(target=cancel)
    thread.start()
    with pytest.raises(openai.InternalServerError) as caught:
        ask.images.generate(prompt="x")
    thread.join()
    assert caught.value.code == "canceled"

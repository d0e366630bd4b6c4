"""Every status that the description names is one that an operation gives; conftest.py looks at the other direction."""

import io
import json
import re
import socket
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import pytest
from structlog.testing import capture_logs

from api.application import build
from api.readers import Readers
from app import wiring
from app.domain.access import LimitChanges, Scope
from app.store.api_keys import ApiKeys
from tests.api.orders import Workers, a_picture, finish, painting
from tests.api.statuses import Recorder

JOB = {"prompt": "x", "size": "32x32"}
BROKEN = {"data": "{", "content_type": "application/json"}
HUGE = {"json": {"prompt": "x" * 300_000}}
TEXT = {"data": "x", "content_type": "text/plain"}


class Asker:
    """A client with a key, who expects a status."""

    def __init__(self, app, secret):
        self._http = app.test_client()
        self._key = {"Authorization": f"Bearer {secret}"} if secret else {}

    def __call__(self, status, method, path, headers=None, **rest):
        answer = self._http.open(path, method=method, headers=self._key | (headers or {}), **rest)
        assert answer.status_code == status, (method, path, answer.status_code, answer.get_data()[:300])
        answer.close()
        return answer

    def submit(self, **fields):
        return self(202, "POST", "/v1/jobs", json=JOB | fields).get_json()["id"]


def _form(**fields):
    return {"data": {"prompt": "x", "image": (io.BytesIO(a_picture()), "a.png")} | fields}


@contextmanager
def _with(app, parts):
    """The application as it is with other parts for a while."""
    before = app.extensions["planpaint"]
    app.extensions["planpaint"] = parts
    try:
        yield
    finally:
        app.extensions["planpaint"] = before


def _refuse_everything(app, servers, registry, answers):
    """401, 403, 429, 500 and 503 stand before every operation."""

    def ask_all(app, status, secret):
        ask = Asker(app, secret)
        for method, path, told in answers:
            if told == str(status) and path.startswith("/v1/"):
                filled = re.sub("{index}", "0", path)
                ask(status, method, re.sub("{job_id}", f"job_{'0' * 32}", re.sub("{[a-z_]+}", "x", filled)))

    ask_all(app, 401, "")
    ask_all(app, 403, registry.create("none", [], LimitChanges())[1])
    spent = registry.create("spent", list(Scope), LimitChanges(requests=1))[1]
    Asker(app, spent)(200, "GET", "/v1/queue")
    ask_all(app, 429, spent)
    away = build(servers.settings(redis_url="redis://127.0.0.1:1/0", api_keys="required"))
    ask_all(away, 503, "any")
    for path in ("/readyz", "/metrics"):
        Asker(away, "")(503, "GET", path)
    # Each would print its traceback.
    with _with(app, None), capture_logs():
        ask_all(app, 500, "any")
        for path in ("/readyz", "/metrics"):
            Asker(app, "")(500, "GET", path)


def _use_jobs(ask, store, settings):
    active, done = ask.submit(), ask.submit(webhook_url="http://127.0.0.1:1/")
    finish(store, settings, done)
    jobs, url, ended = "/v1/jobs", f"/v1/jobs/{active}", f"/v1/jobs/{done}"
    ask(200, "GET", jobs)
    ask(422, "GET", jobs, query_string={"limit": 0})
    ask(200, "POST", jobs, json=JOB | {"dry_run": True})
    ask(422, "POST", jobs, json=JOB | {"n": 11})
    for status, body in ((400, BROKEN), (413, HUGE), (415, TEXT)):
        ask(status, "POST", jobs, **body)
    tag = ask(200, "GET", url).headers["ETag"]
    ask(304, "GET", url, headers={"If-None-Match": tag})
    ask(422, "GET", url, query_string={"wait": 26})
    ask(409, "DELETE", url)
    for rest in ("/content", "/prior"):
        ask(409, "GET", f"{url}/images/0{rest}")
    ask(200, "GET", f"{ended}/images/0")
    ask(307, "GET", f"{ended}/images/0/content")
    ask(422, "GET", f"{ended}/images/0/content", query_string={"variant": "x"})
    ask(200, "GET", f"{ended}/images/0/prior")
    ask(200, "GET", f"{ended}/deliveries")
    ask(200, "GET", f"{ended}/events")
    ask(204, "GET", f"{ended}/events", headers={"Last-Event-ID": "3"})
    ask(406, "GET", f"{ended}/events", headers={"Accept": "image/png"})
    ask(422, "GET", f"{ended}/events", query_string={"after": "x"})
    ask(200, "GET", f"/v1/deliveries/dlv_{done}_1")
    ask(202, "POST", f"/v1/deliveries/dlv_{done}_1/redeliver")
    ask(409, "POST", f"{ended}/cancel")
    ask(200, "POST", f"{url}/cancel")


def _cancel_what_runs(ask, store):
    job = ask.submit()
    painting(store, job)
    ask(202, "POST", f"/v1/jobs/{job}/cancel")


def _ask_for_what_is_not_there(ask, status, job):
    """The same for a job that never was (404) and for one that has been removed (410)."""
    url, delivery = f"/v1/jobs/{job}", f"/v1/deliveries/dlv_{job}_1"
    for path in ("", "/images/0", "/images/0/content", "/images/0/prior", "/events", "/deliveries"):
        ask(status, "GET", url + path)
    ask(status, "DELETE", url)
    ask(status, "POST", f"{url}/cancel")
    ask(status, "GET", delivery)
    ask(status, "POST", f"{delivery}/redeliver")


def _meet_the_cap_of_readers(app, ask):
    job = ask.submit()
    with _with(app, replace(app.extensions["planpaint"], readers=Readers(0))):
        ask(429, "GET", f"/v1/jobs/{job}/events")


def _use_webhooks(app, ask, servers, client):
    ask(202, "POST", "/v1/webhook-test", json={"url": "https://example.org/"})
    ask(422, "POST", "/v1/webhook-test", json={"url": "x"})
    for status, body in ((400, BROKEN), (413, HUGE), (415, TEXT)):
        ask(status, "POST", "/v1/webhook-test", **body)
    ask(200, "GET", "/v1/webhook-secret")
    ask(200, "POST", "/v1/webhook-secret/rotate")
    theirs = servers.settings(webhook_secret="whsec_" + "A" * 43 + "=")
    rotate = partial(wiring.rotate_webhook_secret, theirs, client)
    with _with(app, replace(app.extensions["planpaint"], rotate_webhook_secret=rotate)):
        ask(409, "POST", "/v1/webhook-secret/rotate")


def _use_openais_door(ask, settings):
    generate, edit = "/v1/images/generations", "/v1/images/edits"
    for status, body in ((400, BROKEN), (413, HUGE), (415, TEXT), (404, {"json": {"prompt": "x", "model": "y"}})):
        ask(status, "POST", generate, **body)
    ask(400, "POST", edit, data={"prompt": "x"}, content_type="multipart/form-data")
    ask(404, "POST", edit, **_form(model="y"))
    ask(413, "POST", edit, **_form(image=(io.BytesIO(b"x" * 300_000), "a.png")))
    ask(415, "POST", edit, **TEXT)
    ask(504, "POST", generate, json=JOB)
    ask(504, "POST", edit, **_form())
    key = {"Idempotency-Key": "k"}
    with Workers(settings) as workers:
        job = ask(200, "POST", generate, json=JOB, headers=key).get_json()["id"]
        edited = ask(200, "POST", edit, **_form(), headers={"Idempotency-Key": "e"}).get_json()["id"]
        workers.fails = lambda index: True
        ask(500, "POST", generate, json=JOB)
        ask(500, "POST", edit, **_form())
    for removed in (job, edited):
        ask(204, "DELETE", f"/v1/jobs/{removed}")
    ask(410, "POST", generate, json=JOB, headers=key)
    ask(410, "POST", edit, **_form(), headers={"Idempotency-Key": "e"})
    ask(200, "GET", "/v1/models")
    ask(200, "GET", "/v1/models/glm-image")
    ask(404, "GET", "/v1/models/x")


def _send_what_is_no_http(live, answers):
    """The server refuses it before the application sees it, whatever its path."""
    requests = {
        "400": ("", "Content-Length: x", "bad_request"),
        "414": (f"?x={'y' * 9000}", "Host: x", "uri_too_long"),
        "431": ("", f"X: {'y' * 9000}", "headers_too_large"),
    }
    for method, path, status in answers:
        query, header, code = requests[status]
        with socket.create_connection(("127.0.0.1", live.port), timeout=10) as connection:
            connection.sendall(f"{method} {path}{query} HTTP/1.1\r\nHost: x\r\n{header}\r\n\r\n".encode())
            with connection.makefile("rb") as answer:
                head, _, body = answer.read().partition(b"\r\n\r\n")
        assert head.startswith(f"HTTP/1.1 {status} ".encode())
        assert b"application/problem+json" in head
        assert json.loads(body)["code"] == code


def test_every_documented_answer_is_given(servers, client, store, settings, promised, live):
    registry = ApiKeys(client)
    secret = registry.create("all", list(Scope), LimitChanges())[1]
    limits = {"max_body_bytes": 200_000, "max_image_bytes": 20_000, "openai_wait_s": 1, "default_size": "32x32"}
    app = build(servers.settings(api_keys="required", **limits))
    with Recorder() as recorder:
        ask = Asker(app, secret)
        _refuse_everything(app, servers, registry, promised)
        _use_jobs(ask, store, settings)
        _cancel_what_runs(ask, store)
        _ask_for_what_is_not_there(ask, 404, "job_" + "0" * 32)
        key = {"Idempotency-Key": "removed"}
        removed = ask(202, "POST", "/v1/jobs", json=JOB, headers=key).get_json()["id"]
        finish(store, settings, removed)
        ask(204, "DELETE", f"/v1/jobs/{removed}")
        _ask_for_what_is_not_there(ask, 410, removed)
        ask(410, "POST", "/v1/jobs", json=JOB, headers=key)
        _meet_the_cap_of_readers(app, ask)
        _use_webhooks(app, ask, servers, client)
        _use_openais_door(ask, settings)
        for path in ("/v1/workers", "/v1/queue", "/healthz", "/readyz", "/metrics"):
            ask(200, "GET", path)
    unseen = promised - recorder.seen
    of_the_server = {answer for answer in unseen if answer[2] in ("400", "414", "431")}
    _send_what_is_no_http(live, of_the_server)
    assert sorted(unseen - of_the_server) == []


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/webhook-test", "/v1/images/generations"])
def test_every_body_has_an_example(http, path):
    spec = http.get("/openapi.json").get_json()
    body = spec["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    schema = spec["components"]["schemas"][body["$ref"].rsplit("/", 1)[1]]
    assert "example" in json.dumps(schema)

"""Webhooks as their owner sees them: the delivery log, redelivery, tests, the secret and its rotation."""

import base64
import json
import os
import socket
import subprocess
import sys

import pytest
from openai import OpenAI
from standardwebhooks import Webhook
from werkzeug import Response

from app import keys, wiring
from app.domain.messages import ImageRef
from app.webhooks.signing import headers, new_secret
from tests.servers import wait_until
from tests.store.orders import plan
from workers import courier as module
from workers.courier import Courier


@pytest.fixture
def make_courier(servers, store, client):
    made = []

    def call(**overrides):
        settings = servers.settings(webhook_allow="127.0.0.0/8", webhook_timeout_s=1.0, **overrides)
        courier = Courier(
            store,
            wiring.outbox(settings, client),
            wiring.webhook_sender(settings),
            secrets=lambda: wiring.webhook_secrets(settings, client),
            base_url="http://api",
            hold_ms=60_000,
        )
        made.append(courier)
        return courier

    yield call
    for courier in made:
        courier.close()


def _run(courier, until, what="the deliveries"):
    wait_until(lambda: (courier.step(), until())[1], what=what)


def _log(http, job):
    return http.get(f"/v1/jobs/{job['id']}/deliveries").get_json()


def _statuses(http, job):
    return [delivery["status"] for delivery in _log(http, job)["data"]]


def _all(http, job, status):
    return lambda: set(_statuses(http, job)) == {status}


def test_the_log_tells_what_became_of_each_event(http, submit, done, make_courier, httpserver):
    """replicate/replicate-javascript#321, replicate/replicate-javascript#341: nothing to look at."""
    answers = iter([Response("secret body", status=500)])
    httpserver.expect_request("/hook").respond_with_handler(lambda _: next(answers, Response(status=204)))
    job = submit(webhook_url=httpserver.url_for("/hook"))
    done(job)
    assert _statuses(http, job) == ["pending"] * 3
    _run(make_courier(), lambda: "pending" not in _statuses(http, job))
    wait_until(lambda: sorted(_statuses(http, job)) == ["delivered", "delivered", "retrying"], what="the log")
    log = _log(http, job)
    assert [delivery["type"] for delivery in log["data"]] == ["job.started", "image.completed", "job.completed"]
    failed = next(delivery for delivery in log["data"] if delivery["status"] == "retrying")
    assert (failed["attempts"], failed["error"]) == (1, "HTTP 500")
    assert failed["next_attempt_at"] > failed["log"][0]["at"]
    assert failed["log"][0]["http_status"] == 500
    assert "secret body" not in json.dumps(log), "liwala/ay-framework#301: bodies are never shown"
    assert http.get(f"/v1/deliveries/{failed['id']}").get_json() == failed


def test_redelivery_sends_the_same_event_once_more(http, submit, done, make_courier, httpserver, client):
    httpserver.expect_request("/hook").respond_with_data(status=200)
    job = submit(webhook_url=httpserver.url_for("/hook"))
    done(job)
    courier = make_courier()
    _run(courier, _all(http, job, "delivered"))
    delivery = _log(http, job)["data"][1]
    before = [request.headers["webhook-id"] for request, _ in httpserver.log]
    answer = http.post(f"/v1/deliveries/{delivery['id']}/redeliver")
    assert (answer.status_code, answer.get_json()["status"]) == (202, "pending")
    _run(courier, lambda: http.get(f"/v1/deliveries/{delivery['id']}").get_json()["attempts"] == 2)
    after = [request.headers["webhook-id"] for request, _ in httpserver.log]
    assert after[len(before) :] == [delivery["event_id"]]
    assert client.hget(keys.job(job["id"]), "undelivered") == b"0"


@pytest.mark.parametrize(
    "identifier", ["x", "dlv_job_" + "0" * 32 + "_1", "dlv_test_" + "0" * 32 + "_1", "dlv_job_" + "0" * 32 + "_0"]
)
def test_unknown_deliveries_are_404(http, identifier):
    assert http.get(f"/v1/deliveries/{identifier}").status_code == 404
    assert http.post(f"/v1/deliveries/{identifier}/redeliver").status_code == 404


def test_an_event_that_nobody_receives_has_no_delivery(http, submit, done):
    job = submit(webhook_url="http://127.0.0.1:1/", webhook_events=["job.completed"])
    done(job)
    assert [delivery["type"] for delivery in _log(http, job)["data"]] == ["job.completed"]
    assert http.post(f"/v1/deliveries/dlv_{job['id']}_1/redeliver").status_code == 404
    silent = submit()
    assert _log(http, silent) == {"data": [], "endpoint": None}


def test_the_filter_decides_what_is_sent(submit, done, store, client):
    job = submit(n=2, webhook_url="http://127.0.0.1:1/", webhook_events=["image.canceled", "job.completed"])
    store.cancel_all([ImageRef(job["id"], index) for index in range(2)])
    events = {event.sequence: event.type for event in store.events(job["id"])}
    sent = [events[int(member.decode().rsplit(":")[-1])] for member in client.zrange(keys.OUTBOX, 0, -1)]
    assert sorted(sent) == ["image.canceled", "image.canceled", "job.completed"]


def test_a_redirect_is_a_failure_that_says_so(http, submit, done, make_courier, httpserver):
    """replicate/replicate-javascript#195: a 301 at the receiver silently lost every webhook."""
    httpserver.expect_request("/hook").respond_with_data(status=301, headers={"Location": httpserver.url_for("/new")})
    job = submit(webhook_url=httpserver.url_for("/hook"), webhook_events=["job.completed"])
    done(job)
    _run(make_courier(), _all(http, job, "retrying"))
    (delivery,) = _log(http, job)["data"]
    assert "redirects are not followed" in delivery["error"]
    assert delivery["log"][0]["http_status"] == 301


def test_a_refused_address_is_told_in_the_log(http, submit, done, make_courier):
    """gotempsh/temps#332, vstorm-co/full-stack-ai-agent-template#62: checked where the connection is made."""
    job = submit(webhook_url="http://169.254.169.254/latest", webhook_events=["job.completed"])
    done(job)
    _run(make_courier(), _all(http, job, "given_up"))
    assert _log(http, job)["data"][0]["error"].startswith("refused")


@pytest.mark.parametrize(("wish", "least", "most"), [("100", 100, 101), ("999999999", 86_400, 86_401), ("x", 4, 6.1)])
def test_retry_after_is_obeyed(http, submit, done, make_courier, httpserver, client, wish, least, most):
    httpserver.expect_request("/hook").respond_with_data(status=429, headers={"Retry-After": wish})
    job = submit(webhook_url=httpserver.url_for("/hook"), webhook_events=["job.completed"])
    done(job)
    _run(make_courier(), _all(http, job, "retrying"))
    record = client.hgetall(keys.delivery(job["id"], 3))
    pause = (int(record[b"next_attempt_at"]) - int(record[b"attempted_at"])) / 1000
    assert least <= pause <= most


def test_410_ends_all_deliveries_of_the_jobs_there_are_and_none_of_later_ones(
    http, submit, done, make_courier, httpserver
):
    status = [410]
    httpserver.expect_request("/hook").respond_with_handler(lambda _: Response(status=status[0]))
    first, second = (submit(webhook_url=httpserver.url_for("/hook")) for _ in range(2))
    done(first)
    courier = make_courier()
    _run(courier, _all(http, first, "given_up"))
    assert _log(http, first)["endpoint"]["status"] == "gone"
    tries = len(httpserver.log)
    done(second)
    _run(courier, _all(http, second, "given_up"))
    assert len(httpserver.log) == tries
    status[0] = 200
    later = submit(webhook_url=httpserver.url_for("/hook"))
    done(later)
    _run(courier, _all(http, later, "delivered"))
    assert _log(http, later)["endpoint"]["status"] == "ok"


def test_an_endpoint_that_fails_for_long_is_paused_says_so_and_is_probed(
    http, submit, done, make_courier, httpserver, monkeypatch
):
    monkeypatch.setattr(module, "RETRY_S", (0.3,) * 9)
    status = [500]
    httpserver.expect_request("/hook").respond_with_handler(lambda _: Response(status=status[0]))
    jobs = [submit(webhook_url=httpserver.url_for("/hook")) for _ in range(4)]
    for job in jobs:
        done(job)
    courier = make_courier(webhook_pause_after_s=1, webhook_pause_s=2)
    _run(courier, lambda: _log(http, jobs[0])["endpoint"]["status"] == "paused", what="the pause")
    _run(courier, lambda: "paused" in [s for job in jobs for s in _statuses(http, job)], what="paused deliveries")
    endpoint = _log(http, jobs[0])["endpoint"]
    assert endpoint["paused_until"] > endpoint["failing_since"]
    assert endpoint["failures"] >= 1
    paused_at = len(httpserver.log)
    status[0] = 200
    _run(
        courier,
        lambda: {s for job in jobs for s in _statuses(http, job)} == {"delivered"},
        what="the probe and the rest",
    )
    assert len(httpserver.log) - paused_at <= 13
    assert _log(http, jobs[0])["endpoint"]["status"] == "ok"


def test_deliveries_of_one_silent_host_leave_room_for_others(http, submit, store, make_courier, httpserver):
    """replicate/cog#2229, #909: a receiver that is away must cost nobody else anything."""
    wanted = ["image.canceled", "job.completed"]

    def canceled(url, n):
        job = submit(webhook_url=url, n=n, webhook_events=wanted)
        store.cancel_all([ImageRef(job["id"], index) for index in range(n)])
        return job

    httpserver.expect_request("/hook").respond_with_data(status=200)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(50)
        lost = [canceled(f"http://127.0.0.1:{silent.getsockname()[1]}/", 10) for _ in range(2)]
        quick = canceled(httpserver.url_for("/hook"), 1)
        _run(make_courier(), _all(http, quick, "delivered"))
        statuses = [status for job in lost for status in _statuses(http, job)]
    assert statuses.count("pending") >= len(statuses) - 12, "most of them have not had a thread yet"


def test_generation_does_not_notice_a_receiver_that_is_away(submit, done, http):
    """replicate/cog#2229: webhook host down, prediction failed and the cancel as well."""
    job = submit(webhook_url="http://127.0.0.1:1/")
    done(job)
    assert http.get(f"/v1/jobs/{job['id']}").get_json()["status"] == "succeeded"
    other = submit(webhook_url="http://127.0.0.1:1/")
    assert http.post(f"/v1/jobs/{other['id']}/cancel").status_code == 200


def test_events_carry_a_sequence_and_a_snapshot(http, submit, store, make_courier, httpserver):
    """google/go-github#2706, stripe/stripe-cli#418: events out of order, and the receiver kept the older status."""
    bodies = {}

    def receive(request):
        bodies[request.get_json()["sequence"]] = request.get_json()
        return Response(status=200)

    httpserver.expect_request("/hook").respond_with_handler(receive)
    job = submit(n=2, webhook_url=httpserver.url_for("/hook"))
    for index in range(2):
        store.fail(plan(store, ImageRef(job["id"], index), f"t{index}"), "broken", "it broke")
    _run(make_courier(), _all(http, job, "delivered"))
    assert sorted(bodies) == [1, 2, 3, 4]
    assert bodies[2]["data"]["image"]["status"] == "failed"
    assert bodies[4]["data"]["job"]["status"] == "failed"


# --- the test endpoint


def test_a_test_event_is_signed_delivered_and_logged(http, make_courier, httpserver, client):
    seen = []
    secret = http.get("/v1/webhook-secret").get_json()["key"]

    def receive(request):
        seen.append(Webhook(secret).verify(request.get_data(as_text=True), dict(request.headers)))
        return Response(status=204)

    httpserver.expect_request("/hook").respond_with_handler(receive)
    answer = http.post("/v1/webhook-test", json={"url": httpserver.url_for("/hook")})
    assert answer.status_code == 202
    url = answer.headers["Location"]
    _run(make_courier(), lambda: http.get(url).get_json()["status"] == "delivered")
    assert seen[0]["type"] == "webhook.test"
    assert http.get(url).get_json()["log"][0]["http_status"] == 204
    test_keys = client.keys("*test_*")
    assert len(test_keys) == 2
    assert all(client.pttl(key) > 0 for key in test_keys), "nothing is kept for ever"


@pytest.mark.parametrize(
    "body", [{}, {"url": "ftp://x/"}, {"url": "http://u:p@x/"}, {"url": 5}, {"url": "http://x/", "a": 1}]
)
def test_a_bad_test_names_its_field(http, client, body):
    answer = http.post("/v1/webhook-test", json=body)
    assert answer.status_code == 422
    assert client.zcard(keys.OUTBOX) == 0


# --- the secret


def test_after_a_rotation_both_secrets_verify_until_the_old_one_lapses(http, servers, client):
    settings = servers.settings(webhook_overlap_s=1)
    old = http.get("/v1/webhook-secret").get_json()["key"]
    answer = http.post("/v1/webhook-secret/rotate")
    assert (answer.status_code, answer.get_json()["previous"]) == (200, [old])
    assert answer.headers["Cache-Control"] == "no-store"
    new = answer.get_json()["key"]
    signed = headers(wiring.webhook_secrets(settings, client), "evt_1_1", "{}")
    for secret in (old, new):
        assert Webhook(secret).verify("{}", signed) == {}
        client_of_openai = OpenAI(api_key="x", webhook_secret=secret)
        client_of_openai.webhooks.verify_signature("{}", signed)
    wiring.rotate_webhook_secret(settings, client)
    assert len(wiring.webhook_secrets(settings, client)) == 2
    wait_until(lambda: len(wiring.webhook_secrets(settings, client)) == 1, what="the end of the overlap")


def test_the_operators_secret_is_rotated_by_the_operator(servers, client):
    from api.application import build

    one, two = new_secret(), new_secret()
    http = build(servers.settings(webhook_secret=f"{two},{one}")).test_client()
    assert http.get("/v1/webhook-secret").get_json() == {"key": two, "previous": [one]}
    assert http.post("/v1/webhook-secret/rotate").status_code == 409


def test_the_command_rotates(servers, client, settings):
    def run(*arguments):
        command = [sys.executable, "-m", "app.cli", "webhook-secret", *arguments]
        environment = os.environ | servers.environment
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()

    first = run()
    assert len(base64.b64decode(first.removeprefix("whsec_"))) == 32
    second = run("rotate")
    assert second != first
    assert run() == second
    assert wiring.webhook_secrets(settings, client) == [second, first]

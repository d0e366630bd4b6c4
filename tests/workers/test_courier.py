import json

import pytest
from standardwebhooks import Webhook
from werkzeug import Response

from app import keys, wiring
from app.domain.messages import ImageRef
from app.webhooks.signing import new_secret
from tests.servers import wait_until
from tests.store.orders import PLAN, paint, plan, stored, submit
from workers import courier as module
from workers.courier import RETRY_S, Courier

SECRET = new_secret()


@pytest.fixture
def courier(servers, store, client):
    settings = servers.settings(webhook_allow="127.0.0.0/8", webhook_timeout_s=1.0)
    made = Courier(
        store,
        wiring.outbox(settings, client),
        wiring.webhook_sender(settings),
        secrets=lambda: [SECRET],
        base_url="http://api",
        hold_ms=60_000,
    )
    yield made
    made.close()


def _finished_job(store, url):
    ref = ImageRef(submit(store, webhook_url=url), 0)
    store.hand_over(plan(store, ref), PLAN)
    store.commit(paint(store, ref), stored(), steps=12)
    return ref.job_id


def _delivery(client, job_id, sequence):
    return {k.decode(): v.decode() for k, v in client.hgetall(keys.delivery(job_id, sequence)).items()}


def test_events_are_delivered_and_taken_off_the_outbox(courier, store, client, httpserver):
    bodies = []

    def receive(request):
        bodies.append(Webhook(SECRET).verify(request.get_data(as_text=True), dict(request.headers)))
        return Response(status=200)

    httpserver.expect_request("/hook").respond_with_handler(receive)
    job_id = _finished_job(store, httpserver.url_for("/hook"))
    assert courier.step()
    wait_until(lambda: client.zcard(keys.OUTBOX) == 0, what="the deliveries")
    assert sorted(body["sequence"] for body in bodies) == [1, 2, 3]
    assert _delivery(client, job_id, 1)["outcome"] == "delivered"
    assert not courier.step()
    image = next(body for body in bodies if body["type"] == "image.completed")["data"]["image"]
    assert image["content_url"] == f"http://api/v1/jobs/{job_id}/images/0/content"
    assert max(len(json.dumps(body)) for body in bodies) < 20_000


def test_a_failed_attempt_is_tried_later_and_in_the_end_given_up(courier, store, client, httpserver, monkeypatch):
    monkeypatch.setattr(module, "RETRY_S", (0.01, 0.01))
    httpserver.expect_request("/hook").respond_with_data(status=500)
    job_id = _finished_job(store, httpserver.url_for("/hook"))
    wait_until(lambda: (courier.step(), client.zcard(keys.OUTBOX) == 0)[1], what="giving up")
    delivery = _delivery(client, job_id, 2)
    assert (delivery["outcome"], delivery["attempts"], delivery["http_status"]) == ("given_up", "3", "500")
    ids = {request.headers["webhook-id"] for request, _ in httpserver.log}
    assert len(ids) == 3
    assert len(httpserver.log) == 9


def test_a_receiver_that_is_away_costs_nothing_but_its_own_time(courier, store, client):
    """replicate/cog#909: one connection error on a webhook crashed the model."""
    job_id = _finished_job(store, "http://127.0.0.1:1/")
    courier.step()
    wait_until(lambda: _delivery(client, job_id, 2).get("outcome") == "retry", what="the attempt")
    delivery = _delivery(client, job_id, 2)
    pause = (int(delivery["next_attempt_at"]) - int(delivery["attempted_at"])) / 1000
    assert 0.8 * RETRY_S[0] <= pause <= 1.2 * RETRY_S[0] + 0.001


def test_a_refused_receiver_is_given_up_at_once(courier, store, client):
    job_id = _finished_job(store, "http://169.254.169.254/latest")
    courier.step()
    wait_until(lambda: client.zcard(keys.OUTBOX) == 0, what="giving up")
    assert _delivery(client, job_id, 1)["error"].startswith("refused")


def test_two_couriers_do_not_take_the_same_event(settings, client, store):
    _finished_job(store, "http://127.0.0.1:1/")
    one, two = wiring.outbox(settings, client), wiring.outbox(settings, client)
    assert len(one.take(10, hold_ms=60_000)) == 3
    assert two.take(10, hold_ms=60_000) == []


def test_an_attempt_cut_short_is_made_again(settings, client, store):
    _finished_job(store, "http://127.0.0.1:1/")
    outbox = wiring.outbox(settings, client)
    assert len(outbox.take(10, hold_ms=1)) == 3
    wait_until(lambda: len(outbox.take(10, hold_ms=60_000)) == 3, what="the events are free again")


def test_the_drawn_secret_is_the_same_for_all_hosts(settings, client):
    assert wiring.webhook_secrets(settings, client) == wiring.webhook_secrets(settings, client)

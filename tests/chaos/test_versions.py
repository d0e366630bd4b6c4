"""Matrix row 31: old and new workers side by side. A hint of a newer schema is left to newer ones; no job is lost."""

import time
from dataclasses import asdict

import pytest

from app import keys, wiring
from app.domain.messages import SCHEMA, DitTask, ImageRef
from app.domain.states import ImageState
from app.queues.dit_queue import PAINT, make_celery, parse_task
from app.service import Stages
from tests.store.orders import PLAN, plan, stored, submit

S = ImageState


@pytest.fixture
def quick(servers, client):
    """Times of a few hundredths of a second."""
    settings = servers.settings(lease_s=0.5, hint_s=0.1)
    store = wiring.job_store(settings, client)
    return store, wiring.stages(settings, client), wiring.ar_stream(client, "old")


def _sweep_until(stages: Stages, condition) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        stages.sweep()
        time.sleep(0.05)


def test_an_old_planner_leaves_a_new_hint_and_the_image_is_hinted_until_somebody_knows_it(quick, client):
    store, stages, old = quick
    old.ensure_groups()
    ref = ImageRef(submit(store), 0)
    # As a newer API would have written it.
    image = keys.image(ref.job_id, 0)
    client.xdel(keys.AR_REALTIME, client.hget(image, "entry"))
    entry = client.xadd(keys.AR_REALTIME, {"job": ref.job_id, "index": 0, "schema": SCHEMA + 1, "more": "x"})
    client.hset(image, "entry", entry)
    assert old.read(8) == []
    assert store.get(ref.job_id).images[0].state is S.QUEUED
    _sweep_until(stages, lambda: client.hget(image, "entry") != entry)
    (hint,) = old.read(8)
    order = store.claim_plan(hint.ref, entry=hint.entry, token="old")
    assert order is not None
    assert order.lease.ref == ref
    store.hand_over(order.lease, PLAN)
    assert client.xlen(keys.AR_REALTIME) == client.xpending(keys.AR_REALTIME, keys.AR_GROUP)["pending"] == 0


def test_a_new_hint_that_an_old_painter_drops_is_sent_again(quick, client):
    store, stages, _ = quick
    ref = ImageRef(submit(store), 0)
    store.hand_over(plan(store, ref), PLAN)
    new = asdict(DitTask(ref.job_id, 0)) | {"schema": SCHEMA + 1, "more": "x"}
    assert parse_task(new) is None, "an old worker acks it and does nothing"
    _sweep_until(stages, lambda: client.llen(keys.DIT_LIST) > 0)
    order = store.claim_paint(ref, token="new")
    store.commit(order.lease, stored(), steps=2)
    assert store.get(ref.job_id).images[0].state is S.SUCCEEDED


@pytest.mark.chaos
def test_a_painter_survives_everything_that_is_pushed_into_its_queue(attacked):
    """Matrix row 29, on the running worker."""
    application = make_celery(attacked.cluster.settings)
    (process,) = attacked.cluster.of("dit")
    pid = process.pid
    for values in ({}, {"job_id": "job_x"}, {"job_id": "job_x", "index": 0, "schema": 99}, {"job_id": [], "index": {}}):
        application.send_task(PAINT, kwargs=values, queue=keys.DIT_QUEUE)
    application.send_task("planpaint.no_such_task", queue=keys.DIT_QUEUE)
    attacked.client.lpush(keys.DIT_LIST, "no JSON", '{"body": "?", "headers": {}, "properties": {}}')
    attacked.client.xadd(keys.AR_REALTIME, {"nothing": "known"})
    accepted = attacked.order()
    assert attacked.verdict(accepted) == []
    assert process.pid == pid, "it did not need to be replaced"

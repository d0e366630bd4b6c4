import json

import pytest
from celery.contrib.testing.worker import start_worker

from app import keys
from app.domain.messages import DitTask
from app.errors import Unavailable
from app.queues.dit_queue import PAINT, DitQueue, make_celery
from tests.servers import wait_until


def _worker(application):
    return start_worker(application, perform_ping_check=False, pool="solo", queues=[keys.DIT_QUEUE], loglevel="ERROR")


def test_a_hint_is_small_json_on_the_list_that_the_sweeper_measures(settings, client):
    DitQueue(make_celery(settings)).publish(DitTask("job_1", 3))
    assert client.llen(keys.DIT_LIST) == 1
    message = json.loads(client.lindex(keys.DIT_LIST, 0))
    assert message["headers"]["task"] == PAINT
    assert message["content-type"] == "application/json"
    assert len(json.dumps(message)) < 2000


def test_an_image_that_comes_back_goes_before_all_that_wait(settings, client):
    queue = DitQueue(make_celery(settings))
    for index, first in enumerate((False, False, True)):
        queue.publish(DitTask("job_1", index), first=first)
    application = make_celery(settings)
    seen = []

    @application.task(name=PAINT, shared=False)
    def paint(index, **values):
        seen.append(index)

    with _worker(application):
        wait_until(lambda: len(seen) == 3, what="the tasks run")
    assert seen == [2, 0, 1]


def test_a_broker_out_of_reach_is_unavailable(servers):
    settings = servers.settings(redis_url="redis://127.0.0.1:1/0")
    with pytest.raises(Unavailable):
        DitQueue(make_celery(settings)).publish(DitTask("job_1", 0))


def test_only_json_is_accepted_and_nothing_is_kept_of_results(settings):
    conf = make_celery(settings).conf
    assert conf.accept_content == ["json"]
    assert conf.task_serializer == "json"
    assert conf.result_backend is None
    assert conf.task_acks_late
    assert conf.worker_prefetch_multiplier == 1
    assert not conf.worker_enable_remote_control


def test_a_celery_worker_takes_the_hint_and_acks_it(settings, client):
    application = make_celery(settings)
    seen = []

    @application.task(name=PAINT, shared=False)
    def paint(**values):
        seen.append(values)

    DitQueue(make_celery(settings)).publish(DitTask("job_1", 3))
    with _worker(application):
        wait_until(lambda: seen, what="the task runs")
        wait_until(lambda: client.hlen(keys.PREFIX + "unacked") == 0, what="the ack")
    assert seen == [{"job_id": "job_1", "index": 3, "schema": 1}]
    assert client.llen(keys.DIT_LIST) == 0

import pytest

from app import keys
from app.domain.job import Priority
from app.domain.messages import ImageRef
from app.queues.ar_stream import BATCH_EVERY, ArStream
from tests.store.orders import PLAN, plan, submit


def _stream(client, consumer="one"):
    stream = ArStream(client, consumer)
    stream.ensure_groups()
    return stream


def test_a_group_is_read_in_order_and_once(store, client):
    stream, other = _stream(client), _stream(client, "two")
    job_id = submit(store, 5)
    hints = stream.read(3)
    assert [hint.ref for hint in hints] == [ImageRef(job_id, index) for index in range(3)]
    assert [hint.ref.index for hint in other.read(10)] == [3, 4]
    assert stream.read(10) == []
    assert store.claim_plan(hints[1].ref, entry=hints[1].entry, token="t") is not None


def test_waiting_ends_with_the_first_hint_or_the_time(store, client):
    stream = _stream(client)
    assert stream.wait(10) == []
    job_id = submit(store, 3, priority=Priority.BATCH)
    assert [hint.ref for hint in stream.wait(1000)] == [ImageRef(job_id, 0)]


def test_realtime_goes_first_and_batch_never_starves(store, client):
    stream = _stream(client)
    batch = [submit(store, priority=Priority.BATCH) for _ in range(10)]
    realtime = [submit(store) for _ in range(40)]
    order = [hint.ref.job_id for _ in range(20) for hint in stream.read(1)]
    assert sum(job_id in batch for job_id in order) == 20 // BATCH_EVERY
    assert order[0] == realtime[0]
    group = [hint.ref.job_id for hint in stream.read(8)]
    assert sum(job_id in batch for job_id in group) == 8 // BATCH_EVERY


def test_a_lone_priority_gets_every_slot(store, client):
    stream = _stream(client)
    submit(store, 8, priority=Priority.BATCH)
    assert len(stream.read(8)) == 8
    submit(store, 8)
    assert len(stream.read(8)) == 8


@pytest.mark.parametrize("priority", Priority)
def test_an_image_that_comes_back_goes_before_all_that_wait(store, client, priority):
    stream = _stream(client)
    ref = ImageRef(submit(store, priority=priority), 0)
    (hint,) = stream.read(1)
    lease = store.claim_plan(ref, entry=hint.entry, token="t").lease
    others = [submit(store, 8, priority=each) for each in Priority]
    store.release(lease)
    assert (client.xlen(keys.AR_RETURNED), client.xlen(keys.AR_REALTIME), client.xlen(keys.AR_BATCH)) == (1, 8, 8)
    assert client.zrank(keys.waiting(priority), str(ref)) == 0
    (again,) = stream.read(1)
    assert again.ref == ref
    assert {hint.ref.job_id for hint in stream.read(8)} == set(others)
    store.hand_over(store.claim_plan(ref, entry=again.entry, token="u").lease, PLAN)
    assert client.xlen(keys.AR_RETURNED) == client.xpending(keys.AR_RETURNED, keys.AR_GROUP)["pending"] == 0


def test_a_returned_image_wakes_an_idle_worker(store, client):
    stream = _stream(client)
    ref = ImageRef(submit(store), 0)
    (hint,) = stream.read(1)
    store.release(store.claim_plan(ref, entry=hint.entry, token="t").lease)
    assert [hint.ref for hint in stream.wait(1000)] == [ref]


def test_a_stream_that_a_new_server_does_not_know_is_made_again(client):
    stream = ArStream(client, "one")
    assert stream.read(1) == []
    assert client.xinfo_groups(keys.AR_REALTIME)[0]["name"] == b"ar"


def test_junk_is_dropped_and_newer_schemas_are_left_pending(store, client):
    stream = _stream(client)
    client.xadd(keys.AR_REALTIME, {"nonsense": "1"})
    client.xadd(keys.AR_REALTIME, {"job": "job_x", "index": "0", "schema": "99"})
    good = submit(store)
    assert [hint.ref.job_id for hint in stream.read(10)] == [good]
    assert client.xpending(keys.AR_REALTIME, keys.AR_GROUP)["pending"] == 2
    assert client.xlen(keys.AR_REALTIME) == 2


def test_an_old_hint_is_dropped_for_good(store, client):
    stream = _stream(client)
    store.cancel(ImageRef(submit(store), 0))
    client.xadd(keys.AR_REALTIME, {"job": "job_gone", "index": "0", "schema": "1"})
    (hint,) = stream.read(5)
    assert store.claim_plan(hint.ref, entry=hint.entry, token="t") is None
    stream.drop(hint)
    assert client.xlen(keys.AR_REALTIME) == 0
    assert client.xpending(keys.AR_REALTIME, keys.AR_GROUP)["pending"] == 0


def test_a_consumer_leaves_only_when_nothing_is_pending_on_it(store, client):
    stream = _stream(client)
    ref = ImageRef(submit(store), 0)
    stream.read(1)
    stream.leave()
    assert len(client.xinfo_consumers(keys.AR_REALTIME, keys.AR_GROUP)) == 1
    store.fail(plan(store, ref), "x", "y")
    stream.leave()
    assert client.xinfo_consumers(keys.AR_REALTIME, keys.AR_GROUP) == []


def test_consumers_of_workers_killed_long_ago_are_forgotten_with_their_entries(store, client):
    dead, alive = _stream(client, "dead"), _stream(client, "alive")
    submit(store, 3)
    assert len(dead.read(3)) == 3
    alive.forget_idle_consumers(-1)
    assert client.xinfo_consumers(keys.AR_REALTIME, keys.AR_GROUP) == []
    assert client.xpending(keys.AR_REALTIME, keys.AR_GROUP)["pending"] == 0

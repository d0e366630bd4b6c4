from app import keys
from app.domain.messages import ImageRef
from app.queues.ar_stream import ArStream
from tests.store.orders import plan, submit


def _stream(client, consumer="one"):
    stream = ArStream(client, consumer)
    stream.ensure_group()
    return stream


def test_a_group_is_read_in_order_and_once(store, client):
    stream, other = _stream(client), _stream(client, "two")
    job_id = submit(store, 5)
    hints = stream.read(3, block_ms=None)
    assert [hint.ref for hint in hints] == [ImageRef(job_id, index) for index in range(3)]
    assert [hint.ref.index for hint in other.read(10, block_ms=None)] == [3, 4]
    assert stream.read(10, block_ms=None) == []
    assert store.claim_plan(hints[1].ref, entry=hints[1].entry, token="t") is not None


def test_a_stream_that_a_new_server_does_not_know_is_made_again(client):
    stream = ArStream(client, "one")
    assert stream.read(1, block_ms=None) == []
    assert client.xinfo_groups(keys.AR_STREAM)[0]["name"] == b"ar"


def test_junk_is_dropped_and_newer_schemas_are_left_pending(store, client):
    stream = _stream(client)
    client.xadd(keys.AR_STREAM, {"nonsense": "1"})
    client.xadd(keys.AR_STREAM, {"job": "job_x", "index": "0", "schema": "99"})
    good = submit(store)
    assert [hint.ref.job_id for hint in stream.read(10, block_ms=None)] == [good]
    assert client.xpending(keys.AR_STREAM, keys.AR_GROUP)["pending"] == 2
    assert client.xlen(keys.AR_STREAM) == 2


def test_a_consumer_leaves_only_when_nothing_is_pending_on_it(store, client):
    stream = _stream(client)
    ref = ImageRef(submit(store), 0)
    stream.read(1, block_ms=None)
    stream.leave()
    stream.forget_idle_consumers(-1)
    assert len(client.xinfo_consumers(keys.AR_STREAM, keys.AR_GROUP)) == 1
    lease = plan(store, ref)
    store.fail(lease, "x", "y")
    stream.leave()
    assert client.xinfo_consumers(keys.AR_STREAM, keys.AR_GROUP) == []

"""Keys take turns in AR: none waits long behind what another one has queued."""

import random
from collections import Counter

import pytest

from app import keys
from app.domain.job import ANYBODY, Priority
from app.domain.messages import ImageRef
from app.domain.states import ImageState
from app.queues.ar_stream import BATCH_EVERY, ArStream
from app.store.scripts import TURN
from tests.servers import wait_until
from tests.store.orders import PLAN, paint, stored, submit

#: Images of each other key that may come before a newcomer's.
FEW = 4
HEAVY, LIGHT, THIRD = "key_heavy", "key_light", "key_third"


@pytest.fixture
def stream(client):
    found = ArStream(client, "one")
    found.ensure_groups()
    return found


def _claim(store, stream, count=1):
    """Read as many hints as there may be and claim each, as a worker with so many free slots; the leases."""
    orders = [store.claim_plan(hint.ref, entry=hint.entry, token=hint.entry) for hint in stream.read(count)]
    return [order.lease for order in orders]


def _drain(store, stream, count=1):
    found = []
    while leases := _claim(store, stream, count):
        found += leases
    return [lease.ref for lease in found]


def _queue(store, owner, images, **terms):
    """Jobs of ten images each, and one of the rest."""
    sizes = [10] * (images // 10) + ([images % 10] if images % 10 else [])
    ids = [submit(store, n, owner=owner, **terms) for n in sizes]
    return [ImageRef(job_id, index) for job_id, n in zip(ids, sizes, strict=True) for index in range(n)]


@pytest.mark.parametrize("slots", [1, 3, 16])
def test_one_image_of_a_light_key_is_planned_among_the_next_few(store, stream, slots):
    heavy = _queue(store, HEAVY, 40)
    (light,) = _queue(store, LIGHT, 1)
    order = _drain(store, stream, slots)
    assert order.index(light) <= FEW
    assert [ref for ref in order if ref != light] == heavy, "each key's own images stay in order"


def test_a_key_that_comes_later_is_served_as_soon(store, stream):
    _queue(store, HEAVY, 40)
    for _ in range(10):
        _claim(store, stream)
    (light,) = _queue(store, LIGHT, 1)
    assert light in [lease.ref for _ in range(FEW + 1) for lease in _claim(store, stream)]


def test_keys_that_all_wait_get_equal_shares(store, stream):
    owners = {HEAVY: _queue(store, HEAVY, 60), LIGHT: _queue(store, LIGHT, 20), THIRD: _queue(store, THIRD, 20)}
    whose = {ref: owner for owner, refs in owners.items() for ref in refs}
    order = _drain(store, stream, 2)
    shares = Counter(whose[ref] for ref in order[:45])
    assert max(shares.values()) - min(shares.values()) <= FEW
    assert sorted(order, key=str) == sorted(whose, key=str)


def test_without_keys_all_is_hinted_at_once(store, client):
    submit(store, 10, owner=ANYBODY)
    assert client.xlen(keys.AR_REALTIME) == 10
    submit(store, 10, owner=HEAVY)
    assert client.xlen(keys.AR_REALTIME) == 10 + TURN


def test_priorities_hold_within_and_among_keys(store, stream):
    batch = set(_queue(store, HEAVY, 10, priority=Priority.BATCH))
    _queue(store, HEAVY, 30)
    _queue(store, LIGHT, 10)
    order = _drain(store, stream)
    assert len(order) == 50
    assert sum(ref in batch for ref in order[:20]) == 20 // BATCH_EVERY


def test_what_is_canceled_makes_room_or_leaves_the_line(store, stream, client):
    refs = _queue(store, HEAVY, 10)
    store.cancel_all([refs[0], refs[1], refs[6], refs[9]])
    assert client.zcard(keys.line(Priority.REALTIME, HEAVY)) == 2
    assert _drain(store, stream) == [refs[index] for index in (2, 3, 4, 5, 7, 8)]
    assert not client.exists(keys.line(Priority.REALTIME, HEAVY), keys.turn(Priority.REALTIME, HEAVY))


def test_released_work_is_hinted_at_once_and_all_of_it_comes_again(store, stream):
    refs = _queue(store, HEAVY, 10)
    leases = _claim(store, stream, 3)
    for lease in leases:
        assert store.release(lease) is ImageState.QUEUED
    order = _drain(store, stream)
    assert sorted(order, key=str) == sorted(refs, key=str)


def test_a_lost_stream_is_hinted_again_in_turns(store, stream, client):
    refs = _queue(store, HEAVY, 12)
    client.xtrim(keys.AR_REALTIME, maxlen=0, approximate=False)
    order = []

    def all_claimed():
        for ref in store.due(100):
            if ref not in order:
                store.sweep(ref)
        order.extend(lease.ref for lease in _claim(store, stream, 16))
        return len(order) == len(refs)

    wait_until(all_claimed, what="every image is claimed")
    assert sorted(order, key=str) == sorted(refs, key=str)


def test_a_turn_that_was_never_given_back_is_freed_by_the_sweeper(store, stream, client):
    """No script leaves one; a restored backup may."""
    refs = _queue(store, HEAVY, 6)
    _claim(store, stream, 16)
    client.sadd(keys.turn(Priority.REALTIME, HEAVY), *(f"job_gone:{index}" for index in range(TURN)))
    more = _queue(store, HEAVY, 2)
    assert refs[5] in _drain(store, stream)
    assert _drain(store, stream) == []
    wait_until(lambda: more[0] in store.due(100), what="the image is due")
    assert store.sweep(more[0]) == ("kept", ImageState.QUEUED)
    assert _drain(store, stream) == more


def test_a_repeated_claim_gives_one_turn_back(store, stream, client):
    _queue(store, HEAVY, 10)
    (hint,) = stream.read(1)
    first, second = (store.claim_plan(hint.ref, entry=hint.entry, token="t") for _ in range(2))
    assert first == second
    assert client.scard(keys.turn(Priority.REALTIME, HEAVY)) == TURN
    assert client.zcard(keys.line(Priority.REALTIME, HEAVY)) == 10 - TURN - 1


@pytest.mark.parametrize("seed", range(4))
def test_any_course_of_events_ends_every_image_and_leaves_no_count(store, stream, client, seed):
    draw = random.Random(seed)
    refs, leases = [], []
    for _ in range(150):
        move = draw.randrange(7)
        if move < 2 and len(refs) < 120:
            owner = draw.choice((HEAVY, LIGHT, ANYBODY))
            refs += _queue(store, owner, draw.randint(1, 10), priority=draw.choice(list(Priority)))
        elif move == 2 and refs:
            store.cancel(draw.choice(refs))
        elif move in (3, 4):
            leases += _claim_any(store, stream, draw.randint(1, 5))
        elif leases:
            lease = leases.pop(draw.randrange(len(leases)))
            if store.get(lease.ref.job_id).images[lease.ref.index].state is ImageState.CANCELING or move == 5:
                store.release(lease)
            else:
                store.hand_over(lease, PLAN)
                store.commit(paint(store, lease.ref), stored(), steps=12)
    store.cancel_all(refs)
    for lease in leases:
        store.release(lease)
    states = {image.state for ref in refs for image in store.get(ref.job_id).images}
    assert states <= {ImageState.SUCCEEDED, ImageState.CANCELED}
    assert client.zcard(keys.DUE) == 0
    left = [key.decode() for key in client.scan_iter() if key.startswith((keys.LINES.encode(), keys.TURNS.encode()))]
    assert left == []
    assert not client.exists(keys.ACTIVE)
    assert client.xlen(keys.AR_REALTIME) == client.xlen(keys.AR_BATCH) == 0


def _claim_any(store, stream, count):
    found = []
    for hint in stream.read(count):
        order = store.claim_plan(hint.ref, entry=hint.entry, token=hint.entry)
        if order is None:
            stream.drop(hint)
        else:
            found.append(order.lease)
    return found

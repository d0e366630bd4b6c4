"""What a key may use, counted by the server alone."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from app import keys, wiring
from app.domain.access import Limits
from app.domain.job import new_job_id
from app.domain.messages import ImageRef
from app.errors import LimitReached, QueueFull
from app.store.jobs import IdempotencyKey, Terms
from app.store.quotas import WINDOW_MS, Quotas, left
from tests.store.orders import PLAN, paint, parameters, plan, stored, submit

OWNER = "key_one"
PIXELS = 256 * 256


def _submit(store, n=1, limits=None, owner=OWNER, key=None):
    return store.submit(
        new_job_id(), parameters(n), Terms(owner=owner), metadata={}, limits=limits or Limits(), idempotency=key
    )


def test_images_that_have_not_ended_are_counted_and_each_end_makes_room(store):
    limits = Limits(images=3)
    job_id = _submit(store, 2, limits).job_id
    with pytest.raises(LimitReached) as caught:
        _submit(store, 2, limits)
    assert (caught.value.policy, caught.value.left, caught.value.wait_ms) == ("images", 1, None)
    assert _submit(store, 1, limits).usage.images == 3
    ref = ImageRef(job_id, 0)
    store.hand_over(plan(store, ref), PLAN)
    store.commit(paint(store, ref), stored(), steps=12)
    store.cancel(ImageRef(job_id, 1))
    store.cancel(ImageRef(job_id, 1))
    assert _submit(store, 2, limits).usage.images == 3
    assert _submit(store, 3, limits, owner="key_two").usage.images == 3


def test_a_refused_submit_writes_nothing(store, client):
    limits = Limits(images=2, pixels=4 * PIXELS)
    _submit(store, 2, limits)
    before = {key: client.dump(key) for key in client.scan_iter()}
    with pytest.raises(LimitReached):
        _submit(store, 1, limits, key=IdempotencyKey("k", "f", 1000))
    assert {key: client.dump(key) for key in client.scan_iter()} == before


def test_pixels_fill_up_again_by_the_minute(store):
    limits = Limits(pixels=4 * PIXELS)
    first = _submit(store, 3, limits)
    assert 0 < first.usage.pixels_ms <= WINDOW_MS * 3 / 4
    with pytest.raises(LimitReached) as caught:
        _submit(store, 2, limits)
    # Three quarters are used and a half is asked for: a quarter of the minute, less what has passed.
    assert WINDOW_MS / 8 < caught.value.wait_ms <= WINDOW_MS / 4
    assert caught.value.policy == "pixels"
    assert 0.99 * PIXELS <= caught.value.left < 2 * PIXELS
    _submit(store, 1, limits)
    _submit(store, 4, limits, owner="key_two")


def test_a_repeat_uses_nothing_and_is_not_refused(store):
    limits, key = Limits(images=1, pixels=PIXELS), IdempotencyKey("k", "f", 10_000)
    first = _submit(store, 1, limits, key=key)
    again = _submit(store, 1, limits, key=key)
    assert (again.repeated, again.job_id, again.usage) == (True, first.job_id, None)


def test_the_queue_is_bounded_for_all_together(settings, client):
    store = wiring.job_store(settings.model_copy(update={"max_queued": 5}), client)
    _submit(store, 3)
    job_id = submit(store, 2)
    for owner in (OWNER, "anybody"):
        with pytest.raises(QueueFull):
            _submit(store, 1, owner=owner)
    plan(store, ImageRef(job_id, 0))
    _submit(store, 1)


def test_many_at_once_get_exactly_what_is_allowed(store, client):
    def one(_):
        try:
            return _submit(store, 3, Limits(images=10)).usage.images
        except LimitReached:
            return None

    with ThreadPoolExecutor(8) as pool:
        found = [images for images in pool.map(one, range(40)) if images is not None]
    assert sorted(found) == [3, 6, 9]
    assert client.hget(keys.ACTIVE, OWNER) == b"9"


def test_requests_come_from_a_bucket_of_each_key(client):
    quotas = Quotas(client)
    taken = [quotas.take_request(OWNER, 5) for _ in range(7)]
    assert [each.allowed for each in taken] == [True] * 5 + [False] * 2
    # The bucket is empty, and one request is a fifth of a minute.
    assert 0 < taken[-1].ms <= WINDOW_MS / 5
    assert [left(5, each.ms) for each in taken[:5]] == [4, 3, 2, 1, 0]
    assert quotas.take_request("key_two", 5).allowed
    assert 0 < client.pttl(keys.quota(OWNER, "requests")) <= WINDOW_MS + 1

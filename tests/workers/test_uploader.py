import io
import threading

import numpy as np
import requests
from PIL import Image

from app import keys
from app.domain.messages import ImageRef
from app.domain.states import ImageState
from app.errors import ImageFailed, Unavailable
from app.views import job_view
from tests.servers import wait_until
from tests.store.orders import PLAN, plan, submit
from workers.uploader import Painted, Uploader


class _Failing:
    """Real object storage whose first uploads fail as named."""

    def __init__(self, blobs, *errors):
        self._blobs = blobs
        self.errors = list(errors)
        self.keys = []

    def put(self, key, *rest):
        self.keys.append(key)
        if self.errors:
            raise self.errors.pop(0)
        return self._blobs.put(key, *rest)

    def delete(self, key):
        self._blobs.delete(key)


def _painted(store):
    ref = ImageRef(submit(store), 0)
    store.hand_over(plan(store, ref), PLAN)
    order = store.claim_paint(ref, token="t")
    return Painted(order, np.full((4, 6, 3), 200, np.uint8))


def _read(blobs, key):
    return Image.open(io.BytesIO(blobs.get(key)))


def _image(store, painted):
    return store.get(painted.order.lease.ref.job_id).images[0]


def test_a_picture_is_encoded_uploaded_and_committed(store, stages, heartbeat, blobs):
    uploader = Uploader(blobs, store, stages, heartbeat)
    painted = _painted(store)
    uploader.submit(painted)
    uploader.close(10)
    image = _image(store, painted)
    assert image.state is ImageState.SUCCEEDED
    assert np.array_equal(np.asarray(_read(blobs, image.stored.key)), painted.pixels)
    small = _read(blobs, image.stored.thumbnail)
    assert (small.format, small.size) == ("WEBP", (6, 4))


def test_the_record_tells_with_which_shortcut_a_picture_was_painted(store, stages, heartbeat, blobs):
    for step_cache in (None, "first-block:0.1"):
        uploader = Uploader(blobs, store, stages, heartbeat, step_cache=step_cache)
        painted = _painted(store)
        uploader.submit(painted)
        uploader.close(10)
        assert _image(store, painted).stored.step_cache == step_cache
        job = store.get(painted.order.lease.ref.job_id)
        assert job_view(job, "http://localhost")["images"][0]["step_cache"] == step_cache


def test_an_upload_is_repeated_alone_while_the_lease_is_kept(store, stages, heartbeat, blobs):
    """ai-dynamo/dynamo#12970: a failed upload cost the whole generation."""
    away = _Failing(blobs, *[Unavailable("away")] * 3)
    uploader = Uploader(away, store, stages, heartbeat)
    painted = _painted(store)
    heartbeat.hold(painted.order.lease)
    uploader.submit(painted)
    uploader.close(20)
    assert _image(store, painted).state is ImageState.SUCCEEDED
    assert len(away.keys) == 5  # three that failed, the picture and its thumbnail
    assert set(away.keys) == set(_image(store, painted).stored.keys)


def _gone(blobs, key):
    return requests.get(blobs.presign(key), timeout=5).status_code == 404


def test_a_lost_lease_leaves_no_object_behind(store, stages, heartbeat, blobs):
    counted = _Failing(blobs)
    uploader = Uploader(counted, store, stages, heartbeat)
    painted = _painted(store)
    store.release(painted.order.lease)
    uploader.submit(painted)
    uploader.close(10)
    assert _image(store, painted).state is ImageState.PLANNED
    assert len(counted.keys) == 2
    assert all(_gone(blobs, key) for key in counted.keys)


class _Deaf:
    """The real store, but the answer to a commit is lost, and the worker is told to stop before it asks again."""

    def __init__(self, store, uploader):
        self._store = store
        self._uploader = uploader

    def commit(self, *arguments, **keywords):
        self._store.commit(*arguments, **keywords)
        self._uploader._give_back.set()
        raise Unavailable("the answer was lost")

    def __getattr__(self, name):
        return getattr(self._store, name)


def test_a_commit_whose_answer_is_lost_keeps_its_objects(store, stages, heartbeat, blobs):
    uploader = Uploader(blobs, store, stages, heartbeat)
    uploader._store = _Deaf(store, uploader)
    painted = _painted(store)
    uploader.submit(painted)
    uploader.close(10)
    image = _image(store, painted)
    assert image.state is ImageState.SUCCEEDED
    assert [_gone(blobs, key) for key in image.stored.keys] == [False, False]


def test_a_refusal_of_the_server_is_retried_by_another_attempt(store, stages, heartbeat, blobs, client):
    refusing = _Failing(blobs, ImageFailed("storage_refused", "no", retryable=True))
    uploader = Uploader(refusing, store, stages, heartbeat)
    painted = _painted(store)
    uploader.submit(painted)
    uploader.close(10)
    assert _image(store, painted).state is ImageState.PLANNED
    assert all(_gone(blobs, key) for key in refusing.keys)
    wait_until(lambda: client.llen(keys.DIT_LIST) == 1, what="the next hint")


def test_a_stopping_worker_gives_back_what_it_cannot_upload(store, stages, heartbeat, blobs):
    uploader = Uploader(_Failing(blobs, *[Unavailable("away")] * 1000), store, stages, heartbeat)
    painted = _painted(store)
    heartbeat.hold(painted.order.lease)
    uploader.submit(painted)
    uploader.close(0.1)
    image = _image(store, painted)
    assert image.state is ImageState.PLANNED
    assert image.dit_attempts == 0


class _Slow:
    """Real object storage that takes nothing until it is let."""

    def __init__(self, blobs):
        self._blobs = blobs
        self.open = threading.Event()

    def put(self, *arguments):
        assert self.open.wait(30)
        return self._blobs.put(*arguments)


def test_denoising_pauses_while_two_pictures_wait(store, stages, heartbeat, blobs):
    slow = _Slow(blobs)
    uploader = Uploader(slow, store, stages, heartbeat)
    first, *others = [_painted(store) for _ in range(4)]
    uploader.submit(first)
    wait_until(uploader._queue.empty, what="the first upload")
    fourth = threading.Thread(target=lambda: [uploader.submit(painted) for painted in others])
    fourth.start()
    wait_until(uploader._queue.full, what="two that wait")
    fourth.join(0.2)
    assert fourth.is_alive()
    slow.open.set()
    fourth.join(20)
    uploader.close(20)
    assert {_image(store, painted).state for painted in (first, *others)} == {ImageState.SUCCEEDED}

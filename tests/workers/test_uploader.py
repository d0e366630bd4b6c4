import io

import numpy as np
import requests
from PIL import Image

from app import keys
from app.domain.messages import ImageRef
from app.domain.states import ImageState
from app.errors import ImageFailed, Unavailable
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


def _image(store, painted):
    return store.get(painted.order.lease.ref.job_id).images[0]


def test_a_picture_is_encoded_uploaded_and_committed(store, stages, heartbeat, blobs):
    uploader = Uploader(blobs, store, stages, heartbeat)
    painted = _painted(store)
    uploader.submit(painted)
    uploader.close(10)
    image = _image(store, painted)
    assert image.state is ImageState.SUCCEEDED
    data = requests.get(blobs.presign(image.stored.key), timeout=5).content
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(data))), painted.pixels)


def test_an_upload_is_repeated_alone_while_the_lease_is_kept(store, stages, heartbeat, blobs):
    """ai-dynamo/dynamo#12970: a failed upload cost the whole generation."""
    away = _Failing(blobs, *[Unavailable("away")] * 3)
    uploader = Uploader(away, store, stages, heartbeat)
    painted = _painted(store)
    heartbeat.hold(painted.order.lease)
    uploader.submit(painted)
    uploader.close(20)
    assert _image(store, painted).state is ImageState.SUCCEEDED
    assert len(away.keys) == 4
    assert len(set(away.keys)) == 1


def test_a_lost_lease_leaves_no_object_behind(store, stages, heartbeat, blobs):
    counted = _Failing(blobs)
    uploader = Uploader(counted, store, stages, heartbeat)
    painted = _painted(store)
    store.release(painted.order.lease)
    uploader.submit(painted)
    uploader.close(10)
    assert _image(store, painted).state is ImageState.PLANNED
    assert requests.get(blobs.presign(counted.keys[0]), timeout=5).status_code == 404


def test_a_refusal_of_the_server_is_retried_by_another_attempt(store, stages, heartbeat, blobs, client):
    refusing = _Failing(blobs, ImageFailed("storage_refused", "no", retryable=True))
    uploader = Uploader(refusing, store, stages, heartbeat)
    painted = _painted(store)
    uploader.submit(painted)
    uploader.close(10)
    assert _image(store, painted).state is ImageState.PLANNED
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

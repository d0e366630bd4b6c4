"""`planpaint dit --sp 2` as an operator runs it: two processes, one of which is killed in the middle of an image."""

import os
import signal

import pytest
import torch

from app.dit.engine import DitEngine
from app.domain.messages import DitTask
from app.domain.states import ImageState
from app.queues.dit_queue import DitQueue, make_celery
from app.store.jobs import JobStore
from tests.servers import wait_until
from tests.workers.processes import children, ended, worker
from tests.workers.test_dit import _image, _planned
from workers.dit import DitWorker
from workers.uploader import Uploader
from workers.watchdog import Watchdog

#: Long enough to be met in the middle.
STEPS = 400


@pytest.fixture
def group(servers, client, tiny_checkpoint, tmp_path):
    """The leader. `client`: on an empty database."""
    with worker(servers, tiny_checkpoint, tmp_path / "group.log", "dit", "--sp", "2", lease_s=1) as process:
        yield process


def test_a_killed_rank_ends_its_group_and_the_image_is_painted_elsewhere(
    group, settings, client, stages, blobs, heartbeat, tiny_checkpoint
):
    store = JobStore(client, lease_ms=1000, hint_ms=1000, max_attempts=3)
    quick, long = _planned(store), _planned(store, steps=STEPS)
    queue = DitQueue(make_celery(settings))
    for ref in (quick, long):
        queue.publish(DitTask(ref.job_id, 0))

    def running():
        assert group.exitcode is None, "the group ended by itself"
        return _image(store, long).step > 2

    wait_until(running, timeout=120, what="a step of the long image")
    # Its upload goes on while the next image is painted.
    wait_until(lambda: _image(store, quick).state is ImageState.SUCCEEDED, what="the quick image's commit")
    (follower,) = children(group.pid)
    os.kill(follower, signal.SIGKILL)
    assert ended(group) != 0
    wait_until(lambda: long in store.due(10), what="the lease's end")
    assert store.sweep(long)[1] is ImageState.PLANNED

    engine = DitEngine.load(tiny_checkpoint, device=torch.device("cpu"), dtype=torch.float32)
    uploader = Uploader(blobs, store, stages, heartbeat)
    DitWorker(engine, store, stages, blobs, heartbeat, uploader, name="w2", watchdog=Watchdog(0)).step(
        DitTask(long.job_id, 0)
    )
    uploader.close(30)
    image = _image(store, long)
    assert (image.state, image.dit_attempts) == (ImageState.SUCCEEDED, 2)

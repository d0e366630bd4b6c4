"""The DiT worker's step on a real server, real storage and a real engine of the tiny checkpoint."""

import time

import pytest
import torch

from app import keys
from app.dit.engine import DitEngine
from app.domain.job import Parameters, new_job_id
from app.domain.messages import DitTask, ImageRef
from app.domain.prior import Plan, PriorTokens
from app.domain.sizes import Size
from app.domain.states import ImageState
from app.errors import ImageFailed
from app.store.jobs import Terms
from tests.store.orders import plan
from workers.dit import DitWorker
from workers.uploader import Uploader
from workers.watchdog import Watchdog

S = ImageState
SIZE = Size(64, 96)


@pytest.fixture(scope="module")
def engine(tiny_checkpoint):
    return DitEngine.load(tiny_checkpoint, device=torch.device("cpu"), dtype=torch.float32)


@pytest.fixture
def uploader(blobs, store, stages, heartbeat):
    return Uploader(blobs, store, stages, heartbeat)


@pytest.fixture
def worker(engine, store, stages, blobs, heartbeat, uploader):
    return DitWorker(engine, store, stages, blobs, heartbeat, uploader, name="w1", watchdog=Watchdog(0))


def _planned(store, steps=3) -> ImageRef:
    job_id = new_job_id()
    store.submit(
        job_id,
        Parameters("a red circle", SIZE, 1, 3, steps, 1.5, 0.9, 0.75, "png"),
        Terms(),
        metadata={},
    )
    ref = ImageRef(job_id, 0)
    grid = SIZE.large_grid
    store.hand_over(plan(store, ref), Plan(PriorTokens(grid, tuple(range(grid.tokens)))))
    return ref


def _image(store, ref):
    return store.get(ref.job_id).images[ref.index]


def test_a_hint_becomes_a_committed_picture(worker, uploader, store):
    ref = _planned(store)
    worker.step(DitTask(ref.job_id, 0))
    uploader.close(20)
    image = _image(store, ref)
    assert image.state is S.SUCCEEDED
    assert image.stored.key == f"jobs/{ref.job_id}/0/2.png"


def test_a_second_hint_paints_nothing(worker, uploader, store, client):
    ref = _planned(store)
    for _ in range(2):
        worker.step(DitTask(ref.job_id, 0))
    uploader.close(20)
    assert _image(store, ref).dit_attempts == 1
    assert client.xlen(keys.events(ref.job_id)) == 3


@pytest.mark.parametrize(
    ("error", "state", "code"),
    [
        (ImageFailed("nan_output", "not a number", retryable=True), S.PLANNED, None),
        (ImageFailed("broken", "for good"), S.FAILED, "broken"),
        (ValueError("a bug"), S.PLANNED, None),
    ],
)
def test_failures_are_sorted_and_the_worker_goes_on(
    worker, engine, uploader, store, client, monkeypatch, error, state, code
):
    ref = _planned(store)

    def broken(request, on_step):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(engine, "paint", broken)
        worker.step(DitTask(ref.job_id, 0))
    image = _image(store, ref)
    assert image.state is state
    assert (image.failure.code if image.failure else None) == code
    assert client.llen(keys.DIT_LIST) == (1 if state is S.PLANNED else 0)
    other = _planned(store)
    worker.step(DitTask(other.job_id, 0))
    uploader.close(20)
    assert _image(store, other).state is S.SUCCEEDED


def test_an_image_that_always_fails_ends_with_its_last_reason(worker, engine, store, monkeypatch):
    ref = _planned(store)

    def broken(request, on_step):
        raise ValueError("a bug")

    monkeypatch.setattr(engine, "paint", broken)
    for _ in range(3):
        worker.step(DitTask(ref.job_id, 0))
    assert _image(store, ref).failure.code == "dit_error"


def test_after_memory_ran_out_a_worker_takes_nothing_and_the_image_is_tried_once_more(
    worker, engine, store, stages, blobs, heartbeat, uploader, client, monkeypatch
):
    def broken(request, on_step):
        raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr(engine, "paint", broken)
    ref = _planned(store)
    for _ in range(2):
        worker.step(DitTask(ref.job_id, 0))
    assert worker.worn_out
    image = _image(store, ref)
    assert (image.state, image.dit_attempts, image.failure) == (S.PLANNED, 1, None)
    assert client.llen(keys.DIT_LIST) == 1
    second = DitWorker(engine, store, stages, blobs, heartbeat, uploader, name="w2", watchdog=Watchdog(0))
    second.step(DitTask(ref.job_id, 0))
    image = _image(store, ref)
    assert (image.state, image.dit_attempts, image.failure.code) == (S.FAILED, 2, "out_of_memory")


def test_other_failures_before_do_not_cost_the_second_try_for_memory(worker, engine, store, monkeypatch):
    ref = _planned(store)
    for error in (ValueError("a bug"), torch.OutOfMemoryError("no memory")):
        monkeypatch.setattr(engine, "paint", lambda request, on_step, error=error: (_ for _ in ()).throw(error))
        worker.step(DitTask(ref.job_id, 0))
    assert _image(store, ref).state is S.PLANNED


def test_a_deadline_frees_the_device_within_a_step(worker, engine, store, client, monkeypatch):
    ref, steps = _planned(store, steps=50), []
    seconds, micros = client.time()
    client.hset(keys.job(ref.job_id), "deadline_ms", seconds * 1000 + micros // 1000 + 60_000)
    paint = engine.paint

    def watched(request, on_step):
        def on_each(step):
            steps.append(step)
            if step == 3:  # a minute passes
                now = time.monotonic() + 61
                monkeypatch.setattr("workers.dit.time.monotonic", lambda: now)
            on_step(step)

        return paint(request, on_each)

    monkeypatch.setattr(engine, "paint", watched)
    worker.step(DitTask(ref.job_id, 0))
    assert steps == [1, 2, 3]
    image = _image(store, ref)
    assert image.state in (S.FAILED, S.CANCELED)
    assert image.failure.code == "deadline_exceeded"


def test_a_deadline_that_is_far_changes_nothing(worker, uploader, store, client):
    ref = _planned(store)
    seconds, _ = client.time()
    client.hset(keys.job(ref.job_id), "deadline_ms", (seconds + 600) * 1000)
    worker.step(DitTask(ref.job_id, 0))
    uploader.close(20)
    assert _image(store, ref).state is S.SUCCEEDED


def test_a_cancel_frees_the_device_within_a_step_of_being_seen(worker, engine, heartbeat, store, monkeypatch):
    ref, steps = _planned(store, steps=50), []
    paint = engine.paint

    def watched(request, on_step):
        def on_each(step):
            steps.append(step)
            if step == 3:
                store.cancel(ref)
                lease = next(iter(heartbeat._steps))
                while not heartbeat.lost(lease):
                    pass
            on_step(step)

        return paint(request, on_each)

    monkeypatch.setattr(engine, "paint", watched)
    worker.step(DitTask(ref.job_id, 0))
    assert steps == [1, 2, 3]
    assert _image(store, ref).state is S.CANCELED


def test_a_stopping_worker_gives_the_image_back_after_its_grace(worker, store, client):
    ref = _planned(store, steps=50)
    worker.stop(0.0)
    worker.step(DitTask(ref.job_id, 0))
    image = _image(store, ref)
    assert (image.state, image.dit_attempts) == (S.PLANNED, 0)
    assert client.llen(keys.DIT_LIST) == 1

"""The AR worker's loop on a real server and a real engine of the tiny checkpoint."""

import hashlib
import io
import time
from contextlib import contextmanager

import pytest
import torch
from PIL import Image

from app import keys, wiring
from app.ar.engine import ArEngine
from app.ar.srt import SrtEngine
from app.domain.job import ANYBODY, Parameters, new_job_id
from app.domain.messages import ImageRef
from app.domain.sizes import Size
from app.domain.states import ImageState
from app.errors import Unavailable
from app.pictures import Bounds, prepare
from app.store.jobs import Terms
from tests.ar.srt_server import SrtServer
from tests.servers import wait_until
from tests.store.orders import plan
from workers.ar import ArWorker
from workers.heartbeat import Heartbeat
from workers.watchdog import Watchdog

S = ImageState


@pytest.fixture(scope="module")
def engine(tiny_checkpoint):
    return _engine(tiny_checkpoint, slots=4)


def _engine(checkpoint, slots):
    return ArEngine.load(
        checkpoint,
        device=torch.device("cpu"),
        dtype=torch.float32,
        slots=slots,
        max_prompt_tokens=256,
        max_pixels=128 * 128,
    )


@contextmanager
def _worker(engine, client, settings, store, blobs, registry, name):
    stream = wiring.ar_stream(client, name)
    stream.ensure_groups()
    stages = wiring.stages(settings, client)
    with Heartbeat(store, registry, name=name, role="ar", device="cpu", lease_s=settings.lease_s) as heartbeat:
        made = ArWorker(
            engine, stream, store, stages, blobs, heartbeat, name=name, min_distinct=0.0, watchdog=Watchdog(0)
        )
        yield made
        made.release_all()


@pytest.fixture
def bounds(tiny_checkpoint):
    return Bounds.of(tiny_checkpoint.part("processor"))


@pytest.fixture
def worker(engine, client, store, stages, blobs, heartbeat):
    stream = wiring.ar_stream(client, "w1")
    stream.ensure_groups()
    made = ArWorker(engine, stream, store, stages, blobs, heartbeat, name="w1", min_distinct=0.0, watchdog=Watchdog(0))
    yield made
    made.release_all()


def _submit(store, size="64x64", n=1, prompt="a red circle", seed=3, owner=ANYBODY):
    job_id = new_job_id()
    parameters = Parameters(prompt, Size.parse(size), n, seed, 2, 1.5, 0.9, 0.75, "png")
    store.submit(job_id, parameters, Terms(owner=owner), metadata={})
    return job_id


def _edit(store, blobs, bounds, *colours, size="64x64"):
    job_id, inputs = new_job_id(), []
    for number, colour in enumerate(colours):
        file = io.BytesIO()
        prepare(Image.new("RGB", (64, 96), colour), bounds).save(file, "PNG")
        data = file.getvalue()
        key = f"jobs/{job_id}/inputs/{number}.png"
        inputs.append(blobs.put(key, data, "image/png", hashlib.sha256(data).digest()).key)
    parameters = Parameters("make it red", Size.parse(size), 1, 3, 2, 1.5, 0.9, 0.75, "png")
    store.submit(job_id, parameters, Terms(), metadata={}, inputs=tuple(inputs))
    return job_id


def _states(store, job_id):
    return [image.state for image in store.get(job_id).images]


def _run_until(worker, condition):
    """Without wait_until's pause, which takes longer than a step."""
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, "the worker's work did not end"
        worker.step()


def test_a_mixed_group_is_planned_and_hinted(worker, store, client):
    jobs = [_submit(store, "64x64"), _submit(store, "128x96"), _submit(store, "32x128", n=2)]
    _run_until(worker, lambda: all(set(_states(store, job)) == {S.PLANNED} for job in jobs))
    assert client.xlen(keys.AR_REALTIME) == 0
    assert client.llen(keys.DIT_LIST) == 4
    for job in jobs:
        prior = store.plan(ImageRef(job, 0)).prior
        assert prior.grid == store.get(job).parameters.size.large_grid
    assert worker.idle


def test_it_takes_no_more_than_it_has_slots_and_the_rest_later(worker, store, client):
    job = _submit(store, n=10)
    worker.step()
    assert _states(store, job).count(S.PLANNING) == 4
    assert client.xpending(keys.AR_REALTIME, keys.AR_GROUP)["pending"] == 4
    _run_until(worker, lambda: set(_states(store, job)) == {S.PLANNED})


def test_one_image_of_a_light_key_does_not_wait_for_forty_of_another(worker, store):
    heavy = [_submit(store, "32x32", n=10, owner="key_heavy") for _ in range(4)]
    light = _submit(store, "32x32", owner="key_light")
    _run_until(worker, lambda: _states(store, light) == [S.PLANNED])
    taken = sum(state is not S.QUEUED for job in heavy for state in _states(store, job))
    # Four slots: those before it, those beside it, and those that took the places of the first.
    assert taken <= 3 * 4


def test_one_key_alone_fills_all_slots_within_a_few_steps(tiny_checkpoint, client, store, stages, blobs, heartbeat):
    stream = wiring.ar_stream(client, "w1")
    stream.ensure_groups()
    wide = _engine(tiny_checkpoint, slots=10)
    worker = ArWorker(wide, stream, store, stages, blobs, heartbeat, name="w1", min_distinct=0.0, watchdog=Watchdog(0))
    job = _submit(store, "128x128", n=10, owner="key_alone")
    for _ in range(4):
        worker.step()
    assert _states(store, job) == [S.PLANNING] * 10
    worker.release_all()


def _lose(store, client, ref):
    """The end of the lease, at once: what a worker held that has died."""
    client.zadd(keys.DUE, {str(ref): 1})
    assert store.sweep(ref)[0] in ("retried", "failed")


@pytest.fixture
def patient(settings):
    """A store whose leases do not lapse by themselves, however slow the machine is."""
    return settings.model_copy(update={"lease_s": 600.0})


@pytest.fixture
def patient_store(patient, client):
    return wiring.job_store(patient, client)


def test_a_suspect_is_planned_alone_after_the_rows_that_run_and_before_newcomers(
    engine, client, patient, patient_store, blobs, registry
):
    store, suspect = patient_store, _submit(patient_store)
    for attempt in range(2):
        plan(store, ImageRef(suspect, 0), f"lost{attempt}")
        _lose(store, client, ImageRef(suspect, 0))
    with _worker(engine, client, patient, store, blobs, registry, "w1") as worker:
        company, together = [_submit(store, "128x128"), _submit(store, "32x32")], []

        def step():
            worker.step()
            together.append({key.split(":")[0] for key in engine.running})

        while _states(store, company[0]) != [S.PLANNING]:
            step()
        later = _submit(store)
        while _states(store, suspect) != [S.PLANNED]:
            step()
        assert {suspect} in together
        assert not any(suspect in running and len(running) > 1 for running in together)
        assert _states(store, later) == [S.QUEUED]
        _run_until(worker, lambda: all(_states(store, job) == [S.PLANNED] for job in [*company, later]))


def _hint_again(worker, store, client):
    """What it had read and not claimed; the sweeper would wait for the length of a lease."""
    for hint in worker._hints:
        worker._stream.drop(hint)
        client.zadd(keys.DUE, {str(hint.ref): 1})
        assert store.sweep(hint.ref)[0] == "hinted"


def test_a_prompt_that_kills_its_process_takes_nobody_with_it(engine, client, patient, patient_store, blobs, registry):
    """The process's end is played: all that the worker holds is lost the moment it runs the poison."""
    store = patient_store
    poison = _submit(store, prompt="poison")
    good = [_submit(store), _submit(store), _submit(store)]
    deaths = 0
    while S.QUEUED in [_states(store, job)[0] for job in (poison, *good)]:
        assert deaths <= 3
        with _worker(engine, client, patient, store, blobs, registry, f"w{deaths}") as worker:
            worker.step()
            while not worker.idle and not any(poison in key for key in engine.running):
                worker.step()
            deaths += not worker.idle
            for row in worker._rows.values():
                _lose(store, client, row.lease.ref)
            _hint_again(worker, store, client)
    assert deaths == 3
    assert store.get(poison).images[0].failure.code == "worker_lost"
    assert all(_states(store, job) == [S.PLANNED] for job in good)


def test_an_error_of_the_whole_batch_ends_the_worker_and_fails_what_causes_it_alone(
    engine, client, patient, patient_store, blobs, registry, monkeypatch
):
    """Each worker that runs the poison ends with an error; its images go on elsewhere at once, with its traceback."""
    store = patient_store
    poison, good = _submit(store, prompt="poison"), [_submit(store), _submit(store)]
    real = engine.step

    def step():
        if any(poison in key for key in engine.running):
            raise RuntimeError("the device is broken")
        return real()

    monkeypatch.setattr(engine, "step", step)
    ends = 0
    while not store.get(poison).done:
        with _worker(engine, client, patient, store, blobs, registry, f"w{ends}") as worker:
            with pytest.raises(RuntimeError):
                _run_until(worker, lambda: store.get(poison).done)
            ends += 1
            for key in engine.running:
                engine.evict(key)
            _hint_again(worker, store, client)
    assert ends == 3
    with _worker(engine, client, patient, store, blobs, registry, "last") as worker:
        _run_until(worker, lambda: all(_states(store, job) == [S.PLANNED] for job in good))
    image = store.get(poison).images[0]
    assert (image.failure.code, image.ar_attempts) == ("worker_lost", 3)
    assert "the device is broken" in wiring.dead_letters(client).get(f"{poison}:0").traceback


def test_a_bad_prompt_fails_alone_with_a_reason(worker, store):
    good, bad = _submit(store), _submit(store, prompt="x" * 3000)
    _run_until(worker, lambda: _states(store, good) == [S.PLANNED] and _states(store, bad) == [S.FAILED])
    assert store.get(bad).images[0].failure.code == "prompt_too_long"


def test_a_canceled_row_leaves_its_slot(worker, engine, store, heartbeat):
    job = _submit(store)
    worker.step()
    assert len(engine.running) == 1
    store.cancel(ImageRef(job, 0))
    # Without steps meanwhile: on a quick machine the row would end by itself.
    [row] = worker._rows.values()
    wait_until(lambda: heartbeat.lost(row.lease))
    worker.step()
    assert worker.idle
    assert not engine.running
    assert _states(store, job) == [S.CANCELED]


def test_work_is_given_back_uncounted_when_the_worker_stops(worker, engine, store):
    job = _submit(store, n=2)
    _run_until(worker, lambda: len(engine.running) == 2)
    worker.release_all()
    assert _states(store, job) == [S.QUEUED, S.QUEUED]
    assert [image.ar_attempts for image in store.get(job).images] == [0, 0]
    assert not engine.running
    _run_until(worker, lambda: set(_states(store, job)) == {S.PLANNED})


def test_results_are_kept_while_redis_is_away(worker, store, stages, monkeypatch):
    """The server itself is killed in tests/integration; here each call that may fail does so once, in turn."""
    job, calls = _submit(store, n=2), []
    hand_over = stages.hand_over

    def failing(lease, plan):
        calls.append(lease)
        if len(calls) in (1, 3):
            raise Unavailable("away")
        hand_over(lease, plan)

    monkeypatch.setattr(stages, "hand_over", failing)
    _run_until(worker, lambda: set(_states(store, job)) == {S.PLANNED})
    assert len(calls) == 4
    assert [image.ar_attempts for image in store.get(job).images] == [1, 1]


def test_a_hint_whose_claim_did_not_get_through_is_tried_again(worker, store, monkeypatch):
    job, calls = _submit(store), []
    claim = store.claim_plan

    def failing(*arguments, **keywords):
        calls.append(arguments)
        if len(calls) == 1:
            raise Unavailable("away")
        return claim(*arguments, **keywords)

    monkeypatch.setattr(store, "claim_plan", failing)
    _run_until(worker, lambda: _states(store, job) == [S.PLANNED])
    assert len(calls) == 2


def test_tokens_follow_from_the_seed_whatever_shares_the_batch(worker, store):
    alone = _submit(store, seed=11)
    _run_until(worker, lambda: _states(store, alone) == [S.PLANNED])
    others = [_submit(store, "128x128", seed=1), _submit(store, "32x32", prompt="other", seed=2)]
    again = _submit(store, seed=10, n=2)
    _run_until(worker, lambda: all(set(_states(store, job)) == {S.PLANNED} for job in [*others, again]))
    assert store.plan(ImageRef(again, 1)) == store.plan(ImageRef(alone, 0))
    assert store.plan(ImageRef(again, 0)) != store.plan(ImageRef(alone, 0))


def test_a_plan_that_collapsed_is_made_once_more_and_then_fails(worker, engine, store, monkeypatch):
    monkeypatch.setattr(worker, "_min_distinct", 2.0)
    seeds, admit = [], engine.admit

    def watched(requests):
        seeds.extend(request.seed for request in requests)
        return admit(requests)

    monkeypatch.setattr(engine, "admit", watched)
    job = _submit(store, "32x32", seed=5)
    _run_until(worker, lambda: _states(store, job) == [S.FAILED])
    image = store.get(job).images[0]
    assert image.failure.code == "ar_degenerate"
    assert image.ar_attempts == 1
    assert len(seeds) == len(set(seeds)) == 2
    assert worker.idle


def test_a_second_plan_that_is_good_is_handed_over(worker, store, monkeypatch):
    """Told by the bound alone: the first plan is under it, the second is not."""
    bounds = [2.0, 0.0]
    monkeypatch.setattr(
        type(worker), "_min_distinct", property(lambda self: bounds.pop(0), lambda self, value: None), raising=False
    )
    del worker.__dict__["_min_distinct"]
    job = _submit(store, "32x32", seed=5)
    _run_until(worker, lambda: _states(store, job) == [S.PLANNED])
    assert bounds == []


def test_a_remote_server_takes_the_engines_place(worker, store, tiny_checkpoint, httpserver):
    server = SrtServer(tiny_checkpoint)
    httpserver.expect_request("/generate").respond_with_handler(server.generate)
    worker._engine = SrtEngine.load(
        tiny_checkpoint, httpserver.url_for("/"), slots=4, batches=2, max_prompt_tokens=256, timeout_s=30.0
    )
    jobs = [_submit(store, "32x32", n=2), _submit(store, "64x32")]
    _run_until(worker, lambda: all(set(_states(store, job)) == {S.PLANNED} for job in jobs))
    assert worker.idle
    assert sum(server.batches) == 3


def test_edits_and_texts_share_a_batch_and_hand_over_the_ids_of_their_pictures(worker, store, blobs, bounds):
    jobs = [_edit(store, blobs, bounds, "red"), _submit(store), _edit(store, blobs, bounds, "blue", "green")]
    _run_until(worker, lambda: all(_states(store, job) == [S.PLANNED] for job in jobs))
    plans = [store.plan(ImageRef(job, 0)) for job in jobs]
    assert [len(plan.condition) for plan in plans] == [1, 0, 2]
    wide, high = prepare(Image.new("RGB", (64, 96)), bounds).size
    assert {condition.grid for plan in plans for condition in plan.condition} == {Size(wide, high).large_grid}
    order = store.claim_paint(ImageRef(jobs[2], 0), token="t")
    assert order.condition == plans[2].condition
    assert len(order.inputs) == 2


def test_an_edit_whose_picture_is_gone_fails_alone(worker, store, blobs, bounds):
    gone, good = _edit(store, blobs, bounds, "red"), _edit(store, blobs, bounds, "red")
    blobs.delete(f"jobs/{gone}/inputs/0.png")
    _run_until(worker, lambda: _states(store, gone) == [S.FAILED] and _states(store, good) == [S.PLANNED])
    assert store.get(gone).images[0].failure.code == "input_missing"


def test_an_edit_whose_stored_picture_is_damaged_fails_alone(worker, store, blobs, bounds):
    job = _edit(store, blobs, bounds, "red")
    data = b"not a picture"
    blobs.put(f"jobs/{job}/inputs/0.png", data, "image/png", hashlib.sha256(data).digest())
    good = _submit(store)
    _run_until(worker, lambda: _states(store, job) == [S.FAILED] and _states(store, good) == [S.PLANNED])
    assert store.get(job).images[0].failure.code == "input_missing"


def test_a_row_ends_at_its_deadline_and_its_company_goes_on(worker, engine, store, client):
    late, other = _submit(store, "128x128"), _submit(store, "64x64")
    seconds, micros = client.time()
    client.hset(keys.job(late), "deadline_ms", seconds * 1000 + micros // 1000 + 150)
    _run_until(worker, lambda: _states(store, late)[0] in (S.FAILED, S.CANCELED))
    assert store.get(late).images[0].failure.code == "deadline_exceeded"
    assert not any(late in key for key in engine.running)
    _run_until(worker, lambda: _states(store, other) == [S.PLANNED])

"""Public bug reports of services of this kind, as tests of what is right. Those about HTTP stand in tests/api."""

import pytest

from app import keys
from app.domain.messages import ImageRef
from app.domain.states import ImageState
from app.errors import LostLease
from app.settings import load
from tests.servers import wait_until
from tests.store.orders import PLAN, paint, place, plan, stored, submit

S = ImageState


@pytest.mark.parametrize("state", [S.SUCCEEDED, S.FAILED, S.CANCELED])
def test_a_late_writer_does_not_move_a_status_backwards(store, state):
    """openlinker-project/openlinker#1916, webhookx-io/webhookx#183."""
    placed = place(store, state)
    for late in (
        lambda: store.hand_over(placed.lease, PLAN),
        lambda: store.renew(placed.lease, step=1),
        lambda: store.fail(placed.lease, "late", "late"),
        lambda: store.retry(placed.lease, "late", "late"),
        lambda: store.release(placed.lease),
        lambda: store.cancel(placed.ref),
    ):
        try:
            late()
        except LostLease:
            continue
    assert store.get(placed.ref.job_id).images[0].state is state


def test_a_hint_never_comes_before_its_record(store, client):
    """APSL/django-yubin#72, codalab/codabench#2420: enqueued before the commit, and the worker found no row."""
    job_id = submit(store, 3)
    for _, fields in client.xrange(keys.AR_REALTIME):
        ref = ImageRef(fields[b"job"].decode(), int(fields[b"index"]))
        assert store.get(job_id).images[ref.index].state is S.QUEUED


def test_the_job_that_crashes_its_worker_is_not_tried_for_ever(store):
    """Comfy-Org/ComfyUI#859."""
    ref = ImageRef(submit(store), 0)
    for attempt in range(3):
        plan(store, ref, f"t{attempt}")
        wait_until(lambda: store.sweep(ref)[0] in ("retried", "failed"), what="the end of the lease")
    failure = store.get(ref.job_id).images[0].failure
    assert failure is not None
    assert failure.code == "worker_lost"


def test_work_longer_than_any_timeout_is_done_once(store):
    """celery/celery#5935, pretix/pretix#2058, learningequality/studio#3395: run again after the visibility timeout."""
    placed = place(store, S.PAINTING)
    for step in range(1, 9):
        # Each of these would lapse without the next: together they are far longer than one lease.
        store.renew(placed.lease, step=step)
        assert store.claim_paint(placed.ref, token=f"redelivered-{step}") is None
        assert store.sweep(placed.ref)[0] == "early"
    store.commit(placed.lease, stored(), steps=12)
    assert store.get(placed.ref.job_id).images[0].dit_attempts == 1


def test_a_machine_that_dies_loses_only_what_it_held(store):
    """rq/rq#1571: the job was neither failed nor queued again; finished images must stay."""
    job_id = submit(store, 2)
    store.hand_over(plan(store, ImageRef(job_id, 0)), PLAN)
    store.commit(paint(store, ImageRef(job_id, 0)), stored(), steps=12)
    lost = plan(store, ImageRef(job_id, 1), "dies")
    wait_until(lambda: store.sweep(lost.ref) == ("retried", S.QUEUED), what="the end of the lease")
    assert [image.state for image in store.get(job_id).images] == [S.SUCCEEDED, S.QUEUED]


def test_a_presigned_url_cannot_be_asked_to_live_longer_than_one_can():
    """minio/minio#5162, aws/aws-cli#5464: beyond 604800 s the URL is invalid, and boto3 does not check."""
    from app.errors import Misconfigured

    with pytest.raises(Misconfigured, match="PLANPAINT_PRESIGN_S"):
        load({"PLANPAINT_PRESIGN_S": "604801"})


def test_what_ended_leaves_no_trace_in_any_queue(store, client):
    """ai-dynamo/dynamo#12970 and Haidra-Org/AI-Horde#161: orphans, and positions of jobs that cannot run."""
    for state in ImageState:
        placed = place(store, state)
        store.cancel(placed.ref)
        store.release(placed.lease)
    assert client.zcard(keys.DUE) == client.xlen(keys.AR_REALTIME) == 0
    assert client.zcard(keys.WAITING_REALTIME) == client.zcard(keys.WAITING_DIT) == 0
    assert all(int(count) == 0 for count in client.hgetall(keys.COUNTS).values())


def test_measured_stage_times_move_the_pace(store, client):
    place(store, S.SUCCEEDED)
    pace = {name.decode(): float(value) for name, value in client.hgetall(keys.PACE).items()}
    assert pace["images"] == 1
    assert set(pace) == {"images", "ar_ms", "ar_ms_per_unit", "dit_ms", "dit_ms_per_unit"}

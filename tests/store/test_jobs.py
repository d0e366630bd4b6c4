"""The job store on a real server: the state table cell by cell, replays, leases, fences and the sweeper."""

from dataclasses import replace

import pytest

from app import keys
from app.domain.messages import ImageRef, Lease
from app.domain.states import TABLE, TERMINAL, ImageState, Move
from app.errors import LostLease, NotFound
from app.store.jobs import Terms
from app.views import image_view
from tests.servers import wait_until
from tests.store.orders import PLAN, PRIOR, entry_of, paint, parameters, place, plan, stored, submit

S = ImageState


def _try(store, move, placed):
    """Make a move with the right lease; a refusal shows in the state afterwards."""
    try:
        match move:
            case Move.PLAN:
                store.claim_plan(placed.ref, entry=entry_of(store, placed.ref), token="next")
            case Move.HAND_OVER:
                store.hand_over(placed.lease, PLAN)
            case Move.PAINT:
                store.claim_paint(placed.ref, token="next")
            case Move.COMMIT:
                store.commit(placed.lease, stored("another/key"), steps=12)
            case Move.RETRY:
                store.retry(placed.lease, "lost", "again")
            case Move.FAIL:
                store.fail(placed.lease, "broken", "it broke")
            case Move.CANCEL:
                store.cancel(placed.ref)
            case Move.STOP:
                store.renew(placed.lease)
    except LostLease:
        pass


#: Images without a lease fail only by the sweeper, which has its own tests below.
UNLEASED_FAIL = {(S.QUEUED, Move.FAIL), (S.PLANNED, Move.FAIL)}
#: Whatever the worker of a canceled image does next, it lets go with it.
LETS_GO = {(S.CANCELING, move) for move in (Move.HAND_OVER, Move.COMMIT, Move.RETRY, Move.FAIL, Move.STOP)}


@pytest.mark.parametrize("state", list(ImageState))
@pytest.mark.parametrize("move", list(Move))
def test_every_cell_of_the_table(store, state, move):
    placed = place(store, state)
    _try(store, move, placed)
    expected = state if (state, move) in UNLEASED_FAIL else TABLE.get((state, move), state)
    if (state, move) in LETS_GO:
        expected = S.CANCELED
    assert store.get(placed.ref.job_id).images[0].state is expected


@pytest.mark.parametrize("state", list(ImageState))
def test_an_image_is_due_exactly_while_it_has_not_ended(store, client, state):
    placed = place(store, state)
    assert (client.zscore(keys.DUE, str(placed.ref)) is None) == (state in TERMINAL)


@pytest.mark.parametrize("state", [S.PLANNING, S.PAINTING, S.CANCELING])
@pytest.mark.parametrize("call", ["hand_over", "commit", "renew", "retry", "fail", "release"])
def test_an_old_fence_moves_nothing(store, state, call):
    placed = place(store, state)
    old = replace(placed.lease, fence=placed.lease.fence - 1)
    arguments = {"hand_over": (PLAN,), "commit": (stored(),), "retry": ("c", "m"), "fail": ("c", "m")}.get(call, ())
    keywords = {"steps": 1} if call == "commit" else {}
    if call in ("hand_over", "commit", "renew"):
        with pytest.raises(LostLease):
            getattr(store, call)(old, *arguments, **keywords)
    else:
        getattr(store, call)(old, *arguments)
    assert store.get(placed.ref.job_id).images[0].state is state


def test_submit_echoes_everything_and_seeds_each_image(store):
    job_id = submit(store, 3)
    job = store.get(job_id)
    assert job.parameters == parameters(3)
    assert [image.seed for image in job.images] == [7, 8, 9]
    assert job.created_at > 1_700_000_000_000


def test_a_repeated_submit_is_one_job(store, client):
    job_id = submit(store, 2)
    store.submit(job_id, parameters(2), Terms(), metadata={})
    assert client.xlen(keys.AR_REALTIME) == 2
    assert client.hget(keys.STATS, "jobs_accepted") == b"1"


def test_replies_lost_on_the_way_are_repeated_without_harm(store, client):
    """redis-py sends a script again when its reply is lost: each one must then say the same and change nothing."""
    ref = ImageRef(submit(store), 0)
    entry = entry_of(store, ref)
    first, second = (store.claim_plan(ref, entry=entry, token="t1") for _ in range(2))
    assert first == second
    for _ in range(2):
        store.hand_over(first.lease, PLAN)
    first, second = (store.claim_paint(ref, token="t2") for _ in range(2))
    assert first == second
    assert first.prior == PRIOR
    for _ in range(2):
        store.commit(first.lease, stored(), steps=12)
    image = store.get(ref.job_id).images[0]
    assert (image.ar_attempts, image.dit_attempts) == (1, 1)
    assert client.xlen(keys.events(ref.job_id)) == 3


def test_a_second_worker_is_refused_while_the_lease_holds(store):
    placed = place(store, S.PAINTING)
    assert store.claim_paint(placed.ref, token="other") is None
    queued = place(store, S.PLANNING)
    assert store.claim_plan(queued.ref, entry="1-1", token="other") is None


def test_handing_over_acks_and_removes_the_stream_entry(store, client):
    client.xgroup_create(keys.AR_REALTIME, keys.AR_GROUP, id="0", mkstream=True)
    ref = ImageRef(submit(store), 0)
    client.xreadgroup(keys.AR_GROUP, "c", {keys.AR_REALTIME: ">"})
    store.hand_over(plan(store, ref), PLAN)
    assert client.xlen(keys.AR_REALTIME) == 0
    assert client.xpending(keys.AR_REALTIME, keys.AR_GROUP)["pending"] == 0


def test_events_are_numbered_without_gaps_and_the_job_ends_once(store, client):
    job_id = submit(store, 3)
    for index in (2, 0):
        store.hand_over(plan(store, ImageRef(job_id, index)), PLAN)
        store.commit(paint(store, ImageRef(job_id, index)), stored(f"k{index}"), steps=12)
    store.fail(plan(store, ImageRef(job_id, 1)), "broken", "it broke")
    events = [store.event(job_id, sequence) for sequence in range(1, 6)]
    assert [(event.type, event.index) for event in events] == [
        ("job.started", None),
        ("image.completed", 2),
        ("image.completed", 0),
        ("image.failed", 1),
        ("job.completed", None),
    ]
    assert store.event(job_id, 6) is None
    assert store.events(job_id) == events
    assert store.events(job_id, 4) == events[4:]
    assert store.get(job_id).status == "partial"


def test_only_jobs_with_a_receiver_fill_the_outbox(store, client):
    for url, waiting in ((None, 0), ("http://127.0.0.1:1/", 3)):
        ref = ImageRef(submit(store, webhook_url=url), 0)
        store.hand_over(plan(store, ref), PLAN)
        store.commit(paint(store, ref), stored(), steps=12)
        assert client.zcard(keys.OUTBOX) == waiting


def test_unknown_ids_are_not_found(store):
    for call in (lambda: store.get("job_no"), lambda: store.plan(ImageRef("job_no", 0))):
        with pytest.raises(NotFound):
            call()
    with pytest.raises(NotFound):
        store.cancel(ImageRef("job_no", 0))


# --- the sweeper


def _sweep_when_due(store, ref):
    wait_until(lambda: ref in store.due(100), what="the image is due")
    return store.sweep(ref)


def test_nothing_is_due_before_its_time(store):
    placed = place(store, S.PLANNING)
    assert store.due(100) == []
    assert store.sweep(placed.ref) == ("early", S.PLANNING)


def test_a_lapsed_ar_lease_goes_back_to_the_stream_and_the_zombie_is_refused(store, client):
    placed = place(store, S.PLANNING)
    assert _sweep_when_due(store, placed.ref) == ("retried", S.QUEUED)
    with pytest.raises(LostLease):
        store.hand_over(placed.lease, PLAN)
    assert (client.xlen(keys.AR_RETURNED), client.xlen(keys.AR_REALTIME)) == (1, 0)
    lease = plan(store, placed.ref, token="second")
    assert lease.fence == placed.lease.fence + 1
    store.hand_over(lease, PLAN)


def test_a_lapsed_dit_lease_keeps_the_prior_tokens(store):
    placed = place(store, S.PAINTING)
    assert _sweep_when_due(store, placed.ref) == ("retried", S.PLANNED)
    assert _sweep_when_due(store, placed.ref) == ("hinted first", S.PLANNED)
    assert store.plan(placed.ref) == PLAN
    assert store.get(placed.ref.job_id).images[0].ar_attempts == 1
    assert store.claim_paint(placed.ref, token="second").prior == PRIOR


def test_a_renewed_lease_does_not_lapse(store):
    placed = place(store, S.PAINTING)
    wait_until(lambda: placed.ref in store.due(100), what="the image is due")
    store.renew(placed.lease, step=5)
    assert store.sweep(placed.ref) == ("early", S.PAINTING)
    assert store.get(placed.ref.job_id).images[0].step == 5


@pytest.mark.parametrize("stage", [S.PLANNING, S.PAINTING])
def test_an_image_fails_when_its_attempts_are_used_up(store, stage):
    placed = place(store, stage)
    for attempt in range(1, 4):
        action, state = _sweep_when_due(store, placed.ref)
        if attempt < 3:
            assert action == "retried"
            plan(store, placed.ref, f"t{attempt}") if stage is S.PLANNING else paint(store, placed.ref, f"t{attempt}")
    assert (action, state) == ("failed", S.FAILED)
    job = store.get(placed.ref.job_id)
    assert job.images[0].failure.code == "worker_lost"
    assert job.status == "failed"


def _alone(client, ref):
    ((_, fields),) = client.xrange(keys.AR_RETURNED)
    return fields[b"job"] == ref.job_id.encode() and b"alone" in fields


def test_the_last_attempt_at_a_plan_is_made_alone(store, client):
    placed = place(store, S.PLANNING)
    _sweep_when_due(store, placed.ref)
    assert not _alone(client, placed.ref)
    plan(store, placed.ref, "second")
    _sweep_when_due(store, placed.ref)
    assert _alone(client, placed.ref)
    store.release(plan(store, placed.ref, "third"))
    assert _alone(client, placed.ref)


def test_an_attempt_that_its_company_may_have_ended_is_never_the_last(store, client):
    """Failures of its own before, and then a batch that dies: one more, alone."""
    placed = place(store, S.PLANNING)
    store.retry(placed.lease, "nan_output", "no number")
    store.retry(plan(store, placed.ref, "second"), "nan_output", "no number")
    plan(store, placed.ref, "third")
    assert _sweep_when_due(store, placed.ref) == ("retried", S.QUEUED)
    assert _alone(client, placed.ref)
    plan(store, placed.ref, "fourth")
    assert _sweep_when_due(store, placed.ref) == ("failed", S.FAILED)


def test_released_work_is_not_counted(store):
    placed = place(store, S.PAINTING)
    store.release(placed.lease)
    image = store.get(placed.ref.job_id).images[0]
    assert (image.state, image.dit_attempts) == (S.PLANNED, 0)


def test_an_image_given_back_to_be_painted_keeps_the_time_of_its_plan(store, client):
    placed = place(store, S.PAINTING)
    before = store.get(placed.ref.job_id)
    wait_until(lambda: client.time()[0] * 1000 > before.images[0].planned_at, what="a later second")
    store.release(placed.lease)
    after = store.get(placed.ref.job_id)
    assert after.images[0].planned_at > before.images[0].planned_at
    first, again = (image_view(job, job.images[0], "")["timings"]["ar_s"] for job in (before, after))
    assert again == first == round(before.images[0].ar_ms / 1000, 3)


def test_a_lost_ar_hint_is_sent_again_and_one_that_waits_is_not(store, client):
    client.xgroup_create(keys.AR_REALTIME, keys.AR_GROUP, id="0", mkstream=True)
    ref = ImageRef(submit(store), 0)
    assert _sweep_when_due(store, ref) == ("kept", S.QUEUED)
    client.xtrim(keys.AR_REALTIME, maxlen=0, approximate=False)
    assert _sweep_when_due(store, ref) == ("hinted", S.QUEUED)
    assert (client.xlen(keys.AR_RETURNED), client.xlen(keys.AR_REALTIME)) == (1, 0)
    client.xtrim(keys.AR_RETURNED, maxlen=0, approximate=False)
    assert _sweep_when_due(store, ref) == ("hinted", S.QUEUED)
    plan(store, ref)
    assert client.xlen(keys.AR_RETURNED) == 1


def test_a_hint_read_by_a_worker_that_died_at_once_is_sent_again(store, client):
    client.xgroup_create(keys.AR_REALTIME, keys.AR_GROUP, id="0", mkstream=True)
    ref = ImageRef(submit(store), 0)
    client.xreadgroup(keys.AR_GROUP, "dead", {keys.AR_REALTIME: ">"})
    old = entry_of(store, ref)
    wait_until(lambda: _sweep_when_due(store, ref)[0] == "hinted", what="the hint is sent again")
    assert entry_of(store, ref) != old
    assert client.xpending(keys.AR_REALTIME, keys.AR_GROUP)["pending"] == 0
    assert store.claim_plan(ref, entry=old, token="late") is None


def test_dit_hints_are_sent_rarer_while_the_queue_is_not_empty(store, client):
    placed = place(store, S.PLANNED)
    client.lpush(keys.DIT_LIST, b"somebody else's hint")
    gaps = []
    for _ in range(3):
        assert _sweep_when_due(store, placed.ref) == ("hinted", S.PLANNED)
        seconds, micros = client.time()
        gaps.append(client.zscore(keys.DUE, str(placed.ref)) - (seconds * 1000 + micros / 1000))
    assert gaps[2] > 1.5 * gaps[1] > 2 * gaps[0]


def test_an_ended_or_unknown_image_is_taken_off_the_due_list(store, client):
    placed = place(store, S.SUCCEEDED)
    client.zadd(keys.DUE, {str(placed.ref): 1, "job_gone:0": 1})
    assert store.sweep(placed.ref) == ("gone", S.SUCCEEDED)
    assert store.sweep(ImageRef("job_gone", 0)) == ("gone", None)
    assert client.zcard(keys.DUE) == 0


def test_scripts_survive_a_server_that_forgot_them(store, client):
    place(store, S.QUEUED)
    client.script_flush()
    place(store, S.SUCCEEDED)


def test_a_lease_is_compared_by_image_and_fence():
    ref = ImageRef("job_1", 0)
    assert Lease(ref, 1) == Lease(ref, 1) != Lease(ref, 2)

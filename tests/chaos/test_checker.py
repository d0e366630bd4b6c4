"""The checker can fail: a good history passes, and each way of breaking a promise is found under its name."""

from dataclasses import replace

import pytest

from app.bench.chaos.checker import check
from app.bench.chaos.history import (
    Accepted,
    FinalEvent,
    FinalImage,
    FinalJob,
    History,
    Order,
    Pointer,
    Received,
    Stored,
)
from app.domain.messages import ImageRef

KEY, DIGEST = "jobs/job_a/0/2.png", "aa"
IMAGE = FinalImage("succeeded", 7, (Pointer(KEY, DIGEST),), Stored(DIGEST, (32, 32)))
CANCELED = FinalImage("canceled", 8)
EVENTS = (
    FinalEvent("evt_a_1", "job.started", None, True),
    FinalEvent("evt_a_2", "image.completed", 0, True),
    FinalEvent("evt_a_3", "image.canceled", 1, False),
    FinalEvent("evt_a_4", "job.completed", None, True),
)
JOB = FinalJob((IMAGE, CANCELED), EVENTS)
RECEIVED = (
    Received("evt_a_1", "b1", False),
    Received("evt_a_1", "b1", True),
    Received("evt_a_2", "b2", True),
    Received("evt_a_4", "b4", True),
    Received("evt_a_4", "b4", True),
)
GOOD = History(
    accepted=(Accepted(Order(1, 7, 2, 32, 32, True), ["job_a", "job_a"], canceled=True),),
    unanswered=0,
    received=RECEIVED,
    jobs={"job_a": JOB},
    left={"due": 0},
)


def _job(job: FinalJob) -> History:
    return replace(GOOD, jobs={"job_a": job})


def _image(**changes) -> History:
    return _job(replace(JOB, images=(replace(IMAGE, **changes), CANCELED)))


def _accepted(**changes) -> History:
    return replace(GOOD, accepted=(replace(GOOD.accepted[0], **changes),))


def test_a_run_that_kept_its_word_passes():
    assert check(GOOD) == []


@pytest.mark.parametrize(
    ("history", "kind", "says"),
    [
        (replace(GOOD, jobs={"job_a": None}), "lost", "is not known"),
        (replace(GOOD, jobs={}), "lost", "is not known"),
        (_job(replace(JOB, images=(IMAGE,), events=(*EVENTS[:2], EVENTS[3]))), "lost", "1 images in place of 2"),
        (_image(stored=Stored(None, None)), "lost", "no picture at"),
        (_accepted(ids=["job_a", "job_b"]), "duplicated", "2 jobs by one idempotency key"),
        (_image(pointers=(Pointer("jobs/job_a/0/1.png", DIGEST), *IMAGE.pointers)), "duplicated", "more than once"),
        (_job(replace(JOB, events=(*EVENTS, replace(EVENTS[1], event_id="evt_a_5")))), "duplicated", "more than once"),
        (_job(replace(JOB, events=(*EVENTS, replace(EVENTS[3], event_id="evt_a_5")))), "duplicated", "job.completed"),
        (_job(replace(JOB, events=(*EVENTS[:3], replace(EVENTS[3], event_id="evt_a_2")))), "duplicated", "the id"),
        (replace(GOOD, received=(*RECEIVED, Received("evt_a_2", "other", True))), "duplicated", "2 bodies"),
        (_image(state="painting", pointers=(), stored=None), "stuck", "is painting"),
        (replace(GOOD, left={"due": 2}), "stuck", "2 left in due"),
        (replace(GOOD, unanswered=1), "stuck", "never got an answer"),
        (replace(GOOD, surprises=("POST /v1/jobs was answered 500",)), "wrong", "answered 500"),
        (replace(GOOD, overdue=(ImageRef("job_a", 0),)), "stuck", "its lease is over"),
        (replace(GOOD, received=RECEIVED[:2] + RECEIVED[3:]), "missing", "never delivered"),
        (replace(GOOD, received=(RECEIVED[0], *RECEIVED[2:])), "missing", "evt_a_1"),
        (_job(replace(JOB, events=EVENTS[:3])), "missing", "does not say so"),
        (_job(replace(JOB, events=(EVENTS[0], *EVENTS[2:]))), "missing", "ended with the events []"),
        (_image(stored=Stored("bb", (32, 32))), "changed", "does not have the bytes"),
        (replace(GOOD, rewritten=(KEY,)), "changed", "written again"),
        (_image(stored=Stored(DIGEST, (32, 64))), "wrong", "no picture of 32x32"),
        (_image(stored=Stored(DIGEST, None)), "wrong", "no picture of 32x32"),
        (_image(state="failed", pointers=(), stored=None, failure="worker_lost"), "wrong", "worker_lost"),
        (_accepted(canceled=False), "wrong", "nobody asked"),
        (_image(pointers=(), stored=None), "wrong", "with 0 objects"),
        (replace(GOOD, received=(*RECEIVED, Received("evt_b_1", "b", True))), "wrong", "in no log"),
    ],
)
def test_each_broken_promise_is_found(history, kind, says):
    found = check(history)
    assert any(each.kind == kind and says in each.what for each in found), found


def test_the_same_order_painted_differently_is_found():
    """A wrong picture is a picture of the right size, so only its like can tell."""
    other = replace(
        JOB,
        images=(replace(IMAGE, pointers=(Pointer("k", "cc"),), stored=Stored("cc", (32, 32))), CANCELED),
        events=tuple(replace(event, event_id=f"b{event.event_id}", wanted=False) for event in EVENTS),
    )
    accepted = (*GOOD.accepted, Accepted(Order(2, 7, 2, 32, 32, False), ["job_b"], canceled=True))
    found = check(replace(GOOD, accepted=accepted, jobs={"job_a": JOB, "job_b": other}))
    assert [each.kind for each in found] == ["wrong"]
    assert "look 7" in found[0].what

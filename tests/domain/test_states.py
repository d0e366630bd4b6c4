from itertools import product

import pytest

from app.domain.states import LEASED, TABLE, TERMINAL, ImageState, JobStatus, Move, job_status

S = ImageState


def test_terminal_states_never_move():
    assert not [cell for cell in TABLE if cell[0] in TERMINAL]


def test_every_state_that_has_not_ended_can_fail_and_be_canceled():
    for state in set(ImageState) - TERMINAL - {S.CANCELING}:
        assert TABLE[state, Move.FAIL] is S.FAILED
        assert TABLE[state, Move.CANCEL] is (S.CANCELING if state in LEASED else S.CANCELED)
    assert {move for state, move in TABLE if state is S.CANCELING} == {Move.STOP}


def test_only_leased_states_are_retried_and_never_lose_a_stored_stage():
    retried = {state: target for (state, move), target in TABLE.items() if move is Move.RETRY}
    assert set(retried) == LEASED - {S.CANCELING}
    assert retried == {S.PLANNING: S.QUEUED, S.PAINTING: S.PLANNED}


def test_every_state_can_be_reached_from_queued():
    reached, frontier = {S.QUEUED}, {S.QUEUED}
    while frontier:
        frontier = {target for (state, _), target in TABLE.items() if state in frontier} - reached
        reached |= frontier
    assert reached == set(ImageState)


@pytest.mark.parametrize(
    ("states", "started", "expected"),
    [
        ([S.QUEUED], False, JobStatus.QUEUED),
        ([S.QUEUED], True, JobStatus.RUNNING),
        ([S.PLANNING, S.QUEUED], True, JobStatus.RUNNING),
        ([S.SUCCEEDED, S.PLANNED], True, JobStatus.RUNNING),
        ([S.SUCCEEDED, S.SUCCEEDED], True, JobStatus.SUCCEEDED),
        ([S.SUCCEEDED, S.FAILED], True, JobStatus.PARTIAL),
        ([S.FAILED, S.FAILED], True, JobStatus.FAILED),
        ([S.SUCCEEDED, S.CANCELED], True, JobStatus.CANCELED),
        ([S.CANCELED, S.FAILED], False, JobStatus.CANCELED),
        ([S.CANCELING, S.SUCCEEDED], True, JobStatus.CANCELING),
        ([S.CANCELING, S.QUEUED], True, JobStatus.CANCELING),
    ],
)
def test_job_status(states, started, expected):
    assert job_status(states, started=started) is expected


def test_a_job_ends_exactly_when_all_its_images_have():
    for states in product(ImageState, repeat=3):
        status = job_status(list(states), started=True)
        ended = status not in (JobStatus.QUEUED, JobStatus.RUNNING, JobStatus.CANCELING)
        assert ended == (set(states) <= TERMINAL)


def test_a_job_expires_only_when_its_deadline_came_before_its_start():
    for started, expected in ((False, JobStatus.EXPIRED), (True, JobStatus.CANCELED)):
        assert job_status([S.CANCELED, S.CANCELED], started=started, overdue=True) is expected
    assert job_status([S.CANCELED], started=False) is JobStatus.CANCELED

from dataclasses import replace

from app.domain.estimate import Load, outlook, price
from app.domain.job import Image, Job
from app.domain.states import ImageState
from tests.store.orders import parameters

S = ImageState
MEASURED = Load(
    ar_workers=1, dit_workers=1, ar_ms=1000, ar_ms_per_unit=1, dit_ms=2000, dit_ms_per_unit=2000 / (64 * 12), images=9
)


def _job(*states: ImageState) -> Job:
    images = tuple(Image(index, state, 0) for index, state in enumerate(states))
    return Job("job_x", parameters(len(states)), 0, images)


def _seconds(job: Job, load: Load, position: int | None = 0) -> float:
    found = outlook(job, load, position=position).seconds
    assert found is not None
    return found


def test_nothing_is_guessed_without_measurements_or_workers():
    for load in (Load(), replace(MEASURED, dit_workers=0), replace(MEASURED, ar_workers=0)):
        assert outlook(_job(S.QUEUED), load, position=3).seconds is None
    assert outlook(_job(S.SUCCEEDED), MEASURED, position=None).seconds is None


def test_more_ahead_takes_longer_and_more_workers_less():
    job = _job(S.QUEUED)
    assert _seconds(job, MEASURED, 0) < _seconds(job, MEASURED, 5) < _seconds(job, MEASURED, 50)
    assert _seconds(job, replace(MEASURED, dit_workers=4), 50) < _seconds(job, MEASURED, 50)
    assert _seconds(job, replace(MEASURED, planned=10), 0) > _seconds(job, MEASURED, 0)


def test_a_job_gets_nearer_to_its_end():
    stages = [_seconds(_job(state, state), MEASURED) for state in (S.QUEUED, S.PLANNING, S.PLANNED)]
    assert stages == sorted(stages, reverse=True)
    assert _seconds(_job(S.SUCCEEDED, S.PAINTING), MEASURED) < _seconds(_job(S.PAINTING, S.PAINTING), MEASURED)


def test_the_guess_of_a_free_service_is_the_sum_of_its_stages():
    # 64 cells and 256 preview tokens at 1 ms, then 2000 ms of DiT.
    assert _seconds(_job(S.QUEUED), MEASURED) == 2.3


def test_a_repainted_plan_costs_no_tokens():
    assert price(parameters(3)).ar_tokens == 3 * (64 + 256)
    assert price(parameters(3), planned=True).ar_tokens == 0
    assert price(parameters(3)).dit_steps == 36

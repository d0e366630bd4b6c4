"""A process dies at a named point of a hand-over: its image ends right, committed once, each event under one id."""

import time

import click
import pytest
import requests

from app import crash_points
from app.domain.messages import ImageRef
from tests.chaos.conftest import Attacked

#: Run with all other tests. The rest is part of `make chaos`: each takes seconds.
_SAMPLE = {"ar.after_hand_over", "dit.after_upload", "dit.after_commit", "courier.after_send"}
_WHEN_A_JOB_RUNS = sorted(
    point for point in crash_points.POINTS if not point.endswith(".after_tombstone") and point != "sweeper.sweeping"
)


def _marked(points):
    return [pytest.param(point, marks=() if point in _SAMPLE else pytest.mark.chaos) for point in points]


def _arm(attacked: Attacked, point: str, died) -> None:
    # In the middle, where there is one.
    times = {"ar.decoding": ":40", "dit.denoising": ":2"}.get(point, "")
    attacked.restart(point.split(".")[0], **{crash_points.VARIABLE: f"{point}{times}@{died}"})


@pytest.mark.parametrize("point", _marked(_WHEN_A_JOB_RUNS))
def test_a_job_whose_worker_dies_here_ends_right(attacked, point, tmp_path):
    died = tmp_path / "died"
    _arm(attacked, point, died)
    accepted = attacked.order()
    attacked.until(died.exists, f"the death at {point}")
    assert attacked.verdict(accepted) == []


@pytest.mark.chaos
@pytest.mark.parametrize(("point", "state"), [("ar.decoding:40", "planning"), ("dit.denoising:2", "painting")])
def test_a_worker_that_hangs_is_ended_within_its_limit_and_its_images_run_again(attacked, point, state, tmp_path):
    """Its heartbeat goes on and keeps the lease, so that nothing but the watchdog can free the image."""
    role, hung, limit_s = point.partition(".")[0], tmp_path / "hung", 2
    attacked.restart(role, **{crash_points.VARIABLE: f"{point}+hang@{hung}", "PLANPAINT_STEP_LIMIT_S": str(limit_s)})
    accepted = attacked.order()
    attacked.until(hung.exists, "the hang")
    since, fence = time.monotonic(), attacked.witness.record(ImageRef(accepted.ids[0], 0))[1]
    assert attacked.state(accepted) == state
    attacked.until(lambda: attacked.witness.record(ImageRef(accepted.ids[0], 0))[1] > fence, "a new lease")
    took = time.monotonic() - since
    click.echo(f"{point}: running again {took:.1f} s after the hang, limit {limit_s + 15} s")
    assert took < limit_s + 15
    assert attacked.verdict(accepted) == []


@pytest.mark.chaos
def test_a_sweeper_that_dies_between_move_and_hint(attacked, tmp_path):
    """The painter dies, the sweeper puts its image back, and dies before it has told anybody."""
    painter, sweeper = tmp_path / "painter", tmp_path / "sweeper"
    _arm(attacked, "dit.after_claim", painter)
    accepted = attacked.order()
    attacked.until(painter.exists, "the death of the painter")
    _arm(attacked, "sweeper.sweeping", sweeper)
    attacked.until(sweeper.exists, "the death of the sweeper")
    assert attacked.verdict(accepted) == []


@pytest.mark.chaos
@pytest.mark.parametrize("point", ["api.after_tombstone", "sweeper.after_tombstone"])
def test_objects_of_a_removed_job_go_though_its_remover_dies(attacked, point, tmp_path):
    died = tmp_path / "died"
    accepted = attacked.order()
    assert attacked.verdict(accepted) == []
    (job_id,) = accepted.ids
    assert _objects(attacked, job_id)
    _arm(attacked, point, died)
    if point.startswith("api"):
        with pytest.raises(requests.exceptions.ConnectionError):
            requests.delete(f"{attacked.cluster.api_url}/v1/jobs/{job_id}", timeout=10)
    else:
        attacked.client.zadd("planpaint:expiry", {job_id: 1})  # its time is over
    attacked.until(died.exists, f"the death at {point}")
    attacked.until(lambda: not _objects(attacked, job_id), "the removal of its objects")
    attacked.until(
        lambda: requests.get(f"{attacked.cluster.api_url}/v1/jobs/{job_id}", timeout=5).status_code == 410, "410"
    )


def _objects(attacked: Attacked, job_id: str) -> list[str]:
    return [key for key in attacked.witness.object_keys() if key.startswith(f"jobs/{job_id}/")]

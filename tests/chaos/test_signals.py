"""Workers told to stop, or killed, in every way: no image is lost, and a rolling deploy costs nothing."""

import os
import signal
import time

import pytest

from tests.chaos.conftest import Attacked


def _send(attacked: Attacked, role: str, *numbers: int, pause_s: float = 0.3) -> None:
    (process,) = attacked.cluster.of(role)
    pid = process.pid
    for number in numbers:
        if process.running and process.pid == pid:
            os.kill(pid, number)
            time.sleep(pause_s)
    attacked.until(lambda: process.pid != pid, f"a new {role}")


_WAYS = {
    "TERM": (signal.SIGTERM,),
    "QUIT": (signal.SIGQUIT,),
    "INT-INT": (signal.SIGINT, signal.SIGINT),
    "TERM-KILL": (signal.SIGTERM, signal.SIGKILL),
}


@pytest.mark.parametrize(
    ("role", "way"),
    [
        pytest.param(role, way, marks=() if (role, way) == ("dit", "TERM") else pytest.mark.chaos)
        for role in ("ar", "dit")
        for way in _WAYS
    ],
)
def test_a_worker_that_is_told_to_stop_loses_nothing(attacked, role, way):
    state = {"ar": "planning", "dit": "painting"}[role]
    accepted = attacked.order(n=4, steps=60)
    attacked.until(lambda: attacked.state(accepted) == state, state)
    _send(attacked, role, *_WAYS[way])
    assert attacked.verdict(accepted) == []


def test_a_stopped_process_that_wakes_up_after_its_lease_changes_nothing(attacked):
    """Matrix row 2: a second AR worker plans meanwhile; the sleeper's hand-over is refused by its fence."""
    accepted = attacked.order(n=4)
    attacked.until(lambda: attacked.state(accepted) == "planning", "planning")
    (process,) = attacked.cluster.of("ar")
    process.signal(signal.SIGSTOP)
    # Longer than its lease of 3 s: the images are queued again.
    attacked.until(lambda: attacked.state(accepted) == "queued", "the end of the lease")
    process.signal(signal.SIGCONT)
    assert attacked.verdict(accepted) == []


@pytest.mark.chaos
def test_an_idle_painter_that_takes_a_message_to_its_grave(attacked):
    """Matrix row 5: it has asked Redis for a message, and is dead before it has read what Redis has handed to it."""
    (process,) = attacked.cluster.of("dit")
    process.signal(signal.SIGSTOP)
    accepted = attacked.order()
    attacked.until(lambda: attacked.state(accepted) == "planned", "the plan")
    time.sleep(1)
    process.signal(signal.SIGKILL)
    assert attacked.verdict(accepted) == []


@pytest.mark.chaos
@pytest.mark.parametrize("role", ["api", "ar", "dit", "courier", "sweeper"])
def test_a_process_killed_again_and_again_while_it_starts(attacked, role):
    """Matrix row 34: at any moment between its first instruction and its readiness."""
    accepted = attacked.order(n=2)
    (process,) = attacked.cluster.of(role)
    for age_s in (0.0, 0.05, 0.2, 0.5, 1.0):
        attacked.until(lambda: process.running, f"a new {role}")
        time.sleep(age_s)
        process.signal(signal.SIGKILL)
    assert attacked.verdict(accepted) == []


@pytest.mark.chaos
def test_everything_killed_at_once(attacked):
    accepted = attacked.order(n=4, steps=20)
    attacked.until(lambda: attacked.state(accepted) == "painting", "painting")
    for process in attacked.cluster.processes:
        process.signal(signal.SIGKILL)
    assert attacked.verdict(accepted, attacked.order()) == []

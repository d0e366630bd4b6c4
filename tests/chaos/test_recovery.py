"""Recovery times by default settings: what a killed worker held is with another one within 15 seconds."""

import signal
import time

import click
import pytest

from app.bench.chaos.cluster import Cluster
from app.bench.chaos.receiver import Receiver
from app.bench.chaos.run import environment
from app.settings import Settings
from tests.chaos.conftest import Attacked

#: Seconds from a kill to the moment when every image of the dead worker is with another one.
RUNNING_AGAIN_S = 15.0


@pytest.fixture(scope="module")
def usual(tmp_path_factory, tiny_checkpoint):
    """Two workers of each kind, with the lease, hint and sweep times of any service."""
    folder = tmp_path_factory.mktemp("usual")
    settings = environment(tiny_checkpoint.folder)
    with Receiver() as receiver, Cluster(folder, {"ar": 2, "dit": 2}, settings) as cluster:
        for name in ("lease_s", "hint_s", "sweep_s"):
            assert getattr(cluster.settings, name) == Settings.model_fields[name].default
        found = Attacked(cluster, receiver)
        yield found
        found.close()


@pytest.mark.chaos
@pytest.mark.parametrize(("role", "state"), [("ar", "planning"), ("dit", "painting")])
@pytest.mark.parametrize("again", range(3))
def test_a_killed_workers_images_run_again(usual, role, state, again):
    usual.until(usual.cluster.ready, "readiness")
    accepted = usual.order(n=4, steps=100, seed=again)
    usual.until(lambda: usual.state(accepted) == state, state)
    owners = {ref: (owner, fence) for ref, (_, owner, fence, _) in usual.witness.open_images().items()}
    process = next(p for p in usual.cluster.of(role) if any(f"-{p.pid}-" in owner for owner, _ in owners.values()))
    process.signal(signal.SIGKILL)
    killed = time.monotonic()
    held = {
        ref: fence for ref, (_, owner, fence, _) in usual.witness.open_images().items() if f"-{process.pid}-" in owner
    }
    assert held
    usual.until(lambda: all(usual.witness.record(ref)[1] > fence for ref, fence in held.items()), "new leases")
    took = time.monotonic() - killed
    click.echo(f"{role}: {len(held)} images running again {took:.1f} s after the kill, limit {RUNNING_AGAIN_S:g} s")
    assert took < RUNNING_AGAIN_S
    assert usual.verdict(accepted) == []

"""`planpaint drain`: the flag and the command on a real store. Whole workers are drained in test_secured.py."""

import json
import os
import signal
import threading

import pytest
from click.testing import CliRunner

from app import keys
from app.cli import cli
from app.store.workers import WorkerInfo, WorkerRegistry, of_role
from tests.servers import wait_until
from workers.heartbeat import Heartbeat
from workers.process import may_begin


@pytest.fixture
def registry(client):
    return WorkerRegistry(client)


@pytest.fixture
def run(servers):
    def call(*arguments):
        return CliRunner().invoke(cli, ["drain", *arguments], env=servers.environment)

    return call


def _info(name="dit-h-1-a", instance="dit@h", role="dit", state="ready"):
    return WorkerInfo(name, role, 1, "h", "cpu", state, instance=instance)


@pytest.mark.parametrize("name", ["dit-h-1-a", "dit@h", "role:dit"])
def test_a_worker_is_drained_by_any_of_its_names(registry, name):
    assert registry.beat(_info()) is False
    registry.drain([name])
    assert registry.beat(_info()) is True
    assert registry.beat(_info("ar-h-1-a", "ar@h", "ar")) is False
    assert registry.drained() == [name]
    assert registry.undrain([name]) == 1
    assert registry.beat(_info()) is False


def test_the_command_from_drain_to_undo(registry, run, client):
    registry.beat(_info())
    registry.beat(_info("dit-h-2-b", "dit@h"))
    registry.beat(_info("courier-h", "courier@h", "courier"))
    done = run("dit@h", "--json")
    assert (done.exit_code, json.loads(done.stdout)["workers"]) == (0, ["dit-h-1-a", "dit-h-2-b"])
    assert json.loads(run("--list", "--json").stdout) == {"drained": ["dit@h"]}
    assert run("dit@h").exit_code == 0
    assert run("--role", "ar").exit_code == 0, "also workers to come"
    assert registry.drained() == ["dit@h", of_role("ar")]
    assert run("dit@h", "--undo").exit_code == 0
    assert "is not drained" in str(run("dit@h", "--undo").exception)
    assert "no worker courier@h" in str(run("courier@h").exception)
    assert "no worker typo" in str(run("typo").exception)
    for wrong in ([], ["x", "--role", "ar"], ["x", "--list"], ["--role", "api"]):
        assert run(*wrong).exit_code == 2
    assert registry.drained() == [of_role("ar")]


def test_waiting_ends_when_nothing_is_held_or_the_time_is_up(registry, run):
    registry.beat(_info(state="busy"))
    late = run("dit@h", "--wait", "0.1")
    assert "still at work: dit-h-1-a" in str(late.exception)
    registry.beat(_info(state="drained"))
    assert run("dit@h", "--wait", "5").exit_code == 0


def test_a_drained_worker_that_starts_waits_until_it_may_work_or_is_stopped(store, registry, settings):
    with Heartbeat(
        store, registry, name="w1", role="dit", device="cpu", lease_s=settings.lease_s, instance="dit@h"
    ) as heartbeat:
        assert may_begin(heartbeat)
        registry.drain(["dit@h"])

        def state():
            return [worker.state for worker in registry.list()]

        def undo():
            wait_until(lambda: state() == ["drained"], what="the waiting worker")
            registry.undrain(["dit@h"])

        other = threading.Thread(target=undo)
        other.start()
        assert may_begin(heartbeat)
        other.join()
        registry.drain(["dit@h"])
        before = signal.getsignal(signal.SIGTERM)

        def stop():
            wait_until(lambda: state() == ["drained"], what="the waiting worker")
            os.kill(os.getpid(), signal.SIGTERM)

        other = threading.Thread(target=stop)
        other.start()
        assert not may_begin(heartbeat)
        other.join()
        assert signal.getsignal(signal.SIGTERM) is before


def test_flags_outlive_the_worker(registry, client):
    registry.beat(_info())
    registry.drain(["dit@h"])
    registry.leave("dit-h-1-a")
    assert client.ttl(keys.DRAINED) == -1
    assert registry.beat(_info("dit-h-9-z")) is True

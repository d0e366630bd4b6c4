"""`planpaint up` as a process: how it starts, stops, resumes and refuses."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest
from click.testing import CliRunner

from app.checkpoint import DEMO
from app.cli import cli
from app.errors import Misconfigured
from app.launcher.child import EX_CONFIG
from loadtest.orders import SURE
from tests.integration.stack import RunningStack, alive
from tests.servers import wait_until


def _gone(pids) -> bool:
    return not [pid for pid in pids if alive(pid)]


def test_stop_is_clean_and_the_next_start_resumes_unfinished_jobs(stack):
    jobs = [stack.submit(SURE[index], temperature=0, steps=30 if index == 0 else 4)["id"] for index in range(3)]
    wait_until(lambda: stack.get(jobs[0])["images"][0]["stage"] == "dit", timeout=60, what="painting")
    pids = list(stack.children())
    assert len(pids) == 7
    assert "another stack" in _refusal("up", "--data-dir", str(stack.data), "--port", _free())
    started = time.monotonic()
    status = stack.stop(signal.SIGINT)
    took = time.monotonic() - started
    stack.start()
    assert status == 0
    # The bound that operators are promised.
    assert took < 15
    assert _gone(pids)
    stack.wait_ready()
    done = stack.wait_done(*jobs)
    assert [job["status"] for job in done] == ["succeeded"] * 3
    stack.check_pictures(*done)
    assert all(image["attempts"]["ar"] == 1 for job in done for image in job["images"])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_stopping_while_it_starts_leaves_no_process(tmp_path, number):
    stack = RunningStack(tmp_path / "data")
    wait_until(lambda: len(stack.children()) >= 3, timeout=60, what="children")
    pids = list(stack.children())
    stack.stop(number)
    wait_until(lambda: _gone(pids), what="the end of all children")


def _refusal(*arguments: str, **environment: str) -> str:
    found = subprocess.run(
        [sys.executable, "-m", "app.cli", *arguments],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert found.returncode == EX_CONFIG, found
    (line,) = found.stderr.strip().splitlines()[-1:]
    return line


@pytest.mark.parametrize("broken", ["transformer/config.json", "vision_language_encoder/model.safetensors"])
def test_a_broken_checkpoint_stops_the_stack_with_the_name_of_the_file(tmp_path, broken):
    checkpoint = tmp_path / "checkpoint"
    shutil.copytree(DEMO, checkpoint)
    path = checkpoint / broken
    path.unlink() if path.suffix == ".json" else path.write_bytes(path.read_bytes()[:-100])
    line = _refusal("up", "--data-dir", str(tmp_path / "data"), "--checkpoint", str(checkpoint), "--port", _free())
    assert str(path) in line


def _free() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def test_a_taken_port_is_one_sentence(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        line = _refusal("up", "--data-dir", str(tmp_path / "data"), "--port", port)
    assert f"port {port}" in line


@pytest.mark.parametrize("role", ["api", "ar", "dit", "courier", "sweeper"])
def test_a_mistyped_setting_refuses_to_start(role):
    refused = CliRunner().invoke(cli, [role], env={"PLANPAINT_RADIS_URL": "x"})
    assert isinstance(refused.exception, Misconfigured)
    assert "PLANPAINT_RADIS_URL" in str(refused.exception)


@pytest.mark.parametrize("role", ["dit", "up"])
def test_such_a_refusal_is_one_sentence_and_its_own_status(role):
    assert "PLANPAINT_RADIS_URL" in _refusal(role, PLANPAINT_RADIS_URL="x")


@pytest.mark.parametrize("role", ["ar", "dit", "api"])
def test_a_missing_checkpoint_stops_a_role_alone(tmp_path, servers, role):
    line = _refusal(role, PLANPAINT_CHECKPOINT=str(tmp_path / "none"), **servers.environment)
    assert "none" in line


def test_config_show_masks_secrets():
    found = subprocess.run(
        [sys.executable, "-m", "app.cli", "config", "show", "--json"],
        env=os.environ | {"PLANPAINT_S3_SECRET_KEY": "hunter2", "PLANPAINT_CHECKPOINT": "somewhere"},
        capture_output=True,
        text=True,
        check=True,
    )
    shown = json.loads(found.stdout)
    assert shown["checkpoint"] == os.path.abspath("somewhere")
    assert "hunter2" not in found.stdout


def test_webhook_secret_without_a_stack_is_one_sentence(tmp_path):
    found = subprocess.run(
        [sys.executable, "-m", "app.cli", "webhook-secret", "--data-dir", str(tmp_path)],
        env=os.environ | {"PLANPAINT_REDIS_URL": "redis://127.0.0.1:1/0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == EX_CONFIG
    assert "no Redis answers" in found.stderr


def test_a_folder_whose_redis_has_lost_its_data_is_refused(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    (data / "epoch").write_text("what it was")
    said = _refusal("up", "--data-dir", str(data), "--port", _free())
    assert "Redis has lost its data" in said
    assert str(data / "epoch") in said

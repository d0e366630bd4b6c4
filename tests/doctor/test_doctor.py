"""The doctor on this host, with real servers, real files and what can be wrong with them."""

import json
import shutil
import socket
import subprocess
import sys

import pytest

from app.checkpoint import DEMO
from app.doctor import host
from app.doctor.finding import Finding
from app.doctor.report import _roles
from app.settings import load
from tests.servers import clean_environment

STAGES = ("ar", "dit")


def _of(findings):
    return {finding.name: finding for finding in findings}


@pytest.fixture
def folder(tmp_path):
    """A checkpoint of its own, to be broken."""
    return shutil.copytree(DEMO, tmp_path / "model")


def test_a_whole_host_can_run_everything(tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    done = subprocess.run(
        [sys.executable, "-m", "app.cli", "doctor", "--json", "--data-dir", str(tmp_path / "data")],
        env=clean_environment() | {"PLANPAINT_API_PORT": str(port)},
        capture_output=True,
        text=True,
        check=False,
    )
    report = json.loads(done.stdout)
    assert (done.returncode, report["ok"]) == (0, True), report
    assert report["can_run"] == ["api", "courier", "sweeper", "ar", "dit", "up"]
    found = {finding["name"]: finding for finding in report["findings"]}
    for name in ("python", "torch", "redis", "object storage", "device cpu", "picked", "self-test ar", "self-test dit"):
        assert found[name]["status"] == "ok", found[name]
    assert "GB free" in found["device cpu"]["detail"]
    assert "float32" in found["picked"]["detail"]
    assert not (tmp_path / "data").exists()


def test_servers_that_settings_name_are_asked(servers, client):
    found = _of(host.servers(servers.settings(), servers.environment))
    assert found["redis"].status == "ok"
    assert found["redis"].detail.startswith("valkey 9.")
    assert found["object storage"].status == "ok"
    client.config_set("maxmemory-policy", "allkeys-lru")
    try:
        evicting = _of(host.servers(servers.settings(), servers.environment))["redis"]
    finally:
        client.config_set("maxmemory-policy", "noeviction")
    assert (evicting.status, "noeviction" in evicting.todo) == ("fail", True)


def test_servers_that_are_away_are_named_with_what_to_do(servers):
    wrong = {"redis_url": "redis://127.0.0.1:1/0", "s3_bucket": "no-such-bucket"}
    found = _of(host.servers(servers.settings(**wrong), servers.environment))
    assert (found["redis"].status, found["object storage"].status) == ("fail", "fail")
    assert "PLANPAINT_REDIS_URL" in found["redis"].todo
    assert "no-such-bucket" in found["object storage"].detail


def test_a_checkpoint_of_one_stage_is_no_fault_but_a_broken_file_is(folder):
    settings = load({"PLANPAINT_CHECKPOINT": str(folder)})
    assert {_of(host.checkpoint(settings))[f"checkpoint {stage}"].status for stage in STAGES} == {"ok"}
    shutil.rmtree(folder / "vision_language_encoder")
    weights = folder / "vae" / "diffusion_pytorch_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    found = _of(host.checkpoint(settings))
    assert [found[f"checkpoint {stage}"].status for stage in STAGES] == ["note", "fail"]
    assert str(weights) in found["checkpoint dit"].detail
    shutil.rmtree(folder)
    assert _of(host.checkpoint(settings))["checkpoint"].status == "fail"


def test_a_taken_port_and_an_unusable_data_folder_fail(tmp_path):
    (tmp_path / "file").touch()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        settings = load({"PLANPAINT_API_PORT": str(taken.getsockname()[1])})
        found = _of(host.place(settings, tmp_path / "file" / "data", running=False))
        assert {name: finding.status for name, finding in found.items()} == {"data folder": "fail", "port": "fail"}
        assert all(finding.todo for finding in found.values())
        assert _of(host.place(settings, tmp_path, running=True))["port"].status == "ok"


def test_a_missing_compiler_fails_only_where_it_is_asked_for(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert [next(host.compiler(graph)).status for graph in ("off", "auto", "compile")] == ["note", "note", "fail"]


def test_roles_follow_from_what_was_found():
    whole = [Finding(name, "ok", "") for name in ("checkpoint ar", "redis", "object storage", "data folder", "port")]
    assert _roles(whole) == ["api", "courier", "sweeper"]
    tried = [Finding(f"self-test {stage}", "ok", "") for stage in STAGES]
    assert _roles(whole + tried)[-1] == "up"
    assert "up" not in _roles([*whole[:-1], Finding("port", "fail", ""), *tried])

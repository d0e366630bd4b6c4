"""`planpaint keys`, and a service that does not start open to all by mistake, as an operator runs them."""

import json
import os
import subprocess
import sys

import pytest
import requests
from click.testing import CliRunner

from app.cli import cli
from app.launcher.child import EX_CONFIG
from tests.api.conftest import running
from tests.servers import clean_environment, is_empty


def _run(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "app.cli", *arguments],
        env=clean_environment() | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_key_from_its_creation_to_its_end(servers, client):
    made = _run("keys", "create", "studio", "--images", "5", "--scope", "jobs:read", **servers.environment)
    assert made.returncode == 0, made.stderr
    (secret,) = made.stdout.split()

    def invoke(*arguments):
        return CliRunner().invoke(cli, ["keys", *arguments], env=servers.environment)

    key_id = made.stderr.split()[0]
    assert secret.startswith("planpaint_")
    shown = invoke("list", "--json").stdout
    (key,) = json.loads(shown)["data"]
    assert key | {"created_at": ""} == {
        "id": key_id,
        "name": "studio",
        "scopes": ["jobs:read"],
        "limits": {"requests": None, "images": 5, "pixels": None},
        "created_at": "",
        "revoked_at": None,
    }
    assert invoke("revoke", key_id).exit_code == 0
    text = invoke("list").stdout
    assert key_id in text
    assert "revoked" in text
    assert secret not in shown + text
    unknown = _run("keys", "revoke", "key_0", **servers.environment)
    assert (unknown.returncode, unknown.stderr.strip()) == (1, "planpaint: no key key_0")


@pytest.mark.parametrize("wrong", [[""], ["a\nb"], ["x" * 101], ["x", "--scope", "all"], ["x", "--images", "-1"]])
def test_a_wrong_key_is_not_made(servers, client, wrong):
    answer = CliRunner().invoke(cli, ["keys", "create", *wrong], env=servers.environment)
    assert answer.exit_code == 2
    assert answer.stdout == ""
    assert is_empty(client)


def test_keys_without_redis_are_one_sentence(tmp_path):
    answer = _run("keys", "list", "--data-dir", str(tmp_path), PLANPAINT_REDIS_URL="redis://127.0.0.1:1/0")
    assert answer.returncode == EX_CONFIG
    assert "no Redis answers" in answer.stderr


@pytest.mark.parametrize(("name", "value"), [("PLANPAINT_API_HOST", "0.0.0.0"), ("PLANPAINT_API_KEYS", "required")])
def test_a_service_that_needs_keys_and_has_none_does_not_start(servers, client, name, value):
    answer = _run("api", **servers.environment | {name: value})
    assert answer.returncode == EX_CONFIG
    assert "planpaint keys create NAME" in answer.stderr
    assert "PLANPAINT_API_KEYS=off" in answer.stderr
    assert len(answer.stderr.strip().splitlines()) == 1


def test_a_public_service_starts_with_a_key_or_when_told_to(servers, client, tmp_path, monkeypatch):
    begun = []
    monkeypatch.setattr(os, "execv", lambda path, arguments: begun.append(arguments))
    told = {"PLANPAINT_API_HOST": "0.0.0.0", "PLANPAINT_API_KEYS": "off"}
    assert CliRunner().invoke(cli, ["api"], env=servers.environment | told).exit_code == 0
    assert "api.application:create()" in begun[0]
    secret = CliRunner().invoke(cli, ["keys", "create", "first"], env=servers.environment).stdout.strip()
    with running(servers, tmp_path, api_host="0.0.0.0") as live:
        assert requests.get(f"{live.url}/v1/jobs", timeout=5).status_code == 401
        bearer = {"Authorization": f"Bearer {secret}"}
        assert requests.get(f"{live.url}/v1/jobs", headers=bearer, timeout=5).status_code == 200

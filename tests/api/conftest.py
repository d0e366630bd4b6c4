import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import requests
from flask import Flask
from flask.testing import FlaskClient

from api.application import build
from app.connect import Client, connect
from app.domain.access import LimitChanges, Scope
from app.launcher.child import Child
from app.launcher.ports import free_ports
from app.settings import load
from app.store.api_keys import ApiKeys
from app.store.jobs import JobStore
from tests.api.orders import finish
from tests.api.statuses import Answer, Recorder, documented
from tests.servers import Servers, wait_until


@pytest.fixture(scope="session")
def app(servers: Servers) -> Flask:
    return build(servers.settings(lease_s=0.5, hint_s=0.2, sse_heartbeat_s=0.2, webhook_allow="127.0.0.0/8"))


@pytest.fixture(scope="session")
def promised() -> set[Answer]:
    return documented(build(load({})))


@pytest.fixture(autouse=True)
def no_answer_is_undocumented(promised: set[Answer]) -> Iterator[None]:
    """Of whatever an application in this process answers while a test runs."""
    with Recorder() as recorder:
        yield
    paths = {path for _, path, _ in promised}
    assert sorted(answer for answer in recorder.seen - promised if answer[1] in paths) == []


@pytest.fixture
def http(app: Flask, client: Client) -> FlaskClient:
    """A test client of the API on an empty database."""
    return app.test_client()


@pytest.fixture
def submit(http: FlaskClient) -> Callable[..., dict[str, Any]]:
    """Submit a job as JSON; returns the answer's body."""

    def call(headers: dict[str, str] | None = None, **fields: Any) -> dict[str, Any]:
        body = {"prompt": "a red circle on a blue background", "size": "256x256", "steps": 12} | fields
        answer = http.post("/v1/jobs", json=body, headers=headers)
        assert answer.status_code == 202, answer.text
        return answer.get_json()

    return call


@pytest.fixture
def done(store: JobStore, settings: Any) -> Callable[[dict[str, Any]], None]:
    """Take every image of a job through both stages, with real objects."""

    def call(job: dict[str, Any]) -> None:
        for image in job["images"]:
            finish(store, settings, job["id"], image["index"])

    return call


@dataclass(frozen=True)
class Live:
    """A running API process, without workers behind it."""

    url: str
    log: Path
    child: Child

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1])


def make_key(servers: Servers) -> str:
    """The secret of a key that may do all; a process that needs keys does not start without one."""
    client = connect(servers.settings())
    try:
        return ApiKeys(client).create("test", list(Scope), LimitChanges())[1]
    finally:
        client.close()


@contextmanager
def running(
    servers: Servers, folder: Path, command: Sequence[str] = ("app.cli", "api"), **settings: str
) -> Iterator[Live]:
    port = free_ports(1)[0]
    log = folder / "api.log"
    environment = servers.environment | {f"PLANPAINT_{name.upper()}": value for name, value in settings.items()}
    environment |= {"PLANPAINT_API_PORT": str(port), "GUNICORN_CMD_ARGS": f"--bind=127.0.0.1:{port}"}
    child = Child("api", [sys.executable, "-m", *command], environment=environment, log=log)
    child.start()
    try:
        found = Live(f"http://127.0.0.1:{port}", log, child)
        wait_until(lambda: _ready(found.url), timeout=60, what="the API process")
        yield found
    finally:
        child.terminate()
        child.finish(time.monotonic() + 10)


@pytest.fixture(scope="session")
def live(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with running(
        servers,
        tmp_path_factory.mktemp("live"),
        lease_s="0.5",
        hint_s="0.2",
        sse_readers="120",
        sse_heartbeat_s="0.5",
        sse_max_s="20",
        webhook_allow="127.0.0.0/8",
        cors_origins="https://studio.example",
        default_size="256x256",
    ) as found:
        yield found


def _ready(url: str) -> bool:
    try:
        return requests.get(f"{url}/readyz", timeout=5).status_code == 200
    except requests.exceptions.RequestException:
        return False

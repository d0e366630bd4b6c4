"""Real Valkey and SeaweedFS for a test session, one pair for each parallel test process."""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from app import keys, wiring
from app.connect import Client, connect
from app.errors import Unavailable
from app.launcher import embedded
from app.launcher.child import Child
from app.settings import Settings
from app.store.jobs import JobStore


def wait_until(condition, *, timeout: float = 30.0, what: str = "the condition") -> None:
    """Poll a condition; fails the test with its name when the time is up."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come true within {timeout} s")
        time.sleep(0.01)


def clean_environment() -> dict[str, str]:
    """Without settings of ours, which are those of somebody else's service."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PLANPAINT_")}


@dataclass(frozen=True)
class Servers:
    """Settings that name the servers, and the servers as children."""

    environment: dict[str, str]
    s3_ports: tuple[int, ...]
    valkey: Child
    seaweedfs: Child

    def settings(self, **overrides: object) -> Settings:
        names = {k.removeprefix("PLANPAINT_").lower(): v for k, v in self.environment.items()}
        return Settings.model_validate(names | overrides)


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    folder = tmp_path_factory.mktemp("servers")
    credentials = embedded.Credentials.load(folder)
    valkey = embedded.valkey(folder, folder, credentials)
    weed = embedded.seaweedfs(folder, folder, credentials)
    started = Servers(
        {
            "PLANPAINT_REDIS_URL": embedded.redis_url(credentials),
            "PLANPAINT_S3_ENDPOINT": f"http://127.0.0.1:{credentials.s3_ports[0]}",
            "PLANPAINT_S3_ACCESS_KEY": credentials.s3_access_key,
            "PLANPAINT_S3_SECRET_KEY": credentials.s3_secret_key,
        },
        credentials.s3_ports,
        valkey,
        weed,
    )
    try:
        valkey.start()
        weed.start()
        wait_until(lambda: embedded.redis_answers(embedded.redis_url(credentials)), what="valkey")
        wait_until(lambda: _bucket(started.settings()), timeout=60, what="seaweedfs")
        with connect(started.settings()) as found:
            empty(found)
        yield started
    finally:
        # Killed: SeaweedFS takes its time to stop, and nobody needs what they hold.
        for child in (valkey, weed):
            child.finish(time.monotonic())
        embedded.remove_sockets(credentials)


def _bucket(settings: Settings) -> bool:
    try:
        wiring.worker_blobs(settings).ensure_bucket()
    except Unavailable:
        return False
    return True


def empty(client: Client) -> None:
    """Remove everything but the store's name, the same for all tests: APIs that outlive one must not see a loss."""
    client.flushall()
    client.set(keys.EPOCH, "tests")


def is_empty(client: Client) -> bool:
    return client.keys() == [keys.EPOCH.encode()]


@pytest.fixture
def settings(servers: Servers) -> Settings:
    """Settings on the real servers, with times short enough to watch."""
    return servers.settings(lease_s=0.5, hint_s=0.2)


@pytest.fixture
def client(settings: Settings) -> Iterator[Client]:
    """A Redis client on an empty database."""
    found = connect(settings)
    empty(found)
    yield found
    found.close()


@pytest.fixture
def store(settings: Settings, client: Client) -> JobStore:
    return wiring.job_store(settings, client)

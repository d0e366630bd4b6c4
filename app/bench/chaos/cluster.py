"""The stack that is attacked: servers and roles as processes of the harness, each restarted at once when it dies."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import IO

from app import settings as settings_module
from app import wiring
from app.bench.chaos.process import Process
from app.blobs import BlobStore
from app.connect import Client
from app.errors import PlanpaintError
from app.launcher import embedded
from app.launcher.child import Child
from app.launcher.ports import free_ports
from app.settings import PREFIX, Settings, address
from app.store.workers import WorkerRegistry

_READY_S = 180.0
_STOP_S = 10.0


class Cluster:
    """Use as a context manager, from one thread: the kernel ends children with the thread that started them."""

    def __init__(self, data: Path, counts: Mapping[str, int], environment: Mapping[str, str]) -> None:
        self._data = data.absolute()
        self._counts = dict(counts)
        self._environment = dict(environment)
        self._api_ports = free_ports(self._counts.get("api", 1))
        self.servers: list[Process] = []
        self.roles: list[Process] = []
        self._nursery: subprocess.Popen[str] | None = None
        self._nursery_log: IO[str] | None = None
        self._credentials: embedded.Credentials | None = None
        self._client: Client | None = None
        self._registry: WorkerRegistry
        self.settings: Settings

    @property
    def processes(self) -> list[Process]:
        return [*self.servers, *self.roles]

    def of(self, role: str) -> list[Process]:
        return [process for process in self.processes if process.role == role]

    @property
    def api_url(self) -> str:
        """Of the first API."""
        return self.api_urls[0]

    @property
    def api_urls(self) -> list[str]:
        """Of each API, in the order of its processes."""
        return [address(self.settings.api_host, port) for port in self._api_ports]

    def __enter__(self) -> "Cluster":
        try:
            self._begin()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def _begin(self) -> None:
        self._data.mkdir(parents=True, exist_ok=True)
        nursery = self._start_nursery()
        credentials = self._credentials = embedded.Credentials.load(self._data)
        self._environment |= {
            PREFIX + "REDIS_URL": embedded.redis_url(credentials),
            PREFIX + "S3_ENDPOINT": f"http://127.0.0.1:{credentials.s3_ports[0]}",
            PREFIX + "S3_ACCESS_KEY": credentials.s3_access_key,
            PREFIX + "S3_SECRET_KEY": credentials.s3_secret_key,
            PREFIX + "API_PORT": str(self._api_ports[0]),
        }
        self.settings = settings_module.load(self._environment)
        self._client = wiring.api_client(self.settings)
        self._registry = wiring.registry(self._client)
        for role, child in (
            ("redis", embedded.valkey(self._data, self._data, credentials)),
            ("s3", embedded.seaweedfs(self._data, self._data, credentials)),
        ):
            self.servers.append(_of_child(role, role, child))
            self.servers[-1].start()
        self.wait("Redis", lambda: embedded.redis_answers(embedded.redis_url(credentials)))
        self.wait("object storage", partial(_bucket, wiring.worker_blobs(self.settings)))
        # The first answer is "ready": until then it imports.
        assert nursery.stdout is not None  # noqa: S101 - a pipe was asked for
        if nursery.stdout.readline().strip() != "ready":
            raise RuntimeError(f"the nursery did not start; see {self._data / 'nursery.log'}")
        for role in ("sweeper", "courier", "ar", "dit", "api"):
            for number in range(self._counts.get(role, 1)):
                self.roles.append(self._role(role, number))
                self.roles[-1].start()
        self.wait("all roles", self.ready)

    def _start_nursery(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "app.launcher.tether", str(os.getpid()), "TERM"]
        self._nursery_log = (self._data / "nursery.log").open("a")
        self._nursery = subprocess.Popen(
            [*command, sys.executable, "-m", "app.bench.chaos.nursery"],
            env=_clean() | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._nursery_log,
            start_new_session=True,
            text=True,
        )
        return self._nursery

    def _role(self, role: str, number: int) -> Process:
        name = f"{role}-{number}"
        if role == "api":
            # It replaces itself by gunicorn, which must be there before anything else is imported.
            command = [sys.executable, "-m", "app.cli", "api"]
            environment = self._environment | {PREFIX + "API_PORT": str(self._api_ports[number])}
            return _of_child(name, role, Child(name, command, environment=environment, log=self._data / f"{name}.log"))
        return Process(name, role, lambda extra: self._fork(role, name, extra))

    def _fork(self, role: str, name: str, extra: dict[str, str]) -> int:
        log = str(self._data / f"{name}.log")
        order = {"role": role, "environment": self._environment | extra, "log": log}
        nursery = self._nursery
        if nursery is None or nursery.stdin is None or nursery.stdout is None:
            raise RuntimeError("the nursery has not been started")
        nursery.stdin.write(json.dumps(order) + "\n")
        nursery.stdin.flush()
        return int(nursery.stdout.readline())

    def ready(self) -> bool:
        """Whether every role that should run has said that it does."""
        try:
            ready = self.ready_pids()
        except PlanpaintError:
            return False
        return all(process.running and (process.role == "api" or process.pid in ready) for process in self.roles)

    def ready_pids(self) -> set[int]:
        return {worker.pid for worker in self._registry.list() if worker.state in ("ready", "busy")}

    def wait(self, what: str, condition: Callable[[], bool], timeout_s: float = _READY_S) -> None:
        """Keep everything running until it comes true."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline:
                raise RuntimeError(f"{what} did not come within {timeout_s:g} s; see {self._data}")
            self.restart_dead()
            time.sleep(0.05)

    def restart_dead(self) -> None:
        """Start again what has died, unless it is held. No back-off: the harness kills on purpose."""
        for process in self.processes:
            if process.starts and not process.running and time.monotonic() >= process.held_until:
                process.start()

    def stop(self) -> None:
        """Everything, in good order; nothing is left."""
        for group in (self.roles, self.servers):
            for process in group:
                process.signal(signal.SIGCONT)
                process.signal(signal.SIGTERM)
            deadline = time.monotonic() + _STOP_S
            for process in group:
                process.finish(deadline)
        if self._client is not None:
            self._client.close()
        if self._nursery is not None:
            self._nursery.communicate()
        if self._nursery_log is not None:
            self._nursery_log.close()
        if self._credentials is not None:
            embedded.remove_sockets(self._credentials)


def _bucket(blobs: BlobStore) -> bool:
    try:
        blobs.ensure_bucket()
    except PlanpaintError:
        return False
    return True


def _clean() -> dict[str, str]:
    """The environment without settings of ours, which are those of somebody else's service."""
    return {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}


def _of_child(name: str, role: str, child: Child) -> Process:
    def begin(extra: dict[str, str]) -> int:
        child.environment = base | extra
        child.start()
        return child.pid or 0

    base = child.environment
    return Process(name, role, begin, lambda: child.running)

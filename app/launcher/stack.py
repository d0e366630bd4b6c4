"""The whole stack: which children there are, in which order they start and stop, and when it is ready."""

import fcntl
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO

import requests

from app import settings as settings_module
from app import wiring
from app.checkpoint import AR_PARTS, DIT_PARTS, Checkpoint
from app.errors import Misconfigured, PlanpaintError, Unavailable
from app.launcher import embedded
from app.launcher.child import Child
from app.launcher.ports import is_free
from app.settings import PREFIX, Settings, address

#: Longest wait for everything to be ready, seconds; a large checkpoint takes minutes to load.
READY_S = 900.0
#: Everything is stopped within this time, seconds.
STOP_S = 14.0
#: A child that died so often before everything was ready will not come up.
_GIVE_UP_AFTER = 4
#: Of which the servers get what the roles leave, but at least this.
_SERVERS_STOP_S = 4.0

Say = Callable[[str], None]


class Stack:
    """Starts children in order, revives those that die, stops them in reverse. Use as a context manager."""

    def __init__(
        self, data: Path, *, overrides: Mapping[str, str], dit_workers: int, say: Say, ar_workers: int = 1
    ) -> None:
        self._data = data.absolute()
        self._logs = self._data / "logs"
        self._overrides = dict(overrides)
        self._counts = {"ar": ar_workers, "dit": dit_workers}
        self._say = say
        self._servers: list[Child] = []
        self._roles: list[Child] = []
        self._credentials: embedded.Credentials | None = None
        self.settings: Settings

    @property
    def children(self) -> list[Child]:
        return [*self._servers, *self._roles]

    def __enter__(self) -> "Stack":
        try:
            self._logs.mkdir(parents=True, exist_ok=True)
            self._data.chmod(0o700)
        except OSError as error:
            raise Misconfigured(f"the data folder {self._data} cannot be used: {error.strerror}") from error
        self._lock = self._take_folder()
        try:
            self._start()
        except OSError as error:
            self.stop()
            raise Misconfigured(f"the stack cannot start: {error}") from error
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def _take_folder(self) -> IO[bytes]:
        """One stack a folder: two Valkeys over one append-only file would destroy it. The kernel frees the lock."""
        lock = (self._data / "lock").open("ab")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            raise Misconfigured(f"another stack runs in {self._data}; name another --data-dir") from None
        return lock

    def _start(self) -> None:
        environment = {name: value for name, value in os.environ.items() if name.startswith(PREFIX)} | self._overrides
        # What cannot work is said before anything is started.
        self.settings = settings_module.load(environment)
        Checkpoint(self.settings.checkpoint).verify(AR_PARTS + DIT_PARTS)
        if not is_free(self.settings.api_port, self.settings.api_host):
            raise Misconfigured(
                f"port {self.settings.api_port} of {self.settings.api_host} cannot be had; choose another"
            )
        environment |= self._start_servers(environment)
        # On one host the workers share its cores; each would otherwise take them all.
        environment.setdefault(
            PREFIX + "THREADS", str(max(1, (os.cpu_count() or 1) // max(1, sum(self._counts.values()))))
        )
        self.settings = settings_module.load(environment)
        embedded.write_private(self._data / "runtime.json", json.dumps(environment, indent=1))
        self._wait("object storage", self._bucket_ready)
        for role in ("sweeper", "courier", "ar", "dit", "api"):
            for number in range(self._counts.get(role, 1)):
                self._roles.append(self._role(role, number, environment))
                self._roles[-1].start()
        self._wait("the API and all workers", self._roles_ready)

    def _start_servers(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Start the servers that no setting names; returns the settings that name them."""
        named: dict[str, str] = {}
        needs_redis, needs_s3 = PREFIX + "REDIS_URL" not in environment, PREFIX + "S3_ENDPOINT" not in environment
        if not (needs_redis or needs_s3):
            return named
        credentials = self._credentials = embedded.Credentials.load(self._data)
        if needs_redis:
            self._servers.append(embedded.valkey(self._data, self._logs, credentials))
            named[PREFIX + "REDIS_URL"] = embedded.redis_url(credentials)
        if needs_s3:
            self._servers.append(embedded.seaweedfs(self._data, self._logs, credentials))
            named[PREFIX + "S3_ENDPOINT"] = f"http://127.0.0.1:{credentials.s3_ports[0]}"
            named[PREFIX + "S3_ACCESS_KEY"] = credentials.s3_access_key
            named[PREFIX + "S3_SECRET_KEY"] = credentials.s3_secret_key
        for server in self._servers:
            server.start()
        if needs_redis:
            self._wait("valkey", lambda: embedded.redis_answers(named[PREFIX + "REDIS_URL"]))
            self._same_data(named[PREFIX + "REDIS_URL"])
        return named

    def _same_data(self, url: str) -> None:
        """Raises Misconfigured when this folder's Valkey is not the one that its jobs were given to."""
        path = self._data / "epoch"
        client = wiring.api_client(settings_module.load({PREFIX + "REDIS_URL": url}))
        with client:
            epoch = wiring.epoch(client)
            before = path.read_text("utf-8") if path.exists() else None
            if before is not None and epoch.stored() != before:
                raise Misconfigured(
                    f"Redis has lost its data: {self._data / 'redis'} is not what it was. Bring it back, or remove "
                    f"{path} to begin anew without the jobs that were accepted (their pictures stay in object storage)"
                )
            embedded.write_private(path, epoch.adopt())

    def _role(self, role: str, number: int, environment: Mapping[str, str]) -> Child:
        name = f"{role}-{number}" if self._counts.get(role, 1) > 1 else role
        command = [sys.executable, "-m", "app.cli", role]
        instance = {PREFIX + "INSTANCE": f"{name}@{socket.gethostname()}"}
        return Child(name, command, environment=instance | dict(environment), log=self._logs / f"{name}.log")

    def _bucket_ready(self) -> bool:
        try:
            wiring.worker_blobs(self.settings).ensure_bucket()
        except Unavailable:
            return False
        return True

    def _roles_ready(self) -> bool:
        try:
            answer = direct().get(f"{self.api_url}/readyz", timeout=2)
            workers = wiring.registry(wiring.api_client(self.settings)).list()
        except (requests.exceptions.RequestException, PlanpaintError):
            return False
        ready = {worker.pid for worker in workers if worker.state in ("ready", "busy", "drained")}
        return answer.status_code == 200 and all(
            child.pid in ready for child in self._roles if not child.name.startswith("api")
        )

    @property
    def api_url(self) -> str:
        anywhere = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104
        return address(anywhere.get(self.settings.api_host, self.settings.api_host), self.settings.api_port)

    def _wait(self, what: str, ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + READY_S
        while not ready():
            for child in self.children:
                if child.misconfigured or child.restarts >= _GIVE_UP_AFTER:
                    raise Misconfigured(f"{child.name} does not start: {child.last_line()} (see {child.log})")
            self.revive()
            if time.monotonic() > deadline:
                raise Misconfigured(f"{what} was not ready within {READY_S:g} s; see the logs in {self._logs}")
            time.sleep(0.05)

    def revive(self) -> None:
        """Restart children that died; call it about every second."""
        for child in self.children:
            if line := child.revive():
                self._say(line)

    def stop(self) -> None:
        """Stop the roles, which finish or give back their work, then the servers that they need for it."""
        start = time.monotonic()
        for child in self._roles:
            child.terminate()
        for child in self._roles:
            child.finish(start + STOP_S - _SERVERS_STOP_S)
        for child in self._servers:
            child.terminate()
        for child in self._servers:
            child.finish(start + STOP_S)
        if self._credentials is not None:
            embedded.remove_sockets(self._credentials)
        (self._data / "runtime.json").unlink(missing_ok=True)
        self._lock.close()


def direct() -> requests.Session:
    """A session for servers of this host: a proxy of the environment is for the world outside."""
    session = requests.Session()
    session.trust_env = False
    return session


def running_environment(data: Path) -> dict[str, str]:
    """The settings of the stack that runs in this data folder; empty when none does."""
    path = data / "runtime.json"
    try:
        values: dict[str, str] = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return values

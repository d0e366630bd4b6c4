"""A whole service with every lock on: each role its own Redis user and S3 identity, TLS to both, keys required.

The Valkey of the wheel is built without TLS, so TLS ends in a small proxy before it: what is tested is our side of it.
SeaweedFS does its own.
"""

import json
import os
import re
import secrets
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import redis
import requests

from app import wiring
from app.connect import connect
from app.domain.access import Scope
from app.errors import Unavailable
from app.launcher import embedded
from app.launcher.child import Child
from app.launcher.ports import free_ports, is_free
from app.settings import PREFIX, Settings, load
from tests.servers import wait_until

INFRA = Path(__file__).parents[2] / "infra"
POLICIES = {path.stem: path.read_text("utf-8") for path in sorted((INFRA / "s3-policies").glob("*.json"))}
USERS = re.findall(r">([A-Z]+)_PASSWORD", (INFRA / "users.acl").read_text("utf-8"))
ROLES = ("sweeper", "courier", "ar", "dit", "api")


class Authority:
    """A CA of its own, and certificates for 127.0.0.1."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True)
        self.ca = folder / "ca.pem"
        self._openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
                      "-subj", "/CN=test CA", "-keyout", "ca.key", "-out", "ca.pem")  # fmt: skip

    def issue(self, name: str) -> tuple[Path, Path]:
        """(certificate, key)."""
        (self._folder / "san").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
        self._openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", f"/CN={name}",
                      "-keyout", f"{name}.key", "-out", f"{name}.csr")  # fmt: skip
        self._openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
                      "-days", "2", "-extfile", "san", "-out", f"{name}.pem")  # fmt: skip
        return self._folder / f"{name}.pem", self._folder / f"{name}.key"

    def _openssl(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=self._folder, check=True, capture_output=True, timeout=30)


def write_users(path: Path, passwords: dict[str, str]) -> None:
    """The file as operators make it from infra/users.acl, and one user more who may do all."""
    text = (INFRA / "users.acl").read_text("utf-8")
    for user, password in passwords.items():
        text = text.replace(f">{user}_PASSWORD", f">{password}")
    path.write_text(f"{text}user admin on >{passwords['ADMIN']} ~* &* +@all\n")


def write_identities(path: Path, keys: dict[str, str]) -> None:
    """SeaweedFS's identities: one a role with the role's policy, and an administrator who makes the bucket."""
    identities = [
        {"name": name, "credentials": [{"accessKey": f"{name}-key", "secretKey": secret}]}
        | ({"policyNames": [name]} if name in POLICIES else {"actions": ["Admin", "Read", "Write", "List"]})
        for name, secret in keys.items()
    ]
    policies = [{"name": name, "content": text} for name, text in POLICIES.items()]
    path.write_text(json.dumps({"identities": identities, "policies": policies}))


class Secured:
    """Use as a context manager. `secrets`: everything that must not be told."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.logs = folder / "logs"
        self.logs.mkdir()
        self.passwords = {user: secrets.token_hex(16) for user in (*USERS, "ADMIN")}
        self.s3_keys = {name: secrets.token_hex(16) for name in (*POLICIES, "admin")}
        self.webhook_secret = "whsec_" + "QmFzZTY0QmFzZTY0QmFzZTY0QmFzZTY0"
        self.authority = Authority(folder / "tls")
        self.client_pair = self.authority.issue("client")
        self.api_url = f"http://127.0.0.1:{free_ports(1)[0]}"
        self.api_key = ""
        self.roles: dict[str, Child] = {}
        self._exit = ExitStack()

    @property
    def secrets(self) -> list[str]:
        return [*self.passwords.values(), *self.s3_keys.values(), self.webhook_secret, self.api_key]

    def __enter__(self) -> "Secured":
        try:
            self._start()
        except BaseException:
            self._exit.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._exit.close()

    def _start(self) -> None:
        self._start_redis()
        self._start_s3()
        scopes = [f"--scope={scope}" for scope in Scope]
        made = self.planpaint("keys", "create", "test", *scopes)
        assert made.returncode == 0, made.stderr
        self.api_key = made.stdout.strip()
        for role in ROLES:
            self.start(role)
        wait_until(self._ready, timeout=180, what="the service")

    def _start_redis(self) -> None:
        port, users = free_ports(1)[0], self.folder / "users.acl"
        write_users(users, self.passwords)
        config = self.folder / "valkey.conf"
        config.write_text(
            f'port {port}\nbind 127.0.0.1\naclfile "{users}"\ndir "{self.folder}"\nappendonly no\nsave ""\n'
            "maxmemory-policy noeviction\n"
        )
        self._run(
            Child("valkey", [embedded.valkey_binary(), str(config)], environment={}, log=self.logs / "valkey.log")
        )
        self.admin = redis.Redis(port=port, username="admin", password=self.passwords["ADMIN"])
        self._exit.callback(self.admin.close)
        self.plain_redis = port
        wait_until(self._redis_answers, what="valkey")
        self.redis_port = free_ports(1)[0]
        files = [str(path) for path in (*self.authority.issue("redis"), self.authority.ca)]
        proxy = [sys.executable, "-m", "tests.operators.tls_proxy", str(self.redis_port), str(port), *files]
        self._run(Child("tls", proxy, environment={}, log=self.logs / "tls.log"))
        wait_until(lambda: not is_free(self.redis_port), what="the TLS proxy")

    def _redis_answers(self) -> bool:
        try:
            return bool(self.admin.ping())
        except redis.RedisError:
            return False

    def _start_s3(self) -> None:
        data, identities = self.folder / "s3", self.folder / "identities.json"
        data.mkdir()
        write_identities(identities, self.s3_keys)
        certificate, key = self.authority.issue("s3")
        credentials = embedded.Credentials("", "", "", 0, tuple(free_ports(5, with_grpc=True)))
        command = embedded.seaweedfs(self.folder, self.logs, credentials)._command[5:]
        command += [f"-s3.config={identities}", f"-s3.cert.file={certificate}", f"-s3.key.file={key}"]
        self._run(Child("weed", command, environment={}, log=self.logs / "weed.log"))
        self._exit.callback(embedded.remove_sockets, credentials)
        self.s3_url = f"https://127.0.0.1:{credentials.s3_ports[0]}"
        wait_until(self._bucket_ready, timeout=60, what="seaweedfs")

    def _bucket_ready(self) -> bool:
        try:
            wiring.worker_blobs(self.settings("operator", s3="admin")).ensure_bucket()
        except Unavailable:
            return False
        return True

    def _run(self, child: Child) -> None:
        child.start()
        self._exit.callback(lambda: (child.terminate(), child.finish(time.monotonic() + 10)))

    def start(self, role: str, name: str | None = None) -> Child:
        """One process of a role, under its own users."""
        child = Child(
            name or role,
            [sys.executable, "-m", "app.cli", role],
            environment=self.environment(role) | {PREFIX + "INSTANCE": name or role},
            log=self.logs / f"{name or role}.log",
        )
        self.roles[child.name] = child
        self._run(child)
        return child

    def current(self, role: str) -> Child:
        """The process of a role that runs."""
        return next(c for c in self.roles.values() if c.name.startswith(role) and c.running)

    def environment(self, role: str, *, s3: str | None = None) -> dict[str, str]:
        user, identity = f"planpaint-{role}", s3 or role
        values = {
            "REDIS_URL": f"rediss://{user}:{self.passwords[role.upper()]}@127.0.0.1:{self.redis_port}/0",
            "REDIS_CA": str(self.authority.ca),
            "REDIS_CERT": str(self.client_pair[0]),
            "REDIS_KEY": str(self.client_pair[1]),
            "API_PORT": self.api_url.rpartition(":")[2],
            "API_KEYS": "required",
            "WEBHOOK_ALLOW": "127.0.0.0/8",
            "LEASE_S": "4",
            "HINT_S": "1",
            "SWEEP_S": "0.2",
            "THREADS": "1",
        }
        if identity in self.s3_keys:
            values |= {
                "S3_ENDPOINT": self.s3_url,
                "S3_CA": str(self.authority.ca),
                "S3_ACCESS_KEY": f"{identity}-key",
                "S3_SECRET_KEY": self.s3_keys[identity],
            }
        if role in ("api", "courier"):
            values["WEBHOOK_SECRET"] = self.webhook_secret
        return {PREFIX + name: value for name, value in values.items()}

    def settings(self, role: str, *, s3: str | None = None) -> Settings:
        return load(self.environment(role, s3=s3))

    def client(self, role: str) -> redis.Redis:
        return connect(self.settings(role))

    def planpaint(self, *arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
        """A command of the operator's."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
        return subprocess.run(
            [sys.executable, "-m", "app.cli", *arguments],
            env=clean | self.environment("operator") | changes,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )

    # --- the front door

    def call(self, method: str, path: str, **rest: object) -> requests.Response:
        headers = {"Authorization": f"Bearer {self.api_key}"} | rest.pop("headers", {})
        return requests.request(method, f"{self.api_url}{path}", headers=headers, timeout=20, **rest)

    def submit(self, **fields: object) -> str:
        body = {"prompt": "a red circle on a blue background", "size": "64x64", "steps": 2} | fields
        answer = self.call("POST", "/v1/jobs", json=body)
        assert answer.status_code == 202, answer.text
        return answer.json()["id"]

    def wait_done(self, *job_ids: str) -> list[dict]:
        def done() -> bool:
            jobs[:] = [self.call("GET", f"/v1/jobs/{job_id}").json() for job_id in job_ids]
            return all(job.get("completed_at") for job in jobs)

        jobs: list[dict] = []
        wait_until(done, timeout=180, what="the end of the jobs")
        return jobs

    def workers(self, role: str) -> list[dict]:
        return [each for each in self.call("GET", "/v1/workers").json()["data"] if each["role"] == role]

    def _ready(self) -> bool:
        for child in self.roles.values():
            assert child.running, f"{child.name}: {child.log.read_text()[-2000:]}"
        try:
            found = self.call("GET", "/v1/workers").json().get("data", ())
        except requests.RequestException:
            return False
        ready = {each["role"] for each in found if each["state"] in ("ready", "busy")}
        return ready >= {"ar", "dit", "courier", "sweeper"}

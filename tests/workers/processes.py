"""`planpaint ar` and `dit` as processes, forked from one that has imported torch, which would outlast their work."""

import multiprocessing
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from app import cli
from app.checkpoint import Checkpoint
from tests.servers import Servers, clean_environment

_FORKS = multiprocessing.get_context("forkserver")
# One server forks for all tests of a process, so that this list holds what app.bench.groups needs too.
_FORKS.set_forkserver_preload(["app.bench.groups", "workers.ar", "workers.dit", __name__])


@contextmanager
def worker(
    servers: Servers, checkpoint: Checkpoint, log: Path, *command: str, **settings: object
) -> Iterator[ForkServerProcess]:
    """`planpaint *command`; what it says is added to the log. A group's leader starts its followers itself."""
    environment = clean_environment()
    environment |= servers.environment | {"PLANPAINT_CHECKPOINT": str(checkpoint.folder)}
    environment |= {f"PLANPAINT_{name.upper()}": str(value) for name, value in settings.items()}
    process = _FORKS.Process(target=_be, args=(command, environment, log))
    process.start()
    try:
        yield process
    finally:
        process.kill()
        process.join()
        process.close()


def _be(command: tuple[str, ...], environment: dict[str, str], log: Path) -> None:
    os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    out = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    for stream in (1, 2):
        os.dup2(out, stream)
    sys.argv = ["planpaint", *command]
    cli.main()


def ended(process: ForkServerProcess, within_s: float = 60) -> int:
    """Its exit status; as in subprocess, negative for a signal."""
    process.join(within_s)
    assert process.exitcode is not None, f"it still runs after {within_s} s"
    return process.exitcode


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split()]

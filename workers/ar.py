"""The AR worker: pulls groups from the stream, decodes them as one batch, hands each row over the moment it is done."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

import structlog

from app import crash_points, wiring
from app.ar.request import ArFailure, ArRequest, ArResult
from app.ar.rows import Row
from app.blobs import BlobStore
from app.domain.job import SEED_LIMIT
from app.domain.messages import Lease, PlanOrder
from app.domain.prior import Plan
from app.errors import DeadlineExceeded, ImageFailed, LostLease, Unavailable
from app.queues.ar_stream import ArHint, ArStream
from app.service import Stages
from app.settings import Settings, instance_of, worker_name
from app.store.jobs import JobStore
from app.traces import told
from workers import ar_backend, inputs
from workers.heartbeat import Heartbeat
from workers.process import ends_at, may_begin, patiently, stop_on_signals
from workers.watchdog import Watchdog

log = structlog.get_logger(__name__)

#: An idle worker waits this long for the first hint, and then looks whether it should stop.
_BLOCK_MS = 500
#: A busy worker looks for more this often, seconds: often enough for a newcomer, rare enough for the running rows.
_POLL_S = 0.02
#: Threads that read condition images.
_LOADERS = 4
#: Pause while Redis does not answer, seconds.
_PAUSE_S = 0.25
#: Added to the seed of a plan that is made once more because it collapsed; any odd constant would do.
_SECOND_SEED = 0x9E3779B9


@dataclass(slots=True)
class _Row:
    """An image that this worker holds: its lease, what the engine was asked, and whether that is the second try.

    `ends_at`: the job's deadline on this process's monotonic clock.
    """

    lease: Lease
    request: ArRequest
    ends_at: float
    second: bool = False


class ArWorker:
    """One batch on one device. The engine's rows are the leases that it holds, plus results not handed over yet."""

    def __init__(
        self,
        engine: ar_backend.ArBackend,
        stream: ArStream,
        store: JobStore,
        stages: Stages,
        blobs: BlobStore,
        heartbeat: Heartbeat,
        *,
        name: str,
        min_distinct: float,
        watchdog: Watchdog,
    ) -> None:
        self._engine = engine
        self._stream = stream
        self._store = store
        self._stages = stages
        self._blobs = blobs
        self._heartbeat = heartbeat
        self._name = name
        self._min_distinct = min_distinct
        self._rows: dict[str, _Row] = {}
        self._ended: list[ArResult | ArFailure] = []
        self._hints: list[ArHint] = []
        self._loading: dict[str, Future[ArRequest | Row]] = {}
        self._loader = ThreadPoolExecutor(_LOADERS, thread_name_prefix="inputs")
        self._polled_at = 0.0
        self._alone: str | None = None
        self._watchdog = watchdog

    @property
    def idle(self) -> bool:
        return not self._rows

    def step(self, *, take: bool = True) -> None:
        """Take what fits, decode one token for every row, hand over what is finished."""
        try:
            if take:
                self._take()
            self._start_loaded()
            self._hand_over()
        except Unavailable as error:
            log.warning("waiting", error=str(error))
            if not self._engine.running:
                time.sleep(_PAUSE_S)
        if self._loading and not self._engine.running:
            wait(self._loading.values(), timeout=_POLL_S, return_when=FIRST_COMPLETED)
        self._drop_lost()
        self._drop_overdue()
        if self._engine.running:
            crash_points.reach("ar.decoding")
            self._watchdog.alive()
        else:
            self._watchdog.rest()
        order = list(self._rows)
        # First come, first painted: rows that end at the same step are handed over in the order of their claims.
        for ended in sorted(self._decoded(), key=lambda each: order.index(each.key)):
            if isinstance(ended, ArResult) and ended.prior.distinct_share() < self._min_distinct:
                self._collapsed(ended.key)
            else:
                self._ended.append(ended)

    def release_all(self) -> None:
        """Give back what is not finished; another worker takes it at once."""
        for key, row in list(self._rows.items()):
            self._engine.evict(key)
            self._stages.release(row.lease)
            self._forget(key)
        self._watchdog.rest()

    def _decoded(self) -> list[ArResult | ArFailure]:
        """One step of the engine. An error of the whole batch gives all rows back, so far as Redis answers."""
        try:
            return self._engine.step()
        except Exception as error:
            with suppress(Unavailable):
                for row in self._rows.values():
                    self._stages.lose(row.lease, error)
            raise

    def _take(self) -> None:
        if self._alone in self._rows:
            return
        free = self._engine.free_slots - len(self._hints) - len(self._loading)
        idle = not self._rows and not self._hints
        waits = any(hint.alone for hint in self._hints)
        if free > 0 and not waits and (idle or time.monotonic() - self._polled_at > _POLL_S):
            self._hints += self._stream.read(free) or (self._stream.wait(_BLOCK_MS) if idle else [])
            # A key's next images are hinted when these are claimed: look again at the next step.
            self._polled_at = 0.0 if self._hints else time.monotonic()
            self._hints.sort(key=lambda hint: hint.alone)
        while self._hints and self._engine.free_slots > len(self._loading):
            hint = self._hints[0]
            if hint.alone and self._rows:
                return
            # The hint's own token: a claim whose answer was lost is sent again, and must be known again.
            crash_points.reach("ar.before_claim")
            order = self._store.claim_plan(hint.ref, entry=hint.entry, token=f"{self._name}/{hint.entry}")
            if order is None:
                self._stream.drop(hint)
            # Forgotten only now: a hint whose claim did not get through is tried again.
            self._hints.pop(0)
            if order is not None:
                crash_points.reach("ar.after_claim")
                key = self._admit(order)
                if hint.alone:
                    log.info("planned_alone", image=str(hint.ref))
                    self._alone = key
                    return

    def _admit(self, order: PlanOrder) -> str:
        key, parameters = f"{order.lease.ref}/{order.lease.fence}", order.parameters
        request = ArRequest(
            key,
            parameters.prompt,
            parameters.size,
            order.seed,
            parameters.temperature,
            parameters.top_p,
            top_k=parameters.top_k,
        )
        self._rows[key] = _Row(order.lease, request, ends_at(order.left_s))
        self._heartbeat.hold(order.lease)
        if not order.inputs:
            self._start(request)
            return key
        # Off this thread: the running rows must not wait for object storage, nor for the pictures' own pass.
        lost = partial(self._heartbeat.lost, order.lease)
        self._loading[key] = self._loader.submit(self._open, request, order.inputs, lost)
        return key

    def _open(self, request: ArRequest, keys: tuple[str, ...], lost: Callable[[], bool]) -> ArRequest | Row:
        return self._engine.open(replace(request, images=inputs.load(self._blobs, keys, lost)))

    def _start_loaded(self) -> None:
        for key in [key for key, future in self._loading.items() if future.done()]:
            future, row = self._loading.pop(key), self._rows.get(key)
            if row is None or time.monotonic() >= row.ends_at:
                continue
            try:
                opened = future.result()
                row.request = opened.request if isinstance(opened, Row) else opened
                self._start(opened)
            except ImageFailed as failure:
                self._ended.append(ArFailure(key, failure.code, failure.message, failure.retryable, told(failure)))
            except LostLease:
                self._forget(key)
            except Exception as error:
                self._not_started(key, error)

    def _start(self, request: ArRequest | Row) -> None:
        try:
            self._ended += self._engine.admit([request])  # type: ignore[list-item]  # its own open made it
        except Exception as error:
            self._not_started(request.key, error)

    def _not_started(self, key: str, error: Exception) -> None:
        """One image must not take the batch with it."""
        log.error("admission_failed", row=key, exc_info=error)
        self._ended.append(ArFailure(key, "ar_error", f"planning failed: {type(error).__name__}", True, told(error)))

    def _collapsed(self, key: str) -> None:
        """No DiT time for a plan that repeats a handful of ids: once more with a derived seed, then it fails."""
        row = self._rows[key]
        log.warning("plan_collapsed", image=str(row.lease.ref), second=row.second)
        if row.second:
            message = "the plan repeats a handful of tokens, also with another seed"
            self._ended.append(ArFailure(key, "ar_degenerate", message, retryable=False))
            return
        row.second = True
        self._start(replace(row.request, seed=(row.request.seed + _SECOND_SEED) % SEED_LIMIT))

    def _hand_over(self) -> None:
        while self._ended:
            ended = self._ended[0]
            if row := self._rows.get(ended.key):
                self._report(row.lease, ended)
            # Kept until here: when Redis does not answer the result is not lost, only late.
            self._ended.pop(0)
            self._forget(ended.key)

    def _report(self, lease: Lease, ended: ArResult | ArFailure) -> None:
        try:
            if isinstance(ended, ArResult):
                self._stages.hand_over(lease, Plan(ended.prior, ended.condition))
                log.info("planned", image=str(lease.ref), seconds=round(ended.seconds, 3))
            else:
                failure = ImageFailed(ended.code, ended.message, retryable=ended.retryable, traceback=ended.traceback)
                state = self._stages.give_up(lease, failure)
                log.warning("ar_failed", image=str(lease.ref), code=ended.code, detail=ended.message, state=state)
        except LostLease:
            log.warning("too_late", image=str(lease.ref), fence=lease.fence)

    def _drop_lost(self) -> None:
        for key, row in list(self._rows.items()):
            if self._heartbeat.lost(row.lease):
                self._engine.evict(key)
                self._forget(key)

    def _drop_overdue(self) -> None:
        now, ended = time.monotonic(), {each.key for each in self._ended}
        for key in [key for key, row in self._rows.items() if now >= row.ends_at and key not in ended]:
            self._engine.evict(key)
            late = DeadlineExceeded()
            self._ended.append(ArFailure(key, late.code, late.message, late.retryable))

    def _forget(self, key: str) -> None:
        if row := self._rows.pop(key, None):
            self._heartbeat.drop(row.lease)


def run(settings: Settings) -> None:
    stop: threading.Event = stop_on_signals()
    name = worker_name("ar")
    client = wiring.worker_client(settings)
    store, stream = wiring.job_store(settings, client), wiring.ar_stream(client, name)
    heartbeat = Heartbeat(
        store,
        wiring.registry(client),
        name=name,
        role="ar",
        device=ar_backend.device_name(settings),
        lease_s=settings.lease_s,
        instance=instance_of(settings, "ar"),
    )
    with heartbeat:
        if not may_begin(heartbeat):
            return
        engine = ar_backend.make(settings, stop)
        patiently(stream.ensure_groups, stop)
        worker = ArWorker(
            engine,
            stream,
            store,
            wiring.stages(settings, client),
            wiring.worker_blobs(settings),
            heartbeat,
            name=name,
            min_distinct=settings.ar_min_distinct,
            watchdog=Watchdog(settings.step_limit_s),
        )
        heartbeat.say("ready")
        while not (stop.is_set() or heartbeat.drained.is_set()):
            worker.step()
        heartbeat.say("stopping")
        while not (worker.idle or stop.is_set()):
            # Drained: there is no hurry to finish.
            worker.step(take=False)
        deadline = time.monotonic() + settings.stop_grace_s
        while not worker.idle and time.monotonic() < deadline:
            worker.step(take=False)
        worker.release_all()
        stream.leave()

"""The AR worker: pulls groups from the stream, decodes them as one batch, hands each row over the moment it is done."""

import threading
import time
from dataclasses import dataclass, replace

import structlog

from app import devices, wiring
from app.ar.engine import ArEngine
from app.ar.request import ArFailure, ArRequest, ArResult
from app.ar.srt import SrtEngine
from app.checkpoint import Checkpoint
from app.domain.job import SEED_LIMIT
from app.domain.messages import Lease, PlanOrder
from app.domain.prior import Plan
from app.errors import ImageFailed, LostLease, Unavailable
from app.queues.ar_stream import ArHint, ArStream
from app.service import Stages
from app.settings import Settings, worker_name
from app.store.jobs import JobStore
from workers.heartbeat import Heartbeat
from workers.process import patiently, stop_on_signals

log = structlog.get_logger(__name__)

#: An idle worker waits this long for the first hint, and then looks whether it should stop.
_BLOCK_MS = 500
#: A busy worker looks for more this often, seconds: often enough for a newcomer, rare enough for the running rows.
_POLL_S = 0.02
#: Pause while Redis does not answer, seconds.
_PAUSE_S = 0.25
#: Added to the seed of a plan that is made once more because it collapsed; any odd constant would do.
_SECOND_SEED = 0x9E3779B9


@dataclass(slots=True)
class _Row:
    """An image that this worker holds: its lease, what the engine was asked, and whether that is the second try."""

    lease: Lease
    request: ArRequest
    second: bool = False


class ArWorker:
    """One batch on one device. The engine's rows are the leases that it holds, plus results not handed over yet."""

    def __init__(
        self,
        engine: ArEngine | SrtEngine,
        stream: ArStream,
        store: JobStore,
        stages: Stages,
        heartbeat: Heartbeat,
        *,
        name: str,
        min_distinct: float,
    ) -> None:
        self._engine = engine
        self._stream = stream
        self._store = store
        self._stages = stages
        self._heartbeat = heartbeat
        self._name = name
        self._min_distinct = min_distinct
        self._rows: dict[str, _Row] = {}
        self._ended: list[ArResult | ArFailure] = []
        self._hints: list[ArHint] = []
        self._claims = 0
        self._polled_at = 0.0

    @property
    def idle(self) -> bool:
        return not self._rows

    def step(self, *, take: bool = True) -> None:
        """Take what fits, decode one token for every row, hand over what is finished."""
        try:
            if take:
                self._take()
            self._hand_over()
        except Unavailable as error:
            log.warning("waiting", error=str(error))
            if not self._engine.running:
                time.sleep(_PAUSE_S)
        self._drop_lost()
        order = list(self._rows)
        # First come, first painted: rows that end at the same step are handed over in the order of their claims.
        for ended in sorted(self._engine.step(), key=lambda each: order.index(each.key)):
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

    def _take(self) -> None:
        free = self._engine.free_slots - len(self._hints)
        idle = not self._engine.running and not self._ended and not self._hints
        if free > 0 and (idle or time.monotonic() - self._polled_at > _POLL_S):
            self._hints += self._stream.read(free) or (self._stream.wait(_BLOCK_MS) if idle else [])
            self._polled_at = time.monotonic()
        while self._hints and self._engine.free_slots:
            hint = self._hints[0]
            self._claims += 1
            order = self._store.claim_plan(hint.ref, entry=hint.entry, token=f"{self._name}/{self._claims}")
            if order is None:
                self._stream.drop(hint)
            # Forgotten only now: a hint whose claim did not get through is tried again.
            self._hints.pop(0)
            if order is not None:
                self._admit(order)

    def _admit(self, order: PlanOrder) -> None:
        key, parameters = f"{order.lease.ref}/{order.lease.fence}", order.parameters
        request = ArRequest(
            key, parameters.prompt, parameters.size, order.seed, parameters.temperature, parameters.top_p
        )
        self._rows[key] = _Row(order.lease, request)
        self._heartbeat.hold(order.lease)
        self._start(request)

    def _start(self, request: ArRequest) -> None:
        try:
            self._ended += self._engine.admit([request])
        except RuntimeError as error:  # torch: out of memory and the like
            log.exception("admission_failed", row=request.key)
            self._ended.append(ArFailure(request.key, "ar_error", f"planning failed: {type(error).__name__}", True))

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
                self._stages.hand_over(lease, Plan(ended.prior))
                log.info("planned", image=str(lease.ref), seconds=round(ended.seconds, 3))
            else:
                failure = ImageFailed(ended.code, ended.message, retryable=ended.retryable)
                state = self._stages.give_up(lease, failure)
                log.warning("ar_failed", image=str(lease.ref), code=ended.code, detail=ended.message, state=state)
        except LostLease:
            log.warning("too_late", image=str(lease.ref), fence=lease.fence)

    def _drop_lost(self) -> None:
        for key, row in list(self._rows.items()):
            if self._heartbeat.lost(row.lease):
                self._engine.evict(key)
                self._forget(key)

    def _forget(self, key: str) -> None:
        if row := self._rows.pop(key, None):
            self._heartbeat.drop(row.lease)


def _device_name(settings: Settings) -> str:
    return "srt" if settings.ar_backend == "srt" else str(devices.pick(settings.device))


def _local_engine(settings: Settings) -> ArEngine:
    devices.limit_threads(settings.threads)
    device = devices.pick(settings.device)
    return ArEngine.load(
        Checkpoint(settings.checkpoint),
        device=device,
        dtype=devices.dtype(settings.dtype, device),
        slots=settings.ar_slots,
        max_prompt_tokens=settings.max_prompt_tokens,
        max_pixels=settings.max_pixels,
    )


def _srt_engine(settings: Settings, stop: threading.Event) -> SrtEngine:
    engine = SrtEngine.load(
        Checkpoint(settings.checkpoint),
        settings.srt_url or "",
        slots=settings.ar_slots,
        batches=settings.srt_batches,
        max_prompt_tokens=settings.max_prompt_tokens,
        timeout_s=settings.srt_timeout_s,
    )
    patiently(engine.check_health, stop)
    return engine


def run(settings: Settings) -> None:
    stop: threading.Event = stop_on_signals()
    name = worker_name("ar")
    client = wiring.worker_client(settings)
    store, stream = wiring.job_store(settings, client), wiring.ar_stream(client, name)
    heartbeat = Heartbeat(
        store, wiring.registry(client), name=name, role="ar", device=_device_name(settings), lease_s=settings.lease_s
    )
    with heartbeat:
        engine = _srt_engine(settings, stop) if settings.ar_backend == "srt" else _local_engine(settings)
        patiently(stream.ensure_groups, stop)
        worker = ArWorker(
            engine,
            stream,
            store,
            wiring.stages(settings, client),
            heartbeat,
            name=name,
            min_distinct=settings.ar_min_distinct,
        )
        heartbeat.say("ready")
        while not stop.is_set():
            worker.step()
        heartbeat.say("stopping")
        deadline = time.monotonic() + settings.stop_grace_s
        while not worker.idle and time.monotonic() < deadline:
            worker.step(take=False)
        worker.release_all()
        stream.leave()

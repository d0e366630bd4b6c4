"""Which engine an AR worker drives: the one in this process, or a remote SGLang server. Both take the same calls."""

import threading

import structlog

from app import devices
from app.ar import orders
from app.ar.engine import ArEngine
from app.ar.model import Decoder
from app.ar.runner import Runner
from app.ar.srt import SrtEngine
from app.ar.weights import Weights
from app.checkpoint import Checkpoint, loading
from app.ranks import Follower, Leader
from app.settings import Settings
from workers import selftest
from workers.process import patiently

log = structlog.get_logger(__name__)

ArBackend = ArEngine | SrtEngine

#: Rows in flight to a remote server when the setting leaves the number open.
_REMOTE_SLOTS = 64


def device_name(settings: Settings) -> str:
    return "srt" if settings.ar_backend == "srt" else str(devices.pick(settings.device, index=settings.device_index))


def _local(settings: Settings) -> ArEngine:
    device, dtype = devices.take(settings, sharers=settings.ar_tp)
    checkpoint = Checkpoint(settings.checkpoint)
    leader = Leader(settings.ar_tp, device, ["ar", "--tp", str(settings.ar_tp)]) if settings.ar_tp > 1 else None
    with loading(checkpoint):
        engine = ArEngine.load(
            checkpoint,
            device=device,
            dtype=dtype,
            slots=settings.ar_slots,
            max_prompt_tokens=settings.max_prompt_tokens,
            max_pixels=settings.max_pixels,
            prefill_chunk=settings.prefill_chunk,
            graph=settings.graph,
            leader=leader,
        )
    selftest.check_attention(device, dtype)
    selftest.check_ar(engine)
    log.info("engine_ready", graph=engine.graph, slots=engine.free_slots, ranks=settings.ar_tp)
    return engine


def follow(settings: Settings, rank: int, port: int) -> None:
    """Be another rank of a worker's engine: do as its rank 0 orders, until that ends."""
    device, dtype = devices.take(settings, sharers=settings.ar_tp)
    checkpoint = Checkpoint(settings.checkpoint)
    follower = Follower(rank, settings.ar_tp, device, port)
    with loading(checkpoint):
        runner = Runner(
            Decoder(Weights.load(checkpoint), device, dtype, ranks=follower),
            slots=settings.ar_slots,
            max_prompt_tokens=settings.max_prompt_tokens,
            max_pixels=settings.max_pixels,
            graph=settings.graph,
            ranks=follower,
        )
    for message in follower.orders():
        runner.run(orders.from_json(message))


def _remote(settings: Settings, stop: threading.Event) -> SrtEngine:
    engine = SrtEngine.load(
        Checkpoint(settings.checkpoint),
        settings.srt_url or "",
        # A remote server has its own memory; here a slot is only a place in a batch.
        slots=settings.ar_slots or _REMOTE_SLOTS,
        batches=settings.srt_batches,
        max_prompt_tokens=settings.max_prompt_tokens,
        timeout_s=settings.srt_timeout_s,
    )
    patiently(engine.check_health, stop)
    return engine


def make(settings: Settings, stop: threading.Event) -> ArBackend:
    """The engine, tried out and ready. Raises Misconfigured, or Unavailable when stopped while the server is away."""
    return _remote(settings, stop) if settings.ar_backend == "srt" else _local(settings)

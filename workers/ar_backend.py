"""Which engine an AR worker drives: the one in this process, or a remote SGLang server. Both take the same calls."""

import threading

from app import devices
from app.ar.engine import ArEngine
from app.ar.srt import SrtEngine
from app.checkpoint import Checkpoint, loading
from app.settings import Settings
from workers import selftest
from workers.process import patiently

ArBackend = ArEngine | SrtEngine

#: Rows in flight to a remote server when the setting leaves the number open.
_REMOTE_SLOTS = 64


def device_name(settings: Settings) -> str:
    return "srt" if settings.ar_backend == "srt" else str(devices.pick(settings.device, index=settings.device_index))


def _local(settings: Settings) -> ArEngine:
    devices.limit_threads(settings.threads)
    device = devices.pick(settings.device, index=settings.device_index)
    dtype = devices.dtype(settings.dtype, device)
    checkpoint = Checkpoint(settings.checkpoint)
    with loading(checkpoint):
        engine = ArEngine.load(
            checkpoint,
            device=device,
            dtype=dtype,
            slots=settings.ar_slots,
            max_prompt_tokens=settings.max_prompt_tokens,
            max_pixels=settings.max_pixels,
            graph=settings.graph,
        )
    selftest.check_attention(device, dtype)
    selftest.check_ar(engine)
    return engine


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

"""Pictures denoised by a group of processes, one a rank, all on this CPU: for comparison with a single process."""

import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.profiler import ProfilerActivity, profile

from app.checkpoint import Checkpoint
from app.dit.engine import DitEngine, Options
from app.dit.parallel import Stopped
from app.dit.request import PaintRequest
from app.ranks import Ranks

_HOST = "127.0.0.1"
#: Forked from a process that has imported torch once, since that takes longer than the work.
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload([__name__])


@dataclass(frozen=True, slots=True)
class Share:
    """What one rank ends with. `latents`: [1, channels, height, width] by request, None for one that was stopped."""

    latents: list[NDArray[np.float32] | None]
    #: Steps begun by request.
    steps: list[int]
    #: Bytes of activations at the peak of the first request.
    peak_bytes: int


class _Cancelled(Exception):
    """Raised in the first rank alone, as a worker's lost lease is."""


def denoise(
    checkpoint: Checkpoint, requests: Sequence[PaintRequest], options: Options, *, cancel_after: int | None = None
) -> list[Share]:
    """Let the ranks of `options.layout` denoise; the first one cancels each picture after step `cancel_after`."""
    size = options.layout.ranks
    store = TCPStore(_HOST, 0, size, is_master=True, wait_for_workers=False)
    with ProcessPoolExecutor(size, mp_context=_FORKS) as pool:
        orders = [request.to_json() for request in requests]
        ranks = [
            pool.submit(_rank, rank, store.port, checkpoint, orders, options, cancel_after) for rank in range(size)
        ]
        return [rank.result() for rank in ranks]


def peak_bytes(call: Any) -> int:  # noqa: ANN401
    """The most memory that is held at once of what `call()` allocates on this CPU."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        call()
    events = recorded.profiler.kineto_results.events()
    held = peak = 0
    for event in sorted((e for e in events if e.name() == "[memory]"), key=lambda e: e.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak


def _rank(
    rank: int,
    port: int,
    checkpoint: Checkpoint,
    orders: list[dict[str, Any]],
    options: Options,
    cancel_after: int | None,
) -> Share:
    torch.set_num_threads(1)
    size = options.layout.ranks
    ranks = Ranks(rank, size, torch.device("cpu"), TCPStore(_HOST, port, size, is_master=False))
    engine = DitEngine.load(
        checkpoint, device=torch.device("cpu"), dtype=torch.float32, options=options, ranks=ranks if size > 1 else None
    )
    requests = [PaintRequest.from_json(order) for order in orders]
    latents: list[NDArray[np.float32] | None] = []
    steps = []
    for request in requests:
        begun = 0

        def on_step(step: int) -> None:
            nonlocal begun
            begun = step
            if rank == 0 and step == cancel_after:
                raise _Cancelled

        try:
            latents.append(engine.denoise(request, on_step).numpy())
        except (_Cancelled, Stopped):
            latents.append(None)
        steps.append(begun)
    peak = peak_bytes(lambda: engine.denoise(requests[0], lambda step: None))
    dist.destroy_process_group()
    return Share(latents, steps, peak)

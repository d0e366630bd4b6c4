"""Pictures denoised by a group of processes, one a rank, all on this CPU: for comparison with a single process."""

import ctypes
import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from app import devices
from app.checkpoint import Checkpoint
from app.dit.engine import DitEngine, Options
from app.dit.parallel import Stopped
from app.dit.request import PaintRequest
from app.ranks import Ranks

_M_MMAP_THRESHOLD = -3
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
    #: Bytes of activations at the peak of a step of the first request.
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


def peak_bytes(call: Callable[[], object]) -> int:
    """How far `call()` raises this process's resident memory at its peak; Linux with glibc.

    For a process of its own: from now on its allocator gives memory back at once, which costs time.
    """
    library = ctypes.CDLL(None)
    library.mallopt(_M_MMAP_THRESHOLD, 64 * 1024)
    library.malloc_trim(0)
    host = torch.device("cpu")
    devices.reset_peak(host)
    before = devices.peak_bytes(host)
    call()
    return devices.peak_bytes(host) - before


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
    peak = 0
    if requests:
        one = replace(requests[0], steps=1)
        peak = peak_bytes(lambda: engine.denoise(one, lambda step: None))
    dist.destroy_process_group()
    return Share(latents, steps, peak)

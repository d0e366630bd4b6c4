"""The engine of a DiT worker as the settings want it: alone, or as the leader or a follower of a group of devices."""

import os

import torch

from app import devices
from app.checkpoint import Checkpoint, loading
from app.dit.engine import DitEngine, Options
from app.dit.parallel import Layout
from app.ranks import Follower, Leader, Ranks
from app.settings import Settings

#: How a follower is started; its settings are those of its leader's environment.
_COMMAND = ("dit",)


def load(settings: Settings, checkpoint: Checkpoint, device: torch.device) -> DitEngine:
    """Start the group, if there is one, and have a first picture painted. Raises Misconfigured."""
    layout = _layout(settings)
    _limit_threads(settings, layout, device)
    leader = Leader(layout.ranks, device, _COMMAND) if layout.ranks > 1 else None
    engine = _engine(settings, checkpoint, device, leader)
    engine.warm_up()
    return engine


def follow(settings: Settings, rank: int, port: int) -> None:
    """Be one of the group's other ranks until its leader ends."""
    layout, device, checkpoint = _layout(settings), devices.pick(settings.device), Checkpoint(settings.checkpoint)
    _limit_threads(settings, layout, device)
    ranks = Follower(rank, layout.ranks, device, port)
    with loading(checkpoint):
        engine = _engine(settings, checkpoint, device, ranks)
    engine.follow(ranks)


def _layout(settings: Settings) -> Layout:
    return Layout(settings.dit_sp, settings.dit_cfg_parallel)


def _limit_threads(settings: Settings, layout: Layout, device: torch.device) -> None:
    threads = settings.threads
    if layout.ranks > 1 and device.type == "cpu":  # ranks share the host's cores
        threads = threads or max(1, len(os.sched_getaffinity(0)) // layout.ranks)
    devices.limit_threads(threads)


def _engine(settings: Settings, checkpoint: Checkpoint, device: torch.device, ranks: Ranks | None) -> DitEngine:
    options = Options(
        step_cache=settings.step_cache,
        compile=settings.dit_compile,
        tile_pixels=settings.vae_tile_pixels,
        layout=_layout(settings),
    )
    dtype = devices.dtype(settings.dtype, device)
    return DitEngine.load(checkpoint, device=device, dtype=dtype, options=options, ranks=ranks)

"""The engine of a DiT worker as the settings want it: alone, or as the leader or a follower of a group of devices."""

import torch

from app import devices
from app.checkpoint import Checkpoint
from app.dit.engine import DitEngine, Options
from app.dit.parallel import Layout
from app.ranks import Follower, Leader, Ranks
from app.settings import Settings

#: How a follower is started; its settings are those of its leader's environment.
_COMMAND = ("dit",)


def load(settings: Settings, checkpoint: Checkpoint, device: torch.device) -> DitEngine:
    """Start the group, if there is one, and have a first picture painted. Raises Misconfigured."""
    layout = _layout(settings)
    leader = Leader(layout.ranks, device, _COMMAND) if layout.ranks > 1 else None
    engine = _engine(settings, checkpoint, device, leader)
    engine.warm_up()
    return engine


def follow(settings: Settings, rank: int, port: int) -> None:
    """Be one of the group's other ranks until its leader ends."""
    devices.limit_threads(settings.threads)
    device = devices.pick(settings.device)
    ranks = Follower(rank, _layout(settings).ranks, device, port)
    _engine(settings, Checkpoint(settings.checkpoint), device, ranks).follow(ranks)


def _layout(settings: Settings) -> Layout:
    return Layout(settings.sp, settings.cfg_parallel)


def _engine(settings: Settings, checkpoint: Checkpoint, device: torch.device, ranks: Ranks | None) -> DitEngine:
    options = Options(
        step_cache=settings.step_cache,
        compile=settings.dit_compile,
        tile_pixels=settings.vae_tile_pixels,
        layout=_layout(settings),
    )
    dtype = devices.dtype(settings.dtype, device)
    return DitEngine.load(checkpoint, device=device, dtype=dtype, options=options, ranks=ranks)

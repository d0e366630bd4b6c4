"""The engine of a DiT worker as the settings want it: alone, or as the leader or a follower of a group of devices."""

import torch

from app import devices
from app.checkpoint import Checkpoint, loading
from app.dit.engine import DitEngine, Options
from app.dit.parallel import Layout
from app.ranks import Follower, Leader, Ranks
from app.settings import Settings
from workers import selftest

#: How a follower is started; its settings are those of its leader's environment.
_COMMAND = ("dit",)


def load(settings: Settings) -> DitEngine:
    """Start the group, if there is one; the engine, warmed up and tried out. Raises Misconfigured."""
    layout, checkpoint = _layout(settings), Checkpoint(settings.checkpoint)
    device, dtype = devices.take(settings, sharers=layout.ranks)
    leader = Leader(layout.ranks, device, _COMMAND) if layout.ranks > 1 else None
    with loading(checkpoint):
        engine = _engine(settings, checkpoint, device, dtype, leader)
    selftest.check_attention(device, dtype)
    selftest.check_dit(engine)
    engine.warm_up()
    return engine


def follow(settings: Settings, rank: int, port: int) -> None:
    """Be one of the group's other ranks until its leader ends."""
    layout, checkpoint = _layout(settings), Checkpoint(settings.checkpoint)
    device, dtype = devices.take(settings, sharers=layout.ranks)
    ranks = Follower(rank, layout.ranks, device, port)
    with loading(checkpoint):
        engine = _engine(settings, checkpoint, device, dtype, ranks)
    engine.follow(ranks)


def _layout(settings: Settings) -> Layout:
    return Layout(settings.dit_sp, settings.dit_cfg_parallel)


def _engine(
    settings: Settings, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype, ranks: Ranks | None
) -> DitEngine:
    options = Options(
        step_cache=settings.step_cache,
        compile=settings.dit_compile,
        tile_pixels=settings.vae_tile_pixels,
        layout=_layout(settings),
    )
    return DitEngine.load(checkpoint, device=device, dtype=dtype, options=options, ranks=ranks)

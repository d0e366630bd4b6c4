"""One picture on several devices: its tokens over `sp` ranks, its two CFG branches over two such groups."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from diffusers import GlmImageTransformer2DModel

from app.dit.ulysses import Ulysses
from app.ranks import Ranks


@dataclass(frozen=True, slots=True)
class Layout:
    """How many devices share a picture. The default is one, and then there is no group."""

    sp: int = 1
    cfg_parallel: bool = False

    @property
    def ranks(self) -> int:
        return self.sp * (2 if self.cfg_parallel else 1)


SINGLE = Layout()


class Stopped(Exception):
    """The ranks have agreed to stop the picture; the cause is the error of the rank that wanted it."""


class Parallel:
    """This rank's place in a group. Ranks 0..sp-1 compute the conditional branch, the next sp the other one."""

    def __init__(self, ranks: Ranks, layout: Layout, transformer: GlmImageTransformer2DModel) -> None:
        """Every rank of the group calls it. Raises Misconfigured when the model cannot be shared so."""
        self._ranks = ranks
        #: 0: conditional, 1: unconditional, None: this rank computes both.
        self.branch = ranks.rank // layout.sp if layout.cfg_parallel else None
        self._pair: dist.ProcessGroup | None = None
        self._ulysses: Ulysses | None = None
        # All ranks make all groups, in one order, also those that they are not in.
        branches = [list(range(start, start + layout.sp)) for start in range(0, layout.ranks, layout.sp)]
        if layout.sp > 1:
            groups = [dist.new_group(members) for members in branches]
            self._ulysses = Ulysses(transformer, groups[ranks.rank // layout.sp])
        if layout.cfg_parallel:
            pairs = [dist.new_group(list(members)) for members in zip(*branches, strict=True)]
            self._pair = pairs[ranks.rank % layout.sp]

    def share(self, by_patch: torch.Tensor, dimension: int) -> torch.Tensor:
        """What this rank needs of a tensor that has one row for each patch."""
        return by_patch if self._ulysses is None else self._ulysses.share(by_patch, dimension)

    def both(self, flow: torch.Tensor) -> list[torch.Tensor]:
        """The conditional and the unconditional prediction, of which this rank has made one."""
        flows = flow.new_empty((2, *flow.shape[1:]))
        dist.all_gather_single(flows, flow.contiguous(), group=self._pair)
        return [flows[:1], flows[1:]]

    def step(self, on_step: Callable[[int], None]) -> Callable[[int], None]:
        """`on_step` for all ranks together: what it raises on one of them stops all after the same step, by Stopped."""

        def on_step_of_all(step: int) -> None:
            error: BaseException | None = None
            try:
                on_step(step)
            except BaseException as raised:  # the others must not be left waiting, whatever it is
                error = raised
            if not self._ranks.least(0 if error else 1):
                raise Stopped from error

        return on_step_of_all

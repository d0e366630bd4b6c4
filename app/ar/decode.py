"""One decode step of all rows, from the tokens drawn last to the tokens drawn next."""

import torch

from app.ar.kv_cache import BLOCK, KvCache
from app.ar.model import Decoder
from app.ar.rows import RowState


class DecodeStep:
    """The part of a step that runs on the device: forward pass, draw and count, all in memory allocated once.

    It branches on no value and nothing in it waits for the device, so that `app.ar.graphs` can compile or capture the
    whole of it. Two numbers give its shape: the rows, and the positions that attention looks at.
    """

    def __init__(self, decoder: Decoder, cache: KvCache, state: RowState) -> None:
        self.device = decoder.device
        self.most_rows = cache.slots.shape[0]
        self.most_seen = cache.capacity
        self.decoder = decoder
        self._cache = cache
        self._state = state

    def shape(self, rows: int, longest: int) -> tuple[torch.Tensor, torch.Tensor]:
        """What to call it with for the slots 0..rows-1 when the longest of them holds so many positions."""
        seen = -(-(longest + 1) // BLOCK) * BLOCK
        return self._cache.slots[:rows], self._cache.positions[:seen]

    def __call__(self, slots: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits [rows, codes] and the rows [rows] bool whose token `RowState.draw_again` must draw."""
        state, rows = self._state, slots.shape[0]
        step = state.step[:rows]
        logits = self.decoder.decode(
            state.fed[:rows], state.rotary[slots, step], state.prompt[:rows] + step, slots, positions, self._cache
        )
        return logits, state.draw(logits, slots)

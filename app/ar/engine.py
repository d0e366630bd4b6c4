"""The AR engine: continuous batching of prompts of any length and pictures of any size, one decode step at a time."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

import torch

from app.ar.kv_cache import KvCache
from app.ar.model import Decoder, load_processor
from app.ar.prompt import PromptEncoder, decode_positions
from app.ar.request import ArFailure, ArRequest, ArResult
from app.ar.rows import RowState
from app.ar.sampler import draw_ahead, sampling_parameters
from app.checkpoint import AR_PARTS, Checkpoint
from app.domain.prior import PriorTokens
from app.domain.sizes import CELL, MAX_SIDE, Size
from app.errors import ImageFailed

#: A batch is filled up to a multiple of this many rows. On a CPU (MKL, float32) one row of a matrix product has the
#: same bits for every row count that is a multiple of 4, whatever the thread count; 1, 2 and 3 rows take other kernels
#: and differ in the last bit, and with more threads so do 5, 6, 7, 9, ... A last bit can flip a draw, and the draws
#: after it. The other operations of a step work row by row; see also `BLOCK` of the KV cache.
_ROW_BLOCK = 4
#: Steps between looks at the rows' NaN flags; each look waits for the device.
_CHECK_EVERY = 64


@dataclass(slots=True)
class _Row:
    """A running row, as the host knows it. The row at index i of the engine's list is in slot i."""

    request: ArRequest
    prompt_tokens: int
    preview_tokens: int
    total_tokens: int
    drawn: int = 1  # the first token comes from the prompt's logits
    started: float = field(default_factory=time.monotonic)

    @property
    def length(self) -> int:
        """Positions that its slot holds: the last token drawn is not stored yet."""
        return self.prompt_tokens + self.drawn - 1


class ArEngine:
    """Rows join at any step and leave at the step that draws their last token. Not thread-safe.

    A row's tokens are those of its request alone. In float32 on a CPU that is exact; in half precision on a device,
    kernels that change with the batch can flip a last bit and with it, rarely, a token.
    """

    def __init__(
        self, decoder: Decoder, prompts: PromptEncoder, *, slots: int, max_prompt_tokens: int, max_pixels: int
    ) -> None:
        self._decoder = decoder
        self._prompts = prompts
        self._slots = slots
        self._max_prompt_tokens = max_prompt_tokens
        self._max_pixels = max_pixels
        self._rows: list[_Row] = []
        self._steps = 0
        tokens = most_tokens(max_pixels)
        filled = _filled(slots)
        self._cache = KvCache(
            layers=decoder.layer_count,
            slots=filled,
            kv_heads=decoder.kv_heads,
            capacity=max_prompt_tokens + tokens,
            head_dim=decoder.head_dim,
            device=decoder.device,
            dtype=decoder.dtype,
        )
        rotary_dim = decoder.rotary(torch.zeros((3, 1))).shape[-1]
        self._state = RowState(
            slots=filled, tokens=tokens, rotary_dim=rotary_dim, device=decoder.device, dtype=decoder.dtype
        )

    @classmethod
    def load(
        cls,
        checkpoint: Checkpoint,
        *,
        device: torch.device,
        dtype: torch.dtype,
        slots: int,
        max_prompt_tokens: int,
        max_pixels: int,
    ) -> Self:
        """Load a checkpoint and allocate every slot for the longest prompt (with its template) and largest picture.

        Raises BrokenCheckpoint for missing or damaged files.
        """
        checkpoint.verify(AR_PARTS)
        decoder = Decoder.load(checkpoint, device=device, dtype=dtype)
        prompts = PromptEncoder(load_processor(checkpoint))
        return cls(decoder, prompts, slots=slots, max_prompt_tokens=max_prompt_tokens, max_pixels=max_pixels)

    @property
    def free_slots(self) -> int:
        return self._slots - len(self._rows)

    @property
    def running(self) -> tuple[str, ...]:
        """The keys of the running rows."""
        return tuple(row.request.key for row in self._rows)

    @torch.inference_mode()
    def admit(self, requests: Sequence[ArRequest]) -> list[ArFailure]:
        """Start a row for each request that can be planned; returns the others, which take no slot.

        Raises ValueError, before anything starts, for more requests than free slots or a key that is running.
        """
        keys = [*self.running, *(request.key for request in requests)]
        if len(keys) > self._slots or len(set(keys)) < len(keys):
            raise ValueError(f"cannot admit {len(requests)} requests: {self.free_slots} slots are free, keys {keys}")
        refused = []
        for request in requests:
            try:
                self._start(request, self._ids(request))
            except ImageFailed as error:
                refused.append(ArFailure(request.key, error.code, error.message, error.retryable))
        return refused

    @torch.inference_mode()
    def step(self) -> list[ArResult | ArFailure]:
        """Draw one more token of every row; returns the rows that are done with it, and those whose logits broke.

        There is no end token to wait for: a row is done when its grids are full. After an exception (memory ran out,
        the device is lost) the engine must not be used again.
        """
        if not self._rows:
            return []
        rows, state = _filled(len(self._rows)), self._state
        longest = max(row.length for row in self._rows)
        logits = self._decoder.decode(
            state.fed[:rows], state.next_rotary(rows), state.length[:rows], longest, self._cache
        )
        state.advance(rows)
        state.draw(logits, first=0)
        for row in self._rows:
            row.drawn += 1
        self._steps += 1
        return self._ended()

    @torch.inference_mode()
    def evict(self, key: str) -> None:
        """Stop a row without a result. A key that is not running is no error: the row may just have ended."""
        for slot, row in enumerate(self._rows):
            if row.request.key == key:
                self._release(slot)
                return

    def _ids(self, request: ArRequest) -> list[int]:
        if request.size.pixels > self._max_pixels:
            raise ImageFailed("size_too_large", f"the picture must have at most {self._max_pixels} pixels")
        try:
            ids = self._prompts.encode(request.prompt, request.size)
        except UnicodeEncodeError:
            raise ImageFailed("invalid_prompt", "the prompt is not valid Unicode text") from None
        if len(ids) > self._max_prompt_tokens:
            raise ImageFailed(
                "prompt_too_long", f"the prompt takes {len(ids)} tokens of at most {self._max_prompt_tokens}"
            )
        return ids

    def _start(self, request: ArRequest, ids: list[int]) -> None:
        slot, length = len(self._rows), len(ids)
        positions = decode_positions(length, request.size)
        ramp = torch.arange(length).expand(3, length)
        rotary = self._decoder.rotary(torch.cat((ramp, positions), dim=1))
        total = positions.shape[1]
        temperature, top_p = sampling_parameters(request.temperature, request.top_p)
        row = _Row(request, length, request.size.preview_grid.tokens, total)
        try:
            logits = self._decoder.prefill(ids, rotary[:length], self._cache, slot)
            self._state.start(
                slot,
                length=length,
                temperature=temperature,
                top_p=top_p,
                uniform=draw_ahead(request.seed, total),
                rotary=rotary[length:],
            )
            self._state.draw(logits, first=slot)
        except BaseException:  # memory may have run out; the slot must not keep half a row
            self._state.retire(slot)
            self._cache.clear(slot, length)
            raise
        self._rows.append(row)

    def _ended(self) -> list[ArResult | ArFailure]:
        complete = [row.drawn == row.total_tokens for row in self._rows]
        if not any(complete) and self._steps % _CHECK_EVERY:
            return []
        broken = self._state.broken[: len(self._rows)].tolist()
        ended: list[ArResult | ArFailure] = []
        for slot in reversed(range(len(self._rows))):  # from the end: a release moves the last row into the gap
            if broken[slot]:
                key = self._rows[slot].request.key
                ended.append(ArFailure(key, "nan_output", "the AR model's output was not a number", retryable=True))
            elif complete[slot]:
                ended.append(self._result(slot))
            else:
                continue
            self._release(slot)
        return ended

    def _result(self, slot: int) -> ArResult:
        row = self._rows[slot]
        ids = self._state.tokens[slot, row.preview_tokens : row.total_tokens].tolist()
        prior = PriorTokens(row.request.size.large_grid, tuple(ids))
        return ArResult(row.request.key, prior, time.monotonic() - row.started)

    def _release(self, slot: int) -> None:
        """Free a slot and move the last row into it, so that the running rows stay the first ones."""
        last = len(self._rows) - 1
        if slot != last:
            self._cache.clear(slot, self._rows[slot].length)
            self._cache.move(last, slot, self._rows[last].length)
            self._state.move(last, slot)
        self._cache.clear(last, self._rows[last].length)
        self._state.retire(last)
        self._rows[slot] = self._rows[last]
        self._rows.pop()


def most_tokens(max_pixels: int) -> int:
    """The most tokens, preview and large grid, that a picture of at most this area takes.

    Sides are rounded up to whole cells, so that the most is more than `max_pixels` cells would give.
    """
    shortest = range(1, MAX_SIDE + 1, CELL)  # of the heights that share a number of cells, the least area
    sizes = [Size(min(MAX_SIDE, max_pixels // height), height) for height in shortest if height <= max_pixels]
    return max(size.preview_grid.tokens + size.large_grid.tokens for size in sizes)


def _filled(rows: int) -> int:
    return -(-rows // _ROW_BLOCK) * _ROW_BLOCK

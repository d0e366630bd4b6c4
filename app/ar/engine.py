"""The AR engine: continuous batching of prompts of any length and pictures of any size, one decode step at a time."""

import time
from collections.abc import Sequence
from typing import Self

import torch

from app.ar.condition import ImageTokenizer
from app.ar.decode import DecodeStep
from app.ar.graphs import Graph, prepare
from app.ar.kv_cache import KvCache
from app.ar.model import Decoder, load_model, load_processor
from app.ar.opening import Opener, Opening
from app.ar.prompt import PromptEncoder
from app.ar.request import ArFailure, ArRequest, ArResult
from app.ar.rows import Row, RowState
from app.ar.sampler import draw_ahead, sampling_parameters
from app.ar.slots import count, filled, most_tokens, slot_bytes
from app.checkpoint import AR_PARTS, Checkpoint
from app.domain.prior import PriorTokens
from app.errors import ImageFailed

#: Steps between looks at the rows' NaN flags; each look waits for the device.
_CHECK_EVERY = 64


class ArEngine:
    """Rows join at any step and leave at the step that draws their last token. Not thread-safe.

    A row's tokens are those of its request alone. In float32 on a CPU that is exact; in half precision on a device,
    kernels that change with the batch can flip a last bit and with it, rarely, a token.
    """

    def __init__(
        self,
        decoder: Decoder,
        prompts: PromptEncoder,
        images: ImageTokenizer,
        *,
        slots: int,
        max_prompt_tokens: int,
        max_pixels: int,
        graph: Graph = "off",
    ) -> None:
        """Allocate every slot for the longest prompt (with its template) and the largest picture; 0 slots: what fits.

        Raises Misconfigured when they do not fit, or when the decode step cannot be run as `graph` says.
        """
        self._decoder = decoder
        self._prompts = prompts
        self._rows: list[Row] = []
        self._steps = 0
        tokens = most_tokens(max_pixels)
        one = slot_bytes(
            layers=decoder.layer_count,
            kv_heads=decoder.kv_heads,
            head_dim=decoder.head_dim,
            rotary_dim=decoder.rotary_dim,
            max_prompt_tokens=max_prompt_tokens,
            max_pixels=max_pixels,
            dtype=decoder.dtype,
        )
        self._slots = count(slots, one, decoder.device)
        self._cache = KvCache(
            layers=decoder.layer_count,
            slots=filled(self._slots),
            kv_heads=decoder.kv_heads,
            capacity=max_prompt_tokens + tokens,
            head_dim=decoder.head_dim,
            device=decoder.device,
            dtype=decoder.dtype,
        )
        self._state = RowState(
            slots=filled(self._slots),
            tokens=tokens,
            rotary_dim=decoder.rotary_dim,
            device=decoder.device,
            dtype=decoder.dtype,
        )
        self._opener = Opener(
            prompts,
            images,
            max_prompt_tokens=max_prompt_tokens,
            max_pixels=max_pixels,
            capacity=max_prompt_tokens + tokens,
        )
        with torch.inference_mode():
            self.graph, self._decode = prepare(DecodeStep(decoder, self._cache, self._state), graph)

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
        graph: Graph = "off",
    ) -> Self:
        """Read a checkpoint; the rest is as said above. Raises BrokenCheckpoint for missing or damaged files."""
        checkpoint.verify(AR_PARTS)
        model = load_model(checkpoint, dtype)
        return cls(
            Decoder(model, device),
            PromptEncoder(load_processor(checkpoint)),
            ImageTokenizer(model, device),
            slots=slots,
            max_prompt_tokens=max_prompt_tokens,
            max_pixels=max_pixels,
            graph=graph,
        )

    @property
    def free_slots(self) -> int:
        return self._slots - len(self._rows)

    @property
    def running(self) -> tuple[str, ...]:
        """The keys of the running rows."""
        return tuple(row.request.key for row in self._rows)

    def drawn(self, key: str) -> tuple[int, ...]:
        """The tokens of a running row so far, preview grid first."""
        slot = self.running.index(key)
        return tuple(self._state.tokens[slot, : self._rows[slot].drawn].tolist())

    def bytes_per_step(self, rows: int, positions: int) -> int:
        """Bytes that a step must read at least: the weights, and the keys and values of so many rows and positions."""
        return self._decoder.weight_bytes + rows * positions * self._cache.bytes_per_position

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
                self._start(request, self._opener.read(request))
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
        longest = max(row.length for row in self._rows)
        logits, short = self._decode(len(self._rows), longest)
        if self._decoder.device.type == "cpu" and bool(short.any()):  # only there a nucleus can be larger than its head
            self._state.draw_again(logits, short)
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

    def _start(self, request: ArRequest, opening: Opening) -> None:
        slot, length = len(self._rows), len(opening.ids)
        rotary = self._decoder.rotary(opening.positions)
        temperature, top_p = sampling_parameters(request.temperature, request.top_p)
        row = Row(request, opening)
        try:
            logits = self._decoder.prefill(opening.ids, rotary[:length], self._cache, slot)
            self._state.start(
                slot,
                length=length,
                temperature=temperature,
                top_p=top_p,
                uniform=draw_ahead(request.seed, opening.total_tokens),
                rotary=rotary[length:],
            )
            self._state.draw_first(logits, slot)
        except BaseException:  # memory may have run out; the slot must not keep half a row
            self._state.retire(slot)
            self._cache.clear(slot, length)
            raise
        self._rows.append(row)

    def _ended(self) -> list[ArResult | ArFailure]:
        # More than all: an edit of a single cell has its one token from the prompt.
        complete = [row.drawn >= row.opening.total_tokens for row in self._rows]
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
        ids = self._state.tokens[slot, row.opening.preview_tokens : row.opening.total_tokens].tolist()
        prior = PriorTokens(row.request.size.large_grid, tuple(ids))
        return ArResult(row.request.key, prior, time.monotonic() - row.started, row.opening.condition)

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

"""One rank's device: its share of the model, the KV slots, the rows' state. It does as the engine on rank 0 orders."""

import torch

from app.ar.decode import DecodeStep
from app.ar.graphs import Graph, prepare
from app.ar.kv_cache import KvCache
from app.ar.model import Decoder
from app.ar.orders import Abandon, Decode, Order, Prefill, Release, Start
from app.ar.rows import RowState
from app.ar.sampler import draw_ahead, sampling_parameters
from app.ar.slots import count, filled, most_tokens, slot_bytes
from app.ranks import Ranks


class Runner:
    """All memory is allocated here, once. The running rows hold the first slots; one row more may be opening.

    The prompt of the row that is opening is read part by part into the last slot. There it may fill up the others'
    batch: see `_prefill`.
    """

    def __init__(
        self,
        decoder: Decoder,
        *,
        slots: int,
        max_prompt_tokens: int,
        max_pixels: int,
        graph: Graph,
        ranks: Ranks | None = None,
    ) -> None:
        """Raises Misconfigured when the slots do not fit, or when the decode step cannot be run as `graph` says."""
        self.decoder = decoder
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
        fit = count(slots, one, decoder.device, sharers=ranks.size if ranks else 1)
        self.slots = ranks.least(fit) if ranks else fit
        self.cache = KvCache(
            layers=decoder.layer_count,
            slots=filled(self.slots),
            kv_heads=decoder.kv_heads,
            capacity=max_prompt_tokens + tokens,
            head_dim=decoder.head_dim,
            device=decoder.device,
            dtype=decoder.dtype,
        )
        self.state = RowState(
            slots=filled(self.slots),
            tokens=tokens,
            rotary_dim=decoder.rotary_dim,
            device=decoder.device,
            dtype=decoder.dtype,
        )
        self._opening = self.slots - 1
        self._last_hidden = torch.empty(0)
        with torch.inference_mode():
            self.graph, self._step = prepare(DecodeStep(decoder, self.cache, self.state), graph, ranks)

    @torch.inference_mode()
    def run(self, order: Order) -> None:
        match order:
            case Decode():
                self._decode(order)
            case Prefill():
                self._prefill(order)
            case Start():
                self._start(order)
            case Abandon():
                self._empty(order.slot, order.length)
                self._empty(self._opening, order.length)
            case Release():
                self._release(order)

    def _prefill(self, order: Prefill) -> None:
        slot = self._opening
        rotary = self.decoder.rotary(torch.tensor(order.positions))
        self._last_hidden = self.decoder.prefill(order.ids, order.first, rotary, self.cache, slot)
        # As a line that fills the batch up it stores a key of its own at each step: where the next part goes.
        self.state.prompt[slot] = order.first + len(order.ids)

    def _start(self, order: Start) -> None:
        if order.slot != self._opening:
            self.cache.move(self._opening, order.slot, order.length)
            self._empty(self._opening, order.length)
        temperature, top_p, top_k = sampling_parameters(order.temperature, order.top_p, order.top_k)
        self.state.start(
            order.slot,
            length=order.length,
            temperature=temperature,
            top_p=top_p,
            top_k=top_k,
            uniform=draw_ahead(order.seed, len(order.positions[0])),
            rotary=self.decoder.rotary(torch.tensor(order.positions)),
        )
        self.state.draw_first(self.decoder.logits(self._last_hidden), order.slot)

    def _decode(self, order: Decode) -> None:
        logits, short = self._step(order.rows, order.longest)
        if self.decoder.device.type == "cpu" and bool(short.any()):  # only there a nucleus can be larger than its head
            self.state.draw_again(logits, short)

    def _release(self, order: Release) -> None:
        if order.slot != order.last:
            self.cache.clear(order.slot, order.length)
            self.cache.move(order.last, order.slot, order.last_length)
            self.state.move(order.last, order.slot)
        self._empty(order.last, order.last_length)

    def _empty(self, slot: int, length: int) -> None:
        self.cache.clear(slot, length + 1)  # one more: what a line that fills up has stored
        self.state.retire(slot)

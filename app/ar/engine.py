"""The AR engine: continuous batching of prompts of any length and pictures of any size, one decode step at a time."""

from collections import deque
from collections.abc import Sequence
from typing import Self

import structlog
import torch

from app.ar.condition import ImageTokenizer
from app.ar.graphs import Graph
from app.ar.model import Decoder, load_processor
from app.ar.opening import Opener
from app.ar.orders import Abandon, Decode, Order, Prefill, Release, Start, to_json
from app.ar.prompt import PromptEncoder
from app.ar.request import ArFailure, ArRequest, ArResult
from app.ar.rows import Row
from app.ar.runner import Runner
from app.ar.slots import most_tokens
from app.ar.weights import Weights
from app.checkpoint import AR_PARTS, Checkpoint
from app.domain.prior import PriorTokens
from app.errors import ImageFailed
from app.ranks import Leader
from app.traces import told

log = structlog.get_logger(__name__)

#: Steps between looks at the rows' NaN flags; each look waits for the device.
_CHECK_EVERY = 64


class ArEngine:
    """Rows join at any step and leave at the step that draws their last token. Not thread-safe.

    A row's tokens are those of its request alone. In float32 on a CPU that is exact; in half precision on a device,
    kernels that change with the batch can flip a last bit and with it, rarely, a token.
    """

    def __init__(
        self,
        runner: Runner,
        prompts: PromptEncoder,
        images: ImageTokenizer,
        *,
        max_prompt_tokens: int,
        max_pixels: int,
        prefill_chunk: int,
        leader: Leader | None = None,
    ) -> None:
        """`prefill_chunk`: the most prompt tokens that are read in one step."""
        self._runner = runner
        self._leader = leader
        self._chunk = prefill_chunk
        self._opener = Opener(
            prompts,
            images,
            max_prompt_tokens=max_prompt_tokens,
            max_pixels=max_pixels,
            capacity=max_prompt_tokens + most_tokens(max_pixels),
        )
        self._waiting: deque[Row] = deque()
        self._rows: list[Row] = []
        self._steps = 0

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
        prefill_chunk: int = 512,
        graph: Graph = "off",
        leader: Leader | None = None,
    ) -> Self:
        """Read a checkpoint, and allocate every slot for the longest prompt (with its template) and largest picture.

        0 slots: what fits. Raises BrokenCheckpoint for missing or damaged files, and Misconfigured when the slots do
        not fit, the model cannot be shared by so many ranks, or the step cannot be run as `graph` says.
        """
        checkpoint.verify(AR_PARTS)
        weights = Weights.load(checkpoint)
        runner = Runner(
            Decoder(weights, device, dtype, ranks=leader),
            slots=slots,
            max_prompt_tokens=max_prompt_tokens,
            max_pixels=max_pixels,
            graph=graph,
            ranks=leader,
        )
        return cls(
            runner,
            PromptEncoder(load_processor(checkpoint)),
            ImageTokenizer(weights, device, dtype),
            max_prompt_tokens=max_prompt_tokens,
            max_pixels=max_pixels,
            prefill_chunk=prefill_chunk,
            leader=leader,
        )

    @property
    def graph(self) -> str:
        """What the graph setting became."""
        return self._runner.graph

    @property
    def free_slots(self) -> int:
        return self._runner.slots - len(self._rows) - len(self._waiting)

    @property
    def running(self) -> tuple[str, ...]:
        """The keys of the rows, those whose prompts are still to be read last."""
        return tuple(row.key for row in (*self._rows, *self._waiting))

    @property
    def unread(self) -> int:
        """Prompt tokens of admitted rows that are still to be read."""
        return sum(len(row.opening.ids) - row.read for row in self._waiting)

    def drawn(self, key: str) -> tuple[int, ...]:
        """The tokens of a row so far, preview grid first."""
        for slot, row in enumerate(self._rows):
            if row.key == key:
                return tuple(self._runner.state.tokens[slot, : row.drawn].tolist())
        return ()

    def bytes_per_step(self, rows: int, positions: int) -> int:
        """Bytes that a step must read at least: the weights, and the keys and values of so many rows and positions."""
        return self._runner.decoder.weight_bytes + rows * positions * self._runner.cache.bytes_per_position

    @torch.inference_mode()
    def open(self, request: ArRequest) -> Row:
        """What a request starts from: its ids, for an edit those of its images. Raises ImageFailed.

        Alone among the calls it may come from another thread, so that running rows need not wait for the images.
        """
        return Row(request, self._opener.read(request))

    def admit(self, requests: Sequence[ArRequest | Row]) -> list[ArFailure]:
        """Take those that can be planned, opened or not; their prompts are read in the next steps. Returns the others.

        Raises ValueError, before anything starts, for more requests than free slots or a key that is running.
        """
        keys = [*self.running, *(request.key for request in requests)]
        if len(keys) > self._runner.slots or len(set(keys)) < len(keys):
            raise ValueError(f"cannot admit {len(requests)} requests: {self.free_slots} slots are free, keys {keys}")
        refused = []
        for request in requests:
            try:
                self._waiting.append(request if isinstance(request, Row) else self.open(request))
            except ImageFailed as error:
                refused.append(ArFailure(request.key, error.code, error.message, error.retryable, told(error)))
        return refused

    def step(self) -> list[ArResult | ArFailure]:
        """Read newcomers' prompts, draw one more token of every row, and return the rows that are done with it.

        There is no end token to wait for: a row is done when its grids are full. After an exception (memory ran out,
        the device is lost) the engine must not be used again.
        """
        failed = self._prefill()
        if self._rows:
            self._decode()
        return failed + self._retire()

    def evict(self, key: str) -> None:
        """Stop a row without a result. A key that is not running is no error: the row may just have ended."""
        for slot, row in enumerate(self._rows):
            if row.key == key:
                self._release(slot)
                return
        for row in self._waiting:
            if row.key == key:
                if row is self._waiting[0]:
                    self._do(Abandon(len(self._rows), len(row.opening.ids)))
                self._waiting.remove(row)
                return

    def _prefill(self) -> list[ArResult | ArFailure]:
        """Read at most one chunk of prompts while rows run, which wait for it; with no row running, until one does.

        Where a prompt is cut depends on itself alone, and so do its bits.
        """
        left = self._chunk
        failed: list[ArResult | ArFailure] = []
        while self._waiting:
            row = self._waiting[0]
            part = row.opening.ids[row.read : row.read + self._chunk]
            if self._rows and len(part) > left:
                break
            left -= len(part)
            try:
                self._read(row, part)
            except Exception as error:
                # Memory ran out, most likely, and this row alone needs to know. Ranks that share a model cannot tell
                # how far the others came.
                if self._leader is not None:
                    raise
                log.exception("prompt_not_read", row=row.key)
                self.evict(row.key)
                reason = f"planning failed: {type(error).__name__}"
                failed.append(ArFailure(row.key, "ar_error", reason, retryable=True, traceback=told(error)))
        return failed

    def _read(self, row: Row, part: list[int]) -> None:
        positions, end = row.opening.positions, row.read + len(part)
        self._do(Prefill(row.read, part, positions[:, row.read : end].tolist()))
        row.read = end
        if end < len(row.opening.ids):
            return
        slot, drawn = len(self._rows), row.request
        sampling = drawn.temperature, drawn.top_p, drawn.top_k, drawn.seed
        self._do(Start(slot, end, *sampling, positions[:, end:].tolist()))
        row.drawn = 1
        self._rows.append(self._waiting.popleft())

    def _decode(self) -> None:
        self._do(Decode(len(self._rows), longest=max(row.length for row in self._rows)))
        for row in self._rows:
            row.drawn += 1
        self._steps += 1

    def _retire(self) -> list[ArResult | ArFailure]:
        # More than all: an edit of a single cell has its one token from the prompt.
        complete = [row.drawn >= row.opening.total_tokens for row in self._rows]
        if not any(complete) and self._steps % _CHECK_EVERY:
            return []
        broken = self._runner.state.broken[: len(self._rows)].tolist()
        ended: list[ArResult | ArFailure] = []
        for slot in reversed(range(len(self._rows))):  # from the end: a release moves the last row into the gap
            if broken[slot]:
                key = self._rows[slot].key
                ended.append(ArFailure(key, "nan_output", "the AR model's output was not a number", retryable=True))
            elif complete[slot]:
                ended.append(self._result(slot))
            else:
                continue
            self._release(slot)
        return ended

    def _result(self, slot: int) -> ArResult:
        row = self._rows[slot]
        ids = self._runner.state.tokens[slot, row.opening.preview_tokens : row.opening.total_tokens].tolist()
        prior = PriorTokens(row.request.size.large_grid, tuple(ids))
        return ArResult(row.key, prior, row.seconds, row.opening.condition)

    def _release(self, slot: int) -> None:
        """Free a slot; the last row moves into it, so that the running rows stay the first ones."""
        last = len(self._rows) - 1
        self._do(Release(slot, self._rows[slot].length, last, self._rows[last].length))
        self._rows[slot] = self._rows[last]
        self._rows.pop()

    def _do(self, order: Order) -> None:
        if self._leader is not None:
            self._leader.tell(to_json(order))
        self._runner.run(order)

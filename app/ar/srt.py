"""The AR stage on a remote SGLang (SRT) server: the same calls as ArEngine, several batches in flight.

The server decodes; here prompts become input ids and its answer is checked. Text-to-image only: its `/generate` takes
no condition images. Protocol: POST /generate with parallel lists `input_ids`, `image_data`, `sampling_params`; the
answer is a list of objects with `output_ids`, preview grid first. GET /health tells whether it serves.
"""

import json
import threading
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Self

import requests

from app.ar.model import load_processor
from app.ar.prompt import PromptEncoder
from app.ar.request import ArFailure, ArRequest, ArResult
from app.checkpoint import Checkpoint
from app.domain.prior import PriorTokens
from app.errors import BrokenCheckpoint, ImageFailed, Unavailable
from app.traces import told

#: How long one step waits for an answer, seconds: the worker looks for newcomers and lost leases in between.
_STEP_S = 0.02
_HEALTH_TIMEOUT_S = 5.0


@dataclass(slots=True)
class _Row:
    request: ArRequest
    ids: list[int]
    started: float = field(default_factory=monotonic)


class SrtEngine:
    """Rows admitted between two steps go out as one batch. A batch that fails is sent again row by row."""

    def __init__(
        self,
        url: str,
        prompts: PromptEncoder,
        *,
        codebook: int,
        slots: int,
        batches: int,
        max_prompt_tokens: int,
        timeout_s: float,
    ) -> None:
        self._url = url.rstrip("/")
        self._prompts = prompts
        self._codebook = codebook
        self._slots = slots
        self._max_prompt_tokens = max_prompt_tokens
        self._timeout_s = timeout_s
        self._batches = batches
        self._rows: dict[str, _Row] = {}
        self._fresh: list[_Row] = []
        self._again: list[_Row] = []
        self._sent: dict[Future[list[PriorTokens]], list[_Row]] = {}
        self._pool = ThreadPoolExecutor(batches, thread_name_prefix="srt")
        self._local = threading.local()

    @classmethod
    def load(
        cls, checkpoint: Checkpoint, url: str, *, slots: int, batches: int, max_prompt_tokens: int, timeout_s: float
    ) -> Self:
        """Load the processor and the codebook's size; the weights are the server's. Raises BrokenCheckpoint."""
        checkpoint.verify(("processor",))
        path = checkpoint.part("vision_language_encoder") / "config.json"
        try:
            codebook = int(json.loads(path.read_text("utf-8"))["vq_config"]["num_embeddings"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise BrokenCheckpoint(f"the checkpoint file {path} does not tell the codebook's size: {error}") from error
        prompts = PromptEncoder(load_processor(checkpoint))
        return cls(
            url,
            prompts,
            codebook=codebook,
            slots=slots,
            batches=batches,
            max_prompt_tokens=max_prompt_tokens,
            timeout_s=timeout_s,
        )

    def check_health(self) -> None:
        """Raises Unavailable unless the server says that it serves."""
        try:
            answer = requests.get(f"{self._url}/health", timeout=_HEALTH_TIMEOUT_S)
            answer.raise_for_status()
        except requests.exceptions.RequestException as error:
            raise Unavailable(f"SRT server: {type(error).__name__}") from error

    @property
    def free_slots(self) -> int:
        return self._slots - len(self._rows)

    @property
    def running(self) -> tuple[str, ...]:
        return tuple(self._rows)

    def open(self, request: ArRequest) -> ArRequest:
        """The request itself: the server reads it."""
        return request

    def admit(self, admitted: Sequence[ArRequest]) -> list[ArFailure]:
        """Take requests for the next batch; returns those that cannot be planned, which take no slot."""
        refused = []
        for request in admitted:
            if request.images:
                text = "the SGLang server takes no condition images; edits need the engine backend"
                refused.append(ArFailure(request.key, "edits_unsupported", text, retryable=False))
                continue
            ids = self._prompts.encode(request.prompt, request.size)
            if len(ids) > self._max_prompt_tokens:
                text = f"the prompt takes {len(ids)} tokens of at most {self._max_prompt_tokens}"
                refused.append(ArFailure(request.key, "prompt_too_long", text, retryable=False))
                continue
            row = _Row(request, ids)
            self._rows[request.key] = row
            self._fresh.append(row)
        return refused

    def step(self) -> list[ArResult | ArFailure]:
        """Send what waits, and return what has been answered meanwhile."""
        self._send()
        done, _ = wait(self._sent, timeout=_STEP_S, return_when=FIRST_COMPLETED)
        return [item for future in done for item in self._answered(future, self._sent.pop(future))]

    def evict(self, key: str) -> None:
        """Forget a row; a batch that holds it runs on, and its answer for the row is dropped."""
        row = self._rows.pop(key, None)
        for waiting in (self._fresh, self._again):
            if row in waiting:
                waiting.remove(row)

    def _send(self) -> None:
        while len(self._sent) < self._batches and (self._again or self._fresh):
            if self._again:
                batch = [self._again.pop(0)]
            else:
                batch, self._fresh = self._fresh, []
            self._sent[self._pool.submit(self._generate, batch)] = batch

    def _answered(self, future: Future[list[PriorTokens]], batch: list[_Row]) -> list[ArResult | ArFailure]:
        wanted = [row for row in batch if self._rows.get(row.request.key) is row]
        try:
            priors = dict(zip((row.request.key for row in batch), future.result(), strict=True))
        except (requests.exceptions.RequestException, ImageFailed) as error:
            if len(batch) > 1:
                # One bad row must not take the others with it.
                self._again += wanted
                return []
            message = error.message if isinstance(error, ImageFailed) else f"SRT server: {type(error).__name__}"
            trace = told(error)
            return [self._end(row, ArFailure(row.request.key, "srt_error", message, True, trace)) for row in wanted]
        return [
            self._end(row, ArResult(row.request.key, priors[row.request.key], monotonic() - row.started))
            for row in wanted
        ]

    def _end(self, row: _Row, item: ArResult | ArFailure) -> ArResult | ArFailure:
        del self._rows[row.request.key]
        return item

    def _generate(self, batch: list[_Row]) -> list[PriorTokens]:
        answer = self._session().post(f"{self._url}/generate", json=_body(batch), timeout=self._timeout_s)
        answer.raise_for_status()
        found = answer.json()
        items = found if isinstance(found, list) else [found]
        if len(items) != len(batch):
            raise ImageFailed("srt_error", f"the SRT server answered {len(items)} rows of {len(batch)}")
        return [self._prior(row, item) for row, item in zip(batch, items, strict=True)]

    def _prior(self, row: _Row, item: Any) -> PriorTokens:  # noqa: ANN401 - JSON
        size = row.request.size
        first, count = size.preview_grid.tokens, size.large_grid.tokens
        ids = item.get("output_ids") if isinstance(item, dict) else None
        if not isinstance(ids, list) or len(ids) < first + count:
            got = len(ids) if isinstance(ids, list) else 0
            raise ImageFailed("srt_error", f"the SRT server answered {got} ids of {first + count}")
        large = ids[first : first + count]
        if not all(isinstance(i, int) and 0 <= i < self._codebook for i in large):
            raise ImageFailed("srt_error", f"the SRT server answered ids outside the codebook of {self._codebook}")
        return PriorTokens(size.large_grid, tuple(large))

    def _session(self) -> requests.Session:
        if not hasattr(self._local, "session"):
            self._local.session = requests.Session()
        session: requests.Session = self._local.session
        return session


def _body(batch: list[_Row]) -> dict[str, Any]:
    """The request of one batch; every list is parallel to the rows."""
    sizes = [row.request.size for row in batch]
    return {
        "input_ids": [row.ids for row in batch],
        "image_data": [
            [{"image_grid_thw": [[1, grid.height, grid.width] for grid in (size.large_grid, size.preview_grid)]}]
            for size in sizes
        ],
        "sampling_params": [
            {
                "temperature": row.request.temperature,
                "top_p": row.request.top_p,
                "top_k": row.request.top_k or -1,
                "max_new_tokens": size.preview_grid.tokens + size.large_grid.tokens,
                "ignore_eos": True,
                "sampling_seed": row.request.seed,
            }
            for row, size in zip(batch, sizes, strict=True)
        ],
    }

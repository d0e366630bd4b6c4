"""Our decode steps and those of transformers' `generate`, by turns in one process, on the same rows.

Both are measured in short blocks inside one call of `generate`, which hands over between two of its steps. Whatever
else the machine does then hits both alike, and a ratio of neighbouring blocks holds where a time would not.
"""

import time
from dataclasses import dataclass, field
from statistics import median

import torch
from transformers import StoppingCriteria, StoppingCriteriaList

from app.ar.engine import ArEngine
from app.ar.request import ArRequest
from app.bench.models import Model
from app.domain.sizes import Size

#: Side by side they fill the same number of cells, and any size has about 256 tokens of preview before them.
SIZE = Size(256, 256)
PROMPT = "a red circle on a white background"


@dataclass(slots=True)
class Blocks:
    """Seconds by step, one number a block; the blocks of one index ran next to each other."""

    theirs: list[float] = field(default_factory=list)
    ours: list[float] = field(default_factory=list)
    tokens_equal: bool = False
    #: Positions that a slot held in the middle of what was measured.
    positions: int = 0

    @property
    def ratios(self) -> list[float]:
        return [theirs / ours for theirs, ours in zip(self.theirs, self.ours, strict=True)]

    @property
    def ratio(self) -> float:
        return median(self.ratios)


class _Turns(StoppingCriteria):  # type: ignore[misc]  # transformers is not typed for mypy
    """Called by generate after each of its steps; runs as many of ours after each block of its own.

    The call costs generate some microseconds a step; what is done inside is not counted.
    """

    def __init__(self, engine: ArEngine, *, warm_up: int, block: int) -> None:
        self._engine = engine
        self._warm_up = warm_up
        self._block = block
        self._steps = 0
        self._resumed = 0.0
        self.blocks = Blocks()

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **_: object) -> torch.Tensor:
        now = time.perf_counter()
        # The first call comes after the prompt, the next ones after decode steps.
        if self._steps and self._steps % self._block == 0:
            theirs, ours = now - self._resumed, self._ours()
            if self._steps > self._warm_up:
                self.blocks.theirs.append(theirs / self._block)
                self.blocks.ours.append(ours / self._block)
        self._steps += 1
        ongoing = torch.zeros(input_ids.shape[0], dtype=torch.bool)
        if self._steps % self._block == 1 or self._block == 1:
            self._resumed = time.perf_counter()
        return ongoing

    def _ours(self) -> float:
        started = time.perf_counter()
        for _ in range(self._block):
            self._engine.step()
        return time.perf_counter() - started


def duel(model: Model, engine: ArEngine, *, batch: int, blocks: int, block: int, warm_up: int) -> Blocks:
    """Let both decode `batch` rows greedily: `warm_up` blocks of `block` steps that do not count, then `blocks`."""
    requests = [ArRequest(f"{row}", PROMPT, SIZE, seed=row, temperature=0, top_p=1.0) for row in range(batch)]
    if refused := engine.admit(requests):
        raise ValueError(refused[0].message)
    inputs = model.processor.apply_chat_template(
        [[{"role": "user", "content": [{"type": "text", "text": PROMPT}]}]] * batch,
        tokenize=True,
        return_dict=True,
        return_tensors="pt",
        processor_kwargs={"target_h": SIZE.height, "target_w": SIZE.width, "padding": True},
    )
    prompt, steps = inputs["input_ids"].shape[1], (warm_up + blocks) * block
    turns = _Turns(engine, warm_up=warm_up * block, block=block)
    with torch.inference_mode():
        generated = model.reference.generate(
            **inputs,
            max_new_tokens=1 + steps,  # the first token is the prompt's
            do_sample=False,
            stopping_criteria=StoppingCriteriaList([turns]),
        )
    measured = turns.blocks
    measured.tokens_equal = all(
        engine.drawn(request.key) == tuple(generated[row, prompt:].tolist()) for row, request in enumerate(requests)
    )
    measured.positions = prompt + (warm_up + blocks // 2) * block
    for request in requests:
        engine.evict(request.key)
    return measured

"""The running rows: as the host knows them, and their sampling state on the device, one line a KV slot."""

import time
from dataclasses import dataclass, field

import torch

from app.ar.opening import Opening
from app.ar.request import ArRequest
from app.ar.sampler import EVERY, sample, sample_head, sample_whole


@dataclass(slots=True)
class Row:
    """A row, as the host knows it. The running row at index i of the engine's list is in slot i."""

    request: ArRequest
    opening: Opening
    #: Of the prompt's tokens those that its slot holds, and of the row's own tokens those that exist.
    read: int = 0
    drawn: int = 0
    admitted: float = field(default_factory=time.monotonic)

    @property
    def key(self) -> str:
        return self.request.key

    @property
    def length(self) -> int:
        """Positions that a running row's slot holds: the last token drawn is not stored yet."""
        return len(self.opening.ids) + self.drawn - 1

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.admitted


class RowState:
    """Tensors that a step reads and writes whole, so that it asks the device for nothing and loops over no row.

    Lines past the running rows only fill the batch up. Their `live` is 0: they stay at step 0 and their length, which
    is 0 but for the row that is opening, and what they store is overwritten. No two tensors share memory: a
    compiled step that writes to one would have to guard against that.
    """

    def __init__(self, *, slots: int, tokens: int, rotary_dim: int, device: torch.device, dtype: torch.dtype) -> None:
        #: The token that is fed next, as its number in `tokens`; 1 for a row and 0 for a line that fills up.
        self.step = torch.zeros(slots, device=device, dtype=torch.int64)
        self.live = torch.zeros(slots, device=device, dtype=torch.int64)
        #: Length of the prompt. The KV slot holds so many positions and `step` more.
        self.prompt = torch.zeros(slots, device=device, dtype=torch.int64)
        self.fed = torch.zeros(slots, device=device, dtype=torch.int64)
        #: Whether a row's logits were ever NaN. Read rarely: reading waits for the device.
        self.broken = torch.zeros(slots, device=device, dtype=torch.bool)
        self.temperature = torch.ones(slots, device=device, dtype=torch.float32)
        self.top_p = torch.zeros(slots, device=device, dtype=torch.float32)
        self.top_k = torch.full((slots,), EVERY, device=device, dtype=torch.int64)
        #: By step: the tokens drawn, the uniform numbers they are drawn with, the rotary factors they are fed with.
        self.tokens = torch.zeros((slots, tokens), device=device, dtype=torch.int64)
        self.uniform = torch.zeros((slots, tokens), device=device, dtype=torch.float32)
        self.rotary = torch.zeros((slots, tokens, 2, rotary_dim), device=device, dtype=dtype)

    def start(
        self,
        slot: int,
        *,
        length: int,
        temperature: float,
        top_p: float,
        top_k: int,
        uniform: torch.Tensor,
        rotary: torch.Tensor,
    ) -> None:
        """Set a line for a row whose prompt of `length` tokens is stored and whose first token is still to be drawn."""
        self.step[slot] = 0
        self.prompt[slot] = length
        self.live[slot] = 1
        self.broken[slot] = False
        self.temperature[slot] = temperature
        self.top_p[slot] = top_p
        self.top_k[slot] = top_k
        self.uniform[slot, : uniform.shape[0]] = uniform.to(self.uniform.device)
        self.rotary[slot, : rotary.shape[0]] = rotary

    def draw_first(self, logits: torch.Tensor, slot: int) -> None:
        """Draw the first token of a row that has just started, from its prompt's logits [1, codes]."""
        line = slice(slot, slot + 1)
        token, broken = sample(
            logits, self.temperature[line], self.top_p[line], self.top_k[line], self.uniform[line, 0]
        )
        self.tokens[line, 0] = token
        self.fed[line] = token
        self.broken[line] |= broken

    def draw(self, logits: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        """Count the tokens just fed to the first rows, and draw the next ones from their logits [rows, codes].

        `slots` is [0, 1, ..., rows - 1]. Returns the rows [rows] bool that `draw_again` must draw.
        """
        rows = slots.shape[0]
        step = self.step[:rows] + self.live[:rows]
        token, broken, short = sample_head(
            logits, self.temperature[:rows], self.top_p[:rows], self.top_k[:rows], self.uniform[slots, step]
        )
        self.step[:rows] = step
        self.tokens[slots, step] = token
        self.fed[:rows] = token
        self.broken[:rows] |= broken
        return short

    def draw_again(self, logits: torch.Tensor, short: torch.Tensor) -> None:
        """Replace the tokens that `draw` has drawn for the marked rows."""
        slots = short.nonzero()[:, 0]
        step = self.step[slots]
        token = sample_whole(
            logits[slots], self.temperature[slots], self.top_p[slots], self.top_k[slots], self.uniform[slots, step]
        )
        self.tokens[slots, step] = token
        self.fed[slots] = token

    def move(self, source: int, target: int) -> None:
        for tensor in (
            self.step, self.live, self.prompt, self.fed, self.broken,
            self.temperature, self.top_p, self.top_k, self.tokens, self.uniform, self.rotary,
        ):  # fmt: skip
            tensor[target] = tensor[source]

    def retire(self, slot: int) -> None:
        # The nucleus too: a wide one would have the whole codebook sorted at every step, for a line that draws nothing.
        for tensor in (self.step, self.live, self.prompt, self.top_p):
            tensor[slot] = 0
        self.top_k[slot] = EVERY

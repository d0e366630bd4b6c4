"""The running rows' sampling state, on the device, one line a KV slot."""

import torch

from app.ar.sampler import sample


class RowState:
    """Tensors that a step reads and writes whole, so that it asks the device for nothing and loops over no row.

    Lines past the running rows only fill the batch up. Their `live` is 0: they stay at step 0 and length 0, see their
    own token alone, and are overwritten by the next admission.
    """

    def __init__(self, *, slots: int, tokens: int, rotary_dim: int, device: torch.device, dtype: torch.dtype) -> None:
        self._slots = torch.arange(slots, device=device)
        self._counters = torch.zeros((2, slots), device=device, dtype=torch.int64)
        #: The token that is fed next, as its number in `tokens`; positions that the KV slot holds.
        self.step, self.length = self._counters
        self.live = torch.zeros(slots, device=device, dtype=torch.int64)
        self.fed = torch.zeros(slots, device=device, dtype=torch.int64)
        #: Whether a row's logits were ever NaN. Read rarely: reading waits for the device.
        self.broken = torch.zeros(slots, device=device, dtype=torch.bool)
        self.temperature = torch.ones(slots, device=device, dtype=torch.float32)
        self.top_p = torch.zeros(slots, device=device, dtype=torch.float32)
        #: By step: the tokens drawn, the uniform numbers they are drawn with, the rotary factors they are fed with.
        self.tokens = torch.zeros((slots, tokens), device=device, dtype=torch.int64)
        self.uniform = torch.zeros((slots, tokens), device=device, dtype=torch.float32)
        self.rotary = torch.zeros((slots, tokens, 2, rotary_dim), device=device, dtype=dtype)

    def start(
        self, slot: int, *, length: int, temperature: float, top_p: float, uniform: torch.Tensor, rotary: torch.Tensor
    ) -> None:
        """Set a line for a row whose prompt of `length` tokens is stored and whose first token is still to be drawn."""
        self.step[slot] = 0
        self.length[slot] = length
        self.live[slot] = 1
        self.broken[slot] = False
        self.temperature[slot] = temperature
        self.top_p[slot] = top_p
        self.uniform[slot, : uniform.shape[0]] = uniform.to(self.uniform.device)
        self.rotary[slot, : rotary.shape[0]] = rotary

    def draw(self, logits: torch.Tensor, first: int) -> None:
        """Draw the token number `step` of the slots first, first + 1, ... from their logits [slots, codes]."""
        lines = slice(first, first + logits.shape[0])
        slots, step = self._slots[lines], self.step[lines]
        token, broken = sample(logits, self.temperature[lines], self.top_p[lines], self.uniform[slots, step])
        self.tokens[slots, step] = token
        self.fed[lines] = token
        self.broken[lines] |= broken

    def next_rotary(self, rows: int) -> torch.Tensor:
        """Rotary factors [rows, 2, rotary_dim] of the tokens fed next."""
        return self.rotary[self._slots[:rows], self.step[:rows]]

    def advance(self, rows: int) -> None:
        """Count the tokens that the first `rows` lines have just been fed."""
        self._counters[:, :rows] += self.live[:rows]

    def move(self, source: int, target: int) -> None:
        for tensor in (
            self.step, self.length, self.live, self.fed, self.broken,
            self.temperature, self.top_p, self.tokens, self.uniform, self.rotary,
        ):  # fmt: skip
            tensor[target] = tensor[source]

    def retire(self, slot: int) -> None:
        for tensor in (self.step, self.length, self.live):
            tensor[slot] = 0

"""Muon in float32: momentum made orthogonal by Newton-Schulz. torch's own iterates in bfloat16, which a CPU without
bfloat16 instructions computes 25 times slower than float32.

Source: Keller Jordan, "Muon: An optimizer for hidden layers in neural networks" (2024).
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch

_STEPS, _FIFTH = 5, (3.4445, -4.7750, 2.0315)


class Muon(torch.optim.Optimizer):
    """For matrices only."""

    def __init__(
        self, matrices: Iterable[torch.Tensor], lr: float, momentum: float = 0.95, decay: float = 0.01
    ) -> None:
        super().__init__(matrices, {"lr": lr, "momentum": momentum, "decay": decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for matrix in group["params"]:
                if matrix.grad is None:
                    continue
                state = self.state[matrix]
                if not state:
                    state["momentum"] = torch.zeros_like(matrix)
                state["momentum"].lerp_(matrix.grad, 1 - group["momentum"])
                ahead = matrix.grad.lerp(state["momentum"], group["momentum"])
                matrix.mul_(1 - group["lr"] * group["decay"])
                tall = max(1.0, matrix.shape[0] / matrix.shape[1]) ** 0.5
                matrix.add_(_orthogonal(ahead), alpha=-group["lr"] * tall)


def _orthogonal(matrix: torch.Tensor) -> torch.Tensor:
    """The nearest orthogonal matrix, roughly: all singular values between 0.7 and 1.2."""
    turned = matrix.shape[0] > matrix.shape[1]
    now = matrix.T if turned else matrix
    now = now / now.norm().clamp(min=1e-7)
    first, second, third = _FIFTH
    for _ in range(_STEPS):
        gram = now @ now.T
        now = torch.addmm(now, torch.addmm(gram, gram, gram, beta=second, alpha=third), now, beta=first)
    return now.T if turned else now

"""Which part of the AR model's weights one rank of a tensor-parallel group holds."""

from dataclasses import dataclass
from typing import Self

import torch
from transformers import GlmImageTextConfig

from app.errors import Misconfigured
from app.ranks import Ranks


@dataclass(frozen=True, slots=True)
class Share:
    """Rank `rank` of `size`: `heads` query heads and the `kv_heads` key-value heads that these read.

    With more ranks than key-value heads several ranks hold the same one.
    """

    rank: int
    size: int
    heads: int
    kv_heads: int
    head_dim: int
    #: Into how many parts the key-value heads are cut, and the number of this rank's.
    kv_parts: int
    kv_part: int

    @classmethod
    def of(cls, config: GlmImageTextConfig, ranks: Ranks | None) -> Self:
        """Raises Misconfigured, with the numbers, when the heads or the MLP cannot be shared evenly."""
        rank, size = (ranks.rank, ranks.size) if ranks else (0, 1)
        heads, kv_heads, width = config.num_attention_heads, config.num_key_value_heads, config.intermediate_size
        if heads % size or width % size or (kv_heads % size and size % kv_heads):
            raise Misconfigured(
                f"{size} ranks cannot share {heads} heads, {kv_heads} key-value heads and an MLP of {width} evenly"
            )
        parts = min(size, kv_heads)
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
        return cls(rank, size, heads // size, kv_heads // parts, head_dim, parts, rank * parts // size)

    def of_heads(self, weight: torch.Tensor) -> torch.Tensor:
        return self.outputs(weight)

    def of_kv_heads(self, weight: torch.Tensor) -> torch.Tensor:
        return weight.chunk(self.kv_parts)[self.kv_part]

    def outputs(self, weight: torch.Tensor) -> torch.Tensor:
        """Of [outputs, ...] this rank's outputs."""
        return weight.chunk(self.size)[self.rank]

    def inputs(self, weight: torch.Tensor) -> torch.Tensor:
        """Of [outputs, inputs] this rank's inputs: its products are summed over the ranks."""
        return weight.chunk(self.size, dim=1)[self.rank]

"""Keys and values of all rows, allocated once."""

import torch

#: Attention reads the slots' used prefix rounded up to this many positions.
#: On a CPU the bits of a row's result depend on a length that is not a multiple of 16, so on its neighbours' lengths.
BLOCK = 16


class KvCache:
    """One slot a row. The running rows hold the slots 0..n-1, so that attention reads a view and copies nothing.

    `layers[i]` is [slots, 2 (key, value), kv_heads, capacity + 1, head_dim]. Memory that no row has written is zero,
    not what the allocator found there: a masked position still counts as 0 * value, which is NaN when the value is.
    """

    def __init__(
        self,
        *,
        layers: int,
        slots: int,
        kv_heads: int,
        capacity: int,
        head_dim: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        capacity = -(-capacity // BLOCK) * BLOCK
        # One position more than is ever looked at: a view of all of it would be contiguous where every other is not,
        # and a compiled step would be compiled a second time for it.
        shape = (slots, 2, kv_heads, capacity + 1, head_dim)
        self.layers = [torch.zeros(shape, device=device, dtype=dtype) for _ in range(layers)]
        self.capacity = capacity
        self.bytes_per_position = layers * 2 * kv_heads * head_dim * dtype.itemsize
        #: 0, 1, 2, ...: a step takes as many as it has rows, and as many as attention must look at.
        self.slots = torch.arange(slots, device=device)
        self.positions = torch.arange(capacity, device=device)

    def move(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` positions of a row into another slot."""
        for layer in self.layers:
            layer[target, :, :, :length] = layer[source, :, :, :length]

    def clear(self, slot: int, length: int) -> None:
        """Forget a row of `length` positions; needed even to overwrite it, because it may hold NaN."""
        for layer in self.layers:
            layer[slot, :, :, :length] = 0

"""How many rows fit: bytes of one slot by formula, the free memory, and the refusal when they do not agree."""

import torch

from app.ar.kv_cache import BLOCK
from app.domain.sizes import CELL, MAX_SIDE, Size
from app.errors import Misconfigured

#: A batch is filled up to a multiple of this many rows. On a CPU (MKL, float32) one row of a matrix product has the
#: same bits for every row count that is a multiple of 4, whatever the thread count; 1, 2 and 3 rows take other kernels
#: and differ in the last bit, and with more threads so do 5, 6, 7, 9, ... A last bit can flip a draw, and the draws
#: after it. The other operations of a step work row by row; see also `BLOCK` of the KV cache.
_ROW_BLOCK = 4
#: Share of the free memory that slots may take; activations, prompts and captured graphs need the rest.
_SHARE = 0.8
#: A slot count taken from free memory stops here: past it a step takes longer by nearly as much as it does more.
_ENOUGH = 64


def filled(rows: int) -> int:
    """The rows that a batch of so many is filled up to."""
    return -(-rows // _ROW_BLOCK) * _ROW_BLOCK


def most_tokens(max_pixels: int) -> int:
    """The most tokens, preview and large grid, that a picture of at most this area takes.

    Sides are rounded up to whole cells, so that the most is more than `max_pixels` cells would give.
    """
    shortest = range(1, MAX_SIDE + 1, CELL)  # of the heights that share a number of cells, the least area
    sizes = [Size(min(MAX_SIDE, max_pixels // height), height) for height in shortest if height <= max_pixels]
    return max(size.preview_grid.tokens + size.large_grid.tokens for size in sizes)


def slot_bytes(
    *,
    layers: int,
    kv_heads: int,
    head_dim: int,
    rotary_dim: int,
    max_prompt_tokens: int,
    max_pixels: int,
    dtype: torch.dtype,
) -> int:
    """What one row of the longest prompt and the largest picture needs.

    Keys and values of every position in every layer; and by token of the picture its id, its uniform number and its
    two rotary factors.
    """
    tokens = most_tokens(max_pixels)
    capacity = -(-(max_prompt_tokens + tokens) // BLOCK) * BLOCK
    by_position = layers * 2 * kv_heads * head_dim * dtype.itemsize
    by_token = 8 + 4 + 2 * rotary_dim * dtype.itemsize
    return (capacity + 1) * by_position + tokens * by_token


def count(asked: int, one: int, device: torch.device, *, sharers: int = 1) -> int:
    """The slots to allocate, of `one` byte count each: as many as asked for, or for 0 what the free memory holds.

    `sharers`: the processes that count on the same memory, where that is the host's.

    Raises Misconfigured, with the numbers, when not even one fits or not as many as were asked for.
    """
    free = _free_bytes(device) // (sharers if device.type == "cpu" else 1)
    fit = int(free * _SHARE) // one
    if not asked:
        asked = min(fit, _ENOUGH) // _ROW_BLOCK * _ROW_BLOCK
    if not asked or filled(asked) > fit:
        needed = filled(max(asked, 1))
        raise Misconfigured(
            f"{needed} AR slots of {one / 2**20:.1f} MiB need {needed * one / 2**20:.0f} MiB; {device} has "
            f"{free / 2**20:.0f} MiB free, of which slots may take {_SHARE:.0%}: {fit} fit (rows are allocated in "
            f"blocks of {_ROW_BLOCK}; a smaller picture area or prompt limit makes slots smaller)"
        )
    return asked


def _free_bytes(device: torch.device) -> int:
    if device.type != "cpu":
        free: int = torch.get_device_module(device).mem_get_info(device)[0]
        return free
    with open("/proc/meminfo", encoding="ascii") as file:
        fields = dict(line.split(":", 1) for line in file)
    return int(fields["MemAvailable"].split()[0]) * 1024


def buckets(least: int, most: int) -> list[int]:
    """`least`, twice as much, and so on, and `most` itself."""
    found = []
    while least < most:
        found.append(least)
        least *= 2
    return [*found, most]

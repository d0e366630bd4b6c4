"""What a figure was measured on."""

import os
import time

import torch

from app.bench import host

#: Larger than any last-level cache, so that a copy is one of memory.
_COPIED = 256 * 2**20


def conditions() -> list[str]:
    """Lines that say where and with what this process measures."""
    return host.conditions("torch", "transformers")


def load() -> float:
    """The average number of processes that ran or wanted to, over the last minute."""
    return os.getloadavg()[0]


def copy_gb_per_s() -> float:
    """Bytes read plus bytes written by a memory copy, by second, with the threads that the models use; best of five."""
    source = torch.ones(_COPIED, dtype=torch.uint8)
    target = torch.zeros_like(source)
    seconds = []
    for _ in range(5):
        started = time.perf_counter()
        target.copy_(source)
        seconds.append(time.perf_counter() - started)
    return 2 * _COPIED / min(seconds) / 1e9

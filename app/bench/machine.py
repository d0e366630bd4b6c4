"""What a figure was measured on."""

import os
import platform
import time
from pathlib import Path

import torch
import transformers

#: Larger than any last-level cache, so that a copy is one of memory.
_COPIED = 256 * 2**20


def conditions() -> list[str]:
    """Lines that say where and with what this process measures."""
    return [
        f"machine   {_cpu()}, {os.cpu_count()} cores, load {load():.1f}",
        f"versions  python {platform.python_version()}, torch {torch.__version__}, "
        f"transformers {transformers.__version__}",
    ]


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


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())

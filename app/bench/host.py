"""The machine that a figure was measured on, without loading torch."""

import os
import platform
from importlib.metadata import version
from pathlib import Path


def cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def conditions(*packages: str) -> list[str]:
    """Lines that say where and with what this process measures. `packages`: names of distributions."""
    versions = ", ".join(f"{name} {version(name)}" for name in packages)
    return [
        f"machine   {cpu()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}",
        f"versions  python {platform.python_version()}, {versions}",
    ]

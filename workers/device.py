"""The device of an engine's process: picked once, with the CPU threads that its settings allow."""

from dataclasses import dataclass

import torch

from app import devices
from app.settings import Settings


@dataclass(frozen=True, slots=True)
class WorkerDevice:
    device: torch.device
    dtype: torch.dtype

    @classmethod
    def pick(cls, settings: Settings) -> "WorkerDevice":
        """Raises Misconfigured when the named device is not there."""
        if settings.threads:
            torch.set_num_threads(settings.threads)
        device = devices.pick(settings.device)
        return cls(device, devices.dtype(settings.dtype, device))

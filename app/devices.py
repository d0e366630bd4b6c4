"""The device table: which accelerators exist, which is picked, and the few calls that differ between them."""

import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass

# torch_npu registers itself when torch is imported and fails without CANN; it is imported by name below instead.
os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")

import torch

from app.errors import Misconfigured


def _npu_ready() -> bool:
    try:
        # Registers torch.npu. ImportError: not installed, or a CANN library is missing; the others: a broken driver.
        importlib.import_module("torch_npu")
        return bool(torch.get_device_module("npu").is_available())
    except (ImportError, OSError, RuntimeError):
        return False


@dataclass(frozen=True, slots=True)
class _Backend:
    """One kind of device. `place` is a full name: an int or a bare "npu" is not accepted everywhere by torch_npu."""

    place: str
    ready: Callable[[], bool]
    auto_dtype: torch.dtype
    missing: str


#: In the order in which "auto" tries them.
_BACKENDS = {
    "npu": _Backend("npu:0", _npu_ready, torch.bfloat16, "torch_npu with CANN and an Ascend device"),
    "cuda": _Backend("cuda:0", torch.cuda.is_available, torch.bfloat16, "a CUDA build of torch and an NVIDIA device"),
    "cpu": _Backend("cpu", lambda: True, torch.float32, "nothing"),
}
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def pick(name: str) -> torch.device:
    """The device called "auto" | "cpu" | "cuda" | "npu"; raises Misconfigured when that one is not there."""
    if name == "auto":
        return torch.device(next(backend.place for backend in _BACKENDS.values() if backend.ready()))
    if name not in _BACKENDS:
        raise Misconfigured(f"the device must be one of auto, cpu, cuda, npu, got {name!r}")
    backend = _BACKENDS[name]
    if not backend.ready():
        raise Misconfigured(f"the device {name} was asked for, but it needs {backend.missing}")
    return torch.device(backend.place)


def dtype(name: str, device: torch.device) -> torch.dtype:
    """The dtype called "auto" | "float32" | "bfloat16" | "float16"; "auto" is float32 on a CPU, bfloat16 elsewhere."""
    if name == "auto":
        return _BACKENDS[device.type].auto_dtype
    if name not in _DTYPES:
        raise Misconfigured(f"the dtype must be one of auto, {', '.join(_DTYPES)}, got {name!r}")
    return _DTYPES[name]


def synchronize(device: torch.device) -> None:
    """Wait until the device has done all that was given to it, so that a clock read next is true."""
    if device.type != "cpu":
        torch.get_device_module(device).synchronize(device)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the device's memory ran out. CUDA and NPU have an own type; a CPU says it only in the message."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)


def limit_threads(count: int) -> None:
    """Let this process's CPU operators use so many threads; 0 leaves torch's own choice."""
    if count:
        torch.set_num_threads(count)

"""The device table: which accelerators exist, which is picked, and all that differs between them.

Nothing else in the program names a device. The calls import torch, this module does not: a device is pinned by a
variable of the environment, which its runtime reads once, when torch is first imported.
"""

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.errors import Misconfigured
from app.settings import Settings

# torch_npu registers itself when torch is imported and fails without CANN; it is imported by name below instead.
os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")

if TYPE_CHECKING:
    import torch

STATUS = Path("/proc/self/status")


class Host:
    """Memory and time of the processor that everything else runs on."""

    def synchronize(self, device: "torch.device") -> None:
        """Nothing runs ahead of the calling thread."""

    def free_bytes(self, device: "torch.device") -> int:
        return kilobytes(Path("/proc/meminfo"), "MemAvailable")

    def peak_bytes(self, device: "torch.device") -> int:
        return kilobytes(STATUS, "VmHWM")

    def reset_peak(self, device: "torch.device") -> None:
        Path("/proc/self/clear_refs").write_text("5", "ascii")


class Accelerator:
    """Memory and time of a device that torch knows by a module such as `torch.cuda`."""

    def synchronize(self, device: "torch.device") -> None:
        _module(device).synchronize(device)

    def free_bytes(self, device: "torch.device") -> int:
        free: int = _module(device).mem_get_info(device)[0]
        return free

    def peak_bytes(self, device: "torch.device") -> int:
        peak: int = _module(device).max_memory_allocated(device)
        return peak

    def reset_peak(self, device: "torch.device") -> None:
        _module(device).reset_peak_memory_stats(device)


@dataclass(frozen=True, slots=True)
class Backend:
    """One kind of device. `place` is a full name: an int or a bare "npu" is not accepted everywhere by torch_npu.

    `visible` is the variable that shows a process only some of these devices; None: there is one, and all see it.
    `collective` is torch.distributed's backend and `group` the variables that a group of processes needs; `attention`
    is diffusers' backend and `graph` how the AR step is run when nothing else is asked for. `package` is installed for
    this kind of device alone.
    """

    place: str
    ready: Callable[[], bool]
    auto_dtype: str
    missing: str
    visible: str | None
    collective: str
    group: Mapping[str, str]
    attention: str
    graph: str
    package: str | None
    software: Callable[[], str]
    calls: Host | Accelerator


def _npu_ready() -> bool:
    try:
        # Registers torch.npu. ImportError: not installed, or a CANN library is missing; the others: a broken driver.
        importlib.import_module("torch_npu")
        import torch

        return bool(torch.get_device_module("npu").is_available())
    except (ImportError, OSError, RuntimeError):
        return False


def _npu_software() -> str:
    torch_npu = importlib.import_module("torch_npu")
    home = Path(os.environ.get("ASCEND_HOME_PATH", "/usr/local/Ascend/ascend-toolkit/latest"))
    lines = [line for info in home.glob("*-linux/ascend_toolkit_install.info") for line in info.open(encoding="utf-8")]
    cann = next((line.split("=", 1)[1].strip() for line in lines if line.startswith("version=")), "of unknown version")
    return f"torch_npu {torch_npu.__version__}, CANN {cann}"


def _cuda_ready() -> bool:
    import torch

    return torch.cuda.is_available()


def _cuda_software() -> str:
    import torch

    return f"CUDA {torch.version.cuda}"


#: In the order in which "auto" tries them. Attention stays PyTorch's own everywhere ("native"): it is fused on all
#: three, and diffusers' NPU backend waits for the device at every call.
_BACKENDS = {
    "npu": Backend(
        place="npu:0",
        ready=_npu_ready,
        auto_dtype="bfloat16",
        missing="torch_npu with CANN and an Ascend device",
        visible="ASCEND_RT_VISIBLE_DEVICES",
        collective="hccl",
        # HCCL by default waits half an hour for a dead rank, and all groups of a host use one port.
        group={
            "HCCL_EXEC_TIMEOUT": "300",
            "HCCL_HOST_SOCKET_PORT_RANGE": "auto",
            "HCCL_NPU_SOCKET_PORT_RANGE": "auto",
        },
        attention="native",
        graph="npu",
        package="torch_npu",
        software=_npu_software,
        calls=Accelerator(),
    ),
    "cuda": Backend(
        place="cuda:0",
        ready=_cuda_ready,
        auto_dtype="bfloat16",
        missing="a CUDA build of torch and an NVIDIA device",
        visible="CUDA_VISIBLE_DEVICES",
        collective="nccl",
        group={},
        attention="native",
        graph="cuda",
        package=None,
        software=_cuda_software,
        calls=Accelerator(),
    ),
    "cpu": Backend(
        place="cpu",
        ready=lambda: True,
        auto_dtype="float32",
        missing="nothing",
        visible=None,
        collective="gloo",
        group={"GLOO_SOCKET_IFNAME": "lo"},  # it would look the host's own name up
        attention="native",
        # A small model would gain by "compile", which delays every first start by half a minute.
        graph="off",
        package=None,
        software=lambda: "",
        calls=Host(),
    ),
}
_DTYPES = ("float32", "bfloat16", "float16")


def pin(index: int) -> None:
    """Show this process one device only, by its place among those that it sees now. Call before torch is imported."""
    if "torch" in sys.modules:
        raise RuntimeError("torch is imported already, and may have looked at the devices")
    for backend in _BACKENDS.values():
        if backend.visible is None:
            continue
        seen = [part.strip() for part in os.environ.get(backend.visible, "").split(",") if part.strip()]
        if seen and index >= len(seen):
            raise Misconfigured(f"device {index} was asked for, but {backend.visible} shows {len(seen)}")
        os.environ[backend.visible] = seen[index] if seen else str(index)


def pick(name: str, *, index: int | None = None) -> "torch.device":
    """The device called "auto" | "cpu" | "cuda" | "npu"; `index`: the number that the process was pinned to, if any.

    Raises Misconfigured when that device is not there.
    """
    import torch

    if name != "auto" and name not in _BACKENDS:
        raise Misconfigured(f"the device must be one of auto, {', '.join(sorted(_BACKENDS))}, got {name!r}")
    found = next(backend for backend in _BACKENDS.values() if backend.ready()) if name == "auto" else _BACKENDS[name]
    if not found.ready():
        raise Misconfigured(f"the device {name} was asked for, but it needs {found.missing}")
    if index is not None and found.visible is None:
        # Left alone, "auto" would work on the processor where an accelerator was meant.
        raise Misconfigured(f"device {index} was asked for, but this process sees no accelerator of that number")
    return torch.device(found.place)


def present() -> dict[str, tuple[str, list["torch.device"]]]:
    """What is on this host: kind -> its software with versions, and every device that this process sees."""
    import torch

    found = {}
    for name, backend in _BACKENDS.items():
        if backend.ready():
            first = torch.device(backend.place)
            count = 1 if backend.visible is None else torch.get_device_module(first).device_count()
            places = [first] if first.index is None else [torch.device(first.type, number) for number in range(count)]
            found[name] = backend.software(), places
    return found


def silent() -> dict[str, str]:
    """Kinds of device that somebody meant to use here, by their package, and that do not answer -> what they need."""
    return {
        name: backend.missing
        for name, backend in _BACKENDS.items()
        if backend.package and importlib.util.find_spec(backend.package) and not backend.ready()
    }


def row(device: "torch.device") -> Backend:
    """The table's row for a device that was picked."""
    return next(backend for backend in _BACKENDS.values() if backend.place.split(":")[0] == device.type)


def dtype(name: str, device: "torch.device") -> "torch.dtype":
    """The dtype called "auto" | "float32" | "bfloat16" | "float16"; "auto" is float32 on a CPU, bfloat16 elsewhere."""
    import torch

    if name != "auto" and name not in _DTYPES:
        raise Misconfigured(f"the dtype must be one of auto, {', '.join(_DTYPES)}, got {name!r}")
    found: torch.dtype = getattr(torch, row(device).auto_dtype if name == "auto" else name)
    return found


def generator(seed: int) -> "torch.Generator":
    """A generator that draws the same numbers for a seed whatever the device: on the CPU, to be moved."""
    import torch

    return torch.Generator("cpu").manual_seed(seed)


def synchronize(device: "torch.device") -> None:
    """Wait until the device has done all that was given to it, so that a clock read next is true."""
    row(device).calls.synchronize(device)


def free_bytes(device: "torch.device") -> int:
    """Memory that can be had now."""
    return row(device).calls.free_bytes(device)


def peak_bytes(device: "torch.device") -> int:
    """The most memory used at once since the last `reset_peak`: by tensors on a device, by the process on a CPU."""
    return row(device).calls.peak_bytes(device)


def reset_peak(device: "torch.device") -> None:
    """Start a new measurement of `peak_bytes`."""
    row(device).calls.reset_peak(device)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the device's memory ran out. CUDA and NPU have an own type; a CPU says it only in the message."""
    import torch

    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)


def take(settings: Settings, *, sharers: int) -> tuple["torch.device", "torch.dtype"]:
    """The device that the settings name and its dtype, with this process's CPU threads limited.

    `sharers`: the processes that share a model. Raises Misconfigured when that device is not there.
    """
    device = pick(settings.device, index=settings.device_index)
    limit_threads(threads(settings.threads, sharers=sharers, device=device))
    return device, dtype(settings.dtype, device)


def threads(asked: int, *, sharers: int, device: "torch.device") -> int:
    """CPU threads of each of the processes that share a model: what was asked for, or of a processor their part."""
    if asked or sharers == 1 or row(device).visible is not None:
        return asked
    return max(1, len(os.sched_getaffinity(0)) // sharers)


def limit_threads(count: int) -> None:
    """Let this process's CPU operators use so many threads; 0 leaves torch's own choice."""
    import torch

    if count:
        torch.set_num_threads(count)


def _module(device: "torch.device") -> Any:  # noqa: ANN401 - torch.cuda, torch.npu
    import torch

    return torch.get_device_module(device)


def kilobytes(path: Path, field: str) -> int:
    """A field of a table of /proc, which counts in kB, in bytes."""
    fields = dict(line.split(":", 1) for line in path.read_text("ascii").splitlines())
    return int(fields[field].split()[0]) * 1024

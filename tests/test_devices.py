import ast
import dataclasses
import os
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch

from app import devices
from app.ar.engine import ArEngine
from app.dit.engine import DitEngine
from app.errors import Misconfigured
from workers import selftest


@pytest.fixture
def present(monkeypatch):
    """Makes only the named devices be there."""

    def only(*names):
        table = {
            name: dataclasses.replace(backend, ready=lambda name=name: name in names)
            for name, backend in devices._BACKENDS.items()
        }
        # A torch without torch_npu does not know "npu:0" as a device.
        table["npu"] = dataclasses.replace(table["npu"], place="meta")
        monkeypatch.setattr(devices, "_BACKENDS", table)

    return only


@pytest.mark.parametrize(
    ("names", "picked"),
    [(("cpu",), "cpu"), (("cpu", "cuda"), "cuda:0"), (("cpu", "cuda", "npu"), "meta"), (("cpu", "npu"), "meta")],
)
def test_auto_takes_the_best_that_is_there(names, picked, present):
    present(*names)
    assert str(devices.pick("auto")) == picked


def test_a_named_device_must_be_there(present):
    present("cpu")
    assert devices.pick("cpu") == torch.device("cpu")
    for name in ("cuda", "npu"):
        with pytest.raises(Misconfigured, match=f"the device {name} was asked for"):
            devices.pick(name)
    with pytest.raises(Misconfigured, match="one of auto, cpu, cuda, npu, got 'tpu'"):
        devices.pick("tpu")


@pytest.mark.parametrize("error", [ImportError("libhccl.so"), OSError("libascend_hal.so"), RuntimeError("no driver")])
def test_a_broken_torch_npu_counts_as_missing(error, monkeypatch):
    def fail(name):
        raise error

    monkeypatch.setattr(devices.importlib, "import_module", fail)
    assert not devices._npu_ready()


def test_torch_npu_is_asked_for_its_devices(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch_npu", types.ModuleType("torch_npu"))
    for available in (True, False):
        module = types.SimpleNamespace(is_available=lambda available=available: available)
        monkeypatch.setattr(torch, "get_device_module", lambda name, module=module: module)
        assert devices._npu_ready() is available


def test_dtypes():
    assert devices.dtype("auto", torch.device("cpu")) == torch.float32
    assert devices.dtype("auto", torch.device("cuda")) == torch.bfloat16
    assert devices.dtype("float16", torch.device("cpu")) == torch.float16
    with pytest.raises(Misconfigured, match="float32, bfloat16, float16, got 'int8'"):
        devices.dtype("int8", torch.device("cpu"))


def test_memory_errors_are_known():
    assert devices.is_out_of_memory(torch.OutOfMemoryError("NPU out of memory. Tried to allocate 2 GiB"))
    assert devices.is_out_of_memory(MemoryError())
    assert not devices.is_out_of_memory(RuntimeError("shapes do not match"))
    with pytest.raises(RuntimeError) as failure:
        torch.empty(2**60, dtype=torch.uint8)
    assert devices.is_out_of_memory(failure.value)


def test_the_memory_of_this_machine_is_measured():
    cpu = torch.device("cpu")
    devices.synchronize(cpu)
    assert 2**20 < devices.free_bytes(cpu) < 2**50
    devices.reset_peak(cpu)
    before = devices.peak_bytes(cpu)
    big = torch.ones(2**26, dtype=torch.uint8)
    assert devices.peak_bytes(cpu) - before > 2**25
    del big
    devices.reset_peak(cpu)
    assert devices.peak_bytes(cpu) - before < 2**25


def test_torch_does_not_load_device_plugins_by_itself():
    assert "TORCH_DEVICE_BACKEND_AUTOLOAD" in os.environ


def _pinned(index, **environment):
    """What a fresh process sees after it was pinned; the names are those that the runtimes read."""
    code = (
        f"import os; from app import devices; devices.pin({index});"
        "print(os.environ['ASCEND_RT_VISIBLE_DEVICES'], os.environ['CUDA_VISIBLE_DEVICES'])"
    )
    clean = {k: v for k, v in os.environ.items() if not k.endswith("VISIBLE_DEVICES")}
    return subprocess.run(
        [sys.executable, "-c", code], env=clean | environment, capture_output=True, text=True, check=False
    )


def test_a_pinned_process_sees_one_device():
    assert _pinned(3).stdout.split() == ["3", "3"]
    assert _pinned(1, ASCEND_RT_VISIBLE_DEVICES="4,6", CUDA_VISIBLE_DEVICES="GPU-a,GPU-b").stdout.split() == [
        "6",
        "GPU-b",
    ]
    assert "ASCEND_RT_VISIBLE_DEVICES shows 2" in _pinned(2, ASCEND_RT_VISIBLE_DEVICES="4,6").stderr


def test_it_is_too_late_to_pin_once_torch_is_there():
    with pytest.raises(RuntimeError, match="torch is imported already"):
        devices.pin(0)


def test_a_pinned_device_that_is_not_there_is_no_reason_to_work_on_the_processor(present):
    present("cpu")
    with pytest.raises(Misconfigured, match="device 3 was asked for"):
        devices.pick("auto", index=3)
    present("cpu", "cuda")
    assert devices.pick("auto", index=3) == torch.device("cuda:0")


class _Counted(devices.Host):
    """A device that has 100 MB and counts what it is asked."""

    def __init__(self):
        self.asked = []

    def synchronize(self, device):
        self.asked.append("synchronize")

    def free_bytes(self, device):
        self.asked.append("free_bytes")
        return 100_000_000


@pytest.fixture
def fake(monkeypatch):
    """A kind of device that nothing but the table knows: its tensors are the processor's, its numbers its own."""
    row = dataclasses.replace(devices._BACKENDS["cpu"], auto_dtype="bfloat16", graph="off", calls=_Counted())
    monkeypatch.setattr(devices, "_BACKENDS", {"fake": row})
    return row.calls


def test_a_new_row_is_all_that_a_new_device_takes(fake, tiny_checkpoint):
    device = devices.pick("fake")
    assert devices.pick("auto") == device
    dtype = devices.dtype("auto", device)
    assert dtype == torch.bfloat16
    limits = {"max_prompt_tokens": 256, "max_pixels": 64 * 64}
    ar = ArEngine.load(tiny_checkpoint, device=device, dtype=dtype, slots=0, **limits)
    assert fake.asked == ["free_bytes"]
    with pytest.raises(Misconfigured, match="95 MiB free"):
        ArEngine.load(tiny_checkpoint, device=device, dtype=dtype, slots=1024, **limits)
    selftest.check_ar(ar)
    selftest.check_dit(DitEngine.load(tiny_checkpoint, device=device, dtype=dtype))
    selftest.check_attention(device, dtype)


#: What a device, its collectives or its variables are called.
_NAMES = re.compile(
    r"(cpu|cuda|npu|xpu|mps)(:\d+)?|hccl|nccl|gloo|_native_npu|torch_npu|(ASCEND_RT|CUDA)_VISIBLE_DEVICES"
)
_ROOT = Path(__file__).parent.parent
#: Where a device may be named beside the table, and why.
_ALLOWED = {
    "app/settings.py": "the choices that a setting has",
    "app/ar/graphs.py": "how a graph is captured differs by device",
    "app/ar/runner.py": "what only a processor's sampler can meet",
    "app/ar/model.py": "kernels of a processor",
    "app/ar/sampler.py": "kernels of a processor",
    "app/bench": "measured on a processor",
}


def _named(source):
    """Every device that a source names, in a text or as a module of torch."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _NAMES.fullmatch(node.value):
            found.add(node.value)
        if isinstance(node, ast.Attribute) and node.attr in ("cuda", "npu") and isinstance(node.value, ast.Name):
            found.add(f"torch.{node.attr}")
    return found


def test_nothing_else_names_a_device():
    found = {}
    for path in (path for top in ("app", "api", "workers") for path in (_ROOT / top).rglob("*.py")):
        name = path.relative_to(_ROOT).as_posix()
        if name != "app/devices.py" and not name.startswith(tuple(_ALLOWED)) and (named := _named(path.read_text())):
            found[name] = named
    assert found == {}


@pytest.mark.parametrize(
    "source", ["x = 'npu:0'", "torch.cuda.synchronize()", "f(device='cpu')", "b = {'cpu': 'gloo'}"]
)
def test_the_reading_can_fail(source):
    assert _named(source)

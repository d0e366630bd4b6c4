import dataclasses
import os
import sys
import types

import pytest
import torch

from app import devices
from app.errors import Misconfigured


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


def test_synchronizing_a_cpu_is_nothing():
    devices.synchronize(torch.device("cpu"))


def test_torch_does_not_load_device_plugins_by_itself():
    assert "TORCH_DEVICE_BACKEND_AUTOLOAD" in os.environ

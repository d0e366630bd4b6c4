"""What is asked of torch: the devices, the one that is picked, and a small piece of real work on it."""

import threading
import time
from collections.abc import Callable, Iterator

from app import devices
from app.doctor.finding import Finding
from app.doctor.host import has_parts
from app.errors import PlanpaintError
from app.settings import Settings

_GB = 1e9


def present() -> Iterator[Finding]:
    """Every device that this process sees, with its software and the memory that is free on it."""
    for name, (software, places) in devices.present().items():
        free = ", ".join(f"{place} {devices.free_bytes(place) / _GB:.1f} GB free" for place in places)
        yield Finding(f"device {name}", "ok", f"{free}{'; ' if software else ''}{software}")
    for name, missing in devices.silent().items():
        yield Finding(
            f"device {name}",
            "fail",
            f"its package is installed, but no such device answers: it needs {missing}",
            "load its driver's environment (set_env.sh), look whether the driver's own tool sees it",
        )


def chosen(settings: Settings) -> Iterator[Finding]:
    """What a worker with these settings would use."""
    device = devices.pick(settings.device, index=settings.device_index)
    row, dtype = devices.row(device), devices.dtype(settings.dtype, device)
    graph = row.graph if settings.graph == "auto" else settings.graph
    yield Finding(
        "picked",
        "ok",
        f"{device}, {str(dtype).removeprefix('torch.')}, attention {row.attention}, collectives {row.collective}, "
        f"AR step {graph}",
    )


def work(settings: Settings) -> Iterator[Finding]:
    """Each stage that has its parts here: loaded and tried out, exactly as its worker does before it is ready."""
    from workers import ar_backend, dit_engine

    at_once = threading.Event()
    at_once.set()  # a remote AR server that does not answer is not waited for
    trials: dict[str, Callable[[], object]] = {
        "ar": lambda: ar_backend.make(settings, at_once),
        "dit": lambda: dit_engine.load(settings),
    }
    for stage, trial in trials.items():
        if not has_parts(settings, stage):
            continue
        started = time.monotonic()
        try:
            trial()
        except PlanpaintError as error:
            yield Finding(f"self-test {stage}", "fail", str(error), "see the lines above; a worker would not start")
        else:
            yield Finding(f"self-test {stage}", "ok", f"loaded and tried out in {time.monotonic() - started:.1f} s")

"""A real DiT worker process whose memory really runs out: the kernel refuses what one large picture needs."""

import resource
from contextlib import ExitStack
from pathlib import Path

import pytest

from app import keys
from app.devices import kilobytes
from app.domain.job import Parameters, new_job_id
from app.domain.messages import ImageRef
from app.domain.prior import Plan, PriorTokens
from app.domain.sizes import Size
from app.domain.states import ImageState
from app.launcher.child import EX_AGAIN
from app.store.jobs import Terms
from tests.servers import wait_until
from tests.store.orders import plan
from tests.workers.processes import ended, worker

#: Beyond what the idle process has: enough for the small picture, not for the large one's convolutions.
_ROOM = 112 * 2**20
_SMALL, _LARGE = Size(64, 64), Size(1024, 1024)


@pytest.fixture
def start(servers, client, registry, tiny_checkpoint, tmp_path):
    """Starts a worker and, once it is ready, gives its address space an end; only then may it find what waits."""
    with ExitStack() as started:

        def one():
            hint = client.lpop(keys.DIT_LIST)
            process = started.enter_context(worker(servers, tiny_checkpoint, tmp_path / "dit.log", "dit"))
            wait_until(lambda: _ready(process, registry), timeout=120, what="a ready worker")
            end = kilobytes(Path(f"/proc/{process.pid}/status"), "VmSize") + _ROOM
            resource.prlimit(process.pid, resource.RLIMIT_AS, (end, end))
            client.rpush(keys.DIT_LIST, hint)
            return process

        yield one


def _ready(process, registry):
    assert process.exitcode is None
    return any(worker.pid == process.pid and worker.state == "ready" for worker in registry.list())


def _planned(store, stages, size):
    job_id = new_job_id()
    parameters = Parameters("a red circle", size, 1, 3, 1, 1.0, 0.9, 0.75, "jpeg")
    store.submit(job_id, parameters, Terms(), metadata={})
    ref, grid = ImageRef(job_id, 0), size.large_grid
    stages.hand_over(plan(store, ref), Plan(PriorTokens(grid, tuple(i % 16 for i in range(grid.tokens)))))
    return ref


def test_an_image_too_large_for_the_memory_fails_after_a_new_process_and_the_next_is_painted(
    start, store, stages, client
):
    large = _planned(store, stages, _LARGE)
    image = lambda ref: store.get(ref.job_id).images[0]  # noqa: E731
    process = start()
    assert ended(process) == EX_AGAIN
    assert (image(large).state, image(large).dit_attempts) == (ImageState.PLANNED, 1)
    assert client.llen(keys.DIT_LIST) == 1
    process = start()
    assert ended(process) == EX_AGAIN
    assert image(large).failure.code == "out_of_memory"
    small = _planned(store, stages, _SMALL)
    process = start()
    wait_until(lambda: image(small).state is ImageState.SUCCEEDED, timeout=60, what="the small picture")
    assert process.exitcode is None

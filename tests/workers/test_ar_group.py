"""`planpaint ar --tp 2` as an operator runs it: two processes that plan together, and end together."""

import os
import signal

import pytest
import torch

from app import wiring
from app.ar.engine import ArEngine
from app.domain.messages import ImageRef
from app.domain.states import ImageState
from app.store.jobs import JobStore
from tests.integration.stack import alive
from tests.servers import wait_until
from tests.workers.processes import children, ended, worker
from tests.workers.test_ar import _run_until, _states, _submit
from workers.ar import ArWorker
from workers.watchdog import Watchdog

S = ImageState


@pytest.fixture
def group(servers, client, tiny_checkpoint, tmp_path):
    """The leader. `client`: on an empty database."""
    log = tmp_path / "group.log"
    with worker(servers, tiny_checkpoint, log, "ar", "--tp", "2", lease_s=1, step_limit_s=3) as process:
        yield process


def test_a_rank_that_hangs_ends_the_group_and_another_worker_takes_over(
    group, client, stages, blobs, heartbeat, tiny_checkpoint, tmp_path
):
    """Stopped, it keeps the other rank waiting inside a step, whose heartbeat goes on."""
    store = JobStore(client, lease_ms=1000, hint_ms=1000, max_attempts=3)
    quick, long = _submit(store), _submit(store, size="512x512", seed=4)
    wait_until(lambda: _states(store, quick) == [S.PLANNED], timeout=120, what="a plan of two ranks")
    assert _states(store, long) == [S.PLANNING]
    (follower,) = children(group.pid)
    os.kill(follower, signal.SIGSTOP)
    assert ended(group) not in (0, os.EX_CONFIG)
    assert "Timeout (" in (tmp_path / "group.log").read_text()
    wait_until(lambda: not alive(follower), what="the end of the stopped rank")

    ref = ImageRef(long, 0)
    wait_until(lambda: ref in store.due(10), what="the lease's end")
    store.sweep(ref)
    engine = ArEngine.load(
        tiny_checkpoint,
        device=torch.device("cpu"),
        dtype=torch.float32,
        slots=4,
        max_prompt_tokens=256,
        max_pixels=512 * 512,
    )
    stream = wiring.ar_stream(client, "w1")
    stream.ensure_groups()
    alone = ArWorker(engine, stream, store, stages, blobs, heartbeat, name="w1", min_distinct=0.0, watchdog=Watchdog(0))
    again = _submit(store)
    _run_until(alone, lambda: [*_states(store, long), *_states(store, again)] == [S.PLANNED] * 2)
    assert store.get(long).images[0].ar_attempts == 2
    assert store.plan(ImageRef(again, 0)) == store.plan(ImageRef(quick, 0))  # what two ranks had planned
    alone.release_all()

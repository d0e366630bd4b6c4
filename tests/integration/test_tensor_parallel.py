"""An AR worker of two processes that share the model, over gloo: it plans the right pictures, and dies as one."""

import os
import signal
from pathlib import Path

import pytest

from tests.integration.stack import RunningStack, alive
from tests.integration.test_faults import _judge_all, _running, _submit_some
from tests.servers import wait_until


@pytest.fixture(scope="module")
def stack(tmp_path_factory):
    stack = RunningStack(tmp_path_factory.mktemp("parallel"), environment={"PLANPAINT_AR_TP": "2"})
    try:
        stack.wait_ready()
        yield stack
    finally:
        stack.stop()


def _leader(stack: RunningStack) -> int:
    (worker,) = [worker for worker in stack.workers("ar") if alive(worker["pid"])]
    return worker["pid"]


def _follower(leader: int) -> int:
    (pid,) = [int(pid) for pid in Path(f"/proc/{leader}/task/{leader}/children").read_text().split()]
    assert b"--rank" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return pid


@pytest.mark.parametrize("killed", ["follower", "leader"])
def test_a_dead_rank_ends_the_group_and_another_takes_over(stack, killed):
    leader = _leader(stack)
    follower = _follower(leader)
    ids = _submit_some(stack)
    wait_until(lambda: any(_running(stack, job_id, "ar") for job_id in ids), timeout=60, what="planning")
    os.kill({"follower": follower, "leader": leader}[killed], signal.SIGKILL)
    wait_until(lambda: not alive(leader) and not alive(follower), timeout=15, what="the end of both ranks")
    jobs = _judge_all(stack, ids)
    assert any(image["attempts"]["ar"] == 2 for job in jobs for image in job["images"])
    assert _leader(stack) != leader

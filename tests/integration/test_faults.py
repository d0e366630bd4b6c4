"""Real processes killed by pid while they work: everything accepted still ends, and each picture is the right one."""

import os
import signal

import requests

from loadtest.orders import SURE
from tests.integration.stack import RunningStack, alive
from tests.servers import wait_until


def _submit_some(stack: RunningStack) -> list[str]:
    """The first takes long enough to be hit while it is painted."""
    return [
        stack.submit(prompt, temperature=0, steps=30 if number == 0 else 12)["id"]
        for number, prompt in enumerate(SURE[:3])
    ]


def _judge_all(stack: RunningStack, ids: list[str]) -> list[dict]:
    jobs = stack.wait_done(*ids)
    for job in jobs:
        assert job["status"] == "succeeded", job
    stack.check_pictures(*jobs)
    return jobs


def _running(stack: RunningStack, job_id: str, stage: str) -> bool:
    image = stack.get(job_id)["images"][0]
    return image["status"] == "running" and image["stage"] == stage


def _kill(stack: RunningStack, role: str) -> int:
    (worker,) = [worker for worker in stack.workers(role) if alive(worker["pid"])]
    os.kill(worker["pid"], signal.SIGKILL)
    return worker["pid"]


def test_workers_killed_while_they_plan_and_while_they_paint(stack):
    ids = _submit_some(stack)
    wait_until(lambda: any(_running(stack, job_id, "ar") for job_id in ids), what="planning")
    _kill(stack, "ar")
    wait_until(lambda: any(_painting(stack, job_id) for job_id in ids), timeout=60, what="painting")
    attempts = [image["attempts"]["ar"] for job_id in ids for image in stack.get(job_id)["images"]]
    assert max(attempts) == 2
    _kill(stack, "dit")
    images = [image for job in _judge_all(stack, ids) for image in job["images"]]
    assert any(image["attempts"]["dit"] == 2 for image in images)
    # What was planned is not planned again.
    assert [image["attempts"]["ar"] for image in images] == attempts


def _painting(stack: RunningStack, job_id: str) -> bool:
    return any(image["status"] == "running" and image["step"] > 0 for image in stack.get(job_id)["images"])


def test_redis_killed_again_and_again_loses_nothing(stack):
    """An ack that is lost must not cost the DiT worker its next message: several outages, so that one hits an ack.

    Comfy-Org/ComfyUI#2844, Comfy-Org/ComfyUI#13512: queue and history were gone after a restart.
    """
    ids = [stack.submit(SURE[index], temperature=0, steps=6, n=3, seed=index)["id"] for index in range(3)]
    for _ in range(3):
        wait_until(lambda: any(_painting(stack, job_id) for job_id in ids) or _all_done(stack, ids), what="painting")
        pid = stack.pid("valkey")
        os.kill(pid, signal.SIGKILL)
        answer = requests.get(f"{stack.url}/v1/jobs/{ids[0]}", timeout=3)
        assert answer.status_code in (200, 503)
        wait_until(lambda dead=pid: dead not in stack.children() and stack.children(), what="the end")
        wait_until(lambda: any("valkey" in command for command in stack.children().values()), what="the restart")
    _judge_all(stack, ids)


def _all_done(stack: RunningStack, ids: list[str]) -> bool:
    return all(stack.get(job_id)["completed_at"] for job_id in ids)


def test_object_storage_killed_and_restarted_loses_nothing(stack):
    ids = _submit_some(stack)
    wait_until(lambda: any(_running(stack, job_id, "dit") for job_id in ids), timeout=60, what="painting")
    os.kill(stack.pid("weed"), signal.SIGKILL)
    jobs = _judge_all(stack, ids)
    assert all(image["attempts"] == {"ar": 1, "dit": 1} for job in jobs for image in job["images"])


def test_the_api_answers_503_while_redis_is_stopped_and_recovers(stack):
    job = stack.submit(steps=2)
    stack.wait_done(job["id"])
    pid = stack.pid("valkey")
    os.kill(pid, signal.SIGSTOP)
    try:
        answer = requests.post(f"{stack.url}/v1/jobs", json={"prompt": "x", "size": "32x32"}, timeout=3)
        assert answer.status_code == 503
        assert answer.headers["Retry-After"]
        assert requests.get(f"{stack.url}/readyz", timeout=3).status_code == 503
        assert requests.get(f"{stack.url}/healthz", timeout=3).status_code == 200
    finally:
        os.kill(pid, signal.SIGCONT)
    wait_until(lambda: requests.get(f"{stack.url}/readyz", timeout=5).status_code == 200, what="readiness")
    (job,) = stack.wait_done(stack.submit(steps=2)["id"])
    assert job["status"] == "succeeded"

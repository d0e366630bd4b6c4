"""Real processes killed by pid while they work: everything accepted still ends, and each picture is the right one."""

import os
import signal

import requests

from loadtest.orders import SURE
from tests.integration.stack import RunningStack, alive
from tests.servers import wait_until


def _submit_some(stack: RunningStack, **fields) -> list[str]:
    return [stack.submit(prompt, temperature=0, **fields)["id"] for prompt in SURE[:3]]


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


def test_an_ar_worker_killed_while_it_plans(stack):
    ids = _submit_some(stack)
    wait_until(lambda: any(_running(stack, job_id, "ar") for job_id in ids), what="planning")
    _kill(stack, "ar")
    jobs = _judge_all(stack, ids)
    assert any(image["attempts"]["ar"] == 2 for job in jobs for image in job["images"])


def test_a_dit_worker_killed_while_it_paints_does_not_plan_again(stack):
    ids = _submit_some(stack, steps=30)
    wait_until(lambda: any(_painting(stack, job_id) for job_id in ids), timeout=60, what="painting")
    _kill(stack, "dit")
    jobs = _judge_all(stack, ids)
    images = [image for job in jobs for image in job["images"]]
    assert any(image["attempts"]["dit"] == 2 for image in images)
    assert all(image["attempts"]["ar"] == 1 for image in images)


def _painting(stack: RunningStack, job_id: str) -> bool:
    return any(image["status"] == "running" and image["step"] > 0 for image in stack.get(job_id)["images"])


def test_every_worker_killed_right_after_a_submit(stack):
    job_id = stack.submit(SURE[0], temperature=0)["id"]
    killed = [_kill(stack, role) for role in ("ar", "dit", "courier", "sweeper")]
    _judge_all(stack, [job_id])
    wait_until(
        lambda: (
            len({w["pid"] for role in ("ar", "dit", "courier", "sweeper") for w in stack.workers(role)} - set(killed))
            == 4
        ),
        timeout=90,
        what="four new workers",
    )


def test_redis_killed_and_restarted_loses_nothing(stack):
    """Comfy-Org/ComfyUI#2844, Comfy-Org/ComfyUI#13512: queue and history were gone after a restart."""
    ids = _submit_some(stack, steps=30)
    wait_until(lambda: any(_running(stack, job_id, "dit") for job_id in ids), timeout=60, what="painting")
    os.kill(stack.pid("valkey"), signal.SIGKILL)
    answer = requests.get(f"{stack.url}/v1/jobs/{ids[0]}", timeout=3)
    assert answer.status_code in (200, 503)
    _judge_all(stack, ids)


def test_redis_away_when_a_picture_is_finished_does_not_leave_the_worker_deaf(stack):
    """An ack that is lost must not cost the DiT worker its next message: several outages, so that one hits an ack."""
    ids = [stack.submit(SURE[index], temperature=0, steps=6, n=4, seed=index)["id"] for index in range(3)]
    for _ in range(3):
        wait_until(lambda: any(_painting(stack, job_id) for job_id in ids) or _all_done(stack, ids), what="painting")
        pid = stack.pid("valkey")
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda dead=pid: dead not in stack.children() and stack.children(), what="the end")
        wait_until(lambda: any("valkey" in command for command in stack.children().values()), what="the restart")
    _judge_all(stack, ids)


def _all_done(stack: RunningStack, ids: list[str]) -> bool:
    return all(stack.get(job_id)["completed_at"] for job_id in ids)


def test_object_storage_killed_and_restarted_loses_nothing(stack):
    ids = _submit_some(stack, steps=30)
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

"""Redis killed, stopped, full and empty: what was accepted is done, and work goes on by itself."""

import os
import signal
import subprocess
import time
from pathlib import Path

import click
import pytest
import requests

from app.errors import PlanpaintError
from app.launcher import embedded
from app.settings import PREFIX
from tests.chaos.conftest import Attacked
from tests.servers import wait_until

#: Work must go on within this time of Redis's return, seconds.
RESUME_S = 5.0


def _submit(attacked: Attacked) -> requests.Response:
    body = {"prompt": "x", "size": "32x32", "steps": 1}
    return requests.post(f"{attacked.cluster.api_url}/v1/jobs", json=body, timeout=10)


def _resumed(attacked: Attacked, back_ms: int, before: tuple[int, int]) -> bool:
    claimed = [claimed for *_, claimed in attacked.witness.open_images().values()]
    return attacked.witness.progress() != before or any(at > back_ms for at in claimed)


@pytest.mark.chaos
@pytest.mark.parametrize("down_s", [0.5, 5.0, 40.0])
def test_work_goes_on_within_seconds_of_its_return(attacked, down_s):
    accepted = [attacked.order(n=4, seed=seed, steps=40, size="64x64") for seed in range(3)]
    attacked.until(lambda: attacked.state(accepted[0]) == "painting", "painting")
    (redis,) = attacked.cluster.of("redis")
    redis.held_until = time.monotonic() + down_s
    redis.signal(signal.SIGKILL)
    attacked.until(lambda: not redis.running, "the end of Redis")
    assert _submit(attacked).status_code == 503
    # It answers TIME while it still loads its data.
    attacked.until(lambda: redis.running and attacked.witness.progress(), "Redis")
    back, back_ms, before = time.monotonic(), attacked.witness.now_ms(), attacked.witness.progress()
    attacked.until(lambda: _resumed(attacked, back_ms, before), "a new lease or result")
    took = time.monotonic() - back
    click.echo(f"resumed {took:.2f} s after {down_s:g} s without Redis, limit {RESUME_S:g} s")
    assert took < RESUME_S
    assert attacked.verdict(*accepted) == []


def test_a_redis_without_memory_refuses_and_everything_goes_on_afterwards(attacked):
    """Celery pops a message and cannot record it then, and its worker ends: only the sweeper knows of the image."""
    accepted = attacked.order(n=2, steps=60)
    attacked.until(lambda: attacked.state(accepted) == "painting", "painting")
    attacked.client.config_set("maxmemory", 1)
    try:
        answer = _submit(attacked)
        assert answer.status_code == 503
        assert answer.headers["Retry-After"]
        deadline = time.monotonic() + 4  # longer than a lease
        while time.monotonic() < deadline:
            attacked.cluster.restart_dead()
            time.sleep(0.05)
    finally:
        attacked.client.config_set("maxmemory", 0)
    assert attacked.verdict(accepted, attacked.order()) == []


@pytest.mark.chaos
def test_a_server_that_forgot_its_scripts_is_taught_them_again(attacked):
    accepted = attacked.order(n=2, steps=30)
    attacked.until(lambda: attacked.state(accepted) == "painting", "painting")
    attacked.client.script_flush()
    assert attacked.verdict(accepted) == []


@pytest.mark.chaos
def test_a_redis_that_does_not_answer_for_a_minute(attacked):
    """Row 12: calls end with 503 within their time, and none of them hangs on."""
    accepted = attacked.order(n=2)
    (redis,) = attacked.cluster.of("redis")
    redis.signal(signal.SIGSTOP)
    try:
        until = time.monotonic() + 60
        while time.monotonic() < until:
            began = time.monotonic()
            assert _submit(attacked).status_code == 503
            assert time.monotonic() - began < 8
            time.sleep(1)
    finally:
        redis.signal(signal.SIGCONT)
    assert attacked.verdict(accepted, attacked.order()) == []


@pytest.mark.chaos
def test_a_full_disk_refuses_and_everything_goes_on_afterwards(tmp_path):
    """On a small tmpfs: the append-only file cannot grow, writes are refused, and no job that was accepted is lost."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", folder], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"needs a right to mount: {mounted.stderr.decode().strip()}")
    try:
        _fill_and_go_on(folder, tmp_path)
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def _fill_and_go_on(folder: Path, logs: Path) -> None:
    from app import wiring
    from app.domain.states import ImageState
    from app.settings import load
    from tests.store.orders import submit

    credentials = embedded.Credentials.load(folder)
    valkey = embedded.valkey(folder, logs, credentials)
    settings = load({PREFIX + "REDIS_URL": embedded.redis_url(credentials)})
    valkey.start()
    client = wiring.api_client(settings)
    try:
        wait_until(lambda: embedded.redis_answers(embedded.redis_url(credentials)), what="valkey")
        store = wiring.job_store(settings, client)
        accepted = [submit(store)]
        while _accepts(store, accepted):
            assert len(accepted) < 100_000
        refused_after = len(accepted)
        # A restart reads what is there: nothing that was answered may be missing.
        subprocess.run(["mount", "-o", "remount,size=64m", folder], check=True)
        wait_until(lambda: _accepts(store, accepted), what="the end of the refusals")
        os.kill(valkey.pid, signal.SIGKILL)
        wait_until(lambda: not valkey.running, what="the end")
        valkey.start()
        wait_until(lambda: embedded.redis_answers(embedded.redis_url(credentials)), what="valkey")
        assert len(accepted) > refused_after > 10
        assert {store.get(job_id).images[0].state for job_id in accepted} == {ImageState.QUEUED}
    finally:
        client.close()
        valkey.terminate()
        valkey.finish(time.monotonic() + 10)


def _accepts(store, accepted: list[str]) -> bool:
    from tests.store.orders import submit

    try:
        accepted.append(submit(store))
    except PlanpaintError:
        return False
    return True

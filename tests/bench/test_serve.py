import json
import sys
import time

import pytest

from app.bench import serve
from app.bench.cores import core_seconds
from app.bench.serve import LIMITS, Result, Served
from app.launcher.child import Child
from tests.servers import wait_until

BURN = "import time; end = time.process_time() + 0.5\nwhile time.process_time() < end: pass\ntime.sleep(100)"


def test_core_seconds_count_children_and_what_they_started(tmp_path):
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {BURN!r}])"
    child = Child("dit-1", [sys.executable, "-c", code], environment={}, log=tmp_path / "log")
    child.start()
    try:
        wait_until(lambda: core_seconds([child])["dit"] >= 0.5, what="half a second of work in the grandchild")
    finally:
        child._kill_group()
        child.finish(time.monotonic() + 5)


def test_prompts_differ():
    assert len(set(serve._prompts(32))) == 32


@pytest.mark.parametrize(("served", "status"), [(2.6, 0), (2.0, 1)])
def test_every_ratio_decides(served, status, monkeypatch, capsys):
    """The three measurements are stood in for: what is tested is what becomes of them."""
    monkeypatch.setattr(serve, "_serve", lambda prompts: Served(served, {"dit": 0.7}))
    monkeypatch.setattr(serve, "_reference", lambda prompts: (0.5, 1.6))
    monkeypatch.setattr(serve, "_bare", lambda prompts: (0.1, 0.6))
    assert serve.run(as_json=True) == status
    said = capsys.readouterr().out
    result = Result(**json.loads(said.splitlines()[-1]))
    assert result.monolith_ratio == pytest.approx(served / 0.5)
    assert result.list8_ratio == pytest.approx(served / 1.6)
    assert result.limit_share == pytest.approx(served / (2 / 0.7), rel=1e-3)
    missed = [name for name, least in LIMITS.items() if getattr(result, name) < least]
    assert said.count("below its limit") == len(missed)

import ast
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from app import crash_points
from app.errors import Misconfigured
from app.settings import load

ROOT = Path(__file__).parent.parent
_TIMES = (
    "from app import crash_points\nfor each in range(5): crash_points.reach('ar.decoding'); print(each, flush=True)"
)


def _run(value: str | None) -> tuple[int, int]:
    """Exit status, and how often the point was passed."""
    environment = {name: text for name, text in os.environ.items() if name != crash_points.VARIABLE}
    ended = subprocess.run(
        [sys.executable, "-c", _TIMES],
        env=environment | ({} if value is None else {crash_points.VARIABLE: value}),
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    return ended.returncode, len(ended.stdout.splitlines())


def test_a_process_dies_at_the_named_time_and_only_once_where_a_file_says_so(tmp_path):
    assert _run(None) == (0, 5)
    assert _run("ar.before_claim") == (0, 5)
    assert _run("ar.before_claim,ar.decoding") == (-signal.SIGKILL, 0)
    once = f"ar.decoding:3@{tmp_path / 'died'}"
    assert _run(once) == (-signal.SIGKILL, 2)
    assert _run(once) == (0, 5)


def test_a_process_that_hangs_goes_no_further_and_lives():
    script = "import threading, time, os\n" + _TIMES.replace(
        "for", "threading.Timer(1, lambda: (print('alive', flush=True), os._exit(3))).start()\nfor"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {crash_points.VARIABLE: "ar.decoding:2+hang"},
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert (ended.returncode, ended.stdout.split()) == (3, ["0", "alive"])


@pytest.mark.parametrize(
    "value",
    ["ar.nowhere", "ar.decoding:0", "ar.decoding:x", "ar.decoding+hang:2", "ar.decoding+sleep", "ar.decoding,dit"],
)
def test_a_point_that_does_not_exist_refuses_to_start(value, monkeypatch):
    monkeypatch.setenv(crash_points.VARIABLE, value)
    with pytest.raises(Misconfigured, match=crash_points.VARIABLE):
        load({crash_points.VARIABLE: value})


def test_it_is_no_setting(monkeypatch):
    monkeypatch.setenv(crash_points.VARIABLE, "ar.decoding")
    assert load({crash_points.VARIABLE: "ar.decoding"}) == load({})


def test_every_point_is_reached_somewhere_and_no_other_one():
    files = [path for top in ("app", "api", "workers") for path in (ROOT / top).rglob("*.py")]
    nodes = [node for path in files for node in ast.walk(ast.parse(path.read_text("utf-8")))]
    calls = [node for node in nodes if isinstance(node, ast.Call) and ast.unparse(node.func) == "crash_points.reach"]
    reached = [ast.literal_eval(call.args[0]) for call in calls]
    assert sorted(reached) == sorted(crash_points.POINTS)

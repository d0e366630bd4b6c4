import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from app.launcher.child import EX_AGAIN, EX_CONFIG, Child
from app.launcher.ports import GRPC_OFFSET, free_ports
from tests.servers import wait_until


def _child(tmp_path, code, name="child"):
    child = Child(name, [sys.executable, "-c", code], environment={}, log=tmp_path / f"{name}.log")
    child.start()
    return child


def _alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().split()[2] != "Z"
    except OSError:
        return False


def test_a_child_that_dies_is_restarted_after_a_pause(tmp_path):
    child = _child(tmp_path, "import time; time.sleep(100)")
    try:
        first = child.pid
        assert child.revive() is None
        os.kill(first, signal.SIGKILL)
        lines = []
        wait_until(lambda: ((line := child.revive()) and lines.append(line)) or child.restarts == 1, what="the restart")
        assert child.pid != first
        assert child.running
        assert "status -9" in lines[0]
    finally:
        child.terminate()
        child.finish(time.monotonic() + 5)


def test_a_child_that_ignores_term_is_killed_with_what_it_started(tmp_path):
    code = (
        "import signal, subprocess, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(100)']); print(p.pid, flush=True);"
        "time.sleep(100)"
    )
    child = _child(tmp_path, code)
    wait_until(lambda: child.last_line(), what="the grandchild starts")
    grandchild = int(child.last_line())
    child.terminate()
    child.finish(time.monotonic() + 0.2)
    assert not child.running
    wait_until(lambda: not _alive(grandchild), what="the grandchild ends")


def test_a_child_that_asks_for_a_new_process_gets_it_at_once(tmp_path):
    marks = tmp_path / "marks"
    child = _child(tmp_path, f"open({str(marks)!r}, 'a').write('x'); import sys; sys.exit({EX_AGAIN})")
    lines = []
    for number in range(1, 6):
        wait_until(lambda: not child.running, what="its end")
        wait_until(lambda n=number: (lines.append(child.revive()), child.restarts)[1] == n, what="the restart")
    child.finish(time.monotonic() + 5)
    assert len(marks.read_text()) == 6
    # A child that merely died would have waited for longer each time.
    assert [line for line in lines if line and "restart in" in line] == [
        f"child ended with status {EX_AGAIN}; restart in 0 s"
    ] * 5


def test_a_misconfigured_child_says_so(tmp_path):
    child = _child(tmp_path, f"import sys; print('planpaint: no such file'); sys.exit({EX_CONFIG})")
    wait_until(lambda: child.misconfigured, what="the child ends")
    assert child.last_line() == "no such file"


def test_children_die_with_a_killed_launcher(tmp_path):
    launcher = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys, time; from pathlib import Path; from app.launcher.child import Child;"
            "c = Child('c', [sys.executable, '-c', 'import time; time.sleep(100)'], environment={},"
            f" log=Path({str(tmp_path)!r}) / 'c.log'); c.start(); print(c.pid, flush=True); time.sleep(100)",
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert launcher.stdout is not None
    pid = int(launcher.stdout.readline())
    # The tether has become the command once its own name is gone from the command line.
    wait_until(lambda: b"tether" not in Path(f"/proc/{pid}/cmdline").read_bytes(), what="the command runs")
    launcher.kill()
    launcher.wait()
    launcher.stdout.close()
    wait_until(lambda: not _alive(pid), what="the child ends")


def test_free_ports_are_distinct_and_the_preferred_ones_are_kept():
    ports = free_ports(5, with_grpc=True)
    assert len({p for port in ports for p in (port, port + GRPC_OFFSET)}) == 10
    assert max(ports) < 55_000
    assert free_ports(5, with_grpc=True, preferred=ports) == ports

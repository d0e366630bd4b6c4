"""The watchdog ends real processes that hang, also inside a call that never gives the interpreter back."""

import subprocess
import sys

_SCRIPT = """
import re, time
from workers.watchdog import Watchdog
def hang():
    re.match(r"(a+)+$", "a" * 64 + "b")  # for years, and no other Python thread runs meanwhile
{body}
print("survived")
"""


def _run(body: str) -> subprocess.CompletedProcess[str]:
    script = _SCRIPT.format(body=body)
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)


def test_a_process_that_hangs_ends_and_says_where():
    ended = _run("with Watchdog(0.2):\n    hang()")
    assert ended.returncode == 1
    assert "in hang" in ended.stderr
    assert "survived" not in ended.stdout


def test_it_watches_on_after_signs_of_life():
    living = "for _ in range(5):\n    dog.alive()\n    time.sleep(0.6)\nprint('lived', flush=True)"
    ended = _run(f"dog = Watchdog(1.0)\n{living}\nhang()")
    assert ended.returncode == 1
    assert "lived" in ended.stdout


def test_rest_and_the_end_of_the_watch_have_no_limit():
    ended = _run("dog = Watchdog(0.1)\ndog.alive()\ndog.rest()\nwith dog:\n    pass\ntime.sleep(1.5)")
    assert (ended.returncode, ended.stdout) == (0, "survived\n")


def test_zero_is_no_limit():
    assert _run("with Watchdog(0):\n    time.sleep(1.3)").stdout == "survived\n"

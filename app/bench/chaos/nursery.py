"""`python -m app.bench.chaos.nursery`: has everything imported that a worker needs, and forks one for each order.

Importing torch and diffusers costs a worker many seconds of a core. A harness that kills a worker every few seconds
would measure little else, so here each one begins as a fork of a process that has done only that. One line of JSON on
stdin is an order: {"role", "environment", "log"}; the answer is a line with the pid. The end of stdin ends all.
"""

import ctypes
import gc
import json
import os
import random
import signal
import sys
import traceback

# What workers import, before there is any thread: a fork would not have it.
import workers.ar
import workers.courier
import workers.dit
import workers.sweeper  # noqa: F401
from app import cli

_PR_SET_PDEATHSIG = 1


def main() -> None:
    # Nobody here waits for children: the kernel forgets them at once, and the harness watches them by pidfd.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    gc.freeze()
    print("ready", flush=True)  # noqa: T201 - the answer to the harness
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _be(order["role"], order["environment"], order["log"])
        print(pid, flush=True)  # noqa: T201 - the answer to the harness


def _be(role: str, environment: dict[str, str], log: str) -> None:
    """Become a worker, for good."""
    status = 1
    try:
        parent = os.getppid()
        os.setsid()
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            return
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.environ.update(environment)
        random.seed()
        out = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        for stream in (1, 2):
            os.dup2(out, stream)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        sys.argv = ["planpaint", role]
        cli.main()
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    main()

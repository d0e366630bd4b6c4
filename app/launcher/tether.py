"""`python -m app.launcher.tether COMMAND...`: becomes COMMAND, which the kernel will stop when our parent dies.

Without it a launcher killed by SIGKILL would leave servers behind. Linux only; elsewhere the command just runs.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    parent = os.getppid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            sys.exit("the parent died before its child began")
    os.execv(sys.argv[1], sys.argv[1:])  # noqa: S606 - the argument list is the launcher's own


if __name__ == "__main__":
    main()

"""`python -m app.launcher.tether PARENT COMMAND...`: becomes COMMAND, which the kernel stops when its parent dies.

Without it a launcher killed by SIGKILL would leave servers behind. Linux only; elsewhere the command just runs.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, command = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        # It may have died before the call above, and nobody would tell us.
        if os.getppid() != parent:
            sys.exit("the parent died before its child began")
    os.execv(command[0], command)  # noqa: S606 - the argument list is the launcher's own


if __name__ == "__main__":
    main()

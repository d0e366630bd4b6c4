"""`python -m app.launcher.tether PARENT SIGNAL COMMAND...`: becomes COMMAND, which gets SIGNAL when its parent dies.

The kernel sends it: TERM for what stops in good order, KILL for what may hang and has nothing to lose. Without it a
launcher killed by SIGKILL would leave servers behind. Linux only; elsewhere the command just runs.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, number, command = int(sys.argv[1]), signal.Signals[f"SIG{sys.argv[2]}"], sys.argv[3:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
        # It may have died before the call above, and nobody would tell us.
        if os.getppid() != parent:
            sys.exit("the parent died before its child began")
    os.execv(command[0], command)  # noqa: S606 - the argument list is the launcher's own


if __name__ == "__main__":
    main()

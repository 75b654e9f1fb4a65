"""`python -m kafkad.testing.launch PARENT ARGUMENTS...`: run the command `kafkad` until the parent dies.

The kernel sends SIGKILL when the parent dies (PR_SET_PDEATHSIG), so a killed test run leaves no broker
behind. The child makes this request itself, because a parent with threads must not run Python between fork
and exec. Beware: the kernel watches the parent's *thread*; `broker.py` starts its children from a permanent
one.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    parent = int(sys.argv.pop(1))
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent died before the request
        sys.exit(1)
    from kafkad.__main__ import main as kafkad

    kafkad()


if __name__ == "__main__":
    main()

"""`python -m kafkad.testing.launch PARENT ARGUMENTS...`: the command `kafkad`, which dies with its parent.

The kernel is asked for SIGKILL at the death of the parent (PR_SET_PDEATHSIG), so that a test run that is
killed leaves no broker behind. It is asked here, in the child, and not between fork and exec, where a
parent with threads must run no Python. Beware: the kernel means the parent's *thread*; `broker.py` starts
its children from one that stays.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    parent = int(sys.argv.pop(1))
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before we asked
        sys.exit(1)
    from kafkad.__main__ import main as kafkad

    kafkad()


if __name__ == "__main__":
    main()

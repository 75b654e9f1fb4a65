"""How a command of kafkad ends: one error message on stderr, and an exit code.

0    done
1    refused by the broker, or the request cannot be fulfilled
2    the command line or the configuration is wrong
70   a bug in kafkad (KAFKAD_DEBUG=1 shows the traceback)
130, 143, 141   Ctrl-C, SIGTERM, the reader of our output has gone; the shell's numbers for these signals
"""

import os
import sys
from typing import NoReturn

STDERR = 2
INTERRUPTED, TERMINATED, BROKEN_PIPE, OURS = 130, 143, 141, 70


def begin() -> None:
    """Call before anything else of a command."""
    open_standard_streams()
    if not __debug__:
        end("kafkad does not run under python -O: its assertions guard your data", 2)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def open_standard_streams() -> None:
    """Open /dev/null for descriptors 0 to 2 that are closed. Otherwise the next opened file or socket would
    get such a number, and output would be written to it; and Python has no stream for it.
    """
    while (fd := os.open(os.devnull, os.O_RDWR)) <= STDERR:
        os.set_inheritable(fd, True)
    os.close(fd)
    for fd, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (STDERR, "stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(fd, mode, closefd=False))  # noqa: SIM115


def end_unless_built(trouble: ImportError) -> None:
    """End if the native modules are not built; return after any other failed import."""
    if type(trouble).__name__ == "NotBuilt":  # defined in kafkad._native, which cannot be imported then
        end(str(trouble), 1)


def sentence(text: str) -> str:
    return " ".join(text.split()).rstrip(".")


def end(text: str, code: int) -> NoReturn:
    try:
        print(f"kafkad: {sentence(text)}.", file=sys.stderr)
    except OSError:
        pass
    leave(code)


def leave(code: int) -> NoReturn:
    """Exit. Print nothing if the reader of stdout is gone."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = code or BROKEN_PIPE
    except ValueError:
        pass  # closed already
    sys.exit(code)

"""Print what this machine lacks to build kafkad. Print nothing and exit with 0 if it lacks nothing.

It runs with the user's python3, so it must work with old versions.
"""

import os
import shutil
import sys
import sysconfig

OLDEST = (3, 11)


def missing():
    if sys.version_info[:2] < OLDEST:
        return (
            "kafkad needs Python {}.{} or newer, and {} is {}.{}: try `make PYTHON=python3.12 ...`.".format(
                *OLDEST, sys.executable, *sys.version_info[:2]
            )
        )
    if not sys.platform.startswith("linux"):
        return "kafkad needs Linux (epoll, sendfile, open file description locks)."
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError:
        return "Python's venv module is missing: install it (Debian: python3-venv)."
    if not os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h")):
        return "Python's C headers are missing: install them (Debian: python3-dev; Fedora: python3-devel)."
    compiler = (os.environ.get("CC") or "cc").split()[0]
    if not (shutil.which(compiler) or shutil.which("gcc")):
        return "There is no C compiler: install one (Debian: build-essential; Fedora: gcc)."
    return None


if __name__ == "__main__":
    sentence = missing()
    if sentence:
        print(sentence, file=sys.stderr)
        sys.exit(1)

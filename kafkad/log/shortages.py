"""How shortages (a full disk, no descriptor, no memory, no thread) are logged.

A shortage fails one request and ends when there is room again, so nothing stops and every client tries again,
thousands of times per second. The operator gets one ERROR line with the directory, the partition and the
errno, then one per half minute with the number of failures since:

    t-3 in /data/d1: a request failed: [Errno 28] appending: No space left on device (ENOSPC)

Beware: a process has one table of what it logged; failures are reported on the loop and in threads."""

import errno
import logging
import os
import threading
import time

logger = logging.getLogger("kafkad.log")

INTERVAL_S = 30.0  # between two lines about the same errno in the same directory

Key = tuple[str, int, int]

_lock = threading.Lock()
_logged: dict[Key, tuple[float, int]] = {}  # when a line was logged, failures since


def report(directory: str, doing: str, error: OSError, *, level: int = logging.ERROR) -> None:
    """Log that `doing` failed in a partition's `directory`, unless that was logged a moment ago."""
    parent, name = os.path.split(directory)
    code = error.errno or 0
    key = (parent, code, level)
    now = time.monotonic()
    with _lock:
        logged, count = _logged.get(key, (-INTERVAL_S, 0))
        if now - logged < INTERVAL_S:
            _logged[key] = (logged, count + 1)
            return
        _logged[key] = (now, 0)
    more = f". {count} more failures in {parent} since the last line" if count else ""
    logger.log(level, "%s in %s: %s failed: %s (%s)%s", name, parent, doing, error,
               errno.errorcode.get(code, "no errno"), more)  # fmt: skip


def forget() -> None:
    """Log the next failure at once. For tests."""
    with _lock:
        _logged.clear()

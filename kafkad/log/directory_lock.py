"""The lock of a data directory: two brokers, including JVM brokers, never serve the same directory.

Beware: use F_OFD_SETLK, not flock (Java's POSIX lock would not conflict with it) and not a POSIX lock
(closing any other descriptor of the file in this process would release it)."""

import errno
import fcntl
import os
import struct
from typing import Final

LOCK: Final = ".lock"
_FLOCK: Final = struct.Struct("hhqqi4x")  # struct flock: type, whence, start, length, pid


class InUse(Exception):
    """Another broker holds the lock."""


def lock_directory(path: str) -> int:
    """Return a descriptor that holds the lock until it is closed. Raises InUse; OSError if the directory
    cannot be used."""
    lock = os.open(os.path.join(path, LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.fcntl(lock, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
    except OSError as e:
        os.close(lock)
        if e.errno in (errno.EAGAIN, errno.EACCES):
            raise InUse from None
        raise
    return lock

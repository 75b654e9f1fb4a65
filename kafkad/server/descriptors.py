"""Reserves a wide kernel table of file descriptors for a worker, before it has threads.

The table doubles when it is full (256, 512, 1024, ...). In a process with threads, Linux then waits until no
CPU uses the old one (expand_fdtable: synchronize_rcu), so an `open` takes 10 to 30 ms, and delays the
requests behind it. So a worker that is about to have threads asks for a wide table first. It costs 8 bytes
per descriptor. Beware: a fork copies only the part in use, so each worker must do this for itself."""

import fcntl
import os
import resource

ROOM = 1 << 15  # descriptors: 256 KB of the kernel's memory


def make_room(room: int = ROOM) -> None:
    """Make room for `room` descriptors, at most as many as the process may open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = (room if soft == resource.RLIM_INFINITY else min(room, soft)) - 1
    read, write = os.pipe()
    try:
        os.close(fcntl.fcntl(read, fcntl.F_DUPFD_CLOEXEC, highest))
    except OSError:
        pass  # no memory, or not permitted: the table grows when necessary
    finally:
        os.close(read)
        os.close(write)

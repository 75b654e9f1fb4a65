"""Where logs go in memory, and that this memory is as good in each run as in the first.

A tmpfs of huge pages takes what huge pages there are and goes on with small ones in silence: a write then
costs nearly twice the CPU (512 page faults for one), and with the page cache of hours of other work in the
way it is chance which broker gets them. So before a run what is free is looked at (/proc/buddyinfo), and when
it is less than the run will write, the clean page cache is dropped and memory compacted.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import psutil

HUGE_PAGE_ORDER = 9  # 2 MB of pages of 4 KB
PREFIX = "kafkad-bench-"  # of directories; behind it, the process id of the bench that they belong to


def tmpfs() -> Path:
    """A directory on a tmpfs of ordinary pages, else in the temporary directory."""
    shm = Path("/dev/shm")
    if not shm.is_dir():
        return Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-"))
    for orphan in filter(is_orphan, shm.iterdir()):
        shutil.rmtree(orphan, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=shm))


def huge_tmpfs() -> Path | None:
    """A tmpfs of huge pages, mounted, where one may be."""
    for partition in psutil.disk_partitions(all=True):
        if is_orphan(Path(partition.mountpoint)):
            unmount(Path(partition.mountpoint))
    where = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-"))
    mount = ["mount", "-t", "tmpfs", "-o", "huge=always,size=20g", "tmpfs", str(where)]
    if os.geteuid() == 0 and subprocess.run(mount, capture_output=True).returncode == 0:
        return where
    where.rmdir()
    return None


def unmount(where: Path) -> None:
    subprocess.run(["umount", "-l", str(where)], check=False)
    shutil.rmtree(where, ignore_errors=True)


def is_orphan(path: Path) -> bool:
    """Left by a bench that was killed: it would take memory away from the one that measures now."""
    found = re.match(re.escape(PREFIX) + r"(\d+)-", path.name)
    return found is not None and not psutil.pid_exists(int(found[1]))


def free_huge_bytes() -> int:
    """Free memory that stands in whole huge pages."""
    total = 0
    for line in Path("/proc/buddyinfo").read_text().splitlines():
        counts = line.split()[4:]  # Node 0, zone NAME, then blocks of 2^order pages
        total += sum(int(n) << order for order, n in enumerate(counts) if order >= HUGE_PAGE_ORDER)
    return total * os.sysconf("SC_PAGE_SIZE")


def make_room(megabytes: int) -> None:
    """As many free huge pages, if that can be had and this process may ask for it."""
    if free_huge_bytes() >= megabytes << 20 or os.geteuid() != 0:
        return
    for knob in ("drop_caches", "compact_memory"):
        try:
            Path("/proc/sys/vm", knob).write_text("1")
        except OSError:
            return  # a container may not


def touch_memory(directory: Path, megabytes: int) -> None:
    """Writes and deletes a file: memory that the machine's host took back is slow at its first touch."""
    make_room(megabytes)
    path = directory / f"touched-{time.monotonic_ns()}"
    block = bytes(1 << 20)
    try:
        with open(path, "wb", buffering=0) as file:
            for _ in range(megabytes):
                file.write(block)
    finally:
        path.unlink(missing_ok=True)


def filesystem(path: Path) -> str:
    """The type of the file system that holds `path`."""
    mounts = sorted(psutil.disk_partitions(all=True), key=lambda m: len(m.mountpoint))
    return next((m.fstype for m in reversed(mounts) if path.resolve().is_relative_to(m.mountpoint)), "?")

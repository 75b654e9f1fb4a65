"""Keep the logs' memory equally good in every run.

A tmpfs of huge pages silently uses small pages when no huge pages are left. A write then costs nearly twice
the CPU (512 page faults instead of one). With a full page cache from earlier work, it is random which broker
gets the huge pages. So free memory is checked before a run (/proc/buddyinfo). If it is less than the run will
write, the clean page cache is dropped and memory is compacted.

A virtual machine may report its free memory to the host every two seconds (free page reporting), and the host
takes it back. The next first touch of 2 MB then costs milliseconds, which made the tail of a held rate a
hundred times as long. So memory is touched before a run and held in files until no free memory is left to
report. During a run, the memory that it will write is freed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

HUGE_PAGE_ORDER = 9  # 2 MB of pages of 4 KB
REPORTING = Path("/sys/module/page_reporting")
REPORT_SECONDS = 2.2
PIECE_SECONDS = 0.4
PIECE_MARGIN = 1.6  # a piece is so many times what is written until the next one
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


@contextmanager
def touched_memory(
    directory: Path, megabytes: int, mb_per_s: float = 0, seconds: float = 0
) -> Iterator[None]:
    """What a run in this context writes was touched before: `megabytes`, or what one at a held rate writes in
    so many seconds.
    """
    make_room(megabytes)
    bulk = directory / f"touched-{time.monotonic_ns()}"
    pieces: list[Path] = []
    over = threading.Event()
    freeing = threading.Thread(target=set_free, args=(pieces, over))
    try:
        write(bulk, megabytes)
        for _ in range(int(seconds / PIECE_SECONDS) + 2 if mb_per_s else 0):
            pieces.append(directory / f"touched-{time.monotonic_ns()}")
            write(pieces[-1], int(mb_per_s * PIECE_SECONDS * PIECE_MARGIN))
        if REPORTING.exists():
            time.sleep(REPORT_SECONDS)
        if pieces:
            pieces.pop().unlink()
            freeing.start()
        else:
            bulk.unlink()
        yield
    finally:
        over.set()
        if freeing.ident is not None:
            freeing.join()
        for path in (bulk, *pieces):
            path.unlink(missing_ok=True)


def write(path: Path, megabytes: int) -> None:
    block = bytes(1 << 20)
    with open(path, "wb", buffering=0) as file:
        for _ in range(megabytes):
            file.write(block)


def set_free(pieces: list[Path], over: threading.Event) -> None:
    while pieces:
        pieces.pop().unlink()
        if over.wait(PIECE_SECONDS):
            break


def filesystem(path: Path) -> str:
    """The type of the file system that holds `path`."""
    mounts = sorted(psutil.disk_partitions(all=True), key=lambda m: len(m.mountpoint))
    return next((m.fstype for m in reversed(mounts) if path.resolve().is_relative_to(m.mountpoint)), "?")

"""A partition's directory, listed by Python's own calls: slow twin of `_native/log/directory_listing`."""

import os
import stat
from pathlib import Path

OFFSET_MAX = (1 << 63) - 1


def offset_of(name: str) -> int:
    digits = name[:20]
    if len(digits) == 20 and digits.isascii() and digits.isdigit() and int(digits) <= OFFSET_MAX:
        return int(digits)
    return -1


def list_partition(directory: Path):
    sizes, changed, indexes, times = {}, {}, {}, {}
    by_suffix = {".log": sizes, ".index": indexes, ".timeindex": times}
    snapshots = []
    for name in os.listdir(directory):
        if name.endswith((".deleted", ".cleaned", ".swap")):
            return None
        offset, suffix = offset_of(name), name[20:]
        if offset < 0:
            continue
        if suffix == ".snapshot":
            snapshots.append(offset)
        elif suffix in by_suffix:
            status = os.stat(directory / name)
            if stat.S_ISREG(status.st_mode):
                by_suffix[suffix][offset] = status.st_size
                if suffix == ".log":
                    changed[offset] = status.st_mtime_ns // 1_000_000
    snapshots.sort()
    newest = _read(directory / f"{snapshots[-1]:020d}.snapshot") if snapshots else None
    if newest is not None and len(newest) > 56:
        newest = None
    epochs = _read(directory / "leader-epoch-checkpoint")
    metadata = _read(directory / "partition.metadata")
    metadata = metadata and metadata[:4096]
    return sizes, changed, indexes, times, snapshots, epochs, metadata, newest


def _read(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None

"""A small file system of its own, to be filled: a tmpfs. Mounting it needs root."""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def small_disk(where: Path, size: int) -> Iterator[Path]:
    """A file system of `size` bytes at `where`, which is made."""
    where.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(where)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small file system needs root")
    try:
        yield where
    finally:
        subprocess.run(["umount", "-l", where], check=True)

"""The switch for shortages: calls of Python's side and of C's that answer ENOSPC, EMFILE, ENOMEM or EAGAIN.

tests/shortage.c is preloaded into a process, and a mapped file tells it, and all that it forks, how many of
which calls fail. A broker gets `environment`; a test that wants it in its own process runs as a script of its
own (`run`). Nothing of it is in the package."""

import mmap
import os
import struct
import subprocess
import sys
from pathlib import Path

from tests.power import compiled

OPEN, WRITE, NAME, GROW, MAP, THREAD, FORK = (1 << n for n in range(7))
FILES = OPEN | WRITE | NAME | GROW | MAP
ALL = FILES | THREAD | FORK

_WORDS = struct.Struct("=4I")


class Shortages:
    """The switch of the processes that have `environment(under)`; `path` is made unless it is there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.exists():
            path.write_bytes(bytes(4096))
        with open(path, "r+b") as file:
            self._map = mmap.mmap(file.fileno(), 4096)

    def environment(self, under: Path) -> dict[str, str]:
        preloaded = f"{os.environ.get('LD_PRELOAD', '')} {compiled('shortage')}".strip()
        return {"LD_PRELOAD": preloaded, "SHORTAGE_CONTROL": str(self.path), "SHORTAGE_UNDER": str(under)}

    def begin(self, chance: float, kinds: int = ALL, seed: int | None = None) -> None:
        """From now on this share of the calls fails."""
        _, _, state, failed = _WORDS.unpack_from(self._map)
        _WORDS.pack_into(self._map, 0, int(chance * 65536), kinds, state if seed is None else seed, failed)

    def end(self) -> None:
        self.begin(0.0, 0)

    @property
    def failed(self) -> int:
        """How many calls failed so far."""
        count: int = _WORDS.unpack_from(self._map)[3]
        return count


def run(module: str, path: Path, under: Path, *arguments: object, timeout: float) -> str:
    """What `python -m module <control file> <under> ...` prints; its own process has the switch."""
    shortages = Shortages(path)
    done = subprocess.run(
        [sys.executable, "-m", module, str(path), str(under), *map(str, arguments)],
        env={**os.environ, **shortages.environment(under)},
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout

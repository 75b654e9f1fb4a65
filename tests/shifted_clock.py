"""Clocks that a test sets, of the processes that tests/shifted_clock.c is preloaded into.

    clock = ShiftedClock(tmp_path / "clock")
    Broker(..., env=clock.environment())
    clock.set_wall(-HOUR_MS)                what an administrator, NTP or a resumed virtual machine does

Times of files, and timeouts of system calls, stay the kernel's."""

import mmap
import os
import struct
import time
from pathlib import Path

from tests.power import compiled

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS

_WORDS = struct.Struct("=2q")


class ShiftedClock:
    """The clocks of all processes that have `environment()`; `path` is made unless it is there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.exists():
            path.write_bytes(bytes(mmap.PAGESIZE))
        with open(path, "r+b") as file:
            self._map = mmap.mmap(file.fileno(), mmap.PAGESIZE)

    def environment(self) -> dict[str, str]:
        preloaded = f"{os.environ.get('LD_PRELOAD', '')} {compiled('shifted_clock')}".strip()
        return {"LD_PRELOAD": preloaded, "SHIFTED_CLOCK": str(self.path)}

    def set_wall(self, shift_ms: int) -> None:
        """From now on the wall clock is this far from the machine's."""
        struct.pack_into("=q", self._map, 0, shift_ms)

    def set_monotonic(self, shift_ms: int) -> None:
        """The monotonic clock, which may only go forward."""
        assert shift_ms >= _WORDS.unpack_from(self._map)[1]
        struct.pack_into("=q", self._map, 8, shift_ms)

    def now_ms(self) -> int:
        """What time those processes have."""
        wall_ms: int = _WORDS.unpack_from(self._map)[0]
        return time.time_ns() // 1_000_000 + wall_ms

"""Heartbeats: how the supervisor knows that a worker's event loop is running.

    memory created before the fork: beats u64 × N, each written by its worker

A worker increments its counter regularly, from its loop. The supervisor checks LOOKS times within the limit,
and counts consecutive checks without a beat. A hang is measured in checks, not by the clock, so nothing is
killed after all processes were stopped, as in a suspended machine or a paused container: that is one check.

A check does not count if the worker waits for a disk, or is stopped by a debugger. Nor does it count if the
worker's loop has read or written since the last check: it may be creating ten thousand partitions on a slow
machine. Such a worker gets at most SLOW times the limit."""

import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

HANG_S = 30.0  # a loop that hangs for so long serves nobody; each of its own waits is far shorter
BEAT_S = 1.0
LOOKS = 10
SLOW = 10
SUSPECT = 2  # after this many checks it gets no new connections
EXCUSED = "Dt"  # states in /proc: uninterruptible wait; traced


class Vitals(NamedTuple):
    state: str  # as in /proc/<pid>/stat: R runs, S sleeps, D waits for a disk, T is stopped, t is traced
    io: str  # the I/O counters of its main thread, or of all threads; "" if they cannot be read


class Heartbeats:
    def __init__(self, count: int, limit_s: float = HANG_S) -> None:
        self.limit_s = limit_s
        self.beat_s = min(BEAT_S, limit_s / 5)
        self.look_s = limit_s / LOOKS
        self._beats = memoryview(mmap.mmap(-1, 8 * count)).cast("Q")
        # the supervisor's state, by worker
        self._seen = [0] * count  # beats at the last check
        self._silent = [0] * count  # checks since the last beat
        self._still = [0] * count  # those of them that found no activity at all
        self._io: list[str | None] = [None] * count

    def beat(self, k: int) -> None:
        self._beats[k] += 1

    def begin(self, k: int) -> None:
        """A worker starts, or is not checked: its silence so far does not count."""
        self._silent[k] = self._still[k] = 0
        self._io[k] = None

    def look(self, k: int, vitals: Callable[[], Vitals]) -> int:
        """Return how many checks without a beat count against worker k. From LOOKS on, it hangs."""
        beats = self._beats[k]
        if beats != self._seen[k]:
            self._seen[k] = beats
            self.begin(k)
            return 0
        state, io = vitals()
        if state not in EXCUSED:
            self._silent[k] += 1
            if self._io[k] in (None, io):
                self._still[k] += 1
        self._io[k] = io
        return max(self._still[k], self._silent[k] // SLOW)


def vitals_of(pid: int) -> Vitals:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return Vitals("X", "")
    try:
        return Vitals(state, Path(f"/proc/{pid}/task/{pid}/io").read_text())
    except OSError:
        return Vitals(state, "")


def vitals_of_threads(pid: int) -> Vitals:
    """Return the vitals of a worker that starts or stops, when any of its threads may be working."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return vitals_of(pid)
    states = [vitals_of(int(thread)).state for thread in threads]  # /proc/<thread> exists, too
    main = vitals_of(pid).state
    try:
        return Vitals("D" if "D" in states else main, Path(f"/proc/{pid}/io").read_text())
    except OSError:
        return Vitals(main, "")

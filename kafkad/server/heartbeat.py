"""Heartbeats: how the supervisor knows that a worker's event loop turns.

    memory made before the fork: beats u64 × N, each written by its worker

A worker counts up once a while, from its loop. The supervisor looks LOOKS times in the time of its limit, and
counts the looks in a row that found no beat: what hangs is known by looks, not by the clock. So nobody is
killed when all of us were stopped, as in a suspended machine or a paused container: that is one look.

A look at a worker that waits for a disk, or that a debugger holds, says nothing."""

import mmap
from collections.abc import Callable
from pathlib import Path

HANG_S = 30.0  # a loop that stands for so long serves nobody; every wait of its own is shorter by far
BEAT_S = 1.0
LOOKS = 10
SUSPECT = 2  # after so many looks it is given nothing new
EXCUSED = "Dt"  # states in /proc: an uninterruptible wait; traced


class Heartbeats:
    def __init__(self, count: int, limit_s: float = HANG_S) -> None:
        self.limit_s = limit_s
        self.beat_s = min(BEAT_S, limit_s / 5)
        self.look_s = limit_s / LOOKS
        self._beats = memoryview(mmap.mmap(-1, 8 * count)).cast("Q")
        self._seen = [0] * count  # the supervisor's: beats at the last look
        self._still = [0] * count

    def beat(self, k: int) -> None:
        self._beats[k] += 1

    def begin(self, k: int) -> None:
        """A new life, or one that is not looked at: its silence until now is not counted."""
        self._still[k] = 0

    def look(self, k: int, state: Callable[[], str]) -> int:
        """How many looks in a row have found worker k in silence; LOOKS and more: it hangs."""
        beats = self._beats[k]
        if beats != self._seen[k]:
            self._seen[k], self._still[k] = beats, 0
        elif state() not in EXCUSED:
            self._still[k] += 1
        return self._still[k]


def state_of(pid: int) -> str:
    """One letter, as in /proc/<pid>/stat: R runs, S sleeps, D waits for a disk, T is stopped, t is traced."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"

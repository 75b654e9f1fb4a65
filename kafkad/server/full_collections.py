"""Full garbage collections that take long: what they look at is hidden from the next ones.

A full collection looks at each object that may be part of a cycle, and everybody waits: 0.3 s for 100,000
groups. Nearly all of these objects stay, or are freed by their counts of references. So after a collection
that took SLOW_S, the objects that are there are frozen (gc.freeze), as at the start: the next one looks only
at newer objects. It is as many objects again before a collection is as slow again.

Beware: a frozen object that becomes part of an unreachable cycle stays. Logs are such objects. If many were
opened since the last time, nothing is frozen, so deleted partitions are collected as before."""

import gc
import time
from collections.abc import Callable
from typing import Any, Final

SLOW_S: Final = 0.02
LOGS_MAX: Final = 1_000
FULL: Final = 2  # the oldest generation


class FullCollections:
    """Of this process, from `begin` on. `soon(function)` calls it on the loop; `opened()` is how many logs
    were ever opened. `now` returns seconds of this thread's CPU time."""

    def __init__(
        self,
        soon: Callable[[Callable[[], object]], object],
        opened: Callable[[], int],
        now: Callable[[], float] = time.thread_time,
    ) -> None:
        self._soon = soon
        self._opened = opened
        self._now = now
        self._began = 0.0
        self._opened_before = 0

    def begin(self) -> None:
        """Freeze what is there now."""
        self._freeze()
        gc.callbacks.append(self._looks)

    def end(self) -> None:
        gc.callbacks.remove(self._looks)

    def _looks(self, phase: str, info: dict[str, Any]) -> None:
        if info["generation"] != FULL:
            return
        if phase == "start":
            self._began = self._now()
        elif self._now() - self._began >= SLOW_S and self._opened() - self._opened_before <= LOGS_MAX:
            self._soon(self._freeze)

    def _freeze(self) -> None:
        self._opened_before = self._opened()
        gc.freeze()

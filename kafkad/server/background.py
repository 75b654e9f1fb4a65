"""What runs by the clock: retention, flushes by age, checkpoints, expiry of offsets and producer ids,
snapshots.

Each task is a row: a name, the key that holds its period, and what it does. A task that fails is logged and
runs again at its next turn; one that finds us wrong (AssertionError) ends the worker.
"""

import logging
from collections.abc import Callable
from typing import Any, NamedTuple

logger = logging.getLogger(__name__)

FIRST_DELAY_MS = 30_000  # Kafka's LogManager.initialTaskDelayMs: let a start settle first


class Task(NamedTuple):
    name: str
    period_ms: Callable[[], int]  # read anew each time: the key may be dynamic
    run: Callable[[], Any]


class Background:
    """Runs tasks on a scheduler until it is stopped."""

    def __init__(self, scheduler: Any, fatal: Callable[[BaseException], None]) -> None:
        self._scheduler = scheduler
        self._fatal = fatal
        self._handles: dict[str, Any] = {}
        self._stopped = False

    def add(self, name: str, period_ms: Callable[[], int], run: Callable[[], Any]) -> None:
        self._arm(Task(name, period_ms, run), first=True)

    def stop(self) -> None:
        self._stopped = True
        for handle in self._handles.values():
            handle.cancel()
        self._handles.clear()

    def _arm(self, task: Task, *, first: bool = False) -> None:
        if self._stopped:
            return
        delay = task.period_ms()
        if first:
            delay = min(delay, FIRST_DELAY_MS)
        self._handles[task.name] = self._scheduler.call_later(max(delay, 1), lambda: self._run(task))

    def _run(self, task: Task) -> None:
        try:
            task.run()
        except AssertionError as broken:
            self._fatal(broken)
            raise
        except Exception:
            logger.exception("%s failed; it runs again in %d ms", task.name, task.period_ms())
        finally:
            self._arm(task)

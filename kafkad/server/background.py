"""Periodic tasks: retention, flushes by age, checkpoints, expiry of offsets and producer ids, snapshots.

Each task is a row: a name, the config key that holds its period, and its function. A task that fails is
logged and runs again after its period; an AssertionError ends the worker. A task that returns a generator
runs in short turns (server/turns), and its period begins again when it is done.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Generator
from typing import Any, NamedTuple

from kafkad.server.scheduler import LoopScheduler
from kafkad.server.turns import Turns

logger = logging.getLogger(__name__)

FIRST_DELAY_MS = 30_000  # Kafka's LogManager.initialTaskDelayMs: let a start settle first


class Task(NamedTuple):
    name: str
    period_ms: Callable[[], int]  # read each time: the key may be dynamic
    run: Callable[[], Any]


class Background:
    """Runs tasks on a scheduler until it is stopped."""

    def __init__(
        self, scheduler: LoopScheduler, fatal: Callable[[BaseException], None], turns: Turns
    ) -> None:
        self._scheduler = scheduler
        self._turns = turns
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
            result = task.run()
            if isinstance(result, Generator):
                result = self._turns.run(result)
            if isinstance(result, Awaitable):
                running = asyncio.ensure_future(result)
                running.add_done_callback(lambda running: self._settled(task, running))
                return
        except Exception as trouble:
            self._ended(task, trouble)
            if isinstance(trouble, AssertionError):
                raise
        else:
            self._ended(task, None)

    def _settled(self, task: Task, running: "asyncio.Future[Any]") -> None:
        if not running.cancelled():  # otherwise the loop ends, and nothing runs again
            self._ended(task, running.exception())

    def _ended(self, task: Task, trouble: BaseException | None) -> None:
        if isinstance(trouble, AssertionError):
            self._fatal(trouble)
        elif trouble is not None:
            logger.error("%s failed; it runs again in %d ms", task.name, task.period_ms(), exc_info=trouble)
        self._arm(task)

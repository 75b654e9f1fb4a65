"""Committed changes of metadata, applied to this worker in order and in short turns.

A change may create or delete thousands of partitions. Its work is a generator (see server/turns) that the
worker passes to `Changes.put`; the next change begins when it is done. A small change is done before `put`
returns, like an ordinary call. `applied` is the metadata offset up to which everything is done: the answer to
the client that requested a change waits for that offset.

The work may return an awaitable (directories that are being synced): then the change is applied when that is
done.

Beware: the image that handlers read is ahead of `applied`. A client that asks for a new partition too early
gets a retriable error."""

import asyncio
import inspect
import logging
import math
from collections import deque
from collections.abc import Callable
from typing import Any

from kafkad.server.turns import Steps, Turns

logger = logging.getLogger("kafkad")


class Changes:
    """The changes of one worker. `fatal` gets the exception if one cannot be applied."""

    def __init__(
        self, turns: Turns, loop: asyncio.AbstractEventLoop, fatal: Callable[[BaseException], None]
    ) -> None:
        self.applied = -1
        self.on_applied: Callable[[], None] | None = None
        self._turns = turns
        self._loop = loop
        self._fatal = fatal
        self._pending: deque[tuple[int, Steps]] = deque()
        self._current: tuple[int, Steps] | None = None
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._at_once = False
        self._ends_s = math.inf  # of the loop's clock: no work begins after it
        self.over = False  # work was left to the next start

    def put(self, offset: int, steps: Steps) -> None:
        """Apply a change, which brings the metadata to `offset`, after all earlier changes."""
        if self.over:
            return
        self._pending.append((offset, steps))
        if self._at_once or not self._loop.is_running():
            self.drain()
        elif self._current is None:
            self._next()

    def end_in(self, seconds: float) -> None:
        """Begin no work after `seconds`: a stop leaves it to the next start."""
        self._ends_s = min(self._ends_s, self._loop.time() + seconds)

    def _leave(self) -> None:
        """Cancel whoever waits for the work that is left. The cancellation of its task may come too late:
        `asyncio.wait_for` drops it in Python 3.11 if what it waits for is done."""
        self.over = True
        self._pending.clear()
        for _, future in self._waiting:
            future.cancel()
        self._waiting.clear()

    def drain(self, *, for_good: bool = False) -> None:
        """Do all pending work now, without turns. `for_good`: from now on do later work at once, too.
        Awaitables that the work returns are not awaited: only a clean stop needs them, and it syncs by
        itself."""
        self._at_once = self._at_once or for_good
        while self._current is not None or self._pending:
            if self._current is None and self._loop.time() >= self._ends_s:
                logger.warning("the next start applies %d changes of metadata", len(self._pending))
                self._leave()
                return
            self._current = self._current or self._pending.popleft()
            offset, steps = self._current
            _close_unless_awaited(_run_to_end(steps))
            self._end(offset)

    async def wait(self, offset: int) -> None:
        """Wait until the change that brings the metadata to `offset` is applied here."""
        if offset > self.applied:
            if self.over:
                raise asyncio.CancelledError
            future = self._loop.create_future()
            self._waiting.append((offset, future))
            await future

    def _next(self) -> None:
        while self._current is None and self._pending:
            self._current = self._pending.popleft()
            offset, steps = self._current
            try:
                result = self._turns.run(steps)
            except BaseException as trouble:
                self._failed(trouble)
                raise
            if inspect.isawaitable(result):
                task = asyncio.ensure_future(result)
                task.add_done_callback(lambda task, current=self._current: self._done(task, current))  # type: ignore[misc]
            else:
                self._end(offset)

    def _done(self, task: "asyncio.Future[Any]", current: tuple[int, Steps]) -> None:
        if not task.cancelled() and task.exception() is not None:
            trouble = task.exception()
            assert trouble is not None
            self._failed(trouble)
        elif self._current is current:  # otherwise it was drained meanwhile
            self._end(current[0])
            self._next()

    def _failed(self, trouble: BaseException) -> None:
        logger.error("a change of metadata could not be applied", exc_info=trouble)
        self._fatal(trouble)

    def _end(self, offset: int) -> None:
        self._current = None
        self.applied = max(self.applied, offset)
        if self.on_applied is not None:
            self.on_applied()
        ready = [future for wanted, future in self._waiting if wanted <= self.applied]
        self._waiting = [waiter for waiter in self._waiting if waiter[0] > self.applied]
        for future in ready:
            if not future.done():
                future.set_result(None)


def _run_to_end(steps: Steps) -> Any:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def _close_unless_awaited(result: Any) -> None:
    if inspect.iscoroutine(result):
        result.close()

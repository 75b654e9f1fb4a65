"""The asyncio implementation of Scheduler: timers, threads, and the handler that ends a worker after an
AssertionError.

Layers below `server` take a `Scheduler` as an argument and know nothing of loops. All callbacks run on the
loop's thread.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from kafkad.server.threads import LANES, Threads


class Handle(Protocol):
    def cancel(self) -> None: ...


class LoopScheduler:
    """`call_later`, `call_soon` and `run_in_thread` on a running asyncio loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, lanes: Mapping[str, int] = LANES) -> None:
        self._loop = loop
        self._threads = Threads(lanes)

    def begin(self) -> None:
        """Start the threads. Raises OSError."""
        self._threads.begin()

    def call_later(self, delay_ms: float, fn: Callable[[], Any]) -> Handle:
        return self._loop.call_later(delay_ms / 1000, fn)

    def call_soon(self, function: Callable[[], Any]) -> Handle:
        return self._loop.call_soon(function)

    def call_soon_threadsafe(self, function: Callable[[], Any]) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function)

    def run_in_thread(
        self,
        fn: Callable[[], Any],
        callback: Callable[[BaseException | None], Any],
        lane: str = "work",
    ) -> None:
        """Run `fn` off the loop, in a thread of `lane` (server.threads); then `callback` on the loop, with
        None or the exception."""

        def finished(trouble: BaseException | None) -> None:
            self.call_soon_threadsafe(lambda: callback(trouble))

        self._threads.submit(lane, fn, finished)

    def close(self) -> None:
        """Wait for running work; accept no more."""
        self._threads.close()

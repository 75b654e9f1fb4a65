"""Run long work of the coordinator in short turns of the loop, so that nobody else waits for it.

A piece of work is an iterator: each step does a little, and a turn may end after any step. The pieces are
worked on one at a time, in order of arrival, for at most TURN_MS per turn."""

from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from kafkad.coordinator.deadline import Handle
    from kafkad.coordinator.ports import Clock, Scheduler

TURN_MS = 2  # a clock of whole milliseconds: 1 to 2 ms, and the step that passes it


class Work:
    """A piece of work in the queue; `cancel` takes it out wherever it stands."""

    __slots__ = ("steps",)

    def __init__(self, steps: Iterator[Any]) -> None:
        self.steps: Iterator[Any] | None = steps

    def cancel(self) -> None:
        self.steps = None


class Slices:
    def __init__(self, clock: "Clock", scheduler: "Scheduler") -> None:
        self._clock = clock
        self._scheduler = scheduler
        self._queue: deque[Work] = deque()
        self._turn: Handle | None = None
        self._running = False

    def run(self, steps: Iterator[Any]) -> Work:
        """Queue work. If nothing is queued, its first turn is now: short work is done when this returns."""
        work = Work(steps)
        self._queue.append(work)
        if self._turn is None and not self._running:
            self._advance()
        return work

    def _advance(self) -> None:
        self._turn = None
        self._running = True
        try:
            end_ms = self._clock.monotonic_ms() + TURN_MS
            while self._queue and self._clock.monotonic_ms() < end_ms:
                work = self._queue[0]
                if work.steps is None or next(work.steps, self) is self:
                    self._queue.popleft()
        finally:
            self._running = False
            if self._queue:
                self._turn = self._scheduler.call_later(0, self._advance)

    def finish(self) -> None:
        """Do all that is queued, now."""
        queue = list(self._queue)
        self.close()
        for work in queue:
            for _ in work.steps or ():
                pass

    def close(self) -> None:
        self._queue.clear()
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None


class Closable(Protocol):
    closed: bool


def until_closed(
    shard: Closable,
    steps: Iterator[None],
    failed: Callable[[Exception], None],
    done: Callable[[], object] | None,
) -> Iterator[None]:
    """Do the work of a shard until it is done or the shard is closed, then call `done`. If it raises an
    exception, call `failed` before."""
    end = object()
    try:
        while not shard.closed and next(steps, end) is not end:
            yield
    except (AssertionError, MemoryError):
        raise
    except Exception as trouble:  # Malformed, or a record that nobody has foreseen
        failed(trouble)
    if done is not None:
        done()

"""Long work in short turns, so that a request of one client does not stop the others.

A handler or a background task whose work grows with its input is a generator: it yields wherever it may be
interrupted, and returns its result. `Turns.run` runs it while the budget of the current turn lasts. If it is
done by then, its result is available at once, as from an ordinary function, so a small request costs nothing
extra. The rest goes to a queue that all long work shares. Each turn of the event loop gives the queue one
budget, in small quanta from the front to the back, and then the reactor serves its connections.

    def handler(services, context, request):
        for element in request.elements:
            ...
            yield
        return response

The budget is shared: if 40 clients each ask for something long, the others wait for one turn, not 40.

Beware: other requests run where a generator yields. It must not rely on state that it read before."""

import asyncio
import inspect
from collections import deque
from collections.abc import Awaitable, Callable, Generator
from time import monotonic
from typing import Any

from kafkad._native.serving.heap_objects import merge_freed_blocks, use_heap

TURN_S = 0.005  # of work between two rounds of the reactor
QUANTUM_S = 0.001  # of one piece of work before the next one gets its share
MUCH = 4  # turns of work, after which the heap is worth a trim
MERGE_S = 5.0  # how long, after much work, freed blocks are merged at once: until the heap has been trimmed

Steps = Generator[Any, None, Any]


class Turns:
    """The long work of one event loop. `now` returns seconds."""

    def __init__(self, loop: asyncio.AbstractEventLoop, now: Callable[[], float] = monotonic) -> None:
        self._loop = loop
        self._now = now
        self._queue: deque[tuple[Steps, asyncio.Future[Any]]] = deque()
        self._spent_s = 0.0  # since the last turn of the queue, by work that ran at once
        self._scheduled = False
        self._turns = 0  # since the queue was empty
        self._merging_until: float | None = None  # freed blocks are merged at once
        self.on_idle: Callable[[], object] | None = None  # much work was done and freed

    def __len__(self) -> int:
        """Return how many pieces of work wait for their next turn."""
        return len(self._queue)

    def run(self, steps: Steps) -> Any | Awaitable[Any]:
        """Return the result of `steps`, or an awaitable of it if the work does not fit into this turn.

        A result that is itself awaitable is awaited there. What `steps` raises is raised."""
        if not self._queue and self._spent_s < TURN_S:
            begun = self._now()
            ends = begun + TURN_S - self._spent_s
            try:
                while self._now() < ends:
                    next(steps)
            except StopIteration as end:
                return end.value
            finally:
                self._spent_s += self._now() - begun
                if self._spent_s >= TURN_S:
                    self._schedule()
        future: asyncio.Future[Any] = self._loop.create_future()
        self._queue.append((steps, future))
        self._schedule()
        return _result(future)

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._scheduled = False
        before = use_heap(True)  # a few surviving objects would keep whole arenas
        try:
            self._work()
        finally:
            use_heap(before)
        self._turns += 1
        if self._turns >= MUCH:
            self._merge_for_a_while()
        if self._queue:
            self._schedule()
        else:
            if self._turns >= MUCH and self.on_idle is not None:
                self.on_idle()
            self._turns = 0

    def _merge_for_a_while(self) -> None:
        """Merge freed blocks at once until MERGE_S after the last turn of much work, whose results are freed
        later."""
        begins = self._merging_until is None
        self._merging_until = self._loop.time() + MERGE_S
        if begins:
            merge_freed_blocks(True)
            self._loop.call_later(MERGE_S, self._look_at_merging)

    def _look_at_merging(self) -> None:
        assert self._merging_until is not None
        left_s = self._merging_until - self._loop.time()
        if left_s > 0:
            self._loop.call_later(left_s, self._look_at_merging)
        else:
            self._merging_until = None
            merge_freed_blocks(False)

    def _work(self) -> None:
        self._spent_s = 0.0
        now = self._now()
        ends = now + TURN_S
        while self._queue and now < ends:
            steps, future = self._queue.popleft()
            quantum_ends = min(now + QUANTUM_S, ends)
            try:
                while now < quantum_ends:
                    next(steps)
                    now = self._now()
            except StopIteration as end:
                _settle(future, end.value, None)
                now = self._now()
            except BaseException as trouble:
                _settle(future, None, trouble)
                now = self._now()
            else:
                self._queue.append((steps, future))


def _settle(future: "asyncio.Future[Any]", value: Any, trouble: BaseException | None) -> None:
    if future.done():
        return  # cancelled: nobody waits for it any more
    if trouble is None:
        future.set_result(value)
    else:
        future.set_exception(trouble)


async def _result(future: "asyncio.Future[Any]") -> Any:
    value = await future
    return await value if inspect.isawaitable(value) else value

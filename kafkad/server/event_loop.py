"""The event loop of a worker: asyncio, which sleeps in the reactor.

asyncio asks its selector what is ready, and for how long it may sleep. Here the selector passes the sleep
on to `Reactor.wait`, whose epoll set also holds the selector's own: so what the data plane is woken for is
served in C at once, without a turn of asyncio, and asyncio has its turn when a descriptor of its own is
ready, a timer is due, or a request that was served has left it something to do. Before a reactor joins and
after it has left, this is an ordinary asyncio loop.

Beware: `_ready` and `_scheduled` are BaseEventLoop's own (a deque and a list, since Python 3.4). The
reactor reads their lengths, without the GIL, on the loop's thread; other threads write to the loop's own
pipe too.
"""

import asyncio
import selectors
import signal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kafkad._native.serving.reactor import Reactor


class ReactorSelector(selectors.EpollSelector):
    """An epoll selector that sleeps in a reactor once one has joined."""

    def __init__(self) -> None:
        super().__init__()
        self.reactor: Reactor | None = None
        self.loop: Any = None

    def select(self, timeout: float | None = None) -> list[Any]:
        if self.reactor is None:
            return super().select(timeout)
        if self.reactor.wait(timeout, self.loop._ready, self.loop._scheduled):
            return super().select(0)
        return []


class EventLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._sleep = ReactorSelector()
        super().__init__(self._sleep)
        self._sleep.loop = self

    def join(self, reactor: "Reactor") -> None:
        reactor.join_loop(self._sleep.fileno())
        self._sleep.reactor = reactor

    def leave(self) -> None:
        """Before the reactor is closed."""
        self._sleep.reactor = None

    def run_forever(self) -> None:
        """A signal wakes it, and its handler runs."""
        before = signal.set_wakeup_fd(self._csock.fileno(), warn_on_full_buffer=False)  # type: ignore[attr-defined]
        try:
            super().run_forever()
        finally:
            signal.set_wakeup_fd(before)

    def stop(self) -> None:
        super().stop()
        self.call_soon(int)  # also in the middle of a wait

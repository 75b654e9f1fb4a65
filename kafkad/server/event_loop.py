"""The event loop of a worker: asyncio, which sleeps in the reactor.

asyncio asks its selector which descriptors are ready, and how long it may sleep. This selector passes the
sleep on to `Reactor.wait`, whose epoll set also contains the selector's own. So events of the data plane are
served in C at once, without a turn of asyncio. asyncio gets its turn when one of its own descriptors is
ready, a timer is due, or a served request has left work for it. Before a reactor joins and after it has left,
this is an ordinary asyncio loop.

Beware: `_ready` and `_scheduled` are BaseEventLoop's own (a deque and a list, since Python 3.4). The reactor
reads their lengths without the GIL, on the loop's thread; other threads also write to the loop's own pipe.
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
        """Stop sleeping in the reactor, before it is closed."""
        self._sleep.reactor = None

    def run_forever(self) -> None:
        """Run the loop; a signal wakes it, and its handler runs."""
        before = signal.set_wakeup_fd(self._csock.fileno(), warn_on_full_buffer=False)  # type: ignore[attr-defined]
        try:
            super().run_forever()
        finally:
            signal.set_wakeup_fd(before)

    def stop(self) -> None:
        super().stop()
        self.call_soon(int)  # also in the middle of a wait

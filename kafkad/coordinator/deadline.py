"""Deadlines: timers that are moved far more often than they fire.

Every heartbeat and commit moves the end of its session. A move only changes a number. The timer fires at its
old time, notices that it is early, and is set again. So a busy group needs one timer per session timeout
instead of one per request.

A timer that fires late means that the process was halted (SIGSTOP, a suspended machine), or very busy. The
requests of the meantime, which may move the deadline, wait in sockets; so it fires only after they had time
to be read, and their clients to connect again.

A function that fails is logged and called again after AGAIN_MS, like Kafka's timers of a coordinator. Only
an AssertionError ends the worker."""

import logging
from collections.abc import Callable
from typing import Final, Protocol

logger = logging.getLogger(__name__)

AGAIN_MS: Final = 5_000
LATE_MS: Final = 1_000  # of a timer: the process did not run
GRACE_MS_MAX: Final = 10_000  # after that, and at most as long as it was late


class Handle(Protocol):
    def cancel(self) -> object: ...


class Timers(Protocol):
    def monotonic_ms(self) -> int: ...

    def call_later(self, delay_ms: int, function: Callable[[], object]) -> Handle: ...


def _nothing() -> None: ...


class Deadline:
    __slots__ = ("_at_ms", "_due_ms", "_function", "_handle", "_has_grace", "_timers")

    def __init__(self, timers: Timers, function: Callable[[], object]) -> None:
        self._timers: Timers | None = timers  # None: it has ended
        self._function = function
        self._handle: Handle | None = None
        self._at_ms = 0  # when the deadline fires
        self._due_ms = 0  # when the timer runs next; never later than _at_ms
        self._has_grace = False  # it was late once since it was set

    def set(self, delay_ms: int) -> None:
        if self._timers is None:
            return
        self._at_ms = self._timers.monotonic_ms() + delay_ms
        self._has_grace = False
        if self._handle is not None:
            if self._due_ms <= self._at_ms:
                return
            self._handle.cancel()
        self._look_after(delay_ms, self._timers)

    def cancel(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def end(self) -> None:
        """Cancel it for good. It forgets all that leads back to whoever has the deadline: such rings of
        objects would wait for the collector."""
        self.cancel()
        self._timers = None
        self._function = _nothing

    def _look_after(self, delay_ms: int, timers: Timers) -> None:
        self._due_ms = self._at_ms
        self._handle = timers.call_later(delay_ms, self._look)

    def _look(self) -> None:
        self._handle = None
        timers = self._timers
        assert timers is not None, "a timer of a deadline that has ended"
        remaining_ms = self._at_ms - timers.monotonic_ms()
        if remaining_ms > 0:
            self._look_after(remaining_ms, timers)
            return
        if remaining_ms <= -LATE_MS and not self._has_grace:
            self._has_grace = True
            grace_ms = min(-remaining_ms, GRACE_MS_MAX)
            self._at_ms = timers.monotonic_ms() + grace_ms
            self._look_after(grace_ms, timers)
            return
        try:
            self._function()
        except AssertionError:
            raise
        except Exception:
            logger.exception("a timer failed, it is tried again in %d ms", AGAIN_MS)
            if self._timers is not None:
                self.set(AGAIN_MS)

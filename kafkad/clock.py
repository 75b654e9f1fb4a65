"""Time as an argument: the one place that asks the machine what time it is.

Wall time stamps records and decides about their age; monotonic time measures how long something took or may
take. `ManualClock` stands still until a test moves it."""

import time


class Clock:
    __slots__ = ()

    def now_ms(self) -> int:
        """Milliseconds since 1970; it may jump."""
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        """Milliseconds since some moment; it never goes back."""
        return time.monotonic_ns() // 1_000_000


class ManualClock(Clock):
    __slots__ = ("_monotonic_ms", "_now_ms")

    def __init__(self, now_ms: int = 0, monotonic_ms: int = 0) -> None:
        self._now_ms = now_ms
        self._monotonic_ms = monotonic_ms

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic_ms(self) -> int:
        return self._monotonic_ms

    def advance(self, ms: int) -> None:
        assert ms >= 0, "time goes forward; set_now_ms is for jumps of the wall clock"
        self._now_ms += ms
        self._monotonic_ms += ms

    def set_now_ms(self, now_ms: int) -> None:
        """What an administrator or NTP does to the wall clock."""
        self._now_ms = now_ms

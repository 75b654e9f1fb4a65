"""A time limit for matching a regular expression, because Python's `re` goes back and tries again, as Java's
does, and for some expressions and texts that takes for ever: `(a+)+$` and 40 letters. Meanwhile no other
thread runs, so a thread would not help.

    with at_most(0.05):
        pattern.fullmatch(text)         raises TooLong after 0.05 s of the process's time

`re` looks for signals as it works, so a timer's signal interrupts it. Beware: this works in the main thread
only; in another one there is no limit."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class TooLong(Exception):
    """The time is over."""


def _raise(_number: int, _frame: Any) -> None:
    raise TooLong


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raise TooLong in the block when the time is over."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGVTALRM, _raise)
    try:
        signal.siginterrupt(signal.SIGVTALRM, False)  # no system call of another thread is cut short
        signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
        yield
    finally:
        # A signal that has come meanwhile is not lost: Python handles it in one of these calls.
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)

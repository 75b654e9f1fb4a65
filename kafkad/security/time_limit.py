"""A time limit for regular expressions. Python's `re` goes back and tries again, as Java's does, and for some
expressions and texts it never ends: `(a+)+$` and 40 letters. Meanwhile no other thread of the process runs,
so a thread would not help.

    with at_most(0.05):
        pattern.fullmatch(text)         raises TooLong after 0.05 s of the process's CPU time

`re` looks for signals as it works, so a timer's signal interrupts it. Beware: this works in the main thread
only; in another one there is no limit.

`LimitedNames` is what rules for the names of clients need of it."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Final

RULES_S: Final = 0.05
NAMES_KEPT: Final = 1024
SHOWN: Final = 1_000  # characters of a client's name in an error message


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


class LimitedNames:
    """Rules that turn a client's name into a user. They get RULES_S for a name. What came of it, also that
    there is no user, is remembered for NAMES_KEPT names."""

    def __init__(self, apply: Callable[[str], str], rules: str) -> None:
        """`apply`: return the user of a name, or raise ValueError. `rules`: their text, for messages."""
        self._apply = apply
        self._rules = rules
        self._user_or_reason = lru_cache(NAMES_KEPT)(self._limited)

    def name_of(self, name: str) -> str:
        """Return the user. Raise ValueError if there is none, or if the rules take too long."""
        user, reason = self._user_or_reason(name)
        if reason is not None:
            raise ValueError(reason)
        return user

    def _limited(self, name: str) -> tuple[str, str | None]:
        try:
            with at_most(RULES_S):
                return self._apply(name), None
        except TooLong:
            return "", f"the rules {self._rules} take more than {RULES_S:g} s for {name[:SHOWN]}"
        except ValueError as wrong:
            return "", str(wrong)

"""Failures that nobody has foreseen, in the code for one client: they end its connection, never the worker.

A client that repeats such a request must not fill the log: the traceback of a place in the code is logged
once in 30 s (kafkad/seldom).

An AssertionError is another matter where state is shared: it ends the worker, before that writes something
wrong. A login has no shared state, so there it ends the connection, too."""

import logging
from collections.abc import Callable
from typing import Any, Final

from kafkad.seldom import Seldom

logger = logging.getLogger("kafkad")

REASON_MAX: Final = 200  # characters: the text of an exception may repeat what the client has sent


class Failures:
    """Of one worker. `now_ms`: a monotonic clock."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._seldom = Seldom()

    def log(self, trouble: BaseException, message: str, *values: object) -> None:
        """Log it with its traceback, unless one of the same place was logged in the last 30 s."""
        at = trouble.__traceback__
        while at is not None and at.tb_next is not None:
            at = at.tb_next
        place = None if at is None else (at.tb_frame.f_code.co_filename, at.tb_lineno)
        if self._seldom.due((message, type(trouble), place), self._now_ms()):
            logger.error(message, *values, exc_info=trouble)

    def close(self, connection: Any, what: str, trouble: BaseException) -> None:
        """Close the connection for which `what` failed."""
        self.log(trouble, "%s from %s failed, its connection is closed", what, connection.peer_host)
        connection.close(f"{what} failed: {trouble!r}"[:REASON_MAX])

from typing import Any, TypeGuard

from kafkad._native.serving.connection import Connection

def pause(connection: Connection, pause_ms: int) -> None: ...
def overtime_ms(connection: Any) -> int:
    """Return how long its client must pause because of the time of its requests, including this one."""

def is_timed(connection: Any) -> TypeGuard[Connection]:
    """Return whether there is a quota of request time, for any client."""

def begin_work(connection: Connection) -> bool:
    """Begin work for a connection outside of its turn. True: `end_work` must follow."""

def end_work(connection: Connection) -> None: ...

from typing import Any

from kafkad._native.serving.connection import Connection

def pause(connection: Connection, pause_ms: int) -> None: ...
def overtime_ms(connection: Any) -> int:
    """For how long its client must pause because of the time that its requests took, this one included."""

def is_timed(connection: Any) -> bool:
    """Whether there is a quota of request time, for anybody."""

def begin_work(connection: Connection) -> bool:
    """The thread does something for a connection outside its turn. True: `end_work` must follow."""

def end_work(connection: Connection) -> None: ...

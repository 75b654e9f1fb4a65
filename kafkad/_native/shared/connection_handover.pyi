class Handover:
    """Which worker serves a new connection. Made before the fork by the supervisor, which keeps it."""

    def __init__(self, count: int) -> None: ...
    me: int  # -1 before `enter`
    count: int
    given: int  # connections, to other workers and from them
    taken: int
    def enter(self, me: int) -> None:
        """This process is worker `me` from now on: the first, or the successor of one that died. It is given
        nothing until it opens."""
    def fileno(self) -> int:
        """Readable when somebody has given this worker a connection."""
    def open(self) -> None: ...
    def open_again(self) -> None:
        """If this worker is open: the others may think that it is not."""
    def shut(self, worker: int) -> None:
        """Give it no more. What is on its way to it stays there."""
    def bury(self, worker: int) -> None:
        """It is dead: its connections are gone as well."""
    def leave(self) -> int:
        """This worker is given no more, and what was on its way is closed: how many."""
    def loads(self) -> list[int]:
        """Of each worker: the connections that it serves, has in its hands, or that are on their way."""

    # a worker without a reactor: tests
    def lock(self) -> bool: ...
    def unlock(self) -> None: ...
    def publish(self, load: int) -> None: ...
    def give(self, fd: int, listener: int, phase: int = 2, peer: bytes = ..., port: int = 0) -> bool:
        """False: it is kept, and counts as ours."""
    def take(self) -> tuple[int, int, int, bytes, int] | None:
        """(fd, listener, phase, peer, port) of the next one."""

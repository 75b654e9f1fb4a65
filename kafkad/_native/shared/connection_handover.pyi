class Handover:
    """Choose the worker that serves a new connection. The supervisor creates it before the fork, and keeps
    it."""

    def __init__(self, count: int) -> None: ...
    me: int  # -1 before `enter`
    count: int
    given: int  # connections sent to other workers
    taken: int  # connections received from other workers
    def enter(self, me: int) -> None:
        """Become worker `me`, as the first one or as the successor of a dead one. It gets no connections
        before `open`."""
    def fileno(self) -> int:
        """Return a descriptor that is readable when another worker has sent a connection."""
    def open(self) -> None: ...
    def open_again(self) -> None:
        """Mark this worker open again, if it serves: it may have been marked shut."""
    def shut(self, worker: int) -> None:
        """Send no more connections to a worker. Those that are on their way stay there."""
    def bury(self, worker: int) -> None:
        """Remove the connections of a dead worker from its count."""
    def leave(self) -> int:
        """Shut this worker, close the connections that are on their way to it, and return their number."""
    def loads(self) -> list[int]:
        """Return per worker the connections that it serves, has received, or that are on their way to it."""

    # For tests: a worker without a reactor.
    def lock(self) -> bool: ...
    def unlock(self) -> None: ...
    def publish(self, load: int, settled: int = 0) -> None: ...
    def give(self, fd: int, listener: int, phase: int = 2, peer: bytes = ..., port: int = 0) -> bool:
        """Send a connection to another worker. Return False if it stays here; it then counts as ours."""
    def take(self) -> tuple[int, int, int, bytes, int] | None:
        """Return (fd, listener, phase, peer, port) of the next connection, or None."""

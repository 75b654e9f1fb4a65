from typing import Any

class Connection:
    """A client connection, as handlers see it. Valid also after the socket is closed."""

    id: int
    listener: str
    peer_host: str
    peer_port: int
    client_software_name: Any
    client_software_version: Any
    principal: Any
    state: Any
    session_expires_ms: int  # monotonic; after that only a SaslHandshake is served. 0: never
    phase: int  # 0 handshake, 1 authenticating (frames without headers), 2 ready
    @property
    def closed(self) -> bool: ...
    @property
    def hung_up(self) -> bool:
        """Whether the client has closed its side. Requests that it sent before may still be served."""
    @property
    def local_host(self) -> str: ...
    @property
    def local_port(self) -> int: ...
    @property
    def buffered(self) -> int: ...
    def respond(self, request_id: int, *pieces: Any) -> None:
        """Send header and body, bytes-like; the size is added in front. ValueError if it was answered
        before."""
    def no_response(self, request_id: int) -> None: ...
    def answered_by(self, worker: int) -> None:
        """Count a request that another worker answers. After many of them, and few others, the connection
        moves to that worker."""
    def answered_here(self) -> None: ...
    def close(self, reason: object = None) -> None: ...
    def feed(self, data: Any) -> int:
        """Add bytes to a connection made by `Reactor.attach`; return how many are kept unserved."""
    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...

def host_of(address: bytes) -> str: ...

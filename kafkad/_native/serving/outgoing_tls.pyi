from kafkad._native.serving.reactor import Reactor
from kafkad._native.serving.tls import TlsContext

class OutgoingTls:
    """TLS on a connected, non-blocking socket, which stays the caller's. What is refused raises TlsError, and
    ConnectionError where the other node has closed the connection without a word."""

    def __init__(
        self,
        reactor: Reactor,
        context: TlsContext,
        fd: int,
        host: str,
        *,
        checks_host: bool,
        names_host: bool,
    ) -> None: ...
    @property
    def waits(self) -> bool:
        """The socket has not taken everything: `push` when it is writable."""
    def shake(self) -> bool:
        """A step of the handshake; True: it is done. To be called again when the socket is readable."""
    def push(self) -> None: ...
    def write(self, data: bytes) -> None:
        """Nothing may be waiting, and at most 256 KiB are taken."""
    def read(self, size: int) -> bytes:
        """At most so many bytes; b"": nothing is there."""
    def close(self) -> None: ...

from kafkad._native.serving.reactor import Reactor
from kafkad._native.serving.tls import TlsContext

class OutgoingTls:
    """TLS on a connected, non-blocking socket, which the caller owns. Methods raise TlsError if one side
    refuses the other, ConnectionError if the peer has closed the connection, and ValueError after `close`."""

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
        """Whether the socket has not taken everything. Then call `push` when it is writable."""
    def shake(self) -> bool:
        """Do a step of the handshake and return whether it is done. If not, call again when the socket is
        readable."""
    def push(self) -> None: ...
    def write(self, data: bytes) -> None:
        """Send at most 256 KiB. Nothing may be waiting."""
    def read(self, size: int) -> bytes:
        """Return up to `size` bytes; b"" if none have come."""
    def close(self) -> None: ...

"""The exception that native modules raise for invalid bytes. It is defined at the lowest layer, so that they
can import it; other modules import it from kafkad.protocol.errors."""


class Malformed(Exception):
    """Bytes from a socket or a disk that do not parse. `str(error)` says what and where."""

"""The one exception that the native modules raise for bytes that lie. It stands at the bottom so that they
may import it without reaching up; everyone else takes it from kafkad.protocol.errors."""


class Malformed(Exception):
    """Bytes from a socket or a disk that do not parse. `str(error)` says what and where."""

"""One question to a web server, by http or https: what an OAuth provider is asked.

The answer is bounded in bytes and in time. A redirection is followed within its scheme only, and never for a
question with a body. Proxies and credentials within a URL are not used. It blocks: in a server it runs in a
thread. http.client (with email, 0.8 MB) is imported by the first question: few brokers ask any."""

import io
import socket
import ssl
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urljoin, urlsplit

from kafkad import __version__

if TYPE_CHECKING:
    import http.client

ANSWER_BYTES_MAX: Final = 512 << 10  # as jose4j has it
REDIRECTIONS_MAX: Final = 5
READ_BYTES: Final = 1 << 16
TIMEOUT_S: Final = 20.0
HEADERS: Final = {"User-Agent": f"kafkad/{__version__}", "Accept": "application/json"}


class Failed(Exception):
    """No answer, or none that can be used. The text names the server, and nothing that was sent."""


class Answer(NamedTuple):
    status: int
    body: bytes


def ask(
    url: str,
    context: ssl.SSLContext | None = None,
    *,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    connect_timeout_s: float = TIMEOUT_S,
    read_timeout_s: float = TIMEOUT_S,
) -> Answer:
    """GET, or POST of a `body`. `context` of an https server; None: the system's authorities. Raises
    Failed."""
    for _ in range(REDIRECTIONS_MAX + 1):
        answer, location = _asked(url, context, body, headers or {}, connect_timeout_s, read_timeout_s)
        if location is None or body is not None:
            return answer
        target = urljoin(url, location)
        if urlsplit(target).scheme != urlsplit(url).scheme:
            raise Failed(f"{url} redirects to another scheme")
        url = target
    raise Failed(f"{url}: more than {REDIRECTIONS_MAX} redirections")


def _asked(
    url: str,
    context: ssl.SSLContext | None,
    body: bytes | None,
    headers: Mapping[str, str],
    connect_timeout_s: float,
    read_timeout_s: float,
) -> tuple[Answer, str | None]:
    """The answer, and where it redirects to."""
    import http.client

    parts = urlsplit(url)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    connection: http.client.HTTPConnection
    try:
        host = parts.hostname or ""
        if parts.scheme == "https":
            context = context or ssl.create_default_context()
            connection = http.client.HTTPSConnection(
                host, parts.port, timeout=connect_timeout_s, context=context
            )
        else:
            connection = http.client.HTTPConnection(host, parts.port, timeout=connect_timeout_s)
        try:
            connection.connect()
            connection.sock.settimeout(read_timeout_s)
            connection.request("GET" if body is None else "POST", path, body, {**HEADERS, **headers})
            connection.sock = _Bounded(connection.sock, time.monotonic() + read_timeout_s)
            response = connection.getresponse()
            read = _read(response)
            location = (
                response.getheader("Location") if response.status in (301, 302, 303, 307, 308) else None
            )
            return Answer(response.status, read), location
        finally:
            connection.close()
    except (OSError, ValueError, http.client.HTTPException) as trouble:
        reason = getattr(trouble, "verify_message", None) or getattr(trouble, "strerror", None) or trouble
        raise Failed(
            f"{parts.scheme}://{parts.netloc.rpartition('@')[2]} gives no answer: {reason}"
        ) from None


def _read(response: "http.client.HTTPResponse") -> bytes:
    found = bytearray()
    while some := response.read1(READ_BYTES):
        found += some
        if len(found) > ANSWER_BYTES_MAX:
            raise ValueError(f"it is larger than {ANSWER_BYTES_MAX} bytes")
    return bytes(found)


class _Bounded:
    """A socket as http.client reads an answer from it, its head too: all of it comes before `deadline`, by
    the monotonic clock. A timeout of the socket itself begins anew with each byte."""

    def __init__(self, plain: socket.socket, deadline: float) -> None:
        self._plain = plain
        self._deadline = deadline

    def makefile(self, mode: str) -> io.BufferedReader:
        assert mode == "rb"
        return io.BufferedReader(_Until(self._plain, self._deadline))

    def close(self) -> None:
        self._plain.close()


class _Until(io.RawIOBase):
    def __init__(self, plain: socket.socket, deadline: float) -> None:
        self._plain = plain
        self._file = plain.makefile("rb", buffering=0)  # keeps the socket open
        self._deadline = deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left_s = self._deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("it takes too long")
        self._plain.settimeout(left_s)
        return self._file.readinto(buffer)

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()

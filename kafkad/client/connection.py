"""A blocking connection to one broker.

`ask` sends a request and waits for the answer. To have several requests in flight, call `send` and `receive`
separately; a Kafka broker answers in the order of the requests. The version of a request is the highest that
both sides support; the connection learns the broker's versions once, by ApiVersions (KIP-511). If the broker
limits the session, the connection logs in again in time, between two requests (KIP-368).

Beware: if `send` or `receive` is interrupted (by the network, an invalid answer or Ctrl-C), the connection is
closed, because later answers could not be matched to their requests. Check `closed`.
"""

import socket
import time
from collections import deque
from typing import Any

from kafkad import __version__
from kafkad.client.security import Security
from kafkad.protocol import codec, errors, messages
from kafkad.security.client_sasl import login

FRAME_SIZE_MAX = 1 << 30
CONNECT_SECONDS_MAX = 10.0  # also for its first answer: others may be tried that are not frozen


class Unreachable(Exception):
    """No broker answers at this address. `str(error)` is the error message."""


class Closed(Unreachable):
    """The broker closed the connection instead of an answer, as it does if it expects TLS or a login."""


class NoTls(Unreachable):
    """The TLS handshake ended before it was complete, as it does if the broker's listener has no TLS."""


class Connection:
    """A TCP connection that knows the broker's API versions. Raise Unreachable for every network error, and
    for a peer that does not speak Kafka's protocol. Raise AuthenticationFailed if the login or the TLS
    handshake fails.
    """

    def __init__(
        self, host: str, port: int, client_id: str, timeout: float = 30.0, security: Security | None = None
    ) -> None:
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self.client_id = client_id
        self.timeout = timeout
        self.closed = False
        self.features: dict[str, int] = {}  # the cluster's finalized features and their levels
        self._correlation = 0
        self._host = host
        self._security = security
        self._renew_at: float | None = None  # monotonic; None: the session does not end
        self._waiting: deque[tuple[int, type, int]] = deque()
        try:
            self._socket = socket.create_connection((host, port), min(timeout, CONNECT_SECONDS_MAX))
        except OSError as trouble:
            raise Unreachable(f"no broker answers on {self.address}: {trouble.strerror or trouble}")
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if security is not None:
            self._secure(security, host)
        self._socket.settimeout(timeout)
        self.versions = self._learn_versions()
        if security is not None and security.mechanism:
            self._authenticate(security, host)

    def close(self) -> None:
        self.closed = True
        self._socket.close()

    def version_for(self, request_class: Any, highest: int = 1 << 15) -> int:
        """Return the highest version that both sides support, at most `highest`. Raise KafkaError
        (UNSUPPORTED_VERSION) if there is none.
        """
        low, high = self.versions.get(request_class.API_KEY, (0, -1))
        version = min(high, request_class.MAX_VERSION, highest)
        if version < max(low, request_class.MIN_VERSION):
            raise errors.KafkaError(
                errors.UNSUPPORTED_VERSION,
                f"the broker on {self.address} does not serve {request_class.NAME}",
            )
        return version

    def ask(self, request: Any, version: int | None = None, *, timeout: float | None = None) -> Any:
        """Send a request and return its answer. `timeout` replaces the usual timeout, in seconds."""
        self.send(request, version)
        if timeout is None:
            return self.receive()
        self._socket.settimeout(timeout)
        answer = self.receive()
        self._socket.settimeout(self.timeout)
        return answer

    def send(self, request: Any, version: int | None = None, *, answered: bool = True) -> None:
        if self._renew_at is not None and time.monotonic() >= self._renew_at and not self._waiting:
            self._renew_at = None
            assert self._security is not None
            self._authenticate(self._security, self._host)
        if version is None:
            version = self.version_for(type(request))
        self._correlation = (self._correlation + 1) & 0x7FFFFFFF
        frame = codec.encode_request(request, version, self._correlation, self.client_id)
        try:
            self._socket.sendall(len(frame).to_bytes(4, "big") + frame)
        except OSError as trouble:
            self.close()
            raise Unreachable(f"the broker on {self.address} is gone: {trouble.strerror or trouble}")
        except BaseException:
            self.close()
            raise
        if answered:
            self._waiting.append((self._correlation, codec.response_class(type(request).API_KEY), version))

    def receive(self) -> Any:
        """Return the answer to the oldest unanswered request."""
        correlation, response_class, version = self._waiting.popleft()
        try:
            frame = self._read_frame()
            if response_class is messages.ApiVersionsResponse and frame[4:6] == b"\0\x23":
                version = 0  # UNSUPPORTED_VERSION is sent as version 0, which every client can read
            got, response = codec.decode_response(response_class, version, frame)
            if got != correlation:
                raise errors.Malformed(f"answer {got} where {correlation} was asked")
        except errors.Malformed:
            self.close()
            raise Unreachable(f"what answers on {self.address} does not speak Kafka's protocol")
        except BaseException:
            self.close()
            raise
        return response

    def receive_into(self, buffer: bytearray) -> tuple[bytearray, memoryview]:
        """Read the answer to the oldest unanswered request without decoding it: its frame from the
        correlation id on. Use `buffer`, or a larger one if the frame does not fit. Return the buffer and the
        frame in it.
        """
        correlation, _, _ = self._waiting.popleft()
        try:
            size = self._read_size()
            if size > len(buffer):
                buffer = bytearray(size)
            frame = memoryview(buffer)[:size]
            self._fill(frame)
            if int.from_bytes(frame[:4], "big", signed=True) != correlation:
                raise errors.Malformed("an answer to something else")
        except errors.Malformed:
            self.close()
            raise Unreachable(f"what answers on {self.address} does not speak Kafka's protocol")
        except BaseException:
            self.close()
            raise
        return buffer, frame

    def _secure(self, security: Security, host: str) -> None:
        try:
            self._socket = security.wrap(self._socket, host)
        except OSError as trouble:
            self.close()
            raise NoTls(f"no TLS with the broker on {self.address}: {trouble.strerror or trouble}")
        except BaseException:
            self.close()
            raise

    def _authenticate(self, security: Security, host: str) -> None:
        steps = login(security.mechanism, security.conversation(host), self.address, security.who)
        try:
            request = next(steps)
            while True:
                version = 1 if type(request) is messages.SaslHandshakeRequest else None
                request = steps.send(self.ask(request, version))
        except StopIteration as done:
            if done.value is not None:
                self._renew_at = time.monotonic() + done.value
        except BaseException:
            self.close()
            raise

    def _learn_versions(self) -> dict[int, tuple[int, int]]:
        request = messages.ApiVersionsRequest(
            client_software_name="kafkad", client_software_version=__version__
        )
        seconds = min(self.timeout, CONNECT_SECONDS_MAX)
        response = self.ask(request, 3, timeout=seconds)
        if response.error_code == errors.UNSUPPORTED_VERSION:
            response = self.ask(request, 0, timeout=seconds)
        if response.error_code:
            raise errors.KafkaError(response.error_code)
        self.features = {row.name: row.max_version_level for row in response.finalized_features}
        return {row.api_key: (row.min_version, row.max_version) for row in response.api_keys}

    def _read_frame(self) -> bytes:
        data = bytearray(self._read_size())
        self._fill(memoryview(data))
        return bytes(data)

    def _read_size(self) -> int:
        head = bytearray(4)
        self._fill(memoryview(head))
        size = int.from_bytes(head, "big", signed=True)
        if not 4 <= size <= FRAME_SIZE_MAX:
            raise errors.Malformed(f"a frame of {size} bytes")
        return size

    def _fill(self, view: memoryview) -> None:
        have = 0
        while have < len(view):
            try:
                count = self._socket.recv_into(view[have:])
            except TimeoutError:
                raise Unreachable(f"the broker on {self.address} does not answer")
            except OSError as trouble:
                raise Unreachable(f"the broker on {self.address} is gone: {trouble.strerror or trouble}")
            if count == 0:
                raise Closed(f"the broker on {self.address} closed the connection")
            have += count

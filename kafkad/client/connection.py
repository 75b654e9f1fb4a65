"""One connection to one broker: a request out, its answer in.

Blocking, and without threads: `ask` sends and waits. `send` and `receive` may be called apart, to have several
requests under way; answers come in the order of the requests, as every Kafka broker keeps it.
The version of a request is the highest that both sides speak, learned once by ApiVersions (KIP-511).
"""

import socket
from collections import deque
from typing import Any

from kafkad.protocol import codec, errors, messages

FRAME_SIZE_MAX = 1 << 30


class Unreachable(Exception):
    """No broker answers there; `str(error)` is for people."""


class Connection:
    """A TCP connection that knows what its broker speaks. Raises Unreachable for every trouble of the network."""

    def __init__(self, host: str, port: int, client_id: str, timeout: float = 10.0) -> None:
        self.address = f"{host}:{port}"
        self.client_id = client_id
        self._correlation = 0
        self._waiting: deque[tuple[int, type, int]] = deque()
        try:
            self._socket = socket.create_connection((host, port), timeout=timeout)
        except OSError as trouble:
            raise Unreachable(f"no broker answers on {self.address}: {trouble.strerror or trouble}")
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.versions: dict[int, tuple[int, int]] = {}
        self._learn_versions()

    def close(self) -> None:
        self._socket.close()

    def settimeout(self, seconds: float) -> None:
        self._socket.settimeout(seconds)

    def version_for(self, request_class: Any) -> int:
        """The highest version that both speak. KafkaError UNSUPPORTED_VERSION when there is none."""
        low, high = self.versions.get(request_class.API_KEY, (0, -1))
        version = min(high, request_class.MAX_VERSION)
        if version < max(low, request_class.MIN_VERSION):
            raise errors.KafkaError(
                errors.UNSUPPORTED_VERSION,
                f"the broker on {self.address} does not serve {request_class.NAME}",
            )
        return version

    def ask(self, request: Any, version: int | None = None) -> Any:
        """The answer to one request."""
        self.send(request, version)
        return self.receive()

    def send(self, request: Any, version: int | None = None, *, answered: bool = True) -> None:
        if version is None:
            version = self.version_for(type(request))
        self._correlation += 1
        frame = codec.encode_request(request, version, self._correlation, self.client_id)
        try:
            self._socket.sendall(len(frame).to_bytes(4, "big") + frame)
        except OSError as trouble:
            raise Unreachable(f"the broker on {self.address} is gone: {trouble.strerror or trouble}")
        if answered:
            response_class = codec.response_class(type(request).API_KEY)
            self._waiting.append((self._correlation, response_class, version))

    def receive(self) -> Any:
        """The answer to the oldest request that waits for one."""
        correlation, response_class, version = self._waiting.popleft()
        got, response = codec.decode_response(response_class, version, self._read_frame())
        if got != correlation:
            raise Unreachable(f"the broker on {self.address} answers {got} where {correlation} was asked")
        return response

    def _learn_versions(self) -> None:
        request = messages.ApiVersionsRequest(client_software_name="kafkad", client_software_version="0.1.0")
        response = self.ask(request, 3)
        if response.error_code == errors.UNSUPPORTED_VERSION:
            response = self.ask(request, 0)
        if response.error_code:
            raise errors.KafkaError(response.error_code)
        self.versions = {row.api_key: (row.min_version, row.max_version) for row in response.api_keys}
        self.features = response

    def _read_frame(self) -> bytearray:
        size = int.from_bytes(self._read(4), "big", signed=True)
        if not 0 <= size <= FRAME_SIZE_MAX:
            raise Unreachable(f"what answers on {self.address} is no Kafka broker")
        return self._read(size)

    def _read(self, size: int) -> bytearray:
        data = bytearray(size)
        view, have = memoryview(data), 0
        while have < size:
            try:
                count = self._socket.recv_into(view[have:])
            except TimeoutError:
                raise Unreachable(f"the broker on {self.address} does not answer")
            except OSError as trouble:
                raise Unreachable(f"the broker on {self.address} is gone: {trouble.strerror or trouble}")
            if count == 0:
                raise Unreachable(f"the broker on {self.address} closed the connection")
            have += count
        return data

"""A connection of this broker to another node, for the control plane.

    connect   TCP, TLS if a context is given, ApiVersions (KIP-511), then `authenticate` if one is given
    ask       logs in anew first, if the session ends soon (KIP-368);
              uses the highest version that both sides support; several requests may be in flight, and
              answers come in order

If the node sends invalid bytes, closes the connection or is silent for too long, the channel ends: all
waiting callers get Unreachable, and the next request connects again. The caller decides about back-off,
because it knows whether there is another node.

Users: server/metadata_client and server/controller_channel."""

import asyncio
import contextlib
import ssl
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final

from kafkad import __version__
from kafkad.net.reach import was_refused
from kafkad.protocol import codec, errors, messages
from kafkad.protocol.errors import KafkaError, Malformed

FRAME_SIZE_MAX: Final = 100 << 20  # bytes; Kafka: socket.request.max.bytes
UNSUPPORTED: Final = b"\0\x23"  # the code, where an ApiVersions of version 0 has it


class Unreachable(Exception):
    """The node does not answer. `str(error)` is the error message. `refused`: nobody listens there, as its
    kernel says."""

    def __init__(self, message: str, *, refused: bool = False) -> None:
        super().__init__(message)
        self.refused = refused


# Sends the SASL requests on a channel, by the function that it is given: a request and its version, to its
# response. Returns after how many seconds to do so anew; None: never. Raises KafkaError.
Send = Callable[[Any, int], Awaitable[Any]]
Authenticate = Callable[[Send], Awaitable[float | None]]


class Login:
    """How a channel logs in, and when it has to do so anew (KIP-368)."""

    __slots__ = ("authenticate", "one_at_a_time", "renew_at", "timeout_s")

    def __init__(self, authenticate: Authenticate, timeout_s: float) -> None:
        self.authenticate = authenticate
        self.timeout_s = timeout_s
        self.one_at_a_time = asyncio.Lock()
        self.renew_at: float | None = None


class Channel:
    """A connection, opened by `Channel.connect`. If `closed` is set, it cannot be used any more."""

    def __init__(
        self, address: str, client_id: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.address = address
        self.client_id = client_id
        self.closed = False
        self.versions: dict[int, tuple[int, int]] = {}
        self._reader = reader
        self._writer = writer
        self._correlation = 0
        self._login: Login | None = None
        self._waiting: deque[tuple[int, Any, int, asyncio.Future[Any]]] = deque()
        self._receiver = asyncio.get_running_loop().create_task(self._receive())

    @classmethod
    async def connect(
        cls,
        host: str,
        port: int,
        client_id: str,
        *,
        timeout_s: float,
        context: ssl.SSLContext | None = None,
        authenticate: Authenticate | None = None,
    ) -> "Channel":
        """Open a channel. Raise Unreachable."""
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        channel: Channel | None = None
        try:
            async with asyncio.timeout(timeout_s):
                reader, writer = await asyncio.open_connection(host, port, ssl=context)
                channel = cls(address, client_id, reader, writer)
                await channel._learn_versions(timeout_s)
                if authenticate is not None:
                    channel._login = Login(authenticate, timeout_s)
                    await channel._log_in(channel._login)
                return channel
        except (OSError, TimeoutError, UnicodeError, KafkaError) as trouble:
            if channel is not None:
                channel.close()
            reason = getattr(trouble, "strerror", None) or str(trouble) or "no answer"
            refused = channel is None and was_refused(trouble)
            raise Unreachable(f"nobody can be asked on {address}: {reason}", refused=refused) from trouble
        except BaseException:
            if channel is not None:
                channel.close()
            raise

    def version_for(self, request_class: Any, lowest: int = 0) -> int:
        """Return the highest version that both sides support. Raise KafkaError (UNSUPPORTED_VERSION) if it is
        below `lowest`, or if there is none."""
        low, high = self.versions.get(request_class.API_KEY, (0, -1))
        version = min(high, request_class.MAX_VERSION)
        if version < max(low, request_class.MIN_VERSION, lowest):
            raise KafkaError(
                errors.UNSUPPORTED_VERSION,
                f"{self.address} serves {request_class.NAME} {low}-{high}, at least {lowest} is needed",
            )
        return int(version)

    async def ask(self, request: Any, *, timeout_s: float, lowest: int = 0) -> Any:
        """Send a request and return its answer. Raise Unreachable, also after `timeout_s`, or KafkaError
        (UNSUPPORTED_VERSION)."""
        login = self._login
        if login is not None and (login.renew_at is not None or login.one_at_a_time.locked()):
            await self._renew(login)
        return await self._ask(request, self.version_for(type(request), lowest), timeout_s)

    async def _renew(self, login: Login) -> None:
        """Log in anew if it is time. Meanwhile nothing else is sent; answers to earlier requests come."""
        async with login.one_at_a_time:
            if login.renew_at is None or asyncio.get_running_loop().time() < login.renew_at or self.closed:
                return
            try:
                async with asyncio.timeout(login.timeout_s):
                    await self._log_in(login)
            except BaseException as trouble:
                self.close()
                if isinstance(trouble, KafkaError | TimeoutError):
                    reason = str(trouble) or "no answer"
                    raise Unreachable(f"the new login on {self.address} failed: {reason}") from trouble
                raise

    async def _log_in(self, login: Login) -> None:
        async def send(request: Any, version: int) -> Any:
            return await self._ask(request, version, login.timeout_s)

        seconds = await login.authenticate(send)
        login.renew_at = None if seconds is None else asyncio.get_running_loop().time() + seconds

    async def _ask(self, request: Any, version: int, timeout_s: float) -> Any:
        if self.closed:
            raise Unreachable(f"the connection to {self.address} is closed")
        self._correlation = (self._correlation + 1) & 0x7FFFFFFF
        frame = codec.encode_request(request, version, self._correlation, self.client_id)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        cls = codec.response_class(type(request).API_KEY)
        self._waiting.append((self._correlation, cls, version, answer))
        self._writer.write(len(frame).to_bytes(4, "big") + frame)
        try:
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError:
            self.close()
            raise Unreachable(f"{self.address} has not answered for {timeout_s:g} s") from None

    async def _learn_versions(self, timeout_s: float) -> None:
        request = messages.ApiVersionsRequest(
            client_software_name="kafkad", client_software_version=__version__
        )
        response = await self._ask(request, 3, timeout_s)
        if response.error_code == errors.UNSUPPORTED_VERSION:
            response = await self._ask(request, 0, timeout_s)
        if response.error_code:
            raise KafkaError(response.error_code)
        self.versions = {row.api_key: (row.min_version, row.max_version) for row in response.api_keys}

    async def _receive(self) -> None:
        reason = f"{self.address} has closed the connection"
        try:
            while True:
                size = int.from_bytes(await self._reader.readexactly(4), "big", signed=True)
                if not 4 <= size <= FRAME_SIZE_MAX:
                    raise Malformed(f"a frame of {size} bytes")
                self._take(await self._reader.readexactly(size))
        except asyncio.IncompleteReadError:
            pass
        except OSError as trouble:
            reason = f"the connection to {self.address} broke: {trouble.strerror or trouble}"
        except Malformed as trouble:
            reason = f"{self.address} does not speak Kafka's protocol: {trouble}"
        self._end(reason)

    def _take(self, frame: bytes) -> None:
        if not self._waiting:
            raise Malformed("an answer to nothing")
        correlation, cls, version, answer = self._waiting[0]
        if cls is messages.ApiVersionsResponse and frame[4:6] == UNSUPPORTED:
            version = 0  # UNSUPPORTED_VERSION is sent as version 0, which every client can read
        got, response = codec.decode_response(cls, version, frame)
        if got != correlation:
            raise Malformed(f"answer {got} where {correlation} was asked")
        self._waiting.popleft()
        if not answer.done():
            answer.set_result(response)

    def close(self) -> None:
        self._receiver.cancel()
        self._end(f"the connection to {self.address} is closed")

    def _end(self, reason: str) -> None:
        self.closed = True
        with contextlib.suppress(OSError, RuntimeError):  # the loop may be closed already
            self._writer.close()
        waiting, self._waiting = self._waiting, deque()
        for *_, answer in waiting:
            if not answer.done():
                answer.set_exception(Unreachable(reason))
                answer.exception()  # mark it as retrieved, because the waiting caller may be gone

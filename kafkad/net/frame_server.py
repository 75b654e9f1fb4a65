"""A listener for the control plane: frames in, answers out, for a node without a data plane.

One request of a connection is served at a time, and its answers go out in order, as Kafka's own network
threads do it. A peer that does not read its answers makes nobody wait but itself. A connection ends, with a
logged reason, when its bytes are no frame, when it is idle for `idle_s` (None: never), or when there are too
many. Frames that are not complete have READ_BYTES_MAX together, and those that belong to logins, which anyone
can send, LOGIN_BYTES_MAX; above it, the connection with the largest is closed.

Use: server/controller_node."""

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, Final

logger = logging.getLogger(__name__)

MIN_FRAME: Final = 8  # key, version and correlation id
ANSWERED: Final = b""  # of `serve`: by FrameConnection.respond, or there is none
SHAKE_S: Final = 10.0  # for a TLS handshake
LOGIN_BYTES_MAX: Final = 64 << 20
READ_BYTES_MAX: Final = 512 << 20
BACKLOG: Final = 100  # connections that the kernel keeps for us
# of FrameConnection.phase, as of the reactor's connections
PHASE_HANDSHAKE: Final = 0
PHASE_AUTHENTICATING: Final = 1
PHASE_READY: Final = 2


class FrameConnection:
    """What a handler sees of its connection."""

    def __init__(self, listener: str, writer: asyncio.StreamWriter, phase: int = PHASE_READY) -> None:
        peer = writer.get_extra_info("peername") or ("", 0)
        self.listener = listener
        self.peer_host: str = str(peer[0]).removeprefix("::ffff:").partition("%")[0]
        self.principal = ""  # nobody has said who it is
        self.phase = phase
        self.state: Any = None  # of its login
        self.session_expires_ms = 0
        self.client_software_name = self.client_software_version = ""
        self.closed = False
        self.broker_id: int | None = None  # whose heartbeats come here
        self._writer = writer
        self._said: asyncio.Future[None] | None = None

    @property
    def certificate(self) -> bytes | None:
        """Of the peer, DER, if it has shown one."""
        tls = self._writer.get_extra_info("ssl_object")
        return None if tls is None else tls.getpeercert(binary_form=True)

    async def exchange(self, login: Callable[[Any, int, bytes], object], frame: bytes) -> bytes:
        """Give the frame to a login, until that has answered or closed the connection."""
        self._said = asyncio.get_running_loop().create_future()
        login(self, 0, frame)
        await self._said
        return ANSWERED

    def respond(self, request_id: int, answer: bytes) -> None:
        self._writer.write(len(answer).to_bytes(4, "big") + answer)
        self.no_response(request_id)

    def no_response(self, request_id: int) -> None:
        if self._said is not None and not self._said.done():
            self._said.set_result(None)

    def close(self, reason: str) -> None:
        if not self.closed:
            logger.warning("the connection from %s is closed: %s", self.peer_host, reason)
        self.closed = True
        self.no_response(0)
        with contextlib.suppress(OSError, RuntimeError):
            self._writer.close()


class Incomplete:
    """The frames that are being read. Together they have at most `most` bytes."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._sizes: dict[FrameConnection, int] = {}
        self._bytes = 0

    async def read(self, reader: asyncio.StreamReader, connection: FrameConnection, size: int) -> bytes:
        """Read the next frame of a connection, which may be closed meanwhile."""
        self._sizes[connection] = size
        self._bytes += size
        try:
            while self._bytes > self._most:
                largest = max(self._sizes, key=lambda each: self._sizes[each])
                largest.close("an unfinished request holds memory that others need")
                self._bytes -= self._sizes.pop(largest)
            return await reader.readexactly(size)
        finally:
            self._bytes -= self._sizes.pop(connection, 0)


Serve = Callable[[FrameConnection, bytes], Awaitable[bytes | None]]


class FrameServer:
    """`serve` answers a frame from its header on with the answer from its header on, None where it has
    closed the connection, or ANSWERED. `certified` names the peer by its certificate, or raises ValueError.
    `on_end(connection, by_peer)` is told of each that has ended: was it the other side that closed or reset
    it?"""

    def __init__(
        self,
        serve: Serve,
        *,
        frame_size_max: int,
        connections_max: int = 1 << 31,
        idle_s: float | None = 600.0,
        login_size_max: int = 1 << 19,
        certified: Callable[[FrameConnection, bytes], object] | None = None,
    ) -> None:
        self._serve = serve
        self._frame_size_max = frame_size_max
        self._connections_max = connections_max
        self._idle_s = idle_s
        self.on_end: Callable[[FrameConnection, bool], Any] = lambda connection, by_peer: None
        self._login_size_max = min(login_size_max, frame_size_max)
        self._certified = certified
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        self._logins = Incomplete(LOGIN_BYTES_MAX)
        self._requests = Incomplete(READ_BYTES_MAX)
        self._closing = False

    async def open(
        self,
        listening: socket.socket,
        listener: str,
        *,
        context: ssl.SSLContext | None = None,
        phase: int = PHASE_READY,
    ) -> None:
        """Accept on this socket, which is bound and listens. `phase` is what a connection begins in."""

        async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            if len(self._tasks) >= self._connections_max:
                FrameConnection(listener, writer).close(f"there are {len(self._tasks)} connections already")
                return
            self._tasks.add(task)
            try:
                connection = FrameConnection(listener, writer, phase)
                if self._is_named(connection):
                    await self._talk(reader, writer, connection)
            except asyncio.CancelledError:
                if not self._closing:
                    raise
            finally:
                self._tasks.discard(task)

        shake_s = None if context is None else SHAKE_S
        # asyncio tries to accept `backlog` times in a row, and without descriptors sets a timer each time.
        server = await asyncio.start_server(
            accepted, sock=listening, ssl=context, ssl_handshake_timeout=shake_s, backlog=1
        )
        listening.listen(BACKLOG)
        self._servers.append(server)

    def _is_named(self, connection: FrameConnection) -> bool:
        certificate = connection.certificate
        if certificate is not None and self._certified is not None:
            try:
                self._certified(connection, certificate)
            except ValueError as wrong:
                connection.close(str(wrong))
                return False
        return True

    async def _talk(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connection: FrameConnection
    ) -> None:
        made = writer.get_extra_info("socket")
        if made is not None:
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        by_peer = False
        try:
            while not connection.closed:
                async with asyncio.timeout(self._idle_s):
                    size = int.from_bytes(await reader.readexactly(4), "big", signed=True)
                least = 0 if connection.phase == PHASE_AUTHENTICATING else MIN_FRAME
                most = self._frame_size_max if connection.phase == PHASE_READY else self._login_size_max
                if not least <= size <= most:
                    connection.close(f"a frame of {size} bytes; {least} to {most} are allowed")
                    return
                async with asyncio.timeout(self._idle_s):
                    frames = self._requests if connection.phase == PHASE_READY else self._logins
                    frame = await frames.read(reader, connection, size)
                if connection.closed:
                    return
                answer = await self._serve(connection, frame)
                if answer is None:
                    connection.close("its request has no answer")
                    return
                if answer:
                    writer.write(len(answer).to_bytes(4, "big") + answer)
                async with asyncio.timeout(self._idle_s):
                    await writer.drain()
        except TimeoutError:
            pass  # the peer has nothing to say, or there is no way to it
        except (asyncio.IncompleteReadError, OSError):
            by_peer = not connection.closed
        finally:
            connection.closed = True
            with contextlib.suppress(OSError, RuntimeError):
                writer.close()
            if not self._closing:
                self.on_end(connection, by_peer)

    async def close(self) -> None:
        self._closing = True
        for server in self._servers:
            server.close()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

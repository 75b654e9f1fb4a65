"""Communication between workers: calls with an answer, and messages without one.

Every pair of workers has one connection, an AF_UNIX stream. The worker with the higher index connects to the
lower one, both send hello, and the pair is *up* until either side is gone. The addresses are abstract and
chosen by the kernel. The listening sockets are created before the fork and the supervisor keeps them, so a
connect to a dead worker waits in the backlog for its successor.

    frame   size u32 | kind u8 | id u64 | payload       little-endian; size counts what follows it

id 0 is a message (`tell`). Any other id is a call, answered by a frame ANSWER or FAILED with the same id.
Kinds of requests are 1 to 199.

Rules:
 - Frames of one pair arrive in the order in which `call` and `tell` were called, and are handled in that
   order. An answer that is awaited may come later than those of calls after it.
 - A kind may be registered as `bulk`: its order does not matter. Its large calls and answers are sent one
   after the other in parts of PART_BYTES, with other frames between the parts. So a small call does not wait
   until megabytes have passed through the socket.
 - A call whose worker dies fails with PeerLost, whether or not it was executed. It is never sent twice.
 - A handler's KafkaError is raised at the caller. Other exceptions become PeerTrouble, and are logged by the
   handler's worker. A request or answer that is too large for a frame is PeerTrouble, too: clients can cause
   it.
 - on_up runs before any frame of the new connection is handled, on_down after all frames of the old one were.
   A successor is never up before its predecessor was down.

Every process in the network namespace can connect to abstract addresses: a connection from another user id is
closed unread.

Beware: `call_blocking` is for a start whose loop is not running yet. Two workers that call each other this
way wait until their timeouts.
"""

import asyncio
import errno
import inspect
import logging
import math
import mmap
import os
import socket
import struct
import time
from collections import deque
from collections.abc import Awaitable, Callable, Generator
from functools import partial
from typing import Any, NamedTuple

from kafkad.protocol.errors import REQUEST_TIMED_OUT, KafkaError

logger = logging.getLogger(__name__)

SIZE = struct.Struct("<I")
HEADER = struct.Struct("<IBQ")
AFTER_SIZE = HEADER.size - SIZE.size
CREDENTIALS = struct.Struct("3i")  # pid, uid, gid
HELLO_BODY = struct.Struct("<6sBI")  # magic, PAIR or VISIT, index
FAILED_BODY = struct.Struct("<?h")  # is a KafkaError, its code; then the text

HELLO, ANSWER, FAILED, PART = 200, 201, 202, 203
MAGIC = b"kafkad"
PAIR, VISIT = 0, 1  # the one connection of a pair, or a connection for one blocking call

BACKLOG = 128
FRAME_MAX = 512 << 20  # well above socket.request.max.bytes; a larger frame is invalid
PAYLOAD_MAX = FRAME_MAX - AFTER_SIZE
QUEUED_MAX = 1 << 30  # a peer with this many unread bytes is disconnected
READ_BYTES = 256 << 10
READS_A_TURN = 8  # then others get their turn
PART_BYTES = 64 << 10  # of a large frame whose order does not matter
PARTS_A_TURN = 32
RETRY_S = 0.05
LOOK_EVERY_S = 0.05  # at calls that have timed out, at most
SCARCE = (errno.ENOBUFS, errno.ENOMEM)  # the kernel is short of memory for now: not a sign of a death
ACCEPT_AGAIN_S = 0.5  # after accept failed for lack of descriptors

Handler = Callable[[int, bytes], Any]
Outcome = bytes | Exception  # an answer, or what takes its place


class Later:
    """An answer that is on its way to one function, which is called in the turn in which it arrives. (A
    future would take one more turn of the loop, and a task two.)"""

    __slots__ = ("_function", "_outcome")

    def __init__(self) -> None:
        self._outcome: Outcome | None = None
        self._function: Callable[[Outcome], object] | None = None

    def arrive(self, outcome: Outcome) -> None:
        """Only the first call counts."""
        if self._outcome is None:
            self._outcome = outcome
            if self._function is not None:
                self._function(outcome)

    def then(self, function: Callable[[Outcome], object]) -> None:
        assert self._function is None
        self._function = function
        if self._outcome is not None:
            function(self._outcome)

    def __await__(self) -> Generator[Any, None, bytes]:
        return self.future().__await__()

    def future(self) -> "asyncio.Future[bytes]":
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        def arrived(outcome: Outcome) -> None:
            if future.done():  # it was cancelled
                return
            if isinstance(outcome, Exception):
                future.set_exception(outcome)
                future.exception()  # the caller may have stopped waiting; the loop must not report that
            else:
                future.set_result(outcome)

        self.then(arrived)
        return future


class PeerLost(KafkaError):
    """The other worker is not up, or has died before it answered. Without a better code, a client gets
    REQUEST_TIMED_OUT, which is retriable."""

    def __init__(self, message: str) -> None:
        super().__init__(REQUEST_TIMED_OUT, message)


class PeerTrouble(Exception):
    """The other worker's handler failed."""


def make_sockets(count: int) -> tuple[list[socket.socket], list[bytes]]:
    """Return (listening sockets, their addresses), one per worker: created before the fork, and kept open."""
    sockets, addresses = [], []
    for _ in range(count):
        each = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        each.bind("")  # the kernel chooses a free abstract name
        each.listen(BACKLOG)
        each.setblocking(False)
        sockets.append(each)
        addresses.append(each.getsockname())
    return sockets, addresses


def is_ours(connected: socket.socket) -> bool:
    _, uid, _ = CREDENTIALS.unpack(
        connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    )
    return bool(uid == os.getuid())


class Peers:
    """The other workers, as worker `me` sees them. `up`: the workers that can be called now.

    It does not use the listening sockets of the others; a worker may close them."""

    def __init__(
        self,
        me: int,
        listening_sockets: list[socket.socket],
        addresses: list[bytes],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.me = me
        self.count = len(addresses)
        self.up: set[int] = set()
        self._addresses = addresses
        self._loop = loop
        self._handlers: dict[int, Handler] = {}
        self._bulk: set[int] = set()  # kinds whose order does not matter
        self._on_up: list[Callable[[int], Any]] = []
        self._on_down: list[Callable[[int], Any]] = []
        self._links: dict[int, _Link] = {}  # those that are up
        self._all: set[_Link] = set()  # all of them: also visits and those that are not up
        self._calls: dict[int, _Call] = {}
        self._tasks: set[asyncio.Task[None]] = set()  # awaited answers
        self._last_id = 0
        self._look: asyncio.TimerHandle | None = None  # at calls that have timed out
        self._looks_at_s = math.inf
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._closed = False
        # Where links read: a bytes object of this size would be a page map of its own for each read, and the
        # end of a page map interrupts the other core. Only pages that are used take memory.
        self._read_into = mmap.mmap(-1, READ_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._listening = listening_sockets[me]
        self._listen()
        for k in range(me):
            loop.call_soon(self._connect, k)

    # -- interface -----------------------------------------------------------------------------------------

    def handle(self, kind: int, function: Handler, *, bulk: bool = False) -> None:
        """`function(sender, payload)` returns bytes (None: empty), a Later, or another awaitable of them.
        `bulk`: other frames may overtake large calls of this kind and their answers."""
        assert 0 < kind < HELLO and kind not in self._handlers
        self._handlers[kind] = function
        if bulk:
            self._bulk.add(kind)

    def on_up(self, function: Callable[[int], Any]) -> None:
        self._on_up.append(function)

    def on_down(self, function: Callable[[int], Any]) -> None:
        self._on_down.append(function)

    def call(
        self, k: int, kind: int, payload: bytes = b"", timeout_s: float | None = None
    ) -> "asyncio.Future[bytes]":
        """Return the answer of worker `k`; the call has been sent when this returns. Raises PeerLost (also if
        `k` is not up now), TimeoutError, KafkaError and PeerTrouble."""
        return self.ask(k, kind, payload, timeout_s).future()

    def ask(self, k: int, kind: int, payload: bytes = b"", timeout_s: float | None = None) -> Later:
        """Like `call`, at less cost. An answer arrives in the turn in which it is read, an exception in a
        turn of its own."""
        assert k != self.me and 0 < kind < HELLO
        answer = Later()
        link = self._links.get(k)
        if link is None:
            self._loop.call_soon(answer.arrive, PeerLost(f"worker {k} is not there"))
            return answer
        if len(payload) > PAYLOAD_MAX:
            trouble = PeerTrouble(f"{len(payload)} bytes are too many for a call")
            self._loop.call_soon(answer.arrive, trouble)
            return answer
        self._last_id += 1
        ends_s = math.inf if timeout_s is None else self._loop.time() + timeout_s
        self._calls[self._last_id] = _Call(link, kind, answer, ends_s)
        self._look_at(ends_s)
        link.send(kind, self._last_id, payload, bulk=kind in self._bulk)
        return answer

    def tell(self, k: int, kind: int, payload: bytes = b"") -> bool:
        """Return whether it was sent. False: `k` is not up; send everything again when on_up is called."""
        assert k != self.me and 0 < kind < HELLO
        link = self._links.get(k)
        if link is None:
            return False
        link.send(kind, 0, payload)
        return True

    async def wait_up(self, k: int, timeout_s: float | None = None) -> None:
        """Wait until worker `k` can be called. Raises TimeoutError."""
        if k in self.up:
            return
        waiting = (k, self._loop.create_future())
        self._waiting.append(waiting)
        try:
            await asyncio.wait_for(waiting[1], timeout_s)
        finally:
            self._waiting.remove(waiting)

    def call_blocking(self, k: int, kind: int, payload: bytes, timeout_s: float) -> bytes:
        """Like `call`, while the loop is not running: over a connection of its own. It waits for a worker
        that is not up yet, and asks the successor if one dies. Raises PeerLost on a timeout."""
        deadline = time.monotonic() + timeout_s
        while (left_s := deadline - time.monotonic()) > 0:
            try:
                return _ask(self._addresses[k], self.me, kind, payload, left_s)
            except OSError:
                time.sleep(min(RETRY_S, max(deadline - time.monotonic(), 0)))
        raise PeerLost(f"worker {k} did not answer within {timeout_s:g} s")

    def close(self) -> None:
        """Call no more handlers; calls that wait for an answer fail with PeerLost."""
        if self._closed:
            return
        self._closed = True
        if self._look is not None:
            self._look.cancel()
        self._loop.remove_reader(self._listening.fileno())
        self._listening.close()
        for link in list(self._all):
            self._discard(link)
        for _, future in self._waiting:
            future.cancel()

    # -- connections ---------------------------------------------------------------------------------------

    def _connect(self, k: int) -> None:
        if self._closed or k in self._links:
            return
        try:
            connecting = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        except OSError:  # no descriptor left
            self._loop.call_later(RETRY_S, self._connect, k)
            return
        try:
            connecting.setblocking(False)
            connecting.connect(self._addresses[k])  # immediate, or it fails: a backlog may be full
        except OSError:
            connecting.close()
            self._loop.call_later(RETRY_S, self._connect, k)
            return
        if not is_ours(connecting):
            connecting.close()
            logger.error("the address of worker %d is another user's", k)
            return
        link = _Link(self, connecting, k)
        self._all.add(link)
        link.send(HELLO, 0, HELLO_BODY.pack(MAGIC, PAIR, self.me))

    def _listen(self) -> None:
        if not self._closed:
            self._loop.add_reader(self._listening.fileno(), self._accept)

    def _accept(self) -> None:
        while True:
            try:
                accepted, _ = self._listening.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as trouble:  # no descriptor left: it stays in the backlog for a while
                logger.warning("a worker's connection cannot be accepted: %s", trouble)
                self._loop.remove_reader(self._listening.fileno())
                self._loop.call_later(ACCEPT_AGAIN_S, self._listen)
                return
            if not is_ours(accepted):
                accepted.close()
                logger.warning("refused a connection of another user to this worker's own socket")
                continue
            accepted.setblocking(False)
            link = _Link(self, accepted, None)
            self._all.add(link)
            link.readable()  # hellos are handled in order of arrival

    def _hello(self, link: "_Link", payload: bytes) -> None:
        """Handle the first frame of each side. Raises _Hangup."""
        if len(payload) != HELLO_BODY.size:
            raise _Hangup("no hello")
        magic, purpose, k = HELLO_BODY.unpack(payload)
        if magic != MAGIC or k >= self.count:
            raise _Hangup("a hello that is not ours")
        link.greeted = True
        if purpose == VISIT:
            link.k = k
            return
        if link.k is None:
            if k <= self.me:
                raise _Hangup(f"worker {k} does not connect to worker {self.me}")
            link.k = k
            if k in self._links:  # its predecessor is dead, but that was not noticed yet
                self._links[k].readable()  # read the frames that it sent before
                if k in self._links:
                    self._lost(self._links[k])
            link.send(HELLO, 0, HELLO_BODY.pack(MAGIC, PAIR, self.me))
        elif link.k != k:
            raise _Hangup(f"worker {k} answers for worker {link.k}")
        self._links[k] = link
        self.up.add(k)
        for awaited, future in self._waiting:
            if awaited == k and not future.done():
                future.set_result(None)
        for function in self._on_up:
            function(k)

    def _lost(self, link: "_Link") -> None:
        """Handle the end of the other side."""
        if link not in self._all:
            return
        was_up = self._discard(link)
        k = link.k
        if k is None or self._closed:
            return
        if was_up:
            for function in self._on_down:
                function(k)
        if k < self.me and not link.accepted:
            self._loop.call_soon(self._connect, k)

    def _discard(self, link: "_Link") -> bool:
        """Remove the link. Return whether it was up."""
        self._all.discard(link)
        link.close()
        was_up = link.k is not None and self._links.get(link.k) is link
        if was_up:
            assert link.k is not None
            del self._links[link.k]
            self.up.discard(link.k)
        for call_id in [each for each, call in self._calls.items() if call.link is link]:
            self._finish(call_id, PeerLost(f"worker {link.k} is gone"))
        return was_up

    # -- frames --------------------------------------------------------------------------------------------

    def _frame(self, link: "_Link", kind: int, call_id: int, payload: bytes) -> None:
        if not link.greeted:
            if kind != HELLO:
                raise _Hangup("no hello")
            self._hello(link, payload)
        elif kind == ANSWER:
            self._finish(call_id, payload)
        elif kind == PART:
            link.take_part(payload)
        elif kind == FAILED:
            self._finish(call_id, _failure(payload))
        else:
            self._handle(link, kind, call_id, payload)

    def _handle(self, link: "_Link", kind: int, call_id: int, payload: bytes) -> None:
        assert link.k is not None
        handler = self._handlers.get(kind)
        try:
            if handler is None:
                raise PeerTrouble(f"worker {self.me} does not handle kind {kind}")
            answer = handler(link.k, payload)
        except Exception as trouble:
            self._failed(link, kind, call_id, trouble)
            return
        if isinstance(answer, Later):
            answer.then(partial(self._arrived, link, kind, call_id))
        elif inspect.isawaitable(answer):
            task = asyncio.ensure_future(self._answer_later(link, kind, call_id, answer), loop=self._loop)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            self._answer(link, kind, call_id, answer or b"")

    def _arrived(self, link: "_Link", kind: int, call_id: int, outcome: Outcome) -> None:
        if isinstance(outcome, Exception):
            self._failed(link, kind, call_id, outcome)
        else:
            self._answer(link, kind, call_id, outcome)

    async def _answer_later(self, link: "_Link", kind: int, call_id: int, answer: Awaitable[Any]) -> None:
        try:
            payload = await answer
        except Exception as trouble:
            self._failed(link, kind, call_id, trouble)
            return
        self._answer(link, kind, call_id, payload or b"")

    def _answer(self, link: "_Link", kind: int, call_id: int, payload: bytes) -> None:
        if call_id and len(payload) <= PAYLOAD_MAX:
            in_pair = link.k is not None and self._links.get(link.k) is link  # a visit reads one whole frame
            link.send(ANSWER, call_id, payload, bulk=in_pair and kind in self._bulk)
        elif call_id:
            self._failed(link, kind, call_id, PeerTrouble(f"{len(payload)} bytes are too many for an answer"))

    def _failed(self, link: "_Link", kind: int, call_id: int, trouble: Exception) -> None:
        if call_id:
            of_kafka = isinstance(trouble, KafkaError)
            code = trouble.code if isinstance(trouble, KafkaError) else 0
            text = trouble.message if isinstance(trouble, KafkaError) else f"{trouble!r}"
            body = FAILED_BODY.pack(of_kafka, code) + (text or "").encode("utf-8", "replace")
            link.send(FAILED, call_id, body)
        if isinstance(trouble, AssertionError):
            raise trouble  # a bug: the loop's handler ends this worker
        if not isinstance(trouble, KafkaError) or not call_id:
            logger.error("what worker %s asked failed (kind %d)", link.k, kind, exc_info=trouble)

    def _finish(self, call_id: int, outcome: Outcome) -> None:
        call = self._calls.pop(call_id, None)
        if call is None:  # it has timed out
            return
        if isinstance(outcome, Exception):  # perhaps of many calls, amid the end of their link
            self._loop.call_soon(call.answer.arrive, outcome)
            return
        try:
            call.answer.arrive(outcome)
        except Exception as trouble:  # the frames behind this one are read all the same
            self._loop.call_exception_handler({"message": "an answer was not taken", "exception": trouble})

    def _look_at(self, when_s: float) -> None:
        """Look then, or earlier, for calls that have timed out. One timer serves all calls, and is set again
        when it fires: most calls are answered long before."""
        if when_s < self._looks_at_s:
            if self._look is not None:
                self._look.cancel()
            self._looks_at_s = when_s
            self._look = self._loop.call_at(when_s, self._end_late_calls)

    def _end_late_calls(self) -> None:
        self._look, self._looks_at_s = None, math.inf
        now_s = self._loop.time()
        for call_id, call in list(self._calls.items()):
            if call.ends_s <= now_s:
                late = f"worker {call.link.k} has not answered in time (kind {call.kind})"
                self._finish(call_id, TimeoutError(late))
        next_s = min((call.ends_s for call in self._calls.values()), default=math.inf)
        self._look_at(max(next_s, now_s + LOOK_EVERY_S))  # there may be many of a worker that hangs


class _Call(NamedTuple):
    link: "_Link"
    kind: int
    answer: Later
    ends_s: float  # of the loop's time; infinite without a timeout


class _Hangup(Exception):
    """The peer speaks an unsupported protocol version."""


class _Link:
    """One connection. A failed write only ends writing: frames that the other side had sent before it died
    are still read, and reading finds its end."""

    def __init__(self, peers: Peers, connected: socket.socket, k: int | None) -> None:
        self.peers = peers
        self.k = k  # the peer's index; None: not known yet
        self.accepted = k is None
        self.greeted = False
        self._socket = connected
        self._loop = peers._loop
        self._in = bytearray()
        self._parts_in = bytearray()  # parts of large frames that have arrived
        self._out: deque[memoryview] = deque()
        self._bulk_out: deque[memoryview] = deque()  # large frames: their parts are sent when `_out` is empty
        self._queued = 0  # bytes in both
        self._writing = False  # the loop calls `_write_on` when there is room
        self._broken = False
        self._loop.add_reader(connected.fileno(), self.readable)

    def send(self, kind: int, call_id: int, payload: bytes, *, bulk: bool = False) -> None:
        if self._broken:
            return
        size = AFTER_SIZE + len(payload)
        assert size <= FRAME_MAX
        packed = HEADER.pack(size, kind, call_id) + payload
        frame = memoryview(packed)
        if not self._queued and len(packed) <= PART_BYTES:
            sent = self._write(packed)
            if sent == len(packed) or self._broken:
                return
            frame = frame[sent:]
        (self._bulk_out if bulk and len(frame) > PART_BYTES else self._out).append(frame)
        self._queued += len(frame)
        if not self._writing:
            self._write_on()
        if self._queued > QUEUED_MAX:
            logger.error("worker %s reads nothing, %d bytes wait for it", self.k, self._queued)
            self._break()
            self._loop.call_soon(self.peers._lost, self)

    def _next_part(self) -> memoryview:
        """Return the next part of the first large frame, as a frame of its own."""
        frame = self._bulk_out[0]
        part, rest = frame[:PART_BYTES], frame[PART_BYTES:]
        if rest:
            self._bulk_out[0] = rest
        else:
            self._bulk_out.popleft()
        self._queued += HEADER.size
        return memoryview(HEADER.pack(AFTER_SIZE + len(part), PART, 0) + part)

    def _write(self, data: bytes | memoryview) -> int:
        try:
            return self._socket.send(data, socket.MSG_NOSIGNAL)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError as trouble:
            if trouble.errno not in SCARCE:
                self._break()
            return 0

    def _write_on(self) -> None:
        parts = 0
        while self._out or (self._bulk_out and parts < PARTS_A_TURN):
            if not self._out:
                self._out.append(self._next_part())
                parts += 1
            data = self._out[0]
            sent = self._write(data)
            if self._broken:
                return
            self._queued -= sent
            if sent < len(data):
                self._out[0] = data[sent:]
                break
            self._out.popleft()
        unfinished = bool(self._out or self._bulk_out)
        if unfinished and not self._writing:
            self._loop.add_writer(self._socket.fileno(), self._write_on)
        elif self._writing and not unfinished:
            self._loop.remove_writer(self._socket.fileno())
        self._writing = unfinished

    def _break(self) -> None:
        if not self._broken:
            self._broken = True
            self._loop.remove_writer(self._socket.fileno())
            self._out.clear()
            self._bulk_out.clear()
            self._queued = 0

    def readable(self) -> None:
        into = self.peers._read_into
        for _ in range(READS_A_TURN):
            try:
                size = self._socket.recv_into(into)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                size = 0
            if not size:
                self.peers._lost(self)
                return
            some = into[:size]  # copied: a frame may make another link read, too
            try:
                if self._in:
                    self._in += some
                    self._take_frames(self._in)
                else:
                    self._take_whole_frames(some)
            except _Hangup as why:
                logger.error("hung up on worker %s: %s", self.k, why)
                self.peers._lost(self)
                return
            if self not in self.peers._all or size < READ_BYTES:
                return

    def take_part(self, part: bytes) -> None:
        """Reassemble frames from parts. Raises _Hangup."""
        self._parts_in += part
        self._take_frames(self._parts_in)

    def _take_whole_frames(self, data: bytes) -> None:
        """Take the frames of what was read while nothing was left of earlier ones; most often it is one."""
        if self.greeted and len(data) >= HEADER.size:
            size, kind, call_id = HEADER.unpack_from(data)
            if size == len(data) - SIZE.size and kind != PART:
                self.peers._frame(self, kind, call_id, data[HEADER.size :])
                return
        self._in += data
        self._take_frames(self._in)

    def _take_frames(self, data: bytearray) -> None:
        position, end = 0, len(data)
        try:
            while end - position >= HEADER.size:
                size, kind, call_id = HEADER.unpack_from(data, position)
                if not AFTER_SIZE <= size <= FRAME_MAX or (not self.greeted and kind != HELLO):
                    raise _Hangup("it sent bytes that are not a frame")
                if kind == PART and data is self._parts_in:
                    raise _Hangup("a part within a part")
                if end - position < SIZE.size + size:
                    return
                payload = bytes(memoryview(data)[position + HEADER.size : position + SIZE.size + size])
                position += SIZE.size + size
                self.peers._frame(self, kind, call_id, payload)
                if self not in self.peers._all:
                    return
        finally:
            del data[:position]

    def close(self) -> None:
        self._break()
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()


def _failure(payload: bytes) -> Exception:
    of_kafka, code = FAILED_BODY.unpack_from(payload)
    text = payload[FAILED_BODY.size :].decode("utf-8", "replace")
    return KafkaError(code, text or None) if of_kafka else PeerTrouble(text)


def _ask(address: bytes, me: int, kind: int, payload: bytes, timeout_s: float) -> bytes:
    """Make one blocking call. After OSError it may be repeated."""
    deadline = time.monotonic() + timeout_s

    def left_s() -> float:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left

    def receive(count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            connected.settimeout(left_s())
            some = connected.recv(min(count - len(data), READ_BYTES))
            if not some:
                raise ConnectionResetError
            data += some
        return bytes(data)

    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connected:
        connected.settimeout(left_s())
        connected.connect(address)
        if not is_ours(connected):
            raise PeerLost("the address of a worker is another user's")
        hello = HELLO_BODY.pack(MAGIC, VISIT, me)
        connected.sendall(HEADER.pack(AFTER_SIZE + len(hello), HELLO, 0) + hello)
        connected.settimeout(left_s())
        connected.sendall(HEADER.pack(AFTER_SIZE + len(payload), kind, 1) + payload)
        size, answer, _ = HEADER.unpack(receive(HEADER.size))
        body = receive(size - AFTER_SIZE)
    if answer == FAILED:
        raise _failure(body)
    assert answer == ANSWER
    return body

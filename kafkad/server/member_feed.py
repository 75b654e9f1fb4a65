"""Messages between the workers of a cluster member, in addition to metadata (server/metadata_feed).

    CONTROLLER_ASKED   a worker's request to the controller, by worker 0: AlterPartition of its partitions
    HAND_OVER          from worker 0: hold Produces, of all partitions or of some (server/produce_handover);
                       answered when logs are drained
    DEPARTED           from worker 0: the controllers have released this broker, all may close connections

Only worker 0 knows the active controller, because it follows the metadata log, and it has the one connection
to it. A worker that lost worker 0 waits for its successor and asks again; these requests may be repeated.

Use: server/member_worker."""

import asyncio
import struct
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

from kafkad.net.channel import Unreachable
from kafkad.protocol import codec, errors
from kafkad.protocol.errors import KafkaError, Malformed
from kafkad.server.controller_channel import Ask, ControllerChannel
from kafkad.server.metadata_feed import LEADER
from kafkad.server.worker_links import PeerLost, Peers, PeerTrouble

CONTROLLER_ASKED, DEPARTED, HAND_OVER = 120, 121, 122  # kinds between peers
PATIENCE_S: Final = 5.0  # how long to wait for worker 0 to come back
TIMEOUT_S: Final = 35.0  # for worker 0's answer: it has 30 s itself
HAND_OVER_S: Final = 0.2  # for the others' logs to be drained
LOWEST: Final = struct.Struct("<h")


def ask_by_worker_0(peers: Peers | None) -> Ask:
    """Return a function like ControllerChannel.ask."""
    assert peers is not None

    async def ask(request: Any, *, timeout_s: float | None = None, lowest: int = 0) -> Any:
        version = request.MAX_VERSION
        frame = LOWEST.pack(lowest) + codec.encode_request(request, version, 0, "kafkad")
        try:
            await peers.wait_up(LEADER, PATIENCE_S)
            answer = await peers.call(LEADER, CONTROLLER_ASKED, frame, timeout_s or TIMEOUT_S)
            return codec.decode_response(codec.response_class(request.API_KEY), version, answer)[1]
        except (PeerLost, PeerTrouble, TimeoutError, Malformed) as trouble:
            raise Unreachable(f"the controller cannot be asked by worker 0: {trouble}") from trouble

    return ask


class ControllerOfOthers:
    """Worker 0's side of CONTROLLER_ASKED."""

    def __init__(self, peers: Peers | None, channel: ControllerChannel) -> None:
        assert peers is not None
        self._channel = channel
        self._asking: dict[int, set[asyncio.Task[bytes]]] = {}
        peers.handle(CONTROLLER_ASKED, self._begin)
        peers.on_down(self._give_up)

    def _begin(self, k: int, payload: bytes) -> "asyncio.Task[bytes]":
        task = asyncio.ensure_future(self._ask(payload))
        self._asking.setdefault(k, set()).add(task)
        task.add_done_callback(self._asking[k].discard)
        return task

    def _give_up(self, k: int) -> None:
        """A worker has died: its requests must not reach the controller after those of its successor."""
        for task in self._asking.pop(k, ()):
            task.cancel()

    async def _ask(self, payload: bytes) -> bytes:
        (lowest,) = LOWEST.unpack_from(payload)
        header, request = codec.decode_request(payload[LOWEST.size :])
        try:
            response = await self._channel.ask(request, lowest=lowest)
        except Unreachable as trouble:
            raise KafkaError(errors.REQUEST_TIMED_OUT, str(trouble)) from trouble
        return codec.encode_response(response, header.request_api_version, 0)


class Departure:
    """The first part of a stop: all workers serve until the controllers have released worker 0, or it is
    gone. And what is like it: some leaders move, but this broker stays.

    `hand_over(moving)` holds a worker's Produces of these partitions (None: of all) and returns whether
    their logs are drained."""

    def __init__(
        self, peers: Peers | None, hand_over: Callable[[list[tuple[str, int]] | None], Awaitable[bool]]
    ) -> None:
        assert peers is not None
        self._peers = peers
        self._over = asyncio.Event()

        async def begin(moving: bytes) -> bytes:
            pairs = (line.rpartition(" ") for line in moving.decode().splitlines())
            drained = await hand_over([(topic, int(index)) for topic, _, index in pairs] or None)
            return b"drained" if drained else b""

        peers.handle(HAND_OVER, lambda _, moving: asyncio.ensure_future(begin(moving)))
        peers.handle(DEPARTED, lambda _, __: self._over.set())
        peers.on_down(lambda k: self._over.set() if k == LEADER and self._waits else None)
        self._waits = False

    async def hand_over(self, moving: Iterable[tuple[str, int]] = ()) -> bool:
        """Called by worker 0: let the others hold Produces of `moving`, or of all partitions if it is empty.
        Return whether their logs are drained, in HAND_OVER_S."""
        lines = "".join(f"{topic} {index}\n" for topic, index in moving).encode()
        asked = [self._peers.call(k, HAND_OVER, lines, HAND_OVER_S) for k in self._peers.up]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        return all(answer == b"drained" for answer in answers)

    def tell(self) -> None:
        """Called by worker 0."""
        for k in self._peers.up:
            self._peers.tell(k, DEPARTED)

    async def wait(self) -> None:
        self._waits = True
        if LEADER in self._peers.up:
            await self._over.wait()

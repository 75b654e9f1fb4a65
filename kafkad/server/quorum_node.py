"""A RaftNode in a real process: it sends through `net/channel`, uses the loop's clock, and applies committed
records in short turns.

    send     one channel per node. A channel that still waits for an older answer is closed and replaced, so
             that a hanging node does not delay a vote
    poll     when the node asks for it, and at once after an event (`wake`)
    apply    APPLY_S of work, then the loop serves others
    handle   a request of another node; the answer is a future, because a Fetch may wait for records

If the directory cannot be used or written (UnusableMetadata, KAFKA_STORAGE_ERROR), `fatal` gets the error.

Use: server/controller_node."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final

from kafkad.log.identity import DirectoryTrouble
from kafkad.net.channel import Channel, Unreachable
from kafkad.protocol import codec, errors, messages
from kafkad.protocol.errors import KafkaError
from kafkad.raft.metadata_replica import UnusableMetadata
from kafkad.raft.node import NEVER, RaftNode
from kafkad.raft.observer import OLDEST_FETCH
from kafkad.raft.quorum_messages import RESPONSES

logger = logging.getLogger("kafkad")

APPLY_S: Final = 0.003
PRE_VOTES: Final = 2  # version of Vote
LONGEST_S: Final = 3600.0
DENIED_S: Final = 1.0  # until what an authorizer has denied is asked for again

Address = tuple[str, int]


class Link:
    """The channel to one node. `busy`: it waits for an answer."""

    __slots__ = ("at", "busy", "channel", "closed")

    def __init__(self, at: Address) -> None:
        self.at = at
        self.busy = False
        self.closed = False  # another link has replaced it
        self.channel: Channel | None = None

    def close(self) -> None:
        self.closed = True
        if self.channel is not None:
            self.channel.close()


class QuorumNode:
    """`node` is set before `start`; `send` and `wake` are its arguments. `on_change` is called after
    everything that may have changed it."""

    node: RaftNode

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        client_id: str,
        request_timeout_ms: int,
        trust_refusals: bool = True,
        fatal: Callable[[BaseException], Any],
        connect: Callable[..., Any] = Channel.connect,
    ) -> None:
        self.on_change: Callable[[], Any] = lambda: None
        self._loop = loop
        self._client_id = client_id
        self._timeout_s = request_timeout_ms / 1000
        self._trust_refusals = trust_refusals  # kafkad.failover.on.refused
        self._fatal = fatal
        self._connect = connect
        self._links: dict[int, Link] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._woken: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def start(self) -> None:
        """Begin: the node is open."""
        self.wake()

    # -- turns ---------------------------------------------------------------------------------------------

    def wake(self) -> None:
        if self._woken is None and not self._closed:
            self._woken = self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        """Apply what is committed, do what is due, and schedule the next turn."""
        self._woken = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._closed:
            return
        try:
            more = self._apply()
            wait_ms = self.node.poll()
            more = more or self.node.image.offset + 1 < self.node.high_watermark
            self.on_change()
        except (UnusableMetadata, KafkaError, OSError) as trouble:
            self._unusable(trouble)
            return
        if more:
            self.wake()
        elif wait_ms < NEVER and self._woken is None:
            self._timer = self._loop.call_later(min(wait_ms / 1000, LONGEST_S), self._turn)

    def _apply(self) -> bool:
        ends = self._loop.time() + APPLY_S
        while self.node.apply():
            if self._loop.time() >= ends:
                return True
        return False

    def _unusable(self, trouble: Exception) -> None:
        """End the node; if the disk is the cause, with a line about it instead of a traceback."""
        if isinstance(trouble, KafkaError) and trouble.code != errors.KAFKA_STORAGE_ERROR:
            self._fatal(trouble)
            return
        cause = DirectoryTrouble(f"the metadata log cannot be read or written: {trouble}")
        cause.__cause__ = trouble
        self._fatal(cause)

    # -- requests of other nodes ---------------------------------------------------------------------------

    async def handle(self, request: Any) -> Any:
        """Return the answer to a raft request."""
        answer: asyncio.Future[Any] = self._loop.create_future()

        def reply(response: Any) -> None:
            if not answer.done():
                answer.set_result(response)

        try:
            self.node.handle(request, reply)
        except (UnusableMetadata, OSError) as trouble:
            self._unusable(trouble)
            raise KafkaError(errors.KAFKA_STORAGE_ERROR) from trouble
        self.wake()
        return await answer

    # -- requests of this node -----------------------------------------------------------------------------

    def send(self, node_id: int, host: str, port: int, request: Any, token: int) -> None:
        link = self._links.get(node_id)
        if link is None or link.busy or link.at != (host, port):
            if link is not None:
                link.close()
            link = self._links[node_id] = Link((host, port))
        link.busy = True
        self._run(self._ask(link, request, token))

    async def _ask(self, link: Link, request: Any, token: int) -> None:
        response: Any = None
        refused = False
        try:
            if link.at[0]:
                response = await self._answer(link, request)
                if getattr(response, "error_code", 0) == errors.CLUSTER_AUTHORIZATION_FAILED:
                    await asyncio.sleep(DENIED_S)
        except Unreachable as trouble:
            refused = trouble.refused and self._trust_refusals
            logger.debug("the metadata quorum: %s", trouble)
        except KafkaError as trouble:
            if trouble.code == errors.UNSUPPORTED_VERSION:
                cls = RESPONSES.get(type(request)) or codec.response_class(type(request).API_KEY)
                response = cls(error_code=trouble.code)
            logger.warning("the metadata quorum: %s", trouble)
        finally:
            link.busy = False
            if link.closed:  # closed while it was being connected
                link.close()
        if self._closed:
            return
        try:
            self.node.response(token, response, refused=refused)
        except (UnusableMetadata, KafkaError, OSError) as trouble:
            self._unusable(trouble)
            return
        self.wake()

    async def _answer(self, link: Link, request: Any) -> Any:
        if link.channel is None or link.channel.closed:
            host, port = link.at
            link.channel = await self._connect(host, port, self._client_id, timeout_s=self._timeout_s)
        return await link.channel.ask(request, timeout_s=self._timeout_s, lowest=_lowest(request))

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        self._closed = True
        for handle in (self._woken, self._timer):
            if handle is not None:
                handle.cancel()
        for link in self._links.values():
            link.close()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)


def _lowest(request: Any) -> int:
    """Return the oldest version that can express the request."""
    if type(request) is messages.FetchRequest:
        return OLDEST_FETCH
    if type(request) is messages.VoteRequest and request.topics[0].partitions[0].pre_vote:
        return PRE_VOTES
    if type(request) is messages.AddRaftVoterRequest:
        return 0 if request.ack_when_committed else 1
    return 0

"""Hands Produces over to the new leaders of partitions that this broker leads no longer, so that clients do
not retry.

A client that is told NOT_LEADER_OR_FOLLOWER waits for its retry.backoff.ms (librdkafka: 100) before it sends
the batch again, even if the answer names the new leader. A broker that leaves its cluster, or gives
partitions back to their preferred leaders, avoids that:

    hold      from now on Produces wait here, before anything is appended
    drain     the followers get the rest of each log that is led here, and its acknowledgements are sent
    move      the broker asks the controller to move its leaders: all (server/broker_lifecycle), or some
              (server/preferred_leaders)
    forward   a waiting Produce is sent to the new leader as soon as this broker knows it. Its client gets
              that leader's answer, with the new leader as CurrentLeader (KIP-951). librdkafka follows
              CurrentLeader in any answer, and waits for its earlier requests before it asks the new leader
    end       AFTER_S after the last leader has moved, at most HOLD_S (HOLD_SOME_S) after the begin. Later
              Produces are answered NOT_LEADER_OR_FOLLOWER with the new leader: Java's producer follows only
              that, at once. What waits for a leader that has not moved is refused a little later, so until
              then a later batch may overtake it (Partition.expect_stragglers)

Some Produces are not held: of several partitions, below version 10, of a transaction below version 12,
without acks, above 1 MiB, or to a partition without other replicas in sync (`hand_over` of
_native/serving/produce_leaving).

The client's rights are checked here, and the new leader sees this broker as the sender. If it does not allow
this broker to write, the client is told to ask it itself.

Use: server/member_worker; each worker has one."""

import asyncio
from collections.abc import Callable, Collection, Iterable
from typing import Any, Final, NamedTuple

from kafkad._native.serving.connection import Connection
from kafkad._native.shared.watermarks import LEADER
from kafkad.log.log import Log
from kafkad.metadata.image import MetadataImage, PartitionState
from kafkad.net.channel import Unreachable
from kafkad.protocol import codec, errors, messages
from kafkad.protocol.errors import KafkaError
from kafkad.server.broker_channels import BrokerChannels

HOLD_S: Final = 1.0
HOLD_SOME_S: Final = 0.5  # of a broker that stays: if they do not move, the client asks here again
AFTER_S: Final = 0.2
REFUSE_S: Final = 0.1  # between the end and the closing of connections
DRAIN_S: Final = 0.1  # at most; what is not replicated by then is answered as if nothing had been held
LOOK_S: Final = 0.002
AGAIN_S: Final = 0.05  # at most, between two tries of a Produce that came before earlier ones
AT_ONCE: Final = 500  # partitions that are looked at in one turn
BYTES_MAX: Final = 64 << 20  # of records that wait here
TOPIC_IDS_FROM: Final = 13

# The new leader has not heard of it yet, or waits for earlier batches of the producer.
NOT_YET: Final = frozenset(
    {errors.NOT_LEADER_OR_FOLLOWER, errors.UNKNOWN_TOPIC_OR_PARTITION, errors.UNKNOWN_TOPIC_ID}
)
# The new leader does not let this broker write: the client has to ask it itself.
NOT_FOR_US: Final = frozenset(
    {
        errors.TOPIC_AUTHORIZATION_FAILED,
        errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        errors.CLUSTER_AUTHORIZATION_FAILED,
    }
)

Key = tuple[str, int]  # topic, partition
Request = messages.ProduceRequest
Response = messages.ProduceResponse


class Waiting(NamedTuple):
    """A Produce of one partition."""

    connection: Connection
    request_id: int
    version: int
    correlation_id: int
    acks: int
    timeout_ms: int
    transactional_id: str | None
    topic: bytes  # its name or, from TOPIC_IDS_FROM on, its id
    partition: int
    records: bytes


class ProduceHandover:
    def __init__(
        self,
        me: int,
        image: Callable[[], MetadataImage],
        channels: BrokerChannels,
        offer: Callable[[Any, Collection[Key] | None], None],
        loop: asyncio.AbstractEventLoop,
        fatal: Callable[[BaseException], object],
    ) -> None:
        """`me`: this broker's id. `offer`: Reactor.hand_over."""
        self._me = me
        self._image = image
        self._channels = channels
        self._offer = offer
        self._loop = loop
        self._fatal = fatal
        self._tasks: set[asyncio.Task[None]] = set()
        self._bytes = 0
        self._ends_at = 0.0  # of the current hold; afterwards it is in the past
        self._leaves = False

    async def begin(self, logs: Iterable[Log], moving: Collection[Key] | None = None) -> bool:
        """Hold the Produces of `moving`; None: of all partitions, for good. Return whether those of `logs`
        that are led here are drained, in DRAIN_S. False, and nothing is held, if others are moving or this
        broker leaves."""
        if self._leaves or (moving is not None and self._ends_at > self._loop.time()):
            return False
        self._leaves = moving is None
        self._ends_at = self._loop.time() + (HOLD_S if self._leaves else HOLD_SOME_S)
        self._offer(self._take, moving)
        self._start(self._end(moving))
        for broker in self._image().brokers.values():
            if broker.broker_id != self._me and not broker.fenced:
                self._start(self._meet(broker.broker_id))
        led = [log for log in logs if log.native.role == LEADER]
        for log in led:
            log.native.expect_stragglers(int((self._ends_at - self._loop.time() + HOLD_S) * 1000))
        return await self._until(
            led,
            lambda log: log.high_watermark >= log.end_offset or log.native.role != LEADER,
            self._loop.time() + DRAIN_S,
        )

    async def _end(self, moving: Collection[Key] | None) -> None:
        """Take Produces until all of `moving`, or all that this broker leads, in any of its workers, have
        moved."""
        ends_at = self._ends_at
        led = list(moving or ())
        if moving is None:
            for name, topic in self._image().topics.items():
                led += [
                    (name, index)
                    for index, state in topic.partitions.items()
                    if state.leader == self._me and len(state.isr) > 1
                ]
                await asyncio.sleep(0)
        await self._until(led, self._has_moved, ends_at)
        ends_at = min(ends_at, self._loop.time() + AFTER_S)
        await asyncio.sleep(ends_at - self._loop.time())
        if self._leaves == (moving is None):  # otherwise a hold of all has followed this one
            self._ends_at = self._loop.time()
            self._offer(None, None)

    async def _until(self, items: list[Any], is_over: Callable[[Any], bool], ends_at: float) -> bool:
        """Wait until `is_over` each of `items`, which it takes, or until `ends_at`. Tell whether all are."""
        while items and self._loop.time() < ends_at:
            for _ in range(AT_ONCE):
                if not items or not is_over(items[-1]):
                    break
                items.pop()
            await asyncio.sleep(LOOK_S if items and not is_over(items[-1]) else 0)
        return not items

    def _has_moved(self, led: Key) -> bool:
        topic = self._image().topics.get(led[0])
        state = None if topic is None else topic.partitions.get(led[1])
        return state is None or state.leader != self._me

    async def finish(self) -> None:
        """Wait, for a bounded time, until what was taken is answered and no more is taken, and clients that
        follow only a refusal were refused. Connections are closed after that."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=HOLD_S)
            await asyncio.sleep(REFUSE_S)

    def close(self) -> None:
        """Connections are about to be closed."""
        for task in self._tasks:
            task.cancel()

    async def _meet(self, broker_id: int) -> None:
        """Connect, so that the first request need not wait for it."""
        try:
            await self._channels.connect(broker_id, timeout_s=HOLD_S)
        except Unreachable:
            pass  # the request that needs it tries again

    def _start(self, work: Any) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (trouble := task.exception()) is not None:
            self._fatal(trouble)

    # -- one Produce ---------------------------------------------------------------------------------------

    def _take(self, *request: Any) -> bool:
        waiting = Waiting(*request)
        if self._bytes + len(waiting.records) > BYTES_MAX:
            return False
        self._bytes += len(waiting.records)
        self._start(self._serve(waiting))
        return True

    async def _serve(self, waiting: Waiting) -> None:
        try:
            response = await self._answer(waiting)
            waiting.connection.respond(
                waiting.request_id, codec.encode_response(response, waiting.version, waiting.correlation_id)
            )
        finally:
            self._bytes -= len(waiting.records)

    async def _answer(self, waiting: Waiting) -> Any:
        found = Response.Responses.PartitionResponses(
            index=waiting.partition, error_code=errors.NOT_LEADER_OR_FOLLOWER, base_offset=-1
        )
        ends_at = self._loop.time() + HOLD_S if self._leaves else self._ends_at + AFTER_S
        pause_s = LOOK_S
        while (state := self._state(waiting)) is not None and self._loop.time() < ends_at:
            if state.leader not in (self._me, -1):
                found = await self._forward(waiting, state.leader)
                if found.error_code not in NOT_YET:
                    break
                if found.error_message is not None:  # the leader waits for earlier batches of the producer
                    pause_s = min(pause_s * 2, AGAIN_S)
            await asyncio.sleep(pause_s)
        if found.error_code in NOT_FOR_US:
            found.error_code = errors.NOT_LEADER_OR_FOLLOWER
        return self._with_leader(waiting, found)

    def _state(self, waiting: Waiting) -> PartitionState | None:
        image = self._image()
        if waiting.version >= TOPIC_IDS_FROM:
            topic = image.topics_by_id.get(waiting.topic)
        else:
            topic = image.topics.get(waiting.topic.decode())
        return None if topic is None else topic.partitions.get(waiting.partition)

    async def _forward(self, waiting: Waiting, leader: int) -> Any:
        """Return the new leader's answer about the partition."""
        image = self._image()
        topic = Request.TopicData()
        if waiting.version >= TOPIC_IDS_FROM:
            topic.topic_id, topic.name = waiting.topic, image.topics_by_id[waiting.topic].name
        else:
            topic.name = waiting.topic.decode()
            topic.topic_id = image.topics[topic.name].topic_id
        topic.partition_data = [
            Request.TopicData.PartitionData(index=waiting.partition, records=waiting.records)
        ]
        request = Request(
            transactional_id=waiting.transactional_id,
            acks=waiting.acks,
            timeout_ms=waiting.timeout_ms,
            topic_data=[topic],
        )
        timeout_s = waiting.timeout_ms / 1000 + HOLD_S
        try:
            response = await self._channels.ask(leader, request, timeout_s=timeout_s)
            return response.responses[0].partition_responses[0]
        except (Unreachable, IndexError):  # no answer, or one that does not name the partition
            code = errors.REQUEST_TIMED_OUT  # the records may have arrived
        except KafkaError as trouble:
            code = trouble.code
        return Response.Responses.PartitionResponses(index=waiting.partition, error_code=code, base_offset=-1)

    def _with_leader(self, waiting: Waiting, found: Any) -> Any:
        topic = Response.Responses(partition_responses=[found])
        if waiting.version >= TOPIC_IDS_FROM:
            topic.topic_id = waiting.topic
        else:
            topic.name = waiting.topic.decode()
        response = Response(responses=[topic])
        state = self._state(waiting)
        found.current_leader = Response.Responses.PartitionResponses.CurrentLeader()
        if state is not None:
            broker = self._image().brokers.get(state.leader)
            found.current_leader.leader_id = state.leader
            found.current_leader.leader_epoch = state.leader_epoch
            endpoint = None if broker is None else broker.listeners.get(waiting.connection.listener)
            if broker is not None and endpoint is not None:
                response.node_endpoints = [
                    Response.NodeEndpoints(
                        node_id=state.leader, host=endpoint.host, port=endpoint.port, rack=broker.rack
                    )
                ]
        return response

"""Sends markers of ended transactions to the brokers that lead the partitions: WriteTxnMarkers.

A partition without a leader, an unreachable broker and one that does not answer all count as
NOT_LEADER_OR_FOLLOWER: the coordinator tries again, with the then current leader (coordinator/markers).
Writing a marker twice is harmless.

Use: server/marker_transport. Source: Kafka's TransactionMarkerChannelManager."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from kafkad.api.context import MarkerAnswers
from kafkad.coordinator.markers import Marker
from kafkad.coordinator.transaction import TopicPartition
from kafkad.metadata.image import MetadataImage
from kafkad.net.channel import Unreachable
from kafkad.protocol import errors, messages
from kafkad.protocol.errors import KafkaError
from kafkad.server.broker_channels import BrokerChannels, BrokerQueues, Complaints
from kafkad.server.marker_transport import codes_of, entry_of

AT_ONCE: Final = 1_000  # partitions per request, which is built in one turn of the loop


class Share(NamedTuple):
    """Partitions of one marker."""

    marker: Marker
    partitions: list[TopicPartition]
    answers: MarkerAnswers


class RemoteMarkers:
    def __init__(
        self,
        me: int,
        channels: BrokerChannels,
        image: Callable[[], MetadataImage],
        loop: asyncio.AbstractEventLoop,
        fatal: Callable[[BaseException], object],
        *,
        timeout_s: Callable[[], float],
    ) -> None:
        """`me`: this broker's id. `timeout_s`: of one request."""
        self._me = me
        self._channels = channels
        self._image = image
        self._timeout_s = timeout_s
        self._queues: BrokerQueues[Share] = BrokerQueues(loop, self._send, fatal)
        self._complaints = Complaints("markers of transactions")

    def take(
        self, marker: Marker, partitions: list[TopicPartition], answers: MarkerAnswers
    ) -> list[TopicPartition]:
        """Send the marker to the partitions of other brokers. Return the partitions of this broker."""
        topics = self._image().topics
        ours: list[TopicPartition] = []
        unled: list[TopicPartition] = []
        by_broker: dict[int, list[TopicPartition]] = {}
        for each in partitions:
            topic = topics.get(each[0])
            state = None if topic is None else topic.partitions.get(each[1])
            if state is None or state.leader == self._me:  # our own logs refuse an unknown one
                ours.append(each)
            elif state.leader < 0:
                unled.append(each)
            else:
                by_broker.setdefault(state.leader, []).append(each)
        for broker_id, its in by_broker.items():
            for start in range(0, len(its), AT_ONCE):
                self._queues.put(broker_id, Share(marker, its[start : start + AT_ONCE], answers))
        for each in unled:
            answers.put(each, errors.NOT_LEADER_OR_FOLLOWER)
        return ours

    async def _send(self, broker_id: int, queue: deque[Share]) -> None:
        """Send one request. The answer identifies markers by producer, so each producer is in it once: a
        second share of the same producer waits."""
        shares: list[Share] = []
        producers: set[int] = set()
        room = AT_ONCE
        while queue and queue[0].marker.producer_id not in producers and room >= len(queue[0].partitions):
            shares.append(queue.popleft())
            producers.add(shares[-1].marker.producer_id)
            room -= len(shares[-1].partitions)
        entries = [entry_of(share.marker, share.partitions) for share in shares]
        request = messages.WriteTxnMarkersRequest(markers=entries)
        codes: dict[tuple[int, TopicPartition], int] = {}
        try:
            response = await self._channels.ask(broker_id, request, timeout_s=self._timeout_s())
        except (Unreachable, KafkaError) as trouble:
            self._complaints.failed(broker_id, trouble)
        else:
            self._complaints.answered(broker_id)
            codes = codes_of(response)
        for share in shares:
            for each in share.partitions:
                code = codes.get((share.marker.producer_id, each), errors.NOT_LEADER_OR_FOLLOWER)
                share.answers.put(each, code)

    def close(self) -> None:
        self._queues.close()

"""Asks a transaction coordinator at another broker: AddPartitionsToTxn.

The coordinator is the leader of the id's partition of `__transaction_state`. Without a leader the answer is
COORDINATOR_NOT_AVAILABLE. An unreachable broker counts as NETWORK_EXCEPTION. coordinator/admission translates
these codes for clients.

Use: server/transaction_gate. Source: Kafka's AddPartitionsToTxnManager."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from kafkad.metadata.image import MetadataImage
from kafkad.net.channel import Unreachable
from kafkad.protocol import errors, messages
from kafkad.protocol.errors import KafkaError
from kafkad.server.broker_channels import BrokerChannels, BrokerQueues, Complaints
from kafkad.server.transaction_storage import TRANSACTION_TOPIC

AT_ONCE: Final = 500  # transactions per request
BROKERS_FROM: Final = 4  # the first version that brokers may send

Request = messages.AddPartitionsToTxnRequest
Answered = Callable[[Sequence[int]], object]  # a code for each partition of the entry, in order


class Asked(NamedTuple):
    entry: Any  # a transaction of the request
    done: Answered


class RemoteGate:
    def __init__(
        self,
        me: int,
        channels: BrokerChannels,
        image: Callable[[], MetadataImage],
        partition_for: Callable[[str], int],
        loop: asyncio.AbstractEventLoop,
        fatal: Callable[[BaseException], object],
        *,
        timeout_s: Callable[[], float],
    ) -> None:
        """`me`: this broker's id. `partition_for`: of a transactional id. `timeout_s`: of one request."""
        self._me = me
        self._channels = channels
        self._image = image
        self._partition_for = partition_for
        self._timeout_s = timeout_s
        self._queues: BrokerQueues[Asked] = BrokerQueues(loop, self._send, fatal)
        self._complaints = Complaints("transactions that it coordinates")

    def coordinator_of(self, transactional_id: str) -> int | None:
        """Return the other broker that coordinates it; -1: there is none; None: this broker does."""
        topic = self._image().topics.get(TRANSACTION_TOPIC)
        state = None if topic is None else topic.partitions.get(self._partition_for(transactional_id))
        if state is None:
            return -1
        return None if state.leader == self._me else state.leader

    def ask(self, broker_id: int, entry: Any, done: Answered) -> None:
        """Call `done` with the coordinator's answers about the partitions of `entry`."""
        if broker_id < 0:
            done([errors.COORDINATOR_NOT_AVAILABLE] * count_of(entry))
        else:
            self._queues.put(broker_id, Asked(entry, done))

    async def _send(self, broker_id: int, queue: deque[Asked]) -> None:
        """Send one request. The answer identifies entries by transactional id, so each is in it once: a
        second question waits."""
        asked: list[Asked] = []
        names: set[str] = set()
        while queue and len(asked) < AT_ONCE and queue[0].entry.transactional_id not in names:
            asked.append(queue.popleft())
            names.add(asked[-1].entry.transactional_id)
        request = Request(transactions=[each.entry for each in asked])
        try:
            response = await self._channels.ask(
                broker_id, request, timeout_s=self._timeout_s(), lowest=BROKERS_FROM
            )
        except Unreachable as trouble:
            self._complaints.failed(broker_id, trouble)
            self._answer_all(asked, errors.NETWORK_EXCEPTION)
        except KafkaError as trouble:
            self._complaints.failed(broker_id, trouble)
            for each in asked:  # Kafka accepts a batch that such an old broker cannot verify
                code = errors.NONE if each.entry.verify_only else errors.INVALID_TXN_STATE
                self._answer_all([each], code)
        else:
            self._complaints.answered(broker_id)
            self._tell(asked, response)

    def _tell(self, asked: list[Asked], response: Any) -> None:
        if response.error_code:
            is_refused = response.error_code == errors.CLUSTER_AUTHORIZATION_FAILED
            self._answer_all(asked, errors.INVALID_TXN_STATE if is_refused else response.error_code)
            return
        codes = {
            (result.transactional_id, topic.name, each.partition_index): each.partition_error_code
            for result in response.results_by_transaction
            for topic in result.topic_results
            for each in topic.results_by_partition
        }
        for entry, done in asked:
            name = entry.transactional_id
            done(
                [
                    codes.get((name, topic.name, index), errors.NETWORK_EXCEPTION)
                    for topic in entry.topics
                    for index in topic.partitions
                ]
            )

    def _answer_all(self, asked: list[Asked], code: int) -> None:
        for entry, done in asked:
            done([code] * count_of(entry))

    def close(self) -> None:
        self._queues.close()


def count_of(entry: Any) -> int:
    return sum(len(topic.partitions) for topic in entry.topics)

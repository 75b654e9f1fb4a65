"""Transactions: write records of several partitions, and a group's offsets, all or nothing.

    transactions = Transactions(cluster, "id")    fence the previous owner of the id, and end its open
    transaction producer = transactions.producer("topic")     write into the open transaction, or begin one
    transactions.send_offsets("group", {...})     add offsets that become visible with the commit
    transactions.commit() or .abort()

With transaction.version 2 (KIP-890, Kafka 4.0), the first batch adds its partition by itself, and each end of
a transaction gives the next epoch. For older brokers, requests add the partitions first (AddPartitionsToTxn,
AddOffsetsToTxn).

Beware: after any failed call, the transaction can only be aborted (`abort`). After a failed `commit`, the
outcome is unknown. A new `Transactions` with the same id settles it: it returns when the old transaction has
been committed or aborted.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from kafkad.client.cluster import RETRY_PAUSE_S, TRANSACTION_KEY, Cluster, passes
from kafkad.client.connection import Connection, Unreachable
from kafkad.client.offsets import TopicPartition
from kafkad.client.producer import Producer
from kafkad.protocol import errors, messages
from kafkad.protocol.errors import KafkaError

T = TypeVar("T")

FEATURE = "transaction.version"
UNDER_WAY_PAUSE_S = 0.02  # after CONCURRENT_TRANSACTIONS: the previous transaction is about to end
# Request versions from which transaction.version 2 applies.
PRODUCE, ADD, END, COMMIT_OFFSETS = 11, 3, 4, 4


class Transactions:
    """The transactions of one transactional id, one after the other.

    timeout_ms: the coordinator aborts a transaction that takes longer (transaction.timeout.ms). Raise
    KafkaError and Unreachable. PRODUCER_FENCED and INVALID_PRODUCER_EPOCH mean that another process uses the
    id now.
    """

    def __init__(
        self,
        cluster: Cluster,
        transactional_id: str,
        *,
        timeout_ms: int = 60_000,
        retry_seconds: float = 60.0,
    ) -> None:
        self.cluster = cluster
        self.transactional_id = transactional_id
        self.timeout_ms = timeout_ms
        self.retry_seconds = retry_seconds
        self.producer_id, self.producer_epoch = -1, -1
        self.sequences: dict[TopicPartition, int] = {}  # next sequence numbers in this epoch
        self.failed = False  # only an abort is possible
        self.is_open = False  # as far as this side knows
        self._added: set[TopicPartition] = set()  # with transaction.version 0 and 1
        self._producers: list[Producer] = []
        self._v2 = False
        self._init()

    def producer(self, topic: str, **how: Any) -> Producer:
        """Return a producer for one topic. Its flushed records are part of the open transaction."""
        made = Producer(self.cluster, topic, transactions=self, **how)
        self._producers.append(made)
        return made

    # -- for the producers ---------------------------------------------------------------------------------

    @property
    def produce_version_max(self) -> int:
        return (1 << 15) if self._v2 else PRODUCE

    def begin(self, partitions: Iterable[TopicPartition]) -> None:
        """Add partitions before their first batch, if the broker needs a request for that."""
        self._check()
        self.is_open = True
        new = [each for each in partitions if each not in self._added]
        if self._v2 or not new:
            return
        cls = messages.AddPartitionsToTxnRequest
        topics: dict[str, Any] = {}
        for topic, partition in new:
            topics.setdefault(topic, cls.V3AndBelowTopics(name=topic)).partitions.append(partition)
        request = cls(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.producer_epoch,
            v3_and_below_topics=list(topics.values()),
        )

        def ask(connection: Connection) -> None:
            answer = connection.ask(request, connection.version_for(cls, ADD))
            for topic in answer.results_by_topic_v3_and_below:
                for part in topic.results_by_partition:
                    if part.partition_error_code not in (errors.NONE, errors.OPERATION_NOT_ATTEMPTED):
                        raise KafkaError(part.partition_error_code, f"{topic.name}-{part.partition_index}")

        self._of_coordinator(ask)
        self._added.update(new)

    # -- offsets -------------------------------------------------------------------------------------------

    def send_offsets(
        self,
        group: str,
        offsets: Mapping[TopicPartition, int],
        *,
        metadata: str = "",
        generation: int = -1,
        member_id: str = "",
        instance_id: str | None = None,
    ) -> None:
        """Commit a group's offsets with the transaction. With a member's generation and id, the commit is
        refused if the member has lost its partitions (KIP-447)."""
        self._check()
        self.is_open = True
        if not self._v2:
            self._of_coordinator(lambda connection: self._add_offsets(connection, group))
        cls = messages.TxnOffsetCommitRequest
        topics: dict[str, Any] = {}
        for (topic, partition), offset in offsets.items():
            topics.setdefault(topic, cls.Topics(name=topic)).partitions.append(
                cls.Topics.Partitions(
                    partition_index=partition, committed_offset=offset, committed_metadata=metadata
                )
            )
        request = cls(
            transactional_id=self.transactional_id,
            group_id=group,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            generation_id=generation,
            member_id=member_id,
            group_instance_id=instance_id,
            topics=list(topics.values()),
        )

        def commit() -> None:
            connection = self.cluster.coordinator(group)
            version = connection.version_for(cls, (1 << 15) if self._v2 else COMMIT_OFFSETS)
            for topic in connection.ask(request, version).topics:
                for part in topic.partitions:
                    if part.error_code:
                        raise KafkaError(
                            part.error_code, f"group {group!r}, {topic.name}-{part.partition_index}"
                        )

        self._try(commit)

    def _add_offsets(self, connection: Connection, group: str) -> None:
        cls = messages.AddOffsetsToTxnRequest
        request = cls(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            group_id=group,
        )
        code = connection.ask(request, connection.version_for(cls, 3)).error_code
        if code:
            raise KafkaError(code, f"group {group!r}")

    # -- ends ----------------------------------------------------------------------------------------------

    def commit(self) -> None:
        """Flush all producers, then commit."""
        self._check()
        for producer in self._producers:
            producer.flush()
        self._end(commit=True)

    def abort(self) -> None:
        """Drop the buffered records and abort the transaction. This is also required after a failure."""
        for producer in self._producers:
            producer.drop()
        if self.failed:  # batches may still be in flight; a new epoch fences them
            self._init()
        else:
            self._end(commit=False)

    def _end(self, *, commit: bool) -> None:
        if not self.is_open:
            return
        cls = messages.EndTxnRequest
        request = cls(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            committed=commit,
        )

        def ask(connection: Connection) -> Any:
            answer = connection.ask(request, connection.version_for(cls, (1 << 15) if self._v2 else END))
            if answer.error_code:
                raise KafkaError(answer.error_code, f"transactional id {self.transactional_id!r}")
            return answer

        answer = self._of_coordinator(ask)
        self.is_open = False
        self._added.clear()
        if self._v2:
            self.producer_id, self.producer_epoch = answer.producer_id, answer.producer_epoch
            self.sequences.clear()

    # -- requests ------------------------------------------------------------------------------------------

    def _init(self) -> None:
        request = messages.InitProducerIdRequest(
            transactional_id=self.transactional_id, transaction_timeout_ms=self.timeout_ms
        )

        def ask(connection: Connection) -> tuple[Any, bool]:
            # The fields of v6 (keep_prepared and others) are for two-phase commit.
            answer = connection.ask(request, connection.version_for(messages.InitProducerIdRequest, 5))
            if answer.error_code:
                raise KafkaError(answer.error_code, f"transactional id {self.transactional_id!r}")
            return answer, connection.features.get(FEATURE, 0) >= 2

        answer, self._v2 = self._of_coordinator(ask)
        self.producer_id, self.producer_epoch = answer.producer_id, answer.producer_epoch
        self.sequences.clear()
        self._added.clear()
        self.failed = self.is_open = False

    def _of_coordinator(self, ask: Callable[[Connection], T]) -> T:
        return self._try(lambda: ask(self.cluster.coordinator(self.transactional_id, TRANSACTION_KEY)))

    def _try(self, attempt: Callable[[], T]) -> T:
        """Repeat `attempt()` while it raises retriable errors."""
        deadline = time.monotonic() + self.retry_seconds
        while True:
            try:
                return attempt()
            except (KafkaError, Unreachable) as trouble:
                if not passes(trouble) or time.monotonic() > deadline:
                    self.failed = True
                    raise
                if isinstance(trouble, KafkaError) and trouble.code == errors.CONCURRENT_TRANSACTIONS:
                    time.sleep(UNDER_WAY_PAUSE_S)
                    continue
                time.sleep(RETRY_PAUSE_S)
                self.cluster.forget()
            except BaseException:
                self.failed = True
                raise

    def _check(self) -> None:
        if self.failed:
            raise KafkaError(errors.INVALID_TXN_STATE, "the transaction has failed and can only be aborted")

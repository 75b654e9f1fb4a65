"""Send the markers of ended transactions to their partitions, and handle the answers.

    PrepareCommit or PrepareAbort is durable -> `Markers.send` -> one marker for each partition
    -> all are written -> the transaction's Complete* is appended

A partition leaves the transaction's set when its marker is durable, or when its topic is deleted. Retriable
answers are tried again after 50 ms, 100 ms, ... 1 s, or at once on `retry_now` (a worker is back, the image
has changed). INVALID_PRODUCER_EPOCH and TRANSACTION_COORDINATOR_FENCED stop the transaction: it has a newer
owner, and stays unchanged until its partition is loaded again.

Source: Kafka's TransactionMarkerChannelManager and TransactionMarkerRequestCompletionHandler."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol

from kafkad.coordinator.ports import Scheduler
from kafkad.coordinator.transaction import Change, State, TopicPartition, Transaction
from kafkad.protocol import errors

if TYPE_CHECKING:
    from kafkad.coordinator.deadline import Handle

logger = logging.getLogger(__name__)

RETRY_MS = 50
RETRY_MS_MAX = 1_000

RETRIED = frozenset(
    {
        errors.UNKNOWN_TOPIC_OR_PARTITION,
        errors.NOT_LEADER_OR_FOLLOWER,
        errors.NOT_ENOUGH_REPLICAS,
        errors.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        errors.REQUEST_TIMED_OUT,
        errors.KAFKA_STORAGE_ERROR,
    }
)
STOPPED = frozenset({errors.INVALID_PRODUCER_EPOCH, errors.TRANSACTION_COORDINATOR_FENCED})
# The log of the partition cannot hold markers, so it has no record of the transaction, either.
DONE = frozenset({errors.NONE, errors.UNSUPPORTED_FOR_MESSAGE_FORMAT, errors.UNSUPPORTED_VERSION})


class Shard(Protocol):
    """The owner of an ending transaction, such as `transaction_shard.TransactionShard`."""

    @property
    def epoch(self) -> int:
        """Return the coordinator's epoch, which the markers contain."""

    @property
    def closed(self) -> bool: ...

    def append_complete(
        self, transaction: Transaction, change: Change, try_again: Callable[[], object]
    ) -> None:
        """Complete the transaction, because all markers are written. Call `try_again()` if the log cannot
        take the end now."""


class Marker(NamedTuple):
    """The marker for each partition. The epoch is the one after the end (KIP-890)."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    commit: bool
    transaction_version: int


Written = Callable[[Mapping[TopicPartition, int]], object]


class Transport(Protocol):
    """Write markers to the logs of partitions, of this broker and of others."""

    def exists(self, partition: TopicPartition) -> bool:
        """Return whether the partition is in the cluster's image."""

    def write_markers(self, marker: Marker, partitions: list[TopicPartition], done: Written) -> None:
        """`done({partition: error code})` once, when each is as durable as acks=all makes it, or has failed;
        possibly before this returns."""


class Ending:
    """A transaction whose markers are being written."""

    __slots__ = ("change", "failures", "marker", "retry", "shard", "transaction", "waiting")

    def __init__(self, shard: Shard, transaction: Transaction, change: Change, marker: Marker) -> None:
        self.shard = shard
        self.transaction = transaction
        self.change = change  # the change to append afterwards
        self.marker = marker
        self.failures = 0
        self.waiting: list[TopicPartition] = []  # markers to send again
        self.retry: Handle | None = None


class Markers:
    """The markers of all transactions that a worker coordinates."""

    def __init__(self, scheduler: Scheduler, transport: Transport) -> None:
        self._scheduler = scheduler
        self._transport = transport
        self._waiting: dict[Ending, None] = {}  # transactions that wait for the next try

    def send(self, shard: Shard, transaction: Transaction, change: Change) -> None:
        """Write the markers of a prepared transaction, then append `change`, which is pending."""
        marker = Marker(
            transaction.producer_id,
            transaction.producer_epoch,
            shard.epoch,
            transaction.state is State.PREPARE_COMMIT,
            transaction.client_version,
        )
        self._write(Ending(shard, transaction, change, marker), transaction.partitions)

    def retry_now(self) -> None:
        """Try waiting markers again, because a worker is back or the image has changed."""
        for _ in self.retry_steps():
            pass

    def retry_steps(self) -> Iterator[None]:
        """`retry_now`, in small steps."""
        for ending in list(self._waiting):
            if ending in self._waiting:
                if ending.retry is not None:
                    ending.retry.cancel()
                self._again(ending)
                yield

    def close(self) -> None:
        for ending in self._waiting:
            if ending.retry is not None:
                ending.retry.cancel()
        self._waiting.clear()

    def _write(self, ending: Ending, partitions: Iterable[TopicPartition]) -> None:
        transaction = ending.transaction
        there: list[TopicPartition] = []
        gone: list[TopicPartition] = []
        for partition in sorted(partitions):
            (there if self._transport.exists(partition) else gone).append(partition)
        if gone:
            logger.info(
                "transaction %s: no marker for %s, which has been deleted",
                transaction.transactional_id, gone,
            )  # fmt: skip
            transaction.partitions = transaction.partitions.difference(gone)
        if there:
            self._transport.write_markers(ending.marker, there, lambda codes: self._written(ending, codes))
        elif not transaction.partitions:
            ending.shard.append_complete(ending.transaction, ending.change, self._retry_append(ending))

    def _written(self, ending: Ending, codes: Mapping[TopicPartition, int]) -> None:
        if ending.shard.closed:
            return  # the partition's new coordinator writes the markers again
        transaction = ending.transaction
        stopped = {code for code in codes.values() if code in STOPPED}
        if stopped:
            logger.warning(
                "transaction %s: its markers are refused (%s); it stays as it is until its partition of "
                "__transaction_state is loaded anew",
                transaction.transactional_id, ", ".join(errors.NAMES[code] for code in sorted(stopped)),
            )  # fmt: skip
            return
        done = [partition for partition, code in codes.items() if code in DONE]
        transaction.partitions = transaction.partitions.difference(done)
        failed = {partition: code for partition, code in codes.items() if code not in DONE}
        if not failed:
            self._write(ending, ())
            return
        for partition, code in failed.items():
            if code not in RETRIED:
                logger.error(
                    "transaction %s: no marker in %s-%d (%s); it is tried again",
                    transaction.transactional_id, *partition, errors.KafkaError(code),
                )  # fmt: skip
        ending.waiting = list(failed)
        self._wait(ending)

    def _wait(self, ending: Ending) -> None:
        delay_ms = min(RETRY_MS << min(ending.failures, 10), RETRY_MS_MAX)
        ending.failures += 1
        self._waiting[ending] = None
        ending.retry = self._scheduler.call_later(delay_ms, lambda: self._again(ending))

    def _again(self, ending: Ending) -> None:
        ending.retry = None
        if self._waiting.pop(ending, self) is self or ending.shard.closed:
            return
        partitions, ending.waiting = ending.waiting, []
        self._write(ending, partitions)

    def _retry_append(self, ending: Ending) -> Callable[[], None]:
        return lambda: self._wait(ending)

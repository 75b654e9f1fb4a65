"""The records of `__transaction_state`, one per transactional id, in Kafka's formats.

    key    int16 0, then TransactionLogKey
    value  int16 version, then TransactionLogValue; null: the id has expired

Version 1 (flexible, with the previous and next producer ids) is written if transaction.version is 1 or
higher, otherwise version 0. Both are read. The last producer epoch is not stored, as in Kafka. Source:
TransactionLog, TransactionCoordinatorRecordSerde.

`Replay` loads a partition: `feed(bytes)` in any thread keeps the last record of each id, and `take` returns
some of them at a time, on the loop."""

import logging
from collections.abc import Iterable, Iterator
from typing import Any

from kafkad._native.wire.latest_records import LatestRecords
from kafkad.coordinator.transaction import NO_PARTITIONS, Change, State, TopicPartition, Transaction
from kafkad.protocol import codec, messages
from kafkad.protocol import compression as codecs
from kafkad.protocol.errors import Malformed
from kafkad.protocol.records import DECOMPRESSED_MAX, HEADER_SIZE, read_batches

logger = logging.getLogger(__name__)

KEY_TYPE = KEY_VERSION = 0
VALUE_VERSION_MAX = 1
STORED = frozenset(State) - {State.DEAD, State.PREPARE_EPOCH_FENCE}

_KEY_PREFIX = KEY_TYPE.to_bytes(2, "big")


def key_of(transactional_id: str) -> bytes:
    key = messages.TransactionLogKey(transactional_id=transactional_id)
    return _KEY_PREFIX + codec.encode(key, KEY_VERSION)


def value_of(change: Change, transaction_version: int) -> bytes:
    """The value for a state, as a broker with this finalized transaction.version writes it."""
    assert change.state is not State.EMPTY or not change.partitions
    version = 1 if transaction_version >= 1 else 0
    value = messages.TransactionLogValue(
        producer_id=change.producer_id,
        producer_epoch=change.producer_epoch,
        transaction_timeout_ms=change.timeout_ms,
        transaction_status=int(change.state),
        transaction_partitions=None if change.state is State.EMPTY else _by_topic(change.partitions),
        transaction_last_update_timestamp_ms=change.update_ms,
        transaction_start_timestamp_ms=change.start_ms,
    )
    if version >= 1:
        value.previous_producer_id = change.prev_producer_id
        value.next_producer_id = change.next_producer_id
        value.client_transaction_version = change.client_version
    return version.to_bytes(2, "big") + codec.encode(value, version)


def _by_topic(partitions: Iterable[TopicPartition]) -> list[Any]:
    topics: dict[str, Any] = {}
    for topic, index in sorted(partitions):
        if topic not in topics:
            topics[topic] = messages.TransactionLogValue.TransactionPartitions(topic=topic)
        topics[topic].partition_ids.append(index)
    return list(topics.values())


def read(key: bytes, value: bytes) -> Transaction | None:
    """One record that is no tombstone; None for a version of key or value that is not known. Raises
    Malformed."""
    if len(key) < 2 or len(value) < 2:
        raise Malformed("a record of __transaction_state has no version")
    kind, version = int.from_bytes(key[:2], "big", signed=True), int.from_bytes(value[:2], "big", signed=True)
    if kind != KEY_TYPE or not 0 <= version <= VALUE_VERSION_MAX:
        which, unknown = ("key", kind) if kind != KEY_TYPE else ("value", version)
        logger.warning(
            "a record of __transaction_state is skipped: its %s has the unknown version %d; it may be left "
            "over from an aborted upgrade", which, unknown,
        )  # fmt: skip
        return None
    name, _ = codec.decode(messages.TransactionLogKey, KEY_VERSION, key, 2)
    found, _ = codec.decode(messages.TransactionLogValue, version, value, 2)
    status, who = found.transaction_status, f"transactional id {name.transactional_id!r}"
    if status not in STORED:
        raise Malformed(f"{who} has the state {status}, which is never written")
    if found.producer_id < 0 or found.producer_epoch < 0:
        raise Malformed(f"{who} has producer id {found.producer_id} and epoch {found.producer_epoch}")
    state = State(status)
    partitions = NO_PARTITIONS
    if state is not State.EMPTY:
        partitions = frozenset(
            (each.topic, index) for each in found.transaction_partitions or () for index in each.partition_ids
        )
    transaction = Transaction(name.transactional_id, found.producer_id, found.transaction_timeout_ms)
    transaction.prev_producer_id = found.previous_producer_id
    transaction.next_producer_id = found.next_producer_id
    transaction.producer_epoch = found.producer_epoch
    transaction.state = state
    transaction.partitions = partitions
    transaction.start_ms = found.transaction_start_timestamp_ms
    transaction.update_ms = found.transaction_last_update_timestamp_ms
    transaction.client_version = found.client_transaction_version
    return transaction


class Replay:
    """What was read of a partition so far. One thread at a time."""

    def __init__(self) -> None:
        self.latest = LatestRecords(has_offsets=False)

    def feed(self, buffer: Any, start_offset: int = 0) -> int:
        """Take whole batches, except those that end below `start_offset`, and return how many bytes that
        were. The rest is a batch that the buffer's end cuts. Raises Malformed."""
        view = memoryview(buffer).cast("B")
        position = 0
        while True:
            position = self.latest.feed(view, position, start_offset)
            batch = next(read_batches(view[position:]), None)
            if batch is None:
                return position
            if not batch.is_control:
                data = codecs.decompress(batch.compression, batch.bytes[HEADER_SIZE:], DECOMPRESSED_MAX)
                self.latest.feed_records(data, batch.base_offset, batch.records_count)
            position += batch.size

    def take(self, limit: int) -> Iterator[Transaction]:
        """Up to `limit` of the transactional ids. Raises Malformed."""
        for key, value, _ in self.latest.take_records(limit):
            transaction = read(key, value)
            if transaction is not None:
                yield transaction

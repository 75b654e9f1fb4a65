"""Read partitions of one topic from given offsets.

`poll` fetches from every leader and yields the records, in offset order per partition. It handles batches of
every codec and of the old formats, missing offsets and control batches. With READ_COMMITTED, it leaves out
the records of aborted transactions, which the Fetch answer lists (KIP-98).

A position is the offset after the last yielded record. A record counts as read when `poll` is asked for the
next one.
"""

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from kafkad.client.cluster import RETRY_PAUSE_S, Cluster, passes
from kafkad.client.connection import Connection, Unreachable
from kafkad.client.offsets import EARLIEST, LATEST, list_offsets
from kafkad.protocol import errors, messages
from kafkad.protocol.errors import KafkaError, Malformed
from kafkad.protocol.legacy_records import LegacyEntry
from kafkad.protocol.records import (
    ABORT,
    HEADER_SIZE,
    LENGTH_OVERHEAD,
    MAGIC_AT,
    Batch,
    Record,
    control_kind,
)

READ_UNCOMMITTED, READ_COMMITTED = 0, 1
VERSION_MAX = 12  # topics by name; ids begin with 13
LEGACY_SIZE_MIN = 14


class Received(NamedTuple):
    """One record from a consumer."""

    partition: int
    offset: int
    timestamp: int
    timestamp_type: int  # 0 CreateTime, 1 LogAppendTime, -1 none
    leader_epoch: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


class Consumer:
    """Read some partitions of one topic.

    If a position is not in the log (any more), it is reset and reported by `on_reset(partition, from, to)`:
    to the log's start if retention has deleted it, otherwise to `reset` (EARLIEST or LATEST). Without
    `reset`, raise OFFSET_OUT_OF_RANGE.
    """

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        *,
        max_bytes: int = 8 << 20,
        isolation: int = READ_UNCOMMITTED,
        wait_ms: int = 500,
        reset: int | None = EARLIEST,
        on_reset: Callable[[int, int, int], None] | None = None,
    ) -> None:
        self.cluster = cluster
        self.topic = topic
        self.max_bytes = max_bytes
        self.isolation = isolation
        self.wait_ms = wait_ms
        self.reset = reset
        self.on_reset = on_reset
        self.positions: dict[int, int] = {}
        self.high_watermarks: dict[int, int] = {}

    def assign(self, positions: dict[int, int]) -> None:
        """Set the positions: partition -> the offset to read next."""
        self.positions = dict(positions)

    def poll(self) -> Iterator[Received]:
        """Yield the records of the next fetches; none if nothing arrives within `wait_ms`. Raise KafkaError
        and Unreachable for errors that are not retriable.
        """
        if not self.positions:
            time.sleep(self.wait_ms / 1000)
            return
        leaders = self.cluster.retry(lambda: self.cluster.by_leader(self.topic, list(self.positions)))
        answers: list[Any] = []
        trouble: KafkaError | Unreachable | None = None
        for connection, partitions in leaders:
            try:
                answers += self._fetch(connection, partitions, self.wait_ms // len(leaders))
            except (KafkaError, Unreachable) as failed:
                trouble = failed
        for answer in answers:
            if answer.error_code == errors.OFFSET_OUT_OF_RANGE:
                self._start_anew(answer.partition_index)
            elif answer.error_code:
                trouble = KafkaError(answer.error_code, f"{self.topic}-{answer.partition_index}")
            else:
                self.high_watermarks[answer.partition_index] = answer.high_watermark
                yield from self._records(answer)
        if trouble is not None:
            if not passes(trouble):
                raise trouble
            time.sleep(RETRY_PAUSE_S)
            self.cluster.forget()

    def _fetch(self, connection: Connection, partitions: list[int], wait_ms: int) -> list[Any]:
        """Fetch from one broker. Return one answer per partition."""
        version = connection.version_for(messages.FetchRequest, VERSION_MAX)
        struct = messages.FetchRequest.Topics
        asked = [
            struct.Partitions(
                partition=p,
                fetch_offset=self.positions[p],
                partition_max_bytes=self.max_bytes,
                current_leader_epoch=-1,
            )
            for p in partitions
        ]
        request = messages.FetchRequest(
            replica_id=-1,
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=self.max_bytes,
            isolation_level=self.isolation if version >= 4 else 0,
            session_id=0,
            session_epoch=-1,
            topics=[struct(topic=self.topic, partitions=asked)],
        )
        response = connection.ask(request, version)
        if version >= 7 and response.error_code:
            raise KafkaError(response.error_code)
        return [answer for topic in response.responses for answer in topic.partitions]

    def _start_anew(self, partition: int) -> None:
        """Reset a position that is not in the log."""
        position = self.positions[partition]
        first = list_offsets(self.cluster, self.topic, {partition: EARLIEST})[partition]
        if self.reset is None:
            last = list_offsets(self.cluster, self.topic, {partition: LATEST})[partition]
            told = f"{self.topic}-{partition} holds offsets {first} to {last}, not {position}"
            raise KafkaError(errors.OFFSET_OUT_OF_RANGE, told)
        if position < first or self.reset == EARLIEST:
            anew = first
        else:
            anew = list_offsets(self.cluster, self.topic, {partition: self.reset})[partition]
        self.positions[partition] = anew
        if self.on_reset is not None:
            self.on_reset(partition, position, anew)

    def _records(self, answer: Any) -> Iterator[Received]:
        partition = answer.partition_index
        aborted = Aborted(answer.aborted_transactions or []) if self.isolation == READ_COMMITTED else None
        for batch in read_entries(answer.records or b""):
            if not batch.is_intact():
                raise Malformed(f"{self.topic}-{partition}: a batch near offset {self.positions[partition]}")
            if isinstance(batch, LegacyEntry):
                last, epoch, kind = batch.offset, -1, batch.timestamp_type if batch.magic else -1
                skipped = False
            else:
                last, epoch, kind = batch.last_offset, batch.leader_epoch, batch.timestamp_type
                skipped = batch.is_control
                if aborted is not None:
                    skipped = aborted.holds(batch) or skipped
            if last < self.positions[partition]:
                continue
            for record in () if skipped else batch.records():
                if record.offset >= self.positions[partition]:
                    self.positions[partition] = record.offset + 1
                    yield received(partition, record, kind, epoch)
            if partition not in self.positions:
                return  # the caller has changed the assignment meanwhile
            self.positions[partition] = max(self.positions[partition], last + 1)


def received(partition: int, record: Record, timestamp_type: int, leader_epoch: int) -> Received:
    return Received(
        partition,
        record.offset,
        record.timestamp,
        timestamp_type,
        leader_epoch,
        record.key,
        record.value,
        record.headers or [],
    )


class Aborted:
    """Find the batches of one Fetch answer that belong to aborted transactions. Ask about each batch, in
    order."""

    def __init__(self, transactions: list[Any]) -> None:
        self._coming = sorted(((t.first_offset, t.producer_id) for t in transactions), reverse=True)
        self._open: set[int] = set()

    def holds(self, batch: Batch) -> bool:
        while self._coming and self._coming[-1][0] <= batch.last_offset:
            self._open.add(self._coming.pop()[1])
        if batch.is_control:
            records = batch.records()  # none if Kafka's log cleaner has emptied the batch
            if records and control_kind(records[0]) == ABORT:
                self._open.discard(batch.producer_id)
            return False
        return batch.is_transactional and batch.producer_id in self._open


def read_entries(buffer: Any) -> Iterator[Batch | LegacyEntry]:
    """Yield the batches of a buffer, and in old logs its messages. Leave out one that the end cuts. Raise
    Malformed."""
    view = memoryview(buffer)
    position = 0
    while len(view) - position > MAGIC_AT:
        size = LENGTH_OVERHEAD + int.from_bytes(view[position + 8 : position + 12], "big", signed=True)
        magic = view[position + MAGIC_AT]
        if magic > 2 or size < (HEADER_SIZE if magic == 2 else LENGTH_OVERHEAD + LEGACY_SIZE_MIN):
            raise Malformed(f"no batch at position {position}: magic {magic}, {size} bytes")
        if size > len(view) - position:
            return
        yield Batch(view, position) if magic == 2 else LegacyEntry(view, position)
        position += size

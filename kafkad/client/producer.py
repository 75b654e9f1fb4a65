"""Send records as batches. A batch is acknowledged before the next batch of its partition is sent.

    send -> pending records per partition -> flush -> a queue of batches per partition
                                                      the heads of all queues make one request per leader

A batch stays at the head of its queue, byte for byte the same, until it is acknowledged or finally refused.
So retries keep the order. With idempotence (the default with acks=all), retries write nothing twice, because
the broker recognises the sequence numbers. A batch that is too large for the topic is halved, down to single
records, as in Kafka's producer. The partitioner is Kafka's: murmur2 of the key; for records without a key,
one partition after the other, batch by batch (KIP-480). Records that are already encoded (from Arrow columns)
go through `send_batches` as `EncodedBatch`.

Beware: if a batch was not delivered in time, the broker may have it or not. Its sequence numbers must not be
used for other records, so the producer continues with a new producer id.
"""

import random
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from kafkad._native.wire.record_encode import Encoded, murmur2
from kafkad.client.cluster import RETRY_PAUSE_S, Cluster, passes
from kafkad.client.connection import Connection, Unreachable
from kafkad.protocol import errors, messages, records
from kafkad.protocol.errors import KafkaError
from kafkad.protocol.records import Record

RECORD_OVERHEAD = 24  # most bytes of a record beside key, value and headers
SEQUENCES = 1 << 31
ACKNOWLEDGE_MS = 20_000  # the request's timeout for acknowledgements; below the connection's timeout
VERSION_MAX = 12  # topics by name; ids begin with 13


class Batch:
    """Records of one partition that are sent together."""

    __slots__ = ("count", "data", "records")

    def __init__(self, batch: list[Record]) -> None:
        self.records = batch
        self.count = len(batch)
        self.data: bytes | bytearray | None = None  # encoded when it is first sent, kept for retries

    def encode(
        self,
        compression: int,
        producer_id: int,
        producer_epoch: int,
        sequence: int,
        level: int | None = None,
        transactional: bool = False,
    ) -> bytes | bytearray:
        """Return the encoded batch. `sequence` is the sequence number of the first record."""
        return records.build_batch(
            self.records,
            compression=compression,
            compression_level=level,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=sequence,
            transactional=transactional,
        )

    def halves(self) -> "tuple[Batch, Batch]":
        middle = self.count // 2
        return Batch(self.records[:middle]), Batch(self.records[middle:])


class EncodedBatch(Batch):
    """A batch whose records are encoded already."""

    __slots__ = ("compressed", "encoded")

    def __init__(self, encoded: Encoded) -> None:
        super().__init__([])
        self.encoded = encoded
        self.count = encoded.count
        self.compressed: bytearray | None = None

    def compress(self, compression: int, level: int | None = None) -> None:
        """Compress the records. This may be called early, in another thread than the sending one."""
        if compression and self.compressed is None:
            self.compressed = records.compressed_records(self.encoded.data, compression, level)

    def encode(
        self,
        compression: int,
        producer_id: int,
        producer_epoch: int,
        sequence: int,
        level: int | None = None,
        transactional: bool = False,
    ) -> bytearray:
        self.compress(compression, level)
        buffer = self.encoded.data if self.compressed is None else self.compressed
        records.write_header(
            buffer,
            base_offset=0,
            leader_epoch=-1,
            attributes=compression | (records.TRANSACTIONAL if transactional else 0),
            last_offset_delta=self.count - 1,
            base_timestamp=self.encoded.base_timestamp,
            max_timestamp=self.encoded.max_timestamp,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=sequence,
            records_count=self.count,
        )
        return buffer

    def halves(self) -> tuple[Batch, Batch]:
        # This is rare, so it may create objects. The bytes cannot be cut, because the second half needs new
        # offsets.
        self.compressed = None
        self.records = records.Batch(self.encode(0, -1, -1, -1)).records()
        for record in self.records:
            record.offset = -1
        return super().halves()


class OpenTransaction(Protocol):
    """The part of `transactions.Transactions` that a producer uses."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    sequences: dict[tuple[str, int], int]  # (topic, partition) -> next sequence number
    failed: bool

    @property
    def produce_version_max(self) -> int: ...

    def begin(self, partitions: Iterable[tuple[str, int]]) -> None: ...


class Producer:
    """A producer for one topic. `send` buffers, `flush` waits for all acknowledgements.

    `on_delivery(partition, first_offset, records)` is called once per batch. Raise KafkaError or Unreachable
    if a batch is refused or cannot be delivered within `delivery_seconds`; buffered records are dropped then.
    """

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        *,
        acks: int = -1,
        compression: int = 0,
        idempotent: bool = True,
        batch_bytes: int = 1 << 18,
        request_bytes: int = 1 << 20,
        delivery_seconds: float = 60.0,
        on_delivery: Callable[[int, int, int], None] | None = None,
        compression_level: int | None = None,
        transactions: "OpenTransaction | None" = None,
    ) -> None:
        """`transactions`: write into its open transaction (see `Transactions.producer`)."""
        if transactions is not None and not (idempotent and acks == -1):
            raise ValueError("a transactional producer is idempotent, with acks=-1")
        self.cluster = cluster
        self.topic = topic
        self.acks = acks
        self.compression = compression
        self.compression_level = compression_level
        self.idempotent = idempotent and acks == -1
        self.batch_bytes = batch_bytes
        self.request_bytes = request_bytes
        self.delivery_seconds = delivery_seconds
        self.on_delivery = on_delivery
        self.transactions = transactions
        self.partitions = cluster.partitions(topic, create=True)
        self._pending: dict[int, list[Record]] = {}
        self._pending_bytes: dict[int, int] = {}
        self._bytes = 0
        self._queues: dict[int, deque[Batch]] = {}
        self._sticky = random.randrange(len(self.partitions))
        self._begin()

    def drop(self) -> None:
        """Drop the buffered records."""
        self._pending, self._pending_bytes, self._bytes = {}, {}, 0

    def _begin(self) -> None:
        """Get a new producer id, and restart the sequence numbers at 0."""
        self._sequences: dict[int, int] = {}
        self._producer_id, self._producer_epoch = -1, -1
        if self.idempotent and self.transactions is None:
            self._producer_id, self._producer_epoch = self.cluster.retry(self._init_producer_id)

    def send(
        self,
        value: bytes | None,
        key: bytes | None = None,
        *,
        headers: list[tuple[str, bytes | None]] | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> None:
        """Buffer one record. Flush if there is enough for a request."""
        sticky = partition is None and key is None  # then a full batch changes the partition
        if partition is None:
            partition = self._partition_for(key)
        elif partition not in self.partitions:
            raise KafkaError(errors.UNKNOWN_TOPIC_OR_PARTITION, f"{self.topic} has no partition {partition}")
        now = int(time.time() * 1000) if timestamp is None else timestamp
        size = len(key or b"") + len(value or b"") + RECORD_OVERHEAD
        if headers:
            size += sum(len(name) + len(data or b"") + 6 for name, data in headers)
        have = self._pending_bytes.get(partition, 0)
        if have and have + size > self.batch_bytes:
            self.flush()
            have = 0
            if sticky:
                partition = self._partition_for(None)
        self._pending.setdefault(partition, []).append(
            Record(key=key, value=value, headers=headers or [], timestamp=now)
        )
        self._pending_bytes[partition] = have + size
        self._bytes += size
        if self._bytes >= self.request_bytes:
            self.flush()

    def flush(self) -> None:
        """Send all buffered records, and return when they are acknowledged."""
        self._sticky = (self._sticky + 1) % len(self.partitions)
        queues = {p: deque([Batch(batch)]) for p, batch in self._pending.items()}
        self._pending, self._pending_bytes, self._bytes = {}, {}, 0
        self._acknowledge(queues)

    def send_batches(self, batches: Iterable[EncodedBatch]) -> None:
        """Send encoded batches in order, and return when they are acknowledged."""
        queues: dict[int, deque[Batch]] = {}
        for batch in batches:
            queues.setdefault(self.partitions[batch.encoded.partition], deque()).append(batch)
        self._acknowledge(queues)

    def _acknowledge(self, queues: dict[int, deque[Batch]]) -> None:
        self._queues = queues
        its = self.transactions
        if its is not None and queues:
            its.begin((self.topic, partition) for partition in queues)
            self._producer_id, self._producer_epoch = its.producer_id, its.producer_epoch
            self._sequences = {p: its.sequences.get((self.topic, p), 0) for p in queues}
        elif self.idempotent and self._producer_id < 0 and self._queues:
            self._begin()
        try:
            self._deliver()
        except BaseException:
            self._queues = {}
            self._producer_id = -1  # the outcome of the batches is unknown
            if its is not None:
                its.failed = True
            raise
        if its is not None:
            its.sequences.update(((self.topic, p), due) for p, due in self._sequences.items())

    def _deliver(self) -> None:
        deadline = time.monotonic() + self.delivery_seconds
        while self._queues:
            trouble: KafkaError | Unreachable | None = None
            try:
                for connection, partitions in self.cluster.by_leader(self.topic, list(self._queues)):
                    trouble = self._produce(connection, partitions) or trouble
            except (KafkaError, Unreachable) as failed:
                trouble = failed
            if trouble is None:
                deadline = time.monotonic() + self.delivery_seconds
                continue
            if not passes(trouble) or time.monotonic() > deadline:
                raise trouble
            time.sleep(RETRY_PAUSE_S)
            self.cluster.forget()

    def _produce(self, connection: Connection, partitions: list[int]) -> KafkaError | None:
        """Send one request with the first batch of each partition, for as many partitions as fit. Raise, or
        return, the error."""
        struct = messages.ProduceRequest.TopicData
        data: list[Any] = []
        size = 0
        for partition in partitions:
            encoded = self._encoded(partition)
            size += len(encoded)
            if data and size > max(self.request_bytes, self.batch_bytes):
                break
            data.append(struct.PartitionData(index=partition, records=encoded))
        partitions = partitions[: len(data)]
        request = messages.ProduceRequest(
            acks=self.acks,
            timeout_ms=ACKNOWLEDGE_MS,
            topic_data=[struct(name=self.topic, partition_data=data)],
        )
        version_max = VERSION_MAX
        if self.transactions is not None:
            request.transactional_id = self.transactions.transactional_id
            version_max = min(VERSION_MAX, self.transactions.produce_version_max)
        version = connection.version_for(messages.ProduceRequest, version_max)
        connection.send(request, version, answered=self.acks != 0)
        if self.acks == 0:
            for partition in partitions:
                self._delivered(partition, -1)
            return None
        refused: KafkaError | None = None
        for answer in connection.receive().responses[0].partition_responses:
            partition, code = answer.index, answer.error_code
            if code in (errors.NONE, errors.DUPLICATE_SEQUENCE_NUMBER):
                self._delivered(partition, answer.base_offset)
            elif code in (errors.MESSAGE_TOO_LARGE, errors.RECORD_LIST_TOO_LARGE) and self._halve(partition):
                pass
            else:
                trouble = KafkaError(code, answer.error_message or f"{self.topic}-{partition}")
                if refused is None or passes(refused):  # an error that is not retriable wins
                    refused = trouble
        return refused

    def _delivered(self, partition: int, first_offset: int) -> None:
        queue = self._queues[partition]
        count = queue.popleft().count
        if not queue:
            del self._queues[partition]
        self._sequences[partition] = (self._sequences.get(partition, 0) + count) % SEQUENCES
        if self.on_delivery is not None:
            self.on_delivery(partition, first_offset, count)

    def _halve(self, partition: int) -> bool:
        """Split the first batch in two. Return False if it has only one record, which must be refused."""
        queue = self._queues[partition]
        if queue[0].count == 1:
            return False
        first, second = queue.popleft().halves()
        queue.extendleft([second, first])
        return True

    def _encoded(self, partition: int) -> bytes | bytearray:
        batch = self._queues[partition][0]
        if batch.data is None:
            sequence = self._sequences.get(partition, 0) if self._producer_id >= 0 else -1
            batch.data = batch.encode(
                self.compression,
                self._producer_id,
                self._producer_epoch,
                sequence,
                self.compression_level,
                self.transactions is not None,
            )
        return batch.data

    def _partition_for(self, key: bytes | None) -> int:
        if key is None:
            return self.partitions[self._sticky]
        return self.partitions[(murmur2(key) & 0x7FFFFFFF) % len(self.partitions)]

    def _init_producer_id(self) -> tuple[int, int]:
        request = messages.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
        response = self.cluster.any().ask(request)
        if response.error_code:
            raise KafkaError(response.error_code)
        return response.producer_id, response.producer_epoch

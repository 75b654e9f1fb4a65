"""Producer: records in, batches out, each acknowledged before the next of its partition.

One request a broker is under way at a time, holding a batch for every partition that has one; so order holds
through retries, and with idempotence (the default) nothing is doubled. The partitioner is Kafka's: murmur2 of
the key, or one partition after the other, batch by batch, for records without (KIP-480).
"""

import time
from collections.abc import Callable
from typing import Any

from kafkad.client.cluster import Cluster
from kafkad.client.connection import Connection, Unreachable
from kafkad.protocol import errors, messages, records
from kafkad.protocol.errors import KafkaError
from kafkad.protocol.records import Record

BATCH_OVERHEAD = 24  # of a record, at most: varints and the length of headers are counted apart
SEQUENCES = 1 << 31


class Producer:
    """Writes to one topic. `send` buffers, `flush` waits for every acknowledgement.

    `on_delivery(partition, first_offset, records)` is called once a batch. Raises KafkaError or Unreachable when
    a batch can not be delivered within `delivery_seconds`.
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
    ) -> None:
        self.cluster = cluster
        self.topic = topic
        self.acks = acks
        self.compression = compression
        self.batch_bytes = batch_bytes
        self.request_bytes = request_bytes
        self.delivery_seconds = delivery_seconds
        self.on_delivery = on_delivery
        self.partitions = cluster.partitions(topic, create=True)
        self._topic_id = bytes(16)
        self._pending: dict[int, list[Record]] = {}
        self._pending_bytes: dict[int, int] = {}
        self._sticky = 0
        self._sequence: dict[int, int] = {}
        self._producer_id, self._producer_epoch = -1, -1
        if idempotent and acks == -1:
            self._producer_id, self._producer_epoch = cluster.retry(self._init_producer_id)

    def send(
        self,
        value: bytes | None,
        key: bytes | None = None,
        *,
        headers: list[tuple[str, bytes | None]] | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> None:
        if partition is None:
            partition = self._partition_for(key)
        elif partition not in self.partitions:
            raise KafkaError(errors.UNKNOWN_TOPIC_OR_PARTITION, f"{self.topic}-{partition}")
        now = int(time.time() * 1000) if timestamp is None else timestamp
        size = len(key or b"") + len(value or b"") + BATCH_OVERHEAD
        size += sum(len(name) + len(data or b"") + 6 for name, data in headers or ())
        batch = self._pending.setdefault(partition, [])
        have = self._pending_bytes.get(partition, 0)
        if batch and have + size > self.batch_bytes:
            self.flush()
            batch, have = self._pending.setdefault(partition, []), 0
        batch.append(Record(key=key, value=value, headers=headers or [], timestamp=now))
        self._pending_bytes[partition] = have + size
        if sum(self._pending_bytes.values()) >= self.request_bytes:
            self.flush()

    def flush(self) -> None:
        """Sends all that is buffered and returns when it is acknowledged."""
        self._sticky = (self._sticky + 1) % len(self.partitions)
        batches = {p: self._encode(p, batch) for p, batch in self._pending.items() if batch}
        counts = {p: len(batch) for p, batch in self._pending.items()}
        self._pending.clear()
        self._pending_bytes.clear()
        deadline = time.monotonic() + self.delivery_seconds
        while batches:
            trouble: Exception | None = None
            for connection, mine in self._by_leader(batches):
                try:
                    for partition, first_offset in self._produce(connection, mine):
                        del batches[partition]
                        self._sequence[partition] = (
                            self._sequence.get(partition, 0) + counts[partition]
                        ) % SEQUENCES
                        if self.on_delivery is not None:
                            self.on_delivery(partition, first_offset, counts[partition])
                except (KafkaError, Unreachable) as failed:
                    if isinstance(failed, KafkaError) and not failed.retriable:
                        raise
                    trouble = failed
            if trouble is not None:
                if time.monotonic() > deadline:
                    raise trouble
                time.sleep(0.1)
                self.cluster.forget()

    def _partition_for(self, key: bytes | None) -> int:
        if key is None:
            return self.partitions[self._sticky % len(self.partitions)]
        return self.partitions[(murmur2(key) & 0x7FFFFFFF) % len(self.partitions)]

    def _encode(self, partition: int, batch: list[Record]) -> bytes:
        return bytes(
            records.build_batch(
                batch,
                compression=self.compression,
                producer_id=self._producer_id,
                producer_epoch=self._producer_epoch,
                base_sequence=self._sequence.get(partition, 0) if self._producer_id >= 0 else -1,
            )
        )

    def _by_leader(self, batches: dict[int, bytes]) -> list[tuple[Connection, dict[int, bytes]]]:
        groups: dict[int, tuple[Connection, dict[int, bytes]]] = {}
        for partition, data in batches.items():
            connection = self.cluster.retry(lambda p=partition: self.cluster.leader(self.topic, p))  # type: ignore[misc]
            groups.setdefault(id(connection), (connection, {}))[1][partition] = data
        return list(groups.values())

    def _produce(self, connection: Connection, batches: dict[int, bytes]) -> list[tuple[int, int]]:
        """One request. Answers (partition, first offset) of what was taken; raises for what was not."""
        version = min(connection.version_for(messages.ProduceRequest), 12)  # by name; ids begin with 13
        struct = messages.ProduceRequest.TopicData
        data = [struct.PartitionData(index=p, records=batch) for p, batch in batches.items()]
        request = messages.ProduceRequest(
            acks=self.acks, timeout_ms=30_000, topic_data=[struct(name=self.topic, partition_data=data)]
        )
        connection.send(request, version, answered=self.acks != 0)
        if self.acks == 0:
            return [(p, -1) for p in batches]
        done = []
        refused: KafkaError | None = None
        for answer in connection.receive().responses[0].partition_responses:
            if answer.error_code in (errors.NONE, errors.DUPLICATE_SEQUENCE_NUMBER):
                done.append((answer.index, answer.base_offset))
            else:
                refused = KafkaError(
                    answer.error_code, answer.error_message or f"{self.topic}-{answer.index}"
                )
        if refused is not None and not done:
            raise refused
        return done

    def _init_producer_id(self) -> tuple[int, int]:
        request = messages.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
        response = self.cluster.any().ask(request)
        if response.error_code:
            raise KafkaError(response.error_code)
        return response.producer_id, response.producer_epoch


def murmur2(data: bytes) -> int:
    """Kafka's hash of keys (Utils.murmur2), as an unsigned 32-bit number."""
    size = len(data)
    h = (0x9747B28C ^ size) & 0xFFFFFFFF
    whole = size & ~3
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little")
        k = (k * 0x5BD1E995) & 0xFFFFFFFF
        k ^= k >> 24
        k = (k * 0x5BD1E995) & 0xFFFFFFFF
        h = ((h * 0x5BD1E995) & 0xFFFFFFFF) ^ k
    rest = size - whole
    if rest:
        h ^= int.from_bytes(data[whole:], "little")
        h = (h * 0x5BD1E995) & 0xFFFFFFFF
    h ^= h >> 13
    h = (h * 0x5BD1E995) & 0xFFFFFFFF
    return h ^ (h >> 15)

"""Kafka's own Java classes and our batches: each reads what the other wrote, in every codec."""

from collections.abc import Iterator
from typing import Any

import pytest

from kafkad._native.wire.batch import AppendRules
from kafkad.protocol import compression
from kafkad.protocol.records import Record, build_batch, read_batches
from kafkad.protocol.validation import validate_slow
from tests.jvm import NEWEST
from tests.reference.kafka_messages import JvmMessages

pytestmark = pytest.mark.java
NOW = 1_790_000_000_000
# few, since each field that Java read is a call of py4j
RECORDS = [
    Record(
        None if i % 7 == 0 else b"key %d" % i,
        None if i % 11 == 0 else b"value" * (i % 90),
        None,
        NOW + i % 13,
    )
    for i in range(200)
]


@pytest.fixture(scope="module")
def java() -> Iterator[Any]:
    with JvmMessages(NEWEST) as jvm:
        yield jvm.gateway.jvm


def contents(batch: Any) -> list[tuple[Any, ...]]:
    return [(record.key, record.value, record.timestamp, record.offset) for record in batch.records()]


def java_bytes(java: Any, buffer: Any) -> bytes | None:
    """What remains in a ByteBuffer."""
    return None if buffer is None else bytes(java.org.apache.kafka.common.utils.Utils.toArray(buffer))


@pytest.mark.parametrize("codec", range(5), ids=compression.NAMES)
def test_java_reads_what_we_write(java, codec):
    data = bytes(build_batch(RECORDS, base_offset=7, compression=codec))
    internal = java.org.apache.kafka.common.record.internal
    batch = (
        internal.MemoryRecords.readableRecords(java.java.nio.ByteBuffer.wrap(data))
        .batches()
        .iterator()
        .next()
    )
    batch.ensureValid()
    assert batch.compressionType().toString().lower() == compression.NAMES[codec]
    found = []
    iterator = batch.iterator()
    while iterator.hasNext():
        record = iterator.next()
        key, value = java_bytes(java, record.key()), java_bytes(java, record.value())
        found.append((key, value, record.timestamp(), record.offset()))
    assert found == [(r.key, r.value, r.timestamp, 7 + i) for i, r in enumerate(RECORDS)]


@pytest.mark.parametrize("codec", range(5), ids=compression.NAMES)
def test_we_take_what_java_writes(java, codec):
    kafka = java.org.apache.kafka.common
    internal = kafka.record.internal
    compressor = kafka.compress.Compression.of(compression.NAMES[codec]).build()
    buffer = java.java.nio.ByteBuffer.allocate(1 << 20)
    builder = internal.MemoryRecords.builder(buffer, compressor, kafka.record.TimestampType.CREATE_TIME, 0)
    for record in RECORDS:
        builder.append(record.timestamp, record.key, record.value)
    data = bytearray(java_bytes(java, builder.build().buffer()) or b"")
    if codec:
        same, header = validate_slow(data, AppendRules(), NOW)
        assert same is data
    else:
        verdict, header = AppendRules().validate(data, NOW)
        assert verdict == 0
    assert header.walked_max_timestamp == NOW + 12
    (batch,) = read_batches(data)
    assert batch.compression == codec
    assert contents(batch) == [(r.key, r.value, r.timestamp, i) for i, r in enumerate(RECORDS)]

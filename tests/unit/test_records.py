"""Batches as objects: built and read against kafka-python's and aiokafka's builders and parsers."""

import random
from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AioBuilder
from aiokafka.record.memory_records import MemoryRecords as AioRecords
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from kafkad.protocol import records as r
from kafkad.protocol.errors import Malformed
from kafkad.protocol.records import Record, build_batch, find_max_timestamp, find_timestamp, read_batches

NOW = 1_790_000_000_000
CODECS = range(5)


def some_bytes(chance: random.Random) -> bytes | None:
    if chance.random() < 0.15:
        return None
    return chance.randbytes(chance.choice((0, 1, 5, 63, 64, 65, 300, chance.randrange(3000))))


def some_records(chance: random.Random) -> list[Record]:
    return [
        Record(
            some_bytes(chance),
            some_bytes(chance),
            [(f"h\u00e9{i}", some_bytes(chance)) for i in range(chance.choice((0, 0, 1, 3)))],
            NOW + chance.randrange(-(10 ** chance.randrange(1, 12)), 10 ** chance.randrange(1, 7)),
        )
        for _ in range(chance.choice((1, 2, 5, 70)))
    ]


def content(records: list[Any]) -> list[tuple[Any, ...]]:
    """The same of our records and of both oracles'; their offsets count from the batch's."""
    return [
        (record.key, record.value, [(k, v) for k, v in record.headers], record.timestamp)
        for record in records
    ]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("seed", range(12))
def test_kafka_python_and_aiokafka_read_what_we_build(codec, seed):
    records = some_records(random.Random(seed))
    batch = build_batch(
        records, base_offset=100, compression=codec, producer_id=5, producer_epoch=1, base_sequence=7
    )
    theirs = DefaultRecordBatch(bytes(batch))
    assert theirs.validate_crc()
    assert (theirs.producer_id, theirs.producer_epoch, theirs.base_sequence) == (5, 1, 7)
    assert theirs.max_timestamp == max(record.timestamp for record in records)
    found = list(theirs)
    assert content(found) == content(records)
    assert [record.offset for record in found] == list(range(100, 100 + len(records)))
    aio = AioRecords(bytes(batch)).next_batch()
    assert aio.validate_crc()
    assert content(list(aio)) == content(records)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("builder", [DefaultRecordBatchBuilder, AioBuilder])
def test_we_read_what_kafka_python_and_aiokafka_build(builder, codec, seed):
    records = some_records(random.Random(seed))
    theirs = builder(
        magic=2,
        compression_type=codec,
        is_transactional=0,
        producer_id=9,
        producer_epoch=2,
        base_sequence=3,
        batch_size=1 << 24,
    )
    for i, record in enumerate(records):
        theirs.append(i, record.timestamp, record.key, record.value, record.headers)
    data = bytes(theirs.build())
    (batch,) = read_batches(data)
    assert batch.is_intact()
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (9, 2, 3)
    assert batch.records_count == len(records) == batch.last_offset_delta + 1
    found = batch.records()
    assert content(found) == content(records)
    assert [record.offset for record in found] == list(range(len(records)))


def test_uncompressed_we_write_the_same_bytes_as_kafka_python():
    records = some_records(random.Random(99))
    theirs = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=1,
        producer_id=9,
        producer_epoch=2,
        base_sequence=3,
        batch_size=1 << 24,
    )
    for i, record in enumerate(records):
        theirs.append(i, record.timestamp, record.key, record.value, record.headers)
    ours = build_batch(
        records, producer_id=9, producer_epoch=2, base_sequence=3, leader_epoch=0, transactional=True
    )
    assert ours == bytes(theirs.build())


def test_header_fields():
    batch = build_batch(
        [Record(None, b"a", timestamp=5), Record(None, b"b", timestamp=3)],
        base_offset=1 << 40,
        leader_epoch=8,
        control=True,
        transactional=True,
        timestamp_type=1,
        compression=4,
    )
    (found,) = read_batches(batch)
    assert (found.base_offset, found.last_offset, found.leader_epoch) == (1 << 40, (1 << 40) + 1, 8)
    assert (found.is_control, found.is_transactional, found.timestamp_type, found.compression) == (
        True,
        True,
        1,
        4,
    )
    assert (found.base_timestamp, found.max_timestamp, found.size) == (5, 5, len(batch))
    assert (found.producer_id, found.producer_epoch, found.base_sequence) == (-1, -1, -1)


def test_log_append_time_gives_every_record_the_batchs_timestamp():
    batch = build_batch([Record(None, b"a", timestamp=5), Record(None, b"b", timestamp=9)], timestamp_type=1)
    (found,) = read_batches(batch)
    assert [record.timestamp for record in found.records()] == [9, 9]
    assert find_timestamp(batch, 6) == (9, 0)
    assert find_max_timestamp(batch) == (9, 0)


def test_records_may_bring_their_offsets():
    batch = build_batch(
        [Record(None, b"a", offset=12), Record(None, b"b"), Record(None, b"c", offset=40)], base_offset=10
    )
    (found,) = read_batches(batch)
    assert [record.offset for record in found.records()] == [12, 13, 40]
    assert (found.last_offset, found.records_count) == (40, 3)
    for offsets in ((3, 3), (5, 4), (-1, 0)):
        with pytest.raises(ValueError, match="cannot follow"):
            build_batch([Record(None, b"", offset=offset) for offset in offsets])


def test_any_buffer_may_be_key_and_value():
    (batch,) = read_batches(
        build_batch([Record(bytearray(b"k"), memoryview(b"v"), [("h", bytearray(b"x"))])])
    )
    assert batch.records() == [Record(b"k", b"v", [("h", b"x")], -1, 0)]
    with pytest.raises(TypeError):
        build_batch([Record("text", b"")])
    with pytest.raises(TypeError):
        build_batch([Record(7, b"")])


def test_a_batch_has_at_least_one_record():
    with pytest.raises(ValueError, match="at least one"):
        build_batch([])


def test_read_batches_gives_each_and_leaves_out_one_that_is_cut():
    one, two = build_batch([Record(None, b"a")]), build_batch([Record(None, b"b")], base_offset=1)
    assert [batch.base_offset for batch in read_batches(one + two)] == [0, 1]
    for size in range(len(two)):
        assert [batch.base_offset for batch in read_batches(one + two[:size])] == [0]
    assert list(read_batches(b"")) == []


@pytest.mark.parametrize(("position", "value"), [(16, 1), (16, 3), (8, 0xFF), (11, 48)])
def test_read_batches_refuses_what_cannot_be_a_batch(position, value):
    batch = build_batch([Record(None, b"a")])
    batch[position] = value
    with pytest.raises(Malformed):
        list(read_batches(batch))


def test_records_that_do_not_parse_are_malformed():
    batch = build_batch([Record(b"key", b"value", [("h", b"x")])] * 3)
    for position in range(61, len(batch)):
        for value in (0x00, 0x01, 0x7F, 0xFF):
            wrong = bytearray(batch)
            wrong[position] = value
            (found,) = read_batches(wrong)
            try:
                assert len(found.records()) == 3
            except Malformed as error:
                assert "offset 0" in str(error)
    (found,) = read_batches(batch)
    assert found.is_intact()


def test_control_records():
    commit = r.end_marker(r.COMMIT, 7, timestamp=NOW)
    assert (commit.key, commit.value) == (b"\0\0\0\1", b"\0\0\0\0\0\7")
    (batch,) = read_batches(
        build_batch([commit], control=True, transactional=True, producer_id=1, producer_epoch=0)
    )
    (found,) = batch.records()
    assert batch.is_control
    assert r.control_kind(found) == r.COMMIT
    assert r.control_kind(r.control_record(r.KRAFT_VOTERS, b"...", timestamp=0)) == 6
    with pytest.raises(Malformed):
        r.control_kind(Record(b"\0\0\0"))


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("seed", range(6))
def test_one_record_is_found_by_time(codec, seed):
    records = some_records(random.Random(seed))
    batch = build_batch(records, base_offset=50, compression=codec)
    times = [record.timestamp for record in records]
    largest = max(times)
    assert find_max_timestamp(batch) == (largest, 50 + times.index(largest))
    for target in (*times, min(times) - 1, largest + 1, 0):
        for first in (0, 50, 50 + len(records) // 2, 50 + len(records)):
            expected = next(
                ((time, 50 + i) for i, time in enumerate(times) if time >= target and 50 + i >= first), None
            )
            assert find_timestamp(batch, target, first) == expected


def test_records_without_timestamp_have_no_largest():
    assert find_max_timestamp(build_batch([Record(None, b"")] * 3)) is None

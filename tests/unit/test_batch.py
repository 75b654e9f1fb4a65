"""What a client may append: every refusal once, what is put right in place, and the walk in pieces.

Each batch here is also judged by the slow twin (tests/reference/slow_batch.py)."""

import random
import struct
from typing import Any

import pytest

from kafkad._native.wire.batch import AppendRules, BatchHeader, RecordWalk
from kafkad._native.wire.crc32c import checksum
from kafkad.protocol import compression
from kafkad.protocol.errors import (
    CORRUPT_MESSAGE,
    INVALID_RECORD,
    INVALID_REQUEST,
    INVALID_TIMESTAMP,
    MESSAGE_TOO_LARGE,
    NONE,
    UNSUPPORTED_COMPRESSION_TYPE,
)
from kafkad.protocol.records import Record, build_batch, read_batches
from kafkad.protocol.validation import InvalidBatch, validate_slow
from tests.reference import slow_batch

NOW = 1_790_000_000_000
NEED_PYTHON = -1000
FIELDS = {
    "base_offset": (0, ">q"),
    "length": (8, ">i"),
    "magic": (16, ">b"),
    "attributes": (21, ">h"),
    "last_offset_delta": (23, ">i"),
    "base_timestamp": (27, ">q"),
    "max_timestamp": (35, ">q"),
    "producer_id": (43, ">q"),
    "producer_epoch": (51, ">h"),
    "base_sequence": (53, ">i"),
    "records_count": (57, ">i"),
}


def batch(count: int = 3, *, compression: int = 0, **fields: int) -> bytearray:
    """A good batch, some of whose header fields are then made to say something else, under a right CRC."""
    records = [Record(b"key", b"value %d" % i, [("h", b"x")], NOW + i) for i in range(count)]
    return altered(build_batch(records, compression=compression), **fields)


def altered(data: bytearray, **fields: int) -> bytearray:
    for name, value in fields.items():
        position, form = FIELDS[name]
        struct.pack_into(form, data, position, value)
    return sealed(data)


def sealed(data: bytearray) -> bytearray:
    struct.pack_into(">I", data, 17, checksum(memoryview(data)[21:]))
    return data


def with_records(data: bytes, count: int = 1, codec: int = 0) -> bytearray:
    """A batch with these bytes for its records."""
    good = batch(1)
    return altered(
        good[:61] + compression.compress(codec, data),
        length=len(compression.compress(codec, data)) + 49,
        attributes=codec,
        last_offset_delta=count - 1,
        records_count=count,
    )


def judge(data: bytearray, now_ms: int = NOW, **rules: Any) -> tuple[int, BatchHeader]:
    """The verdict, by the native way or the slow path; the slow twin must agree."""
    expected = slow_batch.validate(bytes(data), now_ms, rules=rules)
    verdict, header = AppendRules(**rules).validate(bytearray(data), now_ms)
    if verdict == NEED_PYTHON:
        try:
            _, header = validate_slow(bytearray(data), AppendRules(**rules), now_ms)
            verdict = NONE
        except InvalidBatch as error:
            assert error.message
            assert error.bad_record == header.bad_record or error.bad_record >= 0
            verdict = error.code
    elif verdict:
        assert header.message
    assert verdict == expected
    return verdict, header


# -- refusals ----------------------------------------------------------------------------------------------


def test_a_good_batch_passes_untouched():
    data = batch()
    verdict, header = AppendRules().validate(data, NOW)
    assert verdict == NONE
    assert data == batch()
    assert (header.walked_max_timestamp, header.walked_max_offset) == (NOW + 2, 2)
    assert (header.bad_record, header.message, header.size) == (-1, None, len(data))


@pytest.mark.parametrize("size", [0, 1, 11, 12, 16])
def test_no_batch_at_all(size):
    assert judge(batch()[:size])[0] == INVALID_RECORD


def test_less_than_its_length():
    data = batch()
    for size in range(17, len(data)):
        assert judge(data[:size])[0] == INVALID_RECORD


def test_a_second_batch():
    assert judge(batch() + batch())[0] == INVALID_RECORD
    assert judge(batch() + b"\0")[0] == INVALID_RECORD


@pytest.mark.parametrize("length", [13, 0, -1, -(1 << 31)])
def test_a_length_that_no_batch_has(length):
    assert judge(altered(batch(), length=length))[0] == CORRUPT_MESSAGE


@pytest.mark.parametrize("length", [14, 48])
def test_shorter_than_its_header(length):
    assert judge(altered(batch(), length=length)[: 12 + length])[0] == CORRUPT_MESSAGE


@pytest.mark.parametrize(
    ("magic", "code"), [(0, INVALID_RECORD), (1, INVALID_RECORD), (3, 2), (127, 2), (-1, 2)]
)
def test_other_magics(magic, code):
    assert judge(altered(batch(), magic=magic))[0] == code


@pytest.mark.parametrize("offset", [1, -1, 1 << 40])
def test_a_base_offset(offset):
    assert judge(altered(batch(), base_offset=offset))[0] == INVALID_RECORD


def test_larger_than_max_message_bytes():
    data = batch()
    assert judge(data, max_message_bytes=len(data))[0] == NONE
    assert judge(data, max_message_bytes=len(data) - 1)[0] == MESSAGE_TOO_LARGE
    assert judge(data, max_message_bytes=0)[0] == MESSAGE_TOO_LARGE


@pytest.mark.parametrize("codec", range(5))
def test_any_flipped_bit_under_the_crc(codec):
    good = batch(2, compression=codec)
    for position in range(17, len(good)):
        wrong = bytearray(good)
        wrong[position] ^= 1 << position % 8
        assert judge(wrong)[0] == CORRUPT_MESSAGE


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_unknown_compression_types(codec):
    assert judge(altered(batch(), attributes=codec))[0] == UNSUPPORTED_COMPRESSION_TYPE


@pytest.mark.parametrize(
    "fields",
    [
        {"last_offset_delta": 3},
        {"last_offset_delta": 1},
        {"last_offset_delta": -1},
        {"records_count": 0},
        {"records_count": -1, "last_offset_delta": -2},
        {"records_count": 0, "last_offset_delta": -1},
        {"records_count": -(1 << 31), "last_offset_delta": (1 << 31) - 1},
        {"attributes": 0x20},
        {"producer_id": 0, "base_sequence": -1},
        {"producer_id": 1 << 60, "base_sequence": -(1 << 31)},
        {"records_count": 4, "last_offset_delta": 3},
        {"records_count": 2, "last_offset_delta": 1},
        {"records_count": (1 << 31) - 1, "last_offset_delta": (1 << 31) - 2},
    ],
    ids=str,
)
@pytest.mark.parametrize("codec", [0, 4])
def test_header_fields_that_lie(codec, fields):
    fields = {"attributes": codec, **fields}
    fields["attributes"] |= codec
    assert (
        judge(batch(compression=codec) if not fields else altered(batch(compression=codec), **fields))[0]
        == 87
    )


def test_a_producer_id_with_a_sequence():
    assert judge(altered(batch(), producer_id=5, producer_epoch=0, base_sequence=0))[0] == NONE


def test_transactions_are_refused_until_there_are_any():
    assert judge(altered(batch(), attributes=0x10))[0] == INVALID_REQUEST
    assert judge(altered(batch(), attributes=0x10), transactions=True)[0] == NONE


def test_a_producer_must_not_say_log_append_time():
    verdict, header = judge(altered(batch(), attributes=0x08))
    assert (verdict, header.bad_record) == (INVALID_TIMESTAMP, 0)


# body: attributes, timestamp delta, offset delta, key size, value size, headers count
SHAPES = {
    "nothing": (b"", 1),
    "length only": (b"\x0c", 1),
    "length 0": (b"\x00", 1),
    "negative length": (b"\x0b" + b"\0" * 20, 1),
    "length beyond the end": (b"\x0e\0\0\0\1\1\0", 1),
    "length too small": (b"\x0a\0\0\0\1\1\0", 1),
    "length too large for its fields": (b"\x0e\0\0\0\1\1\0\0", 1),
    "a byte behind the last record": (b"\x0c\0\0\0\1\1\0\0", 1),
    "fewer records": (b"\x0c\0\0\0\1\1\0", 2),
    "more records": (b"\x0c\0\0\0\1\1\0\x0c\0\0\2\1\1\0", 1),
    "key beyond the record": (b"\x0c\0\0\0\4\1\0", 1),
    "value beyond the record": (b"\x0c\0\0\0\1\6\0", 1),
    "huge key": (b"\x14\0\0\0\xfe\xff\xff\xff\x0f\1\0", 1),
    "negative headers count": (b"\x0c\0\0\0\1\1\1", 1),
    "more headers than bytes": (b"\x0c\0\0\0\1\1\2", 1),
    "millions of headers": (b"\x12\0\0\0\1\1\x80\x80\x80\x04", 1),
    "null header key": (b"\x10\0\0\0\1\1\2\1\1", 1),
    "header key beyond the record": (b"\x10\0\0\0\1\1\2\x08\1", 1),
    "header value beyond the record": (b"\x10\0\0\0\1\1\2\0\x08", 1),
    "header without value": (b"\x0e\0\0\0\1\1\2\0", 1),
    "varint without end": (b"\xff\xff\xff\xff\xff\xff", 1),
    "offset delta without end": (b"\x18\0\0\xff\xff\xff\xff\xff\xff\1\1\0\0", 1),
    "timestamp delta without end": (b"\x1c\0" + b"\xff" * 11 + b"\0\1\1\0", 1),
    # HUNTS N3: where the count of headers should stand, the overlong -1 ends in a byte that looks like one.
    "null value of two bytes, no headers count": (b"\x0c\0\0\0\1\x81\x00", 1),
    "null value of five bytes, no headers count": (b"\x12\0\0\0\1\x81\x80\x80\x80\x00", 1),
    "the same in a long record": (b"\x4c\0\0\0\x40" + b"k" * 32 + b"\x81\x00", 1),
    "value size of -2, no headers count": (b"\x0c\0\0\0\1\x83\x00", 1),
    "length of six bytes": (b"\x8c\x80\x80\x80\x80\x00\0\0\0\1\1\0", 1),
}


@pytest.mark.parametrize("codec", range(5))
@pytest.mark.parametrize("shape", SHAPES)
def test_records_that_do_not_parse(shape, codec):
    data, count = SHAPES[shape]
    verdict, header = judge(with_records(data, count, codec))
    assert verdict == INVALID_RECORD or (
        codec == compression.SNAPPY and verdict == CORRUPT_MESSAGE and not data
    )
    assert header.bad_record == -1


FINE = {
    "null key, null value": b"\x0c\0\0\0\1\1\0",
    "sizes below -1 are null": b"\x0c\0\0\0\3\5\0",
    "record attributes mean nothing": b"\x0c\xff\0\0\1\1\0",
    "varints longer than they must be": b"\x8c\x80\x80\x80\x00\0\0\0\1\1\0",
    "null header value": b"\x10\0\0\0\1\1\2\0\1",
    "a timestamp delta of ten bytes": b"\x1e\0\x81\x80\x80\x80\x80\x80\x80\x80\x80\x00\0\1\1\0",
}


@pytest.mark.parametrize("codec", range(5))
@pytest.mark.parametrize("shape", FINE)
def test_odd_records_that_kafka_takes(shape, codec):
    assert judge(with_records(FINE[shape], 1, codec))[0] == NONE


# -- rules of the topic ------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", [0, 1, 4])
def test_compacted_topics_want_keys(codec):
    keys = (b"a", b"", None, b"b", None)
    data = build_batch([Record(key, b"v", timestamp=NOW) for key in keys], compression=codec)
    assert judge(data)[0] == NONE
    verdict, header = AppendRules(compacted=True).validate(bytearray(data), NOW)
    if codec:
        with pytest.raises(InvalidBatch) as refused:
            validate_slow(data, AppendRules(compacted=True), NOW)
        assert (refused.value.code, refused.value.bad_record) == (INVALID_RECORD, 2)
    else:
        assert (verdict, header.bad_record) == (INVALID_RECORD, 2)
        assert "without key" in (header.message or "")


@pytest.mark.parametrize(
    ("timestamp", "rules", "code"),
    [
        (NOW + 3_600_000, {}, NONE),
        (NOW + 3_600_001, {}, INVALID_TIMESTAMP),
        (NOW - (1 << 63) + 1, {}, NONE),
        (NOW - (1 << 63), {}, NONE),  # and so does the negation of this difference, in Kafka
        (NOW - (1 << 63) - 1, {}, INVALID_TIMESTAMP),  # the difference overflows
        (-(1 << 63), {}, INVALID_TIMESTAMP),
        (-(1 << 63), {"after_max_ms": (1 << 63) - 1}, NONE),
        (0, {}, NONE),
        (-2, {}, NONE),
        (-1, {"before_max_ms": 0, "after_max_ms": 0}, NONE),
        (NOW, {"before_max_ms": 0, "after_max_ms": 0}, NONE),
        (NOW - 1, {"before_max_ms": 0}, INVALID_TIMESTAMP),
        (NOW + 1, {"after_max_ms": 0}, INVALID_TIMESTAMP),
        (NOW - 1000, {"before_max_ms": 1000}, NONE),
        (NOW - 1001, {"before_max_ms": 1000}, INVALID_TIMESTAMP),
        ((1 << 63) - 1, {"after_max_ms": (1 << 63) - 1}, NONE),
        (NOW - 1001, {"before_max_ms": 1000, "log_append_time": True}, NONE),
        # Java's difference overflows, and its negation of -2^63, too
        (NOW - (1 << 63), {"before_max_ms": 1 << 62}, NONE),
        (NOW - (1 << 63), {"after_max_ms": 0}, NONE),
        (NOW - (1 << 63) + 1, {"before_max_ms": 1 << 62}, INVALID_TIMESTAMP),
        (NOW - (1 << 63) - 1, {"before_max_ms": 1 << 62, "after_max_ms": (1 << 63) - 2}, INVALID_TIMESTAMP),
        (NOW - (1 << 63) - 2, {"before_max_ms": 1 << 62, "after_max_ms": (1 << 63) - 2}, NONE),
        (NOW - (1 << 63) - 9, {"after_max_ms": 1 << 62}, INVALID_TIMESTAMP),
    ],
)
def test_timestamps(timestamp, rules, code):
    records = [Record(None, b"", timestamp=NOW), Record(None, b"", timestamp=timestamp)]
    verdict, header = judge(build_batch(records), **rules)
    assert verdict == code
    assert header.bad_record == (1 if code else -1)


def test_a_bad_timestamp_outranks_a_missing_key():
    records = [Record(None, b""), Record(b"k", b"", timestamp=NOW * 2), Record(b"k", b"", timestamp=NOW * 3)]
    verdict, header = judge(build_batch(records), compacted=True)
    assert (verdict, header.bad_record) == (INVALID_TIMESTAMP, 1)


@pytest.mark.parametrize("codec", range(5))
@pytest.mark.parametrize("wrong", [0, -1, NOW * 2, -(1 << 63)])
def test_a_wrong_max_timestamp_is_put_right_in_place(codec, wrong):
    data = batch(compression=codec, max_timestamp=wrong)
    rules = AppendRules()
    verdict, header = rules.validate(data, NOW)
    assert verdict == (NEED_PYTHON if codec else NONE)
    if codec:
        same, header = validate_slow(data, rules, NOW)
        assert same is data
    assert header.max_timestamp == header.walked_max_timestamp == NOW + 2
    assert data == batch(compression=codec)


@pytest.mark.parametrize("codec", range(5))
def test_log_append_time(codec):
    data = batch(compression=codec)
    rules = AppendRules(log_append_time=True)
    if codec:
        data, header = validate_slow(data, rules, NOW + 77)
    else:
        verdict, header = rules.validate(data, NOW + 77)
        assert verdict == NONE
    assert (header.walked_max_timestamp, header.walked_max_offset) == (NOW + 77, 0)
    (found,) = read_batches(data)
    assert found.is_intact()
    assert (found.timestamp_type, found.max_timestamp, found.compression) == (1, NOW + 77, codec)
    assert {record.timestamp for record in found.records()} == {NOW + 77}


def test_a_header_that_is_written_anew_loses_its_unknown_attributes():
    """As in Kafka's DefaultRecordBatch.setMaxTimestamp; what stays as it is keeps them."""
    for rules, attributes in ((AppendRules(log_append_time=True), 0x08), (AppendRules(), 0x80)):
        data = altered(batch(), attributes=0x80)
        verdict, _ = rules.validate(data, NOW)
        assert verdict == NONE
        (found,) = read_batches(data)
        assert (found.attributes, found.is_intact()) == (attributes, True)


# -- rewriting ---------------------------------------------------------------------------------------------


def contents(data: bytes) -> list[tuple[Any, ...]]:
    (found,) = read_batches(data)
    assert found.is_intact()
    return [(r.key, r.value, r.headers, r.timestamp, r.offset) for r in found.records()]


@pytest.mark.parametrize("target", range(5))
@pytest.mark.parametrize("source", range(5))
def test_recompressed_for_the_topics_compression_type(source, target):
    data = altered(batch(500, compression=source), producer_id=5, producer_epoch=3, base_sequence=9)
    expected = contents(data)
    rules = AppendRules(compression_type=target)
    verdict, header = rules.validate(data, NOW)
    if source == target == 0:
        assert verdict == NONE
        return
    assert verdict == NEED_PYTHON
    rewritten, header = validate_slow(data, rules, NOW)
    assert (rewritten is data) == (source == target)
    assert contents(rewritten) == expected
    assert (header.compression, header.size) == (target, len(rewritten))
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (5, 3, 9)
    assert (header.walked_max_timestamp, header.walked_max_offset) == (NOW + 499, 499)


def test_a_rewritten_batch_must_fit_too():
    data = batch(5000, compression=4)
    rules = AppendRules(compression_type=0, max_message_bytes=len(data))
    with pytest.raises(InvalidBatch) as refused:
        validate_slow(data, rules, NOW)
    assert refused.value.code == MESSAGE_TOO_LARGE


@pytest.mark.parametrize("target", [-1, 0, 1])
@pytest.mark.parametrize("codec", range(5))
@pytest.mark.parametrize("deltas", [[0, 2, 4], [0, 0, 0], [2, 1, 0], [0, 1, -1], [1 << 30, 5, 64]], ids=str)
def test_wrong_inner_offsets_are_rebuilt(deltas, codec, target):
    data = b""
    for delta in deltas:
        offset = varint(delta)
        body = b"\0" + varint(delta % 7) + offset + b"\6key\x0avalue\2\2h\2x"
        data += varint(len(body)) + body
    rules = AppendRules(compression_type=target)
    wrong = with_records(data, 3, codec)
    assert rules.validate(bytearray(wrong), NOW)[0] == NEED_PYTHON
    fixed, header = validate_slow(wrong, rules, NOW)
    assert header.compression == (codec if target < 0 else target)
    assert contents(fixed) == [
        (b"key", b"value", [("h", b"x")], NOW + delta % 7, i) for i, delta in enumerate(deltas)
    ]
    assert AppendRules().check_header(fixed)[0] == NONE


def varint(value: int) -> bytes:
    raw = (value << 1) ^ (value >> 31)
    out = b""
    while raw >= 0x80:
        out += bytes([raw & 0x7F | 0x80])
        raw >>= 7
    return out + bytes([raw])


# -- the walk in pieces ------------------------------------------------------------------------------------


def walked(header: BatchHeader, pieces: list[bytes], **how: Any) -> tuple[Any, ...]:
    walk = RecordWalk(header, **how)
    for piece in pieces:
        walk.feed(piece)
    verdict = walk.end()
    return verdict, walk.records, walk.consecutive, walk.largest, header.bad_record


@pytest.mark.parametrize("seed", range(8))
def test_wherever_the_cuts_are_the_walk_finds_the_same(seed):
    chance = random.Random(seed)
    records = [
        Record(
            chance.choice((None, b"", b"k" * 70)),
            chance.randbytes(chance.randrange(200)),
            [("header", chance.choice((None, b"", b"x" * 130)))] * chance.choice((0, 0, 2)),
            NOW + chance.randrange(-(1 << 40), 1000),
        )
        for _ in range(30)
    ]
    data = build_batch(records)
    body = bytes(data[61:])
    header = BatchHeader(data)
    rules = AppendRules(compacted=seed % 2 == 0, before_max_ms=1 << 39)
    whole = walked(header, [body], rules=rules, now_ms=NOW)
    assert whole[0] in (0, INVALID_RECORD, INVALID_TIMESTAMP)
    assert whole[1] == 30
    assert walked(header, [bytes([byte]) for byte in body], rules=rules, now_ms=NOW) == whole
    for _ in range(100):
        cuts = sorted(chance.randrange(len(body) + 1) for _ in range(chance.randrange(1, 20)))
        pieces = [body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True)]
        assert walked(header, pieces, rules=rules, now_ms=NOW) == whole


@pytest.mark.parametrize("shape", SHAPES)
def test_byte_by_byte_the_same_is_refused(shape):
    data, count = SHAPES[shape]
    header = BatchHeader(with_records(data, count))
    assert walked(header, [bytes([byte]) for byte in data])[0] == INVALID_RECORD


def test_the_walk_refuses_bytes_behind_the_end_in_a_piece_of_their_own():
    data = batch()
    walk = RecordWalk(BatchHeader(data))
    assert walk.feed(data[61:]) == NONE
    assert walk.feed(b"\0") == INVALID_RECORD
    assert walk.end() == INVALID_RECORD

"""Message sets of magic 0 and 1 on their way into a log: what becomes of them, and which are refused."""

import random
import struct
import time
import zlib

import pytest

from kafkad._native.wire.batch import AppendRules
from kafkad._native.wire.crc32 import checksum, checksum_sliced, set_folding
from kafkad._native.wire.message_set import UpConverter
from kafkad.protocol import compression as codecs
from kafkad.protocol import errors
from kafkad.protocol.lz4_headers import with_broken_lz4_checksum, with_right_lz4_checksum
from kafkad.protocol.records import read_batches
from kafkad.protocol.validation import InvalidBatch
from tests.reference.message_sets import broken_lz4_checksum, message, message_set, wrapper
from tests.unit.log_world import LogWorld, topic_config

PLAIN = [(b"key", b"value", 1_000), (None, b"x" * 3_000, 900), (b"", None, 1_100), (b"k", b"", -1)]
NOW = 5_000
CODECS = [codecs.NONE, codecs.GZIP, codecs.SNAPPY, codecs.LZ4]


@pytest.fixture
def world(tmp_path):
    return LogWorld(tmp_path)


def configured(tmp_path, **values):
    return LogWorld(tmp_path, topic_config(**values))


def packed(magic, codec, plain=PLAIN):
    inner = message_set(magic, plain)
    offset = len(plain) - 1
    return wrapper(magic, codec, inner, offset=offset, timestamp=1_100) if codec else inner


def append(world, data, now_ms=NOW):
    return world.log.append_client(bytearray(data), now_ms)


def stored(world):
    data = world.log.read(0, 1 << 24)
    return list(read_batches(data)) if data else []


def refused(world, data):
    end = world.log.end_offset
    with pytest.raises(InvalidBatch) as refusal:
        append(world, data)
    assert world.log.end_offset == end
    return refusal.value.code


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("magic", [0, 1])
def test_a_set_becomes_one_batch(world, magic, codec):
    for number in range(2):
        result = append(world, packed(magic, codec))
        assert result == (4 * number, 4 * number + 4, -1, 0)
    first, second = stored(world)
    assert (second.base_offset, second.last_offset) == (4, 7)
    assert (first.compression, first.producer_id, first.base_sequence) == (codec, -1, -1)
    records = first.records()
    assert [(r.key, r.value, r.headers) for r in records] == [(key, value, []) for key, value, _ in PLAIN]
    assert [r.timestamp for r in records] == ([1_000, 900, 1_100, -1] if magic else [-1] * 4)
    assert [r.offset for r in records] == [0, 1, 2, 3]
    assert first.max_timestamp == (1_100 if magic else -1)


@pytest.mark.parametrize("target", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("codec", CODECS)
def test_the_topic_chooses_the_codec(tmp_path, codec, target):
    world = configured(tmp_path, compression_type=target)
    append(world, packed(1, codec))
    (batch,) = stored(world)
    assert codecs.NAMES[batch.compression] == target.replace("uncompressed", "none")
    assert [r.value for r in batch.records()] == [value for _, value, _ in PLAIN]


def test_log_append_time_is_now(tmp_path):
    world = configured(tmp_path, message_timestamp_type="LogAppendTime")
    for magic in (0, 1):
        assert append(world, packed(magic, 0)).append_time_ms == NOW
    for batch in stored(world):
        assert {r.timestamp for r in batch.records()} == {NOW}


def test_what_the_end_of_the_set_cuts_is_left_out(world):
    data = message_set(1, PLAIN)
    last = len(message(1, *PLAIN[-1][:2], PLAIN[-1][2]))
    for cut in (1, last // 2, last - 1):
        assert append(world, data[:-cut]).end_offset - world.log.end_offset == 0
        assert stored(world)[-1].records_count == 3
    inner = wrapper(1, codecs.GZIP, data[:-1], offset=9)
    append(world, inner)
    assert stored(world)[-1].records_count == 3


@pytest.mark.parametrize("size", [0, 1, 11, 12, 16, 17, 20, 25])
def test_a_set_without_a_whole_message_is_taken_and_changes_nothing(world, size):
    append(world, packed(1, 0))
    data = message(0, b"k", b"v")[:size]
    assert append(world, data) == (-1, -1, -1, 0)
    assert world.log.end_offset == 4


def damaged(data, at):
    return data[:at] + bytes([data[at] ^ 0x40]) + data[at + 1 :]


def test_wrong_crcs(world):
    data = message_set(1, PLAIN)
    for at in (12, 15, 17, len(data) - 1):
        assert refused(world, damaged(data, at)) == errors.CORRUPT_MESSAGE
    assert (
        refused(world, wrapper(0, codecs.GZIP, damaged(message_set(0, PLAIN), 60))) == errors.CORRUPT_MESSAGE
    )
    assert refused(world, damaged(wrapper(0, codecs.GZIP, data), 60)) == errors.CORRUPT_MESSAGE


def sized(data, size):
    return data[:8] + struct.pack(">i", size) + data[12:]


def test_absurd_sizes(world):
    data = message(0, b"k", b"v" * 100)
    for size in (-(2**31), -1, 0, 13):
        assert refused(world, sized(data, size)) == errors.CORRUPT_MESSAGE
        assert refused(world, wrapper(0, codecs.GZIP, sized(data, size))) == errors.CORRUPT_MESSAGE
    assert append(world, sized(data, 2**31 - 1)).base_offset == -1  # cut by the end of the set
    # the same inside: no whole message is there
    assert refused(world, wrapper(0, codecs.GZIP, sized(data, 1 << 20))) == errors.INVALID_RECORD
    assert refused(world, wrapper(0, codecs.GZIP, sized(data, 2**31 - 1))) == errors.MESSAGE_TOO_LARGE
    for key_size, value_size in ((2**31 - 1, 1), (50, 1), (-1, 2**31 - 1), (-1, 3)):
        body = struct.pack(">bbii", 0, 0, key_size, value_size)
        crooked = struct.pack(">qiI", 0, len(body) + 4, checksum(body)) + body
        assert refused(world, crooked) == errors.CORRUPT_MESSAGE
        assert refused(world, wrapper(0, codecs.GZIP, crooked)) == errors.CORRUPT_MESSAGE


def test_negative_sizes_are_null_and_what_is_behind_a_value_is_ignored(world):
    body = struct.pack(">bbii", 0, 0, -7, -(2**31))
    append(world, struct.pack(">qiI", 0, len(body) + 4, checksum(body)) + body)
    append(world, message(0, b"k", b"v", behind=b"more"))
    assert [(r.key, r.value) for b in stored(world) for r in b.records()] == [(None, None), (b"k", b"v")]


def test_a_magic_1_message_too_small_for_its_timestamp(world):
    body = struct.pack(">bbii", 1, 0, -1, -1)
    assert refused(world, struct.pack(">qiI", 0, 14, checksum(body)) + body) == errors.CORRUPT_MESSAGE


def test_wrappers(world):
    inner = message_set(1, PLAIN)
    once = wrapper(1, codecs.GZIP, inner, offset=3)
    assert refused(world, wrapper(1, codecs.GZIP, once, offset=3)) == errors.INVALID_RECORD  # in one another
    assert refused(world, once + once) == errors.INVALID_RECORD
    assert refused(world, once + inner) == errors.INVALID_RECORD
    assert refused(world, wrapper(1, codecs.GZIP, message_set(0, PLAIN), offset=3)) == errors.INVALID_RECORD
    assert refused(world, wrapper(0, codecs.GZIP, inner)) == errors.INVALID_RECORD
    assert refused(world, wrapper(1, codecs.GZIP, b"")) == errors.INVALID_RECORD
    assert refused(world, message(1, None, None, attributes=1)) == errors.INVALID_RECORD
    assert refused(world, wrapper(1, codecs.ZSTD, inner, offset=3)) == errors.INVALID_RECORD
    assert refused(world, message(1, None, b"?", attributes=6)) == errors.UNSUPPORTED_COMPRESSION_TYPE
    assert refused(world, message_set(0, PLAIN) + message_set(1, PLAIN)) == errors.INVALID_RECORD
    assert refused(world, message_set(0, PLAIN) + damaged(message(0, b"", b""), 16)) in (2, 87)
    for codec in (1, 2, 3):
        junk = wrapper(1, codec, inner, packed=b"\x82SNAPPY\0 and no more")
        assert refused(world, junk) == errors.CORRUPT_MESSAGE


@pytest.mark.parametrize(
    ("offset", "first", "taken"),
    [
        (0, 0, True),
        (3, 0, True),
        (900, 0, True),
        (2, 0, False),
        (-1, 0, False),
        (0, 100, True),
        (4, 7, False),
    ],
)
def test_the_offset_of_a_wrapper_of_magic_1(world, offset, first, taken):
    """0 comes from old librdkafka; otherwise it may not be below the last inner offset."""
    data = wrapper(1, codecs.SNAPPY, message_set(1, PLAIN, first), offset=offset)
    if taken:
        append(world, data)
        assert [r.offset for r in stored(world)[0].records()] == [0, 1, 2, 3]
    else:
        assert refused(world, data) == errors.INVALID_RECORD


def test_offsets_of_messages_mean_nothing(world):
    crooked = b"".join(message(1, b"k", b"v", 1, offset=offset) for offset in (-(2**63), 7, 7, 2**63 - 1))
    append(world, crooked)
    append(world, wrapper(0, codecs.GZIP, message_set(0, PLAIN, 2**40), offset=1))
    assert world.log.end_offset == 8


def test_log_append_time_is_the_brokers_word(world):
    assert refused(world, message(1, b"k", b"v", 1, attributes=8)) == errors.INVALID_TIMESTAMP
    inner = message_set(1, PLAIN)
    assert refused(world, wrapper(1, 1, inner, offset=3, attributes=8)) == errors.INVALID_TIMESTAMP
    append(world, message(0, b"k", b"v", attributes=8))  # means nothing in magic 0


def test_a_compacted_topic_wants_keys(tmp_path):
    world = configured(tmp_path, cleanup_policy=frozenset({"compact"}))
    with pytest.raises(InvalidBatch) as refusal:
        append(world, packed(1, codecs.LZ4))
    assert (refusal.value.code, refusal.value.bad_record) == (errors.INVALID_RECORD, 1)
    append(world, packed(0, 0, [(b"k", None, -1)]))


def test_timestamps_out_of_range(tmp_path):
    world = configured(tmp_path, message_timestamp_before_max_ms=1_000, message_timestamp_after_max_ms=1_000)
    with pytest.raises(InvalidBatch) as refusal:
        append(world, message_set(1, [(b"", b"", NOW), (b"", b"", NOW - 1_001), (b"", b"", NOW + 1_001)]))
    assert (refusal.value.code, refusal.value.bad_record) == (errors.INVALID_TIMESTAMP, 1)
    assert list(refusal.value.bad_records) == [1 << 1 | 1, 2 << 1 | 1]
    append(world, packed(0, 0))  # without a timestamp
    append(world, message_set(1, [(b"", b"", NOW - 1_000), (b"", b"", -1), (b"", b"", NOW + 1_000)]))


def test_max_message_bytes_holds_for_messages_and_for_the_batch(tmp_path):
    world = configured(tmp_path, max_message_bytes=1_000)
    assert refused(world, message(0, None, b"x" * 1_000)) == errors.MESSAGE_TOO_LARGE
    small = [(None, b"x" * 200, -1)] * 6
    assert refused(world, message_set(0, small)) == errors.MESSAGE_TOO_LARGE
    append(world, wrapper(0, codecs.GZIP, message_set(0, small)))
    append(world, message_set(0, small[:3]))


def test_a_bomb_is_refused(tmp_path):
    world = configured(tmp_path, max_message_bytes=1 << 20)
    inner = message(0, None, bytes(1 << 20)) * 65
    started = time.process_time()
    assert refused(world, wrapper(0, codecs.GZIP, inner)) == errors.MESSAGE_TOO_LARGE
    assert time.process_time() - started < 20


def test_pieces_cut_anywhere():
    """The converter sees its messages in pieces of any size, and makes the same records."""
    rng = random.Random(9)
    plain = [
        (rng.randbytes(rng.randrange(30)), rng.randbytes(rng.choice((0, 5, 300))), rng.randrange(9_000))
        for _ in range(60)
    ]
    data = message_set(1, plain)
    whole = UpConverter(AppendRules(), NOW, 1, True, 1 << 20)
    expected = whole.feed(data)
    assert whole.end() == 0 and whole.count == 60
    for _ in range(30):
        converter = UpConverter(AppendRules(), NOW, 1, True, 1 << 20)
        made, at = bytearray(), 0
        while at < len(data):
            size = rng.choice((1, 2, 11, 13, 40, 500))
            made += converter.feed(data[at : at + size])
            at += size
        assert converter.end() == 0
        assert made == expected


@pytest.mark.parametrize("bytes_per_step", [0, 64, 256])
def test_the_crc_is_zlibs(bytes_per_step):
    data = random.Random(3).randbytes(5_000)
    most = set_folding(0)
    set_folding(min(bytes_per_step, most))  # what this CPU supports
    try:
        for size in (*range(200), *range(240, 600), 1_000, 4_999):
            for begin in (0, 1, 7):
                piece = data[begin : begin + size]
                for seed in (0, 12_345, 0xFFFFFFFF):
                    assert checksum(piece, seed) == checksum_sliced(piece, seed) == zlib.crc32(piece, seed)
    finally:
        set_folding(most)


def test_the_lz4_header_of_magic_0():
    frame = codecs.compress(codecs.LZ4, b"lz4" * 100)
    broken = with_broken_lz4_checksum(frame)
    assert broken[6] == broken_lz4_checksum(frame[:6]) != frame[6]
    assert with_right_lz4_checksum(broken) == frame == with_right_lz4_checksum(frame)


def test_a_crash_leaves_the_batches(world):
    append(world, packed(0, codecs.GZIP))
    append(world, packed(1, 0))
    world.crash()
    assert [len(batch.records()) for batch in stored(world)] == [4, 4]

"""Batches v2 as messages of magic 0 and 1: what clients of before Kafka 0.11 are sent."""

import os
import random
import struct

import pytest

from kafkad.log.down_conversion import ANSWER_BYTES, READ_BYTES, DownConversion
from kafkad.protocol import compression as codecs
from kafkad.protocol import errors
from kafkad.protocol.legacy_records import read_entries
from kafkad.protocol.records import Record, build_batch
from tests.reference.message_sets import broken_lz4_checksum, message, message_set, wrapper

ROWS = [(b"key", b"value", 1_000), (None, b"x" * 3_000, 900), (b"", None, 1_100), (b"k", b"", -1)]
LARGE = 1 << 20


def batch(base, rows=ROWS, codec=codecs.NONE, attributes=0):
    made = [Record(key, value, headers=[("h", b"left out")], timestamp=time) for key, value, time in rows]
    data = bytearray(build_batch(made, compression=codec))
    struct.pack_into(">q", data, 0, base)
    data[22] |= attributes
    return bytes(data)


def converted(sources, version, bytes_max, begin=0):
    work = DownConversion(sources, version, bytes_max, begin)
    while work.step() >= 0:
        pass
    return [result._replace(messages=bytes(result.messages)) for result in work.results]


def convert(data, version, offset=0, limit=LARGE, bytes_max=LARGE):
    (result,) = converted([(bytes(data), 0, len(data), offset, limit)], version, bytes_max)
    return result


def told(data):
    """(offset, key, value, timestamp) of each message; all are intact."""
    entries = list(read_entries(data))
    assert all(entry.is_intact() for entry in entries)
    return [(r.offset, r.key, r.value, r.timestamp) for entry in entries for r in entry.records()]


def expected(base, rows, version):
    return [
        (base + number, key, value, time if version >= 2 else -1)
        for number, (key, value, time) in enumerate(rows)
    ]


@pytest.mark.parametrize("version", range(4))
def test_an_uncompressed_batch_becomes_single_messages_from_the_fetch_offset_on(version):
    data = batch(100) + batch(104)
    for offset in (0, 100, 102, 105, 107):
        result = convert(data, version, offset)
        rows = [row for row in expected(100, ROWS * 2, version) if row[0] >= offset]
        assert told(result.messages) == rows
        first = message(int(version >= 2), rows[0][1], rows[0][2], rows[0][3], offset=rows[0][0])
        assert result.messages.startswith(first)


@pytest.mark.parametrize("codec", [codecs.GZIP, codecs.SNAPPY, codecs.LZ4])
@pytest.mark.parametrize("version", range(4))
def test_a_compressed_batch_becomes_one_wrapper_with_all_records(version, codec):
    result = convert(batch(100, codec=codec), version, 102)
    (entry,) = read_entries(result.messages)
    assert (entry.offset, entry.compression, entry.key) == (103, codec, None)
    assert entry.timestamp == (1_100 if version >= 2 else -1)
    assert told(result.messages) == expected(100, ROWS, version)
    value = bytes(entry.value)
    if codec == codecs.LZ4 and version < 2:
        assert value[6] == broken_lz4_checksum(value[:6])
        return
    inner = [each.offset for each in read_entries(codecs.decompress(codec, value, LARGE))]
    assert inner == ([0, 1, 2, 3] if version >= 2 else [100, 101, 102, 103])


@pytest.mark.parametrize("version", range(4))
def test_a_compressed_batch_of_which_only_earlier_records_are_left_is_left_out(version):
    """The cleaner keeps a batch's last offset. A client that has read its last record fetches from there, and
    would stay there if the answer had no room for more than that batch."""
    rows = [(b"key", os.urandom(600_000), 1_000)]
    cleaned = bytearray(batch(100, rows, codecs.SNAPPY))
    struct.pack_into(">i", cleaned, 23, 3)  # last_offset_delta
    data = bytes(cleaned) + batch(104, rows, codecs.SNAPPY)
    assert [row[0] for row in told(convert(data, version, 100).messages)] == [100]
    assert [row[0] for row in told(convert(data, version, 101).messages)] == [104]
    assert convert(cleaned, version, 101) == (0, b"", 104)


def test_log_append_time():
    data = batch(0, attributes=8) + batch(4, codec=codecs.GZIP, attributes=8)
    entries = list(read_entries(convert(data, 2).messages))
    assert [entry.attributes for entry in entries] == [8, 8, 8, 8, 9]
    assert {each[3] for each in told(convert(data, 2).messages)} == {1_100}
    assert [entry.attributes for entry in read_entries(convert(data, 1).messages)] == [0, 0, 0, 0, 1]


def test_control_batches_are_left_out():
    marker = batch(4, ROWS[:1], attributes=0x30)
    result = convert(batch(0) + marker + batch(5), 2)
    assert [each[0] for each in told(result.messages)] == [0, 1, 2, 3, 5, 6, 7, 8]
    assert convert(marker + batch(5, ROWS[:1], attributes=0x30), 3) == (0, b"", 6)


def test_zstd_is_refused_where_it_comes_first():
    zstd = batch(4, codec=codecs.ZSTD)
    assert convert(zstd, 3) == (errors.UNSUPPORTED_COMPRESSION_TYPE, b"", -1)
    result = convert(batch(0) + zstd + batch(8), 3)
    assert result.code == 0
    assert [each[0] for each in told(result.messages)] == [0, 1, 2, 3]


def test_stored_messages_go_as_they_are_unless_the_client_does_not_know_them():
    stored = message_set(1, ROWS, 7) + wrapper(1, codecs.GZIP, message_set(1, ROWS), offset=14)
    assert convert(stored, 2).messages == convert(stored, 3).messages == stored
    result = convert(stored, 0)
    assert told(result.messages) == expected(7, ROWS * 2, 0)
    assert {entry.magic for entry in read_entries(result.messages)} == {0}
    older = message_set(0, ROWS)
    assert convert(older, 1).messages == convert(older, 3).messages == older


def test_what_does_not_fit_is_left_for_the_next_fetch():
    data = batch(0)
    whole = convert(data, 2).messages
    first = len(message(1, b"key", b"value"))
    assert told(convert(data, 2, limit=first).messages) == expected(0, ROWS[:1], 2)
    assert told(convert(data, 2, limit=len(whole) - 1).messages) == expected(0, ROWS[:3], 2)
    # v0 to v2: a first message that is too large is cut, so that the client sees that it is
    assert convert(data, 2, limit=first - 1).messages == whole[: first - 1]
    assert convert(data, 2, limit=0) == (0, b"", -1)
    large = batch(0, [(None, bytes(ANSWER_BYTES + 9), 1)])
    assert told(convert(large, 2, limit=2 * ANSWER_BYTES).messages)[0][2] == bytes(ANSWER_BYTES + 9)
    # v3: it is sent all the same (KIP-74)
    assert told(convert(data, 3, limit=1).messages) == expected(0, ROWS[:1], 3)
    assert told(convert(data, 3, bytes_max=0).messages) == expected(0, ROWS[:1], 3)


def test_a_wrapper_that_does_not_fit():
    data = batch(0, codec=codecs.GZIP)
    whole = convert(data, 2).messages
    assert convert(data, 2, limit=50).messages == whole[:50]
    assert convert(data, 3, limit=50).messages == convert(data, 3).messages
    assert told(convert(batch(0, ROWS[:1]) + batch(1, codec=1), 2, limit=120).messages)[-1][0] == 0


def test_partitions_share_an_answer():
    data = batch(0, [(None, b"x" * 1_000, 1)] * 900)
    sources = [(data, 0, len(data), 0, LARGE)] * 3
    for version in range(4):
        results = converted(sources, version, 1 << 30)
        assert sum(len(each.messages) for each in results) <= ANSWER_BYTES
        assert results[0].messages and results[1].messages and not results[2].messages
        assert all(len(list(read_entries(each.messages))) for each in results[:2])
        results = converted(sources, version, 1 << 30, begin=2)
        assert results[2].messages and results[0].messages and not results[1].messages


def test_after_a_first_partition_a_message_that_does_not_fit_is_left_out_from_v3_on():
    data = batch(0, [(None, b"x" * 1_000, 1)])
    sources = [(data, 0, len(data), 0, LARGE)] * 2
    assert [len(each.messages) for each in converted(sources, 3, 1_500)] == [1_034, 0]
    assert [len(each.messages) for each in converted(sources, 2, 1_500)] == [1_034, 0]


def test_files_are_read_piece_by_piece(tmp_path):
    rng = random.Random(4)
    data, base = b"", 0
    for number in range(40):
        rows = [(None, rng.randbytes(rng.randrange(1, 3_000)), number) for _ in range(rng.randrange(1, 20))]
        data += batch(base, rows, rng.choice((0, 0, 1, 3)))
        base += len(rows)
    path = tmp_path / "log"
    path.write_bytes(b"before" + data)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        for cut in (0, 1, 3_000):
            work = DownConversion([(descriptor, 6, len(data) - cut, 0, LARGE)], 3, LARGE, 0)
            while (size := work.step()) >= 0:
                assert size <= max(READ_BYTES, 64_000)
            offsets = [each[0] for each in told(work.results[0].messages)]
            assert offsets == list(range(len(offsets)))
            assert len(offsets) == base if not cut else 0 < len(offsets) < base
        # the file is shorter than it was
        assert convert_file(descriptor, len(data) + 500).code == 0
    finally:
        os.close(descriptor)
    assert convert_file(descriptor, 500).code == errors.KAFKA_STORAGE_ERROR


@pytest.mark.parametrize("mixed", [False, True])
def test_a_file_gives_the_same_answer_as_bytes(tmp_path, mixed):
    rng = random.Random(11)
    data, base = b"", 0
    for size in (10, 70_000, 5, 60_000, 300_000, 20, 131_000, 1, 64_000, 64_000, 64_000, 2):
        rows = [(b"k", rng.randbytes(size // 10), 5)] * 10
        data += batch(base, rows, rng.choice((0, 1)) if mixed else 0)
        base += 10
    path = tmp_path / "log"
    path.write_bytes(b"before" + data)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        for _ in range(100):
            offset, limit = rng.randrange(base), rng.choice((100, 5_000, 200_000, LARGE))
            size, version = rng.choice((len(data), rng.randrange(len(data)))), rng.randrange(4)
            (of_file,) = converted([(descriptor, 6, size, offset, limit)], version, LARGE)
            assert of_file == converted([(data, 0, size, offset, limit)], version, LARGE)[0]
    finally:
        os.close(descriptor)


def convert_file(descriptor, size):
    return converted([(descriptor, 6, size, 0, LARGE)], 3, LARGE)[0]


def test_a_large_batch_is_converted_in_bounded_steps():
    rows = [(None, bytes(1_000), 5)] * 20_000
    work = DownConversion([(batch(0, rows, codecs.GZIP), 0, 1 << 30, 0, LARGE)], 3, LARGE, 0)
    sizes = []
    while (size := work.step()) >= 0:
        sizes.append(size)
        assert work.memory < 4 << 20
    assert max(sizes) <= 1 << 20 and len(sizes) > 100
    assert len(told(work.results[0].messages)) == 20_000


@pytest.mark.parametrize("codec", [codecs.NONE, codecs.GZIP])
def test_damaged_batches_are_an_error_and_end_what_came_before(codec):
    good = batch(0)
    bad = bytearray(batch(4, codec=codec))
    bad[61:66] = b"\xff" * 5
    assert convert(bad, 3).code == errors.CORRUPT_MESSAGE
    result = convert(good + bytes(bad), 3)
    assert (result.code, len(told(result.messages))) == (0, 4)


@pytest.mark.parametrize("length", [-(2**31), -1, 0, 1, 4, 5, 48])
def test_an_impossible_length_is_an_error(length):
    bad = bytearray(batch(4))
    struct.pack_into(">i", bad, 8, length)
    assert convert(bad, 3).code == errors.CORRUPT_MESSAGE
    assert len(told(convert(batch(0) + bytes(bad), 3).messages)) == 4


def test_whatever_stands_in_a_log_ends_in_messages_or_an_error():
    rng = random.Random(17)
    good = [batch(0, codec=codec) for codec in range(4)] + [message_set(magic, ROWS) for magic in (0, 1)]
    for _ in range(1_500):
        bad = bytearray(rng.choice(good))
        for _ in range(rng.randrange(1, 5)):
            at = rng.randrange(len(bad))
            change = rng.randrange(3)
            if change == 0:
                bad[at] = rng.randrange(256)
            elif change == 1:
                del bad[at : at + rng.randrange(1, 20)]
                bad += b"x" * 20
            else:
                size = rng.choice((-1, 0, 13, 60, 2**31 - 1, len(bad)))
                struct.pack_into(">i", bad, min(at, len(bad) - 4), size)
        data = rng.choice(good) + bytes(bad)
        for version in range(4):
            result = convert(data, version, rng.randrange(5), rng.choice((0, 30, LARGE)))
            assert result.code in (0, errors.CORRUPT_MESSAGE, errors.UNSUPPORTED_COMPRESSION_TYPE)

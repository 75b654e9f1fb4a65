"""Message sets of magic 0 and 1 against kafka-python's builder of them."""

import struct
import zlib

import pytest
from kafka.record.legacy_records import LegacyRecordBatchBuilder

from kafkad.protocol.compression import LZ4, compress
from kafkad.protocol.errors import Malformed
from kafkad.protocol.legacy_records import LegacyEntry, read_entries

MESSAGES = [(b"key", b"value", 1000), (None, b"x" * 3000, 900), (b"", None, 1100)]


def built(magic: int, codec: int) -> bytes:
    if (magic, codec) == (0, LZ4):  # kafka-python needs a package more for its wrong header checksum
        frame = bytearray(compress(LZ4, built(0, 0)))
        frame[6] ^= 0x55
        message = struct.pack(">bbii", 0, LZ4, -1, len(frame)) + frame
        return struct.pack(">qiI", 0, len(message) + 4, zlib.crc32(message)) + message
    builder = LegacyRecordBatchBuilder(magic=magic, compression_type=codec, batch_size=1 << 20)
    for offset, (key, value, timestamp) in enumerate(MESSAGES):
        builder.append(offset, timestamp, key, value)
    return bytes(builder.build())


def rewrapped(data: bytes, offset: int, attributes: int | None = None) -> bytes:
    """A wrapper at another offset, as a broker assigns it."""
    wrapper = bytearray(data)
    struct.pack_into(">q", wrapper, 0, offset)
    if attributes is not None:
        wrapper[17] = attributes
    struct.pack_into(">I", wrapper, 12, zlib.crc32(wrapper[16:]))
    return bytes(wrapper)


def records_of(data: bytes) -> list[tuple[object, ...]]:
    entries = list(read_entries(data))
    assert all(entry.is_intact() for entry in entries)
    return [(r.key, r.value, r.timestamp, r.offset) for entry in entries for r in entry.records()]


@pytest.mark.parametrize("codec", range(4))
@pytest.mark.parametrize("magic", [0, 1])
def test_messages_come_back(magic, codec):
    expected = [
        (key, value, timestamp if magic else -1, offset)
        for offset, (key, value, timestamp) in enumerate(MESSAGES)
    ]
    assert records_of(rewrapped(built(magic, codec), 2) if codec else built(magic, codec)) == expected


def test_inner_offsets_of_magic_1_end_at_the_wrappers():
    assert [offset for *_, offset in records_of(rewrapped(built(1, 1), 52))] == [50, 51, 52]


def test_log_append_time_is_the_wrappers():
    data = rewrapped(built(1, 1), 2, 0x09)
    assert {timestamp for *_, timestamp, _ in records_of(data)} == {LegacyEntry(data).timestamp}


@pytest.mark.parametrize("codec", range(4))
@pytest.mark.parametrize("magic", [0, 1])
def test_cuts_and_flipped_bits_are_malformed_or_noticed(magic, codec):
    data = built(magic, codec)
    for size in range(len(data)):
        assert len(list(read_entries(data[:size]))) < len(MESSAGES)
    for position in range(len(data)):
        wrong = bytearray(data)
        wrong[position] ^= 0x41
        try:
            for entry in read_entries(wrong):
                assert len(entry.records()) <= len(MESSAGES)
        except Malformed as error:
            assert str(error)


def test_other_magics_are_malformed():
    data = bytearray(built(1, 0))
    data[16] = 2
    with pytest.raises(Malformed):
        list(read_entries(data))

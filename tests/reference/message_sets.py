"""Message sets of magic 0 and 1, written byte by byte as clients of before Kafka 0.11 wrote them, right and
wrong."""

import struct
import zlib
from collections.abc import Sequence

from kafkad.protocol import compression as codecs

Plain = tuple[bytes | None, bytes | None, int]  # key, value, timestamp


def sized(data: bytes | None) -> bytes:
    return struct.pack(">i", -1) if data is None else struct.pack(">i", len(data)) + data


def message(
    magic: int,
    key: bytes | None,
    value: bytes | None,
    timestamp: int = -1,
    *,
    offset: int = 0,
    attributes: int = 0,
    crc: int | None = None,
    behind: bytes = b"",
) -> bytes:
    """One message. `crc` replaces the right one; `behind` stands behind its value."""
    body = struct.pack(">bb", magic, attributes)
    if magic:
        body += struct.pack(">q", timestamp)
    body += sized(key) + sized(value) + behind
    crc = zlib.crc32(body) if crc is None else crc
    return struct.pack(">qiI", offset, len(body) + 4, crc) + body


def message_set(magic: int, messages: Sequence[Plain], first: int = 0) -> bytes:
    return b"".join(
        message(magic, key, value, timestamp, offset=first + number)
        for number, (key, value, timestamp) in enumerate(messages)
    )


def wrapper(
    magic: int,
    codec: int,
    inner: bytes,
    *,
    offset: int = 0,
    timestamp: int = -1,
    attributes: int = 0,
    packed: bytes | None = None,
) -> bytes:
    """`inner`, packed, as the value of one message; lz4 of magic 0 with its wrong checksum (KAFKA-3160)."""
    if packed is None:
        packed = codecs.compress(codec, inner)
        if codec == codecs.LZ4 and magic == 0:
            packed = packed[:6] + bytes([broken_lz4_checksum(packed[:6])]) + packed[7:]
    return message(magic, None, packed, timestamp, offset=offset, attributes=codec | attributes)


def broken_lz4_checksum(head: bytes) -> int:
    """Over the frame's magic and its descriptor; the right one leaves the magic out. By the package xxhash's
    algorithm for less than 16 bytes, written out."""
    one, two, three, four, five = 2654435761, 2246822519, 3266489917, 668265263, 374761393
    wide = 1 << 32
    value = (five + len(head)) % wide
    rest = head
    while len(rest) >= 4:
        value = (value + int.from_bytes(rest[:4], "little") * three) % wide
        value = ((value * 131072) % wide + value // 32768) * four % wide
        rest = rest[4:]
    for byte in rest:
        value = (value + byte * five) % wide
        value = ((value * 2048) % wide + value // 2097152) * one % wide
    for shift, prime in ((15, two), (13, three), (16, 1)):
        value = (value ^ (value >> shift)) * prime % wide
    return value >> 8 & 0xFF

"""The slow twin of `_native/wire/batch`: the same rules in plain Python, straight from Kafka's description.

`validate` takes the `records` field of a partition and answers the error code that a client gets, 0 for a
batch that is appended. It decompresses whole and reads record by record."""

import struct
from dataclasses import dataclass
from typing import Any

import crc32c

from kafkad.protocol import compression
from kafkad.protocol.errors import (
    CORRUPT_MESSAGE,
    INVALID_RECORD,
    INVALID_REQUEST,
    INVALID_TIMESTAMP,
    MESSAGE_TOO_LARGE,
    UNSUPPORTED_COMPRESSION_TYPE,
    Malformed,
)

HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_FIELDS = (
    *("base_offset", "length", "leader_epoch", "magic", "crc", "attributes", "last_offset_delta"),
    *("base_timestamp", "max_timestamp", "producer_id", "producer_epoch", "base_sequence", "records_count"),
)


@dataclass
class SlowRecord:
    timestamp: int
    offset_delta: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[bytes, bytes | None]]


class Lies(Exception):
    """The bytes are not records."""


class Bytes:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0

    def take(self, size: int) -> bytes:
        if size < 0 or size > len(self.data) - self.position:
            raise Lies
        self.position += size
        return self.data[self.position - size : self.position]

    def varint(self, bits: int = 32) -> int:
        raw = 0
        for i in range(5 if bits == 32 else 10):
            (byte,) = self.take(1)
            raw |= (byte & 0x7F) << 7 * i
            if byte < 0x80:
                raw &= (1 << bits) - 1
                return (raw >> 1) ^ -(raw & 1)
        raise Lies

    def sized(self) -> bytes | None:
        size = self.varint()
        return None if size < 0 else self.take(size)


def wrap64(value: int) -> int:
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def read_header(data: bytes) -> dict[str, int]:
    return dict(zip(HEADER_FIELDS, HEADER.unpack_from(data), strict=True))


def read_records(data: bytes, count: int, base_timestamp: int) -> list[SlowRecord]:
    """All records, or Lies."""
    stream = Bytes(data)
    records = []
    for _ in range(count):
        body = Bytes(stream.take(stream.varint()))
        body.take(1)
        timestamp = wrap64(base_timestamp + body.varint(64))
        offset_delta = body.varint()
        key, value = body.sized(), body.sized()
        headers_count = body.varint()
        if headers_count < 0 or headers_count > len(body.data) - body.position:
            raise Lies
        headers = []
        for _ in range(headers_count):
            name = body.sized()
            if name is None:
                raise Lies
            headers.append((name, body.sized()))
        if body.position != len(body.data):
            raise Lies
        records.append(SlowRecord(timestamp, offset_delta, key, value, headers))
    if stream.position != len(data):
        raise Lies
    return records


def validate(data: bytes, now_ms: int, *, rules: dict[str, Any] | None = None) -> int:
    asked: dict[str, Any] = {
        "max_message_bytes": 1048588,
        "log_append_time": False,
        "before_max_ms": (1 << 63) - 1,
        "after_max_ms": 3600000,
        "compacted": False,
        "transactions": False,
    }
    asked.update(rules or {})
    if len(data) >= 12 and struct.unpack_from(">i", data, 8)[0] < 14:
        return CORRUPT_MESSAGE
    if len(data) < 17:
        return INVALID_RECORD
    if data[16] > 2:
        return CORRUPT_MESSAGE
    length = struct.unpack_from(">i", data, 8)[0]
    if data[16] < 2 or length + 12 != len(data) or struct.unpack_from(">q", data)[0] != 0:
        return INVALID_RECORD
    if len(data) > asked["max_message_bytes"]:
        return MESSAGE_TOO_LARGE
    if len(data) < 61:
        return CORRUPT_MESSAGE
    header = read_header(data)
    if crc32c.crc32c(data[21:]) != header["crc"]:
        return CORRUPT_MESSAGE
    attributes = header["attributes"]
    count = header["records_count"]
    if attributes & 7 > 4:
        return UNSUPPORTED_COMPRESSION_TYPE
    if count <= 0 or header["last_offset_delta"] != count - 1 or attributes & 0x20:
        return INVALID_RECORD
    if header["producer_id"] >= 0 and header["base_sequence"] < 0:
        return INVALID_RECORD
    if attributes & 0x10 and not asked["transactions"]:
        return INVALID_REQUEST
    if attributes & 0x08:
        return INVALID_TIMESTAMP
    try:
        body = compression.decompress(attributes & 7, data[61:], 64 << 20)
    except Malformed:
        return CORRUPT_MESSAGE
    try:
        records = read_records(body, count, header["base_timestamp"])
    except Lies:
        return INVALID_RECORD
    codes = {record_code(record, now_ms, asked) for record in records}
    return INVALID_TIMESTAMP if INVALID_TIMESTAMP in codes else max(codes)


def record_code(record: SlowRecord, now_ms: int, asked: dict[str, Any]) -> int:
    if asked["compacted"] and record.key is None:
        return INVALID_RECORD
    if asked["log_append_time"] or record.timestamp == -1:
        return 0
    age = wrap64(now_ms - record.timestamp)  # as in Java
    return INVALID_TIMESTAMP if age > asked["before_max_ms"] or wrap64(-age) > asked["after_max_ms"] else 0

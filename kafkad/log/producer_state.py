"""Producer snapshots: the producer table of a partition at an offset, in Kafka's format
(ProducerStateManager).

`<offset>.snapshot`: version i16 = 1 | CRC-32C u32 of what follows | count i32 | entries of 46 bytes: producer
id i64, epoch i16, last sequence i32, last offset i64, offset delta i32, timestamp i64, coordinator epoch i32,
first offset of the open transaction i64 (-1: none). One is written at every roll, with the new segment's base
offset, and at a clean close. Replaying the log from a snapshot gives the table at any later offset.

Beware: producers expire by wall clock minus their last record's timestamp, also while loading; `now_ms` is an
argument. A snapshot has only the last batch of a producer, so right after a restart only that one is
recognised as a duplicate."""

import os
import struct
from collections.abc import Iterator
from contextlib import suppress

from kafkad._native.log.producer_table import ProducerTable
from kafkad._native.wire.crc32c import checksum
from kafkad.log.checkpoints import sync_directory, write_new
from kafkad.log.filenames import SNAPSHOT, segment_file
from kafkad.protocol.errors import Malformed

VERSION = 1
_HEAD = struct.Struct(">hIi")
_ENTRY = struct.Struct(">qhiqiqiq")
_COUNT_SIZE = 4
_CRC_END = 6  # the CRC covers the bytes after it
assert _ENTRY.size == 46
NO_PRODUCERS = _HEAD.pack(VERSION, checksum(bytes(4)), 0)  # the snapshot of most partitions

# producer_id, epoch, last_sequence, last_offset, offset_delta, timestamp, coordinator_epoch,
# transaction_start
ProducerRow = tuple[int, int, int, int, int, int, int, int]


def encode_snapshot(producers: ProducerTable) -> bytes:
    body = producers.entries()  # in C: it is written at a roll, on the loop
    return struct.pack(">hI", VERSION, checksum(body)) + body


def decode_snapshot(data: bytes) -> list[ProducerRow]:
    """Parse a snapshot. Raises Malformed."""
    if len(data) < _HEAD.size:
        raise Malformed("a producer snapshot is cut short")
    version, crc, count = _HEAD.unpack_from(data)
    if version != VERSION:
        raise Malformed(f"unknown producer snapshot version {version}")
    if checksum(data[_CRC_END:]) != crc:
        raise Malformed("the CRC of a producer snapshot is wrong")
    if count < 0 or len(data) != _HEAD.size + count * _ENTRY.size:
        raise Malformed("a producer snapshot does not hold what it announces")
    return list(_ENTRY.iter_unpack(data[_HEAD.size :]))


def producer_rows(producers: ProducerTable) -> Iterator[ProducerRow]:
    """The producers of this moment, one after the other."""
    return _ENTRY.iter_unpack(memoryview(producers.entries())[_COUNT_SIZE:])  # type: ignore[return-value]


def write_snapshot(directory: str, offset: int, producers: ProducerTable, *, sync: bool) -> str:
    """Write a snapshot and return its path. Without `sync` the next flush of the log syncs it. After OSError
    there is no such file, and the previous one is used."""
    path = segment_file(directory, offset, SNAPSHOT)
    try:
        write_new(path, encode_snapshot(producers), sync=sync)
    except OSError:
        with suppress(OSError):
            os.unlink(path)
        raise
    if sync:
        sync_directory(directory)
    return path


def load_snapshot(path: str, producers: ProducerTable, now_ms: int, expiration_ms: int) -> None:
    """Add the producers of a snapshot that have not expired. Raises Malformed, before any is added."""
    with open(path, "rb") as file:
        rows = decode_snapshot(file.read())
    for row in rows:
        if row[7] >= 0 or now_ms - row[5] < expiration_ms:
            producers.load(*row)

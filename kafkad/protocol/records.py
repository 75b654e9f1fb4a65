"""Record batches as objects, for the control plane, the command line and the client library.

`build_batch` builds one batch of `Record`s. `read_batches` cuts a buffer into `Batch`es, which have the
header fields as attributes; `records()` decompresses and decodes. `find_timestamp` and `find_max_timestamp`
find one record without decoding any. The produce and fetch path does not use this module: see
`_native/wire/batch` and `validation`.

Beware: the timestamps of the records of a LogAppendTime batch are its max_timestamp, whatever their deltas
are."""

import struct
from collections.abc import Generator, Iterable, Iterator
from typing import Any, Final

from kafkad._native.wire import records as native
from kafkad._native.wire.batch import BatchHeader, RecordWalk
from kafkad._native.wire.records import Record as Record
from kafkad._native.wire.records import write_header as write_header
from kafkad.protocol import compression as codecs
from kafkad.protocol.errors import Malformed
from kafkad.protocol.legacy_records import LegacyEntry

# attributes of a batch (COMPRESSION_MASK: a codec of `compression`)
COMPRESSION_MASK: Final = 0x07
TIMESTAMP_LOG_APPEND: Final = 0x08
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20

# kinds of control records (ControlRecordType)
ABORT: Final = 0
COMMIT: Final = 1
LEADER_CHANGE: Final = 2
SNAPSHOT_HEADER: Final = 3
SNAPSHOT_FOOTER: Final = 4
KRAFT_VERSION: Final = 5
KRAFT_VOTERS: Final = 6

HEADER_SIZE: Final = 61
LENGTH_OVERHEAD: Final = 12
MAGIC_AT: Final = 16
DECOMPRESSED_MAX: Final = 1 << 30  # one batch, read into memory as a whole

_CONTROL_KEY: Final = struct.Struct(">hh")  # version, kind
_MARKER_VALUE: Final = struct.Struct(">hi")  # version, coordinator epoch


class Batch(BatchHeader):
    """One batch of magic 2 in a buffer, with its header fields as attributes. The CRC is checked only on
    request."""

    __slots__ = ("_bytes",)

    def __init__(self, buffer: Any, position: int = 0) -> None:
        super().__init__(buffer, position)
        self._bytes = memoryview(buffer).cast("B")[position : position + self.size]

    @property
    def bytes(self) -> memoryview:
        """The whole batch."""
        return self._bytes

    def records(self) -> list[Record]:
        """Decode and return all records. Raise Malformed."""
        data: Any = self._bytes[HEADER_SIZE:]
        if self.compression:
            data = codecs.decompress(self.compression, data, DECOMPRESSED_MAX)
        return native.decode(self, data)

    def is_intact(self) -> bool:
        """Return whether the CRC matches the bytes."""
        return self.crc_matches(self._bytes)

    def __repr__(self) -> str:
        offsets = f"offsets {self.base_offset}-{self.last_offset}"
        return f"Batch({offsets}, {self.records_count} records, {self.size} bytes)"


def build_batch(
    records: Iterable[Record],
    *,
    base_offset: int = 0,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    leader_epoch: int = -1,
    compression: int = 0,
    compression_level: int | None = None,
    transactional: bool = False,
    control: bool = False,
    timestamp_type: int = 0,
) -> bytearray:
    """Build one batch. Offsets are base_offset + 0, 1, 2 … unless a record has its own (which must
    ascend)."""
    buffer, count, last_offset_delta, base_timestamp, max_timestamp = native.encode(records, base_offset)
    if count == 0:
        raise ValueError("a batch has at least one record")
    if compression:
        buffer = compressed_records(buffer, compression, compression_level)
    attributes = compression
    if timestamp_type:
        attributes |= TIMESTAMP_LOG_APPEND
    if transactional:
        attributes |= TRANSACTIONAL
    if control:
        attributes |= CONTROL
    write_header(
        buffer,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        attributes=attributes,
        last_offset_delta=last_offset_delta,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        records_count=count,
    )
    return buffer


def compressed_records(buffer: bytearray, compression: int, level: int | None = None) -> bytearray:
    """Compress the bytes after the room for a header. Return them after room for a header."""
    out = bytearray(HEADER_SIZE)
    out += codecs.compress(compression, memoryview(buffer)[HEADER_SIZE:], level)
    return out


def read_batches(buffer: Any) -> Iterator[Batch]:
    """Yield the batches of a buffer. Leave out a batch that the buffer's end cuts, because a Fetch response
    may end in one. Raise Malformed for an invalid length or magic."""
    view = memoryview(buffer).cast("B")
    position = 0
    while len(view) - position > MAGIC_AT:
        (length,) = struct.unpack_from(">i", view, position + 8)
        magic = view[position + MAGIC_AT]
        if magic != 2:
            raise Malformed(f"a record batch of magic {magic} at position {position}")
        if length < HEADER_SIZE - LENGTH_OVERHEAD:
            raise Malformed(f"a record batch of length {length} at position {position}")
        if length > len(view) - position - LENGTH_OVERHEAD:
            return
        yield Batch(view, position)
        position += LENGTH_OVERHEAD + length


# -- control records ---------------------------------------------------------------------------------------


def control_record(kind: int, value: bytes = b"", *, timestamp: int, version: int = 0) -> Record:
    """Return a record for a batch built with `control=True`. `value` is the encoded message of that kind."""
    return Record(key=_CONTROL_KEY.pack(version, kind), value=value, timestamp=timestamp)


def control_kind(record: Record) -> int:
    """Return the kind of a control batch's record: ABORT, COMMIT, LEADER_CHANGE … Raise Malformed."""
    if record.key is None or len(record.key) < _CONTROL_KEY.size:
        raise Malformed("a control record without its key")
    return int(_CONTROL_KEY.unpack_from(record.key)[1])


def end_marker(kind: int, coordinator_epoch: int, *, timestamp: int) -> Record:
    """Return the control record that ends a transaction: COMMIT or ABORT (EndTxnMarker, version 0)."""
    return control_record(kind, _MARKER_VALUE.pack(0, coordinator_epoch), timestamp=timestamp)


# -- one record in a batch, by time ------------------------------------------------------------------------


Search = Generator[None, None, tuple[int, int] | None]


def find_timestamp(buffer: Any, timestamp: int, from_offset: int = 0) -> tuple[int, int] | None:
    """Return (timestamp, offset) of the first record at or after both, in the one batch of `buffer`. Raise
    Malformed."""
    return _finish(seek_timestamp(buffer, timestamp, from_offset))


def find_max_timestamp(buffer: Any) -> tuple[int, int] | None:
    """Return (timestamp, offset) of the first record with the largest timestamp in the one batch of `buffer`,
    or None if no record has a timestamp. Raise Malformed."""
    return _finish(seek_max_timestamp(buffer))


def seek_timestamp(buffer: Any, timestamp: int, from_offset: int = 0) -> Search:
    """Do the same as `find_timestamp`, in steps of bounded work. The batch may be a message of magic 0 or
    1."""
    if _is_legacy(buffer):
        return (yield from LegacyEntry(buffer).seek(timestamp, from_offset))
    header = BatchHeader(buffer)
    walk = RecordWalk(header, target=timestamp, from_offset=from_offset)
    for chunk in _steps(header, buffer):
        if walk.feed(chunk):
            raise Malformed(f"the batch at offset {header.base_offset}: {walk.message}")
        if walk.found:
            break
        yield
    return walk.found


def seek_max_timestamp(buffer: Any) -> Search:
    """Do the same as `find_max_timestamp`, in steps of bounded work. The batch may be a message of magic 0 or
    1."""
    if _is_legacy(buffer):
        return (yield from LegacyEntry(buffer).seek(None))
    header = BatchHeader(buffer)
    walk = RecordWalk(header)
    for chunk in _steps(header, buffer):
        walk.feed(chunk)
        yield
    if walk.end():
        raise Malformed(f"the batch at offset {header.base_offset}: {header.message}")
    return walk.largest


def _is_legacy(buffer: Any) -> bool:
    view = memoryview(buffer).cast("B")
    return len(view) > MAGIC_AT and view[MAGIC_AT] < 2


def _steps(header: BatchHeader, buffer: Any) -> codecs.Chunks:
    data = memoryview(buffer).cast("B")[HEADER_SIZE : header.size]
    return codecs.steps(header.compression, data, codecs.CHUNK, codecs.Needs())


def _finish(search: Search) -> tuple[int, int] | None:
    while True:
        try:
            next(search)
        except StopIteration as end:
            found: tuple[int, int] | None = end.value
            return found

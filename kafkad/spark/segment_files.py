"""Read a broker's data directory from outside of the broker: find the files of a partition.

    <dir>/meta.properties
          replication-offset-checkpoint     high watermarks
          log-start-offset-checkpoint       log starts, if they are not a segment's base offset
          recovery-point-offset-checkpoint  up to where logs and indexes are on disk
          cleaner-offset-checkpoint         which partitions were compacted
          <topic>-<n>/partition.metadata    the topic's id
                      <base offset>.log     batches; .index and .timeindex have their positions, .txnindex and
                                            .snapshot the outcome of transactions

Nothing is written and nothing is locked, because the broker may be running. So each result is a snapshot, a
file may be gone when it is opened, and an index entry is used only if there is a batch at its position (a
crash leaves indexes half written; time indexes are used below the recovery point only).

Beware: the names from `listdir` are not a consistent snapshot. Kafka's cleaner renames `.cleaned` to `.swap`,
the old segments to `.deleted`, and then `.swap` to `.log`. So two listings must agree, and have no
`.swap`."""

from __future__ import annotations

import os
import struct
import time
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from kafkad._native.log.producer_table import ProducerTable
from kafkad._native.log.segment_recovery import replay_producers
from kafkad.log.checkpoints import (
    HIGH_WATERMARKS,
    LOG_START_OFFSETS,
    OFFSET_MAX,
    read_offsets,
    read_partition_metadata,
)
from kafkad.log.filenames import (
    INDEX,
    LOG,
    METADATA_TOPIC,
    SNAPSHOT,
    SWAP,
    TIME_INDEX,
    TXN_INDEX,
    offset_of,
    parse_directory,
    segment_file,
)
from kafkad.log.producer_state import load_snapshot
from kafkad.log.txn_index import read_txn_index
from kafkad.protocol.errors import Malformed
from kafkad.protocol.legacy_records import LegacyEntry
from kafkad.protocol.records import find_timestamp
from kafkad.spark.options import TopicPartition, shown

SETTLE_SECONDS = 10.0  # wait for a checkpoint to be written, and for the cleaner's renames
PAUSE_S = 0.1
SWAP_PAUSE_S = 0.003  # between two checks of a directory whose segments are exchanged

_HEADER = struct.Struct(">qiib")  # base offset, length, leader epoch (magic 0 and 1: CRC), magic
_MAX_TIMESTAMP = struct.Struct(">q")
MAX_TIMESTAMP_AT = 35
HEADER_SIZE, LENGTH_OVERHEAD = 61, 12
LEGACY_SIZE_MIN = 26

INDEX_PIECE = 64 << 10  # bytes of an index, read at a time
_ZEROS = bytes(INDEX_PIECE)


class DataLoss(ValueError):
    """Records of the plan are gone, or have changed."""


@dataclass(frozen=True)
class PartitionLog:
    """The directory of a partition. Can be pickled; what changes is read from disk each time."""

    topic: str
    partition: int
    directory: str
    topic_id: bytes | None

    @property
    def where(self) -> TopicPartition:
        return self.topic, self.partition

    @property
    def root(self) -> str:
        return os.path.dirname(self.directory)

    def checkpoint(self, name: str) -> int | None:
        return checkpoint(self.root, name).get(self.where)

    def bases(self) -> list[int]:
        """Return the base offsets of its segments at one moment. Raises DataLoss if the directory is gone, or
        belongs to another topic of that name."""
        deadline = time.monotonic() + SETTLE_SECONDS
        before: list[str] | None = None
        at_work: list[tuple[str, int]] = []
        while True:
            names = sorted(self._names())
            swaps = [name for name in names if name.endswith(SWAP)]
            if (found := self._inodes(swaps)) != at_work:  # one exchange may follow another
                deadline = time.monotonic() + SETTLE_SECONDS
                at_work = found
            # A file renamed during the listing may be missing under both names: two lists must be equal.
            if names == before and not swaps:
                return sorted(
                    base for name in names if name.endswith(LOG) and (base := offset_of(name)) is not None
                )
            if swaps and time.monotonic() > deadline:
                raise ValueError(
                    f"{self.directory} holds a compaction that was not finished ({swaps[0]}): the broker has "
                    "to be started once, which ends it"
                )
            if swaps:
                time.sleep(SWAP_PAUSE_S)
            before = names

    def _inodes(self, names: list[str]) -> list[tuple[str, int]]:
        """Return what distinguishes these files from later ones of the same names."""
        found = []
        for name in names:
            with suppress(FileNotFoundError):
                found.append((name, os.stat(os.path.join(self.directory, name)).st_ino))
        return found

    def _names(self) -> list[str]:
        try:
            names = os.listdir(self.directory)
            found = read_partition_metadata(self.directory)
        except FileNotFoundError:
            raise DataLoss(
                f"{shown(self.where)} is not in {self.root} any more: its topic was deleted"
            ) from None
        except Malformed as damaged:
            raise ValueError(str(damaged)) from None
        if found != self.topic_id and self.topic_id is not None:
            raise DataLoss(f"topic {self.topic} was deleted and made anew in {self.root}")
        return names

    def start(self, bases: list[int]) -> int:
        """The log start offset."""
        return max(bases[0] if bases else 0, self.checkpoint(LOG_START_OFFSETS) or 0)

    def high_watermark(self) -> int:
        """Return the checkpointed value. Raises ValueError if it is missing for a log with records."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while (found := self.checkpoint(HIGH_WATERMARKS)) is None:
            bases = self.bases()
            if not any(self._size(base) for base in bases):
                return self.start(bases)
            if time.monotonic() > deadline:
                raise ValueError(
                    f"{self.root}/{HIGH_WATERMARKS} does not say how far {shown(self.where)} is committed, "
                    "so none of it can be read; a broker that runs writes it every 5 s"
                )
            time.sleep(PAUSE_S)
        return found

    def _size(self, base: int) -> int:
        try:
            return os.stat(segment_file(self.directory, base, LOG)).st_size
        except FileNotFoundError:
            return 0

    def last_stable_offset(self, high_watermark: int) -> int:
        """Return the first offset of the oldest transaction open at the high watermark, or the high
        watermark."""
        bases = self.bases()
        producers = ProducerTable()
        at = bases[0] if bases else 0
        for offset in sorted(self._snapshots(), reverse=True):
            if offset <= high_watermark:
                try:
                    # a producer that would be expired (expiration 0) has no open transaction
                    load_snapshot(segment_file(self.directory, offset, SNAPSHOT), producers, OFFSET_MAX, 0)
                except (Malformed, FileNotFoundError):
                    producers = ProducerTable()
                    continue
                at = max(at, offset)
                break
        for base, following in zip(bases, [*bases[1:], OFFSET_MAX], strict=True):
            if following > at and base < high_watermark:
                replay_producers(segment_file(self.directory, base, LOG), producers, at, high_watermark)
        unstable = producers.first_unstable()
        return min(unstable, high_watermark) if unstable >= 0 else high_watermark

    def _snapshots(self) -> Iterator[int]:
        for name in os.listdir(self.directory):
            if name.endswith(SNAPSHOT) and (offset := offset_of(name)) is not None:
                yield offset

    def aborted(self, start: int, end: int) -> list[tuple[int, int, int]]:
        """Return (producer id, first offset, marker offset) of the aborted transactions in [start, end), with
        `end` at or below the last stable offset."""
        bases = self.bases()
        found = []
        for base, following in zip(bases, [*bases[1:], OFFSET_MAX], strict=True):
            if following <= start:
                continue
            for txn in read_txn_index(segment_file(self.directory, base, TXN_INDEX)):
                if txn.last_offset >= start and txn.first_offset < end:
                    found.append((txn.producer_id, txn.first_offset, txn.last_offset))
                if txn.last_stable_offset >= end:
                    return found
        return found


_checkpoints: dict[str, tuple[tuple[int, int, int], dict[TopicPartition, int]]] = {}


def checkpoint(root: str, name: str) -> dict[TopicPartition, int]:
    """Return a checkpoint file, read again if it was replaced. Raises ValueError if it is damaged."""
    path = os.path.join(root, name)
    try:
        status = os.stat(path)
        signature = (status.st_ino, status.st_mtime_ns, status.st_size)
        seen = _checkpoints.get(path)
        if seen is None or seen[0] != signature:
            seen = _checkpoints[path] = (signature, read_offsets(path))
        return seen[1]
    except FileNotFoundError:
        return {}
    except Malformed as damaged:
        raise ValueError(f"{path} is damaged: {damaged}") from None


class Segment:
    """One open .log file; its name may disappear meanwhile. A context manager. Raises FileNotFoundError."""

    def __init__(self, directory: str, base: int) -> None:
        self.directory = directory
        self.base = base
        self.path = segment_file(directory, base, LOG)
        self.fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)

    def __enter__(self) -> Segment:
        return self

    def __exit__(self, *exception: object) -> None:
        os.close(self.fd)

    @property
    def size(self) -> int:
        return os.fstat(self.fd).st_size

    def header(self, position: int) -> tuple[int, int, int] | None:
        """Return (first offset in the batch, size, magic) at a position; None for anything invalid."""
        data = os.pread(self.fd, _HEADER.size, position)
        if len(data) < _HEADER.size:
            return None
        offset, length, _, magic = _HEADER.unpack(data)
        least = HEADER_SIZE - LENGTH_OVERHEAD if magic == 2 else LEGACY_SIZE_MIN - LENGTH_OVERHEAD
        if not 0 <= magic <= 2 or length < least or offset < self.base:
            return None
        return offset, length + LENGTH_OVERHEAD, magic

    def offset_index(self) -> Index:
        """Entries (offset - base, position): the batch that ends with the offset begins at the position."""
        return Index(segment_file(self.directory, self.base, INDEX), struct.Struct(">ii"))

    def time_index(self) -> Index:
        """Entries (timestamp, offset - base): no record up to the offset is younger."""
        return Index(segment_file(self.directory, self.base, TIME_INDEX), struct.Struct(">qi"))

    def position_of(self, offset: int) -> int:
        """Return where to begin to find the batch that holds `offset`: at it, or before it."""
        if offset <= self.base:
            return 0
        index = self.offset_index()
        at = index.last_at_or_below(offset - self.base)
        if at >= 0:
            position: int = index[at][1]
            header = self.header(position)
            if header is not None and header[0] <= offset:
                return position
        return 0

    def first_at_or_after(self, timestamp: int, from_offset: int, below: int) -> int | None:
        """Return the offset of the first record that is not older, by walking over headers. Raises
        Malformed."""
        times = self.time_index()
        entry = times.last_at_or_below(timestamp - 1)
        at = self.position_of(self.base + times[entry][1]) if entry >= 0 else 0
        while (header := self.header(at)) is not None and header[0] < below:
            _, size, magic = header
            if magic < 2 or _MAX_TIMESTAMP.unpack(os.pread(self.fd, 8, at + 35))[0] >= timestamp:
                found = self._first_in(at, size, magic, timestamp, from_offset)
                if found is not None:
                    return found if found < below else None
            at += size
        return None

    def _first_in(self, at: int, size: int, magic: int, timestamp: int, from_offset: int) -> int | None:
        data = os.pread(self.fd, size, at)
        if len(data) < size:
            return None
        if magic < 2:
            for record in LegacyEntry(data).records():
                if record.timestamp >= timestamp and record.offset >= from_offset:
                    return record.offset
            return None
        found = find_timestamp(data, timestamp, from_offset)
        return found[1] if found else None


class Index:
    """An index file as it is now: pairs with ascending first numbers. Empty if there is no such file."""

    def __init__(self, path: str, entry: struct.Struct) -> None:
        self._entry = entry
        # An active segment's index is stretched with zeros, to 10 MB: stop reading where they begin
        pieces = []
        try:
            with open(path, "rb", buffering=0) as file:
                while (piece := file.read(INDEX_PIECE)) and piece != _ZEROS[: len(piece)]:
                    pieces.append(piece)
        except FileNotFoundError:
            pass
        self._data = b"".join(pieces)
        used = len(self._data.rstrip(b"\0"))
        self._count = min(-(-used // entry.size), len(self._data) // entry.size)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, at: int) -> tuple[Any, ...]:
        return self._entry.unpack_from(self._data, at * self._entry.size)

    def last_at_or_below(self, first: int) -> int:
        """Return the place of the last entry whose first number is <= `first`, or -1."""
        return bisect_right(range(self._count), first, key=lambda at: self[at][0]) - 1

    def first_behind(self, second: int, lowest: int = 0) -> int:
        """Return the place of the first entry from `lowest` on whose second number is >= `second`."""
        return bisect_left(range(self._count), second, lo=lowest, key=lambda at: self[at][1])


def logs_in(log_dir: str) -> dict[TopicPartition, PartitionLog]:
    """Return the partitions of all directories in `log_dir`. Raises ValueError for one that is no data
    directory."""
    found: dict[TopicPartition, PartitionLog] = {}
    for part in log_dir.split(","):
        root = os.path.abspath(part.strip().removeprefix("file://"))
        if not part.strip():
            continue
        try:
            names = os.listdir(root)
        except OSError as trouble:
            raise ValueError(f"option logDir: {root} cannot be read: {trouble.strerror}") from None
        if "meta.properties" not in names and HIGH_WATERMARKS not in names:
            raise ValueError(
                f"option logDir: {root} is no data directory of Kafka (it has no meta.properties)"
            )
        for name in names:
            parsed = parse_directory(name)
            if parsed is None or parsed[2] or parsed[0] == METADATA_TOPIC:
                continue
            topic, partition, _ = parsed
            directory = os.path.join(root, name)
            try:
                topic_id = read_partition_metadata(directory)
            except NotADirectoryError:
                continue
            except Malformed as damaged:
                raise ValueError(str(damaged)) from None
            if (topic, partition) in found:
                other = found[topic, partition].root
                raise ValueError(
                    f"option logDir: {name} lies in both {other} and {root}, which is one too many"
                )
            found[topic, partition] = PartitionLog(topic, partition, directory, topic_id)
    return found

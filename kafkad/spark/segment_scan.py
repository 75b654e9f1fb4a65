"""Read a broker's segment files without the broker: `option("logDir", "/data")`, for backfills on one machine
or on shared storage.

The directory may be kafkad's or JVM Kafka's. There may be several, separated by commas, as in log.dirs
(segment_files has their content). Planning resolves the same options as a read through a broker, with
`DirectoryOffsets` instead of the broker. It cuts ranges at the beginnings of batches, so that a task reads
about targetPartitionBytes. A task finds its first batch by the offset index and reads from segment to
segment: `plan` has offsets instead of files.

Committed data: Nothing at or above the checkpointed high watermark is read. A running broker writes the
checkpoint every 5 s (replica.high.watermark.checkpoint.interval.ms) and when it stops, so a scan may end 5 s
behind. If kafka.bootstrap.servers is set, too, the broker reports the end. After a broker was killed, data
that it had not checkpointed is not read, because only the broker's recovery decides what is valid. With
kafka.isolation.level=read_committed, the end is the first offset of an open transaction, from the last
producer snapshot and the batches after it.

Data loss: Bytes below the high watermark that are not complete, valid batches end the task with an error that
names file and offset. Records that retention deleted, a topic that was deleted or recreated, and a gap
between two segments of a partition that was never compacted are data loss: an error, or with
failOnDataLoss=false a line in the log. An open file stays readable after its deletion, so only later segments
can be lost.

Files are read with pread into one buffer. They are not mapped, because a file that shrinks under a mapping
kills the process, and copying into a buffer that stays in the cache costs no more than page faults."""

from __future__ import annotations

import logging
import os
import re
import time
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from kafkad.log.checkpoints import CLEANER_OFFSETS, OFFSET_MAX, RECOVERY_POINTS
from kafkad.log.filenames import LOG, METADATA_TOPIC, segment_file
from kafkad.protocol.errors import Malformed
from kafkad.spark import segment_files
from kafkad.spark.offsets import NO_OFFSET, OffsetReader, Partitions
from kafkad.spark.options import EARLIEST, LATEST, ReadOptions, TopicPartition, nearest, shown
from kafkad.spark.planning import Range, split
from kafkad.spark.ranges import whole_ranges
from kafkad.spark.record_columns import RecordColumns
from kafkad.spark.segment_files import DataLoss, PartitionLog, Segment, logs_in

log = logging.getLogger("kafkad.spark")

CHUNK = 1 << 20  # read at a time: fits a core's cache. A larger batch gets a buffer of its size

# Unused buffers of this process: touching new memory costs more than reading the data.
_buffers: list[bytearray] = []

INTERNAL = ("__consumer_offsets", "__transaction_state", "__share_group_state", METADATA_TOPIC)


# -- offsets ------------------------------------------------------------------------------------------------


class DirectoryOffsets(OffsetReader):
    """Finds partitions and their first and last offsets from files. With brokers given, these return the ends
    of the partitions, which are up to date."""

    def __init__(self, options: ReadOptions) -> None:
        assert options.log_dir is not None
        self.log_dir = options.log_dir
        self.logs = logs_in(options.log_dir)
        self.asks = bool(options.bootstrap)
        if self.asks:
            super().__init__(options)
        else:
            self.options = options

    @property
    def brokers(self) -> str:
        return self.log_dir

    def partitions(self, *, gone_is_loss: bool = False) -> list[TopicPartition]:
        options = self.options
        if options.pattern is not None:
            wanted = re.compile(options.pattern)
            return sorted(w for w in self.logs if wanted.search(w[0]) and w[0] not in INTERNAL)
        if options.assign is not None:
            for where in options.assign:
                if where not in self.logs:
                    raise ValueError(f"option assign names {shown(where)}, which is not in {self.log_dir}")
            return sorted(options.assign)
        topics = {topic for topic, _ in self.logs}
        for topic in options.subscribe or ():
            if topic not in topics:
                raise ValueError(f"there is no topic {topic} in {self.log_dir}{nearest(topic, topics)}")
        return sorted(where for where in self.logs if where[0] in (options.subscribe or ()))

    def list(self, asked: Mapping[TopicPartition, int]) -> Partitions:
        latest = {where for where, at in asked.items() if at == LATEST}
        ends = self._ends(latest)
        found: Partitions = {}
        for where, at in asked.items():
            if at == LATEST:
                found[where] = ends[where]
            elif at == EARLIEST:
                found[where] = self._earliest(where)
            elif at < 0:
                raise ValueError(
                    f"a time of {at} means nothing to files: say a time in milliseconds, -1 or -2"
                )
            else:
                found[where] = self._at_time(where, at)
        return found

    def list_both(self, partitions: Iterable[TopicPartition]) -> tuple[Partitions, Partitions]:
        partitions = list(partitions)
        # starts first: retention may raise one meanwhile, and the end is never below it
        earliest = {where: self._earliest(where) for where in partitions}
        latest = self._ends(set(partitions))
        return earliest, {where: max(end, earliest[where]) for where, end in latest.items()}

    def _earliest(self, where: TopicPartition) -> int:
        each = self.logs[where]
        return each.start(each.bases())

    def _ends(self, partitions: Iterable[TopicPartition]) -> Partitions:
        partitions = sorted(partitions)
        if self.asks and partitions:
            return self._retried(lambda: self._list(dict.fromkeys(partitions, LATEST)))
        return {where: self._end(where) for where in partitions}

    def _end(self, where: TopicPartition) -> int:
        each = self.logs[where]
        end = each.high_watermark()
        return each.last_stable_offset(end) if self.options.read_committed else end

    def _at_time(self, where: TopicPartition, timestamp: int) -> int:
        """Return as ListOffsets does: the first record at or after it, in the order of offsets."""
        each = self.logs[where]
        bases = each.bases()
        start, end = each.start(bases), self._ends([where])[where]
        flushed = each.checkpoint(RECOVERY_POINTS) or 0
        for base, following in zip(bases, [*bases[1:], OFFSET_MAX], strict=True):
            if following <= start or base >= end:
                continue
            try:
                with Segment(each.directory, base) as segment:
                    if following <= flushed:
                        times = segment.time_index()
                        if len(times) and times[len(times) - 1][0] < timestamp:
                            continue
                    found = segment.first_at_or_after(timestamp, start, end)
            except FileNotFoundError:
                continue  # retention was faster
            except Malformed as damaged:
                raise ValueError(f"{shown(where)}: {damaged}") from None
            if found is not None:
                return found
        return NO_OFFSET


# -- the plan -----------------------------------------------------------------------------------------------


class ScanPartition(InputPartition):
    """One task: offsets start <= offset < end of a partition in a directory."""

    def __init__(self, where: PartitionLog, start: int, end: int, options: ReadOptions) -> None:
        super().__init__(0)
        self.log = where
        self.start = start
        self.end = end
        self.headers = options.headers
        self.verify_crc = options.verify_crc
        self.read_committed = options.read_committed
        self.fail_on_data_loss = options.fail_on_data_loss

    def __repr__(self) -> str:
        return f"ScanPartition({shown(self.log.where)} in {self.log.root}, {self.start} to {self.end})"


def plan(options: ReadOptions, filters: Any = None) -> list[ScanPartition]:
    """Return the tasks of a batch read. `filters`: kafkad.spark.source.Filters, or None. Raises ValueError
    with one message for invalid options."""
    offsets = DirectoryOffsets(options)
    ranges = whole_ranges(options, offsets)
    if filters is not None:
        ranges = filters.cut(ranges, offsets)
    pieces = [
        piece
        for each in ranges
        for piece in by_bytes(offsets.logs[each.where], each, options.partition_bytes)
    ]
    pieces = split(pieces, records_max=options.partition_records_max, pieces_min=options.partitions_min)
    return [ScanPartition(offsets.logs[each.where], each.start, each.end, options) for each in pieces]


def by_bytes(each: PartitionLog, whole: Range, target: int) -> list[Range]:
    """Cut a range where batches begin, so that a piece has about `target` bytes of segments."""
    borders: list[int] = []
    bases = each.bases()
    read = 0  # bytes since the last border
    for base, following in zip(bases, [*bases[1:], OFFSET_MAX], strict=True):
        if following <= whole.start or base >= whole.end:
            continue
        if base > whole.start and read >= target:
            borders.append(base)
            read = 0
        try:
            with Segment(each.directory, base) as segment:
                found, read = batches_at(segment, whole, read, target)
        except FileNotFoundError:
            continue
        borders += found
    edges = [whole.start, *sorted(set(borders)), whole.end]
    return [whole._replace(start=a, end=b) for a, b in pairwise(edges)]


def batches_at(segment: Segment, whole: Range, read: int, target: int) -> tuple[list[int], int]:
    """Return the offsets of batches about `target` bytes apart, with `read` bytes before the segment; and the
    bytes after the last of them. Offsets above the range's end are ignored."""
    index = segment.offset_index()
    last = segment.position_of(whole.start)
    end = index.first_behind(segment.size)
    if whole.end < OFFSET_MAX:
        end = min(end, index.last_at_or_below(whole.end - segment.base) + 1)
    size = min(segment.size, index[end][1]) if end < len(index) else segment.size
    found: list[int] = []
    at = 0
    while (at := index.first_behind(last + max(1, target - read), at)) < end:
        position = index[at][1]
        header = segment.header(position)
        if header is not None and whole.start < header[0] < whole.end:
            found.append(header[0])
            last, read = position, 0
        at += 1
    return found, read + max(0, size - last)


# -- a task -------------------------------------------------------------------------------------------------


def columns_of(part: ScanPartition, batch_bytes: int = 1 << 20) -> RecordColumns:
    return RecordColumns(
        part.log.topic,
        part.log.partition,
        part.start,
        part.end,
        batch_bytes=batch_bytes,
        headers=part.headers,
        verify_crc=part.verify_crc,
        read_committed=part.read_committed,
    )


def read(part: ScanPartition, batch_bytes: int = 1 << 20) -> Iterator[pa.RecordBatch]:
    """Yield the records of a task, as Kafka's columns, in batches of at most this many bytes. Raises DataLoss
    if they are gone and failOnDataLoss is set."""
    columns = columns_of(part, batch_bytes)
    reader = SegmentReader(part, columns)
    try:
        while not columns.done and reader.begin():
            with reader.segment:
                yield from reader.batches()
    finally:
        if len(reader.buffer) == CHUNK and not _buffers:
            _buffers.append(reader.buffer)
    columns.finish()
    while (batch := columns.take()) is not None:
        yield pa.record_batch(batch)


class SegmentReader:
    """Walks from segment to segment, by their names at that time."""

    def __init__(self, part: ScanPartition, columns: RecordColumns) -> None:
        self.part = part
        self.columns = columns
        self.buffer = _buffers.pop() if _buffers else bytearray(CHUNK)
        self.segment: Segment
        self.behind = (-1, -1)  # base offset and inode of the segment that was read completely

    def begin(self) -> bool:
        """Open the segment that holds the next offset. False if the rest is lost, and that is allowed."""
        while True:
            try:
                bases = self.part.log.bases()
            except DataLoss as gone:
                self._lost(str(gone), self.part.end)
                return False
            position = self.columns.position
            start = self.part.log.start(bases)
            if position < start:
                self._lost(
                    f"offsets {position} to {min(start, self.part.end) - 1} of {self._where} have aged out",
                    start,
                )
                if self.columns.done:
                    return False
                continue
            at = bisect_right(bases, position) - 1
            if at >= 0 and self._is_behind(bases[at]):  # a gap before the next segment
                at += 1
                if at == len(bases):
                    self._lost(f"{self._where} ends at offset {position}, {self._below}", self.part.end)
                    return False
                if not self._is_compacted():
                    self._lost(
                        f"offsets {position} to {bases[at] - 1} of {self._where} are missing", bases[at]
                    )
                self.columns.skip_to(bases[at])
                if self.columns.done:
                    return False
            if at < 0:
                self._lost(f"{self._where} has no segments, {self._below}", self.part.end)
                return False
            try:
                self.segment = Segment(self.part.log.directory, bases[at])
            except FileNotFoundError:
                continue  # deleted after it was listed; list again
            return True

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the open segment's part of the range."""
        columns, part, segment = self.columns, self.part, self.segment
        aborted = part.log.aborted(columns.position, part.end) if part.read_committed else []
        at = segment.position_of(columns.position)
        os.posix_fadvise(segment.fd, at, 0, os.POSIX_FADV_SEQUENTIAL)
        have = 0  # bytes in the buffer: the beginning of a batch that the last read truncated
        while not columns.done:
            more = os.preadv(segment.fd, [memoryview(self.buffer)[have:]], at + have)
            have += more
            if have == 0:
                break
            try:
                columns.feed(memoryview(self.buffer)[:have], aborted)
                while (batch := columns.take()) is not None:
                    yield pa.record_batch(batch)
            except Malformed as damaged:
                if columns.position < self.part.end:
                    raise self._damaged(str(damaged)) from None
                raise
            if columns.done:
                return
            used = columns.consumed
            at += used
            have -= used
            if used:
                view = memoryview(self.buffer)
                view[:have] = view[used : used + have]
                continue
            header = segment.header(at)
            if header is None or more == 0 or at + header[1] > segment.size:
                # the last batch is truncated, or invalid
                raise self._damaged(f"no whole batch stands at position {at}")
            if header[1] > len(self.buffer):
                self.buffer = bytearray(header[1])
                have = 0
        self.behind = (segment.base, os.fstat(segment.fd).st_ino)

    # -- errors

    @property
    def _where(self) -> str:
        return shown(self.part.log.where)

    @property
    def _below(self) -> str:
        return f"below its high watermark (the plan goes to {self.part.end})"

    def _damaged(self, how: str) -> DataLoss:
        # Rows of the previous batches are right, and may have been returned; nothing beyond is guessed.
        at = self.columns.position
        return DataLoss(f"{self.segment.path} is damaged below the high watermark, at offset {at}: {how}")

    def _is_behind(self, base: int) -> bool:
        # by inode, too: a segment merged by the cleaner has the name of the first one
        try:
            return self.behind == (base, os.stat(segment_file(self.part.log.directory, base, LOG)).st_ino)
        except FileNotFoundError:
            return False

    def _is_compacted(self) -> bool:
        """Return whether it was compacted, perhaps just now: the cleaner writes the checkpoint at the end."""
        deadline = time.monotonic() + segment_files.SETTLE_SECONDS
        while self.part.log.checkpoint(CLEANER_OFFSETS) is None:
            if time.monotonic() > deadline:
                return False
            time.sleep(segment_files.PAUSE_S)
        return True

    def _lost(self, what: str, go_on_at: int) -> None:
        if self.part.fail_on_data_loss:
            raise DataLoss(f"{what}: with the option failOnDataLoss=false the read goes on without them")
        log.warning("%s; the read goes on without them, since failOnDataLoss is false", what)
        self.columns.skip_to(go_on_at)

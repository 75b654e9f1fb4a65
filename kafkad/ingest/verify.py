"""Verify: compare a table with the broker, offset by offset.

For each partition, the table has a set of offsets (only _topic, _partition and _offset are read). The broker
has the offsets from the log's start, or from the table's first offset, to the table's last one. Each
difference has a name:

    twice         the table has an offset more than once
    foreign       the table has an offset beyond the log's end: the topic was recreated, or the log cut
    missing       offsets in between that the table does not have; each run is fetched from the broker:
      dlq         the record could not be decoded and is in the dead letter queue
      hole        the log has no record there, either: a control batch, an aborted transaction, compaction
      expired     the log begins after it, so the record cannot be checked any more
      left out    the pipeline has SQL or dedup, which may drop rows; the record is in the log
      lost        the record is in the log and not in the table

The table is clean if nothing is twice, foreign or lost. Records after the table's end are the *lag*, not a
loss. An offset that is both in the DLQ and in the table is counted as twice.

Limits: Values are not compared. A recreated topic that has grown longer than the old one is not recognised.
Rows that another program deletes by marks (Delta's deletion vectors, Iceberg's delete files) count as
present. If SQL may create several rows from a record, repeated offsets are accepted.

The files are a snapshot (`held_by`), so it may run at the same time as a run, a compaction and a replay.

Memory: an offset is a bit (`OffsetSet`: pages of 8 KiB for 65,536 offsets, runs for full pages). So a billion
offsets need a few hundred KiB without gaps, and 128 MiB with gaps everywhere.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kafkad.ingest.file_offsets import file_offsets
from kafkad.ingest.table import FileEntry, Runs, Table, TableError, TopicPartition, merged

if TYPE_CHECKING:
    import pyarrow as pa

PAGE = 1 << 16
RUNS_ONE_BY_ONE = 100  # of one array; a run costs as much as a page
ATTEMPTS = 10  # to read a table that is compacted meanwhile
RUNS_TOLD_MAX = 20  # of each kind and partition, in the result


class OffsetSet:
    """Offsets that were seen, and those that were seen more than once."""

    def __init__(self) -> None:
        self.pages: dict[int, bytearray | None] = {}  # number -> a bit per offset, None: all of them
        self.count = 0
        self.twice = 0
        self.twice_runs: Runs = []

    def add(self, offsets: pa.Array) -> None:
        """Add offsets in any order."""
        import pyarrow as pa
        from pyarrow import compute

        if len(offsets) == 0:
            return
        first, last = offsets[0].as_py(), offsets[-1].as_py()
        if last - first + 1 == len(offsets):
            steps = compute.subtract(offsets[1:], offsets[:-1])
            if len(offsets) == 1 or compute.all(compute.equal(steps, 1)).as_py():
                self.add_run(first, last + 1)
                return
        ordered = compute.sort_indices(offsets)
        values = compute.take(offsets, ordered)
        breaks = compute.not_equal(compute.subtract(values[1:], values[:-1]), 1)
        cuts = [0, *(at + 1 for at in compute.indices_nonzero(breaks).to_pylist()), len(values)]
        if len(cuts) > RUNS_ONE_BY_ONE:
            self._add_sorted(values)
            return
        starts = values.take(pa.array(cuts[:-1])).to_pylist()
        for start, begin, end in zip(starts, cuts[:-1], cuts[1:], strict=True):
            self.add_run(start, start + end - begin)

    def _add_sorted(self, values: pa.Array) -> None:
        """Add many short runs, a page at a time: typical of a table partitioned by record contents."""
        import numpy as np

        self.count += len(values)
        offsets = values.to_numpy()
        pages = offsets // PAGE
        for part in np.split(offsets, np.flatnonzero(np.diff(pages)) + 1):
            number = int(part[0]) // PAGE
            times = np.bincount(part - number * PAGE, minlength=PAGE)
            page = self.pages.get(number, bytes(PAGE // 8))
            whole = np.full(PAGE // 8, 255, np.uint8) if page is None else np.frombuffer(page, np.uint8)
            have = np.unpackbits(whole, bitorder="little").astype(bool)
            again = times - ((times > 0) & ~have)
            if again.any():
                self.twice += int(again.sum())
                where = int.from_bytes(np.packbits(again > 0, bitorder="little").tobytes(), "little")
                room = RUNS_TOLD_MAX - len(self.twice_runs)
                for start, end in itertools.islice(bits(where), room):
                    self.twice_runs.append((number * PAGE + start, number * PAGE + end))
            have |= times > 0
            packed = bytearray(np.packbits(have, bitorder="little").tobytes())
            self.pages[number] = None if have.all() else packed

    def add_run(self, start: int, end: int) -> None:
        """Add [start, end), each once."""
        self.count += end - start
        while start < end:
            number, at = divmod(start, PAGE)
            until = min(end - number * PAGE, PAGE)
            self._add_to_page(number, at, until)
            start = number * PAGE + until

    def _add_to_page(self, number: int, start: int, end: int) -> None:
        page = self.pages.get(number, b"")
        if page is None:
            self._twice(number, start, end)
            return
        if start == 0 and end == PAGE and number not in self.pages:
            self.pages[number] = None
            return
        if not isinstance(page, bytearray):
            page = self.pages[number] = bytearray(PAGE // 8)
        have = int.from_bytes(page, "little")
        new = ((1 << (end - start)) - 1) << start
        if both := have & new:
            for first, behind in bits(both):
                self._twice(number, first, behind)
        have |= new
        if have == (1 << PAGE) - 1:
            self.pages[number] = None
        else:
            page[:] = have.to_bytes(PAGE // 8, "little")

    def _twice(self, number: int, start: int, end: int) -> None:
        self.twice += end - start
        if len(self.twice_runs) < RUNS_TOLD_MAX:
            self.twice_runs.append((number * PAGE + start, number * PAGE + end))

    def runs(self) -> Runs:
        """Return the runs, in order."""
        found: Runs = []
        for number in sorted(self.pages):
            page = self.pages[number]
            pieces = [(0, PAGE)] if page is None else bits(int.from_bytes(page, "little"))
            for start, end in pieces:
                start, end = start + number * PAGE, end + number * PAGE
                if found and found[-1][1] == start:
                    found[-1] = found[-1][0], end
                else:
                    found.append((start, end))
        return found


def bits(value: int) -> Iterator[tuple[int, int]]:
    """Yield (start, end) of the runs of ones."""
    at = 0
    while value:
        zeros = (value & -value).bit_length() - 1
        value >>= zeros
        ones = (~value & (value + 1)).bit_length() - 1
        yield at + zeros, at + zeros + ones
        value >>= ones
        at += zeros + ones


@dataclass
class PartitionResult:
    """The result for one topic-partition. Runs are (start, end), the first RUNS_TOLD_MAX of each."""

    topic: str
    partition: int
    start: int = 0  # the compared range begins here
    end: int = 0  # and ends here (excluded)
    log_start: int = 0
    log_end: int = 0
    rows: int = 0
    in_dlq: int = 0
    holes: int = 0
    expired: int = 0
    left_out: int = 0
    twice: int = 0
    foreign: int = 0
    lost: int = 0
    lag: int = 0
    lost_runs: Runs = field(default_factory=list)
    twice_runs: Runs = field(default_factory=list)
    foreign_runs: Runs = field(default_factory=list)

    @property
    def clean(self) -> bool:
        return not (self.twice or self.foreign or self.lost)


@dataclass
class Verified:
    """The result. `exit_code`: 0 clean, 1 not."""

    partitions: list[PartitionResult]
    unplaced: int = 0  # rows of the table without their offset

    @property
    def clean(self) -> bool:
        return self.unplaced == 0 and all(each.clean for each in self.partitions)

    @property
    def exit_code(self) -> int:
        return 0 if self.clean else 1

    def to_json(self) -> str:
        told = {
            "clean": self.clean,
            "unplaced": self.unplaced,
            "partitions": [{**asdict(each), "clean": each.clean} for each in self.partitions],
        }
        return json.dumps(told)

    def rich_table(self) -> Any:
        """Return a table for a terminal."""
        from rich.table import Table as Shown

        names = ["rows", "in_dlq", "holes", "left_out", "expired", "lag", "twice", "foreign", "lost"]
        shown = Shown(title="clean" if self.clean else "not clean", title_justify="left")
        shown.add_column("partition")
        shown.add_column("offsets", justify="right")
        for name in names:
            shown.add_column(name.replace("_", " "), justify="right")
        for each in self.partitions:
            counts = [f"{getattr(each, name):,}" for name in names]
            shown.add_row(f"{each.topic}-{each.partition}", f"{each.start:,} to {each.end - 1:,}", *counts)
        if len(self.partitions) > 1:
            shown.add_section()
            total = [f"{sum(getattr(each, name) for each in self.partitions):,}" for name in names]
            shown.add_row("all", "", *total)
        return shown

    def sentences(self) -> list[str]:
        """Return the problems, one message each."""
        told = []
        for each in self.partitions:
            where = f"{each.topic}-{each.partition}"
            for name, runs in (
                ("is lost", each.lost_runs),
                ("is there twice", each.twice_runs),
                ("is none of the log's", each.foreign_runs),
            ):
                for start, end in runs[:3]:
                    offsets = f"offset {start}" if end == start + 1 else f"offsets {start} to {end - 1}"
                    told.append(
                        f"{offsets} of {where} {name if end == start + 1 else name.replace('is', 'are', 1)}"
                    )
        if self.unplaced:
            told.append(f"{self.unplaced} rows do not say which topic, partition and offset they are from")
        return told


class Broker:
    """What verify needs from a broker: log start and end, and which offsets of a range have records."""

    def __init__(self, bootstrap: str, client_config: dict[str, str] | None = None) -> None:
        self.bootstrap = bootstrap
        self.client_config = {k.removeprefix("kafka."): v for k, v in (client_config or {}).items()}

    def bounds(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        """Return (log start, high watermark) of the existing partitions."""
        from kafkad.client.offsets import EARLIEST, LATEST, list_offsets
        from kafkad.protocol.errors import UNKNOWN_TOPIC_OR_PARTITION, KafkaError
        from kafkad.spark.connections import cluster_of

        by_topic: dict[str, list[int]] = {}
        for topic, partition in partitions:
            by_topic.setdefault(topic, []).append(partition)
        found: dict[TopicPartition, tuple[int, int]] = {}
        with cluster_of(self.bootstrap, self.client_config) as cluster:
            for topic, wanted in by_topic.items():
                try:
                    there = set(cluster.partitions(topic))
                except KafkaError as trouble:
                    if trouble.code != UNKNOWN_TOPIC_OR_PARTITION:
                        raise
                    continue
                asked = [each for each in wanted if each in there]
                first = list_offsets(cluster, topic, dict.fromkeys(asked, EARLIEST))
                last = list_offsets(cluster, topic, dict.fromkeys(asked, LATEST))
                found |= {(topic, each): (first[each], last[each]) for each in asked}
        return found

    def records(self, topic: str, partition: int, start: int, end: int) -> Iterator[pa.Array]:
        """Yield the offsets with records in [start, end), for a reader with the pipeline's isolation.level.
        The range is below the high watermark.
        """
        from kafkad.spark.range_reader import READ_UNCOMMITTED, RangeReader

        reader = RangeReader(
            self.bootstrap,
            self.client_config,
            topic,
            partition,
            start,
            end,
            isolation=self.client_config.get("isolation.level", READ_UNCOMMITTED),
            fail_on_data_loss=False,
            fetch_bytes=1 << 20 if end - start < 10_000 else 8 << 20,
        )
        for batch in reader:
            yield batch.column("offset")


Held = dict[TopicPartition, OffsetSet]


def held_by(table: Table) -> tuple[Held, Held, int]:
    """Return (offsets in the table, offsets in its DLQ, rows of either without offsets), at one moment. If a
    compaction or a replay removes a file meanwhile, start again. Raises TableError if the table names a
    missing file.
    """
    missing, before = FileNotFoundError(), None
    for _ in range(ATTEMPTS):
        files, letters = now = table.settled_files()
        try:
            rows, unplaced = offsets_in(table.root, files)
            bad, more = offsets_in(table.dlq_root, letters)
            return rows, bad, unplaced + more
        except FileNotFoundError as gone:
            missing = gone
            if now == before:
                break
        before = now
    raise TableError(f"the table names a file that is gone, somebody deleted it: {missing}") from missing


def offsets_in(root: Path, files: Iterable[FileEntry]) -> tuple[Held, int]:
    """Return (offsets by topic-partition, rows without offsets)."""
    found: Held = {}
    unplaced = 0
    for file in files:
        known = dict(file.partition)
        for topic, partition, offsets in file_offsets(root / file.path, known):
            if topic is None or partition is None:
                unplaced += len(offsets)
                continue
            unplaced += offsets.null_count
            found.setdefault((topic, partition), OffsetSet()).add(offsets.drop_null())
    return found, unplaced


def verify(
    table: Table,
    broker: Any,
    *,
    drops_rows: bool = False,
    repeats_rows: bool = False,
    starts: dict[TopicPartition, int] | None = None,
    ends: dict[TopicPartition, int] | None = None,
) -> Verified:
    """Compare the table with the broker (a `Broker`, or an object like it).

    drops_rows: the pipeline has SQL or dedup, which may leave records out. repeats_rows: its SQL may make
    several rows of a record. starts, ends: where the pipeline began and how far it is (its checkpoint);
    without them a partition is compared from the table's first offset to its last, and records missing before
    or after are not noticed.
    """
    held, letters, unplaced = held_by(table)
    keys = sorted(held.keys() | letters.keys() | (ends or {}).keys())
    bounds = broker.bounds(keys)
    results = []
    for key in keys:
        result = PartitionResult(*key)
        rows, dlq = held.get(key, OffsetSet()), letters.get(key, OffsetSet())
        have_rows, have_dlq = rows.runs(), dlq.runs()
        have = merged([*have_rows, *have_dlq])
        result.rows, result.in_dlq = rows.count, dlq.count
        if not repeats_rows:
            both = common(have_rows, have_dlq)
            result.twice = rows.twice + dlq.twice + size_of(both)
            result.twice_runs = sorted([*rows.twice_runs, *dlq.twice_runs, *both])[:RUNS_TOLD_MAX]
        result.log_start, result.log_end = bounds.get(key, (0, 0))
        first = have[0][0] if have else result.log_start
        last = have[-1][1] if have else 0
        result.start = (starts or {}).get(key, first)
        result.end = max((ends or {}).get(key, 0), last)
        result.lag = max(0, result.log_end - result.end)
        foreign = without(have, [(0, result.log_end)])
        result.foreign, result.foreign_runs = size_of(foreign), foreign[:RUNS_TOLD_MAX]
        missing = without([(result.start, min(result.end, result.log_end))], have)
        result.expired = size_of(common(missing, [(0, result.log_start)]))
        for start, end in grouped(without(missing, [(0, result.log_start)])):
            there = OffsetSet()
            for offsets in broker.records(*key, start, end):
                there.add(offsets)
            # short runs that were fetched together may include offsets that the table has
            real = common(there.runs(), common(missing, [(start, end)]))
            result.holes += size_of(common(missing, [(start, end)])) - size_of(real)
            if drops_rows:
                result.left_out += size_of(real)
            else:
                result.lost += size_of(real)
                result.lost_runs += real[: RUNS_TOLD_MAX - len(result.lost_runs)]
        results.append(result)
    return Verified(results, unplaced)


# -- runs ----------------------------------------------------------------------------------------------------

NEAR = 1000  # runs at most this far apart are fetched together


def grouped(runs: Runs) -> Runs:
    """Return the ranges to fetch for these runs."""
    out: Runs = []
    for start, end in runs:
        if out and start - out[-1][1] < NEAR:
            out[-1] = out[-1][0], end
        else:
            out.append((start, end))
    return out


def size_of(runs: Runs) -> int:
    return sum(end - start for start, end in runs)


def common(one: Runs, other: Runs) -> Runs:
    """Return the intersection. Runs are sorted and disjoint."""
    out: Runs = []
    i = j = 0
    while i < len(one) and j < len(other):
        start, end = max(one[i][0], other[j][0]), min(one[i][1], other[j][1])
        if start < end:
            out.append((start, end))
        if one[i][1] < other[j][1]:
            i += 1
        else:
            j += 1
    return out


def without(one: Runs, other: Runs) -> Runs:
    """Return the part of `one` that is not in `other`."""
    out: Runs = []
    j = 0
    for start, end in one:
        while j < len(other) and other[j][1] <= start:
            j += 1
        k = j
        while start < end and k < len(other) and other[k][0] < end:
            if start < other[k][0]:
                out.append((start, other[k][0]))
            start = max(start, other[k][1])
            k += 1
        if start < end:
            out.append((start, end))
    return out

"""Reading segment files, over directories made by hand: what is committed, damaged, lost.

`Directory` writes a data directory as a broker would: segments with batches, indexes, checkpoints. The scan
is then compared with what went in."""

import datetime
import os
import pickle
import random
import struct
import time
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from kafka.record.legacy_records import LegacyRecordBatchBuilder

from kafkad.log.checkpoints import (
    CLEANER_OFFSETS,
    HIGH_WATERMARKS,
    LOG_START_OFFSETS,
    RECOVERY_POINTS,
    write_offsets,
    write_partition_metadata,
)
from kafkad.log.filenames import INDEX, LOG, SNAPSHOT, TIME_INDEX, TXN_INDEX, segment_file
from kafkad.log.txn_index import AbortedTxn, encode_entry
from kafkad.protocol.records import ABORT, COMMIT, Record, build_batch, end_marker
from kafkad.spark import segment_files, segment_scan
from kafkad.spark.options import read_options
from kafkad.spark.segment_files import DataLoss
from kafkad.spark.source import Filters

TOPIC_ID = b"0123456789abcdef"
T0 = 1_700_000_000_000


class Directory:
    """A data directory with one partition `t-0`, batch by batch."""

    def __init__(self, root, name="t-0", topic_id=TOPIC_ID):
        self.root = root
        self.path = root / name
        self.path.mkdir(parents=True)
        (root / "meta.properties").write_text("version=1\n")
        write_partition_metadata(str(self.path), topic_id)
        self.key = (name.rpartition("-")[0], int(name.rpartition("-")[2]))
        self.next = 0
        self.base = 0
        self.rows = []  # (offset, timestamp, key, value) of all records that a consumer may see
        self.roll(0)

    def file(self, suffix, base=None):
        return segment_file(str(self.path), self.base if base is None else base, suffix)

    def roll(self, base=None):
        self.base = self.next if base is None else base
        self.next = self.base
        self.newest = self.told = -1  # timestamps: of its batches, of its time index
        for suffix in (LOG, INDEX, TIME_INDEX):
            open(self.file(suffix), "ab").close()

    def raw(self, data, last, timestamp, indexed=True):
        """Appends bytes that hold a batch with this last offset."""
        position = os.path.getsize(self.file(LOG))
        with open(self.file(LOG), "ab") as file:
            file.write(data)
        if indexed:
            with open(self.file(INDEX), "ab") as file:
                file.write(struct.pack(">ii", last - self.base, position))
            if max(timestamp, self.newest) > self.told:
                self.told = max(timestamp, self.newest)  # of all batches so far, also those between entries
                with open(self.file(TIME_INDEX), "ab") as file:
                    file.write(struct.pack(">qi", self.told, last - self.base))
        self.newest = max(timestamp, self.newest)
        self.next = last + 1

    def append(self, values, timestamps=None, indexed=True, seen=True, **how):
        timestamps = timestamps or [T0 + self.next + n for n in range(len(values))]
        records = [
            Record(b"k%d" % (self.next + n), value, None, timestamp)
            for n, (value, timestamp) in enumerate(zip(values, timestamps, strict=True))
        ]
        data = build_batch(records, base_offset=self.next, **how)
        if seen:
            self.rows += [
                (self.next + n, record.timestamp, record.key, record.value)
                for n, record in enumerate(records)
            ]
        self.raw(data, self.next + len(values) - 1, max(timestamps), indexed)

    def marker(self, kind, producer_id):
        record = end_marker(kind, 0, timestamp=T0 + self.next)
        data = build_batch(
            [record], base_offset=self.next, producer_id=producer_id, producer_epoch=0, transactional=True,
            control=True,
        )  # fmt: skip
        self.raw(data, self.next, T0 + self.next)

    def commit(self, high_watermark=None, log_start=None, recovery_point=None):
        """Writes the checkpoints; returns self."""
        offsets = {HIGH_WATERMARKS: self.next if high_watermark is None else high_watermark}
        offsets[RECOVERY_POINTS] = 0 if recovery_point is None else recovery_point
        if log_start is not None:
            offsets[LOG_START_OFFSETS] = log_start
        for name, offset in offsets.items():
            write_offsets(str(self.root / name), {self.key: offset})
        return self

    def options(self, **options):
        return read_options({"logDir": str(self.root), "topic": "t"} | options, streaming=False)

    def plan(self, filters=None, **options):
        return segment_scan.plan(self.options(**options), filters)

    def scan(self, filters=None, **options):
        parts = [pickle.loads(pickle.dumps(part)) for part in self.plan(filters, **options)]
        for part, following in pairwise(parts):
            assert part.end == following.start  # no offset is left out, none is twice
        return rows_of(batch for part in parts for batch in segment_scan.read(part))


def rows_of(batches):
    rows = []
    for batch in batches:
        times = batch.column("timestamp").cast(pa.int64()).to_pylist()
        rows += [
            (offset, time // 1000, key, value)
            for offset, time, key, value in zip(
                batch.column("offset").to_pylist(), times, batch.column("key").to_pylist(),
                batch.column("value").to_pylist(), strict=True,
            )
        ]  # fmt: skip
    return rows


@pytest.fixture
def directory(tmp_path):
    return Directory(tmp_path / "data")


def filled(directory, segments=4, batches=6, records=5, **how):
    for segment in range(segments):
        if segment:
            directory.roll()
        for _ in range(batches):
            directory.append([b"v%d" % (directory.next + n) for n in range(records)], **how)
    return directory.commit()


# -- what is read -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", range(5))
def test_all_that_is_committed_is_read_in_its_order(directory, codec):
    filled(directory, compression=codec)
    assert directory.scan() == directory.rows
    assert directory.scan(targetPartitionBytes="200") == directory.rows


def test_tasks_have_about_the_bytes_that_were_asked_for(directory):
    filled(directory, segments=5, batches=40, records=20)
    total = sum(
        os.path.getsize(directory.path / name) for name in os.listdir(directory.path) if name.endswith(LOG)
    )
    parts = directory.plan(targetPartitionBytes=str(total // 8))
    assert 7 <= len(parts) <= 10
    counts = [part.end - part.start for part in parts]
    assert max(counts) <= 2 * len(directory.rows) // len(parts)
    assert len(directory.plan(minPartitions="16", targetPartitionBytes="1g")) == 16
    assert max(part.end - part.start for part in directory.plan(maxRecordsPerPartition="30")) <= 30


def test_nothing_at_or_above_the_high_watermark_is_read(directory):
    filled(directory)
    for high_watermark in (0, 5, 30, 60, 117, 120):
        directory.commit(high_watermark)
        assert directory.scan() == directory.rows[:high_watermark]
    directory.commit(high_watermark=120)
    directory.append([b"appended, not checkpointed"])
    with open(directory.file(LOG), "ab") as file:
        file.write(b"\xff" * 100)  # and a batch that is being written
    assert directory.scan() == directory.rows[:120]


def test_a_log_without_a_high_watermark_is_not_read(directory, monkeypatch):
    monkeypatch.setattr(segment_files, "SETTLE_SECONDS", 0.2)
    (directory.root / HIGH_WATERMARKS).write_text("0\n0\n")
    assert directory.scan() == []  # it is empty: nothing is left out
    directory.append([b"v"])
    with pytest.raises(ValueError, match="does not say how far t-0 is committed"):
        directory.scan()
    (directory.root / HIGH_WATERMARKS).write_text("not a checkpoint")
    with pytest.raises(ValueError, match="is damaged"):
        directory.scan()


def test_the_log_starts_where_the_checkpoint_says(directory):
    filled(directory).commit(log_start=17)
    assert directory.scan() == directory.rows[17:]


def test_offsets_and_times_bound_the_scan(directory):
    filled(directory)
    bounds = {"startingOffsets": '{"t":{"0":33}}', "endingOffsets": '{"t":{"0":61}}'}
    assert directory.scan(**bounds) == directory.rows[33:61]
    for first, last in ((0, 1), (29, 31), (30, 120), (44, 45)):
        bounds = {"startingTimestamp": str(T0 + first), "endingTimestamp": str(T0 + last)}
        assert directory.scan(**bounds) == directory.rows[first:last]
    with pytest.raises(ValueError, match="has no record at or after"):
        directory.scan(startingTimestamp=str(T0 + 120))
    with pytest.raises(ValueError, match=r"must not be|behind"):
        directory.scan(startingOffsets='{"t":{"0":33}}', endingOffsets='{"t":{"0":3}}')


@settings(max_examples=60, deadline=None, phases=[Phase.generate])
@given(data=st.data())
def test_times_are_looked_up_as_list_offsets_does(tmp_path_factory, data):
    """In any order of timestamps, with and without indexes, damaged ones, and a recovery point anywhere."""
    directory = Directory(tmp_path_factory.mktemp("times") / "data")
    for segment in range(data.draw(st.integers(1, 3))):
        if segment:
            directory.roll()
        for _ in range(data.draw(st.integers(1, 3))):
            times = data.draw(st.lists(st.integers(0, 50), min_size=1, max_size=4))
            directory.append([b"v"] * len(times), times, indexed=data.draw(st.booleans()))
        if data.draw(st.integers(0, 4)) == 0:
            os.unlink(directory.file(TIME_INDEX))
        elif directory.next - directory.base and directory.rows:
            closing = max(row[1] for row in directory.rows if row[0] >= directory.base)
            with open(directory.file(TIME_INDEX), "ab") as file:  # as a roll does; and room that is not used
                file.write(struct.pack(">qi", closing, directory.next - 1 - directory.base))
                file.write(bytes(12 * data.draw(st.integers(0, 2))))
    directory.commit(recovery_point=data.draw(st.integers(0, directory.next)))
    since = data.draw(st.integers(0, 51))
    expected = next((row[0] for row in directory.rows if row[1] >= since), None)
    if expected is None:
        with pytest.raises(ValueError, match="has no record"):
            directory.scan(startingTimestamp=str(since))
    else:
        assert directory.scan(startingTimestamp=str(since)) == directory.rows[expected:]
    filters = Filters()
    filters.take(pushed("GreaterThanOrEqual", "timestamp", utc(since)))
    assert [row for row in directory.scan(filters) if row[1] >= since] == [
        row for row in directory.rows if row[1] >= since
    ]


def pushed(kind, column, value):
    from pyspark.sql import datasource

    return getattr(datasource, kind)((column,), value)


def utc(ms):
    return datetime.datetime.fromtimestamp(ms / 1000, datetime.UTC)


def test_filters_leave_out_what_they_rule_out(directory):
    filled(directory)
    filters = Filters()
    assert filters.take(pushed("GreaterThan", "offset", 40))
    assert filters.take(pushed("LessThanOrEqual", "offset", 77))
    assert directory.scan(filters) == directory.rows[41:78]
    nothing = Filters()
    nothing.take(pushed("EqualTo", "partition", 3))
    assert directory.plan(nothing) == []


def test_indexes_that_lie_cost_time_and_not_rows(directory):
    filled(directory)
    for base in (0, 30, 60):
        with open(directory.file(INDEX, base), "r+b") as file:
            size = os.path.getsize(file.name)
            file.write(random.Random(base).randbytes(size))
    os.unlink(directory.file(INDEX, 90))
    assert directory.scan(targetPartitionBytes="300") == directory.rows
    bounds = {"startingOffsets": '{"t":{"0":33}}', "endingOffsets": '{"t":{"0":61}}'}
    assert directory.scan(**bounds) == directory.rows[33:61]


def test_old_message_sets_are_read(directory):
    for magic, codec in ((0, 0), (1, 0), (0, 1), (1, 1)):
        builder = LegacyRecordBatchBuilder(magic=magic, compression_type=codec, batch_size=1 << 20)
        for n in range(4):
            timestamp = T0 + directory.next + n if magic else None
            place = directory.next + n if magic == 0 else n  # inner offsets of magic 0 are absolute
            builder.append(place, timestamp=timestamp, key=b"k", value=b"m%d c%d n%d" % (magic, codec, n))
            directory.rows.append(
                (directory.next + n, timestamp or -1, b"k", b"m%d c%d n%d" % (magic, codec, n))
            )
        directory.raw(renumbered(bytes(builder.build()), directory.next, codec), directory.next + 3, T0)
    directory.append([b"v2"])
    directory.commit()
    rows = directory.scan()
    assert [(offset, key, value) for offset, _, key, value in rows] == [
        (offset, key, value) for offset, _, key, value in directory.rows
    ]
    assert [row[1] for row in rows][4:8] == [row[1] for row in directory.rows][4:8]  # magic 1 has timestamps
    assert directory.scan(targetPartitionBytes="1", startingOffsets='{"t":{"0":6}}') == rows[6:]
    assert directory.scan(startingTimestamp=str(T0 + 5)) == rows[5:]


def renumbered(data, base, codec):
    """With the offsets that a broker gives; a wrapper has that of its last message."""
    from tests.unit.test_legacy_records import rewrapped

    if codec:
        return rewrapped(data, base + 3)
    out, at, place = bytearray(data), 0, base
    while at < len(out):
        struct.pack_into(">q", out, at, place)
        at += 12 + struct.unpack_from(">i", out, at + 8)[0]
        place += 1
    return bytes(out)


def test_values_may_be_larger_than_what_is_read_at_a_time(directory, monkeypatch):
    monkeypatch.setattr(segment_scan, "CHUNK", 1000)
    monkeypatch.setattr(segment_scan, "_buffers", [])
    for size in (1, 5000, 10, 200_000, 0, 940, 999):
        directory.append([bytes(size)])
    directory.commit()
    assert directory.scan() == directory.rows


def test_each_byte_is_read_once_wherever_a_read_cuts_a_batch(directory, monkeypatch):
    monkeypatch.setattr(segment_scan, "CHUNK", 1000)
    monkeypatch.setattr(segment_scan, "_buffers", [])
    rng = random.Random(7)
    for _ in range(300):
        directory.append([rng.randbytes(rng.randrange(250)) for _ in range(rng.randrange(1, 4))])
    directory.commit()
    read = []

    def preadv(fd, buffers, at):
        read.append((at, found := os_preadv(fd, buffers, at)))
        return found

    os_preadv = os.preadv
    monkeypatch.setattr(segment_scan.os, "preadv", preadv)
    assert directory.scan() == directory.rows
    assert [at for at, _ in read[1:]] == [at + size for at, size in read[:-1]]
    assert sum(size for _, size in read) == os.path.getsize(directory.file(LOG))


def test_of_an_index_that_is_stretched_with_zeros_only_what_is_used_is_read(directory):
    filled(directory, segments=1, batches=400)
    options = {"targetPartitionBytes": "3000", "startingOffsets": '{"t":{"0":777}}'}
    short = [repr(part) for part in directory.plan(**options)]
    used = os.path.getsize(directory.file(INDEX))
    os.truncate(directory.file(INDEX), 10 << 20)  # as a broker has that of its active segment
    assert [repr(part) for part in directory.plan(**options)] == short
    assert directory.scan(**options) == directory.rows[777:]
    with segment_files.Segment(str(directory.path), 0) as segment:
        index = segment.offset_index()
    assert len(index) == used // 8
    assert len(index._data) == segment_files.INDEX_PIECE


# -- transactions -------------------------------------------------------------------------------------------


def transactions(directory):
    """Two producers: 1 commits, 2 aborts, 1 aborts over a roll, 3 is open."""
    seen = {"producer_epoch": 0, "transactional": True}
    directory.append([b"1 commits"], producer_id=1, base_sequence=0, **seen)
    directory.append([b"2 aborts"], producer_id=2, base_sequence=0, seen=False, **seen)
    directory.append([b"nobody's"])
    directory.marker(COMMIT, 1)  # 3
    directory.marker(ABORT, 2)  # 4
    with open(directory.file(TXN_INDEX), "ab") as file:
        file.write(encode_entry(AbortedTxn(2, 1, 4, 5)))
    directory.append([b"1 aborts"] * 2, producer_id=1, base_sequence=1, seen=False, **seen)  # 5, 6
    directory.roll()
    directory.append([b"between"])  # 7
    directory.append([b"1 aborts still"], producer_id=1, base_sequence=3, seen=False, **seen)  # 8
    directory.marker(ABORT, 1)  # 9
    with open(directory.file(TXN_INDEX), "ab") as file:
        file.write(encode_entry(AbortedTxn(1, 5, 9, 10)))
    directory.append([b"1 again"], producer_id=1, base_sequence=4, **seen)  # 10
    directory.marker(COMMIT, 1)  # 11
    directory.append([b"3 is open"], producer_id=3, base_sequence=0, seen=False, **seen)  # 12
    directory.append([b"behind it"], seen=False)  # 13
    return directory.commit()


def test_read_committed_leaves_out_what_was_aborted_and_what_is_open(directory):
    transactions(directory)
    committed = {"kafka.isolation.level": "read_committed"}
    assert [(row[0], row[3]) for row in directory.scan(**committed)] == [
        (row[0], row[3]) for row in directory.rows
    ]
    assert directory.plan(**committed)[-1].end == 12  # the last stable offset
    for size in ("1", "100", "300"):
        assert directory.scan(targetPartitionBytes=size, **committed) == directory.rows
    assert directory.scan(maxRecordsPerPartition="1", **committed) == directory.rows
    everything = [row[0] for row in directory.scan()]
    assert everything == [0, 1, 2, 5, 6, 7, 8, 10, 12, 13]  # all but the markers


def test_the_last_stable_offset_follows_from_the_last_snapshot(directory, monkeypatch):
    from kafkad._native.log.producer_table import ProducerTable
    from kafkad.log.producer_state import write_snapshot

    transactions(directory)
    producers = ProducerTable()
    producers.load(1, 0, 2, 6, 1, T0, -1, 5)  # as of offset 7: producer 1 has been open since 5
    write_snapshot(str(directory.path), 7, producers, sync=False)
    committed = {"kafka.isolation.level": "read_committed"}
    assert directory.plan(**committed)[-1].end == 12
    directory.commit(high_watermark=9)  # below the marker of 1
    assert directory.plan(**committed)[-1].end == 5
    with open(segment_file(str(directory.path), 7, SNAPSHOT), "r+b") as file:
        file.write(b"damaged")
    assert directory.plan(**committed)[-1].end == 5  # from the log's beginning, then


# -- what is damaged ----------------------------------------------------------------------------------------


def test_a_torn_tail_below_the_high_watermark_is_an_error(directory):
    filled(directory)
    whole = os.path.getsize(directory.file(LOG))
    for size in (whole - 1, whole - 60, whole - 90):
        os.truncate(directory.file(LOG), size)
        with pytest.raises(
            DataLoss, match=r"0090\.log is damaged below the high watermark|ends at offset 115"
        ):
            directory.scan()
    os.truncate(directory.file(LOG), whole)  # zeros, as a power loss leaves them
    with pytest.raises(DataLoss, match="damaged"):
        directory.scan()
    assert directory.scan(endingOffsets='{"t":{"0":110}}') == directory.rows[:110]
    with pytest.raises(DataLoss, match="damaged"):
        directory.scan(failOnDataLoss="false")  # what they were cannot be told


def test_a_log_that_ends_before_its_high_watermark_is_data_loss(directory):
    filled(directory).commit(high_watermark=125)
    with pytest.raises(DataLoss, match="t-0 ends at offset 120, below its high watermark"):
        directory.scan()
    assert directory.scan(failOnDataLoss="false") == directory.rows


def test_a_bit_that_flips_is_found(directory):
    """Also in lengths and headers; but base offset and leader epoch of a batch are under no CRC."""
    filled(directory, segments=1)
    whole = Path(directory.file(LOG)).read_bytes()
    starts, at = [], 0
    while at < len(whole):
        starts.append(at)
        at += 12 + struct.unpack_from(">i", whole, at + 8)[0]
    assert len(starts) == 6
    for at in range(0, len(whole), 7):
        within = at - max(start for start in starts if start <= at)
        if within < 8:
            continue
        changed = bytearray(whole)
        changed[at] ^= 0x10
        with open(directory.file(LOG), "wb") as file:
            file.write(changed)
        if 12 <= within < 16:
            assert directory.scan() == directory.rows
        else:
            with pytest.raises(DataLoss, match="damaged"):
                directory.scan()


# -- what is lost -------------------------------------------------------------------------------------------


def remove(directory, base):
    os.rename(directory.file(LOG, base), directory.file(LOG, base) + ".deleted")


def test_retention_between_plan_and_read_is_data_loss(directory):
    filled(directory)
    parts = directory.plan()
    remove(directory, 0)
    with pytest.raises(DataLoss, match="offsets 0 to 29 of t-0 have aged out"):
        list(segment_scan.read(parts[0]))
    parts[0].fail_on_data_loss = False
    assert rows_of(segment_scan.read(parts[0])) == directory.rows[30:]
    assert directory.scan() == directory.rows[30:]  # a new plan begins where the log does


def test_a_segment_that_goes_while_it_is_read_is_read_to_its_end(directory, monkeypatch):
    filled(directory, segments=2, batches=400)
    monkeypatch.setattr(segment_scan, "CHUNK", 4096)
    monkeypatch.setattr(segment_scan, "_buffers", [])
    reader = segment_scan.SegmentReader(part := directory.plan()[0], columns := segment_scan.columns_of(part))
    assert reader.begin()
    os.unlink(directory.file(LOG, 0))
    with reader.segment:
        batches = [pa.record_batch(b) for b in reader.batches()] + rest(columns)
    assert rows_of(batches) == directory.rows[: len(directory.rows) // 2]


def rest(columns):
    columns.finish()
    found = []
    while (batch := columns.take()) is not None:
        found.append(pa.record_batch(batch))
    return found


def test_a_topic_that_was_deleted_or_made_anew_is_data_loss(directory, tmp_path):
    filled(directory)
    parts = directory.plan()
    os.rename(directory.path, str(directory.path) + ".0123456789abcdef0123456789abcdef-delete")
    with pytest.raises(DataLoss, match="its topic was deleted"):
        list(segment_scan.read(parts[0]))
    anew = Directory(tmp_path / "other", topic_id=b"f" * 16)
    filled(anew)
    os.rename(anew.path, directory.path)
    with pytest.raises(DataLoss, match="deleted and made anew"):
        list(segment_scan.read(parts[0]))


def test_a_hole_between_segments_is_data_loss_unless_it_was_compacted(directory, monkeypatch):
    monkeypatch.setattr(segment_files, "SETTLE_SECONDS", 0.2)
    filled(directory)
    remove(directory, 30)
    with pytest.raises(DataLoss, match="offsets 30 to 59 of t-0 are missing"):
        directory.scan()
    expected = directory.rows[:30] + directory.rows[60:]
    assert directory.scan(failOnDataLoss="false") == expected
    write_offsets(str(directory.root / CLEANER_OFFSETS), {directory.key: 90})
    assert directory.scan() == expected


def test_exchanges_that_follow_each_other_are_not_one_that_hangs(directory, monkeypatch):
    filled(directory, segments=2)
    monkeypatch.setattr(segment_files, "SETTLE_SECONDS", 0.3)
    swap = directory.file(LOG, 0) + ".swap"
    looks = 0

    def listed(self):
        nonlocal looks
        looks += 1
        if looks < 200:  # each time another file of that name
            with open(swap + ".new", "wb"):
                os.replace(swap + ".new", swap)
        elif os.path.exists(swap):
            os.unlink(swap)
        return names(self)

    names = segment_files.PartitionLog._names
    monkeypatch.setattr(segment_files.PartitionLog, "_names", listed)
    log = directory.plan()[0].log
    began = time.monotonic()
    looks = 0
    assert log.bases() == [0, 30]
    assert time.monotonic() - began > 0.3


def test_what_the_cleaner_merged_while_it_was_read_is_not_passed_over(directory, monkeypatch):
    """The segment that is read is replaced by one of its name that also has what follows."""
    filled(directory, segments=2)
    write_offsets(str(directory.root / CLEANER_OFFSETS), {directory.key: 60})
    merged = b"".join(Path(directory.file(LOG, base)).read_bytes() for base in (0, 30))
    part = directory.plan()[0]
    reader = segment_scan.SegmentReader(part, columns := segment_scan.columns_of(part))
    assert reader.begin()
    with open(directory.file(LOG, 0) + ".swap", "wb") as file:
        file.write(merged)
    with reader.segment:
        batches = list(reader.batches())
    remove(directory, 0)
    remove(directory, 30)
    os.unlink(directory.file(INDEX, 0))
    monkeypatch.setattr(segment_files, "SETTLE_SECONDS", 0.1)
    with pytest.raises(ValueError, match="a compaction that was not finished"):
        reader.begin()
    os.rename(directory.file(LOG, 0) + ".swap", directory.file(LOG, 0))
    assert reader.begin()
    with reader.segment:
        batches += list(reader.batches())
    assert rows_of([pa.record_batch(batch) for batch in batches] + rest(columns)) == directory.rows


# -- which directories --------------------------------------------------------------------------------------


def test_several_directories_are_one_log(tmp_path):
    first = filled(Directory(tmp_path / "a", "t-0"))
    second = filled(Directory(tmp_path / "b", "t-1"), segments=2)
    Directory(tmp_path / "b", "other-0")
    both = {"logDir": f"{first.root},{second.root}"}
    parts = first.plan(**both)
    assert sorted((part.log.where, part.end) for part in parts) == [(("t", 0), 120), (("t", 1), 60)]
    assert [part.log.where for part in first.plan(**both, startingOffsets="earliest")]
    with pytest.raises(ValueError, match=r"topic T in .* .did you mean"):
        first.plan(**both, topic="T")
    os.mkdir(tmp_path / "b" / "t-0")
    write_partition_metadata(str(tmp_path / "b" / "t-0"), TOPIC_ID)
    with pytest.raises(ValueError, match="t-0 lies in both"):
        first.plan(**both)


def test_what_is_no_data_directory_is_told(directory, tmp_path):
    with pytest.raises(ValueError, match="cannot be read: No such file"):
        directory.plan(logDir=str(tmp_path / "nowhere"))
    with pytest.raises(ValueError, match="no data directory of Kafka"):
        directory.plan(logDir=str(tmp_path))
    directory.append([b"v"])
    directory.commit()
    (directory.path / "partition.metadata").write_text("rubbish")
    with pytest.raises(ValueError, match=r"partition\.metadata of .* is damaged"):
        directory.plan()

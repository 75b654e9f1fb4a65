"""Logs with messages of magic 0 and 1, cleaned once: each key's last message stays, as magic 2."""

import os
import random
import struct
from pathlib import Path

import pytest

from kafkad.log import cleaner
from kafkad.log.cleaner import Cleaned, Job, Outcome, Segment
from kafkad.log.filenames import LOG, segment_file
from kafkad.protocol import legacy_records
from kafkad.protocol.errors import Malformed
from kafkad.protocol.records import Batch, Record, build_batch, read_batches
from tests.reference import message_sets

NOW = 1_700_000_000_000
LOG_APPEND_TIME = 8


def swap(cleaned: Cleaned) -> None:
    cleaner.announce_swap(cleaned)
    for path in cleaner.swap_in(cleaned):
        os.unlink(path)


class World:
    """A log of old messages, and the records that they are."""

    def __init__(self, directory: Path, seed: int = 1) -> None:
        self.directory = directory
        self.random = random.Random(seed)
        self.end = 0
        self.segments: list[Segment] = []
        self.records: list[Record] = []
        self.data = b""

    def record(self, magic: int, number: int, timestamp: int | None = None) -> Record:
        key = None if self.random.random() < 0.05 else b"k%d" % self.random.randrange(100)
        value = None if self.random.random() < 0.15 else b"v" * self.random.choice((0, 5, 200))
        if timestamp is None:
            timestamp = NOW - self.random.randrange(9999)
        return Record(key, value, None, timestamp if magic else -1, self.end + number)

    def message(self, magic: int) -> None:
        appended = magic and self.random.random() < 0.3
        record = self.record(magic, 0)
        self.add(
            message_sets.message(
                magic, record.key, record.value, record.timestamp, offset=self.end,
                attributes=LOG_APPEND_TIME if appended else 0,
            ),
            [record],
        )  # fmt: skip

    def wrapper(self, magic: int, codec: int) -> None:
        appended = magic and self.random.random() < 0.3
        count = self.random.randrange(1, 20)
        numbers = sorted(self.random.sample(range(count * 2), count))  # an earlier cleaning left gaps
        records = [self.record(magic, number, NOW if appended else None) for number in numbers]
        inner = b"".join(
            message_sets.message(
                magic, record.key, record.value, 7 if appended else record.timestamp,
                offset=record.offset - (records[0].offset if magic else 0),
            )
            for record in records
        )  # fmt: skip
        self.add(
            message_sets.wrapper(
                magic, codec, inner, offset=records[-1].offset, timestamp=NOW,
                attributes=LOG_APPEND_TIME if appended else 0,
            ),
            records,
        )  # fmt: skip

    def new(self) -> None:
        records = [self.record(1, number) for number in range(self.random.randrange(1, 9))]
        self.add(bytes(build_batch(records, base_offset=self.end)), records)

    def mix(self, count: int) -> None:
        """Add messages, wrappers and batches."""
        for _ in range(count):
            choice = self.random.randrange(4)
            if choice == 0:
                self.new()
            elif choice == 1:
                self.wrapper(self.random.randrange(2), self.random.choice((1, 2, 3)))
            else:
                self.message(self.random.randrange(2))

    def add(self, data: bytes, records: list[Record]) -> None:
        self.data += data
        self.records += records
        self.end = records[-1].offset + 1

    def clean(self, **more) -> Outcome:
        values = {
            "directory": str(self.directory),
            "segments": tuple(self.segments),
            "first_dirty": 0,
            "first_uncleanable": self.end,
            "now_ms": NOW,
            "delete_retention_ms": 1000,
            "segment_bytes": 1 << 30,
            "index_bytes": 1 << 20,
            "index_interval": 500,
            "memory": 1 << 20,
        }
        return cleaner.clean(Job(**{**values, **more}), swap)

    def write(self, base: int) -> None:
        Path(segment_file(str(self.directory), base, LOG)).write_bytes(self.data)
        self.segments.append(Segment(base, len(self.data)))
        self.data = b""

    def batches(self) -> list[Batch]:
        found = []
        for path in sorted(self.directory.glob("*" + LOG)):
            found += read_batches(path.read_bytes())
        return found


def told(record: Record) -> tuple[bytes | None, bytes | None, int, int]:
    return record.key, record.value, record.timestamp, record.offset


def kept(records: list[Record], tombstones: bool = True) -> list[tuple[bytes | None, bytes | None, int, int]]:
    last = {record.key: record.offset for record in records if record.key is not None}
    return [
        told(record)
        for record in records
        if last.get(record.key) == record.offset and (tombstones or record.value is not None)
    ]


@pytest.mark.parametrize("chunk", [300, 1 << 20])
@pytest.mark.parametrize("seed", range(6))
def test_each_keys_last_message_stays_as_magic_2(tmp_path, monkeypatch, seed, chunk):
    monkeypatch.setattr(cleaner, "CHUNK", chunk)
    world = World(tmp_path, seed)
    for _ in range(3):
        base = world.end
        world.mix(60)
        world.write(base)
    outcome = world.clean()
    assert outcome.end_offset == world.end
    batches = world.batches()
    assert all(batch.bytes[16] == 2 and batch.is_intact() for batch in batches)
    assert {batch.compression for batch in batches} == {0, 1, 2, 3}
    records = [record for batch in batches for record in batch.records()]
    assert [told(record) for record in records] == kept(world.records)
    assert outcome.records_before == len(world.records)
    assert outcome.keyless == sum(record.key is None for record in world.records)
    assert batches[-1].last_offset == world.end - 1
    again = [bytes(batch.bytes) for batch in batches]
    for at, batch in enumerate(batches):
        with_tombstone = any(record.value is None for record in batch.records())
        assert bool(batch.attributes & 0x40) == with_tombstone, at
    world.segments = [Segment(0, sum(map(len, again)))]
    world.clean(first_dirty=0)
    assert [bytes(batch.bytes) for batch in world.batches()] == again


def test_tombstones_go_with_the_age_of_their_segment(tmp_path):
    world = World(tmp_path, 7)
    for _ in range(100):
        world.message(0)
    world.write(0)
    base = world.end
    for _ in range(50):
        world.message(1)
    world.add(
        message_sets.message(1, b"last", b"1", NOW, offset=world.end),
        [Record(b"last", b"1", None, NOW, world.end)],
    )
    world.write(base)
    for at, seconds in ((0, 1000), (base, 2000)):
        os.utime(segment_file(str(tmp_path), at, LOG), (seconds, seconds))
    old = len([record for record in world.records if record.offset < base])
    world.clean(legacy_horizon_ms=1_000_000, segment_bytes=1)
    found = [told(record) for batch in world.batches() for record in batch.records()]
    everything = kept(world.records)
    assert found == [each for each in everything if each[1] is not None or each[3] >= old]
    assert len(found) < len(everything)


def test_a_log_that_ends_with_an_old_tombstone_keeps_its_end(tmp_path):
    world = World(tmp_path)
    for value in (b"1", None):
        world.add(
            message_sets.message(0, b"k", value, offset=world.end), [Record(b"k", value, None, -1, world.end)]
        )
    world.write(0)
    world.clean(legacy_horizon_ms=1 << 60)
    (batch,) = world.batches()
    assert (batch.last_offset, [record.value for record in batch.records()]) == (1, [None])


def test_a_map_without_room_cleans_old_messages_in_rounds(tmp_path):
    world = World(tmp_path, 3)
    for number in range(200):
        world.message(number % 2)
    world.write(0)
    first = 0
    for _ in range(40):
        outcome = world.clean(first_dirty=first, memory=24 * 20)
        assert outcome.end_offset > first
        first = outcome.end_offset
        world.segments = [Segment(0, os.path.getsize(segment_file(str(tmp_path), 0, LOG)))]
        if first == world.end:
            break
    records = [told(record) for batch in world.batches() for record in batch.records()]
    assert [each for each in records if each[0] is not None] == kept(world.records)


def test_many_small_messages_do_not_grow(tmp_path):
    world = World(tmp_path)
    for number in range(2000):
        world.add(
            message_sets.message(0, b"%d" % number, b"", offset=number), [Record(b"", b"", None, -1, number)]
        )
    world.write(0)
    outcome = world.clean()
    assert outcome.records_after == 2000
    assert outcome.bytes_after < outcome.bytes_before


def test_large_batches_behind_old_messages_that_are_clean_are_found_where_they_are(tmp_path):
    """The old message is as long as a batch: headers are not taken for those of the batch before."""
    world = World(tmp_path)
    batches = [
        [Record(b"%s %02d" % (key, n), bytes(1000), timestamp=NOW, offset=base + n) for n in range(20)]
        for key, base in ((b"a", 1), (b"a", 21), (b"b", 41))
    ]
    encoded = [bytes(build_batch(records, base_offset=records[0].offset)) for records in batches]
    head = len(message_sets.message(1, b"old", b"", NOW))
    old = Record(b"old", bytes(len(encoded[0]) - head), None, NOW, 0)
    world.add(message_sets.message(1, old.key, old.value, NOW), [old])
    assert len(world.data) == len(encoded[0]) == len(encoded[1])
    for data, records in zip(encoded, batches, strict=True):
        world.add(data, records)
    world.write(0)
    assert world.clean(first_dirty=1).records_after == 41
    left = read_batches(Path(segment_file(str(tmp_path), 0, LOG)).read_bytes())
    offsets = [record.offset for batch in left for record in batch.records()]
    assert offsets == [0, *range(21, 61)]


INNER = message_sets.message_set(1, [(b"a", b"1", NOW), (b"b", b"2", NOW)])


@pytest.mark.parametrize(
    ("data", "trouble"),
    [
        (message_sets.message(1, b"a" * 50, b"1", NOW, crc=5), "does not have the CRC"),
        (message_sets.wrapper(0, 1, INNER, offset=1), "another magic"),
        (message_sets.wrapper(1, 1, message_sets.wrapper(1, 1, INNER), offset=1), "compressed too"),
        (message_sets.wrapper(1, 1, b"", offset=1), "wraps none"),
        (message_sets.wrapper(1, 1, b"", offset=1, packed=b"no gzip" * 9), "gzip|corrupt|decompress"),
        (message_sets.wrapper(1, 1, INNER + INNER, offset=9), "offset 8 follows 9"),
        (message_sets.wrapper(0, 1, message_sets.message(0, b"a", b"1", offset=-5), offset=0), "offsets -5"),
        (
            message_sets.wrapper(
                0, 1,
                message_sets.message(0, b"a", b"1") + message_sets.message(0, b"b", b"1", offset=1 << 40),
                offset=1 << 40,
            ),
            "offsets 0 to",
        ),
        (struct.pack(">qiIbb", 0, 5, 0, 1, 0) + b"\0" * 50, "size 5"),
        (message_sets.message(0, b"a" * 50, b"1")[:-3], "ends within"),
    ],
)  # fmt: skip
def test_what_does_not_parse_is_malformed_and_changes_nothing(tmp_path, data, trouble):
    world = World(tmp_path)
    world.data = data
    world.end = 10
    world.write(0)
    with pytest.raises(Malformed, match=trouble):
        world.clean()
    assert [path.name for path in tmp_path.iterdir()] == [f"{0:020}.log"]
    assert Path(segment_file(str(tmp_path), 0, LOG)).read_bytes() == data


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
@pytest.mark.parametrize("old", [False, True])
def test_a_batch_that_unpacks_to_more_than_the_bound_is_refused_by_name(tmp_path, monkeypatch, codec, old):
    if old and codec == 4:
        codec = 3  # there is no zstd in old formats
    monkeypatch.setattr(cleaner, "DECOMPRESSED_MAX", 1 << 20)
    monkeypatch.setattr(legacy_records, "DECOMPRESSED_MAX", 1 << 20)
    world = World(tmp_path)
    large = Record(b"k", bytes(1 << 20), None, -1, 0)
    if old:
        data = message_sets.wrapper(1, codec, message_sets.message(1, large.key, large.value))
    else:
        data = bytes(build_batch([large], compression=codec))
    world.add(data, [large])
    world.write(0)
    with pytest.raises(Malformed, match=f"holds more than {1 << 20} bytes"):
        world.clean()
    assert [path.name for path in tmp_path.iterdir()] == [f"{0:020}.log"]
    assert Path(segment_file(str(tmp_path), 0, LOG)).read_bytes() == data
    monkeypatch.undo()
    assert world.clean().records_after == 1

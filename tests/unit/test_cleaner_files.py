"""One cleaning of a log's files, and a kill at each step of the exchange: what a start finds then."""

import os
import random
import shutil
import struct
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kafkad._native.log.cleaner import Mapping
from kafkad._native.log.producer_table import ProducerTable
from kafkad._native.log.segment_recovery import scan_segment
from kafkad.log import cleaner
from kafkad.log.cleaner import Cleaned, Job, Segment
from kafkad.log.filenames import CLEANED, DELETED, INDEX, LOG, SWAP, TIME_INDEX, offset_of, segment_file
from kafkad.protocol.errors import Malformed
from kafkad.protocol.records import Record, build_batch, read_batches
from tests.reference.slow_cleaner import sealed
from tests.unit.log_world import LogWorld, topic_config

KEYS = [b"key %d" % number for number in range(20)]
NOW = 1_700_000_000_000
COMPACT = {"cleanup_policy": ("compact",), "segment_bytes": 3000}


class World:
    def __init__(
        self,
        root: Path,
        seed: int = 1,
        batches: int = 120,
        codecs: tuple[int, ...] = (0,),
        segment_bytes: int = 3000,
    ) -> None:
        self.random = random.Random(seed)
        self.latest: dict[bytes, bytes | None] = {}
        self.logs = LogWorld(root, topic_config(**{**COMPACT, "segment_bytes": segment_bytes}))
        self.directory = str(self.logs.directory)
        for _ in range(batches):
            self.write(self.random.choice(codecs))

    def write(self, codec: int = 0, producer: int = -1) -> None:
        records = []
        for key in self.random.choices(KEYS, k=self.random.choice((1, 3, 9))):
            value = None if self.random.random() < 0.1 else b"%d" % self.random.randrange(1 << 30)
            records.append(Record(key, value, timestamp=NOW))
            self.latest[key] = value
        self.logs.log.append(build_batch(records, compression=codec), NOW)

    def close(self) -> None:
        self.logs.log.close()

    def bases(self) -> list[int]:
        names = sorted(name for name in os.listdir(self.directory) if name.endswith(LOG))
        return [base for name in names if (base := offset_of(name)) is not None]

    def segments(self) -> list[Segment]:
        def size(base: int, suffix: str) -> int:
            return os.path.getsize(segment_file(self.directory, base, suffix))

        return [
            Segment(base, size(base, LOG), size(base, INDEX), size(base, TIME_INDEX)) for base in self.bases()
        ]

    def job(self, **more) -> Job:
        *segments, active = self.segments()
        values = {
            "directory": self.directory,
            "segments": tuple(segments),
            "first_dirty": 0,
            "first_uncleanable": active.base_offset,
            "now_ms": NOW,
            "delete_retention_ms": 1000,
            "segment_bytes": 6000,
            "index_bytes": 1 << 20,
            "index_interval": 500,
            "memory": 1 << 20,
        }
        return Job(**{**values, **more})

    def swap(self, cleaned: Cleaned) -> None:
        cleaner.announce_swap(cleaned)
        for path in cleaner.swap_in(cleaned):
            os.unlink(path)

    def records(self) -> list[tuple[int, bytes, bytes | None]]:
        found = []
        for base in self.bases():
            data = Path(segment_file(self.directory, base, LOG)).read_bytes()
            for batch in read_batches(data):
                found += [(record.offset, record.key, record.value) for record in batch.records()]
        return found

    def dictionary(self) -> dict[bytes, bytes]:
        last = {key: value for _, key, value in self.records()}
        return {key: value for key, value in last.items() if value is not None}

    @property
    def wanted(self) -> dict[bytes, bytes]:
        return {key: value for key, value in self.latest.items() if value is not None}


@pytest.mark.parametrize("codecs", [(0,), (0, 1, 2, 3, 4)])
def test_a_cleaning_leaves_one_record_of_each_key(tmp_path, codecs):
    world = World(tmp_path, codecs=codecs)
    end = world.logs.log.end_offset
    world.close()
    before = world.records()
    job = world.job()
    outcome = cleaner.clean(job, world.swap)
    assert outcome.end_offset == job.first_uncleanable
    assert world.dictionary() == world.wanted
    after = world.records()
    assert set(after) <= set(before)
    cleaned = [key for offset, key, _ in after if offset < job.first_uncleanable]
    assert len(cleaned) == len(set(cleaned)) == outcome.records_after < outcome.records_before / 5
    assert outcome.bytes_after < outcome.bytes_before / 3
    assert len(world.bases()) < len(job.segments)
    assert not [name for name in os.listdir(world.directory) if name.endswith((CLEANED, SWAP, DELETED))]
    log = world.logs.open(clean=True)
    assert (log.end_offset, log.log_start_offset) == (end, 0)
    world.write()
    world.close()
    assert world.dictionary() == world.wanted


def test_indexes_of_a_cleaned_segment_are_those_of_its_batches(tmp_path):
    """Recovery makes the same ones from the .log alone."""
    world = World(tmp_path)
    world.close()
    cleaner.clean(world.job(segment_bytes=1 << 20), world.swap)
    base = world.bases()[0]
    paths = [segment_file(world.directory, base, suffix) for suffix in (INDEX, TIME_INDEX)]
    ours = [Path(path).read_bytes() for path in paths]
    scan = scan_segment(world.directory, base, ProducerTable(), index_interval=500)
    assert scan.fault is None
    assert [Path(path).read_bytes() for path in paths] == ours
    assert ours[0] and ours[1]


def test_a_map_without_room_cleans_in_rounds(tmp_path):
    world = World(tmp_path)
    world.close()
    first_dirty, rounds = 0, 0
    while first_dirty < (job := world.job(first_dirty=first_dirty, memory=7 * 24)).first_uncleanable:
        outcome = cleaner.clean(job, world.swap)
        assert outcome.end_offset > first_dirty
        first_dirty = outcome.end_offset
        rounds += 1
        assert world.dictionary() == world.wanted
    assert rounds > 5


def test_a_second_cleaning_of_the_same_changes_nothing(tmp_path):
    world = World(tmp_path)
    world.close()
    cleaner.clean(world.job(segment_bytes=1 << 20), world.swap)
    files = {path.name: path.read_bytes() for path in Path(world.directory).iterdir()}
    cleaner.clean(world.job(segment_bytes=1 << 20), world.swap)
    assert {path.name: path.read_bytes() for path in Path(world.directory).iterdir()} == files


def test_a_batch_longer_than_a_chunk(tmp_path, monkeypatch):
    monkeypatch.setattr(cleaner, "CHUNK", 100)
    world = World(tmp_path, codecs=(0, 4))
    world.close()
    cleaner.clean(world.job(), world.swap)
    assert world.dictionary() == world.wanted


def test_groups_are_joined_up_to_the_bounds_of_a_segment(tmp_path):
    def bases(segments: list[tuple[int, ...]], end: int = 1 << 40, **more: int) -> list[list[int]]:
        job = World.job(Fixed(segments), segment_bytes=100, index_bytes=50, **more)
        return [[segment.base_offset for segment in group] for group in cleaner.groups(job, end)]

    class Fixed(World):
        def __init__(self, segments):
            self.directory = ""
            self.fixed = [Segment(*each) for each in [*segments, (99, 0)]]

        def segments(self):
            return self.fixed

    assert bases([(0, 40), (10, 60), (20, 1)]) == [[0, 10], [20]]
    assert bases([(0, 200), (10, 60), (20, 1)]) == [[0], [10, 20]]
    assert bases([(0, 1, 30), (10, 1, 20), (20, 1, 1)]) == [[0, 10], [20]]
    assert bases([(0, 1, 0, 30), (10, 1, 0, 20), (20, 1, 0, 1)]) == [[0, 10], [20]]
    assert bases([(0, 1), (10, 1), (1 << 31, 1)], first_uncleanable=(1 << 31) + 9) == [[0, 10], [1 << 31]]
    assert bases([(0, 1), (10, 1), (1 << 31, 1)], 11) == [[0, 10]]
    assert bases([(0, 1), (10, 0)]) == [[0, 10]]


def test_batches_larger_than_what_is_read_behind_skipped_ones(tmp_path):
    world = World(tmp_path, batches=0, segment_bytes=2 << 20)
    for number in range(30):
        keys = KEYS if number % 5 else KEYS[:3]
        value = b"%d" % number + bytes(world.random.choice((1000, 15_000, 30_000)))
        world.logs.log.append(build_batch([Record(key, value, timestamp=NOW) for key in keys]), NOW)
        world.latest.update(dict.fromkeys(keys, value))
        world.write()
    world.close()
    assert len(world.bases()) > 3
    job = world.job(segment_bytes=2 << 20)
    outcome = cleaner.clean(job, world.swap)
    assert outcome.records_before == job.first_uncleanable
    assert world.dictionary() == world.wanted
    cleaned = [key for offset, key, _ in world.records() if offset < job.first_uncleanable]
    assert len(cleaned) == len(set(cleaned)) == outcome.records_after


def test_damage_and_an_end_on_request_leave_the_log_as_it_was(tmp_path):
    world = World(tmp_path)
    world.close()
    files = {path.name: path.read_bytes() for path in Path(world.directory).iterdir()}

    class Ended(Exception):
        pass

    def ends_after(limit: int) -> Callable[[int], None]:
        left = limit

        def progress(size: int) -> None:
            nonlocal left
            left -= size
            if left < 0:
                raise Ended

        return progress

    for limit in (0, 5_000, 20_000):
        with pytest.raises(Ended):
            cleaner.clean(world.job(progress=ends_after(limit)), lambda cleaned: pytest.fail("too late"))
    for base in world.bases()[:-1]:  # also behind a group that could be exchanged before the damage is read
        path = Path(segment_file(world.directory, base, LOG))
        damaged = bytearray(path.read_bytes())
        damaged[-2] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(Malformed, match="CRC"):
            cleaner.clean(world.job(), lambda cleaned: pytest.fail("damaged"))
        path.write_bytes(files[path.name])
    path = Path(segment_file(world.directory, world.bases()[1], LOG))
    path.write_bytes(files[path.name][:-1])
    with pytest.raises(Malformed, match="ends within the batch at position"):
        cleaner.clean(world.job(), lambda cleaned: pytest.fail("cut"))
    path.write_bytes(files[path.name])
    assert {path.name: path.read_bytes() for path in Path(world.directory).iterdir()} == files


def killed_after(steps: int, world: World, **more) -> bool:
    """Clean in a child that dies after so many changes of the directory. False: it came to its end."""
    child = os.fork()
    if child == 0:
        left = steps

        def count(event: str, arguments: tuple[object, ...]) -> None:
            nonlocal left
            if event in ("os.rename", "os.remove") or (
                event == "open" and str(arguments[0]).endswith(CLEANED)
            ):
                if left == 0:
                    os._exit(9)
                left -= 1

        sys.addaudithook(count)
        try:
            cleaner.clean(world.job(**more), world.swap)
        except BaseException:
            os._exit(1)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, 9)
    return status == 9


@pytest.mark.parametrize("clean_start", [True, False])
def test_a_kill_at_each_step_keeps_every_key(tmp_path, clean_start):
    world = World(tmp_path, batches=70)
    end = world.logs.log.end_offset
    world.close()
    saved = tmp_path / "saved"
    shutil.copytree(world.directory, saved)
    steps = 0
    while killed_after(steps, world):
        log = world.logs.open(clean=clean_start)
        assert log.end_offset == end
        log.close()
        left = [name for name in os.listdir(world.directory) if name.endswith((CLEANED, SWAP, DELETED))]
        assert not left, (steps, left)
        assert world.dictionary() == world.wanted, steps
        offsets = [offset for offset, _, _ in world.records()]
        assert offsets == sorted(set(offsets)), steps
        # The next cleaning goes on from whatever the kill left.
        cleaner.clean(world.job(), world.swap)
        assert world.dictionary() == world.wanted, steps
        shutil.rmtree(world.directory)
        shutil.copytree(saved, world.directory)
        steps += 1
    assert steps > 30
    assert world.dictionary() == world.wanted


def test_a_kill_brings_no_deleted_record_back(tmp_path):
    """A record and its tombstone, whose time has come, go in one exchange, and nothing else is in it: so the
    new file does not tell the next start how far it reaches."""
    world = World(tmp_path, batches=0)
    world.logs.log.append(build_batch([Record(b"first", b"1", timestamp=NOW)]), NOW)
    world.close()
    tombstone = build_batch([Record(b"gone", None, timestamp=NOW)], base_offset=2)
    struct.pack_into(">h", tombstone, 21, 0x40)
    contents = {
        0: build_batch([Record(b"stays", b"1", timestamp=NOW)]),
        1: build_batch([Record(b"gone", b"1", timestamp=NOW)], base_offset=1),
        2: sealed(tombstone),
        3: build_batch([Record(b"stays", b"2", timestamp=NOW)], base_offset=3),
        4: build_batch([Record(b"last", b"1", timestamp=NOW)], base_offset=4),
    }
    steps, killed = 0, True
    while killed:
        for path in Path(world.directory).iterdir():
            if offset_of(path.name) is not None:
                path.unlink()
        for base, data in contents.items():
            for suffix in (LOG, INDEX, TIME_INDEX):
                path = Path(segment_file(world.directory, base, suffix))
                path.write_bytes(data if suffix == LOG else b"")
        killed = killed_after(steps, world, segment_bytes=sum(len(contents[base]) for base in (0, 1, 2)))
        world.logs.open(clean=True).close()
        assert world.dictionary() == {b"stays": b"2", b"last": b"1"}, steps
        steps += 1
    assert steps > 20
    assert [key for _, key, _ in world.records()] == [b"stays", b"last"]


def test_the_map_takes_no_more_memory_than_the_dirty_part_needs(tmp_path):
    world = World(tmp_path, batches=30)
    world.close()
    seen = []

    class Seen(Mapping):
        def __init__(self, offsets, transactions, start):
            seen.append(offsets.slots)
            super().__init__(offsets, transactions, start)

    original, cleaner.Mapping = cleaner.Mapping, Seen
    try:
        job = world.job(memory=1 << 30)
        cleaner.clean(job, world.swap)
    finally:
        cleaner.Mapping = original
    assert seen[0] < job.first_uncleanable * 2 + 20


def test_a_transaction_that_was_aborted_in_the_clean_part_hides_nothing_in_the_dirty_one(tmp_path):
    """Its producer goes on. What it commits later was left out of the map, so older values stayed,
    and came back when the tombstones went."""
    log = LogWorld(tmp_path, topic_config(**COMPACT)).log
    sequence = 0

    def transact(value: bytes | None, *, commit: bool) -> None:
        nonlocal sequence
        records = [Record(b"key", value, timestamp=NOW)]
        batch = build_batch(
            records, producer_id=7, producer_epoch=0, base_sequence=sequence, transactional=True
        )
        sequence += 1
        log.append(batch, NOW)
        log.append_marker(7, 0, 0, commit=commit, version=1, now_ms=NOW)

    transact(b"old", commit=True)
    transact(b"never", commit=False)
    log.roll(NOW)
    first_dirty = log.end_offset
    transact(b"new", commit=True)
    log.roll(NOW)
    log.close()
    rows = log.native.segment_rows()
    job = Job(
        directory=log.directory,
        segments=tuple(Segment(base, size) for base, size, _ in rows[:2]),
        first_dirty=first_dirty,
        first_uncleanable=rows[2][0],
        now_ms=NOW,
        delete_retention_ms=1000,
        segment_bytes=1 << 20,
        index_bytes=1 << 20,
        index_interval=500,
        memory=1 << 20,
        aborted=((7, 2, 3, 4),),
    )

    def swap(cleaned: Cleaned) -> None:
        cleaner.announce_swap(cleaned)
        cleaner.swap_in(cleaned)

    cleaner.clean(job, swap)
    data = Path(segment_file(log.directory, 0, LOG)).read_bytes()
    values = [
        record.value for batch in read_batches(data) if not batch.is_control for record in batch.records()
    ]
    assert values == [b"new"]

"""Unclean starts: what was whole stays, what was not goes, and nothing else."""

import itertools
import os
import random
import shutil
from pathlib import Path

import pytest

from kafkad.log import recovery
from kafkad.log.checkpoints import read_partition_metadata
from kafkad.log.offset_index import read_offset_index
from kafkad.log.producer_state import NO_PRODUCERS
from kafkad.log.time_index import read_time_index
from kafkad.protocol.errors import Malformed
from tests.unit.log_world import TOPIC_ID, LogWorld, batch, emptied, idempotent, topic_config


def contents(world: LogWorld) -> bytes:
    return b"".join(world.log.batches(world.log.log_start_offset, world.log.end_offset))


def test_the_log_is_cut_after_the_last_whole_batch_at_every_byte(tmp_path):
    world = LogWorld(tmp_path)
    for i in range(4):
        world.append(count=2, size=5 * i)
    path = world.path(0, ".log")
    whole = path.read_bytes()
    ends = [0]
    for data in world.log.batches(0, 8):
        ends.append(ends[-1] + len(data))
    for size in range(len(whole) + 1):
        path.write_bytes(whole[:size])
        world.crash()
        kept = max(end for end in ends if end <= size)
        assert path.read_bytes() == whole[:kept]
        assert world.log.end_offset == world.log.high_watermark == 2 * ends.index(kept)
        assert contents(world) == whole[:kept]


def test_zeros_at_the_end_are_cut(tmp_path):
    world = LogWorld(tmp_path)
    world.append(count=2)
    size = world.path(0, ".log").stat().st_size
    with world.path(0, ".log").open("ab") as file:
        file.write(bytes(100_000))
    world.crash()
    assert world.path(0, ".log").stat().st_size == size
    assert world.log.end_offset == 2


@pytest.mark.parametrize("seed", range(30))
def test_any_damaged_byte_cuts_the_log_before_its_batch(tmp_path, seed):
    chance = random.Random(seed)
    world = LogWorld(tmp_path, topic_config(segment_bytes=2_000, index_interval_bytes=200))
    for _ in range(40):
        world.append(count=chance.randrange(1, 5), size=chance.randrange(80))
    segments = world.log.segments
    batches = list(world.log.batches(0, world.log.end_offset))
    at = chance.randrange(sum(map(len, batches)))
    position, hit = 0, 0
    while position + len(batches[hit]) <= at:
        position += len(batches[hit])
        hit += 1
    inside = at - position
    base, start = 0, 0
    for segment_base, size in segments:
        if start + size > at:
            base = segment_base
            break
        start += size
    data = bytearray(world.path(base, ".log").read_bytes())
    data[at - start] ^= 1 << chance.randrange(8)
    world.path(base, ".log").write_bytes(data)
    world.crash()
    if 12 <= inside < 16:  # the leader epoch is under no checksum
        assert len(contents(world)) == sum(map(len, batches))
        return
    kept = contents(world)
    expected = b"".join(batches[:hit])
    if inside < 8:  # nor is the base offset: one that still ascends cannot be told from a hole
        assert kept[: len(expected)] == expected
    else:
        assert kept == expected
    assert world.log.segments[-1][0] <= base
    world.append()
    assert len(contents(world)) == len(kept) + len(batch(1))


def test_segments_below_the_recovery_point_are_not_read(tmp_path):
    world = LogWorld(tmp_path, topic_config(segment_bytes=600))
    for _ in range(40):
        world.append()
    world.scheduler.settle()
    point = world.log.recovery_point
    active, size = world.log.segments[-1]
    assert point == world.log.end_offset or point >= active
    world.crash(recovery_point=active)
    assert world.log.scanned_bytes == size
    assert world.log.end_offset == 40


def test_a_clean_start_scans_nothing(tmp_path):
    world = LogWorld(tmp_path, topic_config(segment_bytes=600))
    for _ in range(40):
        world.append()
    before = contents(world)
    world.restart()
    assert world.log.scanned_bytes == 0
    assert contents(world) == before
    assert world.log.segments[0][0] == 0


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("damage", ["missing", "odd", "rubbish", "zeros", "empty"])
def test_a_damaged_index_is_rebuilt_or_read_around(tmp_path, suffix, damage, clean):
    world = LogWorld(tmp_path, topic_config(segment_bytes=3_000, index_interval_bytes=200))
    for i in range(80):
        world.append(count=2, timestamp=1_000 + 10 * i)
    expected = contents(world)
    found = [world.log.offset_for_timestamp(1_000 + 10 * i) for i in range(80)]
    world.log.close()
    chance = random.Random(1)
    for path in world.directory.glob("*" + suffix):
        size = path.stat().st_size
        if damage == "missing":
            path.unlink()
        elif damage == "odd":
            path.write_bytes(path.read_bytes() + b"abc")
        elif damage == "rubbish":
            path.write_bytes(chance.randbytes(size))
        elif damage == "zeros":
            path.write_bytes(bytes(size))
        else:
            path.write_bytes(b"")
    world.open(clean=clean, recovery_point=0 if not clean else world.log.recovery_point)
    assert world.log.end_offset == 160
    assert contents(world) == expected
    for offset in range(160):
        assert world.log.native.try_read(offset, 1)[0] == 0
    if not clean or damage in ("missing", "odd") or suffix == ".index":
        assert [world.log.offset_for_timestamp(1_000 + 10 * i) for i in range(80)] == found
    world.append()
    assert world.log.end_offset == 161


def test_rebuilt_indexes_are_those_that_were_written(tmp_path):
    chance = random.Random(2)
    world = LogWorld(tmp_path, topic_config(segment_bytes=20_000, index_interval_bytes=500))
    for _ in range(300):
        world.append(
            count=chance.randrange(1, 4), timestamp=chance.randrange(10_000), size=chance.randrange(150)
        )
    world.log.close()
    before = {
        path.name: path.read_bytes()
        for path in world.directory.iterdir()
        if path.suffix in (".index", ".timeindex")
    }
    world.crash()
    world.log.close()
    after = {name: (world.directory / name).read_bytes() for name in before}
    assert after == before
    base = world.log.segments[0][0]
    assert read_offset_index(str(world.path(base, ".index")), base)
    assert read_time_index(str(world.path(base, ".timeindex")), base)


def test_indexes_without_a_log_are_removed(tmp_path):
    world = LogWorld(tmp_path)
    world.append()
    world.path(500, ".index").write_bytes(bytes(8))
    world.path(500, ".timeindex").write_bytes(bytes(12))
    world.crash()
    assert not world.path(500, ".index").exists()
    assert not world.path(500, ".timeindex").exists()


def test_deleted_and_cleaned_files_go_and_complete_swaps_are_finished(tmp_path):
    world = LogWorld(tmp_path, topic_config(segment_bytes=400))
    for _ in range(12):
        world.append()
    world.log.close()
    bases = [base for base, _ in world.log.segments]
    (world.directory / "00000000000000000000.log.deleted").write_bytes(b"x")
    shutil.copy(world.path(bases[1], ".log"), str(world.path(bases[1], ".log")) + ".swap")
    shutil.copy(world.path(bases[1], ".index"), str(world.path(bases[1], ".index")) + ".swap")
    expected = world.path(bases[1], ".log").read_bytes()
    world.open(clean=True, recovery_point=12)
    assert world.log.end_offset == 12
    assert world.path(bases[1], ".log").read_bytes() == expected
    assert not [name for name in world.names() if name.endswith((".swap", ".deleted", ".cleaned"))]
    assert len(contents(world)) == 12 * len(batch(1))


class Killed(BaseException):
    pass


def kill_after(left, patch):
    """Names change `left` times, and never again: nothing of a killed process runs any more."""

    def guarded(call):
        def changed(*arguments):
            nonlocal left
            if left <= 0:
                raise Killed
            left -= 1
            return call(*arguments)

        return changed

    for call in ("replace", "unlink", "rename"):
        patch.setattr(os, call, guarded(getattr(os, call)))


def killed_starts(directory, monkeypatch, prepare):
    """Prepare the files, and kill a start after 0, 1, 2 ... changes of names, until one comes to its end.
    Yield the number after each kill."""
    for changes in itertools.count():
        prepare()
        with monkeypatch.context() as patch:
            kill_after(changes, patch)
            try:
                recovery.list_files(str(directory))
                return
            except Killed:
                pass
        yield changes


def test_a_swap_is_finished_however_often_the_start_is_killed(tmp_path, monkeypatch):
    """One cleaned segment replaces three: none of those may come back beside it."""
    world = LogWorld(tmp_path, topic_config(segment_bytes=400))
    for _ in range(30):
        world.append()
    world.log.close()
    bases = [base for base, _ in world.log.segments]
    assert len(bases) > 4
    whole = b"".join(world.path(base, ".log").read_bytes() for base in bases)
    merged = b"".join(world.path(base, ".log").read_bytes() for base in bases[1:4])
    Path(f"{world.path(bases[1], '.log')}.swap").write_bytes(merged)
    original = {path.name: path.read_bytes() for path in world.directory.iterdir()}

    def prepare():
        for path in world.directory.iterdir():
            path.unlink()
        for name, data in original.items():
            (world.directory / name).write_bytes(data)

    for changes in killed_starts(world.directory, monkeypatch, prepare):
        sizes = recovery.list_files(str(world.directory)).sizes
        assert sorted(sizes) == [bases[0], bases[1], *bases[4:]], f"killed after {changes} changes"
        assert b"".join(world.path(base, ".log").read_bytes() for base in sorted(sizes)) == whole
    assert changes >= 5


def test_a_swap_that_is_not_complete_is_dropped_however_often_the_start_is_killed(tmp_path, monkeypatch):
    """A file of it in place of the log's own would be wrong: without entries of aborted transactions, clients
    would see their records."""
    world = LogWorld(tmp_path)
    world.append()
    world.log.close()
    world.path(0, ".txnindex").write_bytes(b"of the log")
    before = {path.name: path.read_bytes() for path in world.directory.iterdir()}

    def prepare():
        for suffix in (".log.cleaned", ".index.swap", ".timeindex.swap", ".txnindex.swap"):
            world.path(0, suffix).write_bytes(b"of the cleaner")

    for changes in killed_starts(world.directory, monkeypatch, prepare):
        recovery.list_files(str(world.directory))
        after = {path.name: path.read_bytes() for path in world.directory.iterdir()}
        assert after == before, f"killed after {changes} changes"
    assert changes == 3


def test_a_swap_beside_its_cleaned_files_is_dropped(tmp_path):
    world = LogWorld(tmp_path)
    world.append()
    world.log.close()
    before = world.path(0, ".log").read_bytes()
    (world.directory / "00000000000000000000.log.swap").write_bytes(b"half")
    (world.directory / "00000000000000000000.index.cleaned").write_bytes(b"")
    world.open(clean=True, recovery_point=1)
    assert world.path(0, ".log").read_bytes() == before
    assert not [name for name in world.names() if name.endswith((".swap", ".cleaned"))]


def test_a_damaged_leader_epoch_file_is_rebuilt_from_the_batches(tmp_path):
    world = LogWorld(tmp_path, epoch=1)
    world.append()
    world.epoch = 4
    world.restart()
    world.append()
    assert world.log.epochs == [(1, 0), (4, 1)]
    (world.directory / "leader-epoch-checkpoint").write_bytes(b"0\nnonsense\n")
    world.crash(lead=False)
    assert world.log.epochs == [(1, 0), (4, 1)]


@pytest.mark.parametrize("has_a_record", [False, True])
def test_an_empty_leader_epoch_file_is_damage_only_if_there_are_records(tmp_path, caplog, has_a_record):
    """JVM Kafka makes it empty with the partition."""
    world = LogWorld(tmp_path)
    if has_a_record:
        world.append()
    world.log.close()
    (world.directory / "leader-epoch-checkpoint").write_bytes(b"")
    world.open(clean=True, recovery_point=world.log.recovery_point)
    assert ("is unreadable and is rebuilt" in caplog.text) == has_a_record
    assert world.log.epochs == [(0, 0)]


def test_a_log_start_beyond_the_end_begins_an_empty_log_there(tmp_path):
    world = LogWorld(tmp_path)
    world.append(count=3)
    world.crash(log_start_offset=50)
    assert (world.log.log_start_offset, world.log.end_offset, world.log.high_watermark) == (50, 50, 50)
    assert world.append() == 50


def test_a_log_whose_segments_are_set_aside_always_has_one(tmp_path, monkeypatch):
    """Whoever is killed in the middle leaves a log, and not an emptied directory, which counts as lost."""
    world = LogWorld(tmp_path)
    world.append(count=3)
    rename, renamed = os.rename, []

    def checked(*names):
        rename(*names)
        renamed.append(names)
        assert list(world.directory.glob("*.log"))

    monkeypatch.setattr(os, "rename", checked)
    world.crash(log_start_offset=50)
    assert renamed and world.log.end_offset == 50


def test_high_watermark_and_log_start_come_back(tmp_path):
    world = LogWorld(tmp_path)
    world.append(count=3)
    world.append(count=3)
    world.crash(lead=False, high_watermark=3, log_start_offset=2)
    assert (world.log.log_start_offset, world.log.high_watermark) == (2, 3)
    assert len(world.log.read(2, 1 << 20, below="end")) == 2 * len(batch(3))
    world.crash(lead=False, high_watermark=300)
    assert world.log.high_watermark == 6


@pytest.mark.parametrize("count", [0, 3])
def test_a_clean_restart_under_the_same_epoch_writes_no_file(tmp_path, count):
    world = LogWorld(tmp_path, epoch=4)
    for _ in range(count):
        world.append()
    world.restart()
    before = {path: path.stat() for path in world.directory.iterdir()}
    world.restart()
    world.restart()
    assert world.log.epochs == [(4, 0)]
    after = {path: path.stat() for path in world.directory.iterdir()}
    assert after.keys() == before.keys()
    for path, status in after.items():
        assert (status.st_ino, status.st_mtime_ns) == (before[path].st_ino, before[path].st_mtime_ns), path
    world.epoch = 6
    world.restart()
    assert world.log.epochs == ([(4, 0), (6, 3)] if count else [(6, 0)])


def test_the_topic_id_is_kept_and_guards_the_directory(tmp_path):
    world = LogWorld(tmp_path)
    assert read_partition_metadata(str(world.directory)) == TOPIC_ID
    assert (world.directory / "partition.metadata").read_text() == (
        "version: 0\ntopic_id: AQIDBAUGBwgJCgsMDQ4PEA"
    )
    from kafkad.log.log import Log

    with pytest.raises(Malformed):
        Log.open(
            str(world.directory), "t", 0, world.config,
            now_ms=0, clean=True, scheduler=world.scheduler, topic_id=bytes(16)[:-1] + b"\1",
        )  # fmt: skip


def test_a_snapshot_beyond_the_end_is_removed(tmp_path):
    world = LogWorld(tmp_path)
    world.append(idempotent(0, 5))
    world.restart()
    assert world.path(5, ".snapshot").exists()
    data = world.path(0, ".log").read_bytes()
    world.path(0, ".log").write_bytes(data[:-1])
    world.crash()
    assert world.log.end_offset == 0
    assert not world.path(5, ".snapshot").exists()
    assert list(world.log.active_producers()) == []
    assert world.append(idempotent(0, 5)) == 0


@pytest.mark.parametrize("producers", [0, 1])
def test_a_damaged_snapshot_at_a_clean_start_is_done_without(tmp_path, producers):
    world = LogWorld(tmp_path)
    world.append()
    if producers:
        world.append(idempotent(0))
    world.restart()
    end = world.log.end_offset
    path = world.path(end, ".snapshot")
    whole = path.read_bytes()
    assert len(whole) == 10 + 46 * producers
    assert (whole == NO_PRODUCERS) == (producers == 0)
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        world.restart()
        assert len(list(world.log.active_producers())) == producers
        if producers:
            assert world.append(idempotent(0)) == 1
        assert world.log.end_offset == end
        world.log.close()
        path.write_bytes(whole)
        world.open(clean=True)


def test_truncation_goes_back_to_any_offset(tmp_path):
    world = LogWorld(tmp_path, topic_config(segment_bytes=700, index_interval_bytes=100))
    chance = random.Random(5)
    for i in range(60):
        world.append(idempotent(i, 1, timestamp=1_000 + i))
    batches = list(world.log.batches(0, 60))
    for offset in sorted(chance.sample(range(1, 60), 12), reverse=True):
        generation = world.log.native.generation
        world.log.truncate_to(offset)
        assert world.log.native.generation > generation
        assert (world.log.end_offset, world.log.high_watermark) == (offset, offset)
        assert contents(world) == b"".join(batches[:offset])
        assert next(world.log.active_producers())[2] == offset - 1
        assert world.log.offset_for_max_timestamp().offset == offset - 1
        assert world.append(idempotent(offset, 1, timestamp=1_000 + offset)) == offset
        world.log.truncate_to(offset)
    world.crash()
    assert contents(world) == b"".join(batches[: world.log.end_offset])
    world.log.truncate_to(0)
    assert world.log.end_offset == 0
    assert world.append(idempotent(0, 1)) == 0


def test_a_log_begins_anew_above_a_snapshot(tmp_path):
    world = LogWorld(tmp_path)
    world.append(count=3)
    world.log.truncate_fully_and_start_at(100)
    assert (world.log.log_start_offset, world.log.end_offset, world.log.high_watermark) == (100, 100, 100)
    assert world.append(count=2) == 100
    world.restart()
    assert (world.log.log_start_offset, world.log.end_offset) == (100, 102)


@pytest.mark.parametrize("offset", [0, 2, 3, 100])
def test_a_log_that_loses_everything_always_has_a_segment(tmp_path, monkeypatch, offset):
    """Who is killed in the middle leaves a log, and not an emptied directory, which counts as lost."""
    world = LogWorld(tmp_path, topic_config(segment_bytes=200))
    for _ in range(4):
        world.append(count=2)
    world.log.delete_records(3)
    world.log.apply_retention(world.now_ms)
    world.scheduler.settle()
    assert len(world.log.segments) > 1
    removed = []

    def counted(call):
        def remove(path, *arguments, **where):
            call(path, *arguments, **where)
            removed.append(path)
            assert list(world.directory.glob("*.log")), f"after {path}"

        return remove

    monkeypatch.setattr(os, "unlink", counted(os.unlink))
    monkeypatch.setattr(os, "replace", counted(os.replace))
    world.log.truncate_fully_and_start_at(offset)
    assert removed and [path.name for path in world.directory.glob("*.log")] == [f"{offset:020d}.log"]
    assert world.append(count=2) == offset
    world.restart()
    assert (world.log.log_start_offset, world.log.end_offset) == (offset, offset + 2)


def compacted_segments(world, hole: str) -> None:
    """Segments at 0, 10 and 20 of a log that was compacted: the second begins behind a gap."""
    world.log.close()
    first = bytes(batch(2))
    if hole == "between batches":
        first += bytes(batch(1, base_offset=5))
    elif hole == "an empty batch":
        first += emptied(2, 5)
    second, third = bytes(batch(3, base_offset=10)), bytes(batch(1, base_offset=13))
    for base, data in ((0, first), (10, second), (13, third)):
        world.path(base, ".log").write_bytes(data)
        for suffix in (".index", ".timeindex"):
            world.path(base, suffix).write_bytes(b"")


@pytest.mark.parametrize(
    ("hole", "cleaned_below"), [("between batches", 0), ("an empty batch", 0), ("none", 10), ("none", 11)]
)
def test_a_gap_of_a_log_that_is_no_longer_compacted_is_kept(tmp_path, hole, cleaned_below):
    """TRANSACTIONS 2.7 b: after cleanup.policy was changed from compact, recovery took the gap for a loss and
    removed all segments behind it."""
    world = LogWorld(tmp_path, topic_config(cleanup_policy=("delete",)))
    compacted_segments(world, hole)
    log = world.open(clean=False, cleaned_below=cleaned_below)
    assert log.end_offset == 14
    assert [base for base, _ in log.segments] == [0, 10, 13]


def test_segments_behind_an_unexplained_gap_are_set_aside(tmp_path, caplog):
    """TRANSACTIONS 2.7 c: they were removed."""
    world = LogWorld(tmp_path, topic_config(cleanup_policy=("delete",)))
    compacted_segments(world, "none")
    behind = {base: world.path(base, ".log").read_bytes() for base in (10, 13)}
    log = world.open(clean=False)
    assert log.end_offset == 2
    assert {base: world.path(base, ".log.lost").read_bytes() for base in behind} == behind
    assert "ends at offset 2: 2 segments do not follow, from offset 10 on, and are kept" in caplog.text
    log.close()
    missing = bytes(batch(8, base_offset=2))  # what the message says: put back what is missing, rename
    with open(world.path(0, ".log"), "ab") as file:
        file.write(missing)
    for base in behind:
        world.path(base, ".log.lost").rename(world.path(base, ".log"))
    assert world.open(clean=False).end_offset == 14


def test_a_log_that_ends_before_its_log_start_is_set_aside(tmp_path, caplog):
    """A checkpoint of another directory says so, too."""
    world = LogWorld(tmp_path)
    world.append(count=5)
    world.log.close()
    data = world.path(0, ".log").read_bytes()
    log = world.open(clean=False, log_start_offset=100)
    assert (log.log_start_offset, log.end_offset) == (100, 100)
    assert world.path(0, ".log.lost").read_bytes() == data
    assert "ends at 5, before its log start offset 100" in caplog.text

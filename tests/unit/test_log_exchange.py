"""Cleaned segments take the place of others in a log that its owner and other workers are reading."""

import os
import random

import pytest

from kafkad._native.log.exchange import begin_exchange
from kafkad.log import cleaner
from kafkad.log.cleaner import Job, Segment
from kafkad.log.exchange import Changed, exchange, remove_old
from kafkad.log.filenames import DELETED, INDEX, SWAP, TIME_INDEX, segment_file
from kafkad.protocol.errors import KafkaError
from kafkad.protocol.records import Record, build_batch, read_batches
from tests.unit.log_world import topic_config
from tests.unit.test_partition_reader import NOT_LEADER, Readable, agree

KEYS = [b"key %d" % number for number in range(20)]


class World(Readable):
    def __init__(self, tmp_path, batches=150):
        config = {"cleanup_policy": ("compact",), "segment_bytes": 3000, "index_interval_bytes": 300}
        super().__init__(tmp_path, **config)
        self.config = topic_config(**config)
        self.random = random.Random(5)
        self.latest = {}
        for _ in range(batches):
            self.write()

    def write(self):
        key = self.random.choice(KEYS)
        value = b"%d" % self.random.randrange(1 << 30) * 20
        self.latest[key] = value
        time = 1_000 + self.log.end_offset
        self.log.append_client(build_batch([Record(key, value, timestamp=time)]), 1_000)

    def job(self, segment_bytes=6000):
        log = self.log

        def size(base, suffix):
            return os.path.getsize(segment_file(log.directory, base, suffix))

        *rows, active = log.native.segment_rows()
        return Job(
            directory=log.directory,
            segments=tuple(
                Segment(base, count, size(base, INDEX), size(base, TIME_INDEX)) for base, count, _ in rows
            ),
            first_dirty=0,
            first_uncleanable=active[0],
            now_ms=2_000,
            delete_retention_ms=1_000,
            segment_bytes=segment_bytes,
            index_bytes=1 << 20,
            index_interval=300,
            memory=1 << 20,
        )

    def swap(self, cleaned):
        cleaner.announce_swap(cleaned)
        remove_old(self.log, exchange(self.log, cleaned))

    def read(self, reader, offset):
        """Everything from an offset on, as the latest value of each key."""
        found = {}
        while offset < self.log.end_offset:
            code, _, _, _, data = reader.try_read(offset, 4_000)
            assert code == 0
            for batch in read_batches(data):
                offset = batch.last_offset + 1
                found.update((record.key, record.value) for record in batch.records())
        return found


def test_owner_and_reader_agree_before_between_and_after_exchanges(tmp_path):
    world = World(tmp_path)
    chance = random.Random(1)
    for _ in range(4):
        agree(world, chance, 40)
        segments = world.log.native.count

        def swap(cleaned):
            world.swap(cleaned)
            agree(world, chance, 40)
            assert world.read(world.reader, 0) == world.latest

        cleaner.clean(world.job(), swap)
        assert world.log.native.count < segments
        assert world.read(world.log.native, 0) == world.latest
        for _ in range(80):
            world.write()


def test_a_reader_goes_on_with_its_files_while_names_change_and_opens_none(tmp_path):
    world = World(tmp_path)
    other = world.another()
    offset = world.log.native.segment_rows()[1][0] + 3
    world.reader.try_read(offset - 1, 10)
    before = world.reader.try_read(offset, 10)
    assert before[0] == 0 and other.try_read(world.log.end_offset - 1, 10)[0] == 0
    begin_exchange(world.log.native)
    assert world.reader.try_read(offset, 10) == before
    assert other.try_read(offset, 10)[0] == NOT_LEADER

    # The owner dies here, and its successor finds nothing to finish.
    left = world.slot
    world.world.log.native.close_files()
    world.world.crash(left=left)
    assert other.try_read(offset, 10) == world.log.native.try_read(offset, 10)


def test_a_dead_owners_exchange_is_finished_before_readers_open_files(tmp_path):
    world = World(tmp_path)
    groups = []

    def die(cleaned):
        cleaner.announce_swap(cleaned)
        groups.append(cleaned)
        raise RuntimeError("killed")

    with pytest.raises(RuntimeError):
        cleaner.clean(world.job(), die)
    late = world.another()
    assert late.try_read(world.log.end_offset - 1, 10)[0] == 0
    seen = []
    replace = os.replace

    def watched(source, target):
        replace(source, target)
        seen.append(late.try_read(0, 10)[0])

    end = world.log.end_offset
    world.world.log.native.close_files()
    os.replace = watched
    try:
        world.world.crash(left=world.slot)
    finally:
        os.replace = replace
    assert seen and set(seen) == {NOT_LEADER}
    assert world.log.end_offset == end and len(groups[0].replaced) > 1
    assert world.log.native.segment_rows()[0][1] == groups[0].size
    assert world.read(late, 0) == world.read(world.log.native, 0) == world.latest


def test_old_files_stay_for_a_while_under_other_names(tmp_path):
    world = World(tmp_path)
    outcome = cleaner.clean(world.job(), world.swap)
    old = [name for name in os.listdir(world.log.directory) if name.endswith(DELETED)]
    assert len(old) >= 3 * sum(len(group.replaced) for group in outcome.groups)
    world.world.scheduler.run(world.log.config.file_delete_delay_ms)
    world.world.scheduler.work()
    assert not [name for name in os.listdir(world.log.directory) if name.endswith((DELETED, SWAP))]
    assert world.read(world.reader, 0) == world.latest


def test_the_high_watermark_right_behind_a_roll_follows_its_segment(tmp_path):
    """It names the end of the segment before, which is another one now."""
    world = World(tmp_path)
    world.log.roll(5_000)
    cleaner.clean(world.job(1 << 20), world.swap)
    assert world.log.native.count == 2
    assert world.read(world.log.native, 0) == world.read(world.reader, 0) == world.latest
    end = world.log.end_offset
    assert world.log.native.try_read(end, 100) == world.reader.try_read(end, 100)


def test_a_search_by_time_goes_on_over_an_exchange(tmp_path):
    world = World(tmp_path)
    last = world.log.end_offset - 1
    search = world.log.seek_timestamp(1_000 + last)
    for _ in range(world.log.native.count - 2):
        next(search)
    cleaner.clean(world.job(), world.swap)
    while True:
        try:
            next(search)
        except StopIteration as end:
            assert end.value.offset == last
            break


def test_what_changed_meanwhile_is_not_replaced(tmp_path):
    world = World(tmp_path)
    stale = []

    def keep(cleaned):
        stale.append(cleaned)
        raise RuntimeError("later")

    with pytest.raises(RuntimeError):
        cleaner.clean(world.job(), keep)
    cleaner.clean(world.job(), world.swap)
    rows = world.log.native.segment_rows()
    with pytest.raises(Changed):
        exchange(world.log, stale[0])
    assert world.log.native.segment_rows() == rows


def test_an_exchange_that_fails_ends_the_log_until_the_next_start(tmp_path, caplog):
    world = World(tmp_path)

    def swap(cleaned):
        cleaner.announce_swap(cleaned)
        os.unlink(segment_file(cleaned.directory, cleaned.base_offset, INDEX) + SWAP)
        os.mkdir(segment_file(cleaned.directory, cleaned.replaced[1], INDEX) + DELETED)
        world.swap_result = exchange(world.log, cleaned)

    with pytest.raises(KafkaError):
        cleaner.clean(world.job(), swap)
    assert "its exchange of segments failed" in caplog.text
    assert world.log.closed and world.reader.try_read(0, 10)[0] != 0
    for name in os.listdir(world.log.directory):
        if os.path.isdir(os.path.join(world.log.directory, name)):
            os.rmdir(os.path.join(world.log.directory, name))
    world.world.crash()
    assert world.read(world.log.native, 0) == world.latest


def test_an_exchange_does_not_make_a_flush_void(tmp_path):
    """A flush that begins before it and ends after it says what is on the disk."""
    world = World(tmp_path)
    native = world.log.native
    end, generation, _ = native.files_to_flush()
    cleaner.clean(world.job(), world.swap)
    assert native.flushed_offset < end
    native.flushed(end, generation)
    assert native.flushed_offset == end

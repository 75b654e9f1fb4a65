"""A partition as another worker reads it: by its files and the shared row, never by asking its owner.

The owner and the reader of these tests are in one process, so that each step of the one is between two of the
other; test_partition_reader_forked.py lets them run."""

import gc
import mmap
import os
import random
import struct
import subprocess
import sys

import pytest

from kafkad._native.log.partition import Partition
from kafkad._native.serving.partition_table import PartitionTable
from kafkad._native.shared.watermarks import WatermarkTable, private_row
from kafkad.log.reader import ReaderLog
from kafkad.protocol.errors import KafkaError
from kafkad.protocol.records import build_batch, end_marker, read_batches
from tests.power import compiled
from tests.unit.log_world import TOPIC_ID, LogWorld, batch, topic_config
from tests.unit.reactor_world import World

OUT_OF_RANGE = 1
CORRUPT = 2
NOT_LEADER = 6
STORAGE = 56


class Readable:
    """A log whose row is shared, and a reader of it."""

    def __init__(self, tmp_path, **config):
        self.table = WatermarkTable(16, shared=True)
        self.world = LogWorld.__new__(LogWorld)
        LogWorld.__init__(self.world, tmp_path, topic_config(**config), log=False)
        self.slot = self.table.allocate()
        self.world.open(row=self.slot)
        self.reader = self.another()

    @property
    def log(self):
        return self.world.log

    def another(self, topic_id=TOPIC_ID, directory=None, index=0):
        slot = self.table.row(self.slot.number)
        reader = Partition.reader("t", index, topic_id, directory or str(self.world.directory), slot, 1)
        ReaderLog(reader, directory or str(self.world.directory))
        return reader

    def poke(self):
        """The row in memory, for what only a dying owner does to it."""
        return mmap.mmap(self.table.fd, 256 * (self.slot.number + 1))

    def open_files(self):
        """Names of the files in the log's directory that this process has open."""
        found = []
        for fd in os.listdir("/proc/self/fd"):
            try:
                path = os.readlink(f"/proc/self/fd/{fd}")
            except FileNotFoundError:
                continue
            if path.startswith(str(self.world.directory)):
                found.append(os.path.basename(path))
        return found


def agree(world, chance, rounds):
    """The reader sends what the owner would, whatever is asked."""
    owner, reader = world.log.native, world.reader
    for _ in range(rounds):
        offset = chance.randrange(world.log.log_start_offset, world.log.end_offset + 2)
        most = chance.choice([0, 1, 100, 1_000, 20_000, 1 << 20])
        first = chance.random() < 0.8
        for isolation in (0, 1):
            assert reader.try_read(offset, most, first, isolation) == owner.try_read(
                offset, most, first, isolation
            ), (offset, most, first, isolation)


@pytest.mark.parametrize("interval", [0, 200, 4096])
def test_a_reader_sends_what_the_owner_would(tmp_path, interval):
    chance = random.Random(interval)
    world = Readable(
        tmp_path, segment_bytes=60_000, index_interval_bytes=interval, segment_index_bytes=80_000
    )
    agree(world, chance, 3)
    for _ in range(300):
        world.world.append(count=chance.randrange(1, 6), size=chance.choice([1, 100, 2_000]))
        agree(world, chance, 3)
    assert world.log.native.count > 5
    late = world.another()  # without any memory of where batches stand
    world.reader = late
    agree(world, chance, 200)
    assert late.listings == 1


def test_a_reader_lists_the_directory_once_a_roll(tmp_path):
    world = Readable(tmp_path)
    for _ in range(10):
        for _ in range(5):
            offset = world.world.append()
            assert world.reader.try_read(offset, 1000)[0] == 0
        world.log.roll(0)
        assert len(world.reader.try_read(0, 1000)[4]) > 0
    assert world.reader.listings == 11
    assert world.reader.count == 11


def test_nothing_above_the_high_watermark_is_read(tmp_path):
    world = Readable(tmp_path)
    world.log.native.follows_end = False
    world.world.append()
    world.world.append()
    assert world.reader.try_read(0, 1000) == (0, 0, 0, 0, b"")
    assert world.reader.try_read(3, 1000)[0] == OUT_OF_RANGE
    world.log.native.advance_high_watermark(1)
    code, high, _, _, data = world.reader.try_read(0, 1000)
    assert (code, high, len(list(read_batches(data)))) == (0, 1, 1)
    assert world.reader.try_read(1, 1000) == (0, 1, 1, 0, b"")


def test_committed_data_ends_at_the_oldest_open_transaction(tmp_path):
    world = Readable(tmp_path)
    world.world.append()
    world.log.append(batch(producer_id=7, producer_epoch=0, base_sequence=0, transactional=True), 0)
    world.world.append()
    assert world.reader.try_read(0, 9999, True, 1)[:3] == (0, 3, 1)
    assert world.reader.try_read(1, 9999, True, 1) == (0, 3, 1, 0, b"")
    assert world.reader.log.aborted_transactions(0, 1) == []
    marker = [end_marker(0, 3, timestamp=1_000)]
    world.log.append(
        build_batch(marker, producer_id=7, producer_epoch=0, transactional=True, control=True), 0
    )
    assert world.reader.try_read(0, 9999, True, 1)[:3] == (0, 4, 4)
    (aborted,) = world.reader.log.aborted_transactions(0, 4)
    assert (aborted.producer_id, aborted.first_offset, aborted.last_offset) == (7, 1, 3)
    assert world.reader.log.aborted_transactions(0, 4) == world.log.aborted_transactions(0, 4)
    assert world.reader.log.aborted_transactions(4, 9) == []


def test_what_retention_deleted_is_out_of_range_and_not_kept_open(tmp_path):
    world = Readable(tmp_path)
    for _ in range(3):
        world.world.append(count=2)
        world.log.roll(0)
    world.world.append()
    held = [world.reader.read_region(offset, 1000) for offset in (0, 2, 4, 6)]
    assert [code for code, _, _ in held] == [0, 0, 0, 0]
    world.log.native.close_files()
    assert len([name for name in world.open_files() if name.endswith(".log")]) == 4
    world.log.delete_records(6)
    assert world.log.apply_retention(0) == 3
    assert world.reader.try_read(2, 1000)[0] == OUT_OF_RANGE
    assert world.reader.try_read(6, 1000)[3] == 6
    assert world.reader.count == 1
    assert [name for name in world.open_files() if name.endswith(".deleted")] == []
    assert world.reader.listings == 1


def test_deleted_records_inside_of_a_segment(tmp_path):
    world = Readable(tmp_path)
    for _ in range(4):
        world.world.append()
    world.log.delete_records(2)
    assert world.reader.try_read(1, 1000)[0] == OUT_OF_RANGE
    code, _, _, start, data = world.reader.try_read(2, 1000)
    assert (code, start, next(iter(read_batches(data))).base_offset) == (0, 2, 2)
    assert world.slot.values().local_log_start_offset == 0


def test_a_file_that_goes_before_the_row_says_so_is_a_clean_error(tmp_path):
    world = Readable(tmp_path)
    for _ in range(3):
        world.world.append()
        world.log.roll(0)
    assert world.reader.try_read(3, 1000)[0] == 0
    os.unlink(world.world.path(1, ".log"))
    assert (
        world.reader.try_read(1, 1000)[4] != b""
    )  # it skips nothing in silence: there is nothing to see it by,
    world.reader.release_idle()
    world.reader.release_idle()
    os.unlink(world.world.path(0, ".log"))
    assert world.reader.try_read(0, 1000) == (NOT_LEADER, 3, 3, 0, b"")  # but where the log begins is known


def test_files_that_nobody_reads_are_closed(tmp_path):
    world = Readable(tmp_path)
    table = PartitionTable()
    table.add(world.reader, "t", TOPIC_ID)
    for _ in range(3):
        world.world.append(count=2)
        world.log.roll(0)
    world.log.native.close_files()
    for offset in range(6):
        assert world.reader.try_read(offset, 1)[0] == 0
    assert len(world.open_files()) == 6  # a .log and an .index each
    assert table.release_idle_readers() == 0
    assert world.reader.try_read(5, 1)[0] == 0
    assert table.release_idle_readers() == 2
    assert len(world.open_files()) == 2
    assert table.release_idle_readers() == 1
    assert world.open_files() == []
    assert world.reader.try_read(5, 1)[4] == world.log.read(5, 1)


def test_truncation_makes_readers_look_again(tmp_path):
    world = Readable(tmp_path)
    world.log.native.follows_end = False
    for _ in range(3):
        world.world.append()
        world.log.roll(0)
    world.world.append()
    world.log.native.advance_high_watermark(2)
    assert world.reader.try_read(1, 1000)[0] == 0
    assert world.reader.count == 4
    world.log.truncate_to(2)
    world.log.append(batch(count=3, size=50), 0)
    world.log.native.advance_high_watermark(5)
    code, high, _, _, data = world.reader.try_read(2, 1000)
    assert (code, high) == (0, 5)
    assert data == world.log.read(2, 1000)
    assert world.reader.count == world.log.native.count


def test_a_corrupt_batch_is_told(tmp_path):
    world = Readable(tmp_path)
    for _ in range(3):
        world.world.append(count=2)
    with open(world.world.path(0, ".log"), "r+b") as file:
        file.seek(8)
        file.write(b"\xff\xff")
    assert world.reader.try_read(3, 1000)[0] == CORRUPT


def test_a_reader_never_appends_nor_takes_a_directory_offline(tmp_path):
    world = Readable(tmp_path)
    world.world.append()
    assert world.reader.try_append(batch(), 0)[0] == NOT_LEADER
    assert world.reader.try_append(batch(), 0, True)[0] == NOT_LEADER
    assert world.reader.append_trusted(batch(), 0, 1, 0)[0] == NOT_LEADER
    assert world.reader.owner == 1
    assert not world.reader.open
    assert world.log.end_offset == 1


def test_one_who_does_not_lead_is_not_read(tmp_path):
    world = Readable(tmp_path)
    world.world.append()
    assert world.reader.try_read(0, 1000, True, 0, 0)[0] == 0
    assert world.reader.try_read(0, 1000, True, 0, 9)[0] == 75  # UNKNOWN_LEADER_EPOCH
    world.log.resign()
    assert world.reader.try_read(0, 1000)[0] == NOT_LEADER
    assert world.open_files() == [f"{0:020d}.log", f"{0:020d}.log"][: len(world.open_files())]
    world.log.set_leader_epoch(3)
    assert world.reader.try_read(0, 1000, True, 0, 3)[0] == 0
    assert world.reader.try_read(0, 1000, True, 0, 0)[0] == 74  # FENCED_LEADER_EPOCH


def test_a_row_of_another_partition_is_not_read(tmp_path):
    world = Readable(tmp_path)
    world.world.append()
    assert world.another(topic_id=bytes(16)).try_read(0, 1000)[0] == NOT_LEADER
    assert world.another(index=1).try_read(0, 1000)[0] == NOT_LEADER
    assert world.another(directory=str(tmp_path / "nowhere")).try_read(0, 1000)[0] == NOT_LEADER
    assert world.reader.try_read(0, 1000)[0] == 0
    number = world.slot.number
    world.world.log = world.slot = None  # the owner deletes it: its row is given back, and again
    gc.collect()
    assert world.reader.try_read(0, 1000)[0] == NOT_LEADER
    again = world.table.allocate()
    assert again.number == number
    Partition("other", 0, bytes(range(2, 18)), str(tmp_path), again)
    assert world.reader.try_read(0, 1000)[0] == NOT_LEADER


def test_what_a_dead_owner_left_half_written_is_not_read(tmp_path):
    world = Readable(tmp_path)
    world.world.append()
    assert world.reader.try_read(0, 1000)[1] == 1
    row = world.poke()
    at = 256 * world.slot.number
    (sequence,) = struct.unpack_from("I", row, at)
    struct.pack_into("I", row, at, sequence | 1)
    struct.pack_into("q", row, at + 40, 77)  # HW, which the rest does not follow
    assert world.reader.try_read(0, 1000)[1] == 1  # the last whole copy serves on
    assert world.another().try_read(0, 1000)[0] == NOT_LEADER  # who never saw one has none
    assert world.slot.values().whole is False
    struct.pack_into("q", row, at + 40, 1)
    world.world.append()  # a successor's change makes it whole
    assert world.slot.values().whole is True
    assert world.reader.try_read(1, 1000)[1] == 2


def test_in_the_midst_of_a_change_only_what_stood_just_before_it_is_read(tmp_path):
    """What was acknowledged is seen by all workers, or they send their clients away: never an older copy."""
    world = Readable(tmp_path)
    world.world.append()
    fresh, stale = world.reader, world.another()
    assert stale.try_read(0, 1000)[:2] == (0, 1)
    world.world.append()
    assert fresh.try_read(0, 1000)[:2] == (0, 2)
    row, at = world.poke(), 256 * world.slot.number
    (sequence,) = struct.unpack_from("I", row, at)
    struct.pack_into("I", row, at, sequence | 1)
    for _ in range(3):
        assert fresh.try_read(0, 1000)[:2] == (0, 2)
        assert stale.try_read(0, 1000)[0] == NOT_LEADER
    struct.pack_into("I", row, at, (sequence | 1) + 1)
    assert [reader.try_read(0, 1000)[:2] for reader in (fresh, stale)] == [(0, 2)] * 2


def test_a_fetch_of_committed_data_tells_of_transactions_that_were_aborted_since(tmp_path):
    world = Readable(tmp_path)

    def transaction(sequence, kind):
        fields = {"producer_id": 7, "producer_epoch": 0, "transactional": True}
        offset = world.log.append(batch(base_sequence=sequence, **fields), 0)
        world.log.append(build_batch([end_marker(kind, 3, timestamp=1_000)], control=True, **fields), 0)
        return offset

    def aborted(offset):
        answer = client.fetch([("t", 0, offset)], isolation_level=1)
        (part,) = answer.responses[0].partitions
        assert (part.error_code, part.last_stable_offset) == (0, world.log.last_stable_offset)
        return [(one.producer_id, one.first_offset) for one in part.aborted_transactions]

    reactor = World(str(tmp_path / "reactor"))
    reactor.table.add(world.reader, "t", TOPIC_ID)
    client = reactor.connect()
    transaction(0, 1)
    assert aborted(0) == []
    first = transaction(1, 0)
    assert aborted(0) == [(7, first)]
    transaction(2, 1)
    assert aborted(0) == [(7, first)]
    world.log.roll(0)
    second = transaction(3, 0)
    assert aborted(0) == [(7, first)]  # the answer ends where the segment does
    assert aborted(second) == [(7, second)]
    reactor.close()


# -- a successor's row ---------------------------------------------------------------------------------------


def test_a_successor_takes_over_the_row_and_no_mark_goes_back(tmp_path):
    world = Readable(tmp_path)
    for _ in range(5):
        world.world.append()
    world.log.delete_records(2)
    assert world.reader.try_read(4, 1000)[0] == 0
    before = world.slot.values()
    assert (before.log_end_offset, before.high_watermark, before.log_start_offset) == (5, 5, 2)

    loaded = world.world.crash(row=private_row(), lead=False)
    assert (loaded.log_start_offset, loaded.native.slot.number) == (0, 0)
    seen = world.slot.values()
    assert seen == before  # others read by it all the time
    loaded.native.adopt_row(world.slot)
    after = world.slot.values()
    assert after.generation > before.generation
    assert (after.log_end_offset, after.high_watermark, after.last_stable_offset) == (5, 5, 5)
    assert (after.log_start_offset, after.leader_epoch) == (2, before.leader_epoch)
    assert loaded.native.slot is world.slot
    assert world.reader.try_read(4, 1000)[0] == 0
    loaded.set_leader_epoch(9)
    world.world.append()
    assert world.reader.try_read(5, 1000, True, 0, 9)[1] == 6
    assert world.reader.try_read(5, 1000)[4] == loaded.read(5, 1000)


def test_a_high_watermark_beyond_the_recovered_end_is_the_end(tmp_path):
    world = Readable(tmp_path)
    for _ in range(3):
        world.world.append()
    os.truncate(world.world.path(0, ".log"), world.log.native.position_of(2)[1])
    loaded = world.world.crash(row=private_row())
    loaded.native.adopt_row(world.slot)
    values = world.slot.values()
    assert (values.log_end_offset, values.high_watermark, values.last_stable_offset) == (2, 2, 2)


def test_a_row_left_odd_is_whole_after_the_successor(tmp_path):
    world = Readable(tmp_path)
    world.world.append()
    row = world.poke()
    (sequence,) = struct.unpack_from("I", row, 256 * world.slot.number)
    struct.pack_into("I", row, 256 * world.slot.number, sequence | 1)
    loaded = world.world.crash(row=private_row())
    loaded.native.adopt_row(world.slot)
    assert world.slot.values().whole
    assert world.reader.try_read(0, 1000)[1] == 1


# -- the table of entries ------------------------------------------------------------------------------------


def test_an_advance_rings_who_listens_once(tmp_path):
    world = Readable(tmp_path)
    rung = []
    owners = PartitionTable()
    owners.ring_with(lambda row, workers: rung.append((row, workers)), 1)
    owners.add(world.log.native, "t", TOPIC_ID)
    world.world.append()
    assert rung == []
    row = world.poke()
    struct.pack_into("Q", row, 256 * world.slot.number + 192, 0b101)
    world.world.append()
    world.world.append()
    assert rung == [(world.slot.number, 0b101)]
    assert world.slot.values().waiters == 0
    struct.pack_into("Q", row, 256 * world.slot.number + 192, 0b100)
    world.log.resign()
    assert rung[1:] == [(world.slot.number, 0b100)]
    struct.pack_into("Q", row, 256 * world.slot.number + 192, 0b10)
    owners.remove("t", 0)
    assert rung[2:] == [(world.slot.number, 0b10)]
    struct.pack_into("Q", row, 256 * world.slot.number + 192, 0b1)
    owners.add(world.log.native, "t", TOPIC_ID)  # a successor: who listened to the dead one is told
    assert rung[3:] == [(world.slot.number, 0b1)]


def test_a_place_in_the_table_may_change_hands(tmp_path):
    world = Readable(tmp_path)
    table = PartitionTable()
    table.add(world.reader, "t", TOPIC_ID)
    assert table.get("t", 0) is world.reader
    table.replace("t", 0, world.log.native)
    assert table.get("t", 0) is world.log.native
    assert table.get_by_id(TOPIC_ID, 0) is world.log.native
    with pytest.raises(KeyError):
        table.replace("t", 1, world.reader)
    table.remote_advanced(world.slot.number)  # it is ours by now: nothing to look at
    table.remote_advanced(10**6)
    table.remove("t", 0)
    assert len(table) == 0


OVERTAKEN = """
import ctypes, pathlib, sys
from tests.unit.test_partition_reader import Readable

world = Readable(pathlib.Path(sys.argv[1]))
for i in range(5):
    world.world.append(count=2)
    if i == 1:
        assert world.reader.read_region(0, 1000)[0] == 0        # it has the first of two segments open
    if i < 4:
        world.log.roll(0)
passing = []

@ctypes.CFUNCTYPE(None, ctypes.c_char_p)
def told(path):
    # The size of the first is known, the next one's is asked for: now they and a third go, and the log rolls.
    if path == str(world.world.path(2, ".log")).encode() and not passing:
        passing.append(path)
        world.log.delete_records(6)
        assert world.log.apply_retention(0) == 3
        world.log.roll(0)
        world.world.append(count=2)

ctypes.CDLL(None).on_stat(told)
answers = [world.reader.try_read(offset, 1000) for offset in (5, 1, 6, 10)]
ctypes.CDLL(None).on_stat(None)
assert passing, "the reader did not ask for the size of a segment"
print([(code, start, len(data) > 0) for code, _, _, start, data in answers])
"""


def test_a_listing_that_a_roll_and_retention_overtake_has_no_hole(tmp_path):
    """A reader that kept the segment before the hole would send, for what is gone, what comes after it."""
    # behind what is preloaded already: the sanitizers' libraries have to be the first
    preloaded = f"{os.environ.get('LD_PRELOAD', '')} {compiled('stat_told')}".strip()
    ran = subprocess.run(
        [sys.executable, "-c", OVERTAKEN, str(tmp_path)],
        env={**os.environ, "LD_PRELOAD": preloaded},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.returncode == 0, ran.stderr
    gone = (OUT_OF_RANGE, 6, False)
    assert ran.stdout.strip() == str([gone, gone, (0, 6, True), (0, 6, True)])


def test_a_reader_finds_the_end_of_an_epoch_as_the_owner_does(tmp_path):
    """What a Fetch with `last_fetched_epoch` asks (KIP-595)."""
    world = Readable(tmp_path)
    log, reader = world.log, world.reader
    for epoch in (2, 5, 6):
        log.set_leader_epoch(epoch)
        reader.log.refresh()
        for asked in range(-1, 9):
            assert reader.log.end_offset_for_epoch(asked) == log.end_offset_for_epoch(asked), (epoch, asked)
        log.append_client(bytearray(batch(3)), 0)
    reader.log.refresh()
    assert reader.log.end_offset_for_epoch(6) == (6, 9)
    assert reader.log.end_offset_for_epoch(3) == (2, 3)


def test_a_reader_whose_owner_has_not_written_its_epochs_sends_the_client_away(tmp_path):
    """An old file would name an end at which the client's log does not part from ours."""
    world = Readable(tmp_path)
    world.log.set_leader_epoch(2)
    world.log.append_client(bytearray(batch(3)), 0)
    old = world.log.leader_epochs.path
    with open(old) as file:
        before = file.read()
    world.log.set_leader_epoch(5)
    with open(old) as file:
        after = file.read()
    with open(old, "w") as file:
        file.write(before)
    world.reader.log.refresh()
    for _ in range(2):
        with pytest.raises(KafkaError) as refused:
            world.reader.log.end_offset_for_epoch(2)
        assert refused.value.code == NOT_LEADER
    with open(old, "w") as file:
        file.write(after)
    assert world.reader.log.end_offset_for_epoch(2) == (2, 3)

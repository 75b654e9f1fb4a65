"""An owner is killed while it writes, and its successor opens the logs trusting the shared row.

The owner is a forked process that appends, rolls, deletes and checkpoints until it is killed -9, wherever
that is. Its successor must find every batch that was acknowledged, keep no byte beyond LEO, move no mark
back, and know the last five batches of each producer."""

import errno
import mmap
import os
import random
import struct
import time
from itertools import pairwise

import pytest

from kafkad._native.log.partition import Partition
from kafkad._native.shared.watermarks import WatermarkTable
from kafkad.log import leader_epochs, recovery
from kafkad.log.admission import Admission
from kafkad.log.filenames import INDEX, LEADER_EPOCHS, LOG, SNAPSHOT, TIME_INDEX, segment_file
from kafkad.log.leader_epochs import LeaderEpochs
from kafkad.log.log import Log
from kafkad.protocol.records import Record, build_batch, end_marker, read_batches
from tests.unit.forked import Forked
from tests.unit.log_world import TOPIC_ID, LogWorld, ManualScheduler, batch, idempotent, topic_config
from tests.unit.test_log_workers import Disks, Worker, id_of

SOAK = os.environ.get("KAFKAD_SOAK") == "1"
ROUNDS = 200 if SOAK else 25
PARTITIONS = 3
KEPT = 5  # batches of a producer that are known
COUNT = struct.Struct("q")


def made(partition: int, number: int, offset: int) -> bytearray:
    """Batch `number` of a partition: always the same. Its sequence is its offset: no other writes there."""
    chance = random.Random(f"{partition} {number}")
    records = [
        Record(None, bytes([number % 256]) * chance.choice([10, 100, 900]), timestamp=1_000 + number)
        for _ in range(chance.randrange(1, 5))
    ]
    return build_batch(records, producer_id=100 + partition, producer_epoch=0, base_sequence=offset)


class Acknowledged:
    """How many batches of each partition a client was told of; written by the owner, read when it is dead."""

    def __init__(self) -> None:
        self.map = mmap.mmap(-1, PARTITIONS * COUNT.size)

    def __getitem__(self, partition: int) -> int:
        return COUNT.unpack_from(self.map, partition * COUNT.size)[0]

    def __setitem__(self, partition: int, count: int) -> None:
        COUNT.pack_into(self.map, partition * COUNT.size, count)


def check(log: Log, acknowledged: int) -> tuple[int, list[tuple[int, int]]]:
    """Everything that the log must hold; how many batches it has, and number and offset of the last ones."""
    number = offset = 0
    offsets = []
    while offset < log.log_start_offset:  # those that are deleted, and the rest of their segment
        offsets.append(offset)
        offset += int.from_bytes(made(log.partition, number, offset)[57:61], "big")
        number += 1
    for data in log.batches(offset, log.end_offset):
        expected = made(log.partition, number, offset)
        assert int.from_bytes(data[:8], "big") == offset
        assert data[16:] == expected[16:]
        offsets.append(offset)
        offset += int.from_bytes(data[57:61], "big")
        number += 1
    assert offset == log.end_offset
    assert number >= acknowledged
    on_disk = {base: os.path.getsize(segment_file(log.directory, base, LOG)) for base, _ in log.segments}
    assert on_disk == dict(log.segments)
    assert sum(1 for name in os.listdir(log.directory) if name.endswith(LOG)) == len(on_disk)
    return number, list(enumerate(offsets))[-KEPT:]


def owns(child, disks, acknowledged, restarted):
    worker = Worker(disks, 0, restarted=restarted, owner=lambda *_: 0)
    config = topic_config(
        segment_bytes=16_384, index_interval_bytes=500, retention_bytes=-1, file_delete_delay_ms=0
    )
    if not worker.dirs.all():
        for index in range(PARTITIONS):
            worker.dirs.create("t", index, id_of("t"), config).set_leader_epoch(0)
    numbers, kept = {}, {}
    for log in worker.dirs.all():
        log.update_config(config)
        numbers[log.partition], kept[log.partition] = check(log, acknowledged[log.partition])
        for number, offset in kept[log.partition]:  # all of them are retried: none is appended again
            if offset >= log.log_start_offset:
                again = log.append_client(made(log.partition, number, offset), 1_000)
                assert again.base_offset == offset, (number, offset)
    logs = {log.partition: log for log in worker.dirs.all()}
    child.tell([(log.native.slot.number, log.end_offset) for _, log in sorted(logs.items())])
    chance = random.Random(os.getpid())
    while True:
        index = chance.randrange(PARTITIONS)
        log = logs[index]
        number = numbers[index]
        result = log.append_client(made(index, number, log.end_offset), 1_000)
        assert result.end_offset == log.end_offset
        acknowledged[index] = numbers[index] = number + 1
        what = chance.randrange(60)
        if what == 0:
            log.delete_records(max(log.log_start_offset, log.end_offset - 300))
            log.apply_retention(1_000)
        elif what == 1:
            worker.dirs.checkpoint()
            worker.scheduler.settle()
        elif what == 2:
            log.release_idle()


def test_a_successor_has_everything_whenever_the_owner_is_killed(tmp_path):
    disks = Disks(tmp_path)
    disks.topics = {"t": id_of("t")}
    acknowledged = Acknowledged()
    chance = random.Random(int(os.environ.get("KAFKAD_SEED", "20261121")))
    before = None
    for round_number in range(ROUNDS):
        owner = Forked(owns, disks, acknowledged, round_number > 0)
        try:
            if before is not None and chance.random() < 0.4:
                time.sleep(chance.random() * 0.02)  # dies loading, perhaps
                continue
            rows = [disks.dirs.table.row(number) for number, _ in owner.hear()]
            if before is not None:
                for row, was in zip(rows, before, strict=True):
                    now = row.values()
                    assert now.whole
                    assert now.generation > was.generation
                    assert now.high_watermark >= was.high_watermark
                    assert now.last_stable_offset >= was.last_stable_offset
                    assert now.log_start_offset >= was.log_start_offset
                    assert now.leader_epoch == 0
            time.sleep(chance.random() * 0.03)
        finally:
            owner.kill()
        before = [row.values() for row in rows]
    assert sum(acknowledged[index] for index in range(PARTITIONS)) > ROUNDS


# -- places where it may die, one by one ---------------------------------------------------------------------


class Succession:
    """One partition whose row is in a shared table; `crash` opens it anew by the row that is left."""

    def __init__(self, root, **config) -> None:
        self.table = WatermarkTable(16, shared=True)
        self.slot = self.table.allocate()
        self.world = LogWorld(root, topic_config(**config), log=None, scheduler=ManualScheduler())
        self.world.log.native.adopt_row(self.slot)
        self.world.log.set_leader_epoch(0)

    @property
    def log(self) -> Log:
        return self.world.log

    def poke(self, at: int, form: str, value: int) -> None:
        os.pwrite(self.table.fd, struct.pack(form, value), self.slot.number * 256 + at)

    def crash(self, **options) -> Log:
        return self.world.crash(left=self.slot, **options)


@pytest.fixture
def succession(tmp_path):
    return Succession(tmp_path, segment_bytes=1_000, index_interval_bytes=100)


def contents(log: Log) -> list[tuple[int, int]]:
    return [
        (each.base_offset, each.last_offset)
        for data in log.batches(log.log_start_offset, log.end_offset)
        for each in read_batches(data)
    ]


def fill(succession: Succession, count: int) -> None:
    for _ in range(count):
        succession.world.append()


def test_a_batch_beyond_leo_is_cut(succession):
    fill(succession, 4)
    before = contents(succession.log)
    base, size = succession.log.segments[-1]
    path = segment_file(succession.log.directory, base, LOG)
    beyond = batch()
    beyond[:8] = (4).to_bytes(8, "big")
    for tail in (bytes(beyond), bytes(beyond)[:30], bytes(beyond)[:-1], b"\0" * 500, os.urandom(300)):
        with open(path, "ab") as file:
            file.write(tail)
        log = succession.crash()
        assert os.path.getsize(path) == size
        assert contents(log) == before
        assert log.high_watermark == 4
    assert succession.world.append() == 4


def test_the_row_that_was_written_when_the_owner_died_is_repaired(succession):
    # The file has the batch, then comes the row: LEO is there, its position and HW are not, or the other way.
    fill(succession, 4)
    row = succession.slot.values()
    succession.world.append()
    after = succession.slot.values()
    offsets = {"log_end_offset": 32, "high_watermark": 40, "end_position": 96}
    for old in ("log_end_offset", "high_watermark", "end_position"):
        for name, at in offsets.items():
            succession.poke(at, "<q", getattr(row if name == old else after, name))
        succession.poke(0, "<I", 0x10001)
        assert not succession.slot.values().whole
        log = succession.crash()
        now = succession.slot.values()
        assert now.whole
        assert now.log_end_offset in (4, 5)
        assert now.end_position == log.segments[-1][1]
        assert now.high_watermark == now.log_end_offset
        assert now.generation > after.generation
        if now.log_end_offset == 4:
            assert succession.world.append() == 4
    assert len(contents(succession.log)) == 5


def test_a_roll_that_was_not_finished_is_undone(succession):
    fill(succession, 5)
    old = succession.log.native.active_base_offset
    log = succession.log
    before = contents(log)
    path = segment_file(log.directory, log.end_offset, LOG)
    for suffixes in ((LOG,), (LOG, INDEX), (LOG, INDEX, TIME_INDEX), (LOG, INDEX, TIME_INDEX, SNAPSHOT)):
        for suffix in suffixes:
            open(segment_file(log.directory, log.end_offset, suffix), "w").close()
        log = succession.crash()
        assert log.native.active_base_offset == old
        assert not os.path.exists(path)
        assert contents(log) == before


def test_a_roll_that_was_finished_stands(succession):
    fill(succession, 5)
    succession.log.roll(1_000)
    base = succession.log.native.active_base_offset
    os.unlink(segment_file(succession.log.directory, base, SNAPSHOT))  # written last
    log = succession.crash()
    assert log.native.active_base_offset == base == 5
    assert list(log.active_producers()) == []
    assert succession.world.append() == 5


def test_an_owner_that_died_loading_has_said_nothing(succession):
    fill(succession, 12)
    before = contents(succession.log)
    for end, segment in ((0, 0), (before[-1][0], succession.log.native.active_base_offset), (0, 3)):
        succession.poke(28, "<i", -1)  # leader epoch
        succession.poke(32, "<q", end)
        succession.poke(80 + 8, "<q", segment)
        succession.poke(96, "<q", 0)
        assert (succession.slot.values().log_end_offset, succession.slot.values().leader_epoch) == (end, -1)
        assert succession.slot.values().end_segment == segment
        log = succession.crash()
        assert contents(log) == before
        assert log.high_watermark == succession.slot.values().high_watermark == 12


def test_a_log_without_a_batch_comes_back_empty(succession):
    log = succession.crash()
    assert (log.log_start_offset, log.end_offset) == (0, 0)
    assert succession.world.append() == 0


def test_only_the_active_segment_is_looked_at(succession):
    fill(succession, 40)
    assert len(succession.log.segments) > 3
    log = succession.crash()
    assert log.scanned_bytes == log.native.active_size


def test_indexes_of_the_active_segment_are_new_files_that_lead_to_every_batch(succession):
    fill(succession, 8)
    log = succession.log
    base = log.native.active_base_offset
    path = segment_file(log.directory, base, INDEX)
    held = os.open(path, os.O_RDONLY)  # as a reader in another process has it
    stretched = os.fstat(held).st_size
    log = succession.crash()
    assert os.fstat(held).st_size == stretched
    assert os.stat(path).st_ino != os.fstat(held).st_ino
    os.close(held)
    for offset, _ in contents(log):
        assert int.from_bytes(log.read(offset, 1)[:8], "big") == offset
    assert log.offset_for_max_timestamp() is not None


def test_the_five_last_batches_of_each_producer_are_known(succession):
    for sequence in range(30):
        for producer in (7, 8):
            succession.world.append(idempotent(sequence, producer_id=producer))
    assert len(succession.log.segments) > 3
    log = succession.crash()
    for back in range(1, 6):
        for producer in (7, 8):
            sequence = 30 - back
            again = log.append_client(idempotent(sequence, producer_id=producer), 1_000)
            assert again.base_offset == 2 * sequence + producer - 7
    assert log.end_offset == 60


@pytest.mark.parametrize("how", ["killed", "crashed", "truncated"])
@pytest.mark.parametrize("log_start", [2, 3, 4])
def test_a_producer_whose_records_were_deleted_is_known(succession, how, log_start):
    """The file still has them. The marker, which may be all that is left, tells no sequence number."""
    world = succession.world

    def send(sequence: int) -> int:
        data = idempotent(sequence, producer_id=7, transactional=True)
        return world.log.append_client(data, 1_000, Admission.UNVERIFIED).base_offset

    world.append(idempotent(0, producer_id=8))
    send(0)
    world.log.append_marker(7, 0, 0, commit=True, version=0, now_ms=1_000)
    world.append()
    world.log.delete_records(log_start)
    if how == "killed":
        succession.crash()
    elif how == "crashed":
        world.crash(log_start_offset=log_start)
    else:
        world.append()
        world.log.truncate_to(4)
    assert world.log.log_start_offset == log_start
    assert world.append(idempotent(0, producer_id=8)) == 0  # a retry
    assert world.append(idempotent(1, producer_id=8)) == 4
    assert send(1) == world.log.last_stable_offset == 5


def test_an_open_transaction_holds_the_last_stable_offset_and_an_aborted_one_is_known(succession):
    log = succession.log

    def transactional(producer, sequence):
        made = idempotent(sequence, producer_id=producer, transactional=True)
        return log.append(made, 1_000, origin="coordinator")

    def abort(producer):
        marker = build_batch(
            [end_marker(0, 0, timestamp=1_000)],
            producer_id=producer, producer_epoch=0, control=True, transactional=True,
        )  # fmt: skip
        return log.append(marker, 1_000, origin="coordinator")

    transactional(7, 0)
    abort(7)
    fill(succession, 12)
    open_at = transactional(8, 0)
    fill(succession, 2)
    transactional(9, 0)
    marker = abort(9)
    aborted = log.aborted_transactions(0, log.end_offset)
    assert [each.producer_id for each in aborted] == [7, 9]
    for lost in (True, False):
        if lost:  # the marker was written, its entry was not
            path = segment_file(log.directory, log.native.active_base_offset, ".txnindex")
            assert os.path.getsize(path) == 34
            os.truncate(path, 0)
        log = succession.crash()
        assert log.last_stable_offset == open_at
        assert log.aborted_transactions(0, log.end_offset) == aborted
    assert log.end_offset == marker + 1


def at_rest(succession: Succession) -> None:
    """As the background does with a log that nobody uses."""
    while succession.log.release_idle() or succession.log.release_idle():
        pass


def test_a_log_at_rest_is_taken_as_it_is(succession):
    fill(succession, 40)
    before = contents(succession.log)
    at_rest(succession)
    files = {path: path.stat() for path in succession.world.directory.iterdir()}
    for _ in range(3):
        log = succession.crash()
        assert log.scanned_bytes == 0
        assert contents(log) == before
        assert log.high_watermark == log.last_stable_offset == 40
        for offset in range(40):
            assert log.offset_for_timestamp(1_000) is not None
            assert int.from_bytes(log.read(offset, 1)[:8], "big") == offset
        at_rest(succession)
        now = {path: path.stat() for path in succession.world.directory.iterdir()}
        assert {path: (s.st_ino, s.st_size) for path, s in now.items()} == {
            path: (s.st_ino, s.st_size) for path, s in files.items()
        }
    assert succession.world.append() == 40
    log = succession.crash()
    assert log.scanned_bytes == log.native.active_size
    assert log.end_offset == 41


@pytest.mark.parametrize("count", [3, 30])
def test_producers_of_a_log_at_rest_are_known_also_without_a_snapshot(succession, count):
    for sequence in range(count):
        for producer in (7, 8):
            succession.world.append(idempotent(sequence, producer_id=producer))
    at_rest(succession)
    log = succession.crash()
    assert log.scanned_bytes == 0
    for back in range(1, min(count, 5) + 1):
        for producer in (7, 8):
            sequence = count - back
            again = log.append_client(idempotent(sequence, producer_id=producer), 1_000)
            assert again.base_offset == 2 * sequence + producer - 7
    assert log.end_offset == 2 * count
    assert succession.world.append(idempotent(count, producer_id=7)) == 2 * count


@pytest.mark.parametrize("suffix", [INDEX, TIME_INDEX])
def test_a_log_with_one_index_open_is_not_at_rest(succession, suffix):
    fill(succession, 8)
    before = contents(succession.log)
    path = segment_file(succession.log.directory, succession.log.native.active_base_offset, suffix)
    at_rest(succession)
    for size in (os.path.getsize(path) + 24, 10 << 20):  # stretched by an owner that died while it opened it
        os.truncate(path, size)
        log = succession.crash()
        assert log.scanned_bytes == log.native.active_size
        assert os.path.getsize(path) < size
        assert contents(log) == before


def test_a_log_at_rest_whose_row_was_being_written_is_walked(succession):
    fill(succession, 8)
    before = contents(succession.log)
    at_rest(succession)
    succession.poke(0, "I", succession.slot.values().whole and 7)
    log = succession.crash()
    assert log.scanned_bytes == log.native.active_size
    assert contents(log) == before


def test_the_log_start_does_not_come_back(succession):
    fill(succession, 30)
    succession.log.delete_records(17)
    succession.log.apply_retention(1_000)
    log = succession.crash()
    assert log.log_start_offset == 17
    assert succession.slot.values().log_start_offset == 17


def test_what_contradicts_the_row_is_checked_whole(succession, caplog):
    fill(succession, 12)
    log = succession.log
    base, size = log.segments[-1]
    with open(segment_file(log.directory, base, LOG), "r+b") as file:
        file.truncate(size - 1)
    log = succession.crash()
    assert log.end_offset == 11
    assert log.high_watermark == 11
    assert "its owner said 12: all of it is checked" in caplog.text
    assert succession.slot.values().log_end_offset == 11
    assert succession.world.append() == 11


def test_with_flushes_the_high_watermark_does_not_go_back_and_what_was_not_flushed_is(tmp_path):
    succession = Succession(tmp_path, flush_messages=1, segment_bytes=1_000)
    for _ in range(12):
        succession.world.append()
        succession.world.scheduler.settle()
    succession.world.append()  # written, not flushed, not acknowledged
    assert succession.log.high_watermark == 12
    assert succession.slot.values().flushed_offset == 12
    log = succession.crash()
    assert log.end_offset == 13
    assert log.native.flushed_offset == 13
    assert log.high_watermark == 13
    assert succession.slot.values().high_watermark == 13


def test_what_its_owner_may_not_have_flushed_is_flushed_by_the_successor(succession):
    fill(succession, 30)
    succession.world.scheduler.settle()
    flushed = succession.log.native.flushed_offset
    assert flushed > 0
    fill(succession, 30)
    bases = [base for base, _ in succession.log.segments]
    log = succession.crash()
    wanted = {
        segment_file(log.directory, base, suffix)
        for base, after in pairwise(bases)
        if after > flushed
        for suffix in (INDEX, TIME_INDEX)
    }
    wanted |= {segment_file(log.directory, base, SNAPSHOT) for base in bases if base > flushed}
    assert wanted and wanted <= log.flusher.paths
    assert log.directory in log.flusher.directories


def test_readers_see_the_row_through_all_of_it(succession):
    fill(succession, 30)
    log = succession.log
    view = succession.table.row(succession.slot.number)
    reader = Partition.reader("t", 0, TOPIC_ID, log.directory, view, 1)
    code, high_watermark, _, _, data = reader.try_read(28, 10_000)
    assert (code, high_watermark) == (0, 30)
    log = succession.crash()
    assert reader.try_read(28, 10_000)[4] == data
    succession.world.append()
    assert reader.try_read(30, 10_000)[1] == 31
    assert int.from_bytes(reader.try_read(30, 10_000)[4][:8], "big") == 30


# -- leader epochs -------------------------------------------------------------------------------------------


def full(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def led(succession: Succession, epoch: int, count: int) -> None:
    """A term of the partition's leader, with `count` batches."""
    succession.world.epoch = epoch
    succession.log.set_leader_epoch(epoch)
    fill(succession, count)


@pytest.mark.parametrize("rests", [True, False])
def test_epochs_that_a_dead_owner_could_not_write_are_found_in_the_batches(succession, monkeypatch, rests):
    """A follower that asked where one of them ended was sent to the end of an older epoch: it removed records
    that the leader has, or kept some that it has not."""
    led(succession, 1, 40)
    monkeypatch.setattr(leader_epochs, "write_file", full)
    led(succession, 4, 5)
    succession.log.roll(1_000)
    led(succession, 7, 25)
    if rests:
        at_rest(succession)
    before = succession.log.epochs
    assert before == [(1, 0), (4, 40), (7, 45)]
    log = succession.crash(lead=False)
    assert log.epochs == before
    assert bool(log.scanned_bytes) is not rests
    assert succession.slot.values().last_epoch == 7
    assert [log.end_offset_for_epoch(epoch) for epoch in (1, 4, 7)] == [(1, 40), (4, 45), (7, 70)]
    log.follow(8, 2)
    monkeypatch.undo()
    succession.world.scheduler.run(100)
    succession.world.scheduler.settle()
    assert LeaderEpochs.load(log.directory).entries == before


@pytest.mark.parametrize("rests", [True, False])
def test_epochs_that_were_cut_off_and_are_still_in_the_file_are_forgotten(succession, monkeypatch, rests):
    """The log of a follower was truncated, and another leader continued it in an older epoch."""
    led(succession, 1, 10)
    led(succession, 5, 10)
    monkeypatch.setattr(leader_epochs, "write_file", full)
    log = succession.log
    log.follow(6, 2)
    log.truncate_to(8)
    for epoch in (3, 6):
        for _ in range(7):
            data = build_batch([Record(None, b"x" * 10)], base_offset=log.end_offset, leader_epoch=epoch)
            log.append(data, 1_000, origin="replica")
    log.native.note_epochs()
    if rests:
        at_rest(succession)
    assert log.epochs == [(1, 0), (3, 8), (6, 15)]
    log = succession.crash(lead=False)
    assert log.epochs == [(1, 0), (3, 8), (6, 15)]


def test_only_segments_in_which_an_epoch_ends_are_read_for_them(succession, monkeypatch):
    led(succession, 1, 40)
    monkeypatch.setattr(leader_epochs, "write_file", full)
    led(succession, 4, 40)
    read = []
    scan = recovery.scan_segment

    def noted(directory, base, *arguments, **named):
        read.append(base)
        return scan(directory, base, *arguments, **named)

    monkeypatch.setattr(recovery, "scan_segment", noted)
    at_rest(succession)
    log = succession.crash(lead=False)
    assert log.epochs == [(1, 0), (4, 40)]
    bases = [base for base, _ in log.segments]
    assert len(bases) > 5
    assert set(read) == {max(base for base in bases if base <= 40), bases[-1]}


def test_a_lost_file_of_epochs_comes_back_whole(succession):
    """The epochs of the last segment were removed again by those of the ones before it."""
    led(succession, 1, 40)
    led(succession, 4, 2)
    os.unlink(os.path.join(succession.log.directory, LEADER_EPOCHS))
    open(os.path.join(succession.log.directory, LEADER_EPOCHS), "w").close()
    log = succession.crash(lead=False)
    assert log.epochs == [(1, 0), (4, 40)]


@pytest.mark.soak
def test_a_full_segment_of_one_gigabyte_is_back_within_a_second(tmp_path):
    succession = Succession(tmp_path)
    data = batch(1, size=65_000)
    while succession.log.native.active_size + len(data) < 1 << 30:
        succession.log.append_client(bytearray(data), 1_000)
    begun = time.monotonic()
    log = succession.crash()
    seconds = time.monotonic() - begun
    assert log.native.active_size > 1 << 29
    assert seconds < 1

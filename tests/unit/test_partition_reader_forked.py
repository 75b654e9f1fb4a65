"""Readers of a partition while its owner, another process, writes, rolls, deletes, truncates, and dies.

A reader may always be told to come again (NOT_LEADER_OR_FOLLOWER), seldom. What it is given must be whole
batches, in order, without a gap, below the high watermark, and the same bytes whenever it asks again."""

import mmap
import os
import random
import struct
import time

import pytest

from kafkad._native.log.partition import Partition
from kafkad._native.shared.mailbox import Mailboxes
from kafkad._native.shared.watermarks import WatermarkTable
from kafkad.log.log import whole_batches
from kafkad.log.reader import ReaderLog
from kafkad.protocol import messages
from kafkad.protocol.records import Record, build_batch, read_batches
from tests.readiness import readable
from tests.unit.forked import Forked
from tests.unit.log_world import TOPIC_ID, LogWorld, topic_config
from tests.unit.reactor_world import World, fetch

SOAK = os.environ.get("KAFKAD_SOAK") == "1"
SECONDS = 60 if SOAK else 2
CYCLES = 100_000 if SOAK else 1_500
OUT_OF_RANGE = 1
NOT_LEADER = 6
FIELD = struct.Struct("q")


class Numbers:
    """Integers that processes share; each has one writer."""

    def __init__(self, count):
        self.map = mmap.mmap(-1, count * 8)

    def __getitem__(self, at):
        return FIELD.unpack_from(self.map, at * 8)[0]

    def __setitem__(self, at, value):
        FIELD.pack_into(self.map, at * 8, value)


# -- the row -------------------------------------------------------------------------------------------------

MARKS = 32, 18 * 8  # the 64-bit fields of a row that readers copy


def write_rows(child, table, number, stop):
    """A slow owner: every mark of the row is the same number, except in the midst of a change."""
    row = mmap.mmap(table.fd, 256 * (number + 1))
    at = 256 * number
    (sequence,) = struct.unpack_from("I", row, at)
    count = 0
    while not stop[0]:
        count += 1
        struct.pack_into("I", row, at, sequence + 1)
        for field in range(at + MARKS[0], at + MARKS[1] - 8, 8):
            struct.pack_into("q", row, field, count)
        sequence += 2
        struct.pack_into("I", row, at, sequence)


@pytest.mark.soak
def test_no_copy_of_a_row_is_of_two_moments(tmp_path):
    table = WatermarkTable(4, shared=True)
    slot = table.allocate()
    stop = Numbers(1)
    writer = Forked(write_rows, table, slot.number, stop)
    view = table.row(slot.number)
    whole = seen = last = 0
    deadline = time.monotonic() + SECONDS / 2
    while time.monotonic() < deadline or whole < 50:
        values = view.values()
        seen += 1
        if values.whole:
            whole += 1
            marks = {
                values.log_end_offset, values.high_watermark, values.last_stable_offset,
                values.log_start_offset, values.local_log_start_offset, values.flushed_offset,
                values.end_segment, values.end_position,
            }  # fmt: skip
            assert len(marks) == 1, values
            assert values.log_end_offset >= last
            last = values.log_end_offset
    stop[0] = 1
    writer.wait()
    assert 50 <= whole <= seen


def allocate_rows(child, table, me):
    kept = []
    chance = random.Random(me)
    while (what := child.hear()) != "end":
        del what
        if kept and chance.random() < 0.4:
            kept.pop(chance.randrange(len(kept)))
        else:
            kept.append(table.allocate())
        child.tell([slot.number for slot in kept])


def test_processes_that_allocate_never_get_the_same_row():
    table = WatermarkTable(1_000, shared=True)
    children = [Forked(allocate_rows, table, me) for me in range(3)]
    for _ in range(200):
        for child in children:
            child.tell("go")
        held = [number for child in children for number in child.hear()]
        assert len(held) == len(set(held))
    children[0].tell("go")
    freed = set(children[0].hear())
    children[0].kill()  # its rows stay taken: a successor finds them by their partition
    left = [table.allocate().number for _ in range(5)]
    assert not freed & set(left)
    for child in children[1:]:
        child.tell("end")
        child.wait()


def own_a_row(child, table):
    world_slot = table.allocate()
    other = table.allocate()
    kept = Partition("t", 4, TOPIC_ID, "/nowhere", world_slot)
    child.tell([world_slot.number, other.number])
    child.hear()
    assert kept


def test_a_successor_finds_the_row_of_a_dead_owner():
    table = WatermarkTable(64, shared=True)
    child = Forked(own_a_row, table)
    number, _ = child.hear()
    child.kill()
    assert table.find(TOPIC_ID, 3) is None
    found = table.find(TOPIC_ID, 4)
    assert found is not None
    assert (found.number, found.viewed) == (number, False)
    assert table.find(TOPIC_ID, 4) is None  # it is somebody's now
    assert table.row(number).values().partition == 4
    del found
    assert table.row(number).values().topic_id == bytes(16)  # given back: no reader takes it for what it was
    assert table.find(TOPIC_ID, 4) is None


def test_what_others_gave_back_is_found_when_the_table_is_full():
    table = WatermarkTable(8, shared=True)

    def take_all_and_give_back(child):
        slots = [table.allocate() for _ in range(8)]
        del slots[2:5]
        child.tell(sorted(slot.number for slot in slots))
        child.hear()

    child = Forked(take_all_and_give_back)
    taken = child.hear()
    mine = [table.allocate() for _ in range(3)]
    assert sorted([slot.number for slot in mine] + taken) == list(range(8))
    with pytest.raises(MemoryError):
        table.allocate()
    child.kill()


# -- files ---------------------------------------------------------------------------------------------------

STOP, END, START = 0, 1, 2  # of the numbers: when to stop; LEO and log start as the owner acknowledged them


def own_a_log(child, table, root, seed, numbers, left):
    """Appends, rolls, deletes and truncates without a pause. A record's value is its offset and a salt."""
    chance = random.Random(seed)
    config = topic_config(segment_bytes=40_000, index_interval_bytes=200, segment_index_bytes=4_096)
    world = LogWorld(root, config, log=False)
    if left:
        slot = table.find(TOPIC_ID, 0)
        assert slot is not None
        world.open(left=slot)
    else:
        slot = table.allocate()
        world.open(row=slot)
    log = world.log
    log.native.follows_end = False
    child.tell(log.native.slot.number)
    while not numbers[STOP]:
        at = log.end_offset
        salt = chance.randbytes(4)
        count = chance.randrange(1, 5)
        size = chance.choice([0, 0, 50, 1_500])
        records = [
            Record(None, FIELD.pack(at + i) + salt + bytes(size), timestamp=1_000) for i in range(count)
        ]
        log.append_client(build_batch(records), 1_000)
        what = chance.random()
        if what < 0.02:
            log.roll(1_000)
        elif what < 0.03 and log.end_offset > log.high_watermark:
            log.truncate_to(max(log.high_watermark, at))  # where a batch begins: there are no holes
        elif what < 0.04:
            log.delete_records(max(log.high_watermark - chance.randrange(500), log.log_start_offset))
            log.apply_retention(1_000)
            world.scheduler.run(10**9)
            world.scheduler.settle()
            numbers[START] = log.log_start_offset
        if what < 0.5:
            log.native.advance_high_watermark(min(chance.choice([at, log.end_offset]), log.end_offset))
            numbers[END] = log.high_watermark
    child.tell(log.end_offset)


class Consumer:
    """Reads on from where it was, and at random places, and remembers what every offset held."""

    def __init__(self, table, number, directory, seed):
        self.native = Partition.reader("t", 0, TOPIC_ID, directory, table.row(number), 1)
        ReaderLog(self.native, directory)
        self.chance = random.Random(seed)
        self.held = {}
        self.next = 0
        self.high = 0
        self.read = self.refused = self.jumped = 0

    def turn(self):
        """One read; whether it was answered."""
        forward = self.chance.random() < 0.7
        low = max(self.native.log_start_offset, self.next - 2_000)
        offset = self.next if forward or low >= self.next else self.chance.randrange(low, self.next)
        most = self.chance.choice([1, 500, 5_000, 100_000])
        code, high, stable, start, data = self.native.try_read(offset, most, True, self.chance.randrange(2))
        if code == OUT_OF_RANGE:
            assert offset < start
            if forward:
                self.next = start
            self.jumped += 1
            return True
        if code == NOT_LEADER:
            self.refused += 1
            return False
        assert code == 0, (code, offset, start, high)
        assert start <= offset <= high
        assert stable == high >= self.high
        self.high = high
        if offset < high:
            assert data
        expected = None
        for batch in read_batches(whole_batches(data)):
            first = [record.offset for record in batch.records()]
            if expected is None:
                assert batch.base_offset <= offset <= first[-1]
            else:
                assert batch.base_offset == expected
            expected = first[-1] + 1
            assert expected <= high
            for record in batch.records():
                assert FIELD.unpack_from(record.value)[0] == record.offset
                assert self.held.setdefault(record.offset, record.value) == record.value
            self.read += 1
        if forward and expected is not None:
            self.next = max(self.next, expected)
        return True


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(8 if SOAK else 2))
def test_readers_of_a_log_that_changes_all_the_time(tmp_path, seed):
    table = WatermarkTable(8, shared=True)
    numbers = Numbers(3)
    owner = Forked(own_a_log, table, tmp_path, seed, numbers, False)
    number = owner.hear()
    consumers = [Consumer(table, number, str(tmp_path / "t-0"), seed * 100 + i) for i in range(3)]
    deadline = time.monotonic() + SECONDS
    turns = 0
    while time.monotonic() < deadline:
        for consumer in consumers:
            told_end, told_start = numbers[END], numbers[START]
            turns += 1
            if consumer.turn():
                assert consumer.native.high_watermark >= told_end  # what was told before is seen
                assert consumer.native.log_start_offset >= told_start
        if consumers[2].native.listings % 50 == 49:
            consumers[2].native.release_idle()
    numbers[STOP] = 1
    owner.hear()
    owner.wait()
    read = sum(consumer.read for consumer in consumers)
    refused = sum(consumer.refused for consumer in consumers)
    assert read > 100
    assert refused < turns / 20, (refused, turns)
    assert consumers[0].native.listings > 3
    for consumer in consumers:  # and now that nothing moves, all that there is
        while consumer.next < consumer.native.high_watermark:
            consumer.turn()


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(3))
def test_readers_read_on_when_the_owner_is_killed_and_has_a_successor(tmp_path, seed):
    table = WatermarkTable(8, shared=True)
    numbers = Numbers(3)
    chance = random.Random(seed)
    owner = Forked(own_a_log, table, tmp_path, seed, numbers, False)
    number = owner.hear()
    consumer = Consumer(table, number, str(tmp_path / "t-0"), seed)
    for life in range(30 if SOAK else 5):
        deadline = time.monotonic() + chance.random() / 4
        while time.monotonic() < deadline:
            consumer.turn()
        owner.kill()
        refused = consumer.refused
        for _ in range(50):
            consumer.turn()
        assert consumer.refused - refused in (
            0,
            50,
        )  # by files and row alone; or it died between files and row
        owner = Forked(own_a_log, table, tmp_path, f"{seed} {life}", numbers, True)
        assert owner.hear() == number
    refused = consumer.refused
    for _ in range(50):
        consumer.turn()
    assert consumer.refused - refused < 50
    owner.kill()
    assert consumer.read > 50


# -- wakeups -------------------------------------------------------------------------------------------------

ANSWERED = 0  # of the numbers: how many fetches
IDLE = 500  # partitions


def poll_worker(world, seconds=10.0):
    """Sleeps until the reactor's own fd says so: a doorbell that is not rung is a wakeup lost."""
    ready = readable([world.reactor.fileno()], seconds)
    assert ready, "nobody rang"
    world.reactor.poll()


def own_for_waiters(child, table, mailboxes, root, cycles, numbers):
    """Appends one batch each time that the last was answered, after a moment of any length. Other partitions
    of the topic stand still: to look at all of them takes long enough for an append to come in between."""
    mailboxes.enter(1)
    world = World(str(root), mailboxes=mailboxes)
    log = LogWorld(root, log=False)
    log.open(row=table.allocate())
    (root / "idle").mkdir()
    (root / "idle" / f"{0:020d}.log").touch()
    natives = [log.log.native]
    for index in range(1, IDLE + 1):
        native = Partition("t", index, TOPIC_ID, str(root / "idle"), table.allocate())
        native.add_segment(0, 0, 0)
        native.lead(0)
        natives.append(native)
    for native in natives:
        world.table.add(native, "t", TOPIC_ID)
    child.tell([native.slot.number for native in natives])
    chance = random.Random(1)
    for cycle in range(cycles):
        deadline = time.monotonic() + 20
        while numbers[ANSWERED] < cycle:
            world.reactor.poll()
            assert time.monotonic() < deadline, f"cycle {cycle} was not answered"
        for _ in range(chance.randrange(chance.choice([1, 3_000, 10_000]))):  # of about 30 ns
            pass
        log.append()
        world.reactor.poll()
    child.hear()


@pytest.mark.soak
def test_no_wakeup_is_lost_between_workers(tmp_path):
    table = WatermarkTable(2 * IDLE, shared=True)
    mailboxes = Mailboxes(2)
    numbers = Numbers(2)
    owner = Forked(own_for_waiters, table, mailboxes, tmp_path, CYCLES, numbers)
    mailboxes.enter(0)
    rows = owner.hear()
    world = World(str(tmp_path), mailboxes=mailboxes)
    for index, row in enumerate(rows):
        directory = str(tmp_path / ("idle" if index else "t-0"))
        reader = Partition.reader("t", index, TOPIC_ID, directory, table.row(row), 1)
        world.table.add(reader, "t", TOPIC_ID)
    client = world.connect()
    session = {"session_id": 0, "session_epoch": 0}
    asked = [("t", index, 0) for index in range(IDLE + 1)]
    for cycle in range(CYCLES):
        client.send_request(fetch(asked, max_wait_ms=60_000, min_bytes=1, **session), 12)
        while not client.received:
            try:
                client.received += client.socket.recv(1 << 16)
            except BlockingIOError:
                poll_worker(world)
        answer = client.receive(messages.FetchResponse, 12)
        assert answer.error_code == 0
        (batch,) = read_batches(answer.responses[0].partitions[0].records)
        assert batch.base_offset == cycle
        numbers[ANSWERED] = cycle + 1
        session = {"session_id": answer.session_id, "session_epoch": cycle + 1}
        asked = [("t", 0, cycle + 1)]
    assert world.reactor.stats()["fetch_waits"] > CYCLES / 10
    assert world.reactor.stats()["fetch_timeouts"] == 0
    owner.tell("end")
    owner.wait()
    world.close()


def test_who_waits_for_a_dead_owner_is_answered_by_its_successor(tmp_path):
    table = WatermarkTable(8, shared=True)
    mailboxes = Mailboxes(2)

    def own_and_die(child):
        mailboxes.enter(1)
        log = LogWorld(tmp_path, log=False)
        log.open(row=table.allocate())
        log.append()
        child.tell(log.log.native.slot.number)
        child.hear()

    def succeed(child):
        child.hear()
        mailboxes.enter(1)
        heir = World(str(tmp_path), mailboxes=mailboxes)
        log = LogWorld(tmp_path, log=False)
        log.open(left=table.find(TOPIC_ID, 0))
        heir.table.add(log.log.native, "t", TOPIC_ID)
        heir.reactor.poll()
        log.append()
        heir.reactor.poll()
        child.tell("appended")
        child.hear()

    owner = Forked(own_and_die)
    heir = Forked(succeed)
    mailboxes.enter(0)
    number = owner.hear()
    world = World(str(tmp_path), mailboxes=mailboxes)
    reader = Partition.reader("t", 0, TOPIC_ID, str(tmp_path / "t-0"), table.row(number), 1)
    ReaderLog(reader, str(tmp_path / "t-0"))
    world.table.add(reader, "t", TOPIC_ID)
    client = world.connect()
    client.send_request(fetch([("t", 0, 1)], max_wait_ms=60_000, min_bytes=1), 12)
    world.poll()
    assert world.reactor.stats()["fetch_waits"] == 1
    assert table.row(number).values().waiters == 1
    owner.kill()
    world.table.owner_lost(1)
    world.poll()
    assert not client.has_answer()
    assert heir.ask("go") == "appended"
    answer = client.receive(messages.FetchResponse, 12)
    (batch,) = read_batches(answer.responses[0].partitions[0].records)
    assert batch.base_offset == 1
    heir.tell("end")
    heir.wait()
    world.close()

"""The table of rows over the lives of its workers: what a dead one had is its successor's, or free again."""

import gc
import os
import random
import struct
import sys
import time

import pytest

from kafkad._native.log.partition import Partition
from kafkad._native.shared.watermarks import WatermarkTable
from kafkad.protocol import errors
from kafkad.protocol.errors import KafkaError
from tests.unit.forked import Forked
from tests.unit.log_world import TOPIC_ID
from tests.unit.test_log_workers import Disks, Worker, id_of

SOAK = os.environ.get("KAFKAD_SOAK") == "1"
ROUNDS = 500 if SOAK else 40
ROW_SIZE = 256


def takes(child, table, me, indexes, bare):
    """A worker with partitions, and rows that it has just taken."""
    table.enter(me)
    kept = [Partition("t", index, TOPIC_ID, "/nowhere", table.allocate()) for index in indexes]
    kept += [table.allocate() for _ in range(bare)]
    child.tell()
    child.hear()
    assert kept


def free_rows(table) -> int:
    """How many can be had; they are given back."""
    rows = []
    try:
        while True:
            rows.append(table.allocate())
    except MemoryError:
        return len(rows)


def test_a_free_row_takes_no_object():
    """Thousands are free after a topic is deleted: an int for each would keep a page of what is gone."""
    table = WatermarkTable(6_000)
    rows = [table.allocate() for _ in range(5_000)]
    before = sys.getallocatedblocks()
    rows.clear()
    assert sys.getallocatedblocks() < before - 4_900
    assert free_rows(table) == 6_000


def succeeds(child, table, me, indexes):
    table.enter(me)
    found = [table.find(TOPIC_ID, index) for index in indexes]
    assert None not in found
    child.tell(table.reclaim())
    assert table.reclaim() == 0
    child.tell(free_rows(table))
    assert [slot.values().partition for slot in found] == indexes


def test_rows_that_a_successor_does_not_find_are_free_again():
    table = WatermarkTable(16, shared=True)
    other = Forked(takes, table, 0, [5, 6], 1)
    first = Forked(takes, table, 1, [1, 2, 3], 2)
    other.hear(), first.hear()
    first.kill()
    assert free_rows(table) == 8
    second = Forked(succeeds, table, 1, [2])
    assert second.hear() == 4  # two partitions that are gone, and two rows that no partition had yet
    assert second.hear() == 16 - 3 - 1
    second.wait()
    other.kill()


def test_a_row_that_a_dead_process_had_counted_and_not_taken_is_found():
    table = WatermarkTable(4, shared=True)
    os.pwrite(table.fd, struct.pack("Q", 3), 4 * ROW_SIZE)
    assert free_rows(table) == 4


def comes_and_goes(child, table, me, seed):
    table.enter(me)
    chance = random.Random(seed)
    kept = []
    child.tell()
    while True:
        if kept and chance.random() < 0.5:
            kept.pop(chance.randrange(len(kept)))
        elif len(kept) < 10:
            slot = table.allocate()
            kept.append(Partition("t", chance.randrange(9), TOPIC_ID, "/nowhere", slot))


def reclaims(child, table, me):
    table.enter(me)
    child.tell(table.reclaim())


@pytest.mark.soak
def test_a_worker_killed_wherever_it_is_leaks_no_row():
    table = WatermarkTable(24, shared=True)
    chance = random.Random(5)
    for number in range(ROUNDS):
        children = [Forked(comes_and_goes, table, me, number) for me in range(2)]
        for child in children:
            child.hear()
        time.sleep(chance.random() * 0.004)
        for child in children:
            child.kill()
        for me in range(2):
            successor = Forked(reclaims, table, me)
            assert successor.hear() <= 11
            successor.wait()
        assert free_rows(table) == 24


def comes_back(child, disks, topics):
    disks.topics = topics
    worker = Worker(disks, 1, restarted=True, owner=lambda *_: 1)
    worker.dirs.reclaim_rows()
    table = disks.dirs.table
    child.tell([table.row(number).values().topic_id.hex() for number in range(table.used)])
    child.tell(sorted(log.topic for log in worker.dirs.all()))


def has_two(child, disks):
    worker = Worker(disks, 1, owner=lambda *_: 1)
    for name in ("kept", "deleted"):
        worker.create(name)
    child.tell()
    child.hear()


def test_the_row_of_a_topic_that_was_deleted_while_its_owner_was_dead_is_free_again(tmp_path):
    disks = Disks(tmp_path)
    first = Forked(has_two, disks)
    first.hear()
    first.kill()
    second = Forked(comes_back, disks, {"kept": id_of("kept")})
    rows = second.hear()
    assert id_of("kept").hex() in rows
    assert id_of("deleted").hex() not in rows
    assert second.hear() == ["kept"]
    second.wait()


def fills(child, disks):
    gc.disable()
    worker = Worker(disks, 1)
    worker.create("a"), worker.create("b")
    with pytest.raises(KafkaError) as refused:
        worker.create("c")
    assert refused.value.code == errors.KAFKA_STORAGE_ERROR
    worker.dirs.delete("a", 0)
    worker.create("d")
    child.tell([log.topic for log in worker.dirs.all()])


def test_a_full_table_is_the_error_of_the_partition_that_finds_no_room(tmp_path):
    disks = Disks(tmp_path)
    disks.dirs.table = WatermarkTable(2, shared=True)
    child = Forked(fills, disks)
    assert child.hear() == ["b", "d"]
    child.wait()

"""The shared rows, and what a partition answers before, while and after it is led."""

import gc
import mmap
import os
import struct

from kafkad._native.log.partition import Partition
from kafkad._native.shared.watermarks import WatermarkTable, private_row
from tests.unit.log_world import TOPIC_ID, LogWorld

ROW = struct.Struct(
    "<Ii16sIi7q"
)  # sequence, partition, topic id, generation, leader epoch, LEO, HW, LSO, start, …


def row_of(table: WatermarkTable, number: int) -> tuple:
    with mmap.mmap(table.fd, table.capacity * 256, prot=mmap.PROT_READ) as map:
        return ROW.unpack_from(map, number * 256)


def test_another_mapping_sees_the_marks(tmp_path):
    table = WatermarkTable(16)
    table.allocate()
    slot = table.allocate()
    world = LogWorld(tmp_path, epoch=6, log=object())
    world.open(row=slot)
    world.append(count=3)
    sequence, index, topic_id, generation, epoch, end, high, stable, start, *_ = row_of(table, slot.number)
    assert sequence % 2 == 0
    assert (index, topic_id, epoch, end, high, stable, start) == (0, TOPIC_ID, 6, 3, 3, 3, 0)
    world.log.truncate_to(1)
    assert row_of(table, slot.number)[3] == generation + 1
    world.log.resign()
    assert row_of(table, slot.number)[4] == -1


def test_rows_are_given_again_and_zeroed():
    table = WatermarkTable(4)
    slots = [table.allocate() for _ in range(4)]
    Partition("t", 9, TOPIC_ID, "/nowhere", slots[2])
    gc.collect()
    assert [slot.number for slot in slots] == [0, 1, 2, 3]
    assert row_of(table, 2)[1] == 9
    del slots[2]
    again = table.allocate()
    assert again.number == 2
    assert row_of(table, 2) == (0, 0, bytes(16), 0, 0, 0, 0, 0, 0, 0, 0, 0)


def test_a_full_table_says_so():
    table = WatermarkTable(1)
    kept = [table.allocate()]
    try:
        table.allocate()
    except MemoryError as e:
        assert "full" in str(e)
    else:
        raise AssertionError("there was no room")
    assert kept[0].number == 0


def test_a_table_outlives_nobody():
    gc.collect()  # what other tests left would give its descriptors back in between
    before = len(os.listdir("/proc/self/fd"))
    table = WatermarkTable(8)
    slot = table.allocate()
    del table
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before + 1
    del slot
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_partition_without_a_log_serves_nothing():
    partition = Partition("t", 0, None, "/nowhere", private_row())
    assert partition.try_read(0, 100)[0] == 6
    assert partition.try_append(bytearray(100), 0)[0] == 6
    assert partition.topic_id == bytes(16)


def test_a_partition_that_is_gone_answers_the_reason(tmp_path):
    world = LogWorld(tmp_path)
    world.append()
    acks: list[object] = []
    world.log.native.follows_end = False
    world.append()
    world.log.await_high_watermark(2, acks.append)
    world.log.resign(3)
    assert world.log.native.try_read(0, 100)[0] == 3
    assert acks[0].code == 3

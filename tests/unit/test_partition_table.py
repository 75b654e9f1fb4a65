"""The table of partitions: what it refers to goes with it."""

import gc

from kafkad._native.log.partition import Partition
from kafkad._native.serving.partition_table import PartitionTable
from kafkad._native.shared.watermarks import WatermarkTable
from tests.unit.log_world import TOPIC_ID, batch
from tests.unit.test_partitions import topic
from tests.unit.test_partitions_workers import World


class Owner:
    """A log, which knows the table that its partition is in."""

    def __init__(self, table) -> None:
        self.table = table


def memory_tables() -> int:
    with open("/proc/self/maps") as maps:
        return sum("kafkad-watermarks" in line for line in maps)


def partition(rows, index: int) -> Partition:
    return Partition("t", index, TOPIC_ID, "/nowhere", rows.allocate())


def test_a_ring_of_garbage_through_a_table_is_collected():
    rows = WatermarkTable(3)
    table = PartitionTable()
    for index in range(3):
        made = partition(rows, index)
        made.log = Owner(table)
        table.add(made, "t", TOPIC_ID)
    table.remove("t", 2)  # buried by the reactor's next turn, which does not come
    del made
    gc.collect()
    assert [table.get("t", index).index for index in range(2)] == [0, 1], "nothing in use is collected"
    del table
    gc.collect()
    kept = [rows.allocate() for _ in range(3)]  # all of them are back
    assert sorted(slot.number for slot in kept) == [0, 1, 2]


def test_a_partition_that_outlives_its_table_advances():
    rows = WatermarkTable(3)
    table = PartitionTable()
    made = partition(rows, 0)
    made.log = Owner(table)
    table.add(made, "t", TOPIC_ID)
    del table
    made.log = None
    gc.collect()
    made.close_to_clients()
    assert made.leader_epoch == -1


def test_a_worker_that_ends_in_this_process_leaves_no_table(tmp_path):
    gc.collect()
    before = memory_tables()
    world = World(tmp_path)
    world.commit(*topic("t", partitions=4))
    world.deliver()
    world.owner("t", 0).partitions.get("t", 0).append_client(batch(2), 1_000)
    assert memory_tables() == before + 1
    del world
    gc.collect()
    assert memory_tables() == before

"""Partitions of several workers: who opens what, what the others are told, and what they read by it.

Two workers in one process: each with its table and its logs in a directory of its own, and the rows between
them. What they announce goes from one to the other when the test says so."""

import os

import pytest

from kafkad._native.serving.partition_table import PartitionTable
from kafkad._native.shared.watermarks import WatermarkTable
from kafkad.clock import ManualClock
from kafkad.config.broker import BrokerConfig
from kafkad.log.checkpoints import write_partition_metadata
from kafkad.log.log_dirs import LogDirs
from kafkad.metadata.image import MetadataImage
from kafkad.metadata.replay import applied
from kafkad.protocol import errors, messages
from kafkad.protocol.errors import KafkaError
from kafkad.replication.ownership import owner_of
from kafkad.replication.partitions import Partitions
from tests.unit.log_world import ManualScheduler, batch
from tests.unit.test_partitions import BROKER, topic, topic_id


class Worker:
    def __init__(self, world, me: int) -> None:
        settings = {
            "node.id": "1", "process.roles": "broker,controller", "log.dirs": str(world.root / f"w{me}"),
        }  # fmt: skip
        self.path = settings["log.dirs"]
        self.config = BrokerConfig(settings)
        self.scheduler = ManualScheduler()
        self.dirs = LogDirs(self.config, ManualClock(1_000), None, table=world.rows)
        self.dirs.open()
        self.dirs.enter(me, self.scheduler)
        self.dirs.load(lambda _: None, {})
        self.table = PartitionTable()
        self.partitions = Partitions(BROKER, self.config, self.dirs, self.table, me=me, workers=2)
        self.said = []
        self.partitions.on_opened = lambda log: self.said.append(
            ("opened", log.topic, log.topic_id, log.partition, log.native.slot.number, log.directory)
        )
        self.partitions.on_dropped = lambda name, index, id: self.said.append(("dropped", name, id, index))
        self.me = me


class World:
    def __init__(self, root) -> None:
        self.root = root
        self.rows = WatermarkTable(1024, shared=True)
        self.image = MetadataImage("cluster", BROKER)
        self.workers = [Worker(self, me) for me in range(2)]

    def commit(self, *records, workers=(0, 1)) -> None:
        self.image, delta = applied(self.image, records)
        for me in workers:
            self.workers[me].partitions.apply_delta(delta, self.image)

    def deliver(self) -> None:
        """What each worker has said reaches the other."""
        for worker, other in (self.workers, reversed(self.workers)):
            said, worker.said = worker.said, []
            for what, name, made, index, *where in said:
                if what == "opened":
                    other.partitions.announced(name, made, index, *where, worker.me)
                else:
                    other.partitions.withdrawn(name, made, index, worker.me)

    def owner(self, name: str, index: int) -> Worker:
        return self.workers[owner_of(self.image.topics[name].topic_id, index, 2)]

    def other(self, name: str, index: int) -> Worker:
        return self.workers[1 - self.owner(name, index).me]


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


def test_the_partitions_of_a_topic_go_round_the_workers():
    for made in (topic_id("a"), os.urandom(16)):
        first = owner_of(made, 0, 3)
        assert [owner_of(made, index, 3) for index in range(6)] == [(first + i) % 3 for i in range(6)]
        assert owner_of(made, 5, 1) == 0
    begins = [owner_of(os.urandom(16), 0, 4) for _ in range(400)]
    assert min(begins.count(k) for k in range(4)) > 40


def test_each_worker_opens_its_own_and_reads_the_others(world):
    world.commit(*topic("t", partitions=4))
    assert [len(worker.partitions) for worker in world.workers] == [2, 2]
    world.deliver()
    for index in range(4):
        owner, other = world.owner("t", index), world.other("t", index)
        assert owner.partitions.owner_of("t", index) == other.partitions.owner_of("t", index) == owner.me
        log = owner.partitions.get("t", index)
        log.append_client(batch(2 + index), 1_000)
        assert owner.table.get("t", index) is log.native
        reader = other.table.get("t", index)
        assert reader.owner == owner.me
        code, high_watermark, _, _, data = reader.try_read(0, 1_000)
        assert (code, high_watermark, len(data)) == (0, 2 + index, log.size)
        assert other.partitions.find("t", index) is None
        with pytest.raises(KafkaError) as refused:
            other.partitions.get("t", index)
        assert refused.value.code == errors.NOT_LEADER_OR_FOLLOWER
    assert world.workers[0].partitions.owner_of("u", 0) is None
    assert world.workers[0].partitions.owner_of("t", 4) is None


def test_an_announcement_may_come_before_the_image(world):
    world.commit(*topic("t", partitions=2), workers=(0,))
    world.deliver()
    late = world.workers[1]
    assert len(late.table) == 0
    late.partitions.apply(world.image)
    assert len(late.table) == 2
    world.deliver()
    assert len(world.workers[0].table) == 2


def test_an_announcement_of_another_topic_of_that_name_is_kept_for_its_time(world):
    world.commit(*topic("t"))
    other = world.other("t", 0)
    world.deliver()
    old = world.owner("t", 0).partitions.get("t", 0)
    other.partitions.announced("t", topic_id("new"), 0, old.native.slot.number, old.directory, 1 - other.me)
    assert other.table.get("t", 0).topic_id == topic_id("t")


def test_what_is_deleted_is_gone_for_both_whichever_hears_first(world):
    for first, second in ((0, 1), (1, 0)):
        world.commit(*topic("t", partitions=2))
        world.deliver()
        gone = messages.RemoveTopicRecord(topic_id=topic_id("t"))
        before = world.image
        world.commit(gone, workers=(first,))
        assert len(world.workers[first].table) == 0
        if first == 0:
            world.deliver()
            assert len(world.workers[second].table) == 1  # its own
        world.image, delta = applied(before, [gone])
        world.workers[second].partitions.apply_delta(delta, world.image)
        world.deliver()
        assert [len(worker.table) for worker in world.workers] == [0, 0]
        assert [worker.partitions._announced for worker in world.workers] == [{}, {}]


def test_a_topic_that_is_made_again_is_read_by_its_new_row(world):
    world.commit(*topic("t"))
    world.deliver()
    world.owner("t", 0).partitions.get("t", 0).append_client(batch(5), 1_000)
    world.commit(messages.RemoveTopicRecord(topic_id=topic_id("t")), *topic("t", id_of="again"))
    world.deliver()
    world.owner("t", 0).partitions.get("t", 0).append_client(batch(2), 1_000)
    reader = world.other("t", 0).table.get("t", 0)
    assert reader.topic_id == topic_id("again")
    assert reader.try_read(0, 1_000)[1] == 2


def test_a_withdrawal_by_who_does_not_own_it_any_more_is_ignored(world):
    world.commit(*topic("t"))
    world.deliver()
    other = world.other("t", 0)
    other.partitions.withdrawn("t", topic_id("t"), 0, other.me)
    assert len(other.table) == 1


def test_an_owner_that_comes_back_with_another_row_replaces_the_reader(world):
    world.commit(*topic("t"))
    world.deliver()
    owner, other = world.owner("t", 0), world.other("t", 0)
    log = owner.partitions.get("t", 0)
    log.append_client(batch(3), 1_000)
    reader = other.table.get("t", 0)
    other.partitions.announced("t", topic_id("t"), 0, log.native.slot.number, log.directory, owner.me)
    assert other.table.get("t", 0) is reader
    log.native.adopt_row(world.rows.allocate())
    other.partitions.announced("t", topic_id("t"), 0, log.native.slot.number, log.directory, owner.me)
    assert other.table.get("t", 0) is not reader
    assert other.table.get("t", 0).try_read(0, 1_000)[1] == 3


def test_a_partition_whose_name_is_not_free_yet_is_made_when_it_is(world, caplog):
    made = topic_id("t")
    owner = world.workers[owner_of(made, 0, 2)]
    occupied = os.path.join(owner.path, "t-0")
    os.mkdir(occupied)
    write_partition_metadata(occupied, topic_id("before"))
    world.commit(*topic("t"))
    assert len(owner.table) == 0
    with pytest.raises(KafkaError) as refused:
        owner.partitions.get("t", 0)
    assert refused.value.code == errors.NOT_LEADER_OR_FOLLOWER
    for _ in range(10):
        owner.scheduler.run(1_000)
    assert len(owner.table) == 0
    assert caplog.text.count("still there") == 1
    os.rename(occupied, occupied + "." + "0" * 32 + "-delete")
    owner.scheduler.run(1_000)
    assert owner.partitions.get("t", 0).append_client(batch(1), 1_000).base_offset == 0
    assert [what for what, *_ in owner.said] == ["opened"]
    assert not owner.scheduler.timers


def test_a_partition_that_goes_before_its_name_is_free_is_not_made(world):
    made = topic_id("t")
    owner = world.workers[owner_of(made, 0, 2)]
    occupied = os.path.join(owner.path, "t-0")
    os.mkdir(occupied)
    write_partition_metadata(occupied, topic_id("before"))
    world.commit(*topic("t"))
    world.commit(messages.RemoveTopicRecord(topic_id=made))
    os.rename(occupied, occupied + "." + "0" * 32 + "-delete")
    owner.scheduler.run(1_000)
    assert (len(owner.table), owner.said, owner.scheduler.timers) == (0, [], [])


def test_a_partition_in_a_directory_that_is_not_there_has_its_error_in_every_worker(world):
    records = topic("t")
    records[1].directories = [topic_id("a directory")]
    world.commit(*records)
    for worker in world.workers:
        assert worker.table.get("t", 0).try_read(0, 1_000)[0] == errors.KAFKA_STORAGE_ERROR
    world.commit(messages.RemoveTopicRecord(topic_id=topic_id("t")))
    assert [len(worker.table) for worker in world.workers] == [0, 0]


def test_a_directory_that_fails_is_a_storage_error_for_the_other_workers_too(world):
    world.commit(*topic("t"))
    world.deliver()
    owner, other = world.owner("t", 0), world.other("t", 0)
    # what the other worker knows of directories that all share: here each has its own
    other.dirs._directories += owner.dirs._directories
    owner.partitions.get("t", 0).append_client(batch(3), 1_000)
    assert other.table.get("t", 0).try_read(0, 1_000)[0] == 0
    other.dirs.set_offline(owner.path)
    assert other.table.get("t", 0).try_read(0, 1_000)[0] == errors.KAFKA_STORAGE_ERROR
    log = owner.partitions.get("t", 0)
    other.partitions.announced("t", topic_id("t"), 0, log.native.slot.number, log.directory, owner.me)
    assert other.table.get("t", 0).try_read(0, 1_000)[0] == errors.KAFKA_STORAGE_ERROR

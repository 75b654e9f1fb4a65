"""Partitions that cannot be opened at once: clients get a retriable error, and they are opened later."""

import errno
import os
from functools import partial
from types import SimpleNamespace

import pytest

from kafkad.config.broker import BrokerConfig
from kafkad.coordinator.runtime import GroupCoordinator
from kafkad.log import log as log_module
from kafkad.log import recovery
from kafkad.metadata.image import MetadataImage
from kafkad.protocol import errors, messages
from kafkad.protocol.errors import KafkaError
from kafkad.replication.partitions import TRIED_AT_A_TIME
from kafkad.server.group_loader import GroupLoader
from kafkad.server.group_storage import OFFSETS_TOPIC, GroupStorage
from kafkad.server.worker import Worker
from tests.unit import test_partitions_workers
from tests.unit.log_world import batch
from tests.unit.test_partitions import World, topic, topic_id


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


def pass_time(scheduler, ms: int) -> None:
    for _ in range(0, ms, 100):
        scheduler.run(100)
        scheduler.work()


class Shortage:
    """While `short`, no log whose directory ends in `suffix` can be opened: EMFILE, or as asked."""

    def __init__(self, monkeypatch, suffix: str, code: int = errno.EMFILE) -> None:
        self.short, self.tries = True, 0
        list_files = recovery.list_files

        def limited(directory):
            if self.short and directory.endswith(suffix):
                self.tries += 1
                raise OSError(code, os.strerror(code), directory)
            return list_files(directory)

        monkeypatch.setattr(recovery, "list_files", limited)


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.ENOMEM])
def test_a_partition_that_could_not_be_made_is_made_when_the_shortage_is_over(
    world, monkeypatch, caplog, code
):
    """HUNTS W4: it was UNKNOWN_TOPIC_OR_PARTITION until a restart."""
    shortage = Shortage(monkeypatch, "t-1", code)
    opened, led = [], []
    world.partitions.on_opened = lambda log: opened.append(log.partition)
    world.partitions.on_led = lambda log: led.append(log.partition)
    world.commit(*topic("t", partitions=3))
    assert opened == led == [0, 2]
    assert "partition t-1 cannot be opened, will try again" in caplog.text
    assert world.table.get("t", 1).try_append(batch(1), 1_000)[0] == errors.KAFKA_STORAGE_ERROR
    with pytest.raises(KafkaError) as refused:
        world.partitions.get("t", 1)
    assert refused.value.code == errors.KAFKA_STORAGE_ERROR
    pass_time(world.disks.scheduler, 20_000)
    assert shortage.tries > 5 and "1 partitions still wait, of them t-1" in caplog.text
    shortage.short = False
    pass_time(world.disks.scheduler, 5_000)
    assert opened == led == [0, 2, 1]
    assert world.table.get("t", 1).try_append(batch(1), 1_000)[0] == 0
    assert "partition t-1 is open now" in caplog.text
    assert not world.disks.scheduler.timers


def test_a_log_that_could_not_be_loaded_at_the_start_is_loaded_when_the_shortage_is_over(world, monkeypatch):
    """HUNTS W4, at a start: its records are there again, and the other logs never went."""
    world.commit(*topic("t", partitions=2))
    for index in range(2):
        world.partitions.get("t", index).append_client(batch(3), 1_000)
    shortage = Shortage(monkeypatch, "t-1")
    world.restart()
    assert world.table.get("t", 0).try_append(batch(1), 1_000)[0] == 0
    assert world.table.get("t", 1).try_append(batch(1), 1_000)[0] == errors.KAFKA_STORAGE_ERROR
    shortage.short = False
    pass_time(world.disks.scheduler, 5_000)
    assert world.partitions.get("t", 1).append_client(batch(1), 1_000).base_offset == 3


def test_a_partition_that_waits_can_be_deleted(world, monkeypatch):
    shortage = Shortage(monkeypatch, "t-0")
    world.commit(*topic("t"))
    world.commit(messages.RemoveTopicRecord(topic_id=topic_id("t")))
    assert ("t", 0) not in world.table
    shortage.short = False
    pass_time(world.disks.scheduler, 10_000)
    assert len(world.partitions) == 0 and not world.partitions.failed()
    world.commit(*topic("t", id_of="u"))
    assert world.partitions.get("t", 0).topic_id == topic_id("u")


def test_an_old_directory_that_could_not_be_renamed_is_renamed_later(world, monkeypatch, caplog):
    """HUNTS W4: the new topic of that name was never made."""
    world.commit(*topic("t"))
    world.partitions.get("t", 0).append_client(batch(5), 1_000)
    with monkeypatch.context() as patch:

        def full(source, target):
            raise OSError(errno.ENOSPC, "No space left on device", source)

        patch.setattr(log_module.os, "rename", full)
        world.commit(messages.RemoveTopicRecord(topic_id=topic_id("t")), *topic("t", id_of="u"))
        pass_time(world.disks.scheduler, 3_000)
        assert world.table.get("t", 0).try_append(batch(1), 1_000)[0] == errors.KAFKA_STORAGE_ERROR
        assert "could not be renamed for deletion, will try again" in caplog.text
    pass_time(world.disks.scheduler, 10_000)
    log = world.partitions.get("t", 0)
    assert (log.end_offset, log.topic_id) == (0, topic_id("u"))
    assert world.table.get("t", 0).try_append(batch(1), 1_000)[0] == 0


def test_other_workers_answer_a_storage_error_until_the_owner_has_opened_it(tmp_path, monkeypatch):
    """HUNTS W4: not UNKNOWN_TOPIC_OR_PARTITION, which a topic that was just made must not be."""
    world = test_partitions_workers.World(tmp_path)
    for worker in world.workers:
        worker.partitions.on_failed = lambda name, index, made, said=worker.said: said.append(
            ("opened", name, made, index, -1, "")
        )
    shortage = Shortage(monkeypatch, "t-0")
    world.commit(*topic("t"))
    world.deliver()
    owner, other = world.owner("t", 0), world.other("t", 0)
    for worker in world.workers:
        assert worker.table.get("t", 0).try_append(batch(1), 1_000)[0] == errors.KAFKA_STORAGE_ERROR
    shortage.short = False
    pass_time(owner.scheduler, 5_000)
    world.deliver()
    owner.partitions.get("t", 0).append_client(batch(2), 1_000)
    assert other.table.get("t", 0).try_read(0, 1_000)[:2] == (0, 2)


def test_an_offsets_partition_that_is_opened_late_gets_its_groups(world, monkeypatch):
    """HUNTS W3: its groups were answered NOT_COORDINATOR until a restart."""
    config = BrokerConfig({**world.disks.settings, "offsets.topic.num.partitions": "2"})
    metadata = SimpleNamespace(image=MetadataImage("cluster", 1))
    clock, scheduler = world.disks.clock, world.disks.scheduler
    storage = GroupStorage(config, world.partitions, metadata, clock, scheduler)
    groups = GroupCoordinator(config, clock, scheduler, storage, lambda: "id")
    loader = GroupLoader(groups, world.partitions, scheduler)
    world.partitions.on_led = partial(Worker._led, SimpleNamespace(_group_loader=loader))
    shortage = Shortage(monkeypatch, f"{OFFSETS_TOPIC}-1")
    world.commit(*topic(OFFSETS_TOPIC, partitions=2))
    scheduler.settle()
    assert sorted(groups.shards) == [0]
    shortage.short = False
    pass_time(scheduler, 5_000)
    scheduler.settle()
    assert sorted(groups.shards) == [0, 1]
    assert not groups.shards[1].closed


def test_many_partitions_that_wait_are_tried_a_few_in_each_turn_of_the_loop(world, monkeypatch):
    """All of them were tried in one piece, while every client of the worker waited."""
    shortage = Shortage(monkeypatch, "")
    world.commit(*topic("t", partitions=100), *topic("u", partitions=3))
    shortage.short = False
    scheduler, opened = world.disks.scheduler, []
    world.partitions.on_opened = lambda log: opened.append((log.topic, log.partition))
    in_a_turn = []
    while len(opened) < 103:
        due = min(scheduler.timers)
        scheduler.timers.remove(due)
        scheduler.now_ms = max(scheduler.now_ms, due[0])
        before = len(opened)
        due[2]()
        in_a_turn.append(len(opened) - before)
    assert max(in_a_turn) <= TRIED_AT_A_TIME
    assert opened == sorted(opened) and len(set(opened)) == 103
    assert scheduler.now_ms < 1_000  # no turn waited for a timer of the next try
    pass_time(scheduler, 1_000)
    assert not scheduler.timers and not world.partitions.failed()


def test_a_partition_that_is_deleted_between_two_turns_of_tries_is_not_made(world, monkeypatch):
    shortage = Shortage(monkeypatch, "")
    world.commit(*topic("t", partitions=10), *topic("u"))
    shortage.short = False
    scheduler = world.disks.scheduler
    due = min(scheduler.timers)
    scheduler.timers.remove(due)
    due[2]()  # the first turn
    assert 0 < len(world.partitions) <= TRIED_AT_A_TIME
    world.commit(messages.RemoveTopicRecord(topic_id=topic_id("t")), *topic("t", id_of="v"))
    pass_time(scheduler, 20_000)
    assert {(log.topic, log.topic_id) for log in world.partitions} == {
        ("t", topic_id("v")),
        ("u", topic_id("u")),
    }
    assert not world.partitions.failed()

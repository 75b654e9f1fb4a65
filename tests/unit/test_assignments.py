"""What the metadata asks of a broker, and what Partitions makes of it: roles, and replicas that leave."""

import pytest

from kafkad._native.shared.watermarks import FOLLOWER, LEADER
from kafkad.metadata import assignments
from kafkad.metadata.assignments import Delete, Local
from kafkad.metadata.image import MetadataImage
from kafkad.metadata.replay import applied
from kafkad.protocol import errors, messages
from kafkad.protocol.errors import KafkaError
from kafkad.server.metadata_feed import difference
from tests.unit.log_world import batch
from tests.unit.test_partitions import BROKER, World, topic, topic_id

OTHER = 2
UNASSIGNED = bytes(16)


def placed(name, index, replicas, leader, epoch=0):
    return messages.PartitionRecord(
        partition_id=index,
        topic_id=topic_id(name),
        replicas=replicas,
        isr=replicas,
        leader=leader,
        leader_epoch=epoch,
        partition_epoch=0,
        directories=[UNASSIGNED] * len(replicas),
    )


def change(name, index, **fields):
    return messages.PartitionChangeRecord(partition_id=index, topic_id=topic_id(name), **fields)


def assigned(old, new, delta):
    found = assignments.of_delta(delta, old, new, BROKER)
    return [
        ("gone", each.topic, each.partition) if isinstance(each, Delete) else
        ("leads" if each.leads(BROKER) else "follows", each.topic.name, each.partition, each.is_new)
        for each in found if each is not None
    ]  # fmt: skip


def test_only_changed_partitions_of_ours_are_assigned_and_deletions_come_first():
    empty = MetadataImage()
    records = [
        messages.TopicRecord(name="t", topic_id=topic_id("t")),
        placed("t", 0, [BROKER, OTHER], BROKER),
        placed("t", 1, [OTHER, BROKER], OTHER),
        placed("t", 2, [OTHER], OTHER),
        placed("t", 3, [BROKER], BROKER),
        *topic("gone"),
    ]
    image, delta = applied(empty, records)
    assert assigned(empty, image, delta) == [
        ("leads", "t", 0, True), ("follows", "t", 1, True), ("leads", "t", 3, True),
        ("leads", "gone", 0, True),
    ]  # fmt: skip
    assert [each.state.leader for each in assignments.of_image(image, BROKER) if isinstance(each, Local)] == [
        BROKER, OTHER, BROKER, BROKER,
    ]  # fmt: skip
    after, delta = applied(
        image,
        [
            change("t", 1, leader=BROKER),
            change("t", 0, replicas=[OTHER], isr=[OTHER], leader=OTHER, directories=[UNASSIGNED]),
            change("t", 2, replicas=[OTHER, BROKER], directories=[UNASSIGNED] * 2),
            messages.RemoveTopicRecord(topic_id=topic_id("gone")),
        ],
    )
    expected = [
        ("gone", "gone", 0), ("gone", "t", 0), ("leads", "t", 1, False), ("follows", "t", 2, True),
    ]  # fmt: skip
    assert delta.partitions_changed == {topic_id("t"): {0, 1, 2}}
    assert assigned(image, after, delta) == expected
    told = difference(image, after)
    assert told.partitions_changed == {topic_id("t"): {0, 1, 2}}
    assert assigned(image, after, told) == expected


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


def test_a_partition_changes_its_role_and_its_log_stays(world):
    roles = []
    world.partitions.on_role = lambda log, state: roles.append((log.partition, state.leader))
    led = []
    world.partitions.on_led = lambda log: led.append(log.partition)
    world.commit(*topic("t")[:1], placed("t", 0, [BROKER, OTHER], BROKER, 3))
    log = world.partitions.get("t", 0)
    assert (log.native.role, log.native.led_since, log.native.leader_id) == (LEADER, 3, BROKER)
    log.append_client(batch(4), 1_000)
    assert (log.end_offset, log.high_watermark, log.native.durable_offset) == (4, 0, 4)

    world.commit(change("t", 0, leader=OTHER))
    assert (log.native.role, log.native.leader_epoch, log.native.leader_id) == (FOLLOWER, 4, OTHER)
    with pytest.raises(KafkaError) as refused:
        log.append_client(batch(1), 1_000)
    assert refused.value.code == errors.NOT_LEADER_OR_FOLLOWER
    assert world.table.get("t", 0).try_read(0, 1000)[0] == errors.NOT_LEADER_OR_FOLLOWER
    assert len(log.read(0, 1 << 20, below="end")) > 0  # the broker itself still reads it
    assert world.partitions.get("t", 0) is log

    world.commit(change("t", 0, leader=-1))
    assert (log.native.role, log.native.leader_id) == (0, -1)
    world.commit(change("t", 0, leader=BROKER))
    assert (log.native.role, log.native.led_since, log.native.epoch_start) == (LEADER, 6, 4)
    assert log.high_watermark == 0  # the log's, not its end: the followers have not fetched
    assert log.epochs == [(3, 0), (6, 4)]
    assert roles == [(0, BROKER), (0, OTHER), (0, -1), (0, BROKER)]
    assert led == [0, 0]


def test_a_change_of_the_isr_keeps_the_term(world):
    world.commit(*topic("t")[:1], placed("t", 0, [BROKER, OTHER], BROKER))
    native = world.partitions.get("t", 0).native
    world.commit(change("t", 0, isr=[BROKER]))
    assert (native.leader_epoch, native.led_since, native.partition_epoch) == (0, 0, 1)
    world.commit(change("t", 0, leader=BROKER))
    assert (native.leader_epoch, native.led_since, native.partition_epoch) == (1, 0, 2)


def test_a_replica_that_was_taken_from_us_is_deleted(world):
    world.commit(*topic("t")[:1], placed("t", 0, [BROKER, OTHER], BROKER), placed("t", 1, [BROKER], BROKER))
    log = world.partitions.get("t", 0)
    fields = {"replicas": [OTHER], "isr": [OTHER], "leader": OTHER, "directories": [UNASSIGNED]}
    world.commit(change("t", 0, **fields))
    assert world.partitions.find("t", 0) is None
    assert world.table.get("t", 0) is None
    assert log.directory.endswith("-delete")
    assert world.partitions.get("t", 1).native.role == LEADER
    # and back, as an empty one
    world.commit(
        change("t", 0, replicas=[OTHER, BROKER], isr=[OTHER], directories=[UNASSIGNED] * 2),
    )
    assert world.partitions.get("t", 0).native.role == FOLLOWER
    assert world.partitions.get("t", 0).end_offset == 0


def test_a_follower_is_one_again_after_a_restart(world):
    world.commit(*topic("t")[:1], placed("t", 0, [BROKER, OTHER], OTHER))
    world.restart()
    log = world.partitions.get("t", 0)
    assert (log.native.role, log.native.leader_id) == (FOLLOWER, OTHER)

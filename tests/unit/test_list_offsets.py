"""Where a log begins and ends is told by any worker, from the shared row: as its owner tells it."""

from types import SimpleNamespace

import pytest

from kafkad.api import list_offsets
from kafkad.protocol import errors, messages
from kafkad.protocol.records import build_batch, end_marker
from tests.unit.log_world import batch
from tests.unit.test_partitions import topic
from tests.unit.test_partitions_workers import World

Topics = messages.ListOffsetsRequest.Topics
SPECIAL = {-1: 1, -2: 1, -4: 8, -5: 9, -6: 11}  # by timestamp the version that first knows it


@pytest.fixture
def world(tmp_path):
    made = World(tmp_path)
    made.commit(*topic("t", partitions=2))
    made.deliver()
    return made


def request(*timestamps, index=0, isolation=0, epoch=-1, name="t"):
    asked = [
        Topics.Partitions(partition_index=index, timestamp=timestamp, current_leader_epoch=epoch)
        for timestamp in timestamps
    ]
    topics = [Topics(name=name, partitions=[each]) for each in asked]
    return messages.ListOffsetsRequest(replica_id=-1, isolation_level=isolation, topics=topics)


def services_of(worker):
    return SimpleNamespace(partitions=worker.partitions)


def tell(worker, asked, version=11):
    answer = list_offsets.list_offsets(services_of(worker), SimpleNamespace(version=version), asked)
    return [
        (each.error_code, each.timestamp, each.offset, each.leader_epoch)
        for told in answer.topics
        for each in told.partitions
    ]


def agreed(world, index=0):
    """What both workers say of the partition: (log start, its epoch, HW, LSO, its epoch)."""
    owner, other = world.owner("t", index), world.other("t", index)
    for timestamp, since in SPECIAL.items():
        for isolation in (0, 1):
            for version in (since, 11):
                asked = request(timestamp, index=index, isolation=isolation)
                assert list_offsets.in_rows(services_of(other), asked)
                assert tell(other, asked, version) == tell(owner, asked, version)
        for epoch in range(5):
            asked = request(timestamp, index=index, epoch=epoch)
            assert tell(other, asked) == tell(owner, asked)
    (start,) = tell(other, request(-2, index=index))
    (high,) = tell(other, request(-1, index=index))
    (stable,) = tell(other, request(-1, index=index, isolation=1))
    assert {start[0], high[0], stable[0]} == {0}
    return start[2], start[3], high[2], stable[2], high[3]


@pytest.mark.parametrize("index", [0, 1])
def test_any_worker_tells_starts_and_ends_as_the_owner_does(world, index):
    log = world.owner("t", index).partitions.get("t", index)
    assert agreed(world, index) == (0, 0, 0, 0, 0)
    log.append(batch(5), 0)
    assert agreed(world, index) == (0, 0, 5, 5, 0)
    log.set_leader_epoch(2)
    log.append(batch(5), 0)
    assert agreed(world, index) == (0, 0, 10, 10, 2)
    log.delete_records(7)
    assert agreed(world, index) == (7, 2, 10, 10, 2)
    log.append(batch(2, producer_id=9, producer_epoch=0, base_sequence=0, transactional=True), 0)
    assert agreed(world, index) == (7, 2, 12, 10, 2)
    end = build_batch([end_marker(1, 0, timestamp=1)], producer_id=9, producer_epoch=0, transactional=True,
                      control=True)  # fmt: skip
    log.append(end, 0)
    assert agreed(world, index) == (7, 2, 13, 13, 2)
    log.truncate_to(8)
    assert agreed(world, index)[:2] == (7, 2)
    log.set_leader_epoch(4)
    log.delete_records(log.high_watermark)
    assert agreed(world, index)[:2] == (log.high_watermark, log.earliest().leader_epoch)


def test_timestamps_are_the_owners_and_so_is_all_of_such_a_request(world):
    other = services_of(world.other("t", 0))
    for timestamps in ((1_000,), (-3,), (-1, 5), (-7,)):
        assert not list_offsets.in_rows(other, request(*timestamps))
    assert tell(world.other("t", 0), request(1_000))[0][0] == errors.NOT_LEADER_OR_FOLLOWER


def test_what_is_named_twice_is_refused_by_whoever_answers(world):
    for worker in world.workers:
        assert list_offsets.in_rows(services_of(worker), request(-1, -2))
        assert [code for code, *_ in tell(worker, request(-1, -2))] == [errors.INVALID_REQUEST] * 2


def test_what_nobody_has_announced_is_asked_of_its_owner(world):
    world.commit(*topic("u", partitions=2))
    for index in range(2):
        asked = request(-1, index=index, name="u")
        assert list_offsets.in_rows(services_of(world.owner("u", index)), asked)
        assert not list_offsets.in_rows(services_of(world.other("u", index)), asked)
    assert not list_offsets.in_rows(services_of(world.workers[0]), request(-1, name="nobody's"))


def test_a_partition_that_is_not_led_is_refused_as_its_owner_would(world):
    owner, other = world.owner("t", 0), world.other("t", 0)
    owner.partitions.get("t", 0).resign()
    assert tell(other, request(-1))[0][0] == errors.NOT_LEADER_OR_FOLLOWER

"""Where a log begins and ends is told by any worker, from the shared row: as its owner tells it."""

import time
from types import SimpleNamespace

import pytest

from kafkad.api import list_offsets
from kafkad.coordinator.runtime import at_once
from kafkad.protocol import errors, messages
from kafkad.protocol.errors import KafkaError
from kafkad.protocol.records import Record, build_batch, end_marker
from tests.unit.log_world import batch
from tests.unit.steps import finish
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
    context = SimpleNamespace(version=version)
    answer = finish(list_offsets.list_offsets(services_of(worker), context, asked))
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
                assert at_once(list_offsets.in_rows(services_of(other), asked))
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
        assert not at_once(list_offsets.in_rows(other, request(*timestamps)))
    assert tell(world.other("t", 0), request(1_000))[0][0] == errors.NOT_LEADER_OR_FOLLOWER


def test_a_partition_named_twice_is_refused_once_by_whoever_answers(world):
    """HUNTS N7: as in Kafka, one entry in the answer."""
    for worker in world.workers:
        assert at_once(list_offsets.in_rows(services_of(worker), request(-1, -2)))
        assert [code for code, *_ in tell(worker, request(-1, -2))] == [errors.INVALID_REQUEST]


def test_what_nobody_has_announced_is_asked_of_its_owner(world):
    world.commit(*topic("u", partitions=2))
    for index in range(2):
        asked = request(-1, index=index, name="u")
        assert at_once(list_offsets.in_rows(services_of(world.owner("u", index)), asked))
        assert not at_once(list_offsets.in_rows(services_of(world.other("u", index)), asked))
    assert not at_once(list_offsets.in_rows(services_of(world.workers[0]), request(-1, name="nobody's")))


def test_a_partition_that_is_not_led_is_refused_as_its_owner_would(world):
    owner, other = world.owner("t", 0), world.other("t", 0)
    owner.partitions.get("t", 0).resign()
    assert tell(other, request(-1))[0][0] == errors.NOT_LEADER_OR_FOLLOWER


def test_a_look_up_by_time_goes_in_steps(world):
    """HUNTS N1: twenty large batches in one request took 5 s of the loop, Kafka 0.03 s."""
    log = world.owner("t", 0).partitions.get("t", 0)
    value = bytes(1 << 20)
    records = [Record(None, value, timestamp=5_000 + i) for i in range(20)]
    log.append_client(build_batch(records, compression=1), 1_000)
    context = SimpleNamespace(version=7)
    for timestamp, found in ((5_019, (5_019, 19)), (-3, (5_019, 19)), (5_000, (5_000, 0)), (5_020, (-1, -1))):
        steps = list_offsets.list_offsets(services_of(world.owner("t", 0)), context, request(timestamp))
        count, longest = 0, 0.0
        while True:
            began = time.thread_time()
            try:
                next(steps)
            except StopIteration as end:
                answer = end.value
                break
            longest = max(longest, time.thread_time() - began)
            count += 1
        if timestamp in (5_019, -3):
            assert count >= 20  # a chunk a step
        assert longest < 0.05
        told = [each for topics in answer.topics for each in topics.partitions]
        assert [(each.timestamp, each.offset) for each in told] == [found]


def test_a_log_may_change_in_the_middle_of_a_look_up(world):
    log = world.owner("t", 0).partitions.get("t", 0)
    value = bytes(1 << 20)
    for base in (5_000, 6_000):
        records = [Record(None, value, timestamp=base + i) for i in range(20)]
        log.append_client(build_batch(records, compression=1), 1_000)
        log.roll(1_000)
    search, another = log.seek_timestamp(6_019), log.seek_timestamp(6_019)
    next(search)
    next(another)
    log.advance_log_start(20)
    log.apply_retention(1_000)
    assert log.segments[0][0] == 20
    with pytest.raises(StopIteration) as end:
        while True:
            next(search)
    assert end.value.value[:2] == (6_019, 39)
    log.close()
    with pytest.raises(KafkaError):
        next(another)


@pytest.mark.parametrize(("timestamp", "version"), [(-3, 6), (-4, 7), (-6, 10), (-7, 11), (-100, 1)])
def test_a_timestamp_that_the_version_does_not_know_is_refused_before_all_else(world, timestamp, version):
    owner = world.owner("t", 0)
    for asked in (request(timestamp), request(timestamp, epoch=77), request(timestamp, name="unknown")):
        assert [told[0] for told in tell(owner, asked, version)] == [errors.UNSUPPORTED_VERSION]


def test_a_topic_without_partitions_is_left_out(world):
    asked = request(-1)
    asked.topics.insert(0, Topics(name="empty", partitions=[]))
    context = SimpleNamespace(version=11)
    answer = finish(list_offsets.list_offsets(services_of(world.owner("t", 0)), context, asked))
    assert [told.name for told in answer.topics] == ["t"]

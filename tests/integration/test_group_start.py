"""A broker that starts with much in `__consumer_offsets`, and one whose worker was dead when a topic went."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kafkad.coordinator import records
from kafkad.coordinator.records import CommittedOffset
from kafkad.protocol import errors, messages
from kafkad.protocol.records import Record, build_batch
from kafkad.testing import Broker
from tests.wire import Wire, create_topic

Commits = Callable[[Wire, str, str, int], None]
GROUPS, RECORDS = 1_000, 1_000_000
LATER = (errors.COORDINATOR_LOAD_IN_PROGRESS, errors.COORDINATOR_NOT_AVAILABLE, errors.NOT_COORDINATOR)


def ask_until_loaded(wire: Wire, group: str) -> dict[str, int]:
    """Topic -> committed offset of its first partition."""
    asked = messages.OffsetFetchRequest(
        groups=[messages.OffsetFetchRequest.Groups(group_id=group, topics=None)]
    )
    deadline = time.monotonic() + 20
    while (answer := wire.ask(asked, 8).groups[0]).error_code in LATER:
        assert time.monotonic() < deadline, errors.NAMES[answer.error_code]
        time.sleep(0.002)
    assert answer.error_code == errors.NONE
    return {topic.name: topic.partitions[0].committed_offset for topic in answer.topics}


def make_offsets_topic(wire: Wire) -> None:
    make_coordinator(wire, 0)


def make_coordinator(wire: Wire, key_type: int) -> None:
    asked = messages.FindCoordinatorRequest(key_type=key_type, coordinator_keys=["group"])
    deadline = time.monotonic() + 10
    while wire.ask(asked, 4).coordinators[0].error_code:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def commit(wire: Wire, group: str, topic: str, offset: int) -> None:
    Topics = messages.OffsetCommitRequest.Topics
    partition = Topics.Partitions(partition_index=0, committed_offset=offset)
    request = messages.OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=-1,
        topics=[Topics(name=topic, partitions=[partition])],
    )
    deadline = time.monotonic() + 10
    while (code := wire.ask(request, 8).topics[0].partitions[0].error_code) in LATER:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert code == errors.NONE


def commit_in_transaction(wire: Wire, group: str, topic: str, offset: int) -> None:
    """By transaction.version 2, where the commit adds the group to the transaction."""
    make_coordinator(wire, 1)
    begin = messages.InitProducerIdRequest(transactional_id=group, transaction_timeout_ms=60_000)
    deadline = time.monotonic() + 10
    while (begun := wire.ask(begin, 5)).error_code in LATER:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    producer = {"producer_id": begun.producer_id, "producer_epoch": begun.producer_epoch}
    Topics = messages.TxnOffsetCommitRequest.Topics
    partition = Topics.Partitions(partition_index=0, committed_offset=offset)
    request = messages.TxnOffsetCommitRequest(
        transactional_id=group,
        group_id=group,
        topics=[Topics(name=topic, partitions=[partition])],
        **producer,
    )
    assert wire.ask(request, 5).topics[0].partitions[0].error_code == errors.NONE
    end = messages.EndTxnRequest(transactional_id=group, committed=True, **producer)
    assert wire.ask(end, 5).error_code == errors.NONE
    asked = messages.OffsetFetchRequest(
        groups=[messages.OffsetFetchRequest.Groups(group_id=group, topics=None)], require_stable=True
    )
    while not any(each.name == topic for each in wire.ask(asked, 8).groups[0].topics):
        assert time.monotonic() < deadline  # the marker is on its way
        time.sleep(0.01)


def is_answered(wire: Wire) -> bool:
    try:
        return bool(wire.ask(messages.MetadataRequest(topics=None), 12).topics)
    except ConnectionError:
        return False


@contextmanager
def without_worker_1(broker: Broker) -> Iterator[Wire]:
    """Worker 1 of two is dead, and is started again at the end; a connection to worker 0."""
    wires = [Wire(broker.bootstrap) for _ in range(4)]
    assert all(is_answered(each) for each in wires)  # each has its worker; a new one might wait for worker 1
    os.kill(broker.pid, signal.SIGSTOP)  # the supervisor, which would start the worker again
    try:
        os.kill(broker.worker_pids[1], signal.SIGKILL)
        yield next(each for each in wires if is_answered(each))
    finally:
        os.kill(broker.pid, signal.SIGCONT)


def test_a_start_serves_before_it_has_loaded_all_commits(tmp_path: Path) -> None:
    """HUNTS S3: a start replayed every commit before anybody was served, 2.5 to 3 s a million."""
    config = {"offsets.topic.num.partitions": 1}
    with Broker(workers=1, data_dir=tmp_path, config=config) as broker, Wire(broker.bootstrap) as wire:
        topic_id = create_topic(wire, "t")
        make_offsets_topic(wire)
    value = records.offset_value(CommittedOffset(7, commit_timestamp_ms=1 << 42, topic_id=topic_id))
    keys = [records.offset_key(f"group-{number}", "t", 0) for number in range(GROUPS)]
    batch = build_batch([Record(key, value, timestamp=1) for key in keys])
    (segment,) = tmp_path.glob("__consumer_offsets-0/*.log")
    with segment.open("wb") as file:
        for base in range(0, RECORDS, GROUPS):
            file.write(base.to_bytes(8, "big") + batch[8:])
    (tmp_path / ".kafka_cleanshutdown").unlink()

    for _ in range(5):  # a busy machine may let us ask late, but not each time
        with Broker(workers=1, data_dir=tmp_path, config=config) as broker, Wire(broker.bootstrap) as wire:
            assert wire.ask(messages.MetadataRequest(topics=None), 12).topics
            loaded_before = "offsets loaded" in broker.log
            assert ask_until_loaded(wire, "group-17") == {"t": 7}
            assert f"{GROUPS} groups and {GROUPS} offsets loaded" in broker.log
        if not loaded_before:
            break
    assert not loaded_before


@pytest.mark.parametrize("commits", [commit, commit_in_transaction])
def test_offsets_of_a_topic_that_went_while_its_coordinator_was_dead(
    tmp_path: Path, commits: Commits
) -> None:
    """HUNTS W5: the new topic of that name inherited them, and a consumer passed over records."""
    config = {"offsets.topic.num.partitions": 8}
    groups = [f"group-{number}" for number in range(16)]
    with Broker(workers=2, data_dir=tmp_path, config=config) as broker, Wire(broker.bootstrap) as wire:
        create_topic(wire, "again")
        create_topic(wire, "other")
        make_offsets_topic(wire)
        for group in groups:
            commits(wire, group, "again", 5)
            commits(wire, group, "other", 6)
        with without_worker_1(broker) as left:
            deleted = left.ask(messages.DeleteTopicsRequest(topic_names=["again"], timeout_ms=5_000), 5)
            assert deleted.responses[0].error_code == errors.NONE
            create_topic(left, "again")
        with Wire(broker.bootstrap) as wire:
            assert {group: ask_until_loaded(wire, group) for group in groups} == {
                group: {"other": 6} for group in groups
            }


def test_groups_of_an_offsets_topic_that_was_made_again_while_a_worker_was_stopped(tmp_path: Path) -> None:
    """HUNTS W3: their partitions were opened late, and answered NOT_COORDINATOR until a restart."""
    config = {"offsets.topic.num.partitions": 8}
    groups = [f"group-{number}" for number in range(24)]
    with Broker(workers=2, data_dir=tmp_path, config=config) as broker, Wire(broker.bootstrap) as wire:
        create_topic(wire, "read")
        make_offsets_topic(wire)
        for group in groups:
            commit(wire, group, "read", 5)
        with without_worker_1(broker) as left:
            deleted = left.ask(
                messages.DeleteTopicsRequest(topic_names=["__consumer_offsets"], timeout_ms=5_000), 5
            )
            assert deleted.responses[0].error_code == errors.NONE
            made = messages.CreateTopicsRequest.Topics(
                name="__consumer_offsets", num_partitions=8, replication_factor=1
            )
            answer = left.ask(messages.CreateTopicsRequest(topics=[made], timeout_ms=5_000), 7)
            assert answer.topics[0].error_code == errors.NONE
        with Wire(broker.bootstrap) as wire:
            for number, group in enumerate(groups):
                assert ask_until_loaded(wire, group) == {}
                commit(wire, group, "read", number)
            for number, group in enumerate(groups):
                assert ask_until_loaded(wire, group) == {"read": number}

"""HUNTS L3: max.message.bytes of `__consumer_offsets` holds for the coordinator, as in Kafka, and what a
group may keep in memory is bounded."""

import pytest

from kafkad.protocol import codec, errors, messages
from kafkad.testing import Broker
from tests.wire import Wire, create_topic

MB = 1 << 20
JOIN = {"session_timeout_ms": 30_000, "rebalance_timeout_ms": 30_000, "protocol_type": "consumer"}


@pytest.fixture(scope="module")
def broker():
    config = {
        "offsets.topic.num.partitions": 1,
        "group.initial.rebalance.delay.ms": 0,
        "offset.metadata.max.bytes": 100_000,
    }
    with Broker(config=config) as broker, Wire(broker.bootstrap) as wire:
        create_topic(wire, "t", 50)
        asked = messages.FindCoordinatorRequest(key_type=0, coordinator_keys=["g"])
        while wire.ask(asked, 4).coordinators[0].error_code:
            pass
        yield broker


@pytest.fixture
def wire(broker):
    with Wire(broker.bootstrap) as wire:
        yield wire


def commit(wire, partitions, metadata=""):
    Topics = messages.OffsetCommitRequest.Topics
    request = messages.OffsetCommitRequest(
        group_id="simple",
        topics=[
            Topics(
                name="t",
                partitions=[
                    Topics.Partitions(
                        partition_index=index, committed_offset=index, committed_metadata=metadata
                    )
                    for index in range(partitions)
                ],
            )
        ],
    )
    return {each.error_code for each in wire.ask(request, 8).topics[0].partitions}


def join(wire, group, metadata, member_id="", names=("range",)):
    protocols = [messages.JoinGroupRequest.Protocols(name=name, metadata=metadata) for name in names]
    request = messages.JoinGroupRequest(group_id=group, member_id=member_id, protocols=protocols, **JOIN)
    answer = wire.ask(request, 5)
    if answer.error_code == errors.MEMBER_ID_REQUIRED:
        return join(wire, group, metadata, answer.member_id, names)
    return answer


def sync(wire, group, joined, assignment):
    Assignments = messages.SyncGroupRequest.Assignments
    request = messages.SyncGroupRequest(
        group_id=group,
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        assignments=[Assignments(member_id=joined.member_id, assignment=assignment)],
    )
    return wire.ask(request, 3).error_code


def test_a_commit_larger_than_a_message_may_be_is_refused(broker, wire):
    assert commit(wire, 50, "x" * 30_000) == {errors.UNKNOWN_SERVER_ERROR}
    assert "group simple: a commit does not fit into max.message.bytes" in broker.log
    assert commit(wire, 50, "x" * 10_000) == {errors.NONE}


def test_an_assignment_larger_than_a_message_may_be_is_refused(broker, wire):
    joined = join(wire, "large", b"")
    assert sync(wire, "large", joined, bytes(2 * MB)) == errors.UNKNOWN_SERVER_ERROR
    assert "max.message.bytes is 1048588" in broker.log
    joined = join(wire, "large", b"", joined.member_id)
    assert sync(wire, "large", joined, bytes(MB // 2)) == errors.NONE


def test_metadata_of_a_group_is_bounded(wire):
    """Two members of 10 MB are too much together. (One of 48 MB does not get past the bound on a request.)"""
    many = [f"protocol-{number}" for number in range(20)]
    few = join(wire, "wide", bytes(MB // 2), names=many)
    assert few.error_code == errors.NONE
    assert join(wire, "wide", bytes(MB // 2), names=many).error_code == errors.GROUP_MAX_SIZE_REACHED
    assert join(wire, "wide", bytes(MB // 4), few.member_id, names=many).error_code == errors.NONE


def test_a_member_has_no_more_protocols_than_anybody_needs(wire):
    most = [f"{number:x}" for number in range(1_001)]
    assert join(wire, "protocols", b"", names=most).error_code == errors.INCONSISTENT_GROUP_PROTOCOL
    assert join(wire, "protocols", b"", names=most[:1_000]).error_code == errors.NONE


def test_a_group_name_that_no_record_can_have_costs_its_partition_nothing():
    """Replaced by U+FFFD, 20,000 bytes that are not UTF-8 become 60,000. The group could not be deleted, and
    its expiry ended the service of all groups in its partition."""
    name = b"\xff" * 20_000
    config = {"offsets.topic.num.partitions": 1, "offsets.retention.check.interval.ms": 500}
    with Broker(config=config) as broker, Wire(broker.bootstrap) as wire:
        create_topic(wire, "t", 1)
        asked = messages.FindCoordinatorRequest(key_type=0, coordinator_keys=["g"])
        while wire.ask(asked, 4).coordinators[0].error_code:
            pass
        frame = codec.encode_request(
            messages.JoinGroupRequest(group_id="G" * 20_000, **{**JOIN, "session_timeout_ms": 6_000}),
            4,
            1,
            "c",
        )
        with Wire(broker.bootstrap) as other:
            other.send_frame(frame.replace(b"G" * 20_000, name))
            assert other.is_closed_by_broker()
        assert commit(wire, 1) == {errors.NONE}

"""The APIs of groups at every version (see test_apis.py)."""

import pytest

from kafkad.protocol import errors, messages
from tests.api_calls import api_broker as api_broker
from tests.api_calls import api_wire as api_wire
from tests.api_calls import commit, every_version, filled, fresh, ready_coordinator
from tests.wire import Wire

pytestmark = pytest.mark.workers(2, 4)


@every_version("OffsetCommit")
def test_offset_commit(wire, version):
    topic, topic_id = filled(wire, 1)
    group = fresh("group")
    ready_coordinator(wire, group)
    assert commit(wire, group, topic, topic_id, version) == 0


@every_version("OffsetFetch")
def test_offset_fetch(wire, version):
    topic, topic_id = filled(wire, 1)
    group = fresh("group")
    ready_coordinator(wire, group)
    assert commit(wire, group, topic, topic_id, 8) == 0

    def ask(name):
        request = messages.OffsetFetchRequest()
        if version >= 8:
            struct = messages.OffsetFetchRequest.Groups
            asked = struct.Topics(partition_indexes=[0])
            if version >= 10:
                asked.topic_id = topic_id
            else:
                asked.name = topic
            request.groups = [struct(group_id=name, topics=[asked])]
            found = wire.ask(request, version).groups[0]
        else:
            request.group_id = name
            request.topics = [messages.OffsetFetchRequest.Topics(name=topic, partition_indexes=[0])]
            found = wire.ask(request, version)
        assert found.error_code == 0
        return found.topics[0].partitions[0]

    known = ask(group)
    assert (known.error_code, known.committed_offset, known.metadata) == (0, 2, "note")
    unknown = ask(fresh("unknown"))
    code = 0 if version else errors.UNKNOWN_TOPIC_OR_PARTITION  # how ZooKeeper's offsets said it
    assert (unknown.error_code, unknown.committed_offset) == (code, -1)


@every_version("FindCoordinator")
def test_find_coordinator(wire, broker, version):
    group = fresh("group")
    ready_coordinator(wire, group)
    if version >= 4:
        response = wire.ask(messages.FindCoordinatorRequest(coordinator_keys=[group]), version)
        found = response.coordinators[0]
        assert found.key == group
    else:
        found = wire.ask(messages.FindCoordinatorRequest(key=group), version)
    assert (found.error_code, found.host, found.port) == (0, "127.0.0.1", broker.port)


def join(wire: Wire, group: str, version: int):
    protocol = messages.JoinGroupRequest.Protocols(name="range", metadata=b"anything")
    request = messages.JoinGroupRequest(
        group_id=group, session_timeout_ms=10_000, protocol_type="consumer", protocols=[protocol]
    )
    if version >= 1:
        request.rebalance_timeout_ms = 10_000
    joined = wire.ask(request, version)
    if version >= 4:
        assert joined.error_code == errors.MEMBER_ID_REQUIRED  # KIP-394
        request.member_id = joined.member_id
        joined = wire.ask(request, version)
    assert joined.error_code == 0, joined
    return joined


def member_of(wire: Wire, join_version: int = 3, sync_version: int = 3):
    """A group with one stable member: (group, member id, generation)."""
    group = fresh("group")
    ready_coordinator(wire, group)
    joined = join(wire, group, join_version)
    assignment = messages.SyncGroupRequest.Assignments(member_id=joined.member_id, assignment=b"yours")
    request = messages.SyncGroupRequest(
        group_id=group,
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        assignments=[assignment],
    )
    if sync_version >= 5:
        request.protocol_type, request.protocol_name = "consumer", "range"
    synced = wire.ask(request, sync_version)
    assert (synced.error_code, synced.assignment) == (0, b"yours")
    return group, joined.member_id, joined.generation_id


@every_version("JoinGroup")
def test_join_group(wire, version):
    group, member_id, generation = member_of(wire, join_version=version)
    assert generation == 1 and member_id and group


@every_version("SyncGroup")
def test_sync_group(wire, version):
    group, member_id, _ = member_of(wire, sync_version=version)
    request = messages.SyncGroupRequest(group_id=group, generation_id=99, member_id=member_id)
    if version >= 5:
        request.protocol_type, request.protocol_name = "consumer", "range"
    assert wire.ask(request, version).error_code == errors.ILLEGAL_GENERATION


@every_version("Heartbeat")
def test_heartbeat(wire, version):
    group, member_id, generation = member_of(wire)
    beat = messages.HeartbeatRequest(group_id=group, generation_id=generation, member_id=member_id)
    assert wire.ask(beat, version).error_code == 0
    beat.member_id = "stranger"
    assert wire.ask(beat, version).error_code == errors.UNKNOWN_MEMBER_ID


@every_version("LeaveGroup")
def test_leave_group(wire, version):
    group, member_id, _ = member_of(wire)
    request = messages.LeaveGroupRequest(group_id=group)
    if version >= 3:
        request.members = [messages.LeaveGroupRequest.Members(member_id=member_id)]
    else:
        request.member_id = member_id
    response = wire.ask(request, version)
    assert response.error_code == 0
    if version >= 3:
        assert [(m.member_id, m.error_code) for m in response.members] == [(member_id, 0)]


@every_version("DescribeGroups")
def test_describe_groups(wire, version):
    group, member_id, _ = member_of(wire)
    nobody = fresh("nobody")
    known, unknown = wire.ask(messages.DescribeGroupsRequest(groups=[group, nobody]), version).groups
    assert (known.error_code, known.group_state, known.protocol_data) == (0, "Stable", "range")
    assert [(m.member_id, m.member_assignment) for m in known.members] == [(member_id, b"yours")]
    if version >= 6:
        assert unknown.error_code == errors.GROUP_ID_NOT_FOUND
    else:
        assert (unknown.error_code, unknown.group_state) == (0, "Dead")


@every_version("ListGroups")
def test_list_groups(wire, version):
    group, _, _ = member_of(wire)
    request = messages.ListGroupsRequest()
    if version >= 4:
        request.states_filter = ["Stable"]
    if version >= 5:
        request.types_filter = ["classic"]
    response = wire.ask(request, version)
    assert response.error_code == 0
    assert group in {g.group_id for g in response.groups}
    if version >= 4:
        request.states_filter = ["Empty"]
        assert group not in {g.group_id for g in wire.ask(request, version).groups}


@every_version("DeleteGroups")
def test_delete_groups(wire, version):
    topic, topic_id = filled(wire, 1)
    empty = fresh("group")
    ready_coordinator(wire, empty)
    assert commit(wire, empty, topic, topic_id, 8) == 0
    busy, _, _ = member_of(wire)
    response = wire.ask(messages.DeleteGroupsRequest(groups_names=[empty, busy, fresh("none")]), version)
    codes = [result.error_code for result in response.results]
    assert codes == [0, errors.NON_EMPTY_GROUP, errors.GROUP_ID_NOT_FOUND]

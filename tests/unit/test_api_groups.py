"""The group and offset APIs over their wire forms: every version from the lowest to the highest served."""

import asyncio
import inspect
from types import SimpleNamespace

import pytest
from coordinator_world import World, protocol, subscription

from kafkad.api import coordinators, groups, offsets
from kafkad.api.context import RequestContext
from kafkad.clock import ManualClock
from kafkad.controller.topics import auto_created
from kafkad.coordinator.runtime import at_once
from kafkad.metadata.image import BrokerRegistration, Endpoint, MetadataImage, PartitionState, Topic
from kafkad.protocol import codec, errors, messages
from kafkad.protocol.errors import KafkaError
from kafkad.seldom import Seldom

TOPIC_ID = bytes(range(16))
GONE_ID = bytes(range(1, 17))
HANDLERS = {
    "FindCoordinator": coordinators.find_coordinator,
    "JoinGroup": groups.join_group,
    "SyncGroup": groups.sync_group,
    "Heartbeat": groups.heartbeat,
    "LeaveGroup": groups.leave_group,
    "DescribeGroups": groups.describe_groups,
    "ListGroups": groups.list_groups,
    "DeleteGroups": groups.delete_groups,
    "OffsetCommit": offsets.offset_commit,
    "OffsetFetch": offsets.offset_fetch,
    "OffsetDelete": offsets.offset_delete,
}


def partition(leader):
    return PartitionState(leader, 0, (leader,), (leader,), (bytes(16),), 0)


class Broker:
    """The services that these handlers use, with one topic `t` of two partitions."""

    def __init__(self):
        self.world = World()
        self.image = MetadataImage()
        self.image.topics["t"] = self.image.topics_by_id[TOPIC_ID] = Topic(
            "t", TOPIC_ID, {0: partition(1), 1: partition(1)}
        )
        self.image.brokers[1] = BrokerRegistration(
            1,
            0,
            bytes(16),
            {"PLAINTEXT": Endpoint("localhost", 9092, 0)},
            {},
            None,
            False,
            False,
            False,
            (),
            None,
        )
        self.created = []
        self.services = SimpleNamespace(
            seldom=Seldom(),
            clock=ManualClock(),
            config=self.world.config,
            groups=self.world.coordinator,
            transactions=None,
            metadata=self,
            controller=self,
        )

    def auto_create(self, names):
        """As the controller does it, seen from here: the image has the topic when this returns."""
        for name in names:
            topic = auto_created(self.image, self.world.config, name)
            self.created.append(topic)
            partitions = {index: partition(1) for index in range(topic.num_partitions)}
            self.image.topics[name] = Topic(name, bytes(16), partitions)
        return dict.fromkeys(names)

    async def call(self, name, version, **fields):
        """Through the wire forms of both directions."""
        request = getattr(messages, f"{name}Request")(**fields)
        _, request = codec.decode_request(codec.encode_request(request, version, 7, "client"))
        context = RequestContext(request.API_KEY, version, 7, "client", "127.0.0.1", "PLAINTEXT", None)
        response = HANDLERS[name](self.services, context, request)
        while inspect.isgenerator(response) or inspect.isawaitable(response):
            response = at_once(response) if inspect.isgenerator(response) else await response
        frame = codec.encode_response(response, version, 7)
        correlation_id, response = codec.decode_response(getattr(messages, f"{name}Response"), version, frame)
        assert correlation_id == 7
        return response

    async def join(self, version=9, group="g", **fields):
        """A member of a new generation, as a client becomes one."""
        fields = {
            "group_id": group,
            "session_timeout_ms": 10_000,
            "protocol_type": "consumer",
            "protocols": [protocol("range", subscription("t"))],
            **({"rebalance_timeout_ms": 60_000} if version >= 1 else {}),
            **fields,
        }
        if version >= 4 and "member_id" not in fields:
            response = await self.call("JoinGroup", version, **fields)
            assert response.error_code == errors.MEMBER_ID_REQUIRED
            fields["member_id"] = response.member_id
        task = asyncio.ensure_future(self.call("JoinGroup", version, **fields))
        await asyncio.sleep(0)
        assert not task.done()
        self.world.tick(3_000)
        return await task


@pytest.fixture
def broker():
    return Broker()


def play(scenario):
    return asyncio.run(scenario)


@pytest.mark.parametrize("version", range(10))
def test_a_member_joins_in_every_version(broker, version):
    async def scenario():
        response = await broker.join(version)
        assert response.error_code == errors.NONE
        assert (response.generation_id, response.protocol_name) == (1, "range")
        assert response.leader == response.member_id
        assert response.member_id.startswith("client-")
        assert response.protocol_type == ("consumer" if version >= 7 else None)
        assert [member.member_id for member in response.members] == [response.member_id]
        refused = await broker.call("JoinGroup", version, group_id="", session_timeout_ms=10_000)
        assert refused.error_code == errors.INVALID_GROUP_ID
        assert refused.protocol_name == (None if version >= 7 else "")

    play(scenario())


@pytest.mark.parametrize("version", range(6))
def test_a_member_syncs_in_every_version(broker, version):
    async def scenario():
        joined = await broker.join()
        fields = {"group_id": "g", "generation_id": 1, "member_id": joined.member_id}
        if version >= 5:
            response = await broker.call("SyncGroup", version, **fields)
            assert response.error_code == errors.INCONSISTENT_GROUP_PROTOCOL  # KIP-559: it has to say
            fields.update(protocol_type="consumer", protocol_name="range")
        share = messages.SyncGroupRequest.Assignments(member_id=joined.member_id, assignment=b"t0")
        response = await broker.call("SyncGroup", version, assignments=[share], **fields)
        assert (response.error_code, bytes(response.assignment)) == (errors.NONE, b"t0")
        assert response.protocol_name == ("range" if version >= 5 else None)

    play(scenario())


@pytest.mark.parametrize("version", range(5))
def test_a_member_heartbeats_in_every_version(broker, version):
    async def scenario():
        joined = await broker.join()
        fields = {"group_id": "g", "member_id": joined.member_id}
        good = await broker.call("Heartbeat", version, generation_id=1, **fields)
        stale = await broker.call("Heartbeat", version, generation_id=0, **fields)
        assert [good.error_code, stale.error_code] == [errors.NONE, errors.ILLEGAL_GENERATION]

    play(scenario())


@pytest.mark.parametrize("version", range(6))
def test_a_member_leaves_in_every_version(broker, version):
    async def scenario():
        joined = await broker.join()
        if version < 3:
            response = await broker.call("LeaveGroup", version, group_id="g", member_id="nobody")
            assert response.error_code == errors.UNKNOWN_MEMBER_ID
            response = await broker.call("LeaveGroup", version, group_id="g", member_id=joined.member_id)
        else:
            Identity = messages.LeaveGroupRequest.Members
            leavers = [Identity(member_id="nobody"), Identity(member_id=joined.member_id)]
            response = await broker.call("LeaveGroup", version, group_id="g", members=leavers)
            assert [member.error_code for member in response.members] == [
                errors.UNKNOWN_MEMBER_ID,
                errors.NONE,
            ]
            assert [member.member_id for member in response.members] == ["nobody", joined.member_id]
        assert response.error_code == errors.NONE
        assert broker.world.group.is_empty

    play(scenario())


def test_leaving_an_unknown_group_is_an_error_of_each_member(broker):
    async def scenario():
        member = messages.LeaveGroupRequest.Members(member_id="m")
        response = await broker.call("LeaveGroup", 5, group_id="nobody", members=[member])
        assert (response.error_code, response.members[0].error_code) == (
            errors.NONE,
            errors.UNKNOWN_MEMBER_ID,
        )
        response = await broker.call("LeaveGroup", 2, group_id="nobody", member_id="m")
        assert response.error_code == errors.UNKNOWN_MEMBER_ID
        response = await broker.call("LeaveGroup", 5, group_id="", members=[member])
        assert (response.error_code, response.members) == (errors.INVALID_GROUP_ID, [])

    play(scenario())


@pytest.mark.parametrize("version", range(7))
def test_groups_are_described_in_every_version(broker, version):
    async def scenario():
        joined = await broker.join()
        fields = {"include_authorized_operations": True} if version >= 3 else {}
        response = await broker.call("DescribeGroups", version, groups=["g", "nobody"], **fields)
        found, unknown = response.groups
        assert (found.group_id, found.group_state) == ("g", "CompletingRebalance")
        assert (found.members[0].member_id, found.members[0].client_host) == (joined.member_id, "/127.0.0.1")
        assert found.authorized_operations == (0b110101001000 if version >= 3 else -(1 << 31))
        assert unknown.group_state == "Dead"
        assert unknown.error_code == (errors.GROUP_ID_NOT_FOUND if version >= 6 else errors.NONE)

    play(scenario())


@pytest.mark.parametrize("version", range(6))
def test_groups_are_listed_in_every_version(broker, version):
    async def scenario():
        await broker.join()
        response = await broker.call("ListGroups", version)
        assert [(group.group_id, group.protocol_type) for group in response.groups] == [("g", "consumer")]
        if version >= 4:
            assert response.groups[0].group_state == "CompletingRebalance"
            response = await broker.call("ListGroups", version, states_filter=["Stable"])
            assert response.groups == []
        if version >= 5:
            response = await broker.call("ListGroups", version, types_filter=["consumer"])
            assert response.groups == []

    play(scenario())


@pytest.mark.parametrize("version", range(3))
def test_groups_are_deleted_in_every_version(broker, version):
    async def scenario():
        joined = await broker.join()
        names = ["g", "nobody", "g"]
        response = await broker.call("DeleteGroups", version, groups_names=names)
        assert [(result.group_id, result.error_code) for result in response.results] == [
            ("g", errors.NON_EMPTY_GROUP),
            ("nobody", errors.GROUP_ID_NOT_FOUND),
        ]
        await broker.call("LeaveGroup", 0, group_id="g", member_id=joined.member_id)
        response = await broker.call("DeleteGroups", version, groups_names=["g"])
        assert response.results[0].error_code == errors.NONE
        assert (await broker.call("ListGroups", 0)).groups == []
        assert (await broker.call("DeleteGroups", version, groups_names=[])).results == []

    play(scenario())


# -- offsets


def commit_topic(version, name, topic_id, *indexes):
    Topic = messages.OffsetCommitRequest.Topics
    return Topic(
        **({"topic_id": topic_id} if version >= 10 else {"name": name}),
        partitions=[
            Topic.Partitions(partition_index=index, committed_offset=100 + index, committed_metadata="m")
            for index in indexes
        ],
    )


def fetch_fields(version, topics, group="g"):
    """topics: (name, id, indexes), or None for all."""
    if version < 8:
        Topic = messages.OffsetFetchRequest.Topics
        found = None if topics is None else [Topic(name=n, partition_indexes=p) for n, _, p in topics]
        return {"group_id": group, "topics": found}
    Topic = messages.OffsetFetchRequest.Groups.Topics
    found = None
    if topics is not None:
        found = [
            Topic(partition_indexes=p, **({"topic_id": i} if version >= 10 else {"name": n}))
            for n, i, p in topics
        ]
    return {"groups": [messages.OffsetFetchRequest.Groups(group_id=group, topics=found)]}


def fetched(version, response):
    """{(topic name or id, partition): (offset, metadata, error)}, and the group's error."""
    answer = response if version < 8 else response.groups[0]
    found = {
        (topic.topic_id if version >= 10 else topic.name, p.partition_index): (
            p.committed_offset,
            p.metadata,
            p.error_code,
        )
        for topic in answer.topics
        for p in topic.partitions
    }
    return found, answer.error_code


@pytest.mark.parametrize("version", range(2, 11))
def test_offsets_are_committed_in_every_version(broker, version):
    async def scenario():
        topics = [commit_topic(version, "t", TOPIC_ID, 0, 1, 2), commit_topic(version, "gone", GONE_ID, 0)]
        response = await broker.call("OffsetCommit", version, group_id="g", topics=topics)
        by_id = version >= 10
        codes = {
            (topic.topic_id if by_id else topic.name, p.partition_index): p.error_code
            for topic in response.topics
            for p in topic.partitions
        }
        here, gone = (TOPIC_ID, GONE_ID) if by_id else ("t", "gone")
        assert codes == {
            (here, 0): errors.NONE,
            (here, 1): errors.NONE,
            (here, 2): errors.UNKNOWN_TOPIC_OR_PARTITION,
            (gone, 0): errors.UNKNOWN_TOPIC_ID if by_id else errors.UNKNOWN_TOPIC_OR_PARTITION,
        }
        assert len(response.topics) == 2
        stored = broker.world.shard.offsets.get(("g", "t", 1))
        assert (stored.offset, stored.metadata, stored.topic_id) == (101, "m", TOPIC_ID)

        nothing = [commit_topic(version, "gone", GONE_ID, 0)]
        response = await broker.call("OffsetCommit", version, group_id="g", topics=nothing)
        assert response.topics[0].partitions[0].error_code == codes[gone, 0]

    play(scenario())


@pytest.mark.parametrize("version", range(1, 11))
def test_offsets_are_fetched_in_every_version(broker, version):
    async def scenario():
        await broker.call("OffsetCommit", 9, group_id="g", topics=[commit_topic(9, "t", TOPIC_ID, 0)])
        here = TOPIC_ID if version >= 10 else "t"
        asked = fetch_fields(version, [("t", TOPIC_ID, [0, 1])])
        found = fetched(version, await broker.call("OffsetFetch", version, **asked))
        assert found == ({(here, 0): (100, "m", 0), (here, 1): (-1, "", 0)}, errors.NONE)

        asked = fetch_fields(version, [("t", TOPIC_ID, [0])], group="nobody")
        found = fetched(version, await broker.call("OffsetFetch", version, **asked))
        assert found == ({(here, 0): (-1, "", 0)}, errors.NONE)

        if version >= 2:
            found = fetched(version, await broker.call("OffsetFetch", version, **fetch_fields(version, None)))
            assert found == ({(here, 0): (100, "m", 0)}, errors.NONE)
        if version >= 7:
            asked = fetch_fields(version, [("t", TOPIC_ID, [0])])
            found = fetched(version, await broker.call("OffsetFetch", version, require_stable=True, **asked))
            assert found[0][here, 0][0] == 100
        if version >= 10:
            asked = fetch_fields(version, [("gone", GONE_ID, [4]), ("t", TOPIC_ID, [0])])
            found = fetched(version, await broker.call("OffsetFetch", version, **asked))
            assert found[0][GONE_ID, 4] == (-1, "", errors.UNKNOWN_TOPIC_ID)
            assert found[0][TOPIC_ID, 0] == (100, "m", 0)

    play(scenario())


@pytest.mark.parametrize("version", range(1, 11))
def test_a_coordinator_that_is_elsewhere_is_told_where_each_version_looks(broker, version):
    async def scenario():
        broker.world.coordinator.unload(broker.world.shard.index)
        asked = fetch_fields(version, [("t", TOPIC_ID, [0])])
        found, code = fetched(version, await broker.call("OffsetFetch", version, **asked))
        if version == 1:
            assert (found, code) == ({("t", 0): (-1, "", errors.NOT_COORDINATOR)}, errors.NONE)
        else:
            assert (found, code) == ({}, errors.NOT_COORDINATOR)

    play(scenario())


def test_offsets_of_several_groups_come_in_one_answer(broker):
    async def scenario():
        await broker.call("OffsetCommit", 9, group_id="g", topics=[commit_topic(9, "t", TOPIC_ID, 0)])
        both = [fetch_fields(9, None, group=name)["groups"][0] for name in ("nobody", "g")]
        response = await broker.call("OffsetFetch", 9, groups=both)
        assert [(group.group_id, len(group.topics)) for group in response.groups] == [("nobody", 0), ("g", 1)]
        assert (await broker.call("OffsetFetch", 9, groups=[])).groups == []

    play(scenario())


def test_offsets_of_a_topic_that_is_gone_have_no_id_to_be_told_by(broker):
    async def scenario():
        await broker.call("OffsetCommit", 9, group_id="g", topics=[commit_topic(9, "t", TOPIC_ID, 0)])
        del broker.image.topics["t"], broker.image.topics_by_id[TOPIC_ID]
        assert fetched(10, await broker.call("OffsetFetch", 10, **fetch_fields(10, None))) == (
            {},
            errors.NONE,
        )
        found, _ = fetched(9, await broker.call("OffsetFetch", 9, **fetch_fields(9, None)))
        assert found == {("t", 0): (100, "m", 0)}

    play(scenario())


def test_a_commit_is_answered_when_it_is_durable(broker):
    async def scenario():
        broker.world.storage.hold()
        fields = {"group_id": "g", "topics": [commit_topic(9, "t", TOPIC_ID, 0)]}
        task = asyncio.ensure_future(broker.call("OffsetCommit", 9, **fields))
        await asyncio.sleep(0)
        assert not task.done()
        broker.world.storage.release()
        response = await task
        assert response.topics[0].partitions[0].error_code == errors.NONE

    play(scenario())


def test_an_answer_after_its_request_was_cancelled_is_dropped(broker):
    async def scenario():
        task = asyncio.ensure_future(broker.join(3))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        broker.world.tick(3_000)
        assert len(broker.world.group.members) == 1

    play(scenario())


def test_offsets_are_deleted(broker):
    async def scenario():
        Topic = messages.OffsetDeleteRequest.Topics
        await broker.call("OffsetCommit", 9, group_id="g", topics=[commit_topic(9, "t", TOPIC_ID, 0)])
        topics = [
            Topic(name="gone", partitions=[Topic.Partitions(partition_index=0)]),
            Topic(name="t", partitions=[Topic.Partitions(partition_index=index) for index in (0, 9)]),
        ]
        response = await broker.call("OffsetDelete", 0, group_id="g", topics=topics)
        codes = {(t.name, p.partition_index): p.error_code for t in response.topics for p in t.partitions}
        assert response.error_code == errors.NONE
        assert codes == {
            ("gone", 0): errors.UNKNOWN_TOPIC_OR_PARTITION,
            ("t", 9): errors.UNKNOWN_TOPIC_OR_PARTITION,
            ("t", 0): errors.NONE,
        }
        assert broker.world.shard.offsets.get(("g", "t", 0)) is None
        response = await broker.call("OffsetDelete", 0, group_id="nobody", topics=topics)
        assert (response.error_code, response.topics) == (errors.GROUP_ID_NOT_FOUND, [])

    play(scenario())


# -- FindCoordinator


@pytest.mark.parametrize("version", range(7))
def test_the_first_question_for_a_coordinator_makes_the_offsets_topic(broker, version):
    async def scenario():
        fields = {"coordinator_keys": ["g", "h"]} if version >= 4 else {"key": "g"}
        response = await broker.call("FindCoordinator", version, **fields)
        await broker.call("FindCoordinator", version, **fields)
        answers = response.coordinators if version >= 4 else [response]
        for answer in answers:
            assert (answer.error_code, answer.node_id) == (errors.NONE, 1)
            assert (answer.host, answer.port) == ("localhost", 9092)
        if version >= 4:
            assert [answer.key for answer in answers] == ["g", "h"]
        (topic,) = broker.created
        assert (topic.name, topic.num_partitions, topic.replication_factor) == ("__consumer_offsets", 50, 1)
        assert {config.name: config.value for config in topic.configs} == {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(100 << 20),
        }

    play(scenario())


@pytest.mark.parametrize("version", [0, 6])
def test_a_controller_elsewhere_is_waited_for_and_may_be_gone(broker, version):
    make, trouble = broker.auto_create, KafkaError(errors.REQUEST_TIMED_OUT)

    async def auto_create(names):
        await asyncio.sleep(0)
        if trouble is not None:
            raise trouble
        return make(names)

    async def scenario():
        nonlocal trouble
        broker.auto_create = auto_create
        fields = {"coordinator_keys": ["g", "h"]} if version >= 4 else {"key": "g"}
        for code in (errors.COORDINATOR_NOT_AVAILABLE, errors.NONE, errors.NONE):
            response = await broker.call("FindCoordinator", version, **fields)
            answers = response.coordinators if version >= 4 else [response]
            assert {answer.error_code for answer in answers} == {code}
            trouble = None
        assert len(broker.created) == 1

    play(scenario())


def test_a_topic_that_cannot_be_created_is_logged_seldom(broker, caplog):
    """Clients ask again at once: what an authorizer denies would fill the log."""

    async def auto_create(names):
        raise KafkaError(errors.CLUSTER_AUTHORIZATION_FAILED)

    async def scenario():
        broker.auto_create = auto_create
        for _ in range(5):
            await broker.call("FindCoordinator", 0, key="g")

    play(scenario())
    lines = [each for each in caplog.records if "could not be created" in each.getMessage()]
    assert [each.levelname for each in lines] == ["ERROR"]


def test_a_transactional_id_is_answered_with_this_broker(broker):
    async def scenario():
        response = await broker.call("FindCoordinator", 4, key_type=1, coordinator_keys=["tx"])
        assert (response.coordinators[0].error_code, response.coordinators[0].node_id) == (errors.NONE, 1)
        assert broker.created == []

    play(scenario())


@pytest.mark.parametrize("version", range(1, 7))
def test_a_transactional_id_is_coordinated_by_the_leader_of_its_partition(broker, version):
    """Once the broker has a coordinator of transactions."""
    broker.services.transactions = SimpleNamespace(partition_for=lambda key: {"here": 3, "there": 4}[key])

    async def find(key):
        fields = {"coordinator_keys": [key]} if version >= 4 else {"key": key}
        response = await broker.call("FindCoordinator", version, key_type=1, **fields)
        answer = response.coordinators[0] if version >= 4 else response
        return answer.error_code, answer.node_id

    async def scenario():
        assert await find("here") == (errors.NONE, 1)
        (topic,) = broker.created
        assert (topic.name, topic.num_partitions) == ("__transaction_state", 50)
        broker.image.topics[topic.name].partitions[4] = partition(-1)
        assert await find("there") == (errors.COORDINATOR_NOT_AVAILABLE, -1)
        assert len(broker.created) == 1

    play(scenario())


@pytest.mark.parametrize(("version", "key_type"), [(5, 2), (6, 2), (6, 7), (3, 2)])
def test_other_coordinators_are_refused(broker, version, key_type):
    async def scenario():
        fields = {"coordinator_keys": ["g:t:0"]} if version >= 4 else {"key": "g:t:0"}
        response = await broker.call("FindCoordinator", version, key_type=key_type, **fields)
        answer = response.coordinators[0] if version >= 4 else response
        assert (answer.error_code, answer.node_id, answer.port) == (errors.INVALID_REQUEST, -1, -1)

    play(scenario())


def test_without_a_leader_that_can_be_reached_there_is_no_coordinator(broker):
    async def scenario():
        await broker.call("FindCoordinator", 0, key="g")
        broker.image.brokers[1] = broker.image.brokers[1]._replace(fenced=True)
        response = await broker.call("FindCoordinator", 2, key="g")
        assert response.error_code == errors.COORDINATOR_NOT_AVAILABLE
        assert response.error_message == "The coordinator is not available."

    play(scenario())

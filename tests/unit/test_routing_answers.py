"""Answers of a broker with several workers, compared with those of one worker (world: routing_world.py)."""

import random

import pytest

from kafkad.api import table
from kafkad.protocol import codec, errors, messages
from kafkad.server.group_storage import OFFSETS_TOPIC
from tests.unit.routing_world import TOPICS

pytestmark = pytest.mark.timeout(120)
m = messages


def topics_of(cls, partitions, name="name", field="partitions", **fields):
    """(topic, index) pairs as an array of topics, which may repeat."""
    topics = []
    for topic, index in partitions:
        if not topics or getattr(topics[-1], name) != topic:
            topics.append(cls(**{name: topic, field: []}))
        if field == "partition_indexes":
            getattr(topics[-1], field).append(index)
        else:
            topics[-1].partitions.append(cls.Partitions(**fields, **index))
    return topics


def some_partitions(chance):
    """Of all topics, in any order, some twice, some that do not exist."""
    known = [(topic, index) for topic, count in TOPICS.items() for index in range(count + 1)]
    return [*chance.sample(known, chance.randint(1, len(known))), *chance.choices([*known, ("x", 0)], k=2)]


def some_groups(chance, prefix="g"):
    return [f"{prefix}{chance.randrange(20)}" for _ in range(chance.randint(1, 12))]


def list_offsets(chance, version):
    cls = m.ListOffsetsRequest
    timestamps = [-1, -2, 1_015, 99_999, *([-3] if version >= 7 else [])]
    topics = topics_of(
        cls.Topics,
        [
            (topic, {"partition_index": index, "timestamp": chance.choice(timestamps)})
            for topic, index in some_partitions(chance)
        ],
    )
    return cls(replica_id=-1, topics=topics)


def offset_for_leader_epoch(chance, version):
    cls = m.OffsetForLeaderEpochRequest
    asked = [(topic, {"partition": index}) for topic, index in some_partitions(chance)]
    return cls(topics=topics_of(cls.Topics, asked, name="topic", leader_epoch=chance.randrange(2)))


def describe_producers(chance, version):
    cls = m.DescribeProducersRequest
    return cls(topics=topics_of(cls.Topics, some_partitions(chance), field="partition_indexes"))


def write_txn_markers(chance, version):
    cls = m.WriteTxnMarkersRequest.Markers
    markers = []
    for _ in range(chance.randrange(1, 5)):
        some = [*some_partitions(chance), (OFFSETS_TOPIC, chance.randrange(6))]
        marker = cls(
            producer_id=chance.randrange(-1, 3), producer_epoch=chance.randrange(3),
            transaction_result=chance.random() < 0.5, coordinator_epoch=chance.randrange(3),
            topics=topics_of(cls.Topics, some, field="partition_indexes"),
        )  # fmt: skip
        if version >= 2:
            marker.transaction_version = chance.randrange(3)
        markers.append(marker)
    return m.WriteTxnMarkersRequest(markers=markers)


def marker_codes(response):
    """In any order, as Kafka tells them."""
    return {
        (marker.producer_id, topic.name, one.partition_index): one.error_code
        for marker in response.markers
        for topic in marker.topics
        for one in topic.partitions
    }


def delete_records(chance, version):
    cls = m.DeleteRecordsRequest
    asked = [
        (topic, {"partition_index": index, "offset": chance.randint(-1, 4)})
        for topic, index in some_partitions(chance)
    ]
    return cls(topics=topics_of(cls.Topics, asked), timeout_ms=1000)


def offset_commit(chance, version):
    Topic = m.OffsetCommitRequest.Topics
    partitions = [
        Topic.Partitions(
            partition_index=index, committed_offset=chance.randrange(100), committed_metadata="x"
        )
        for index in range(7)
    ]
    (group,) = some_groups(chance)[:1]
    return m.OffsetCommitRequest(group_id=group, topics=[Topic(name="a", partitions=partitions)])


def offset_fetch(chance, version):
    if version < 8:
        return m.OffsetFetchRequest(group_id=some_groups(chance)[0], topics=None if version >= 2 else [])
    Group = m.OffsetFetchRequest.Groups
    asked = [None, [Group.Topics(name="a", partition_indexes=[5, 0, 9])]]
    groups = [Group(group_id=group, topics=chance.choice(asked)) for group in some_groups(chance)]
    return m.OffsetFetchRequest(groups=groups)


def describe_groups(chance, version):
    return m.DescribeGroupsRequest(groups=some_groups(chance))


def delete_groups(chance, version):
    return m.DeleteGroupsRequest(groups_names=some_groups(chance))


def heartbeat(chance, version):
    return m.HeartbeatRequest(group_id=some_groups(chance)[0], member_id="nobody", generation_id=1)


def offset_delete(chance, version):
    Topic = m.OffsetDeleteRequest.Topics
    topics = [Topic(name="a", partitions=[Topic.Partitions(partition_index=index) for index in (3, 8)])]
    return m.OffsetDeleteRequest(group_id=some_groups(chance)[0], topics=topics)


def log_dirs(chance, version):
    Topic = m.DescribeLogDirsRequest.Topics
    topics = [Topic(topic="a", partitions=[4, 1, 9]), Topic(topic="b", partitions=[2])]
    return m.DescribeLogDirsRequest(topics=chance.choice([None, topics]))


ASKED = [
    (list_offsets, range(1, 12)),
    (offset_for_leader_epoch, range(2, 5)),
    (describe_producers, [0]),
    (offset_commit, range(2, 10)),
    (offset_fetch, range(1, 10)),
    (describe_groups, range(7)),
    (heartbeat, range(5)),
    (offset_delete, [0]),
    (delete_groups, range(3)),
    (delete_records, range(3)),
    (log_dirs, range(1, 6)),
]


@pytest.mark.parametrize("me", [0, 2])
def test_three_workers_answer_as_one(make_world, me):
    """The same requests, one after the other, to a broker of one worker and to one of three."""
    chance = random.Random(me)
    script = []
    for _ in range(4):
        for make, versions in ASKED:
            script += [(make(chance, version), version) for version in versions]

    def answers(world):
        async def scenario():
            client = await world.client()
            return [await client.ask(request, version) for request, version in script]

        return world.run(scenario())

    three = make_world(3, me)
    together = answers(three)
    three.close()
    alone = answers(make_world(1))
    found = [each.offset for answer in alone[:11] for topic in answer.topics for each in topic.partitions]
    assert max(found) > 0
    for (request, version), expected, answer in zip(script, alone, together, strict=True):
        if type(request) is m.DescribeLogDirsRequest:
            expected, answer = sizes(expected), sizes(answer)
        assert answer == expected, f"{request.NAME} v{version} {request}"


def test_three_workers_take_markers_as_one(make_world):
    """Each gets those of its partitions, also of the groups'."""
    chance = random.Random(27)
    script = [(write_txn_markers(chance, version), version) for _ in range(10) for version in (1, 2)]

    def answers(world):
        async def scenario():
            client = await world.client()
            return [marker_codes(await client.ask(request, version)) for request, version in script]

        return world.run(scenario())

    three = make_world(3, 2)
    together = answers(three)
    three.close()
    assert together == answers(make_world(1))
    told = {code for answer in together for code in answer.values()}
    wanted = {errors.UNKNOWN_TOPIC_OR_PARTITION, errors.TRANSACTION_COORDINATOR_FENCED}
    assert told >= {errors.NONE, errors.UNKNOWN_SERVER_ERROR, errors.INVALID_PRODUCER_EPOCH, *wanted}
    groups = {code for answer in together for key, code in answer.items() if key[1] == OFFSETS_TOPIC}
    assert errors.NONE in groups


def test_three_workers_answer_wide_requests_as_one(make_world):
    """Split, forwarded, merged and encoded in steps, each of them."""
    chance = random.Random(15)
    known = [(topic, index) for topic, count in TOPICS.items() for index in range(count + 1)]
    some = [*chance.choices(known, k=2_000), *(("missing", index) for index in range(4_000))]
    groups = [f"group-{number}" for number in range(3_000)]
    commit, fetch = m.OffsetCommitRequest, m.OffsetFetchRequest.Groups
    numbered = [(topic, {"partition_index": index}) for topic, index in some]
    script = [
        m.ListOffsetsRequest(
            replica_id=-1, topics=topics_of(m.ListOffsetsRequest.Topics, numbered, timestamp=1_015)
        ),
        m.OffsetForLeaderEpochRequest(
            topics=topics_of(
                m.OffsetForLeaderEpochRequest.Topics,
                [(topic, {"partition": index}) for topic, index in some],
                name="topic",
            )
        ),
        m.DescribeProducersRequest(
            topics=topics_of(m.DescribeProducersRequest.Topics, some, field="partition_indexes")
        ),
        m.DeleteRecordsRequest(topics=topics_of(m.DeleteRecordsRequest.Topics, numbered, offset=0)),
        commit(group_id="g1", topics=topics_of(commit.Topics, numbered, committed_offset=5)),
        m.OffsetFetchRequest(
            groups=[
                fetch(group_id=group, topics=[fetch.Topics(name="a", partition_indexes=[0, 1])])
                for group in groups
            ]
        ),
        m.DescribeGroupsRequest(groups=groups),
        m.DeleteGroupsRequest(groups_names=groups),
        m.IncrementalAlterConfigsRequest(
            validate_only=True,
            resources=[
                m.IncrementalAlterConfigsRequest.Resources(
                    resource_type=chance.choice((2, 8)), resource_name=f"topic-{i}"
                )
                for i in range(1_500)
            ],
        ),
    ]
    versions = {commit.API_KEY: 9, m.OffsetFetchRequest.API_KEY: 9}
    frames = [
        codec.encode_request(each, versions.get(each.API_KEY, table.BY_KEY[each.API_KEY].high), 1, "c")
        for each in script
    ]
    assert min(map(len, frames)) > codec.WIDE_FRAME

    def answers(world):
        async def scenario():
            client = await world.client()
            return [await client.ask(each, versions.get(each.API_KEY)) for each in script]

        return world.run(scenario())

    three = make_world(3, 1)
    together = answers(three)
    three.close()
    for request, expected, answer in zip(script, answers(make_world(1)), together, strict=True):
        assert answer == expected, request.NAME


def sizes(response):
    """Without the path and the volume: each worker of these tests has directories of its own."""
    return sorted(
        (topic.name, partition.partition_index, partition.partition_size)
        for result in response.results
        for topic in result.topics
        for partition in topic.partitions
    )

"""Metadata, DescribeTopicPartitions, DescribeCluster, ApiVersions, InitProducerId: what each version is
told."""

import asyncio
from types import SimpleNamespace

import pytest
from metadata_world import DIR, Cluster, create, new_topic
from reactor_world import World

from kafkad._native.serving.shared_answer import SharedAnswer
from kafkad.api import metadata as metadata_module
from kafkad.api.cluster import describe_cluster
from kafkad.api.context import RequestContext
from kafkad.api.metadata import describe_topic_partitions, metadata
from kafkad.api.metadata_answers import KEPT, SHARED_MAX, MetadataAnswers
from kafkad.api.producer_ids import init_producer_id
from kafkad.api.versions import api_versions, unsupported
from kafkad.controller.brokers import supported_features
from kafkad.metadata import features
from kafkad.metadata.replay import applied
from kafkad.protocol import codec, errors, messages
from kafkad.protocol.errors import KafkaError
from kafkad.server.producer_ids import ProducerIds
from tests.unit.steps import finish

NONE_ID = bytes(16)
UNASKED = -(2**31)
REQUEST = b"\0\0\0\x0a\0\x03\0\0\0\0\0\0\xff\xff"
ANSWERS = MetadataAnswers()  # of all requests of all tests: what is kept must not be wrong


@pytest.fixture
def cluster(tmp_path):
    return Cluster(tmp_path)


def services_of(cluster):
    return SimpleNamespace(
        config=cluster.config,
        controller=cluster.controller,
        metadata=cluster.controller,
        producer_ids=ProducerIds(cluster.controller),
        transactions=None,
        api_versions=((0, 0, 13), (18, 0, 4)),
        metadata_answers=ANSWERS,
    )


def context_of(key, version, listener="PLAINTEXT", connection=None):
    return RequestContext(key, version, 1, "client", "127.0.0.1", listener, connection)


def ask(cluster, names, version=12, listener="PLAINTEXT", **fields):
    cls = messages.MetadataRequest
    topics = (
        None
        if names is None
        else [topic if not isinstance(topic, str) else cls.Topics(name=topic) for topic in names]
    )
    request = cls(topics=topics, **fields)
    services, context = services_of(cluster), context_of(3, version, listener)
    answer = finish(metadata(services, context, request))
    if not isinstance(answer, bytes | SharedAnswer):
        codec.encode(answer, version)  # each answer can be sent
        return answer
    everything = names is None or (version == 0 and not names)
    named = metadata_module._Named()
    named.add([cls.Topics(name=name) for name in cluster.image.topics] if everything else request.topics)
    slow = finish(metadata_module._answer(services, context, request, named, {}))
    assert body_of(answer) == codec.encode_response(slow, version, 1)[4:]
    assert finish(metadata(services, context, request)) == answer  # once more, by what is kept
    return slow


def body_of(answer):
    return answer[4:] if isinstance(answer, bytes) else answer.content()


def asked_by_id(topic_id):
    return messages.MetadataRequest.Topics(topic_id=topic_id, name=None)


# -- Metadata ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(14))
def test_a_topic_is_told_in_every_version(cluster, version):
    create(cluster, new_topic("a", 2))
    response = ask(cluster, ["a"], version)
    assert [(b.node_id, b.host, b.port) for b in response.brokers] == [(1, "127.0.0.1", 9092)]
    assert (response.cluster_id, response.controller_id) == ("abc", 1)
    (topic,) = response.topics
    assert (topic.error_code, topic.name, topic.is_internal) == (0, "a", False)
    assert topic.topic_id == cluster.image.topics["a"].topic_id
    assert [
        (p.partition_index, p.leader_id, p.replica_nodes, p.isr_nodes, p.offline_replicas)
        for p in topic.partitions
    ] == [
        (0, 1, [1], [1], []),
        (1, 1, [1], [1], []),
    ]


def test_all_topics_are_told_for_null_and_in_v0_for_none(cluster):
    create(cluster, new_topic("a"), new_topic("b"))
    assert {t.name for t in ask(cluster, None).topics} == {"a", "b"}
    assert {t.name for t in ask(cluster, [], version=0).topics} == {"a", "b"}
    assert ask(cluster, [], version=1).topics == []


def test_a_topic_asked_for_twice_is_told_once(cluster):
    create(cluster, new_topic("a"))
    assert [t.name for t in ask(cluster, ["a", "a"]).topics] == ["a"]


def test_topics_are_told_by_id(cluster):
    create(cluster, new_topic("a"))
    topic_id = cluster.image.topics["a"].topic_id
    known, unknown = ask(cluster, [asked_by_id(topic_id), asked_by_id(b"?" * 16)]).topics
    assert (known.name, known.error_code) == ("a", 0)
    assert (unknown.name, unknown.topic_id, unknown.error_code) == (None, b"?" * 16, errors.UNKNOWN_TOPIC_ID)


@pytest.mark.parametrize("version", [10, 11])
def test_ids_in_versions_that_do_not_take_them_are_refused(cluster, version):
    create(cluster, new_topic("a"))
    (topic,) = ask(cluster, [asked_by_id(cluster.image.topics["a"].topic_id)], version).topics
    assert topic.error_code == errors.INVALID_REQUEST


def test_a_topic_that_is_asked_for_is_made_if_both_allow_it(cluster):
    (topic,) = ask(cluster, ["fresh"]).topics
    assert (topic.error_code, len(topic.partitions)) == (0, 1)
    assert "fresh" in cluster.image.topics


def test_the_offsets_topic_is_made_as_an_internal_one(tmp_path):
    cluster = Cluster(tmp_path, offsets_topic_num_partitions=3)
    (topic,) = ask(cluster, ["__consumer_offsets"]).topics
    assert (topic.is_internal, len(topic.partitions)) == (True, 3)


def test_no_topic_is_made_if_the_client_or_the_broker_does_not_want_it(cluster, tmp_path):
    (topic,) = ask(cluster, ["fresh"], allow_auto_topic_creation=False).topics
    assert (topic.error_code, topic.topic_id) == (errors.UNKNOWN_TOPIC_OR_PARTITION, NONE_ID)
    strict = Cluster(tmp_path / "strict", auto_create_topics_enable="false")
    assert ask(strict, ["fresh"]).topics[0].error_code == errors.UNKNOWN_TOPIC_OR_PARTITION
    assert not cluster.image.topics
    assert not strict.image.topics


def test_names_that_cannot_be_are_not_made(cluster):
    create(cluster, new_topic("a.b"))
    codes = {t.name: t.error_code for t in ask(cluster, ["#!", ".", "x" * 250, "a_b", "good"]).topics}
    assert codes.pop("good") == 0
    assert set(codes.values()) == {errors.INVALID_TOPIC_EXCEPTION}


def test_a_controller_that_answers_later_is_waited_for(cluster):
    services = services_of(cluster)

    async def auto_create(names, context):
        return cluster.controller.auto_create(names)

    services.controller = SimpleNamespace(auto_create=auto_create)
    request = messages.MetadataRequest(topics=[messages.MetadataRequest.Topics(name="fresh")])
    response = finish(asyncio.run(metadata(services, context_of(3, 12), request)))
    assert response.topics[0].error_code == 0


def test_a_controller_that_is_gone_is_no_reason_to_hide_what_is_there(cluster):
    create(cluster, new_topic("here"))
    services = services_of(cluster)

    async def auto_create(names, context):
        raise KafkaError(errors.REQUEST_TIMED_OUT)

    services.controller = SimpleNamespace(auto_create=auto_create)
    cls = messages.MetadataRequest
    request = cls(topics=[cls.Topics(name="here"), cls.Topics(name="new")])
    response = finish(asyncio.run(metadata(services, context_of(3, 12), request)))
    assert [(topic.name, topic.error_code) for topic in response.topics] == [
        ("here", errors.NONE),
        ("new", errors.LEADER_NOT_AVAILABLE),
    ]
    assert [broker.node_id for broker in response.brokers] == [1]


def test_operations_are_told_only_when_asked_for(cluster):
    create(cluster, new_topic("a"))
    plain = ask(cluster, ["a"], 10)
    assert (plain.cluster_authorized_operations, plain.topics[0].topic_authorized_operations) == (
        UNASKED,
        UNASKED,
    )
    full = ask(
        cluster,
        ["a"],
        10,
        include_cluster_authorized_operations=True,
        include_topic_authorized_operations=True,
    )
    assert (full.cluster_authorized_operations, full.topics[0].topic_authorized_operations) == (8096, 3576)


def second_broker(cluster, fenced=True, listener="PLAINTEXT"):
    """A broker 2, and a topic whose partition 0 it shares with us and whose partition 1 it leads."""
    cls = messages.RegisterBrokerRecord
    endpoint = cls.EndPoints(name=listener, host="other", port=9093, security_protocol=0)
    base = {"topic_id": b"o" * 16, "partition_epoch": 0, "leader_epoch": 3}
    cluster.append(
        cls(broker_id=2, broker_epoch=5, fenced=fenced, log_dirs=[b"f" * 16], end_points=[endpoint]),
        messages.TopicRecord(name="shared", topic_id=b"o" * 16),
        messages.PartitionRecord(
            partition_id=0, replicas=[1, 2], isr=[1], leader=1, directories=[DIR, b"f" * 16], **base
        ),
        messages.PartitionRecord(
            partition_id=1, replicas=[2], isr=[2], leader=2, directories=[b"f" * 16], **base
        ),
    )


def test_replicas_on_a_broker_that_is_down_are_offline(cluster):
    second_broker(cluster)
    response = ask(cluster, ["shared"])
    assert [b.node_id for b in response.brokers] == [1]
    assert response.topics[0].partitions[0].offline_replicas == [2]
    assert response.topics[0].partitions[0].replica_nodes == [1, 2]


def test_an_answer_is_never_without_brokers(cluster):
    """confluentinc/librdkafka#5301: a client that is told of none never asks again."""
    second_broker(cluster)
    epoch = cluster.image.brokers[1].epoch
    cluster.append(messages.BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=epoch, fenced=1))
    assert all(broker.fenced for broker in cluster.image.brokers.values())
    response = ask(cluster, ["shared"])
    assert ([b.node_id for b in response.brokers], response.controller_id) == ([1, 2], -1)
    assert response.topics[0].partitions[0].offline_replicas == [1, 2]


def test_v0_leaves_out_replicas_that_are_down_and_says_so(cluster):
    second_broker(cluster)
    partition = ask(cluster, ["shared"], 0).topics[0].partitions[0]
    assert (partition.replica_nodes, partition.error_code) == ([1], errors.REPLICA_NOT_AVAILABLE)


@pytest.mark.parametrize(
    ("version", "code"), [(5, errors.LEADER_NOT_AVAILABLE), (6, errors.LISTENER_NOT_FOUND)]
)
def test_a_leader_that_does_not_have_our_listener_is_not_told(cluster, version, code):
    second_broker(cluster, fenced=False, listener="OTHER")
    partition = ask(cluster, ["shared"], version).topics[0].partitions[1]
    assert (partition.leader_id, partition.error_code) == (-1, code)


def test_a_broker_is_told_by_the_address_of_the_listener(cluster):
    second_broker(cluster, fenced=False, listener="OTHER")
    assert [(b.node_id, b.host) for b in ask(cluster, [], listener="OTHER").brokers] == [(2, "other")]


def test_a_partition_without_a_leader_says_so(cluster):
    create(cluster, new_topic("a"))
    topic_id = cluster.image.topics["a"].topic_id
    cluster.append(messages.PartitionChangeRecord(partition_id=0, topic_id=topic_id, leader=-1))
    partition = ask(cluster, ["a"]).topics[0].partitions[0]
    assert (partition.leader_id, partition.error_code) == (-1, errors.LEADER_NOT_AVAILABLE)


# -- DescribeTopicPartitions -------------------------------------------------------------------------------


def pages(cluster, names=(), limit=2000, start=None):
    """All pages: a list of (topic, error code, partition indexes) a page."""
    cls = messages.DescribeTopicPartitionsRequest
    cursor = None if start is None else cls.Cursor(topic_name=start[0], partition_index=start[1])
    found = []
    for _ in range(20):
        request = cls(
            topics=[cls.Topics(name=name) for name in names], response_partition_limit=limit, cursor=cursor
        )
        response = finish(describe_topic_partitions(services_of(cluster), context_of(75, 0), request))
        codec.encode(response, 0)
        found.append(
            [(t.name, t.error_code, [p.partition_index for p in t.partitions]) for t in response.topics]
        )
        if response.next_cursor is None:
            return found
        cursor = cls.Cursor(
            topic_name=response.next_cursor.topic_name, partition_index=response.next_cursor.partition_index
        )
    raise AssertionError("the pages do not end")


def test_partitions_are_told_a_page_at_a_time(cluster):
    create(cluster, new_topic("b", 3), new_topic("a", 2), new_topic("c", 1))
    assert pages(cluster) == [[("a", 0, [0, 1]), ("b", 0, [0, 1, 2]), ("c", 0, [0])]]
    assert pages(cluster, limit=2) == [
        [("a", 0, [0, 1])],
        [("b", 0, [0, 1])],
        [("b", 0, [2]), ("c", 0, [0])],
    ]
    assert pages(cluster, limit=0, start=("b", 2)) == [[("b", 0, [2])], [("c", 0, [0])]]


def test_the_broker_limits_a_page_too(tmp_path):
    cluster = Cluster(tmp_path, max_request_partition_size_limit=1)
    create(cluster, new_topic("a", 2))
    assert pages(cluster) == [[("a", 0, [0])], [("a", 0, [1])]]


def test_topics_that_are_not_there_are_told_if_they_were_named(cluster):
    create(cluster, new_topic("a"))
    assert pages(cluster, ["a", "x", "#"]) == [
        [
            ("#", errors.INVALID_TOPIC_EXCEPTION, []),
            ("a", 0, [0]),
            ("x", errors.UNKNOWN_TOPIC_OR_PARTITION, []),
        ]
    ]


@pytest.mark.parametrize(("names", "start"), [(["a"], ("b", 0)), ([], ("a", -1))])
def test_a_cursor_that_cannot_be_is_refused(cluster, names, start):
    create(cluster, new_topic("a"))
    with pytest.raises(KafkaError) as caught:
        pages(cluster, names, start=start)
    assert caught.value.code == errors.INVALID_REQUEST


def test_eligible_leaders_are_told(cluster):
    create(cluster, new_topic("a"))
    topic_id = cluster.image.topics["a"].topic_id
    cluster.append(
        messages.PartitionChangeRecord(
            partition_id=0,
            topic_id=topic_id,
            isr=[],
            leader=-1,
            eligible_leader_replicas=[1],
            last_known_elr=[1],
        )
    )
    request = messages.DescribeTopicPartitionsRequest()
    response = finish(describe_topic_partitions(services_of(cluster), context_of(75, 0), request))
    (partition,) = response.topics[0].partitions
    assert (partition.leader_id, partition.eligible_leader_replicas, partition.last_known_elr) == (
        -1,
        [1],
        [1],
    )
    assert response.topics[0].topic_authorized_operations == 3576


# -- DescribeCluster ---------------------------------------------------------------------------------------


def described(cluster, version, **fields):
    request = messages.DescribeClusterRequest(**fields)
    response = describe_cluster(services_of(cluster), context_of(60, version), request)
    codec.encode(response, version)
    return response


def test_the_cluster_is_described_in_every_version(cluster):
    second_broker(cluster)
    for version in range(3):
        response = described(cluster, version)
        assert (response.cluster_id, response.controller_id, response.cluster_authorized_operations) == (
            "abc",
            1,
            UNASKED,
        )
        assert [(b.broker_id, b.host, b.port) for b in response.brokers] == [(1, "127.0.0.1", 9092)]
    asked = described(cluster, 2, include_fenced_brokers=True, include_cluster_authorized_operations=True)
    assert [(b.broker_id, b.is_fenced) for b in asked.brokers] == [(1, False), (2, True)]
    assert asked.cluster_authorized_operations == 8096


def test_controllers_are_not_told_on_a_brokers_listener(cluster):
    assert described(cluster, 1, endpoint_type=2).error_code == errors.MISMATCHED_ENDPOINT_TYPE
    assert described(cluster, 1, endpoint_type=3).error_code == errors.UNSUPPORTED_ENDPOINT_TYPE


# -- ApiVersions -------------------------------------------------------------------------------------------


def versions(cluster, version, name="client", software="1.0", connection=None):
    request = messages.ApiVersionsRequest(client_software_name=name, client_software_version=software)
    response = api_versions(services_of(cluster), context_of(18, version, connection=connection), request)
    codec.encode(response, version)
    return response


@pytest.mark.parametrize("version", range(5))
def test_the_table_is_told(cluster, version):
    response = versions(cluster, version)
    assert [(r.api_key, r.min_version, r.max_version) for r in response.api_keys] == [(0, 0, 13), (18, 0, 4)]


def test_features_with_a_lowest_level_of_0_are_told_from_v4_on(cluster):
    assert [f.name for f in versions(cluster, 3).supported_features] == ["metadata.version"]
    assert {f.name: f.max_version for f in versions(cluster, 4).supported_features} == {
        "eligible.leader.replicas.version": 1,
        "kraft.version": 1,
        "metadata.version": 30,
        "transaction.version": 2,
    }


def test_clients_hear_of_served_features_only(cluster):
    """HUNTS U10: ApiVersions listed group.version, share.version and streams.version, and nothing that they
    switch on is served. Existing logs have them; their records stay."""
    levels = {"group.version": 1, "share.version": 1, "streams.version": 1}
    image, _ = applied(
        cluster.image,
        [messages.FeatureLevelRecord(name=name, feature_level=level) for name, level in levels.items()],
    )
    services = services_of(cluster)
    services.metadata = SimpleNamespace(image=image)
    request = messages.ApiVersionsRequest(client_software_name="client", client_software_version="1.0")
    for version in (3, 4):
        response = api_versions(services, context_of(18, version), request)
        assert {f.name: f.max_version_level for f in response.finalized_features} == {
            "metadata.version": 30,
            "eligible.leader.replicas.version": 1,
            "kraft.version": 1,
            "transaction.version": 2,
        }
        assert not levels.keys() & {f.name for f in response.supported_features}
    assert features.unsupported(image.features) is None
    kept = [r for r in image.records() if type(r) is messages.FeatureLevelRecord]
    assert levels.items() <= {record.name: record.feature_level for record in kept}.items()
    ranges = supported_features(image)
    assert all(ranges[name] == (0, level) for name, level in levels.items())


def test_finalized_features_are_told_with_the_offset_they_were_read_at(cluster):
    response = versions(cluster, 3)
    assert response.finalized_features_epoch == cluster.image.offset
    levels = {f.name: f.max_version_level for f in response.finalized_features}
    assert levels == {**cluster.image.features, "kraft.version": 1}


@pytest.mark.parametrize(
    ("name", "software"), [("", "1"), ("-a", "1"), ("a", ""), ("a b", "1"), ("a", "1-"), ("a\n", "1")]
)
def test_client_software_names_are_checked_from_v3_on(cluster, name, software):
    assert versions(cluster, 3, name, software).error_code == errors.INVALID_REQUEST
    assert versions(cluster, 2, name, software).error_code == 0


def test_the_connection_learns_the_client_software(cluster):
    connection = SimpleNamespace()
    versions(cluster, 3, "librdkafka", "2.4.0", connection)
    assert (connection.client_software_name, connection.client_software_version) == ("librdkafka", "2.4.0")


def test_an_unknown_version_is_told_the_range_of_api_versions(cluster):
    response = unsupported(services_of(cluster))
    codec.encode(response, 0)
    assert response.error_code == errors.UNSUPPORTED_VERSION
    assert [(r.api_key, r.max_version) for r in response.api_keys] == [(18, 4)]


# -- InitProducerId ----------------------------------------------------------------------------------------


def init(services, version=4, **fields):
    request = messages.InitProducerIdRequest(**({"transactional_id": None} | fields))
    response = init_producer_id(services, context_of(22, version), request)
    codec.encode(response, version)
    return response.error_code, response.producer_id, response.producer_epoch


def test_each_producer_gets_an_id_of_its_own_in_epoch_0(cluster):
    services = services_of(cluster)
    assert [init(services, version) for version in range(3)] == [(0, 0, 0), (0, 1, 0), (0, 2, 0)]
    assert init(services, 3, producer_id=1, producer_epoch=7) == (0, 3, 0)


@pytest.mark.parametrize(
    "fields", [{"transactional_id": "t"}, {"transactional_id": ""}, {"producer_id": 5}, {"producer_epoch": 5}]
)
def test_what_cannot_be_had_is_an_invalid_request(cluster, fields):
    assert init(services_of(cluster), **fields) == (errors.INVALID_REQUEST, -1, -1)


def test_without_a_disk_there_are_no_ids(cluster):
    cluster.log.failing = "flush"
    assert init(services_of(cluster)) == (errors.KAFKA_STORAGE_ERROR, -1, -1)


# -- answers that are kept ---------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(14))
@pytest.mark.parametrize("count", [0, 1, 126, 127, 128, 700])
def test_what_is_kept_is_what_would_be_encoded(cluster, version, count):
    """HUNTS S6. `ask` compares each answer with the one that the codec makes of all of it."""
    create(cluster, *(new_topic(f"topic-{i}", 1 + i % 3) for i in range(count)))
    flags = {"include_topic_authorized_operations": True, "include_cluster_authorized_operations": True}
    nobody = [] if version == 0 else None
    for _ in range(2):
        assert len(ask(cluster, nobody, version).topics) == count
        assert len(ask(cluster, nobody, version, **flags).topics) == count
    some = [f"topic-{i}" for i in range(0, count, 7)]
    if some:
        assert [topic.name for topic in ask(cluster, some, version, **flags).topics] == some


def test_a_new_image_is_told_and_shares_what_did_not_change(cluster):
    answers = MetadataAnswers()
    create(cluster, *(new_topic(f"topic-{i}") for i in range(50)))

    def names():
        services, request = services_of(cluster), messages.MetadataRequest(topics=None)
        services.metadata_answers = answers
        frame = finish(metadata(services, context_of(3, 12), request))
        _, response = codec.decode_response(messages.MetadataResponse, 12, frame)
        return [topic.name for topic in response.topics]

    def parts():
        [kept] = answers._parts.values()
        return {name: id(part) for name, (_, part) in kept.topics.items()}

    assert len(names()) == 50
    before = parts()
    create(cluster, new_topic("another"))
    assert len(names()) == 51 and "another" in names()
    assert before.items() <= parts().items()
    request = messages.DeleteTopicsRequest(topic_names=["topic-7"], timeout_ms=1000)
    cluster.controller.delete_topics(request, context_of(20, 5))
    assert len(names()) == 50 and "topic-7" not in names()


def test_what_is_kept_is_bounded(cluster):
    answers = MetadataAnswers()
    services = services_of(cluster)
    services.metadata_answers = answers
    for version in range(1, 14):
        create(cluster, *(new_topic(f"of-{version}-{i}") for i in range(30)))
        finish(metadata(services, context_of(3, version), messages.MetadataRequest(topics=None)))
        names = [f"of-{version}-{i}" for i in range(30)]
        request = messages.DeleteTopicsRequest(topic_names=names, timeout_ms=1000)
        cluster.controller.delete_topics(request, context_of(20, 5))
    assert len(answers._parts) <= KEPT
    finish(metadata(services, context_of(3, 13), messages.MetadataRequest(topics=None)))
    assert len(answers._parts[next(reversed(answers._parts))].topics) <= 2 * len(cluster.image.topics) + 16


def test_many_who_ask_at_once_for_what_has_to_be_made_share_the_work(cluster):
    create(cluster, *(new_topic(f"topic-{i}") for i in range(1_000)))
    services = services_of(cluster)
    services.metadata_answers = MetadataAnswers()
    asking = [metadata(services, context_of(3, 12), messages.MetadataRequest(topics=None)) for _ in range(40)]
    steps, answers = 0, []
    while asking:
        for each in list(asking):
            try:
                next(each)
                steps += 1
            except StopIteration as end:
                asking.remove(each)
                answers.append(end.value)
    assert len({id(answer) for answer in answers}) == 1 and isinstance(answers[0], SharedAnswer)
    assert metadata(services, context_of(3, 12), messages.MetadataRequest(topics=None)) is answers[0]


def test_shared_answers_that_are_not_read_are_bounded(cluster, tmp_path):
    """Before: a file in memory for each image, as many as there are clients that do not read."""
    world = World(str(tmp_path / "world"))
    services = services_of(cluster)
    services.metadata_answers = answers = MetadataAnswers()
    create(cluster, *(new_topic(f"topic-{i}") for i in range(1_000)))
    given = []

    def respond(connection, request_id, frame):
        connection.pause_writing()  # its transport is full
        answer = finish(metadata(services, context_of(3, 12), messages.MetadataRequest(topics=None)))
        given.append(answer)
        if isinstance(answer, SharedAnswer):
            answer.respond(connection, request_id)
        else:
            connection.respond(request_id, answer)

    world.answer = respond
    slow = []
    for number in range(3 * SHARED_MAX):
        create(cluster, new_topic(f"other-{number}"))
        slow.append(world.reactor.attach(lambda data: None, "SSL"))
        slow[-1].feed(REQUEST)
        world.poll()
    shared = [answer for answer in given if isinstance(answer, SharedAnswer)]
    assert len(given) == len(slow) and len(shared) == SHARED_MAX
    copied = (len(given) - len(shared)) * min(map(len, given))
    assert copied <= world.reactor.stats()["buffered_bytes"] < 2 * copied
    for connection in slow:
        connection.resume_writing()
    world.poll()
    create(cluster, new_topic("last"))
    answer = finish(metadata(services, context_of(3, 12), messages.MetadataRequest(topics=None)))
    assert isinstance(answer, SharedAnswer) and len(answers._shared) == 1
    world.close()


def test_an_unknown_topic_id_alone_has_no_authorized_operations(cluster):
    """As in Kafka, seen by tests/integration/test_differential.py: a missing name has them."""
    create(cluster, new_topic("a"))
    how = {"include_topic_authorized_operations": True, "allow_auto_topic_creation": False}
    there, gone = ask(cluster, ["a", "b"], 12, **how).topics
    assert (there.error_code, gone.error_code) == (0, errors.UNKNOWN_TOPIC_OR_PARTITION)
    assert there.topic_authorized_operations == gone.topic_authorized_operations != UNASKED
    asked = [messages.MetadataRequest.Topics(topic_id=b"x" * 16, name=None)]
    (unknown,) = ask(cluster, asked, 12, **how).topics
    assert (unknown.error_code, unknown.topic_authorized_operations) == (errors.UNKNOWN_TOPIC_ID, UNASKED)

"""librdkafka through confluent-kafka: produce, consume, seek, groups, and the admin calls."""

import time
from collections import Counter

import pytest
from confluent_kafka import (
    OFFSET_END,
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_LOG_APPEND_TIME,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from tests.clients import (
    WAIT_S,
    admin_client,
    consumer,
    create_topic,
    produce,
    producer,
    read,
    read_partition,
    wait_until,
)

pytestmark = [pytest.mark.workers(2, 4), pytest.mark.secured]

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


@pytest.fixture
def admin(broker):
    return admin_client(broker)


@pytest.fixture
def new_topic(admin, unique):
    """`new_topic(partitions, config)`: the name of a topic that now exists."""
    made = 0

    def new(partitions=1, config=None):
        nonlocal made
        made += 1
        name = unique(f"confluent-{made}")
        admin.create_topics([NewTopic(name, partitions, 1, config=config or {})])[name].result(WAIT_S)
        return name

    return new


class TestProduceAndConsume:
    @pytest.mark.parametrize("codec", CODECS)
    @pytest.mark.secured(short=True)
    def test_records_come_back_as_they_went_with_every_codec(self, broker, new_topic, codec):
        topic = new_topic()
        sent = [(b"k%d" % n, b"value %d " % n * 20) for n in range(500)]
        delivered = produce(broker, topic, sent, **{"compression.type": codec, "acks": "all"})
        assert [message.offset() for message in delivered] == list(range(500))
        got = read_partition(broker, topic, 500, **{"check.crcs": True})
        assert [(message.key(), message.value()) for message in got] == sent
        assert [message.offset() for message in got] == list(range(500))

    @pytest.mark.parametrize("acks", [0, 1, "all"])
    def test_every_acks(self, broker, new_topic, acks):
        topic = new_topic()
        sent = [(None, b"%d" % n) for n in range(100)]
        produce(broker, topic, sent, acks=acks)
        got = read_partition(broker, topic, 100)
        assert [message.value() for message in got] == [value for _, value in sent]

    def test_an_idempotent_producer_with_five_requests_in_flight(self, broker, new_topic):
        topic = new_topic(3)
        config = {
            "enable.idempotence": True,
            "max.in.flight.requests.per.connection": 5,
            "batch.num.messages": 50,
        }
        delivered = produce(broker, topic, [(b"%d" % (n % 17), b"%d" % n) for n in range(3000)], **config)
        by_partition = Counter(message.partition() for message in delivered)
        for partition, count in by_partition.items():
            got = read_partition(broker, topic, count, partition)
            assert [message.offset() for message in got] == list(range(count))
            by_key = {}
            for message in got:
                by_key.setdefault(message.key(), []).append(int(message.value()))
            assert all(values == sorted(values) for values in by_key.values())
        assert sum(by_partition.values()) == 3000

    @pytest.mark.secured(short=True)
    def test_headers_nulls_and_empty_values(self, broker, new_topic):
        topic = new_topic()
        client = producer(broker)
        headers = [("a", b"1"), ("a", b"2"), ("empty", b""), ("null", None), ("ünïcode", "é".encode())]
        client.produce(topic, key=None, value=None, headers=headers)
        client.produce(topic, key=b"", value=b"")
        client.produce(topic, key=b"k", value=None)
        assert client.flush(WAIT_S) == 0
        first, second, third = read_partition(broker, topic, 3)
        assert (first.key(), first.value(), first.headers()) == (None, None, headers)
        assert (second.key(), second.value(), second.headers()) == (b"", b"", None)
        assert (third.key(), third.value()) == (b"k", None)

    def test_timestamps_are_kept_or_given(self, broker, new_topic):
        created = new_topic()
        appended = new_topic(config={"message.timestamp.type": "LogAppendTime"})
        past = int(time.time() * 1000) - 100_000
        for topic in (created, appended):
            client = producer(broker)
            client.produce(topic, b"x", timestamp=past)
            assert client.flush(WAIT_S) == 0
        (kept,) = read_partition(broker, created, 1)
        (given,) = read_partition(broker, appended, 1)
        assert kept.timestamp() == (TIMESTAMP_CREATE_TIME, past)
        kind, at = given.timestamp()
        assert kind == TIMESTAMP_LOG_APPEND_TIME
        assert abs(at - time.time() * 1000) < 60_000

    @pytest.mark.secured(short=True)
    def test_ten_megabyte_records(self, broker, new_topic):
        size = 10 * 1024 * 1024
        topic = new_topic(config={"max.message.bytes": size + 1024})
        values = [bytes([n]) * size for n in range(3)]
        produce(broker, topic, [(None, value) for value in values], **{"message.max.bytes": size + 1024})
        got = read_partition(broker, topic, 3, **{"message.max.bytes": size + 1024})
        assert [message.value() == value for message, value in zip(got, values, strict=True)] == [True] * 3

    def test_a_record_over_the_limit_is_refused_and_the_next_one_is_taken(self, broker, new_topic):
        topic = new_topic(config={"max.message.bytes": 2000})
        outcomes = []
        client = producer(broker)
        for value in (b"x" * 5000, b"small"):
            client.produce(topic, value, on_delivery=lambda error, message: outcomes.append(error))
            assert client.flush(WAIT_S) == 0
        assert outcomes[0].code() == KafkaError.MSG_SIZE_TOO_LARGE
        assert outcomes[1] is None
        assert read_partition(broker, topic, 1)[0].value() == b"small"

    def test_a_topic_comes_into_being_by_producing_to_it(self, broker, unique):
        topic = unique("auto")
        produce(broker, topic, [(None, b"first")])
        assert read_partition(broker, topic, 1)[0].value() == b"first"

    def test_the_topics_compression_type_wins(self, broker, new_topic):
        topic = new_topic(config={"compression.type": "zstd"})
        sent = [(None, b"%d" % n * 50) for n in range(200)]
        produce(broker, topic, sent, **{"compression.type": "gzip"})
        got = read_partition(broker, topic, 200, **{"check.crcs": True})
        assert [message.value() for message in got] == [value for _, value in sent]

    def test_a_reader_at_the_end_waits_for_what_comes(self, broker, new_topic):
        topic = new_topic()
        produce(broker, topic, [(None, b"old")])
        client = consumer(broker)
        client.assign([TopicPartition(topic, 0, OFFSET_END)])
        assert client.poll(1) is None
        began = time.monotonic()
        produce(broker, topic, [(None, b"new")])
        (message,) = read(client, 1)
        assert message.value() == b"new"
        assert time.monotonic() - began < 5
        client.close()


@pytest.fixture(scope="module")
def written(broker):
    """A topic with 1,000 records, one second apart by their timestamps."""
    name = create_topic(broker, f"confluent-seek-{time.time_ns()}")
    start = int(time.time() * 1000) - 2_000_000
    client = producer(broker, **{"batch.num.messages": 100, "compression.type": "lz4"})
    for n in range(1000):
        client.produce(name, b"%d" % n, timestamp=start + n * 1000)
    assert client.flush(WAIT_S) == 0
    return name, start


class TestSeek:
    @pytest.mark.parametrize("offset", [0, 1, 99, 100, 555, 999])
    def test_by_offset(self, broker, written, offset):
        topic, _ = written
        got = read_partition(broker, topic, 1, offset=offset)
        assert (got[0].offset(), got[0].value()) == (offset, b"%d" % offset)

    @pytest.mark.parametrize(
        ("after_ms", "expected"),
        [(-5000, 0), (0, 0), (1, 1), (500_000, 500), (500_500, 501), (999_000, 999), (999_001, -1)],
    )
    @pytest.mark.secured(short=True)
    def test_by_time(self, broker, written, after_ms, expected):
        topic, start = written
        client = consumer(broker)
        (found,) = client.offsets_for_times([TopicPartition(topic, 0, start + after_ms)], WAIT_S)
        client.close()
        assert found.offset == expected or (expected == -1 and found.offset == OFFSET_END)

    def test_watermarks_and_list_offsets(self, broker, written, admin):
        topic, start = written
        client = consumer(broker)
        assert client.get_watermark_offsets(TopicPartition(topic, 0), WAIT_S) == (0, 1000)
        client.close()
        for spec, offset, timestamp in [
            (OffsetSpec.earliest(), 0, None),
            (OffsetSpec.latest(), 1000, None),
            (OffsetSpec.max_timestamp(), 999, start + 999_000),
            (OffsetSpec.for_timestamp(start + 3500), 4, start + 4000),
        ]:
            partition = TopicPartition(topic, 0)
            for isolation in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED):
                future = admin.list_offsets({partition: spec}, isolation_level=isolation)[partition]
                result = future.result(WAIT_S)
                assert result.offset == offset
                assert timestamp is None or result.timestamp == timestamp

    def test_out_of_range_resets_as_told(self, broker, written):
        topic, _ = written
        got = read_partition(broker, topic, 1, offset=5_000_000, **{"auto.offset.reset": "earliest"})
        assert got[0].offset() == 0
        client = consumer(broker, **{"auto.offset.reset": "error"})
        client.assign([TopicPartition(topic, 0, 5_000_000)])
        message = wait_until(lambda: client.poll(0.5))
        assert message.error().code() == KafkaError._AUTO_OFFSET_RESET
        client.close()


class TestGroups:
    def test_commits_are_found_again(self, broker, new_topic, unique):
        topic, group = new_topic(2), unique("group")
        for partition in range(2):
            client = producer(broker)
            for n in range(10):
                client.produce(topic, b"%d" % n, partition=partition)
            assert client.flush(WAIT_S) == 0
        first = consumer(broker, group)
        first.subscribe([topic])
        read(first, 20)
        offsets = [TopicPartition(topic, 0, 4, metadata="note"), TopicPartition(topic, 1, 7)]
        first.commit(offsets=offsets, asynchronous=False)
        first.close()
        second = consumer(broker, group)
        found = second.committed([TopicPartition(topic, 0), TopicPartition(topic, 1)], WAIT_S)
        assert [(p.partition, p.offset, p.metadata) for p in found] == [(0, 4, "note"), (1, 7, None)]
        second.subscribe([topic])
        got = Counter((message.partition(), message.offset()) for message in read(second, 9))
        assert got == Counter([(0, n) for n in range(4, 10)] + [(1, n) for n in range(7, 10)])
        second.close()

    @pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
    @pytest.mark.secured(short=True)
    def test_members_share_the_partitions_and_take_over_from_one_that_leaves(
        self, broker, new_topic, unique, strategy
    ):
        topic, group = new_topic(6), unique("group")
        members = [
            consumer(broker, group, **{"partition.assignment.strategy": strategy, "client.id": f"m{n}"})
            for n in range(3)
        ]
        for member in members:
            member.subscribe([topic])

        def assigned():
            parts = []
            for member in members:
                member.poll(0.05)
                parts.append({partition.partition for partition in member.assignment()})
            return parts

        wait_until(lambda: sorted(map(len, assigned())) == [2, 2, 2])
        assert set().union(*assigned()) == set(range(6))
        members.pop().close()
        wait_until(lambda: sorted(map(len, assigned())) == [3, 3])
        assert set().union(*assigned()) == set(range(6))
        for member in members:
            member.close()

    @pytest.mark.secured(short=True)
    def test_a_static_member_comes_back_without_a_rebalance(self, broker, new_topic, unique):
        topic, group = new_topic(4), unique("group")
        rebalances = []

        def member(name):
            client = consumer(broker, group, **{"group.instance.id": name, "session.timeout.ms": 30000})
            client.subscribe(
                [topic], on_assign=lambda _, partitions: rebalances.append((name, len(partitions)))
            )
            return client

        stays, leaves = member("stays"), member("leaves")

        def balanced(*clients):
            for client in clients:
                client.poll(0.05)
            return all(len(client.assignment()) == 2 for client in clients)

        wait_until(lambda: balanced(stays, leaves))
        before = {partition.partition for partition in leaves.assignment()}
        leaves.close()
        rebalances.clear()
        returns = member("leaves")
        wait_until(lambda: balanced(stays, returns))
        assert {partition.partition for partition in returns.assignment()} == before
        assert [name for name, _ in rebalances] == ["leaves"]  # the other one noticed nothing
        stays.close()
        returns.close()

    def test_a_second_static_member_of_one_name_fences_the_first(self, broker, new_topic, unique):
        topic, group = new_topic(), unique("group")
        first, second = (consumer(broker, group, **{"group.instance.id": "same"}) for _ in range(2))
        first.subscribe([topic])
        wait_until(lambda: first.poll(0.05) or first.assignment())
        second.subscribe([topic])

        def fenced():
            second.poll(0.05)
            try:
                message = first.poll(0.05)
            except KafkaException as trouble:
                return trouble.args[0].code() == KafkaError._FATAL
            return message is not None and message.error().code() == KafkaError._FATAL

        wait_until(fenced)
        second.close()
        first.close()

    def test_a_silent_member_loses_its_partitions_after_the_session_timeout(self, broker, new_topic, unique):
        topic, group = new_topic(2), unique("group")
        quick = {"session.timeout.ms": 3000, "heartbeat.interval.ms": 300, "max.poll.interval.ms": 3000}
        silent, alive = consumer(broker, group, **quick), consumer(broker, group, **quick)
        silent.subscribe([topic])
        wait_until(lambda: silent.poll(0.05) or len(silent.assignment()) == 2)
        alive.subscribe([topic])
        # `silent` polls no more, so librdkafka lets it leave after max.poll.interval.ms
        wait_until(lambda: alive.poll(0.1) or len(alive.assignment()) == 2)
        alive.close()
        silent.close()


class TestAdmin:
    @pytest.mark.secured(short=True)
    def test_topics_come_and_go(self, admin, broker, unique):
        name = unique("admin")
        new = NewTopic(name, 3, 1, config={"retention.ms": "3600000", "segment.bytes": "1048576"})
        admin.create_topics([new])[name].result(WAIT_S)
        with pytest.raises(KafkaException) as twice:
            admin.create_topics([new])[name].result(WAIT_S)
        assert twice.value.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS
        listed = admin.list_topics(timeout=WAIT_S)
        assert sorted(listed.topics[name].partitions) == [0, 1, 2]
        assert len(listed.brokers) == 1
        admin.create_partitions([NewPartitions(name, 5)])[name].result(WAIT_S)
        wait_until(lambda: len(admin.list_topics(name, timeout=WAIT_S).topics[name].partitions) == 5)
        produce(broker, name, [(b"%d" % n, b"x") for n in range(100)])
        admin.delete_topics([name])[name].result(WAIT_S)
        wait_until(lambda: name not in admin.list_topics(timeout=WAIT_S).topics)
        admin.create_topics([NewTopic(name, 1, 1)])[name].result(WAIT_S)
        assert produce(broker, name, [(None, b"anew")])[0].offset() == 0

    @pytest.mark.parametrize(
        ("new", "code"),
        [
            (NewTopic("#!", 1, 1), KafkaError.TOPIC_EXCEPTION),
            (NewTopic("x" * 250, 1, 1), KafkaError.TOPIC_EXCEPTION),
            (NewTopic("..", 1, 1), KafkaError.TOPIC_EXCEPTION),
            (NewTopic("no-partitions", 0, 1), KafkaError.INVALID_PARTITIONS),
            (NewTopic("many-replicas", 1, 7), KafkaError.INVALID_REPLICATION_FACTOR),
            (NewTopic("bad-value", 1, 1, config={"retention.ms": "long"}), KafkaError.INVALID_CONFIG),
            (NewTopic("bad-key", 1, 1, config={"no.such.key": "1"}), KafkaError.INVALID_CONFIG),
        ],
        ids=lambda value: value.topic[:12] if isinstance(value, NewTopic) else None,
    )
    def test_what_makes_no_topic_says_why(self, admin, new, code):
        with pytest.raises(KafkaException) as refused:
            admin.create_topics([new])[new.topic].result(WAIT_S)
        assert refused.value.args[0].code() == code
        assert new.topic not in admin.list_topics(timeout=WAIT_S).topics

    def test_validate_only_changes_nothing(self, admin, unique):
        name = unique("dry")
        admin.create_topics([NewTopic(name, 1, 1)], validate_only=True)[name].result(WAIT_S)
        assert name not in admin.list_topics(timeout=WAIT_S).topics

    def test_topic_configs_are_described_and_altered(self, admin, new_topic):
        name = new_topic(config={"retention.ms": "1000000"})
        resource = ConfigResource(ResourceType.TOPIC, name)

        def described():
            return admin.describe_configs([resource])[resource].result(WAIT_S)

        before = described()
        assert before["retention.ms"].value == "1000000"
        assert before["retention.ms"].source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value
        assert before["segment.bytes"].value == str(1 << 30)
        assert before["segment.bytes"].is_default
        change = ConfigResource(
            ResourceType.TOPIC,
            name,
            incremental_configs=[
                ConfigEntry("retention.ms", None, incremental_operation=AlterConfigOpType.DELETE),
                ConfigEntry("segment.bytes", "2097152", incremental_operation=AlterConfigOpType.SET),
                ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.APPEND),
            ],
        )
        admin.incremental_alter_configs([change])[change].result(WAIT_S)

        after = wait_until(lambda: (now := described())["segment.bytes"].value == "2097152" and now)
        assert after["retention.ms"].value == str(7 * 24 * 3600 * 1000)
        assert set(after["cleanup.policy"].value.split(",")) == {"delete", "compact"}
        wrong = ConfigResource(
            ResourceType.TOPIC,
            name,
            incremental_configs=[
                ConfigEntry("segment.bytes", "-3", incremental_operation=AlterConfigOpType.SET)
            ],
        )
        with pytest.raises(KafkaException) as refused:
            admin.incremental_alter_configs([wrong])[wrong].result(WAIT_S)
        assert refused.value.args[0].code() == KafkaError.INVALID_CONFIG

    def test_broker_configs_are_described(self, admin):
        cluster = admin.describe_cluster().result(WAIT_S)
        assert len(cluster.nodes) == 1
        assert len(cluster.cluster_id) == 22
        resource = ConfigResource(ResourceType.BROKER, str(cluster.nodes[0].id))
        configs = admin.describe_configs([resource])[resource].result(WAIT_S)
        assert configs["offsets.topic.num.partitions"].value == "4"
        assert configs["log.segment.bytes"].value == str(1 << 30)
        assert not configs["log.segment.bytes"].is_sensitive

    def test_topics_are_described_with_their_ids(self, admin, new_topic):
        from confluent_kafka import TopicCollection

        name = new_topic(2)
        (future,) = admin.describe_topics(TopicCollection([name])).values()
        description = future.result(WAIT_S)
        assert len(description.partitions) == 2
        assert str(description.topic_id) != "AAAAAAAAAAAAAAAAAAAAAA"
        assert all(len(partition.isr) == 1 for partition in description.partitions)

    def test_records_are_deleted_before_an_offset(self, admin, broker, new_topic):
        topic = new_topic()
        produce(broker, topic, [(None, b"%d" % n) for n in range(100)])
        where = TopicPartition(topic, 0, 40)
        assert admin.delete_records([where])[where].result(WAIT_S).low_watermark == 40
        assert read_partition(broker, topic, 1)[0].offset() == 40
        beyond = TopicPartition(topic, 0, 1000)
        with pytest.raises(KafkaException) as refused:
            admin.delete_records([beyond])[beyond].result(WAIT_S)
        assert refused.value.args[0].code() == KafkaError.OFFSET_OUT_OF_RANGE
        everything = TopicPartition(topic, 0, OFFSET_END)
        assert admin.delete_records([everything])[everything].result(WAIT_S).low_watermark == 100

    @pytest.mark.secured(short=True)
    def test_groups_are_listed_described_altered_and_deleted(self, admin, broker, new_topic, unique):
        topic, group = new_topic(2), unique("admin-group")
        client = producer(broker)
        for partition in (0, 1):
            for n in range(10):
                client.produce(topic, b"%d" % n, partition=partition)
        assert client.flush(WAIT_S) == 0
        member = consumer(broker, group, **{"client.id": "the-member"})
        member.subscribe([topic])
        read(member, 20)
        member.commit(asynchronous=False)

        listed = {row.group_id: row for row in admin.list_consumer_groups().result(WAIT_S).valid}
        assert listed[group].state.name == "STABLE"
        described = admin.describe_consumer_groups([group])[group].result(WAIT_S)
        assert described.state.name == "STABLE"
        assert described.partition_assignor == "range"
        assert [m.client_id for m in described.members] == ["the-member"]
        assert len(described.members[0].assignment.topic_partitions) == 2
        with pytest.raises(KafkaException) as busy:
            admin.delete_consumer_groups([group])[group].result(WAIT_S)
        assert busy.value.args[0].code() == KafkaError.NON_EMPTY_GROUP
        member.close()

        def offsets():
            request = ConsumerGroupTopicPartitions(group)
            result = admin.list_consumer_group_offsets([request])[group].result(WAIT_S)
            return {p.partition: p.offset for p in result.topic_partitions}

        assert offsets() == {0: 10, 1: 10}
        change = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 3)])
        admin.alter_consumer_group_offsets([change])[group].result(WAIT_S)
        assert offsets() == {0: 3, 1: 10}
        assert admin.describe_consumer_groups([group])[group].result(WAIT_S).state.name == "EMPTY"
        admin.delete_consumer_groups([group])[group].result(WAIT_S)
        assert group not in {row.group_id for row in admin.list_consumer_groups().result(WAIT_S).valid}
        with pytest.raises(KafkaException) as gone:
            admin.delete_consumer_groups([group])[group].result(WAIT_S)
        assert gone.value.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND


class TestRestart:
    @pytest.mark.parametrize("how", ["stop", "kill"])
    @pytest.mark.secured(short=True)
    def test_records_offsets_and_topics_survive(self, make_broker, how):
        broker = make_broker()
        admin = admin_client(broker)
        new = NewTopic("kept", 2, 1, config={"segment.bytes": "1048576"})
        admin.create_topics([new])["kept"].result(WAIT_S)
        cluster = admin.describe_cluster().result(WAIT_S).cluster_id
        sent = [(b"%d" % n, b"%d" % n * 100) for n in range(5000)]
        delivered = produce(broker, "kept", sent, acks="all")
        member = consumer(broker, "kept-group")
        member.subscribe(["kept"])
        read(member, 5000)
        member.commit(asynchronous=False)
        member.close()

        getattr(broker, how)()
        broker.restart()

        admin = admin_client(broker)
        assert admin.describe_cluster().result(WAIT_S).cluster_id == cluster
        resource = ConfigResource(ResourceType.TOPIC, "kept")
        assert admin.describe_configs([resource])[resource].result(WAIT_S)["segment.bytes"].value == "1048576"
        counts = Counter(message.partition() for message in delivered)
        got = [
            m for partition in counts for m in read_partition(broker, "kept", counts[partition], partition)
        ]
        assert Counter((m.key(), m.value()) for m in got) == Counter(sent)
        again = consumer(broker, "kept-group")
        committed = again.committed([TopicPartition("kept", n) for n in range(2)], WAIT_S)
        assert {p.partition: p.offset for p in committed} == {n: counts[n] for n in range(2)}
        again.close()
        (more,) = produce(broker, "kept", [(b"0", b"more")])
        assert more.offset() == counts[more.partition()]

    def test_a_producer_goes_on_over_a_kill(self, make_broker):
        broker = make_broker()
        create_topic(broker, "t")
        delivered = []
        client = producer(broker, **{"enable.idempotence": True, "reconnect.backoff.max.ms": 500})

        def send(numbers):
            for n in numbers:
                client.produce(
                    "t", b"%d" % n, on_delivery=lambda error, message: delivered.append((error, message))
                )
                client.poll(0)

        send(range(1000))
        assert client.flush(WAIT_S) == 0
        send(range(1000, 2000))
        client.poll(0)
        broker.kill()
        send(range(2000, 3000))
        broker.restart()
        assert client.flush(60) == 0
        assert all(error is None for error, _ in delivered)
        got = read_partition(broker, "t", 3000)
        assert [int(message.value()) for message in got] == list(range(3000))
        assert [message.offset() for message in got] == list(range(3000))


class TestRefusedRecords:
    """librdkafka's test 0011 (test_message_single_partition_record_fail), with its numbers."""

    @pytest.mark.parametrize("codec", ["none", "zstd"])
    @pytest.mark.parametrize("alone", [False, True])
    def test_records_without_a_key_for_a_compacted_topic_are_told_from_the_others(
        self, broker, admin, new_topic, alone, codec
    ):
        """HUNTS N7: the broker named only the first one, so librdkafka took 99 for others."""
        topic = new_topic()
        resource = ConfigResource(ResourceType.TOPIC, topic)
        resource.add_incremental_config(
            ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.APPEND)
        )
        for each in admin.incremental_alter_configs([resource]).values():
            each.result(WAIT_S)
        outcomes = Counter()

        def delivered(error, message):
            outcomes[None if error is None else error.code()] += 1

        one = {"batch.size": 1} if alone else {"linger.ms": 10_000}  # flush() ends it
        with_errors = producer(broker, **{"compression.type": codec, **one})
        with_errors.list_topics(topic, timeout=WAIT_S)  # otherwise they wait elsewhere until it is known
        for n in range(100):
            text = b"test message #%d" % n
            key = None if n % 10 == 0 else text
            with_errors.produce(topic, text, key, partition=0, on_delivery=delivered)
        assert with_errors.flush(WAIT_S) == 0
        others = {None: 90} if alone else {KafkaError._INVALID_DIFFERENT_RECORD: 90}
        assert outcomes == {KafkaError.INVALID_RECORD: 10, **others}

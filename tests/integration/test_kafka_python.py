"""kafka-python: it speaks the newest versions it knows and, told of an older broker, old ones."""

import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient, MemberToRemove, OffsetSpec
from kafka.errors import (
    InvalidTopicError,
    MessageSizeTooLargeError,
    NoError,
    OffsetOutOfRangeError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from kafka.structs import OffsetAndMetadata

from tests.clients import WAIT_S, wait_until
from tests.logins import kafka_python

pytestmark = [pytest.mark.workers(2), pytest.mark.secured]

CODECS = [None, "gzip", "snappy", "lz4", "zstd"]
# what the client takes the broker for: None asks it; (2, 1) is the oldest that Kafka 4 still serves
SPEAKING = [None, (2, 1), (2, 5), (3, 9)]


@pytest.fixture
def admin(broker):
    client = KafkaAdminClient(**kafka_python(broker))
    yield client
    client.close()


@pytest.fixture
def new_topic(admin):
    def new(partitions=1, configs=None):
        name = f"kafka-python-{uuid.uuid4().hex[:8]}"
        options = {"num_partitions": partitions, "replication_factor": 1, "configs": configs or {}}
        admin.create_topics({name: options}, wait_for_metadata=True)
        return name

    return new


@pytest.fixture
def producer(broker):
    made = []

    def make(**config):
        made.append(KafkaProducer(**kafka_python(broker), **config))
        return made[-1]

    yield make
    for client in made:
        client.close(timeout=5)


@pytest.fixture
def consumer(broker):
    made = []

    def make(*topics, **config):
        config = {"auto_offset_reset": "earliest", "enable_auto_commit": False, **config}
        made.append(KafkaConsumer(*topics, **kafka_python(broker), **config))
        return made[-1]

    yield make
    for client in made:
        client.close()


def send(client, topic, records, **extra):
    futures = [client.send(topic, value, key, **extra) for key, value in records]
    client.flush(WAIT_S)
    return [future.get(WAIT_S) for future in futures]


def read(client, count):
    records = []
    deadline = time.monotonic() + WAIT_S
    while len(records) < count:
        assert time.monotonic() < deadline, f"{len(records)} of {count} records"
        for batch in client.poll(2000).values():  # see two_members_share: a login makes a join longer
            records.extend(batch)
    return records


def read_partition(consumer, topic, count, partition=0, **config):
    client = consumer(**config)
    client.assign([TopicPartition(topic, partition)])
    return read(client, count)


class TestProduceAndConsume:
    @pytest.mark.parametrize("codec", CODECS)
    @pytest.mark.parametrize("version", SPEAKING)
    def test_every_codec_in_the_tongue_of_every_age(self, producer, consumer, new_topic, codec, version):
        topic = new_topic()
        sent = [(b"%d" % n, b"value %d " % n * 10) for n in range(100)]
        client = producer(compression_type=codec, api_version=version, linger_ms=10)
        assert [metadata.offset for metadata in send(client, topic, sent)] == list(range(100))
        got = read_partition(consumer, topic, 100, api_version=version)
        assert [(record.key, record.value) for record in got] == sent

    @pytest.mark.parametrize("acks", [0, 1, "all"])
    def test_every_acks_without_idempotence(self, producer, consumer, new_topic, acks):
        topic = new_topic()
        sent = [(None, b"%d" % n) for n in range(50)]
        send(producer(acks=acks, enable_idempotence=False), topic, sent)
        assert [record.value for record in read_partition(consumer, topic, 50)] == [
            value for _, value in sent
        ]

    @pytest.mark.secured(short=True)
    def test_headers_nulls_and_timestamps(self, producer, consumer, new_topic):
        topic = new_topic()
        headers = [("a", b"1"), ("a", b""), ("ü", b"2")]
        client = producer()
        at = int(time.time() * 1000) - 5000
        client.send(topic, None, b"k", headers=headers, timestamp_ms=at).get(WAIT_S)
        client.send(topic, b"", None, headers=[("x", b"y")], timestamp_ms=at + 1).get(WAIT_S)
        first, second = read_partition(consumer, topic, 2)
        assert (first.key, first.value, list(first.headers), first.timestamp) == (b"k", None, headers, at)
        assert (second.key, second.value, second.timestamp) == (None, b"", at + 1)

    @pytest.mark.secured(short=True)
    def test_a_ten_megabyte_record(self, producer, consumer, new_topic):
        size = 10 * 1024 * 1024
        topic = new_topic(configs={"max.message.bytes": str(size + 1024)})
        send(producer(max_request_size=size + 1024), topic, [(None, b"x" * size)])
        (record,) = read_partition(consumer, topic, 1)
        assert len(record.value) == size

    def test_a_record_over_the_limit_is_refused(self, producer, new_topic):
        topic = new_topic(configs={"max.message.bytes": "1000"})
        with pytest.raises(MessageSizeTooLargeError):
            producer().send(topic, b"x" * 5000).get(WAIT_S)

    def test_sessions_over_many_partitions(self, producer, consumer, new_topic):
        """Incremental fetch sessions (KIP-227): what does not change is not said again."""
        topic = new_topic(20)
        client = producer()
        reader = consumer()
        reader.assign([TopicPartition(topic, n) for n in range(20)])
        for value in (b"first", b"second", b"third"):
            for partition in range(0, 20, 3):
                client.send(topic, value, partition=partition)
            client.flush(WAIT_S)
            got = read(reader, 7)
            assert {(record.partition, record.value) for record in got} == {
                (n, value) for n in range(0, 20, 3)
            }
        reader.pause(TopicPartition(topic, 0))
        client.send(topic, b"unseen", partition=0).get(WAIT_S)
        client.send(topic, b"seen", partition=1).get(WAIT_S)
        assert [record.value for record in read(reader, 1)] == [b"seen"]
        reader.resume(TopicPartition(topic, 0))
        assert [record.value for record in read(reader, 1)] == [b"unseen"]


class TestSeek:
    @pytest.mark.secured(short=True)
    def test_by_offset_and_by_time(self, producer, consumer, new_topic):
        topic = new_topic()
        start = int(time.time() * 1000) - 100_000
        client = producer()
        for n in range(100):
            client.send(topic, b"%d" % n, timestamp_ms=start + n * 100)
        client.flush(WAIT_S)
        partition = TopicPartition(topic, 0)
        reader = consumer()
        reader.assign([partition])
        reader.seek(partition, 42)
        assert read(reader, 1)[0].value == b"42"
        assert reader.beginning_offsets([partition]) == {partition: 0}
        assert reader.end_offsets([partition]) == {partition: 100}
        assert reader.offsets_for_times({partition: start + 4150})[partition].offset == 42
        assert reader.offsets_for_times({partition: start + 100_000})[partition] is None
        reader.seek_to_end(partition)
        assert reader.position(partition) == 100
        reader.seek_to_beginning(partition)
        assert read(reader, 1)[0].offset == 0

    def test_list_offsets_by_every_spec(self, admin, producer, new_topic):
        topic = new_topic()
        send(producer(), topic, [(None, b"x")] * 10, timestamp_ms=int(time.time() * 1000) - 1000)
        partition = TopicPartition(topic, 0)
        for spec, offset in (
            (OffsetSpec.EARLIEST, 0),
            (OffsetSpec.LATEST, 10),
            (OffsetSpec.MAX_TIMESTAMP, 0),
        ):
            assert admin.list_partition_offsets({partition: spec})[partition].offset == offset


class TestGroups:
    @pytest.mark.parametrize("version", SPEAKING)
    def test_commits_and_takes_up_again(self, producer, consumer, new_topic, version):
        topic = new_topic()
        group = f"group-{uuid.uuid4().hex[:8]}"
        send(producer(), topic, [(None, b"%d" % n) for n in range(20)])
        first = consumer(topic, group_id=group, api_version=version)
        read(first, 20)
        first.commit({TopicPartition(topic, 0): OffsetAndMetadata(7, "seven", -1)})
        assert first.committed(TopicPartition(topic, 0)) == 7
        first.close()
        second = consumer(topic, group_id=group, api_version=version)
        assert [record.offset for record in read(second, 13)] == list(range(7, 20))

    @pytest.mark.secured(short=True)
    def test_two_members_share_and_one_takes_over(self, consumer, new_topic):
        topic = new_topic(4)
        group = f"group-{uuid.uuid4().hex[:8]}"
        members = [consumer(topic, group_id=group, heartbeat_interval_ms=300) for _ in range(2)]
        stops = [threading.Event() for _ in members]

        def poll(member, stop):  # a thread each, since a join blocks poll()
            while not stop.is_set():
                member.poll(2000)  # kafka-python 3.0 loses the answer to a join that outlasts its poll()

        with ThreadPoolExecutor() as threads:
            polling = [threads.submit(poll, *pair) for pair in zip(members, stops, strict=True)]
            try:
                wait_until(lambda: [len(member.assignment()) for member in members] == [2, 2])
                assert set.union(*(member.assignment() for member in members)) == {
                    TopicPartition(topic, n) for n in range(4)
                }
                stops[1].set()
                polling[1].result(WAIT_S)
                members[1].close()
                wait_until(lambda: len(members[0].assignment()) == 4)
            finally:
                for stop in stops:
                    stop.set()

    def test_a_static_member_is_removed_by_the_admin(self, admin, consumer, new_topic):
        topic = new_topic()
        group = f"group-{uuid.uuid4().hex[:8]}"
        member = consumer(topic, group_id=group, group_instance_id="static-1", session_timeout_ms=30000)
        wait_until(lambda: member.poll(2000) or member.assignment())  # see two_members_share
        described = admin.describe_groups([group])[group]
        assert described["group_state"] == "Stable"
        assert [m["group_instance_id"] for m in described["members"]] == ["static-1"]
        member.close()
        assert len(admin.describe_groups([group])[group]["members"]) == 1  # static members do not leave
        removed = admin.remove_group_members(group, [MemberToRemove(group_instance_id="static-1")])
        assert list(removed.values()) == [NoError]
        assert admin.describe_groups([group])[group]["group_state"] == "Empty"

    @pytest.mark.secured(short=True)
    def test_offsets_are_listed_altered_and_deleted_and_so_is_the_group(
        self, admin, producer, consumer, new_topic
    ):
        topic = new_topic(2)
        group = f"group-{uuid.uuid4().hex[:8]}"
        zero, one = TopicPartition(topic, 0), TopicPartition(topic, 1)
        changes = {zero: OffsetAndMetadata(3, "three", -1), one: OffsetAndMetadata(4, "", -1)}
        assert set(admin.alter_group_offsets(group, changes).values()) == {NoError}
        listed = admin.list_group_offsets(group)[group]
        assert {where: (at.offset, at.metadata) for where, at in listed.items()} == {
            zero: (3, "three"),
            one: (4, ""),
        }
        assert group in {row["group_id"] for row in admin.list_groups()}
        assert set(admin.delete_group_offsets(group, [zero]).values()) == {NoError}
        assert set(admin.list_group_offsets(group)[group]) == {one}
        assert admin.list_group_offsets({f"{group}-unknown": [one]})[f"{group}-unknown"][one].offset == -1
        admin.delete_groups([group])
        assert group not in {row["group_id"] for row in admin.list_groups()}


class TestAdmin:
    @pytest.mark.parametrize("version", SPEAKING)
    def test_topics_come_grow_and_go(self, broker, version):
        name = f"admin-{uuid.uuid4().hex[:8]}"
        admin = KafkaAdminClient(**kafka_python(broker), api_version=version)
        options = {"num_partitions": 2, "replication_factor": 1}
        admin.create_topics({name: options}, wait_for_metadata=True)
        with pytest.raises(TopicAlreadyExistsError):
            admin.create_topics({name: options})
        admin.create_partitions({name: 4})
        wait_until(lambda: len(admin.describe_topics([name])[0]["partitions"]) == 4)
        assert name in admin.list_topics()
        admin.delete_topics([name])
        wait_until(lambda: name not in admin.list_topics())
        with pytest.raises(UnknownTopicOrPartitionError):
            admin.delete_topics([name])
        with pytest.raises(InvalidTopicError):
            admin.create_topics({"bad/name": options})
        admin.close()

    @pytest.mark.parametrize("incremental", [True, False])
    def test_configs_are_altered_both_ways(self, admin, new_topic, incremental):
        topic = new_topic(configs={"retention.ms": "1000000"})
        change = ConfigResource(ConfigResourceType.TOPIC, topic, configs={"segment.bytes": "1048576"})
        admin.alter_configs([change], incremental=incremental)
        resource = ConfigResource(ConfigResourceType.TOPIC, topic)

        def values():
            rows = admin.describe_configs([resource])["topic"][topic]
            return {key: row["value"] for key, row in rows.items()}

        wait_until(lambda: values().get("segment.bytes") == "1048576")
        assert values()["retention.ms"] == "1000000"  # the client sends it along where the call replaces all

    def test_every_key_is_described_with_its_synonyms(self, admin, new_topic):
        topic = new_topic()
        resource = ConfigResource(ConfigResourceType.TOPIC, topic)
        rows = admin.describe_configs([resource], include_synonyms=True, config_filter="all")["topic"][topic]
        assert rows["retention.ms"]["value"] == "604800000"
        assert {"cleanup.policy", "compression.type", "min.insync.replicas", "segment.ms"} <= set(rows)
        assert [row["name"] for row in rows["segment.bytes"]["synonyms"]] == ["log.segment.bytes"]

    def test_the_cluster_and_its_log_directories(self, admin, producer, new_topic):
        topic = new_topic()
        send(producer(), topic, [(None, b"x" * 1000)])
        cluster = admin.describe_cluster()
        assert len(cluster["brokers"]) == 1
        (row,) = admin.describe_log_dirs([topic])
        directories = [directory for directory in row["log_dirs"] if directory["topics"]]
        ((partition,),) = [[t["partitions"] for t in d["topics"] if t["name"] == topic] for d in directories]
        assert partition[0]["partition_size"] > 1000

    def test_records_are_deleted(self, admin, producer, new_topic):
        topic = new_topic()
        send(producer(), topic, [(None, b"x")] * 10)
        partition = TopicPartition(topic, 0)
        assert admin.delete_records({partition: 4})[partition]["low_watermark"] == 4
        assert admin.list_partition_offsets({partition: OffsetSpec.EARLIEST})[partition].offset == 4
        with pytest.raises(OffsetOutOfRangeError):
            admin.delete_records({partition: 100})

    def test_producers_are_described(self, admin, producer, new_topic):
        topic = new_topic()
        send(producer(enable_idempotence=True), topic, [(None, b"x")] * 3)
        partition = TopicPartition(topic, 0)
        (active,) = admin.describe_producers([partition])[partition].active_producers
        assert (active.producer_epoch, active.last_sequence) == (0, 2)

    def test_topic_partitions_are_described_in_pages(self, admin, new_topic):
        topic = new_topic(5)
        first = admin.describe_topic_partitions([topic], response_partition_limit=3)
        assert [p["partition_index"] for p in first["topics"][0]["partitions"]] == [0, 1, 2]
        rest = admin.describe_topic_partitions([topic], cursor=first["next_cursor"])
        assert [p["partition_index"] for p in rest["topics"][0]["partitions"]] == [3, 4]

    def test_a_group_that_is_not_there(self, admin):
        described = admin.describe_groups(["nobody-here"])["nobody-here"]
        assert (described["group_state"], described["members"]) == ("Dead", [])

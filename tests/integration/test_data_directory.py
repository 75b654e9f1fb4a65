"""Data directories: ours under Kafka's own dump tool, and JVM Kafka's under ours and back again."""

import contextlib
import re
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AclOperation,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from tests import guarded
from tests.clients import WAIT_S, admin_client, consumer, produce, producer, read, wait_until
from tests.conftest import new_broker
from tests.jvm import VERSIONS, JvmKafka, run_tool
from tests.logins import login_of

pytestmark = [pytest.mark.java, pytest.mark.secured]

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
# what DumpLogSegments says when something is wrong
COMPLAINTS = re.compile(
    r"isvalid: false|mismatch|out of order|Non-consecutive|non-consecutive|Could not|Exception"
)


def admin_of(broker) -> AdminClient:
    return admin_client(broker)


def create(admin: AdminClient, name: str, partitions: int = 1, **config: str) -> None:
    config = {key.replace("_", "."): value for key, value in config.items()}
    admin.create_topics([NewTopic(name, partitions, 1, config=config)])[name].result(WAIT_S)


def write_every_codec(broker, topic: str, count: int, tag: str) -> None:
    """`count` records with each codec, some with headers, in batches of some ten kilobytes that compress
    by half."""
    chance = Random(tag)
    for codec in CODECS:
        client = producer(
            broker, **{"compression.type": codec, "batch.size": 20_000, "enable.idempotence": codec != "gzip"}
        )
        for n in range(count):
            headers = [("tag", tag.encode()), ("none", None)] if n % 10 == 0 else None
            value = f"{tag} {codec} {n} ".encode() + chance.randbytes(150).hex().encode() if n % 50 else None
            client.produce(topic, key=b"%d" % n, value=value, headers=headers, partition=0)
            client.poll(0)
        assert client.flush(WAIT_S) == 0


def state_of(broker) -> dict:
    """All that a client can see of a broker's data: ids, configs, every record, committed offsets, and of a
    secured one users and ACLs."""
    admin = admin_of(broker)
    names = [name for name in admin.list_topics(timeout=WAIT_S).topics if not name.startswith("__")]
    described = admin.describe_topics(TopicCollection(names))
    resources = {name: ConfigResource(ResourceType.TOPIC, name) for name in names}
    configs = admin.describe_configs(list(resources.values()))
    client = consumer(broker)
    topics = {}
    for name in names:
        topic = described[name].result(WAIT_S)
        entries = configs[resources[name]].result(WAIT_S).values()
        topics[name] = {
            "id": str(topic.topic_id),
            "config": {
                entry.name: entry.value
                for entry in entries
                if entry.source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value
            },
            "records": {
                partition.id: records_of(client, name, partition.id) for partition in topic.partitions
            },
        }
    client.close()
    listed = [row.group_id for row in admin.list_consumer_groups().result(WAIT_S).valid]
    groups = {}
    for group in listed:
        offsets = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(
            WAIT_S
        )
        groups[group] = {
            (where.topic, where.partition): (where.offset, where.metadata)
            for where in offsets.topic_partitions
        }
    return {
        "cluster": admin.describe_cluster().result(WAIT_S).cluster_id,
        "topics": topics,
        "groups": groups,
        "security": guarded.security_of(broker) if login_of(broker) else None,
    }


def records_of(client: Consumer, topic: str, partition: int) -> list[tuple]:
    low, high = client.get_watermark_offsets(TopicPartition(topic, partition), WAIT_S)
    client.assign([TopicPartition(topic, partition, low)])
    messages = read(client, high - low) if high > low else []
    client.unassign()
    assert [message.offset() for message in messages] == list(range(low, high))
    return [(m.offset(), m.timestamp(), m.key(), m.value(), m.headers()) for m in messages]


def assert_same(now: dict, then: dict) -> None:
    """As `now == then`, but what differs is named before whole topics are printed."""
    assert now["cluster"] == then["cluster"]
    assert now["groups"] == then["groups"]
    assert now["security"] == then["security"]
    assert set(now["topics"]) == set(then["topics"])
    for name, topic in now["topics"].items():
        other = then["topics"][name]
        assert (name, topic["id"], topic["config"]) == (name, other["id"], other["config"])
        ranges = [
            {n: (len(records), records[:1], records[-1:]) for n, records in each["records"].items()}
            for each in (topic, other)
        ]
        assert ranges[0] == ranges[1], f"{name} differs"
        assert topic["records"] == other["records"], f"{name} differs"


def partition_directory(data_dir: Path, topic: str, partition: int = 0) -> Path:
    return data_dir / f"{topic}-{partition}"


@pytest.fixture(scope="module")
def written(broker_kind, tmp_path_factory):
    """The data directory of a broker that was stopped after it had written something of everything."""
    directory = tmp_path_factory.mktemp("dump")
    with new_broker(broker_kind, directory, {}) as broker:
        admin = admin_of(broker)
        create(admin, "dumped", 1, segment_bytes="1048576", index_interval_bytes="2048")
        write_every_codec(broker, "dumped", 3000, "first")
        member = consumer(broker, "dumped-group")
        member.subscribe(["dumped"])
        read(member, 100)
        member.commit(asynchronous=False)
        member.close()
        broker.stop()
    return directory / "data"


class TestDumpLog:
    """Kafka's DumpLogSegments over what the broker wrote."""

    @pytest.mark.parametrize("version", VERSIONS)
    def test_segments_and_indexes_are_sound(self, written, version):
        directory = partition_directory(written, "dumped")
        segments = sorted(directory.glob("*.log"))
        assert len(segments) > 3
        files = ",".join(map(str, segments))
        dump = run_tool(version, "kafka-dump-log", "--files", files, "--print-data-log").stdout
        assert not COMPLAINTS.search(dump), COMPLAINTS.search(dump)
        offsets = [int(found) for found in re.findall(r"^\| offset: (\d+)", dump, re.MULTILINE)]
        assert offsets == list(range(3000 * len(CODECS)))
        for codec in CODECS:
            assert f"compresscodec: {codec}" in dump
        indexes = sorted(directory.glob("*.index"))
        assert len(indexes) == len(segments)
        files = ",".join(map(str, indexes))
        check = run_tool(version, "kafka-dump-log", "--files", files, "--index-sanity-check").stdout
        assert check.count("passed sanity check") == len(indexes)
        # this one reads the segment at each entry of the index
        verify = run_tool(version, "kafka-dump-log", "--files", files, "--verify-index-only").stdout
        assert not COMPLAINTS.search(verify)
        files = ",".join(str(path) for path in sorted(directory.glob("*.timeindex")))
        times = run_tool(version, "kafka-dump-log", "--files", files).stdout
        assert not COMPLAINTS.search(times)
        assert "timestamp: " in times

    def test_producer_snapshots_offsets_and_metadata_are_readable(self, written):
        directory = partition_directory(written, "dumped")
        snapshots = sorted(directory.glob("*.snapshot"))
        assert snapshots
        dump = run_tool(VERSIONS[0], "kafka-dump-log", "--files", snapshots[-1]).stdout
        producers = re.findall(r"producerId: (\d+) producerEpoch: 0", dump)
        assert len(set(producers)) == len(CODECS) - 1  # gzip went without idempotence

        (offsets,) = [
            path
            for path in written.glob("__consumer_offsets-*/00000000000000000000.log")
            if path.stat().st_size > 0 and b"dumped-group" in path.read_bytes()
        ]
        dump = run_tool(VERSIONS[0], "kafka-dump-log", "--files", offsets, "--offsets-decoder").stdout
        assert not COMPLAINTS.search(dump)
        assert re.search(r'"group":"dumped-group".*"topic":"dumped"', dump)
        assert '"protocolType":"consumer"' in dump

        metadata = sorted((written / "__cluster_metadata-0").glob("*.log"))
        files = ",".join(map(str, metadata))
        dump = run_tool(VERSIONS[0], "kafka-dump-log", "--files", files, "--cluster-metadata-decoder").stdout
        assert not COMPLAINTS.search(dump)
        for record in ("TOPIC_RECORD", "PARTITION_RECORD", "CONFIG_RECORD", "REGISTER_BROKER_RECORD"):
            assert f'"type":"{record}"' in dump
        assert "LeaderChange" in dump


class TestRoundTrip:
    """JVM Kafka writes, the broker under test opens that directory and writes, JVM Kafka opens it again."""

    @pytest.mark.parametrize(
        ("standalone", "how"),
        [(True, "stop"), (False, "kill")],
        ids=["dynamic quorum, clean stop", "static quorum, killed"],
    )
    def test_nothing_is_lost_between_the_two(self, tmp_path, pytestconfig, broker_kind, standalone, how):
        config = {
            "metadata.log.max.record.bytes.between.snapshots": 4000,  # so that there are several
            "num.partitions": 2,
        }
        new = guarded.GuardedJvm if pytestconfig.getoption("secured") else JvmKafka
        jvm = new(tmp_path / "data", standalone=standalone, config=config)
        with jvm:
            self.first_writes(jvm)
            before = state_of(jvm)
            assert len(before["topics"]["every-codec"]["records"][0]) == 5 * 2000 + 10
            jvm.stop()
        assert len(list(partition_directory(jvm.data_dir, "every-codec").glob("*.log"))) > 2
        snapshots = list((jvm.data_dir / "__cluster_metadata-0").glob("*.checkpoint"))
        assert any(not path.name.startswith("0" * 20) for path in snapshots), snapshots

        with self.opened(jvm, broker_kind) as broker:
            assert_same(state_of(broker), before)
            self.second_writes(broker)
            after = state_of(broker)
            assert after != before
            getattr(broker, how)()

        with jvm:
            assert_same(state_of(jvm), after)
            produce(jvm, "every-codec", [(b"last", b"last")])
            self.the_later_user_writes(jvm)
            self.the_group_goes_on(jvm, after)

    @contextlib.contextmanager
    def opened(self, jvm: JvmKafka, kind: str):
        """The directory in the hands of the broker under test, by JVM Kafka's own server.properties."""
        if kind == "jvm":
            with jvm:
                yield jvm
            return
        from kafkad.testing import Broker

        with Broker(properties=jvm.properties) as broker:
            assert broker.bootstrap == jvm.bootstrap
            broker.login = login_of(jvm)
            yield broker

    def first_writes(self, jvm: JvmKafka) -> None:
        admin = admin_of(jvm)
        create(admin, "every-codec", 1, segment_bytes="1048576", retention_ms="-1")
        write_every_codec(jvm, "every-codec", 2000, "jvm")
        create(admin, "stamped", 3, message_timestamp_type="LogAppendTime", compression_type="zstd")
        produce(jvm, "stamped", [(b"%d" % n, b"%d" % n) for n in range(300)])
        create(admin, "compacted", 1, cleanup_policy="compact")
        produce(jvm, "compacted", [(b"%d" % (n % 3), b"%d" % n) for n in range(10)])
        create(admin, "empty")
        create(admin, "short-lived")
        produce(jvm, "short-lived", [(None, b"x")])
        admin.delete_topics(["short-lived"])["short-lived"].result(WAIT_S)
        admin.create_partitions([NewPartitions("empty", 4)])["empty"].result(WAIT_S)
        create(admin, "trimmed")
        produce(jvm, "trimmed", [(None, b"%d" % n) for n in range(100)])
        where = TopicPartition("trimmed", 0, 60)
        admin.delete_records([where])[where].result(WAIT_S)
        # enough records of metadata for snapshots
        for n in range(20):
            self.set_config(admin, "empty", "retention.ms", str(1_000_000 + n))
        produce(jvm, "every-codec", [(b"end", b"%d" % n) for n in range(10)])
        member = consumer(jvm, "the-group")
        member.subscribe(["every-codec", "stamped"])
        read(member, 500)
        offsets = [
            TopicPartition("every-codec", 0, 1234, metadata="here"),
            TopicPartition("stamped", 1, 17),
        ]
        member.commit(offsets=offsets, asynchronous=False)
        member.close()
        metadata = jvm.data_dir / "__cluster_metadata-0"
        wait_until(lambda: any(p.name > "0" * 19 + "1" for p in metadata.glob("*.checkpoint")))

    def second_writes(self, broker) -> None:
        admin = admin_of(broker)
        write_every_codec(broker, "every-codec", 1000, "ours")
        produce(broker, "stamped", [(b"%d" % n, b"%d" % n) for n in range(300)])
        create(admin, "new", 2, segment_bytes="2097152")
        produce(broker, "new", [(b"%d" % n, b"%d" % n) for n in range(100)], **{"enable.idempotence": True})
        self.set_config(admin, "stamped", "retention.ms", "99999999")
        admin.create_partitions([NewPartitions("empty", 5)])["empty"].result(WAIT_S)
        admin.delete_topics(["compacted"])["compacted"].result(WAIT_S)
        where = TopicPartition("trimmed", 0, 70)
        admin.delete_records([where])[where].result(WAIT_S)
        for group in ("the-group", "another-group"):
            change = ConsumerGroupTopicPartitions(group, [TopicPartition("stamped", 0, 5, metadata="ours")])
            admin.alter_consumer_group_offsets([change])[group].result(WAIT_S)
        wait_until(lambda: "compacted" not in admin.list_topics(timeout=WAIT_S).topics)
        if login_of(broker):
            may_write = {(ResourceType.TOPIC, "new"): (AclOperation.WRITE,)}
            self.later = guarded.add_user(broker, "later", "later-secret", may_write)

    def the_later_user_writes(self, jvm: JvmKafka) -> None:
        """To the one topic that its ACL names, which was made by the other broker."""
        if not login_of(jvm):
            return
        as_later = SimpleNamespace(bootstrap=jvm.bootstrap, login=self.later)
        assert produce(as_later, "new", [(b"0", b"later")])[0].offset() > 0
        outcomes = []
        client = producer(as_later)
        client.produce("stamped", b"x", on_delivery=lambda error, _: outcomes.append(error.code()))
        assert client.flush(WAIT_S) == 0
        assert outcomes == [KafkaError.TOPIC_AUTHORIZATION_FAILED]

    def the_group_goes_on(self, jvm: JvmKafka, after: dict) -> None:
        assert after["groups"]["the-group"][("every-codec", 0)] == (1234, "here")
        member = consumer(jvm, "the-group")
        member.subscribe(["every-codec"])
        assert read(member, 1)[0].offset() == 1234
        member.close()

    def set_config(self, admin: AdminClient, topic: str, key: str, value: str) -> None:
        entry = ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
        change = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        admin.incremental_alter_configs([change])[change].result(WAIT_S)

"""What Kafka's tools, clients and `kafkad cluster` say of a broker that is a quorum by itself, and change:
the quorum, the preferred leaders and the feature levels."""

import json
import re
import uuid

import pytest

from kafkad.protocol import errors, messages
from tests.clients import WAIT_S, create_topic, produce, producer, read_partition, wait_until
from tests.conftest import new_broker
from tests.jvm import NEWEST, JvmKafka, run_tool
from tests.resident import kafkad
from tests.wire import Wire

pytestmark = [pytest.mark.java, pytest.mark.workers(2)]

TRANSACTION_VERSION = "transaction.version"
CONNECTIONS = 8  # every worker has one of them, most of the time


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    with new_broker("kafkad", tmp_path_factory.mktemp("alone"), {}) as running:
        yield running


@pytest.fixture
def tool(own):
    def run(name, *arguments, **options):
        return run_tool(NEWEST, name, "--bootstrap-server", own.bootstrap, *arguments, **options)

    return run


def level_of(bootstrap, feature):
    """The finalized levels of a feature, as many connections find it."""
    found = set()
    for _ in range(CONNECTIONS):
        with Wire(bootstrap) as wire:
            request = messages.ApiVersionsRequest(client_software_name="t", client_software_version="1")
            told = {each.name: each.max_version_level for each in wire.ask(request, 4).finalized_features}
            found.add(told.get(feature, 0))
    return found


def commit_some(broker, topic, transactional_id):
    client = producer(broker, **{"transactional.id": transactional_id})
    client.init_transactions(WAIT_S)
    for way_out in (client.commit_transaction, client.abort_transaction, client.commit_transaction):
        client.begin_transaction()
        client.produce(topic, way_out.__name__.encode(), partition=0)
        way_out(WAIT_S)


def test_kafka_describes_the_quorum(own, tool):
    told = tool("kafka-metadata-quorum", "describe", "--status").lines
    status = {key: value.strip() for key, _, value in (line.partition(":") for line in told)}
    assert (status["LeaderId"], status["MaxFollowerLag"], status["CurrentObservers"]) == ("1", "0", "[]")
    (voter,) = json.loads(status["CurrentVoters"])
    assert (voter["id"], len(voter["directoryId"])) == (1, 22)
    _, *rows = tool("kafka-metadata-quorum", "describe", "--replication").lines
    (row,) = [line.split() for line in rows if line]
    assert (row[0], row[-1]) == ("1", "Leader")
    before = int(status["HighWatermark"])
    create_topic(own, f"t{uuid.uuid4().hex[:8]}")
    told = json.loads(kafkad("cluster", "quorum", "--bootstrap-server", own.bootstrap, "--json").stdout)
    assert told["high_watermark"] > before and [each["role"] for each in told["nodes"]] == ["leader"]


def test_another_log_than_that_of_the_metadata_is_not_described(own):
    cls = messages.DescribeQuorumRequest
    parts = [cls.Topics.Partitions(partition_index=1), cls.Topics.Partitions(partition_index=0)]
    with Wire(own.bootstrap) as wire:
        for version in (0, 1, 2):
            told = wire.ask(cls(topics=[cls.Topics(topic_name="other", partitions=parts)]), version)
            rows = [(row.partition_index, row.error_code) for row in told.topics[0].partitions]
            unknown = errors.UNKNOWN_TOPIC_OR_PARTITION
            assert (told.error_code, rows) == (0, [(1, unknown), (0, unknown)])


def test_leaders_are_the_preferred_ones(own, tool):
    topic = f"t{uuid.uuid4().hex[:8]}"
    create_topic(own, topic, 2)
    of_it = ("--topic", topic, "--partition", 1)
    told = tool("kafka-leader-election", "--election-type", "preferred", *of_it).stdout
    assert "Valid replica already elected" in told
    told = tool("kafka-leader-election", "--election-type", "preferred", "--all-topic-partitions")
    assert "Error" not in told.stdout + told.stderr
    gone = ("--topic", topic, "--partition", 7)
    told = tool("kafka-leader-election", "--election-type", "unclean", *gone, check=False)
    assert told.returncode != 0 and "UnknownTopicOrPartition" in told.stdout + told.stderr
    assert (
        kafkad("cluster", "elect", "--all", "--bootstrap-server", own.bootstrap, "--json").stdout.strip()
        == "[]"
    )


def test_feature_levels_change_while_it_runs(own, tool):
    assert level_of(own.bootstrap, TRANSACTION_VERSION) == {2}
    topic = f"t{uuid.uuid4().hex[:8]}"
    create_topic(own, topic)
    for number, (verb, level) in enumerate([("downgrade", 0), ("upgrade", 1), ("upgrade", 2)]):
        tool("kafka-features", verb, "--feature", f"{TRANSACTION_VERSION}={level}")
        assert level_of(own.bootstrap, TRANSACTION_VERSION) == {level}
        commit_some(own, topic, f"{topic}-{number}")
    values = [message.value() for message in read_partition(own, topic, 6)]
    assert values == [b"commit_transaction"] * 6
    refused = tool("kafka-features", "upgrade", "--feature", "group.version=1", check=False)
    assert refused.returncode == 1 and "does not support this feature" in refused.stdout
    (voted,) = re.findall(
        r"kraft.version.*FinalizedVersionLevel: (\d)", tool("kafka-features", "describe").stdout
    )
    refused = tool("kafka-features", "downgrade", "--feature", f"kraft.version={1 - int(voted)}", check=False)
    assert refused.returncode == 1


def test_commands_about_other_nodes_are_refused(own):
    refused = kafkad("cluster", "unregister", "7", "--bootstrap-server", own.bootstrap, check=False)
    assert refused.returncode == 1 and "a cluster by itself" in refused.stderr


def test_metadata_of_an_older_kafka_is_upgraded(tmp_path, broker_kind):
    """The level rises while the broker serves. It registers again, keeps its partitions, and JVM Kafka opens
    the directory afterwards."""
    old = JvmKafka(tmp_path / "data", version="3.9.1")
    with old:
        run_tool("3.9.1", "kafka-topics", "--bootstrap-server", old.bootstrap, "--create", "--topic", "kept")
        produce(old, "kept", [(b"k", b"jvm")])
        old.stop()
    with new_broker("kafkad", tmp_path, {}) as ours:
        assert level_of(ours.bootstrap, "metadata.version") == {21}
        run_tool(NEWEST, "kafka-features", "--bootstrap-server", ours.bootstrap, "upgrade",
                 "--feature", "metadata.version=30", "--feature", "transaction.version=2")  # fmt: skip
        assert level_of(ours.bootstrap, "metadata.version") == {30}
        assert level_of(ours.bootstrap, TRANSACTION_VERSION) == {2}
        assert "registered in epoch" in ours.log.split("metadata.version", 1)[-1]
        produce(ours, "kept", [(b"k", b"ours")])
        commit_some(ours, "kept", "after")
        ours.restart()
        wait_until(lambda: level_of(ours.bootstrap, "metadata.version") == {30}, WAIT_S)
        ours.stop()
    with JvmKafka(tmp_path / "data") as new:
        values = [message.value() for message in read_partition(new, "kept", 4)]
        assert values == [b"jvm", b"ours", b"commit_transaction", b"commit_transaction"]
        told = run_tool(NEWEST, "kafka-features", "--bootstrap-server", new.bootstrap, "describe").stdout
        assert re.search(r"metadata.version.*FinalizedVersionLevel: 4.3-IV0", told)

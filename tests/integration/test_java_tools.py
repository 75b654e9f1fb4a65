"""Kafka's own command-line tools, of 4.3.1 and of 3.9.1, and through them the Java client.

A tool's start costs half a second, so a test is a story: several calls about one topic.
"""

import json
import re
import uuid

import pytest

from tests.clients import create_topic, produce, read_partition
from tests.jvm import VERSIONS, Said, run_tool
from tests.logins import tool_options

pytestmark = [pytest.mark.java, pytest.mark.workers(2, 4), pytest.mark.secured]

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")

# part of what a broker must serve for today's clients, by the names that kafka-broker-api-versions prints
SERVED = {
    "Produce", "Fetch", "ListOffsets", "Metadata", "OffsetCommit", "OffsetFetch", "FindCoordinator",
    "JoinGroup", "Heartbeat", "LeaveGroup", "SyncGroup", "DescribeGroups", "ListGroups",
    "SaslHandshake", "ApiVersions", "CreateTopics", "DeleteTopics", "DeleteRecords",
    "InitProducerId", "OffsetForLeaderEpoch", "DescribeConfigs", "AlterConfigs", "DescribeLogDirs",
    "CreatePartitions", "DeleteGroups", "IncrementalAlterConfigs", "OffsetDelete",
    "DescribeCluster", "DescribeProducers",
}  # fmt: skip


@pytest.fixture(params=VERSIONS)
def tool(request, broker):
    """`tool("kafka-topics", "--list")`: runs it, in this version, against the broker."""

    def run(name: str, *arguments: object, stdin: str | None = None, check: bool = True) -> Said:
        return run_tool(
            request.param, name, "--bootstrap-server", broker.bootstrap,
            *tool_options(broker, request.param, name), *arguments, stdin=stdin, check=check,
        )  # fmt: skip

    run.version = request.param
    return run


@pytest.fixture
def name():
    return f"java-{uuid.uuid4().hex[:8]}"


def numbers(count: int) -> str:
    return "".join(f"{n}\n" for n in range(count))


def test_topics_are_created_described_grown_and_deleted(tool, name):
    create = ("kafka-topics", "--create", "--topic", name, "--partitions", 2)
    tool(*create, "--config", "retention.ms=7200000")
    again = tool(*create, check=False)
    assert again.returncode != 0
    assert "already exists" in again.stdout + again.stderr
    tool("kafka-topics", "--create", "--if-not-exists", "--topic", name)
    tool("kafka-topics", "--alter", "--topic", name, "--partitions", 5)
    described = tool("kafka-topics", "--describe", "--topic", name)
    assert re.search(
        rf"Topic: {name}\s+TopicId: \S{{22}}\s+PartitionCount: 5\s+ReplicationFactor: 1", described.stdout
    )
    assert "retention.ms=7200000" in described.lines[0]
    assert (
        len([line for line in described.lines if re.search(r"Leader: \d+\s+Replicas: \d+\s+Isr: \d+", line)])
        == 5
    )
    assert name in tool("kafka-topics", "--list").lines
    assert tool("kafka-topics", "--describe", "--under-replicated-partitions").stdout.strip() == ""
    tool("kafka-topics", "--delete", "--topic", name)
    assert name not in tool("kafka-topics", "--list").lines


def test_configs_are_altered_and_described(tool, name):
    tool("kafka-topics", "--create", "--topic", name)
    entity = ("kafka-configs", "--entity-type", "topics", "--entity-name", name)
    tool(*entity, "--alter", "--add-config", "segment.bytes=2097152,cleanup.policy=[compact,delete]")
    described = tool(*entity, "--describe").stdout
    assert "segment.bytes=2097152" in described
    assert "cleanup.policy=compact,delete" in described
    tool(*entity, "--alter", "--delete-config", "segment.bytes")
    everything = tool(*entity, "--describe", "--all").stdout
    assert "segment.bytes=1073741824 sensitive=false" in everything
    wrong = tool(*entity, "--alter", "--add-config", "retention.ms=soon", check=False)
    assert "retention.ms" in wrong.stdout + wrong.stderr
    assert "retention.ms=soon" not in tool(*entity, "--describe").stdout
    brokers = ("kafka-configs", "--entity-type", "brokers", "--describe", "--all")
    assert "offsets.topic.num.partitions=4" in tool(*brokers, "--entity-name", 1).stdout


@pytest.mark.secured(short=True)
def test_console_producer_and_consumer(tool, name):
    tool("kafka-topics", "--create", "--topic", name)
    settings = [
        "parse.key=true",
        "key.separator=|",
        "parse.headers=true",
        "headers.delimiter=;",
        "null.marker=NULL",
    ]
    properties = [part for setting in settings for part in ("--property", setting)]
    text = "h1:a,h2:b;key1|value1\nh1:c;key2|NULL\nh1:d;NULL|välue3\n"
    tool("kafka-console-producer", "--topic", name, *properties, stdin=text)
    shown = ["print.key=true", "print.headers=true", "print.offset=true", "print.partition=true"]
    properties = [part for setting in shown for part in ("--property", setting)]
    consume = ("kafka-console-consumer", "--topic", name, "--timeout-ms", 20000)
    got = tool(*consume, "--from-beginning", "--max-messages", 3, *properties)
    assert got.lines == [
        "Partition:0\tOffset:0\th1:a,h2:b\tkey1\tvalue1",
        "Partition:0\tOffset:1\th1:c\tkey2\tnull",
        "Partition:0\tOffset:2\th1:d\tnull\tvälue3",
    ]
    middle = tool(
        *consume, "--partition", 0, "--offset", 1, "--max-messages", 1, "--property", "print.key=true"
    )
    assert middle.lines == ["key2\tnull"]


@pytest.mark.parametrize("codec", CODECS)
def test_the_java_producer_with_each_codec(tool, name, codec, broker):
    options = ("--compression-codec", codec, "--batch-size", 4096, "--request-required-acks", -1)
    tool("kafka-console-producer", "--topic", name, *options, stdin=numbers(3000))
    got = read_partition(broker, name, 3000, **{"check.crcs": True})
    assert [int(message.value()) for message in got] == list(range(3000))


def test_the_java_consumer_with_each_codec(tool, name, broker):
    create_topic(broker, name)
    for place, codec in enumerate(CODECS):
        values = range(place * 3000, (place + 1) * 3000)
        produce(broker, name, [(None, b"%d" % n) for n in values], **{"compression.type": codec})
    count = len(CODECS) * 3000
    got = tool(
        "kafka-console-consumer", "--topic", name, "--from-beginning", "--max-messages", count,
        "--group", f"{name}-group", "--timeout-ms", 20000,
        "--consumer-property", "isolation.level=read_committed",
    )  # fmt: skip
    assert got.lines == [str(n) for n in range(count)]


def test_groups_are_listed_described_reset_and_deleted(tool, name, broker):
    create_topic(broker, name, 2)
    produce(broker, name, [(b"%d" % n, b"%d" % n) for n in range(200)])
    group = f"{name}-group"
    consume = ("kafka-console-consumer", "--topic", name, "--group", group, "--timeout-ms", 20000)
    tool(*consume, "--from-beginning", "--max-messages", 200)
    groups = ("kafka-consumer-groups",)
    assert group in tool(*groups, "--list").lines

    def lags():
        rows = [line.split() for line in tool(*groups, "--describe", "--group", group).lines if name in line]
        return {int(row[2]): (int(row[3]), int(row[4]), int(row[5])) for row in rows}

    ends = {partition: end for partition, (_, end, _) in lags().items()}
    assert sum(ends.values()) == 200
    assert all(lag == 0 for _, _, lag in lags().values())
    state = tool(*groups, "--describe", "--group", group, "--state").stdout
    assert re.search(rf"{group}\s.*\bEmpty\b\s+0", state)

    reset = (*groups, "--reset-offsets", "--group", group, "--topic", name)
    tool(*reset, "--to-earliest", "--dry-run")
    assert all(lag == 0 for _, _, lag in lags().values())
    tool(*reset, "--to-earliest", "--execute")
    assert {partition: lag for partition, (_, _, lag) in lags().items()} == ends
    tool(*reset, "--shift-by", 5, "--execute")
    assert {partition: at for partition, (at, _, _) in lags().items()} == {0: 5, 1: 5}
    tool(*reset, "--to-datetime", "2020-01-01T00:00:00.000", "--execute")
    assert {partition: at for partition, (at, _, _) in lags().items()} == {0: 0, 1: 0}
    tool(*groups, "--delete-offsets", "--group", group, "--topic", f"{name}:0")
    assert set(lags()) <= {0, 1}
    tool(*groups, "--delete", "--group", group)
    assert group not in tool(*groups, "--list").lines


@pytest.mark.secured(short=True)
def test_offsets_directories_cluster_and_deleted_records(tool, name, broker, tmp_path):
    create_topic(broker, name, 2)
    sent = produce(broker, name, [(b"%d" % n, b"%d" % n) for n in range(100)])
    counts = {n: sum(message.partition() == n for message in sent) for n in range(2)}
    latest = tool("kafka-get-offsets", "--topic", name).lines
    assert latest == [f"{name}:{n}:{counts[n]}" for n in range(2)]
    assert tool("kafka-get-offsets", "--topic", name, "--time", -2).lines == [f"{name}:0:0", f"{name}:1:0"]
    at_most = tool("kafka-get-offsets", "--topic", name, "--time", -3).lines  # the largest timestamp
    assert all(0 <= int(line.rsplit(":", 1)[1]) < 100 for line in at_most)

    file = tmp_path / "delete.json"
    file.write_text(json.dumps({"version": 1, "partitions": [{"topic": name, "partition": 0, "offset": 7}]}))
    assert "low_watermark: 7" in tool("kafka-delete-records", "--offset-json-file", file).stdout
    assert tool("kafka-get-offsets", "--topic-partitions", f"{name}:0", "--time", -2).lines == [f"{name}:0:7"]

    described = tool("kafka-log-dirs", "--describe", "--topic-list", name).lines
    report = json.loads(next(line for line in described if line.startswith("{")))
    (host,) = report["brokers"]
    (directory,) = [d for d in host["logDirs"] if d["partitions"]]
    assert directory["error"] is None
    assert {row["partition"]: row["size"] > 0 for row in directory["partitions"]} == {
        f"{name}-0": True,
        f"{name}-1": True,
    }

    cluster = run_tool(
        tool.version, "kafka-cluster", "cluster-id", "--bootstrap-server", broker.bootstrap,
        *tool_options(broker, tool.version, "kafka-cluster"),
    )  # fmt: skip
    assert re.search(r"Cluster ID: \S{22}\b", cluster.stdout)


def test_api_versions_have_all_that_clients_need(tool):
    printed = tool("kafka-broker-api-versions").stdout
    usable = dict(re.findall(r"(\w+)\(\d+\): (?:\d+(?: to \d+)?) \[usable: (\d+)\]", printed))
    assert not SERVED - set(usable), printed


@pytest.mark.secured(short=True)
def test_verifiable_producer_and_consumer(tool, name, broker):
    create_topic(broker, name)
    produced = tool("kafka-verifiable-producer", "--topic", name, "--max-messages", 2000, "--acks", -1)
    events = [json.loads(line) for line in produced.lines if line.startswith("{")]
    offsets = [event["offset"] for event in events if event["name"] == "producer_send_success"]
    assert sorted(offsets) == list(range(2000))
    summary = events[-2] if events[-1]["name"] == "shutdown_complete" else events[-1]
    assert (summary["name"], summary["sent"], summary["acked"]) == ("tool_data", 2000, 2000)
    consumed = tool(
        "kafka-verifiable-consumer", "--topic", name, "--group-id", f"{name}-group", "--max-messages", 2000,
        "--reset-policy", "earliest",
    )  # fmt: skip
    events = [json.loads(line) for line in consumed.lines if line.startswith("{")]
    read = [event for event in events if event["name"] == "records_consumed"]
    assert sum(event["count"] for event in read) == 2000
    committed = [event for event in events if event["name"] == "offsets_committed"]
    assert committed and all(event["success"] for event in committed)


def test_performance_tools(tool, name, broker):
    create_topic(broker, name, 2)
    produced = run_tool(
        tool.version, "kafka-producer-perf-test", "--topic", name, "--num-records", 20000,
        "--record-size", 500, "--throughput", -1, "--producer-props", f"bootstrap.servers={broker.bootstrap}",
        "acks=all", "compression.type=lz4", *tool_options(broker, tool.version, "kafka-producer-perf-test"),
    )  # fmt: skip
    assert "20000 records sent" in produced.stdout
    consumed = tool("kafka-consumer-perf-test", "--topic", name, "--messages", 20000, "--timeout", 30000)
    header, row = (line.split(", ") for line in consumed.lines[-2:])
    figures = dict(zip(header, row, strict=True))
    assert (
        int(next(value for key, value in figures.items() if key.startswith("data.consumed.in.nMsg"))) >= 20000
    )

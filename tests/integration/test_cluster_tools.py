"""Kafka's own tools for clusters, unchanged, at a cluster of three kafkad nodes."""

import json

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from kafkad.protocol import messages
from kafkad.testing import Cluster
from tests.clients import wait_until
from tests.jvm import NEWEST, run_tool
from tests.wire import Wire

WAIT_S = 60.0


@pytest.fixture(scope="module")
def cluster():
    with Cluster(3, {"offsets.topic.num.partitions": 4}) as cluster:
        wait_until(lambda: all(map(knows_controllers, cluster.nodes.values())), WAIT_S)
        yield cluster


def knows_controllers(node):
    """Java's admin client never asks again if the first answer of a controller names none (KIP-919)."""
    with Wire(f"127.0.0.1:{node.controller_port}") as wire:
        return len(wire.ask(messages.DescribeClusterRequest(endpoint_type=2), 1).brokers) == 3


@pytest.fixture
def tool(cluster):
    def run(name, *arguments, controllers=False, **options):
        ports = ",".join(f"127.0.0.1:{node.controller_port}" for node in cluster.nodes.values())
        server = (
            ("--bootstrap-controller", ports) if controllers else ("--bootstrap-server", cluster.bootstrap)
        )
        verb, rest = ((arguments[0],), arguments[1:]) if name == "kafka-cluster" else ((), arguments)
        return run_tool(NEWEST, name, *verb, *server, *rest, **options)

    return run


def described(text):
    """`Key: value` lines."""
    return {key: value.strip() for key, colon, value in (line.partition(":") for line in text) if colon}


@pytest.mark.parametrize("controllers", [False, True])
def test_metadata_quorum(cluster, tool, controllers):
    status = described(tool("kafka-metadata-quorum", "describe", "--status", controllers=controllers).lines)
    assert status["ClusterId"] == cluster.cluster_id
    assert [(each["id"], each["endpoints"]) for each in json.loads(status["CurrentVoters"])] == [
        (number, [f"CONTROLLER://127.0.0.1:{node.controller_port}"]) for number, node in cluster.nodes.items()
    ]
    assert int(status["LeaderId"]) in cluster.nodes and int(status["HighWatermark"]) > 0
    head, *rows = tool("kafka-metadata-quorum", "describe", "--replication", controllers=controllers).lines
    assert head.split()[0] == "NodeId"
    assert sorted(row.split()[-1] for row in rows if row) == ["Follower", "Follower", "Leader"]


def test_endpoints_ids_and_features(cluster, tool):
    assert cluster.cluster_id in tool("kafka-cluster", "cluster-id").stdout
    brokers = [line.split() for line in tool("kafka-cluster", "list-endpoints").lines[1:] if line]
    assert [(row[0], row[2], row[-1]) for row in brokers] == [
        (str(number), str(node.port), "broker") for number, node in cluster.nodes.items()
    ]
    found = tool("kafka-cluster", "list-endpoints", controllers=True).lines[1:]
    assert [(row.split()[2], row.split()[-1]) for row in found if row] == [
        (str(node.controller_port), "controller") for node in cluster.nodes.values()
    ]
    levels = tool("kafka-features", "describe").stdout
    assert "FinalizedVersionLevel: 4.3-IV0" in levels
    refused = tool("kafka-features", "upgrade", "--feature", "group.version=1", check=False)
    assert refused.returncode == 1 and "does not support this feature" in refused.stdout
    elr = ("--feature", "eligible.leader.replicas.version=")
    tool("kafka-features", "downgrade", elr[0], f"{elr[1]}0")
    brokers, key = ("--entity-type", "brokers", "--entity-default"), "min.insync.replicas"
    tool("kafka-configs", "--alter", *brokers, "--delete-config", key)
    wait_until(lambda: key not in tool("kafka-configs", "--describe", *brokers).stdout, WAIT_S)
    tool("kafka-features", "upgrade", elr[0], f"{elr[1]}1")  # it needs one value for all
    wait_until(lambda: f"{key}=2" in tool("kafka-configs", "--describe", *brokers).stdout, WAIT_S)


def test_topics_and_configs(cluster, tool):
    tool("kafka-topics", "--create", "--topic", "made", "--partitions", 2)
    tool("kafka-topics", "--alter", "--topic", "made", "--partitions", 3)
    rows = [line.split() for line in tool("kafka-topics", "--describe", "--topic", "made").lines if line]
    assert rows[0][rows[0].index("PartitionCount:") + 1] == "3"
    assert [sorted(row[row.index("Replicas:") + 1].split(",")) for row in rows[1:]] == [["1", "2", "3"]] * 3
    tool("kafka-configs", "--alter", "--entity-type", "topics", "--entity-name", "made", "--add-config",
         "retention.ms=7654321")  # fmt: skip
    topic = ("--describe", "--entity-type", "topics", "--entity-name", "made")
    wait_until(lambda: "retention.ms=7654321" in tool("kafka-configs", *topic).stdout, WAIT_S)
    # a broker takes its own, and the controller writes: at least one of these two is not the active one
    for number in (1, 2):
        broker = ("--entity-type", "brokers", "--entity-name", number)
        tool("kafka-configs", "--alter", *broker, "--add-config", f"message.max.bytes={number}000000")
    for number in (1, 2):
        broker = ("--entity-type", "brokers", "--entity-name", number)
        wanted = f"DYNAMIC_BROKER_CONFIG:message.max.bytes={number}000000"
        wait_until(lambda b=broker, w=wanted: w in tool("kafka-configs", "--describe", *b).stdout, WAIT_S)
    wrong = tool("kafka-configs", "--alter", *broker, "--add-config", "message.max.bytes=x", check=False)
    assert wrong.returncode == 1 and "message.max.bytes" in wrong.stdout + wrong.stderr
    tool("kafka-topics", "--delete", "--topic", "made")
    wait_until(lambda: "made" not in tool("kafka-topics", "--list").lines, WAIT_S)


def replicas_of(tool, topic):
    """(leader, replicas, ISR) of partition 0."""
    words = tool("kafka-topics", "--describe", "--topic", topic).lines[1].split()
    leader, replicas, isr = (words[words.index(f"{name}:") + 1] for name in ("Leader", "Replicas", "Isr"))
    return int(leader), [int(each) for each in replicas.split(",")], sorted(map(int, isr.split(",")))


def consumed(bootstrap, topic, count):
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": f"of-{topic}", "auto.offset.reset": "earliest"}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    values = [message.value() for message in consumer.consume(count, WAIT_S)]
    consumer.commit(asynchronous=False)
    consumer.close()
    return values


def test_a_partition_moves_to_other_brokers_with_its_records(cluster, tool, tmp_path):
    tool("kafka-topics", "--create", "--topic", "moved", "--replica-assignment", "1")
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})
    values = [b"%d" % number for number in range(500)]
    for value in values:
        producer.produce("moved", value, partition=0)
    assert producer.flush(WAIT_S) == 0
    plan = tmp_path / "plan.json"
    plan.write_text(
        json.dumps({"version": 1, "partitions": [{"topic": "moved", "partition": 0, "replicas": [3, 2]}]})
    )
    using = ("--reassignment-json-file", plan)

    started = tool("kafka-reassign-partitions", *using, "--execute", "--throttle", 50_000_000).stdout
    assert "throttle limit was set to 50000000 B/s" in started and "Successfully started" in started
    throttled = tool(
        "kafka-configs", "--describe", "--entity-type", "topics", "--entity-name", "moved"
    ).stdout
    assert "leader.replication.throttled.replicas=0:1" in throttled
    assert "follower.replication.throttled.replicas=0:2,0:3" in throttled
    wait_until(
        lambda: "moved-0 is completed" in tool("kafka-reassign-partitions", *using, "--verify").stdout, WAIT_S
    )
    assert "No partition reassignments found" in tool("kafka-reassign-partitions", "--list").stdout
    assert replicas_of(tool, "moved") == (3, [3, 2], [2, 3])
    wait_until(lambda: not (cluster.nodes[1].data_dir / "moved-0").exists(), WAIT_S)  # 1 has let it go
    assert (cluster.nodes[2].data_dir / "moved-0").exists()
    assert consumed(cluster.bootstrap, "moved", len(values)) == values
    groups = tool("kafka-consumer-groups", "--describe", "--group", "of-moved").lines
    head, row = (line.split() for line in groups if line)
    assert (row[head.index("CURRENT-OFFSET")], row[head.index("LAG")]) == ("500", "0")
    described = tool(
        "kafka-configs", "--describe", "--entity-type", "topics", "--entity-name", "moved"
    ).stdout
    assert "throttled" not in described  # --verify has cleared what --throttle had set


def test_the_preferred_replica_leads_again_and_a_stopped_broker_is_forgotten(cluster, tool):
    """The last of this cluster's tests: a broker leaves it."""
    tool("kafka-topics", "--create", "--topic", "led", "--replica-assignment", "3:1:2")
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})
    producer.produce("led", b"one", partition=0)
    assert producer.flush(WAIT_S) == 0
    assert cluster.stop(3) == {3: 0}
    wait_until(lambda: replicas_of(tool, "led")[0] in (1, 2), WAIT_S)
    cluster.start(3)
    wait_until(lambda: replicas_of(tool, "led")[2] == [1, 2, 3], WAIT_S)
    of_it = ("--topic", "led", "--partition", 0)
    elected = tool("kafka-leader-election", "--election-type", "preferred", *of_it).stdout
    assert "Successfully completed leader election (PREFERRED) for partitions led-0" in elected
    assert replicas_of(tool, "led")[0] == 3
    assert consumed(cluster.bootstrap, "led", 1) == [b"one"]

    assert cluster.stop(3) == {3: 0}
    assert "3 is no longer registered" in tool("kafka-cluster", "unregister", "--id", 3).stdout
    fenced = tool("kafka-cluster", "list-endpoints", "--include-fenced-brokers").lines[1:]
    assert [line.split()[0] for line in fenced if line] == ["1", "2"]
    again = tool("kafka-cluster", "unregister", "--id", 3, check=False)
    assert again.returncode == 1 and "not currently registered" in again.stdout + again.stderr
    cluster.start(3)  # it may come back
    wait_until(lambda: "3" in tool("kafka-cluster", "list-endpoints").lines[-1].split()[:1], WAIT_S)


def test_configs_of_a_controller(cluster, tool):
    """Its own listener tells them (KIP-919), with the values that are changed while it runs."""
    node, key = min(cluster.nodes), "log.cleaner.threads"
    its = ("--entity-type", "brokers", "--entity-name", str(node))
    tool("kafka-configs", "--alter", *its, "--add-config", f"{key}=2")
    port = f"127.0.0.1:{cluster.nodes[node].controller_port}"

    def told(*arguments):
        return run_tool(
            NEWEST, "kafka-configs", "--bootstrap-controller", port, "--describe", *its, *arguments
        )

    wait_until(lambda: f"{key}=2" in told().stdout, WAIT_S)
    (row,) = (line for line in told("--all").lines if line.strip().startswith(f"{key}="))
    assert f"DYNAMIC_BROKER_CONFIG:{key}=2" in row and f"DEFAULT_CONFIG:{key}=1" in row
    (own,) = (line for line in told("--all").lines if line.strip().startswith("node.id="))
    assert f"STATIC_BROKER_CONFIG:node.id={node}" in own
    resource = messages.DescribeConfigsRequest.Resources(resource_type=4, resource_name=str(node + 1))
    with Wire(port) as wire:
        (refused,) = wire.ask(messages.DescribeConfigsRequest(resources=[resource]), 4).results
    assert f"expected {node} or empty string" in refused.error_message

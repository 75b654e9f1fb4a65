"""Throttles of replication (KIP-73) between kafkad and JVM Kafka, either as leader, with Kafka's tool."""

import json
import os
import time

import pytest
from confluent_kafka import Producer

from tests.integration.test_leader_jvm import create, described
from tests.integration.test_member import wait_until
from tests.jvm import NEWEST, run_tool
from tests.jvm_cluster import JvmCluster
from tests.member_process import MemberProcess

pytestmark = pytest.mark.java

JVM, KAFKAD = 1, 2
MEGABYTES = 12
RATE = 2_000_000  # bytes a second


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with JvmCluster(tmp_path_factory.mktemp("throttles"), brokers=1) as cluster:
        node = cluster.new_broker(KAFKAD)
        node.format()
        with MemberProcess(node) as member:
            cluster.member = member
            yield cluster


def reassign(cluster, path, topic, *arguments):
    path.write_text(
        json.dumps(
            {"version": 1, "partitions": [{"topic": topic, "partition": 0, "replicas": [JVM, KAFKAD]}]}
        )
    )
    return run_tool(
        NEWEST, "kafka-reassign-partitions", "--bootstrap-server", cluster.brokers[0].bootstrap,
        "--reassignment-json-file", path, *arguments,
    ).stdout  # fmt: skip


def configs(cluster, kind, name):
    return run_tool(
        NEWEST, "kafka-configs", "--bootstrap-server", cluster.brokers[0].bootstrap, "--describe",
        "--entity-type", kind, "--entity-name", name,
    ).stdout  # fmt: skip


@pytest.mark.timeout(300)
@pytest.mark.parametrize("leader", [JVM, KAFKAD], ids=("jvm leads", "kafkad leads"))
def test_a_throttled_reassignment_is_held_to_the_rate(cluster, tmp_path, leader):
    """Leader and follower each hold it: one of them is kafkad, in both roles."""
    topic = f"led-by-{leader}"
    create(cluster, topic, str(leader))
    wait_until(lambda: described(cluster, topic) == (leader, [leader]))
    producer = Producer(
        {"bootstrap.servers": f"{cluster.brokers[0].bootstrap},{cluster.member.bootstrap}", "acks": "all"}
        | {"linger.ms": 0, "message.max.bytes": 1 << 21}
    )
    for _ in range(MEGABYTES):
        producer.produce(topic, os.urandom(1_000_000), partition=0)
    assert producer.flush(60) == 0
    told = reassign(cluster, tmp_path / "plan", topic, "--execute", "--throttle", RATE)
    assert "Successfully started" in told
    began = time.monotonic()
    assert "replication.throttled.replicas=0:" in configs(cluster, "topics", topic)
    assert wait_until(lambda: described(cluster, topic)[1] == [JVM, KAFKAD])
    took_s = time.monotonic() - began
    assert took_s > 1, "not held to it at all"
    wait_until(lambda: "is completed" in reassign(cluster, tmp_path / "plan", topic, "--verify"))
    assert "throttled" not in configs(cluster, "topics", topic)

"""Throttles of replication (KIP-73): the rate, its end in the midst of it, replicas in sync."""

import os
import subprocess
import sys
import time

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from tests.member_cluster import MemberCluster, wait_until

RATE = {"leader": "leader.replication.throttled.rate", "follower": "follower.replication.throttled.rate"}
LIST = {
    "leader": "leader.replication.throttled.replicas",
    "follower": "follower.replication.throttled.replicas",
}
OF = {"leader": 1, "follower": 2}  # the broker that throttles: 1 leads, 2 follows
MEGABYTES = 20


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    path = tmp_path_factory.mktemp("throttles")
    with MemberCluster(path, brokers=2, workers=2) as cluster:
        yield cluster


def set_config(cluster, kind, name, key, value):
    """`value` None: without it."""
    operation = AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
    entry = ConfigEntry(key, value and str(value), incremental_operation=operation)
    resource = ConfigResource(kind, str(name), incremental_configs=[entry])
    for future in cluster.admin.incremental_alter_configs([resource]).values():
        future.result(60)


def produce(cluster, topic, megabytes):
    producer = Producer(
        {"bootstrap.servers": cluster.bootstrap, "acks": "all", "message.max.bytes": 1 << 21, "linger.ms": 0}
    )
    for _ in range(megabytes):
        producer.produce(topic, os.urandom(1_000_000), partition=0)
    assert producer.flush(60) == 0


def create(cluster, topic, **config):
    cluster.admin.create_topics([NewTopic(topic, 1, replica_assignment=[[1]], config=config)])[topic].result(
        60
    )
    wait_until(lambda: cluster.leader(topic) == 1)


def reassign(cluster, *arguments):
    command = [sys.executable, "-m", "kafkad", "cluster", "reassign", "--bootstrap-server", cluster.bootstrap]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def own_configs(cluster, kind, name):
    [future] = cluster.admin.describe_configs([ConfigResource(kind, str(name))]).values()
    return {key: each.value for key, each in future.result(60).items() if each.value and "throttled" in key}


def bytes_of(cluster, topic):
    directory = cluster.nodes[2].data_dir / f"{topic}-0"
    return sum(file.stat().st_size for file in directory.glob("*.log")) if directory.exists() else 0


@pytest.mark.parametrize("side", ["leader", "follower"])
def test_a_follower_that_catches_up_is_held_to_the_rate(cluster, side):
    topic = f"held-by-{side}"
    set_config(cluster, ResourceType.BROKER, OF[side], RATE[side], 5_000_000)
    wait_until(lambda: RATE[side] in own_configs(cluster, ResourceType.BROKER, OF[side]))
    create(cluster, topic, **{LIST[side]: f"0:{OF[side]}"})  # later, so the workers know the rate before it
    produce(cluster, topic, MEGABYTES)
    began = time.monotonic()
    reassign(cluster, f"{topic}-0=1,2")
    wait_until(lambda: sorted(cluster.partition(topic).isrs) == [1, 2])
    assert time.monotonic() - began >= 3
    set_config(cluster, ResourceType.BROKER, OF[side], RATE[side], None)


def test_a_throttle_ends_when_it_is_removed_and_holds_no_replica_in_sync(cluster):
    create(cluster, "freed")
    produce(cluster, "freed", MEGABYTES)
    reassign(cluster, "freed-0=1,2", "--throttle", "100000")  # for 200 s
    assert own_configs(cluster, ResourceType.TOPIC, "freed") == {
        LIST["leader"]: "0:1",
        LIST["follower"]: "0:2",
    }
    wait_until(lambda: bytes_of(cluster, "freed") > 0)
    assert cluster.partition("freed").isrs == [1]
    reassign(cluster, "--unthrottle")
    wait_until(lambda: sorted(cluster.partition("freed").isrs) == [1, 2])
    assert own_configs(cluster, ResourceType.TOPIC, "freed") == {}
    assert own_configs(cluster, ResourceType.BROKER, 2) == {}

    for side in OF:
        set_config(cluster, ResourceType.TOPIC, "freed", LIST[side], "*")
        set_config(cluster, ResourceType.BROKER, OF[side], RATE[side], 1)
    produce(cluster, "freed", 2)  # acknowledged by all

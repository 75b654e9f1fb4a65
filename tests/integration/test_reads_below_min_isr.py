"""A coordinator of groups whose partition lacks followers for min.insync.replicas, at kafkad and at a JVM."""

import os
import signal

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from kafkad.protocol import errors, messages
from tests.integration.test_moving_coordinators import commit_of, fetch_of, wait_until
from tests.jvm_cluster import JvmCluster
from tests.member_cluster import WAIT_S, MemberCluster
from tests.wire import Wire

OFFSETS = "__consumer_offsets"
CONFIG = {
    "offsets.topic.num.partitions": 1,
    "offsets.topic.replication.factor": 3,
    "offsets.commit.timeout.ms": 3_000,
    "min.insync.replicas": 2,
    "replica.lag.time.max.ms": 3_000,
    "group.initial.rebalance.delay.ms": 0,
}
# What clients ask again for: Kafka waits for offsets.commit.timeout.ms, and has no answer then.
LATER = (
    errors.COORDINATOR_LOAD_IN_PROGRESS, errors.COORDINATOR_NOT_AVAILABLE, errors.NOT_COORDINATOR,
)  # fmt: skip


@pytest.fixture(params=["kafkad", pytest.param("jvm", marks=pytest.mark.java)])
def brokers(request, tmp_path):
    """Three brokers by number; each has `bootstrap`, `process`, `start` and `stop`."""
    if request.param == "kafkad":
        with MemberCluster(tmp_path, config=CONFIG) as cluster:
            yield cluster.members
            print(cluster.logs())
        return
    with JvmCluster(tmp_path, brokers=3, config=CONFIG) as cluster:
        yield {node.node_id: node for node in cluster.brokers}


def offsets_partition(broker):
    try:
        known = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0}).list_topics(timeout=5)
        return known.topics[OFFSETS].partitions[0]
    except (KafkaException, KeyError):
        return None


def committed(wire, group, offset):
    (topic,) = wire.ask(commit_of(group, offset), 8).topics
    return topic.partitions[0].error_code


def fetched(wire, group, *, stable):
    (found,) = wire.ask(fetch_of(group, stable=stable), 8).groups
    return found.error_code or found.topics[0].partitions[0].committed_offset


@pytest.mark.timeout(300)
def test_it_answers_what_only_reads_and_goes_on_when_followers_are_back(brokers):
    any_broker = next(iter(brokers.values()))
    with Wire(any_broker.bootstrap, WAIT_S) as wire:
        data = messages.CreateTopicsRequest.Topics(name="data", num_partitions=1, replication_factor=3)
        wire.ask(messages.CreateTopicsRequest(topics=[data], timeout_ms=10_000), 7)
        wire.ask(messages.FindCoordinatorRequest(coordinator_keys=["readers"]), 4)
    leader = brokers[wait_until(lambda: (p := offsets_partition(any_broker)) and p.leader > 0 and p.leader)]
    wait_until(lambda: len(offsets_partition(leader).isrs) == 3)
    with Wire(leader.bootstrap, WAIT_S) as wire:
        wait_until(lambda: committed(wire, "readers", 5) == 0)
    deaf = [each for each in brokers.values() if each is not leader]
    try:
        for each in deaf:
            os.kill(each.process.pid, signal.SIGSTOP)
        with Wire(leader.bootstrap, WAIT_S) as wire:
            assert committed(wire, "readers", 7) in (errors.COORDINATOR_NOT_AVAILABLE, errors.NOT_COORDINATOR)
        wait_until(lambda: len(offsets_partition(leader).isrs) == 1)
        leader.stop()
        leader.start()
        with Wire(leader.bootstrap, WAIT_S) as wire:
            wait_until(lambda: fetched(wire, "readers", stable=False) == 5)
            assert fetched(wire, "readers", stable=True) in LATER
            (described,) = wire.ask(messages.DescribeGroupsRequest(groups=["readers"]), 6).groups
            assert (described.error_code, described.group_state) == (0, "Empty")
            listed = wire.ask(messages.ListGroupsRequest(), 4)
            assert [each.group_id for each in listed.groups] == ["readers"]
            assert committed(wire, "readers", 8) in LATER
    finally:
        for each in deaf:
            os.kill(each.process.pid, signal.SIGCONT)
    with Wire(leader.bootstrap, WAIT_S) as wire:
        wait_until(lambda: committed(wire, "readers", 9) == 0)
        assert fetched(wire, "readers", stable=True) == 9
        assert fetched(wire, "readers", stable=False) == 9

"""What a broker answers to clients whose metadata is old, and which ask it about a partition that it follows,
or that others have: never its own offsets, which may be behind the leader's. The same of JVM Kafka."""

import time

import pytest

from kafkad.protocol import errors, messages
from kafkad.testing import Cluster
from tests.clients import wait_until
from tests.jvm_cluster import JvmCluster
from tests.wire import Wire, batch, produce, produce_request

TOPIC, PARTITIONS, RECORDS = "t", 4, 10
REFUSED = errors.NOT_LEADER_OR_FOLLOWER
LATEST, DEBUGGING_CONSUMER = -1, -2
CONNECTIONS = 4  # of each node, so that each of its workers is asked, whoever owns the partition


def kafkad_cluster(_path):
    return Cluster(2, {"min.insync.replicas": 1}, workers=2)


def jvm_cluster(path):
    return JvmCluster(path, brokers=2)


def bootstrap_of(cluster):
    return cluster.brokers[0].bootstrap if isinstance(cluster, JvmCluster) else cluster.nodes[1].bootstrap


def made(bootstrap):
    """The topic's partitions as Metadata has them, and a bootstrap address of each broker."""
    with Wire(bootstrap) as wire:
        asked = messages.CreateTopicsRequest.Topics(
            name=TOPIC, num_partitions=PARTITIONS, replication_factor=2
        )
        request = messages.CreateTopicsRequest(topics=[asked], timeout_ms=10_000)
        assert wire.ask(request, 7).topics[0].error_code == 0
        found: list[object] = []

        def settled():
            topic = messages.MetadataRequest.Topics(name=TOPIC)
            found[:] = [wire.ask(messages.MetadataRequest(topics=[topic]), 12)]
            partitions = found[0].topics[0].partitions
            return len(partitions) == PARTITIONS and all(len(p.isr_nodes) == 2 for p in partitions)

        wait_until(settled, 30)
    addresses = {broker.node_id: f"{broker.host}:{broker.port}" for broker in found[0].brokers}
    return found[0].topics[0].partitions, addresses


def list_offsets(wire, partition, timestamp, replica_id=-1):
    cls = messages.ListOffsetsRequest
    asked = cls.Topics.Partitions(partition_index=partition, timestamp=timestamp, current_leader_epoch=-1)
    topics = [cls.Topics(name=TOPIC, partitions=[asked])]
    answer = wire.ask(cls(replica_id=replica_id, topics=topics), 7).topics[0].partitions[0]
    return answer.error_code, answer.offset


def epoch_end(wire, partition):
    cls = messages.OffsetForLeaderEpochRequest
    asked = cls.Topics.Partitions(partition=partition, current_leader_epoch=-1, leader_epoch=0)
    request = cls(replica_id=-1, topics=[cls.Topics(topic=TOPIC, partitions=[asked])])
    answer = wire.ask(request, 4).topics[0].partitions[0]
    return answer.error_code, answer.end_offset


def delete_records(wire, partition, before):
    cls = messages.DeleteRecordsRequest
    asked = cls.Topics.Partitions(partition_index=partition, offset=before)
    request = cls(timeout_ms=10_000, topics=[cls.Topics(name=TOPIC, partitions=[asked])])
    answer = wire.ask(request, 2).topics[0].partitions[0]
    return answer.error_code, answer.low_watermark


@pytest.mark.parametrize("start", [kafkad_cluster, jvm_cluster])
def test_a_follower_tells_clients_no_offsets_and_deletes_no_records(tmp_path, start):
    """It answered ListOffsets, OffsetForLeaderEpoch and DeleteRecords as if it led the partition: a consumer
    with old metadata was sent to an older end, or took its position for one that had been cut off."""
    early = int(time.time() * 1000) - 60_000
    with start(tmp_path) as cluster:
        partitions, addresses = made(bootstrap_of(cluster))
        for each in partitions:
            index, leader = each.partition_index, each.leader_id
            (follower,) = set(each.replica_nodes) - {leader}
            with Wire(addresses[leader]) as wire:
                assert produce(wire, TOPIC, bytes(batch(*[b"v"] * RECORDS)), index).error_code == 0
            for _ in range(CONNECTIONS):
                with Wire(addresses[follower]) as wire:
                    assert list_offsets(wire, index, LATEST) == (REFUSED, -1)
                    assert list_offsets(wire, index, early) == (REFUSED, -1)
                    assert epoch_end(wire, index) == (REFUSED, -1)
                    assert delete_records(wire, index, 5) == (REFUSED, -1)
                    wait_until(
                        lambda w=wire, i=index: (
                            list_offsets(w, i, LATEST, DEBUGGING_CONSUMER) == (0, RECORDS)
                        ),
                        10,
                    )
            with Wire(addresses[leader]) as wire:
                assert list_offsets(wire, index, LATEST) == (0, RECORDS)
                assert list_offsets(wire, index, early) == (0, 0)
                assert epoch_end(wire, index) == (0, RECORDS)
                assert delete_records(wire, index, 5) == (0, 5)


def fetch(wire, topic_id, version=16):
    """The partition's error, and the leader and the node that the answer names (KIP-951)."""
    cls = messages.FetchRequest
    asked = cls.Topics.Partitions(
        partition=0, fetch_offset=0, partition_max_bytes=1000, current_leader_epoch=-1
    )
    topics = [cls.Topics(topic="elsewhere", topic_id=topic_id, partitions=[asked])]
    request = cls(max_wait_ms=5000, min_bytes=1, max_bytes=1000, session_epoch=-1, topics=topics)
    answer = wire.ask(request, version)
    found = answer.responses[0].partitions[0]
    if version < 16:
        return found.error_code
    return found.error_code, found.current_leader.leader_id, [node.node_id for node in answer.node_endpoints]


@pytest.mark.parametrize("start", [kafkad_cluster, jvm_cluster])
def test_a_broker_without_a_replica_knows_that_others_have_one(tmp_path, start):
    """It answered UNKNOWN_TOPIC_OR_PARTITION, and a Fetch only after its whole wait: clients whose partition
    had moved away took it for deleted."""
    with start(tmp_path) as cluster:
        _, addresses = made(bootstrap_of(cluster))
        (here, there), cls = sorted(addresses), messages.CreateTopicsRequest
        topic = cls.Topics(name="elsewhere", num_partitions=-1, replication_factor=-1)
        topic.assignments = [cls.Topics.Assignments(partition_index=0, broker_ids=[there])]
        with Wire(addresses[here]) as wire:
            created = wire.ask(cls(topics=[topic], timeout_ms=10_000), 7).topics[0]
            wait_until(lambda: fetch(wire, created.topic_id, 12) == REFUSED, 10)
            begun = time.monotonic()
            assert fetch(wire, created.topic_id) == (REFUSED, there, [there])
            assert fetch(wire, created.topic_id, 12) == fetch(wire, created.topic_id, 4) == REFUSED
            assert time.monotonic() - begun < 4, "it does not wait for records"
            answer = wire.ask(produce_request("elsewhere", bytes(batch(b"v"))), 10)
            refused = answer.responses[0].partition_responses[0]
            assert (refused.error_code, refused.current_leader.leader_id) == (REFUSED, there)
            assert [node.node_id for node in answer.node_endpoints] == [there]
            unknown = wire.ask(produce_request("elsewhere", bytes(batch(b"v")), 1), 10)
            assert unknown.responses[0].partition_responses[0].error_code == errors.UNKNOWN_TOPIC_OR_PARTITION

"""DeleteRecords in a cluster: answered when every live replica has moved its log start."""

import os
import signal

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from kafkad.protocol import errors, messages
from kafkad.testing import Cluster
from tests.clients import wait_until
from tests.integration.test_cluster import (
    WAIT_S,
    active_controller,
    controller_ports,
    make_topic,
    wait_for_isr,
)
from tests.wire import Wire


def delete(bootstrap, before, timeout_ms):
    cls = messages.DeleteRecordsRequest.Topics
    asked = cls(name="shrinks", partitions=[cls.Partitions(partition_index=0, offset=before)])
    with Wire(bootstrap, timeout=2 * WAIT_S) as wire:
        answer = wire.ask(messages.DeleteRecordsRequest(topics=[asked], timeout_ms=timeout_ms), 2)
    done = answer.topics[0].partitions[0]
    return done.error_code, done.low_watermark


def test_deleted_records_are_gone_from_every_live_replica_when_it_is_answered():
    with Cluster(3, {"broker.session.timeout.ms": 9000}) as cluster:
        make_topic(cluster.bootstrap, "shrinks")
        wait_for_isr(cluster, "shrinks")
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})
        for _ in range(10):
            producer.produce("shrinks", b"x", partition=0)
        assert producer.flush(WAIT_S) == 0
        topics = (
            AdminClient({"bootstrap.servers": cluster.bootstrap}).list_topics("shrinks", timeout=30).topics
        )
        leader = topics["shrinks"].partitions[0].leader
        at = cluster.nodes[leader].bootstrap
        assert wait_until(lambda: delete(at, 4, int(WAIT_S * 1000)) == (0, 4), WAIT_S)

        others = {leader, active_controller(controller_ports(cluster))}
        stopped = cluster.nodes[next(each for each in cluster.nodes if each not in others)].process
        os.kill(stopped.pid, signal.SIGSTOP)
        try:
            # the stopped one has not heard of it, and is not fenced yet
            assert delete(at, 7, 1) == (errors.REQUEST_TIMED_OUT, 4)
            # -1 is HW; the follower is fenced while this waits
            assert delete(at, -1, int(WAIT_S * 1000)) == (0, 10)
        finally:
            os.kill(stopped.pid, signal.SIGCONT)
        wait_for_isr(cluster, "shrinks")
        assert delete(at, 10, int(WAIT_S * 1000)) == (0, 10)

"""Nodes that are broker and controller with two workers each: worker 0 votes, leads the quorum and serves,
and may die like any other."""

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from kafkad.testing import Cluster
from tests.clients import wait_until
from tests.integration.test_cluster import active_controller, controller_ports
from tests.integration.test_member_workers import PARTITIONS, Load, consume
from tests.member_process import workers_of


@pytest.fixture
def cluster():
    with Cluster(3, {"group.initial.rebalance.delay.ms": 0}, workers=2) as cluster:
        yield cluster
        print(cluster.log)


def killed_and_back(cluster, number, worker):
    node = cluster.nodes[number]
    told = node.log.count(f"worker {worker} serves again")
    workers_of(node.process.pid)[worker].kill()
    wait_until(lambda: node.log.count(f"worker {worker} serves again") > told, 60)


def refusals(cluster):
    logs = [node.log_file.read_text() for node in cluster.nodes.values()]
    return sum(log.count("DUPLICATE_BROKER_REGISTRATION") for log in logs)


def test_what_is_acknowledged_survives_each_worker_and_a_restart_of_each_node(cluster):
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([NewTopic("kept", PARTITIONS, 3)])["kept"].result(60)
    load = Load(cluster.bootstrap, "kept")
    load.start()
    load.more()
    leading = active_controller(controller_ports(cluster))
    killed_and_back(cluster, leading, 0)
    load.more()
    killed_and_back(cluster, leading, 1)
    load.more()
    killed_and_back(cluster, leading % 3 + 1, 0)
    load.more()

    leading = active_controller(controller_ports(cluster))
    cluster.kill(leading)
    load.more()
    cluster.start(leading)
    before = refusals(cluster)
    for number in cluster.nodes:
        assert cluster.stop(number) == {number: 0}
        assert "stopped cleanly" in cluster.nodes[number].log
        load.more()
        cluster.start(number)
        load.more()
    assert refusals(cluster) == before, "who was let go comes back at once"
    load.end()
    assert consume(cluster.bootstrap, "kept", load.count) == load.count
    assert cluster.stop() == {1: 0, 2: 0, 3: 0}
    cluster.start()
    assert consume(cluster.bootstrap, "kept", load.count, group="again") == load.count

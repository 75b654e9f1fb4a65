"""Who dies is noticed, long before any session ends: it lasts a minute here, and everything else less."""

import pytest
from confluent_kafka.admin import AdminClient

from kafkad.testing import Cluster
from tests.clients import wait_until
from tests.integration.test_cluster import (
    PARTITIONS,
    Writer,
    active_controller,
    controller_ports,
    make_topic,
    wait_for_isr,
)

WAIT_S = 30.0
CONFIG = {"broker.session.timeout.ms": 60_000, "num.partitions": PARTITIONS}


def leaders(bootstrap, topic):
    try:
        known = AdminClient({"bootstrap.servers": bootstrap}).list_topics(topic, timeout=10).topics[topic]
    except Exception:
        return []
    return [partition.leader for partition in known.partitions.values()]


def log_of(cluster):
    return "".join(node.log for node in cluster.nodes.values())


def knows_all(log):
    return all(f"broker {each} accepts connections of this controller" in log for each in (1, 2, 3))


@pytest.mark.parametrize("who", ["a broker", "the active controller"])
def test_others_lead_as_soon_as_a_node_is_killed(tmp_path, who):
    with Cluster(config=CONFIG, data_dir=tmp_path) as cluster:
        make_topic(cluster.bootstrap, "t")
        wait_for_isr(cluster, "t")
        writer = Writer(cluster.bootstrap, "t")
        writer.write()
        wait_until(lambda: all(knows_all(node.log) for node in cluster.nodes.values()), WAIT_S)
        active = active_controller(controller_ports(cluster))
        victim = active if who == "the active controller" else next(n for n in cluster.nodes if n != active)
        rest = ",".join(node.bootstrap for number, node in cluster.nodes.items() if number != victim)
        cluster.kill(victim)

        def led_by_others():
            now = leaders(rest, "t")
            return len(now) == PARTITIONS and victim not in now and -1 not in now

        wait_until(led_by_others, WAIT_S)
        assert f"broker {victim} is fenced: its process has died" in log_of(cluster)
        writer.write()
        cluster.start(victim)
        wait_for_isr(cluster, "t")
        writer.check(cluster.bootstrap)

"""Who dies is noticed, long before any session ends: it lasts a minute here, and everything else less.

A controller whose disk is full gives way to another."""

import contextlib

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from kafkad.protocol import messages
from kafkad.server.worker_context import NO_DIRECTORY
from kafkad.testing import Cluster
from tests.clients import wait_until
from tests.integration.test_cluster import (
    PARTITIONS,
    Writer,
    active_controller,
    controller_ports,
    in_sync,
    make_topic,
    wait_for_isr,
)
from tests.small_disk import small_disk
from tests.wire import Wire

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


def error_of_a_new_topic(bootstrap, name):
    cls = messages.CreateTopicsRequest
    topic = cls.Topics(name=name, num_partitions=1, replication_factor=2)
    with Wire(bootstrap, WAIT_S) as wire:
        (made,) = wire.ask(cls(topics=[topic], timeout_ms=10_000), 7).topics
    return made.error_code


@pytest.mark.parametrize("workers", [1, 2])
def test_another_controls_when_the_disk_of_the_active_controller_is_full(tmp_path, workers):
    """Nothing of the cluster could be changed otherwise: no ISR shrunk, no leader elected, no topic made."""
    config = {**CONFIG, "broker.session.timeout.ms": 3000, "log.segment.bytes": 1 << 20}
    with (
        small_disk(tmp_path / "node-1", 24 << 20) as disk,
        Cluster(config=config, data_dir=tmp_path, workers=workers) as cluster,
    ):
        make_topic(cluster.bootstrap, "t")
        wait_for_isr(cluster, "t")
        while (active := active_controller(controller_ports(cluster))) != 1:
            cluster.stop(active)
            cluster.start(active)
        writer = Writer(cluster.bootstrap, "t")
        writer.write()
        with contextlib.suppress(OSError), (disk / "ballast").open("wb", buffering=0) as ballast:
            while ballast.write(bytes(4096)):
                pass

        bootstrap = cluster.nodes[2].bootstrap
        made = iter(range(100))
        node = cluster.nodes[1]
        wait_until(
            lambda: error_of_a_new_topic(bootstrap, f"n{next(made)}") >= 0 and not node.running, WAIT_S
        )
        assert node.process.returncode == NO_DIRECTORY  # its log is on the full disk, too
        wait_until(lambda: error_of_a_new_topic(bootstrap, f"n{next(made)}") == 0, WAIT_S)
        wait_until(lambda: 1 not in leaders(bootstrap, "t"), WAIT_S)
        writer.write()

        (disk / "ballast").unlink()
        cluster.start(1)
        wait_for_isr(cluster, "t")
        writer.check(cluster.bootstrap)


def add_directory(cluster, node, path):
    """Give a node another log directory. The metadata log stays where it is."""
    cluster.stop(node.number)
    data = node.data_dir.resolve()
    dirs = f"log.dirs={data},{path}\nmetadata.log.dir={data}"
    node.properties.write_text(node.properties.read_text().replace(f"log.dirs={data}", dirs))
    cluster.start(node.number)


def names(directory):
    return {each.name for each in directory.iterdir()}


@pytest.mark.parametrize("workers", [1, 2])
def test_nobody_waits_for_replicas_in_a_log_directory_that_was_taken_away(tmp_path, workers):
    """As by `umount -l`: the broker goes on with its other directory. Nothing was acknowledged for
    replica.lag.time.max.ms after the directory went offline, and it never did before a segment was full."""
    config = {**CONFIG, "offsets.topic.num.partitions": 1, "replica.lag.time.max.ms": 1_000_000}
    with Cluster(config=config, data_dir=tmp_path / "cluster", workers=workers) as cluster:
        node = cluster.nodes[1]
        add_directory(cluster, node, tmp_path / "second")
        make_topic(cluster.bootstrap, "t")
        wait_for_isr(cluster, "t")
        has_all = {f"t-{index}" for index in range(PARTITIONS)}  # they are made under other names
        wait_until(lambda: has_all <= names(node.data_dir) | names(tmp_path / "second"), WAIT_S)
        gone = {int(name[2:]) for name in has_all & names(tmp_path / "second")}
        assert gone
        writer = Writer(cluster.bootstrap, "t")
        writer.write()
        (tmp_path / "second").rename(tmp_path / "away")

        def others_have_them():
            writer.write(3)
            return all((in_sync(cluster.bootstrap, "t") or [3] * PARTITIONS)[index] == 2 for index in gone)

        wait_until(others_have_them, WAIT_S)
        writer.write(3000)
        assert node.running
        (tmp_path / "away").rename(tmp_path / "second")
        cluster.stop(1)
        cluster.start(1)
        wait_for_isr(cluster, "t")
        writer.check(cluster.bootstrap)


@pytest.mark.parametrize("workers", [1, 2])
def test_others_lead_when_a_log_directory_of_a_leader_is_full(tmp_path, workers):
    """No acknowledgement came otherwise, for any partition of the node, until there was room again."""
    config = {**CONFIG, "offsets.topic.num.partitions": 1}
    with (
        small_disk(tmp_path / "small", 24 << 20) as disk,
        Cluster(config=config, data_dir=tmp_path / "cluster", workers=workers) as cluster,
    ):
        node = cluster.nodes[1]
        add_directory(cluster, node, disk / "logs")
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        topic = NewTopic("t", PARTITIONS, replica_assignment=[[1, 2, 3]] * PARTITIONS)
        admin.create_topics([topic])["t"].result(WAIT_S)
        wait_for_isr(cluster, "t")
        wait_until(lambda: any(f"t-{index}" in names(disk / "logs") for index in range(PARTITIONS)), WAIT_S)
        writer = Writer(cluster.bootstrap, "t")
        writer.write()
        with contextlib.suppress(OSError), (disk / "ballast").open("wb", buffering=0) as ballast:
            while ballast.write(bytes(4096)):
                pass

        writer.write(3000)
        assert node.running  # its other directory is served
        assert f"{disk / 'logs'} is full, and goes offline" in node.log
        assert admin.list_topics(timeout=10).topics

        (disk / "ballast").unlink()
        cluster.stop(1)
        cluster.start(1)
        wait_for_isr(cluster, "t")
        writer.check(cluster.bootstrap)

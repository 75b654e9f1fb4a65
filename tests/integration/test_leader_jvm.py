"""kafkad leads partitions whose followers are JVM Kafka: the same bytes, the ISR, kill -9 of either side."""

import os
import signal
import threading
import time

import pytest
from confluent_kafka import Producer

from tests.integration.test_member import consume, produce, wait_until
from tests.jvm import NEWEST, run_tool
from tests.jvm_cluster import JvmCluster
from tests.member_process import MemberProcess

KAFKAD = 3
LAG_MS = 1500


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    config = {
        "replica.lag.time.max.ms": LAG_MS,
        "default.replication.factor": 3,
        "broker.session.timeout.ms": 9_000,  # on a slow machine, too, the leader is before the controller
    }
    path = tmp_path_factory.mktemp("leader")
    with JvmCluster(path, brokers=2, config=config) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def member(cluster):
    node = cluster.new_broker(KAFKAD)
    node.format()
    with MemberProcess(node) as member:
        yield member


def create(cluster, topic, assignment, **config):
    settings = [part for key, value in config.items() for part in ("--config", f"{key}={value}")]
    run_tool(
        NEWEST, "kafka-topics", "--bootstrap-server", cluster.brokers[0].bootstrap, "--create", "--topic",
        topic, "--replica-assignment", assignment, *settings,
    )  # fmt: skip


def described(cluster, topic):
    """(leader, sorted ISR) as a JVM broker has it."""
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": cluster.brokers[0].bootstrap})
    known = admin.list_topics(topic, timeout=10).topics[topic].partitions[0]
    return known.leader, sorted(known.isrs)


def log_bytes(node, topic):
    directory = node.data_dir / f"{topic}-0"
    return b"".join(path.read_bytes().rstrip(b"\0") for path in sorted(directory.glob("*.log")))


def nodes(cluster, member):
    return [member.node, *cluster.brokers]


def test_what_is_acknowledged_by_all_is_the_same_on_all_replicas(cluster, member):
    create(cluster, "same", "3:1:2", **{"min.insync.replicas": 3})
    assert wait_until(lambda: described(cluster, "same") == (KAFKAD, [1, 2, 3]))
    values = [b"v%d" % n for n in range(500)]
    produce(member.bootstrap, "same", values, 0)
    produce(member.bootstrap, "same", [os.urandom(50_000) for _ in range(40)], 0)
    logs = [log_bytes(node, "same") for node in nodes(cluster, member)]
    assert logs[0] == logs[1] == logs[2] != b""
    assert consume(cluster.brokers[0].bootstrap, "same", 540, "g1")


def test_the_isr_shrinks_without_a_follower_that_stands_still_and_grows_when_it_is_back(cluster, member):
    create(cluster, "isr", "3:1:2", **{"min.insync.replicas": 2})
    wait_until(lambda: described(cluster, "isr") == (KAFKAD, [1, 2, 3]))
    produce(member.bootstrap, "isr", [b"a"], 0)
    stopped = cluster.brokers[1].process
    os.kill(stopped.pid, signal.SIGSTOP)
    try:
        produce(member.bootstrap, "isr", [b"b"], 0)  # waits until the ISR is without it
        assert wait_until(lambda: described(cluster, "isr")[1] == [1, 3])
    finally:
        os.kill(stopped.pid, signal.SIGCONT)
    wait_until(lambda: described(cluster, "isr") == (KAFKAD, [1, 2, 3]))
    assert "leave the ISR" in member.log
    assert "joins the ISR" in member.log
    produce(member.bootstrap, "isr", [b"c"], 0)
    logs = [log_bytes(node, "isr") for node in nodes(cluster, member)]
    assert logs[0] == logs[1] == logs[2] != b""


class Load(threading.Thread):
    """Produces numbers with acks=all; keeps those that were acknowledged."""

    def __init__(self, bootstrap, topic):
        super().__init__(daemon=True)
        self.topic = topic
        self.acked, self.number, self.ends = set(), 0, False
        self.producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "acks": "all",
                "message.timeout.ms": 60_000,
                "linger.ms": 5,
                "retry.backoff.ms": 50,
            }
        )
        self.start()

    def run(self):
        while not self.ends:
            value = b"%d" % self.number
            self.number += 1
            self.producer.produce(
                self.topic, value, partition=0,
                on_delivery=lambda e, m: e or self.acked.add(m.value()),
            )  # fmt: skip
            self.producer.poll(0)
            time.sleep(0.002)
        self.producer.flush(60)

    def end(self):
        self.ends = True
        self.join(90)
        return self.acked


@pytest.mark.soak
def test_nothing_acknowledged_is_lost_when_either_side_is_killed(cluster, member, rounds):
    for number in range(rounds(1, 10)):
        kill_either(cluster, member, f"killed-{number}")


def kill_either(cluster, member, topic):
    create(cluster, topic, "3:1:2", **{"min.insync.replicas": 2})
    wait_until(lambda: described(cluster, topic) == (KAFKAD, [1, 2, 3]))
    load = Load(",".join(node.bootstrap for node in nodes(cluster, member)), topic)
    acked_more(load)
    # a follower dies and comes back
    cluster.brokers[1].kill()
    wait_until(lambda: described(cluster, topic)[1] == [1, 3])
    acked_more(load)
    cluster.brokers[1].start()
    wait_until(lambda: described(cluster, topic) == (KAFKAD, [1, 2, 3]))
    # the leader dies: a JVM broker leads on, with all that was acknowledged
    member.kill()
    wait_until(lambda: described(cluster, topic)[0] in (1, 2))
    acked_more(load)
    acked = load.end()
    found = set(consume_all(cluster.brokers[0].bootstrap, topic))
    assert acked <= found, f"{len(acked - found)} of {len(acked)} are lost"
    # it comes back as a follower, and has the same in the end
    member.start()
    assert described(cluster, topic)[0] in (1, 2)
    wait_until(lambda: described(cluster, topic)[1] == [1, 2, 3])
    wait_until(lambda: len({log_bytes(node, topic) for node in nodes(cluster, member)}) == 1)


def acked_more(load, count=50):
    before = len(load.acked)
    wait_until(lambda: len(load.acked) > before + count)


def consume_all(bootstrap, topic):
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "x", "enable.auto.commit": False})
    low, high = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=30)
    consumer.assign([TopicPartition(topic, 0, low)])
    found, deadline = [], time.monotonic() + 40
    while time.monotonic() < deadline:
        message = consumer.poll(1)
        if message is not None and not message.error():
            found.append(message.value())
            if message.offset() + 1 >= high:
                break
    consumer.close()
    return found

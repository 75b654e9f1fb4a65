"""kafkad as a broker of a JVM Kafka cluster: its partitions are written and read by real clients."""

import time

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from tests.jvm import NEWEST, run_tool
from tests.jvm_cluster import JvmCluster
from tests.member_process import MemberProcess

WAIT_S = 40


def wait_until(condition, within_s=WAIT_S):
    deadline = time.monotonic() + within_s
    while not (value := condition()):
        assert time.monotonic() < deadline, "not so in time"
        time.sleep(0.1)
    return value


def produce(bootstrap, topic, values, partition):
    producer = Producer({"bootstrap.servers": bootstrap, "message.timeout.ms": 30_000, "acks": "all"})
    troubles = []
    for value in values:
        producer.produce(
            topic, value, partition=partition, on_delivery=lambda e, _: e and troubles.append(str(e))
        )
    assert producer.flush(40) == 0
    assert not troubles


def consume(bootstrap, topic, count, group="readers"):
    settings = {"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest"}
    consumer = Consumer(settings)
    consumer.subscribe([topic])
    found, deadline = [], time.monotonic() + WAIT_S
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count}"
        message = consumer.poll(1)
        if message is not None and not message.error():
            found.append(message.value())
    consumer.commit(asynchronous=False)
    consumer.close()
    return sorted(found)


def leaders(bootstrap, topic):
    known = AdminClient({"bootstrap.servers": bootstrap}).list_topics(topic, timeout=10).topics[topic]
    return {index: part.leader for index, part in known.partitions.items()}


@pytest.fixture
def cluster(tmp_path):
    with JvmCluster(tmp_path, brokers=1) as cluster:
        yield cluster


def test_partitions_on_kafkad_are_written_and_read_through_restarts_of_either_side(cluster):
    jvm = cluster.brokers[0].bootstrap
    node = cluster.new_broker(2)
    node.format()
    member = MemberProcess(node)
    with member:
        # one partition on each, made and written through the JVM broker and through kafkad
        run_tool(
            NEWEST, "kafka-topics", "--bootstrap-server", member.bootstrap, "--create", "--topic", "mixed",
            "--replica-assignment", "1,2",
        )  # fmt: skip
        assert leaders(member.bootstrap, "mixed") == leaders(jvm, "mixed") == {0: 1, 1: 2}
        produce(jvm, "mixed", [b"a%d" % n for n in range(50)], 1)
        produce(member.bootstrap, "mixed", [b"b%d" % n for n in range(50)], 0)
        first = sorted([b"a%d" % n for n in range(50)] + [b"b%d" % n for n in range(50)])
        assert consume(member.bootstrap, "mixed", 100) == first
        assert consume(jvm, "mixed", 100, "others") == first

        # a clean stop: its partition has no leader meanwhile
        assert member.stop() == 0, member.log
        assert "the controller lets broker 2 go" in member.log
        assert wait_until(lambda: leaders(jvm, "mixed") == {0: 1, 1: -1})
        member.start()
        assert leaders(member.bootstrap, "mixed") == {0: 1, 1: 2}
        produce(jvm, "mixed", [b"c"], 1)
        assert consume(jvm, "mixed", 101, "again") == sorted([*first, b"c"])

        # it is killed: registered anew when its session is over
        member.kill()
        member.start()
        wait_until(lambda: leaders(jvm, "mixed") == {0: 1, 1: 2})
        produce(member.bootstrap, "mixed", [b"d"], 1)

        # the controller restarts
        cluster.controllers[0].kill()
        produce(member.bootstrap, "mixed", [b"e"], 1)
        cluster.controllers[0].start()
        admin = AdminClient({"bootstrap.servers": member.bootstrap})
        made = admin.create_topics([NewTopic("later", 1, replica_assignment=[[2]])], operation_timeout=20)
        made["later"].result(30)
        produce(jvm, "later", [b"x", b"y"], 0)
        assert consume(jvm, "later", 2) == [b"x", b"y"]
        grown = admin.create_partitions([NewPartitions("later", 2, replica_assignment=[[2]])])
        grown["later"].result(30)
        wait_until(lambda: leaders(jvm, "later") == {0: 2, 1: 2})
        admin.delete_topics(["later"], operation_timeout=20)["later"].result(30)
        assert consume(jvm, "mixed", 103, "at last") == sorted([*first, b"c", b"d", b"e"])
        assert member.stop() == 0, member.log
        assert "later-0" not in "".join(
            path.name for path in node.data_dir.iterdir() if "delete" not in path.name
        )

    # JVM Kafka goes on with all of it, on the same directory
    with node:
        wait_until(lambda: leaders(jvm, "mixed") == {0: 1, 1: 2})
        assert consume(jvm, "mixed", 103, "of the JVM") == sorted([*first, b"c", b"d", b"e"])


def test_kafkad_takes_the_place_of_a_jvm_broker_and_gives_it_back(tmp_path):
    """A rolling restart on the same directory, with the same server.properties."""

    def described():
        told = run_tool(NEWEST, "kafka-topics", "--bootstrap-server", first, "--describe", "--topic", "taken")
        words = told.lines[1].split()
        return sorted(words[words.index("Isr:") + 1].split(","))

    def elect():
        run_tool(
            NEWEST, "kafka-leader-election", "--bootstrap-server", first, "--election-type", "preferred",
            "--topic", "taken", "--partition", 0,
        )  # fmt: skip

    with JvmCluster(tmp_path, brokers=2) as cluster:
        first, node = cluster.brokers[0].bootstrap, cluster.brokers[1]
        run_tool(
            NEWEST, "kafka-topics", "--bootstrap-server", first, "--create", "--topic", "taken",
            "--replica-assignment", "2:1", "--config", "min.insync.replicas=1",
        )  # fmt: skip
        values = [b"%03d" % number for number in range(150)]
        produce(first, "taken", values[:50], 0)
        node.stop()
        with MemberProcess(node) as member:
            wait_until(lambda: described() == ["1", "2"])
            produce(first, "taken", values[50:100], 0)
            elect()
            wait_until(lambda: leaders(member.bootstrap, "taken") == {0: 2})
            produce(first, "taken", values[100:], 0)
            assert consume(first, "taken", 150) == values
            assert member.stop() == 0, member.log
        with node:
            wait_until(lambda: described() == ["1", "2"])
            elect()
            wait_until(lambda: leaders(first, "taken") == {0: 2})
            assert consume(first, "taken", 150, "of the JVM") == values

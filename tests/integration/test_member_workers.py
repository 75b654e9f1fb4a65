"""Brokers of several workers between kafkad's own controllers: what is acknowledged is on every replica, once
and in order, whichever worker or broker is killed meanwhile."""

import contextlib
import itertools
import shutil
import threading
from collections import defaultdict

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import NewTopic

from tests.integration.test_replica import batches, wait_until
from tests.member_cluster import MemberCluster

PARTITIONS = 6
CONFIG = {
    "replica.lag.time.max.ms": 2000,
    "min.insync.replicas": 1,
    "offsets.topic.replication.factor": 2,
    "offsets.topic.num.partitions": 4,
    "group.initial.rebalance.delay.ms": 0,
}
WORKERS = {1: 2, 2: 4}


class Load(threading.Thread):
    """Numbers each record of a partition, and remembers which of them were acknowledged by all replicas."""

    def __init__(self, bootstrap, topic):
        super().__init__(daemon=True)
        self.topic = topic
        self.ended = threading.Event()
        self.troubles = []
        self.acked = defaultdict(list)  # by partition: (number, offset), as they were acknowledged
        self.producer = Producer(
            {
                "bootstrap.servers": bootstrap, "acks": "all", "enable.idempotence": True, "linger.ms": 2,
                "message.timeout.ms": 120_000, "retry.backoff.ms": 50, "log_level": 0,
                "topic.metadata.refresh.interval.ms": 1000, "reconnect.backoff.max.ms": 500,
            }
        )  # fmt: skip

    @property
    def count(self):
        return sum(map(len, self.acked.values()))

    def told(self, error, message):
        if error is not None:
            self.troubles.append(str(error))
        else:
            self.acked[message.partition()].append((int(message.value()), message.offset()))

    def run(self):
        for number in itertools.count():
            if self.ended.is_set():
                break
            for partition in range(PARTITIONS):
                self.producer.produce(self.topic, b"%d" % number, partition=partition, on_delivery=self.told)
            # until a broker knows of the topic it refuses batches, and one that has nothing of a producer yet
            # takes any sequence number: the second batch would come before the first, as with Kafka
            self.producer.flush(120) if number == 0 else self.producer.poll(0.005)
        self.producer.flush(120)

    def more(self, count=300):
        """Wait until so many more are acknowledged, of every partition some."""
        before = {partition: len(self.acked[partition]) for partition in range(PARTITIONS)}
        wait_until(
            lambda: (
                self.troubles
                or all(len(self.acked[each]) >= before[each] + count // PARTITIONS for each in before)
            ),
            what=lambda: ({each: len(self.acked[each]) - before[each] for each in before}, self.troubles),
        )
        assert not self.troubles

    def end(self):
        self.ended.set()
        self.join(150)
        assert not self.is_alive()
        assert not self.troubles
        for partition in range(PARTITIONS):
            acked = self.acked[partition]
            astray = [(at, *found) for at, found in enumerate(acked) if found != (at, at)]
            assert not astray, f"of {len(acked)} in {partition}, (at, number, offset): {astray[:20]}"


class Brokers(MemberCluster):
    """One controller, two brokers of several workers, and a topic of which each broker leads half."""

    def __init__(self, path):
        super().__init__(path, brokers=2, config=CONFIG, workers=WORKERS)

    def create(self, name):
        assignment = [[1, 2], [2, 1]] * (PARTITIONS // 2)
        made = self.admin.create_topics([NewTopic(name, PARTITIONS, replica_assignment=assignment)])
        made[name].result(30)

    def partitions(self, topic):
        with contextlib.suppress(KafkaException):
            return self.admin.list_topics(topic, timeout=5).topics[topic].partitions
        return {}

    def leaders(self, topic):
        return {known.leader for known in self.partitions(topic).values()}

    def agree(self, topic):
        for index in range(PARTITIONS):
            wait_until(
                lambda index=index: (found := batches(self.nodes[1], topic, index))
                and found == batches(self.nodes[2], topic, index),
                what=lambda index=index: (
                    index, [batches(node, topic, index)[-3:] for node in self.nodes.values()], self.logs()
                ),
            )  # fmt: skip


def consume(bootstrap, topic, count, group="first"):
    """How many records a group reads until it has `count`; its offsets are committed."""
    settings = {"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest"}
    consumer = Consumer({**settings, "enable.auto.commit": False, "log_level": 0})
    consumer.subscribe([topic])
    found = defaultdict(set)
    total = 0

    def read():
        nonlocal total
        for message in consumer.consume(1000, timeout=0.5):
            if not message.error():
                found[message.partition()].add(int(message.value()))
                total += 1
        return total >= count

    wait_until(read, what=lambda: (total, count))
    consumer.commit(asynchronous=False)
    consumer.close()
    assert all(len(numbers) == max(numbers) + 1 for numbers in found.values())
    return total


def test_a_broker_of_several_workers_starts_without_a_log_and_says_so_when_it_registers(tmp_path):
    """Each worker sees that it is gone; worker 0 registers before any log is opened."""
    with MemberCluster(tmp_path, brokers=2, workers={1: 2, 2: 1}) as cluster:
        replicas = {"alone": [[1]], "kept": [[1, 2], [2, 1]]}
        for name, assignment in replicas.items():
            made = cluster.admin.create_topics(
                [NewTopic(name, len(assignment), replica_assignment=assignment)]
            )
            made[name].result(30)
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "log_level": 0})

        def produce():
            for name, assignment in replicas.items():
                for index in range(len(assignment)):
                    producer.produce(name, b"record", partition=index)
            assert producer.flush(60) == 0

        def restart_without(name):
            assert broker.stop() == 0
            shutil.rmtree(broker.node.data_dir / name)
            broker.start()
            cluster.whole("kept")
            assert "Traceback" not in broker.log
            return broker.log

        broker = cluster.members[1]
        produce()
        log = restart_without("alone-0")  # no other broker would follow it
        assert log.count("alone-0 is gone, with records up to offset 1: the log begins empty") == 1
        assert "registers as after an unclean stop" not in log
        log = restart_without("kept-0")
        assert log.count("kept-0 is gone, with records up to offset 1: the log begins empty") == 1
        assert log.count("registers as after an unclean stop") == 1
        produce()
        for index in range(2):
            assert len(batches(cluster.nodes[1], "kept", index)) == 2
        assert broker.stop() == 0


def test_a_broker_looks_for_its_logs_by_metadata_that_are_newer_than_its_snapshot(tmp_path):
    """It registered by the snapshot, which did not have the partition, as after a clean stop."""
    with MemberCluster(
        tmp_path, brokers=2, config={"metadata.log.max.record.bytes.between.snapshots": 500}
    ) as cluster:
        broker, controller = cluster.members[2], tmp_path / "controller-100" / "__cluster_metadata-0"
        metadata = broker.node.data_dir / "__cluster_metadata-0"
        for number in range(60):
            cluster.admin.create_topics([NewTopic(f"t{number}", 4, 2)])[f"t{number}"].result(30)
            if list(controller.glob("*.checkpoint")):
                break
        assert broker.stop() == 0
        shutil.rmtree(metadata)
        broker.start()
        wait_until(lambda: list(metadata.glob("*.checkpoint")))
        cluster.admin.create_topics([NewTopic("new", 1, replica_assignment=[[2, 1]])])["new"].result(30)
        cluster.whole("new")
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "log_level": 0})
        producer.produce("new", b"record", partition=0)
        assert producer.flush(60) == 0
        assert broker.stop() == 0
        assert len(list(metadata.glob("*.checkpoint"))) == 1
        shutil.rmtree(broker.node.data_dir / "new-0")
        broker.start()
        assert broker.log.count("registers as after an unclean stop") == 1
        cluster.whole("new")


@pytest.fixture
def brokers(tmp_path):
    with Brokers(tmp_path) as brokers:
        yield brokers


def test_what_is_acknowledged_survives_the_kill_of_each_worker(brokers):
    brokers.create("kept")
    load = Load(brokers.bootstrap, "kept")
    load.start()
    load.more()
    for broker, worker in [(1, 1), (1, 0), (2, 3), (2, 0)]:
        member = brokers.members[broker]
        told = member.log.count(f"worker {worker} serves again")
        member.kill_worker(worker)
        wait_until(
            lambda member=member, worker=worker, told=told: (
                member.log.count(f"worker {worker} serves again") > told
            ),
            what=brokers.logs,
        )
        load.more()
    load.end()
    brokers.whole("kept")
    brokers.agree("kept")
    assert consume(brokers.bootstrap, "kept", load.count) == load.count
    assert [member.log.count("is registered in epoch") for member in brokers.members.values()] == [1, 1]
    for member in brokers.members.values():
        assert member.stop() == 0, member.log


def test_what_is_acknowledged_survives_the_kill_and_the_stop_of_a_broker(brokers):
    brokers.create("moved")
    load = Load(brokers.bootstrap, "moved")
    load.start()
    load.more()

    brokers.members[1].kill()
    wait_until(lambda: brokers.leaders("moved") == {2}, what=brokers.logs)
    load.more()
    brokers.members[1].start()
    brokers.whole("moved")
    load.more()

    # a controlled stop: all of it is led by the other before anybody is hung up on
    assert brokers.members[2].stop() == 0, brokers.members[2].log
    assert "the controller lets broker 2 go" in brokers.members[2].log
    assert "stopped cleanly" in brokers.members[2].log
    assert brokers.leaders("moved") == {1}
    load.more()
    brokers.members[2].start()
    brokers.whole("moved")
    load.more()
    load.end()
    brokers.agree("moved")

"""A JVM broker and kafkad in one cluster: each coordinates transactions and groups of partitions that both
lead, and each goes on with what the other has coordinated."""

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kafkad.coordinator.runtime import partition_of
from tests.integration.test_member import WAIT_S, consume, leaders, wait_until
from tests.jvm import NEWEST, run_tool
from tests.jvm_cluster import JvmCluster
from tests.member_process import MemberProcess

JVM, KAFKAD = 1, 2
OFFSETS, STATE = "__consumer_offsets", "__transaction_state"
LED_BY_EACH = [[JVM, KAFKAD], [KAFKAD, JVM]]  # partition 0 by the JVM
COORDINATORS = [JVM, KAFKAD]
CONFIG = {
    "default.replication.factor": 2,
    "group.initial.rebalance.delay.ms": 0,
    "offsets.topic.num.partitions": 2,  # what brokers that started before the topics count with
    "replica.lag.time.max.ms": 3000,
    "transaction.state.log.num.partitions": 2,
}


def of(coordinator, name):
    """A name like that, which this broker coordinates."""
    return next(
        each
        for each in (f"{name}-{number}" for number in range(100))
        if LED_BY_EACH[partition_of(each, 2)][0] == coordinator
    )


class Both:
    def __init__(self, cluster, member):
        self.jvm, self.member = cluster.brokers[0], member
        self.bootstrap = f"{self.jvm.bootstrap},{member.bootstrap}"
        self.admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})

    def create(self, topic, **config):
        made = self.admin.create_topics([NewTopic(topic, 2, replica_assignment=LED_BY_EACH, config=config)])
        made[topic].result(WAIT_S)

    def led(self, topic, wanted):
        wait_until(lambda: leaders(self.bootstrap, topic) == wanted)

    def whole(self):
        topics = self.admin.list_topics(timeout=WAIT_S).topics.values()
        return all(sorted(p.isrs) == [JVM, KAFKAD] for topic in topics for p in topic.partitions.values())

    def producer(self, name):
        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap, "transactional.id": name, "log_level": 0,
                "reconnect.backoff.max.ms": 500,
            }
        )  # fmt: skip
        producer.init_transactions(WAIT_S)
        return producer

    def committed(self, group, topic):
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": group, "log_level": 0})
        parts = [TopicPartition(topic, index) for index in (0, 1)]
        try:
            return [each.offset for each in consumer.committed(parts, timeout=WAIT_S)]
        finally:
            consumer.close()


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    with JvmCluster(tmp_path_factory.mktemp("both"), brokers=1, config=CONFIG) as cluster:
        node = cluster.new_broker(KAFKAD)
        node.format()
        with MemberProcess(node) as member:
            both = Both(cluster, member)
            for topic in (OFFSETS, STATE):
                both.create(topic, **{"cleanup.policy": "compact"})
                both.led(topic, {0: JVM, 1: KAFKAD})
            yield both


def write(both, producer, topic, name, end):
    """A transaction in both partitions, with offsets of a group of each coordinator."""
    producer.begin_transaction()
    for number in range(20):
        producer.produce(topic, b"%s-%d" % (name.encode(), number), partition=number % 2)
    assert producer.flush(WAIT_S) == 0
    for coordinator in COORDINATORS:
        reader = Consumer(
            {"bootstrap.servers": both.bootstrap, "group.id": of(coordinator, topic), "log_level": 0}
        )
        offsets = [TopicPartition(topic, index, len(name)) for index in (0, 1)]
        producer.send_offsets_to_transaction(offsets, reader.consumer_group_metadata(), WAIT_S)
        reader.close()
    end(WAIT_S)


def values(*names):
    return sorted(b"%s-%d" % (name.encode(), number) for name in names for number in range(20))


@pytest.mark.java
@pytest.mark.parametrize("coordinator", COORDINATORS, ids=["jvm", "kafkad"])
def test_each_coordinates_transactions_in_partitions_of_both(both, coordinator):
    topic = f"by-{coordinator}"
    both.create(topic)
    both.led(topic, {0: JVM, 1: KAFKAD})
    producer = both.producer(of(coordinator, "writer"))
    write(both, producer, topic, "kept", producer.commit_transaction)
    write(both, producer, topic, "dropped", producer.abort_transaction)
    write(both, producer, topic, "kept too", producer.commit_transaction)
    found = consume(both.bootstrap, topic, 40, of(coordinator, "readers"))
    assert found == values("kept", "kept too")
    for each in COORDINATORS:
        assert both.committed(of(each, topic), topic) == [len("kept too")] * 2


@pytest.mark.java
@pytest.mark.parametrize("coordinator", COORDINATORS, ids=["jvm", "kafkad"])
def test_partitions_of_both_join_a_transaction_with_their_first_batch(both, coordinator):
    """transaction.version 2: the leader of a partition has its coordinator add it."""
    topic = f"first-{coordinator}"
    both.create(topic)
    both.led(topic, {0: JVM, 1: KAFKAD})
    said = run_tool(
        NEWEST, "kafka-producer-perf-test", "--topic", topic, "--num-records", 2000, "--record-size", 100,
        "--throughput", -1, "--transactional-id", of(coordinator, "java"), "--transaction-duration-ms", 50,
        "--producer-props", f"bootstrap.servers={both.bootstrap}",
    )  # fmt: skip
    assert "2000 records sent" in said.stdout
    assert len(consume(both.bootstrap, topic, 2000, of(coordinator, "counters"))) == 2000


@pytest.mark.java
def test_each_goes_on_with_what_the_other_has_coordinated(both):
    both.create("moved")
    names = [of(coordinator, "mover") for coordinator in COORDINATORS]
    for name in names:
        producer = both.producer(name)
        write(both, producer, "moved", f"{name} before", producer.commit_transaction)
    wait_until(both.whole)
    assert both.member.stop() == 0
    both.led(STATE, {0: JVM, 1: JVM})
    for name in names:
        producer = both.producer(name)
        write(both, producer, "moved", f"{name} at the jvm", producer.commit_transaction)

    both.member.start()
    wait_until(both.whole)
    both.jvm.stop()  # the last test here
    both.led(STATE, {0: KAFKAD, 1: KAFKAD})
    for name in names:
        producer = both.producer(name)
        write(both, producer, "moved", f"{name} at kafkad", producer.commit_transaction)
    wanted = values(*(f"{name} {when}" for name in names for when in ("before", "at the jvm", "at kafkad")))
    assert consume(both.bootstrap, "moved", len(wanted), "readers of moved") == wanted
    for each in COORDINATORS:
        assert both.committed(of(each, "moved"), "moved") == [len(f"{names[-1]} at kafkad")] * 2

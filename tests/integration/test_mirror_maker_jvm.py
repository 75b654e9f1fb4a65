"""MirrorMaker 2 between two clusters, both ways, with exactly-once sources, ACLs and offsets of groups.

Each cluster is a broker of kafkad. MirrorMaker copies the topic of each one to the other, with its
configuration and its ACLs, and translates the committed offsets of its groups. So a group can go on at the
other cluster. The brokers are killed in the middle of the work."""

import subprocess
from contextlib import ExitStack

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ConfigResource,
    ResourcePatternType,
    ResourceType,
)

from kafkad.testing import Broker
from tests.clients import create_topic, read_partition, wait_until
from tests.jvm import FAST_JVM, JARS, QUIET, die_with_parent, fetch_jars, free_port, java

pytestmark = [pytest.mark.java, pytest.mark.timeout(240)]

WAIT_S = 100
EAST, WEST = "east", "west"
PARTITIONS = 2
COMMITTED, ABORTED, MORE = 300, 50, 200
RETENTION_MS = "123456789"
CONFIG = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    "group.initial.rebalance.delay.ms": 0,
    "offsets.topic.num.partitions": 4,
    "transaction.state.log.num.partitions": 4,
}


class MirrorMaker:
    """One process for both directions."""

    def __init__(self, brokers, directory):
        self.log = directory / "mirror.log"
        self.properties = directory / "mirror.properties"
        keys = {
            "clusters": f"{EAST}, {WEST}",
            f"{EAST}->{WEST}.enabled": "true",
            f"{WEST}->{EAST}.enabled": "true",
            "topics": "orders",
            "groups": "shop",
            "tasks.max": 2,
            "dedicated.mode.enable.internal.rest": "true",
            "listeners": f"http://127.0.0.1:{free_port()}",
            "plugin.discovery": "service_load",
            "sync.topic.acls.enabled": "true",
            "sync.group.offsets.enabled": "true",
            "offset.lag.max": 0,  # a place for every record
            "consumer.auto.offset.reset": "earliest",
        }
        for each in ("replication", "checkpoints.topic.replication", "heartbeats.topic.replication",
                     "offset-syncs.topic.replication", "config.storage.replication",
                     "offset.storage.replication", "status.storage.replication"):  # fmt: skip
            keys[f"{each}.factor"] = 1
        for each in ("sync.topic.acls", "sync.topic.configs", "sync.group.offsets", "refresh.topics",
                     "refresh.groups", "emit.checkpoints", "emit.heartbeats"):  # fmt: skip
            keys[f"{each}.interval.seconds"] = 1
        for name, broker in brokers.items():
            keys[f"{name}.bootstrap.servers"] = broker.bootstrap
            keys[f"{name}.exactly.once.source.support"] = "enabled"
            keys[f"{name}.consumer.isolation.level"] = "read_committed"
            keys[f"{name}.offset.storage.partitions"] = 2
        self.properties.write_text("".join(f"{key}={value}\n" for key, value in keys.items()))
        self.process = None

    def start(self):
        assert fetch_jars.main(["connect-4.3.1", "mirror-4.3.1"]) == 0
        jars = [jar for name in ("connect-4.3.1", "mirror-4.3.1") for jar in (JARS / name).glob("*.jar")]
        main = "org.apache.kafka.connect.mirror.MirrorMaker"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [
                    java(), "-Xmx384m", *FAST_JVM, *QUIET, "-cp", ":".join(map(str, sorted(jars))), main,
                    str(self.properties),
                ],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=die_with_parent,
            )  # fmt: skip

    def kill(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait()


class Side:
    """One of the clusters, its topic and its group."""

    def __init__(self, name, broker):
        self.name, self.broker = name, broker
        self.admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        self.sent = [[] for _ in range(PARTITIONS)]
        create_topic(broker, "orders", PARTITIONS, config={"retention.ms": RETENTION_MS})
        allowed = AclBinding(
            ResourceType.TOPIC, "orders", ResourcePatternType.LITERAL, "User:alice", "*", AclOperation.READ,
            AclPermissionType.ALLOW,
        )  # fmt: skip
        self.admin.create_acls([allowed])[allowed].result(WAIT_S)
        self.producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": name})
        self.producer.init_transactions(WAIT_S)

    def send(self, count, *, commit=True):
        self.producer.begin_transaction()
        for number in range(count):
            partition = number % PARTITIONS
            key = b"%d" % len(self.sent[partition])
            value = b"aborted" if not commit else None if number % 10 == 3 else b"%d" % number
            headers = [("from", self.name.encode()), ("nothing", None)]
            self.producer.produce("orders", value, key, partition, headers=headers)
            if commit:
                self.sent[partition].append((key, value, headers))
        if commit:
            self.producer.commit_transaction(WAIT_S)
        else:
            assert self.producer.flush(WAIT_S) == 0
            self.producer.abort_transaction(WAIT_S)

    def committed(self, topic):
        with_group = {"bootstrap.servers": self.broker.bootstrap, "group.id": "shop"}
        consumer = Consumer(with_group)
        try:
            wanted = [TopicPartition(topic, index) for index in range(PARTITIONS)]
            return [each.offset for each in consumer.committed(wanted, WAIT_S)]
        finally:
            consumer.close()

    def read_some(self, counts):
        """Commit what a group has read: this many records of each partition."""
        consumer = Consumer({"bootstrap.servers": self.broker.bootstrap, "group.id": "shop"})
        try:
            for index, count in enumerate(counts):
                last = read_partition(self.broker, "orders", count, partition=index)[-1]
                place = TopicPartition("orders", index, last.offset() + 1)
                consumer.commit(offsets=[place], asynchronous=False)
        finally:
            consumer.close()

    def copied(self, topic, index, offset=0):
        """Everything that is committed in a partition now."""
        config = {
            "bootstrap.servers": self.broker.bootstrap, "group.id": "reader", "enable.partition.eof": True,
            "enable.auto.commit": False, "isolation.level": "read_committed",
        }  # fmt: skip
        consumer, found = Consumer(config), []
        try:
            consumer.assign([TopicPartition(topic, index, offset)])
            while (message := consumer.poll(WAIT_S)) is not None and message.error() is None:
                found.append((message.key(), message.value(), message.headers()))
            return found
        finally:
            consumer.close()

    def configuration(self, topic):
        resource = ConfigResource(ResourceType.TOPIC, topic)
        return self.admin.describe_configs([resource])[resource].result(WAIT_S)["retention.ms"].value

    def rights(self, topic):
        wanted = AclBindingFilter(
            ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, None, None, AclOperation.ANY,
            AclPermissionType.ANY,
        )  # fmt: skip
        return [(each.principal, each.operation) for each in self.admin.describe_acls(wanted).result(WAIT_S)]


def test_topics_rights_and_groups_come_to_the_other_cluster(tmp_path):
    with ExitStack() as stack:
        brokers = {
            name: stack.enter_context(Broker(workers=workers, config=CONFIG, data_dir=tmp_path / name))
            for name, workers in ((EAST, 2), (WEST, 1))
        }
        mirror = MirrorMaker(brokers, tmp_path)
        stack.callback(mirror.kill)
        sides = [Side(name, broker) for name, broker in brokers.items()]
        mirror.start()
        for side in sides:
            side.send(COMMITTED)
            side.send(ABORTED, commit=False)

        def until(condition):
            def holds():
                assert mirror.process.poll() is None, mirror.log.read_text()[-4000:]
                return condition()

            wait_until(holds, WAIT_S)

        def arrived(here, other):
            topic = f"{other.name}.orders"
            if topic not in here.admin.list_topics(timeout=WAIT_S).topics:
                return False
            copies = [here.copied(topic, index) for index in range(PARTITIONS)]
            assert all(a == b[: len(a)] for a, b in zip(copies, other.sent, strict=True))  # each once
            return copies == other.sent

        ways = [(sides[0], sides[1]), (sides[1], sides[0])]
        until(lambda: all(arrived(*way) for way in ways))
        for side in sides:
            side.broker.kill()
        for side in sides:
            side.broker.restart()
            side.send(MORE)
            side.read_some([(COMMITTED + MORE) // PARTITIONS, 20])
        until(lambda: all(arrived(*way) for way in ways))
        for here, other in ways:
            topic = f"{other.name}.orders"
            until(lambda here=here, topic=topic: min(here.committed(topic)) > 0)
            left = [here.copied(topic, index, offset) for index, offset in enumerate(here.committed(topic))]
            for index, read in enumerate([(COMMITTED + MORE) // PARTITIONS, 20]):
                rest = other.sent[index][read:]
                assert left[index][len(left[index]) - len(rest) :] == rest  # nothing is skipped
                assert len(left[index]) < len(other.sent[index])
            assert here.configuration(topic) == RETENTION_MS
            assert here.rights(topic) == [("User:alice", AclOperation.READ)]
        assert not any("Traceback" in side.broker.log for side in sides)

"""Consumers that read from replicas in their rack (KIP-392): librdkafka and the Java consumer, at kafkad
alone and with JVM Kafka as the leader or the follower."""

import json

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import NewTopic

from kafkad.protocol import errors
from tests.integration.test_member import produce
from tests.jvm import NEWEST, run_tool
from tests.jvm_cluster import JvmCluster
from tests.member_cluster import MemberCluster, wait_until
from tests.member_process import MemberProcess
from tests.wire import Wire, batch, produce_request

SELECTOR = {"replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector"}
DEBUG = ("-Dorg.slf4j.simpleLogger.log.org.apache.kafka.clients.consumer.internals.AbstractFetch=debug",)


class Near:
    """A librdkafka consumer of partition 0 in a rack. `source` is the broker that it reads from."""

    def __init__(self, bootstrap, topic, rack):
        self.topic = topic
        self.source = -1
        self.values = []
        self.consumer = Consumer(
            {
                "bootstrap.servers": bootstrap, "group.id": f"{topic}-{rack}", "client.rack": rack,
                "statistics.interval.ms": 100, "stats_cb": self._note, "fetch.wait.max.ms": 100,
                "auto.offset.reset": "error",
            }
        )  # fmt: skip
        self.consumer.assign([TopicPartition(topic, 0, 0)])

    def _note(self, text):
        parts = json.loads(text)["topics"].get(self.topic, {}).get("partitions", {})
        if "0" in parts:
            self.source = parts["0"]["broker"]

    def poll(self):
        for message in self.consumer.consume(1000, 0.2):
            assert message.error() is None, message.error()
            self.values.append(message.value())

    def until(self, source, values):
        def done():
            self.poll()
            return self.source == source and len(self.values) >= len(values)

        wait_until(done, lambda: f"reads from {self.source}, has {len(self.values)}")
        assert self.values == values


def test_consumers_read_from_the_replica_in_their_rack(tmp_path):
    racks = {1: "a", 2: "b", 3: "c"}
    with MemberCluster(tmp_path, config=SELECTOR, workers=2, racks=racks) as cluster:
        created = cluster.admin.create_topics([NewTopic("near", 1, replica_assignment=[[1, 2]])])
        created["near"].result(60)
        cluster.whole("near")
        values = [b"%d" % number for number in range(300)]
        produce(cluster.bootstrap, "near", values, 0)
        consumers = {rack: Near(cluster.bootstrap, "near", rack) for rack in "abc"}
        for rack, source in (("a", 1), ("b", 2), ("c", 1)):  # nothing is in rack c
            consumers[rack].until(source, values)
        near = consumers["b"]

        produce(cluster.bootstrap, "near", [b"later"], 0)  # one that waits at the follower hears of HW
        near.until(2, [*values, b"later"])
        said = run_tool(
            NEWEST, "kafka-console-consumer", "--bootstrap-server", cluster.bootstrap, "--topic", "near",
            "--from-beginning", "--max-messages", 301, "--timeout-ms", 60_000,
            "--command-property", "client.rack=b", "--command-property", "max.partition.fetch.bytes=500",
            jvm=DEBUG,
        )  # fmt: skip
        assert sorted(said.stdout.split()) == sorted(v.decode() for v in [*values, b"later"])
        assert f"to node {cluster.nodes[2].bootstrap} (id: 2 rack: b" in said.stderr

        cluster.members[2].kill()  # the leader serves it again
        produce(cluster.bootstrap, "near", [b"last"], 0)
        near.until(1, [*values, b"later", b"last"])
        for each in consumers.values():
            each.consumer.close()


def test_jvm_kafka_sends_consumers_to_kafkad_and_gets_them_from_it(tmp_path):
    with JvmCluster(tmp_path, brokers=0, config=SELECTOR) as cluster:
        broker = cluster.new_broker(1, **{"broker.rack": "a"})
        cluster.brokers.append(broker)
        broker.start()
        node = cluster.new_broker(2, **{"broker.rack": "b"})
        node.format()
        with MemberProcess(node) as member:
            for topic, assignment in (("jvm-leads", "1:2"), ("kafkad-leads", "2:1")):
                run_tool(
                    NEWEST, "kafka-topics", "--bootstrap-server", broker.bootstrap, "--create",
                    "--topic", topic, "--replica-assignment", assignment,
                )  # fmt: skip
            for topic, rack, source in (("jvm-leads", "b", 2), ("kafkad-leads", "a", 1)):
                values = [b"%d" % number for number in range(100)]
                produce(member.bootstrap, topic, values, 0)
                near = Near(member.bootstrap, topic, rack)
                near.until(source, values)
                produce(member.bootstrap, topic, [b"later"], 0)
                near.until(source, [*values, b"later"])
                near.consumer.close()

            # and both name the leader to a producer that comes to the follower (KIP-951)
            both = (("jvm-leads", node, broker, "a"), ("kafkad-leads", broker, node, "b"))
            for topic, to, leader, rack in both:
                with Wire(to.bootstrap) as wire:
                    answer = wire.ask(produce_request(topic, batch(b"lost")), 12)
                [part], [told] = answer.responses[0].partition_responses, answer.node_endpoints
                assert part.error_code == errors.NOT_LEADER_OR_FOLLOWER
                assert (part.current_leader.leader_id, part.current_leader.leader_epoch) == (
                    leader.node_id,
                    0,
                )
                place = told.node_id, f"{told.host}:{told.port}", told.rack
                assert place == (leader.node_id, leader.bootstrap, rack)

"""kafkad controllers beside the JVM: Kafka 4.3.1 brokers under three kafkads, and both in one quorum."""

import asyncio
import contextlib
import re
import time

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kafkad.net.channel import Channel
from kafkad.protocol import messages
from kafkad.raft.observer import TOPIC
from tests.controller_process import ControllerProcess, ControllerQuorum, formatted
from tests.jvm import NEWEST, run_tool
from tests.jvm_cluster import JvmCluster

pytestmark = pytest.mark.java

CONFIG = {
    "broker.session.timeout.ms": 3000,
    "broker.heartbeat.interval.ms": 500,
    "controller.quorum.election.timeout.ms": 500,
    "controller.quorum.fetch.timeout.ms": 1000,
    "leader.imbalance.check.interval.seconds": 1,
}


def brokers_under(quorum, path, count):
    """JVM brokers 1, 2, ... of this quorum, with directories that are formatted."""
    cluster = JvmCluster(path, controllers=0)
    cluster.cluster_id = quorum.cluster_id
    cluster.quorum = {"controller.quorum.voters": quorum.voters}
    cluster.bootstrap_controllers = ",".join(f"127.0.0.1:{port}" for port in quorum.ports.values())
    cluster.brokers = [cluster.new_broker(number + 1) for number in range(count)]
    for broker in cluster.brokers:
        formatted(broker.data_dir, cluster.cluster_id, broker.node_id)
    return cluster


@contextlib.contextmanager
def logs_shown(path):
    """Where it ends with an exception, what each node has logged last stands in the output."""
    try:
        yield
    except BaseException:
        for file in sorted([*path.rglob("*.out"), *path.rglob("*.log")]):
            if not file.parent.name[-1:].isdigit():  # a partition's
                print(f"-- {file.relative_to(path)}\n{file.read_text(errors='replace')[-5000:]}")
        raise


def until(condition, timeout_s=30):
    ends = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < ends, "it has not come about"
        time.sleep(0.1)
    return found


def create(admin, name, partitions=2, factor=2):
    admin.create_topics([NewTopic(name, partitions, factor)])[name].result(30)


def leaders_and_isrs(admin, name):
    def asked():
        try:
            return admin.list_topics(name, timeout=3).topics[name]
        except KafkaException:  # librdkafka asked a broker that had just died, and does not turn to another
            return None

    topic = until(asked)
    return {index: (each.leader, sorted(each.isrs)) for index, each in topic.partitions.items()}


def produce(bootstrap, topic, count, start=0):
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "enable.idempotence": True})
    troubles = []
    for number in range(start, start + count):
        producer.produce(topic, str(number).encode(), on_delivery=lambda e, _: e and troubles.append(e))
    assert producer.flush(30) == 0
    assert not troubles


def consume(bootstrap, topic, count):
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    found, ends = [], time.monotonic() + 40
    while len(found) < count and time.monotonic() < ends:
        message = consumer.poll(1)
        if message is not None and not message.error():
            found.append(int(message.value()))
    consumer.close()
    return sorted(found)


async def describe_quorum(port):
    """The quorum's leader as a broker tells it, which asks the active controller."""
    cls = messages.DescribeQuorumRequest
    request = cls(topics=[cls.Topics(topic_name=TOPIC, partitions=[cls.Topics.Partitions()])])
    channel = await Channel.connect("127.0.0.1", port, "test", timeout_s=5.0)
    try:
        response = await channel.ask(request, timeout_s=20.0)
    finally:
        channel.close()
    assert not response.error_code, response
    (partition,) = response.topics[0].partitions
    assert not partition.error_code, response
    return partition.leader_id


def test_jvm_brokers_live_under_kafkad_controllers(tmp_path):
    with logs_shown(tmp_path), ControllerQuorum(tmp_path / "controllers", 3, CONFIG) as quorum:
        cluster = brokers_under(quorum, tmp_path / "brokers", 2)
        with cluster:
            bootstrap = ",".join(broker.bootstrap for broker in cluster.brokers)
            admin = AdminClient({"bootstrap.servers": bootstrap})
            create(admin, "first")
            produce(bootstrap, "first", 100)

            # the active controller dies: the next one goes on with the same brokers
            leader = asyncio.run(quorum.leader())
            told = [asyncio.run(describe_quorum(broker.port)) for broker in cluster.brokers]
            assert told == [leader, leader]
            quorum.nodes[leader].kill()
            create(admin, "second")
            quorum.nodes[leader].start()
            # a broker that forwarded nothing meanwhile asks the former one first, which runs again
            following = asyncio.run(quorum.leader())
            assert following != leader
            told = [asyncio.run(describe_quorum(broker.port)) for broker in cluster.brokers]
            assert told == [following, following]

            # a broker dies: fenced when its session ends, and led by the other
            first, second = cluster.brokers
            second.kill()
            until(lambda: all(each == (1, [1]) for each in leaders_and_isrs(admin, "first").values()))
            produce(bootstrap, "first", 100, start=100)

            # it comes back: into the ISRs, and leads again what it is preferred for
            second.start()
            whole = [(1, [1, 2]), (2, [1, 2])]
            until(lambda: sorted(leaders_and_isrs(admin, "first").values()) == whole)
            assert consume(bootstrap, "first", 200) == list(range(200))

            status = cluster.tool("kafka-metadata-quorum", "describe", "--status").stdout
            assert re.search(r"LeaderId: +10[012]\n", status)
            assert status.count('"endpoints"') == 3
            at = ("--bootstrap-server", first.bootstrap)
            told = run_tool(NEWEST, "kafka-metadata-quorum", *at, "describe", "--replication").stdout
            assert told.count("Follower") == 2
            assert told.count("Observer") == 2

            # a controlled shutdown leaves nobody without a leader
            assert first.stop() in (0, 143)
            until(lambda: all(each == (2, [2]) for each in leaders_and_isrs(admin, "first").values()))


def test_kafkad_votes_and_leads_beside_jvm_controllers(tmp_path):
    """Two JVM controllers and a kafkad, which leads in its turn; each reads what the others wrote."""
    config = {key: value for key, value in CONFIG.items() if key.startswith("controller.quorum")}
    cluster = JvmCluster(tmp_path, controllers=3, config=config)
    kafkad_id, *jvm_ids = cluster.controller_ports
    nodes = {node.node_id: node for node in cluster.controllers}
    for node in cluster.controllers:
        formatted(node.data_dir, cluster.cluster_id, node.node_id)
    ours = nodes[kafkad_id]
    kafkad = ControllerProcess(ours.properties, ours.log_file, ours.port)
    quorum = ControllerQuorum.around({**nodes, kafkad_id: kafkad}, cluster)
    try:
        kafkad.launch()
        for jvm in jvm_ids:
            nodes[jvm].start()
        kafkad.until_ready()
        leaders = set()
        deadline = time.monotonic() + 60
        while kafkad_id not in leaders or len(leaders) < 2:
            assert time.monotonic() < deadline, f"only {leaders} have led\n{kafkad.log}"
            leader = asyncio.run(quorum.leader())
            leaders.add(leader)
            register(quorum, len(leaders))
            if kafkad_id in leaders and len(leaders) >= 2:
                break
            node = quorum.nodes[leader]
            node.stop()
            asyncio.run(quorum.leader())
            node.start()
        # who led wrote a registration; all of them are in the log of each
        leader = asyncio.run(quorum.leader())
        ends = time.monotonic() + 20
        while True:
            described = asyncio.run(quorum.describe(leader))
            if all(
                voter.log_end_offset >= described.high_watermark - 3 for voter in described.current_voters
            ):
                break
            assert time.monotonic() < ends, described
            time.sleep(0.2)
        assert kafkad.stop() == 0
        assert "Traceback" not in kafkad.log
    finally:
        for node in quorum.nodes.values():
            node.kill()


def register(quorum, broker_id):
    from tests.registrations import registration

    request = registration(broker_id, broker_id)
    request.cluster_id = quorum.cluster_id
    response = asyncio.run(quorum.ask_leader(request))
    assert response.error_code == 0, messages.BrokerRegistrationResponse

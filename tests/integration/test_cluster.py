"""Clusters of kafkad alone: three nodes, each broker and controller, as `kafkad serve` runs them."""

import asyncio
import json
import shutil
import subprocess
import sys
import time

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kafkad.net.channel import Channel, Unreachable
from kafkad.protocol import messages
from kafkad.raft.observer import TOPIC
from kafkad.testing import BrokerFailed, Cluster
from tests.clients import wait_until
from tests.controller_process import ControllerProcess
from tests.jvm import JvmKafka, free_port, random_uuid

WAIT_S = 60.0
PARTITIONS = 3


def make_topic(bootstrap, topic):
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, PARTITIONS, 3)], operation_timeout=WAIT_S)[topic].result(WAIT_S)


def in_sync(bootstrap, topic):
    """How many replicas each partition has in its ISR; None where nobody answers."""
    try:
        known = AdminClient({"bootstrap.servers": bootstrap}).list_topics(topic, timeout=10).topics[topic]
    except Exception:
        return None
    return [len(partition.isrs) for partition in known.partitions.values()]


def wait_for_isr(cluster, topic, count=3):
    wait_until(lambda: in_sync(cluster.bootstrap, topic) == [count] * PARTITIONS, WAIT_S)


class Writer:
    """acks=all; what was acknowledged is what must be there for good."""

    def __init__(self, bootstrap, topic):
        self.producer = Producer(
            {"bootstrap.servers": bootstrap, "acks": "all", "message.timeout.ms": int(WAIT_S * 1000)}
        )
        self.topic = topic
        self.written: list[set[bytes]] = [set() for _ in range(PARTITIONS)]
        self.next = 0

    def write(self, count=30):
        troubles = []
        for _ in range(count):
            value, partition = b"%d" % self.next, self.next % PARTITIONS
            self.written[partition].add(value)
            self.producer.produce(
                self.topic, value, partition=partition, on_delivery=lambda e, _: e and troubles.append(str(e))
            )
            self.next += 1
        assert self.producer.flush(WAIT_S) == 0
        assert not troubles

    def check(self, bootstrap):
        """Every partition holds what was acknowledged, by its leader."""
        consumer = Consumer(
            {"bootstrap.servers": bootstrap, "group.id": "-", "enable.auto.commit": False,
             "auto.offset.reset": "earliest"}
        )  # fmt: skip
        consumer.assign([TopicPartition(self.topic, index, 0) for index in range(PARTITIONS)])
        found: list[set[bytes]] = [set() for _ in range(PARTITIONS)]
        deadline = time.monotonic() + WAIT_S
        while found != self.written and time.monotonic() < deadline:
            message = consumer.poll(0.5)
            if message is not None and not message.error():
                found[message.partition()].add(message.value())
        consumer.close()
        assert found == self.written


def active_controller(ports) -> int:
    """The node that leads the quorum; `ports` by node."""

    async def describe(port):
        cls = messages.DescribeQuorumRequest
        request = cls(topics=[cls.Topics(topic_name=TOPIC, partitions=[cls.Topics.Partitions()])])
        channel = await Channel.connect("127.0.0.1", port, "test", timeout_s=5.0)
        try:
            return await channel.ask(request, timeout_s=5.0)
        finally:
            channel.close()

    def leading():
        for node, port in ports.items():
            try:
                answer = asyncio.run(describe(port))
            except Unreachable:
                continue
            if not answer.topics[0].partitions[0].error_code:
                return node
        return None

    return wait_until(leading, WAIT_S)


def controller_ports(cluster):
    return {number: node.controller_port for number, node in cluster.nodes.items() if node.running}


def test_records_outlive_a_killed_node_a_killed_controller_and_a_stop_of_all():
    with Cluster(3) as cluster:
        make_topic(cluster.bootstrap, "kept")
        writer = Writer(cluster.bootstrap, "kept")
        writer.write()
        wait_for_isr(cluster, "kept")

        # a node that is not the active controller is killed: the others serve on, and it comes back
        killed = next(node for node in cluster.nodes if node != active_controller(controller_ports(cluster)))
        cluster.kill(killed)
        writer.write()
        writer.check(cluster.bootstrap)
        cluster.start(killed)
        wait_for_isr(cluster, "kept")

        # the active controller is killed: another one takes over
        leader = active_controller(controller_ports(cluster))
        cluster.kill(leader)
        assert active_controller(controller_ports(cluster)) != leader
        make_topic(cluster.bootstrap, "later")
        writer.write()
        cluster.start(leader)
        wait_for_isr(cluster, "kept")
        wait_for_isr(cluster, "later")

        # all stop at the same time, and nobody waits for the others for ever
        assert cluster.stop() == {1: 0, 2: 0, 3: 0}
        cluster.start()
        writer.check(cluster.bootstrap)
        writer.write()
        wait_for_isr(cluster, "kept")
        writer.check(cluster.bootstrap)


def test_nodes_of_an_idle_cluster_are_restarted_one_after_the_other(kafkad_cluster):
    """Each in turn leads without writing anything: that epoch is known to nobody else."""
    cluster = kafkad_cluster
    make_topic(cluster.bootstrap, "idle")
    writer = Writer(cluster.bootstrap, "idle")
    writer.write()
    for number in cluster.nodes:
        assert cluster.stop(number) == {number: 0}
        cluster.start(number)
        wait_for_isr(cluster, "idle")
    writer.write()
    writer.check(cluster.bootstrap)


def test_a_node_stops_whose_quorum_has_gone(kafkad_cluster):
    """It goes on to name a leader that nobody can ask."""
    cluster = kafkad_cluster
    leader = active_controller(controller_ports(cluster))
    last = next(node for node in cluster.nodes if node != leader)
    for node in cluster.nodes:
        if node != last:
            cluster.kill(node)
    assert cluster.stop(last) == {last: 0}
    assert "controllers have not let this broker go" in cluster.nodes[last].log


def test_commands_show_and_change_a_cluster(kafkad_cluster):
    def told(*arguments):
        code, out, err = kafkad(
            "cluster", *arguments, "--json", "--bootstrap-server", kafkad_cluster.bootstrap
        )
        return json.loads(out) if code == 0 else err

    make_topic(kafkad_cluster.bootstrap, "shown")
    Writer(kafkad_cluster.bootstrap, "shown").write()
    wait_until(lambda: {(row["end"], row["lag"]) for row in told("replicas")} == {(10, 0)}, WAIT_S)
    assert sorted(row["broker"] for row in told("status")) == [1, 2, 3]
    quorum = told("quorum")
    assert {node["node"] for node in quorum["nodes"]} == {1, 2, 3}
    assert [node["role"] for node in quorum["nodes"]].count("leader") == 1
    (moved,) = told("reassign", "shown-0=2,1")
    assert moved == {"topic": "shown", "partition": 0, "replicas": [2, 1], "error": None}
    wait_until(
        lambda: (
            [row["broker"] for row in told("replicas", "--topic", "shown")][:2] == [2, 1]
            and told("reassign") == []
        ),
        WAIT_S,
    )
    told("elect", "--all")  # 2 leads, if it did not already
    assert told("elect", "--all") == []
    assert "1 of 1 were refused" in told("reassign", "shown-9=1")
    assert {row["feature"]: row["level"] for row in told("features")}["metadata.version"] == 30
    assert "INVALID_UPDATE_VERSION" in told("features", "--set", "group.version=1")
    elr = "eligible.leader.replicas.version"
    lower = ("features", "--set", f"{elr}=0", "--downgrade")
    lowered = [{"feature": elr, "level": 0}]
    wait_until(lambda: told(*lower, "--dry-run") == lowered, WAIT_S)  # once each controller is registered
    assert told(*lower) == lowered
    assert {row["feature"]: row["level"] for row in told("features")}[elr] == 0
    told("reassign", "shown-0=1,2", "--throttle", "1000000")
    cleared = told("reassign", "--unthrottle")
    assert {(row["type"], row["name"]) for row in cleared} == {
        ("brokers", "1"), ("brokers", "2"), ("topics", "shown")
    }  # fmt: skip
    assert "broker 3 runs" in told("unregister", "3")
    kafkad_cluster.stop(3)
    assert told("unregister", "3") == [{"broker": 3, "registered": False}]
    assert "BROKER_ID_NOT_REGISTERED" in told("unregister", "3")


def test_a_fixture_gives_a_cluster_and_a_failed_node_tells_its_log(kafkad_cluster):
    cluster = kafkad_cluster
    assert cluster.stop(2) == {2: 0}
    assert not cluster.nodes[2].running and cluster.nodes[1].running
    with open(cluster.nodes[2].properties, "a") as file:
        file.write("num.partitions=many\n")
    with pytest.raises(BrokerFailed, match=r"node 2 exited with 2 before it was ready(.|\n)*num.partitions"):
        cluster.start(2)
    assert "node 3 of the metadata quorum" in cluster.log


# -- kafkad format, beside Kafka ---------------------------------------------------------------------------


def kafkad(*arguments):
    done = subprocess.run(
        [sys.executable, "-m", "kafkad", *map(str, arguments)], capture_output=True, text=True, timeout=60
    )
    return done.returncode, done.stdout, done.stderr


SETTINGS = """
process.roles=broker,controller
node.id={number}
controller.quorum.bootstrap.servers={servers}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT
log.dirs={data}
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=500
"""


def test_two_kafkads_and_a_jvm_are_a_cluster_on_directories_that_kafkad_has_formatted(tmp_path):
    """The voters are in the log (kraft.version 1), from the same --initial-controllers for all."""
    jvm = JvmKafka(tmp_path / "data-3")
    ports = {number: free_port() for number in (1, 2, 3)}
    controllers = {number: free_port() for number in (1, 2, 3)}
    servers = ",".join(f"127.0.0.1:{port}" for port in controllers.values())
    voters = ",".join(f"{node}@127.0.0.1:{port}:{random_uuid()}" for node, port in controllers.items())
    cluster_id, files = random_uuid(), {}
    for number in ports:
        files[number] = jvm.properties if number == 3 else tmp_path / f"{number}.properties"
        files[number].write_text(
            SETTINGS.format(
                number=number, servers=servers, port=ports[number], controller_port=controllers[number],
                data=tmp_path / f"data-{number}",
            )
        )  # fmt: skip
        code, out, err = kafkad("format", files[number], "-t", cluster_id, "--initial-controllers", voters)
        assert code == 0, err
        assert "Formatting dynamic metadata voter directory" in out and "metadata.version 4.3-IV0" in out
    nodes = [
        ControllerProcess(files[number], tmp_path / f"{number}.out", controllers[number]) for number in (1, 2)
    ]
    bootstrap = ",".join(f"127.0.0.1:{port}" for port in ports.values())
    try:
        for node in nodes:
            node.launch()
        jvm.start()  # its own meta.properties is there
        for node in nodes:
            node.until_ready()
        make_topic(bootstrap, "mixed")
        writer = Writer(bootstrap, "mixed")
        writer.write()
        wait_until(lambda: in_sync(bootstrap, "mixed") == [3] * PARTITIONS, WAIT_S)
        jvm.kill()
        writer.write()
        writer.check(bootstrap)
    finally:
        jvm.kill()
        for node in nodes:
            node.kill()


def test_what_kafkad_format_refuses(tmp_path):
    data, voters = tmp_path / "data", "controller.quorum.voters=1@127.0.0.1:9093"
    alone = ("format", "--data-dir", data)
    assert kafkad(*alone, "--override", voters, "--standalone")[0] == 2
    listeners = ("controller.listener.names=C", "listeners=PLAINTEXT://h:9092,C://h:9093")
    code, _, err = kafkad(*alone, *(word for pair in listeners for word in ("--override", pair)))
    assert code == 2 and "you must specify one of the following: --standalone, --initial-" in err
    code, _, err = kafkad(*alone, "--standalone")
    assert code == 2 and "A broker without one is alone: format it without --standalone" in err
    for wrong in ("1@h:9093", "1@h:x:AAAAAAAAAAAAAAAAAAAAAQ", "1@h:1:AAAAAAAAAAAAAAAAAAAAAQ,1@g:1:AA"):
        code, _, err = kafkad(*alone, "--initial-controllers", wrong)
        assert code == 2 and "is not of the form id@host:port:directory" in err
    code, _, err = kafkad(*alone, "--override", voters, "--release-version", "2.8")
    assert code == 2 and "Unknown metadata.version 2.8" in err
    assert not data.exists()

    code, out, err = kafkad(*alone, "--override", voters)
    assert code == 0, err
    cluster_id = out.split("Cluster ID: ")[1].split(".")[0]
    before = (data / "meta.properties").read_bytes()
    code, _, err = kafkad(*alone, "--override", voters, "-t", cluster_id)
    assert code == 1 and f"Log directory {data} is already formatted. Use --ignore-formatted" in err
    code, out, _ = kafkad(*alone, "--override", voters, "-t", cluster_id, "--ignore-formatted")
    assert (code, out) == (0, "All of the log directories are already formatted.\n")
    code, _, err = kafkad(*alone, "--override", voters, "-t", random_uuid(), "--ignore-formatted")
    assert code == 1 and f"but read {cluster_id}" in err
    assert (data / "meta.properties").read_bytes() == before
    (data / "meta.properties").unlink()
    (data / "orders-0").mkdir()
    code, _, err = kafkad(*alone, "--override", voters)
    assert code == 1 and "holds orders-0 but no meta.properties" in err


def test_a_node_without_its_quorum_stops_at_once_and_one_without_controllers_gives_up(tmp_path):
    port, controller_port, nobody = free_port(), free_port(), free_port()
    keys = SETTINGS.format(
        number=1, servers=f"127.0.0.1:{controller_port}", port=port, controller_port=controller_port,
        data=tmp_path / "data",
    )  # fmt: skip
    voters = f"1@127.0.0.1:{controller_port},2@127.0.0.1:{nobody},3@127.0.0.1:{nobody}"
    file = tmp_path / "server.properties"
    file.write_text(f"{keys}controller.quorum.voters={voters}\n")
    assert kafkad("format", file, "-t", random_uuid())[0] == 0
    node = ControllerProcess(file, tmp_path / "out", controller_port).launch()
    try:
        wait_until(lambda: "of the metadata quorum is prospective" in node.log, WAIT_S)
        assert node.stop(60) == 0
        assert "stopped before it was ready" in node.log
    finally:
        node.kill()
    member = keys.replace("broker,controller", "broker").replace(
        f",CONTROLLER://127.0.0.1:{controller_port}", ""
    )
    file.write_text(f"{member}initial.broker.registration.timeout.ms=1500\n")
    code, out, err = kafkad("serve", file)
    assert (code, out) == (1, "")
    assert "kafkad: no controller of controller.quorum.voters or controller.quorum.bootstrap.servers" in err
    assert "Traceback" not in err


def test_a_node_that_lost_its_disk_is_formatted_and_fetches_it_all_again():
    """As docs/cluster.md describes it."""
    with Cluster(3) as cluster:
        make_topic(cluster.bootstrap, "kept")
        writer = Writer(cluster.bootstrap, "kept")
        writer.write()
        wait_for_isr(cluster, "kept")
        lost = cluster.nodes[2]
        cluster.kill(2)
        shutil.rmtree(lost.data_dir)
        code, _, err = kafkad("format", lost.properties, "--cluster-id", cluster.cluster_id)
        assert code == 0, err
        cluster.start(2)
        wait_for_isr(cluster, "kept")
        code, _, err = kafkad("cluster", "elect", "--all", "--bootstrap-server", cluster.bootstrap)
        assert code == 0, err  # the metadata knows its new directory, so it may lead
        assert cluster.stop(1) == {1: 0}  # the one that was empty counts for the majority, and leads
        wait_until(lambda: in_sync(cluster.bootstrap, "kept") == [2] * PARTITIONS, WAIT_S)
        writer.write()
        writer.check(cluster.bootstrap)

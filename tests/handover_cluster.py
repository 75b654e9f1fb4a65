"""Three nodes, each broker and controller, that are JVM Kafka or kafkad in turn, on one directory each.

`HandoverCluster(path, static)` formats them with Kafka's kafka-storage and starts them as JVM Kafka.
`hand_over(number)` stops a node by SIGTERM and starts the other program on its directory with its
server.properties. `Crowd` are the clients that work all the time, and what each of them has been promised.

Use: tests/integration/test_cluster_handover.py."""

from __future__ import annotations

import asyncio
import random
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    NewTopic,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from kafkad.net.channel import Channel
from kafkad.protocol import messages
from tests import cluster_checker
from tests.cluster_checker import PARTITIONS, QUIET, WAIT_S, Story, until
from tests.controller_process import ControllerProcess, ControllerQuorum
from tests.jvm import FAST_JVM, NEWEST, TEST_CONFIG, JvmKafka, as_text, free_port, random_uuid, run_tool

CONFIG = {
    **TEST_CONFIG,
    **{key: as_text(value) for key, value in cluster_checker.CONFIG.items()},
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "leader.imbalance.check.interval.seconds": "5",
    "log.cleaner.backoff.ms": "500",
}
LOG_MANAGER = "kafka.log.LogManager"
# An abort of librdkafka 2.16 may wait for a broker that it is not connected to until it is called again.
CONNECTED = {"enable.sparse.connections": False}
CALL_S = 5
JVM, KAFKAD = "jvm", "kafkad"


class Jvm(JvmKafka):
    """JVM Kafka with these properties, on a directory that is formatted."""

    def __init__(self, properties: Path, log_file: Path):
        self.version, self.properties, self.log_file = NEWEST, properties, log_file
        self.jvm = ("-Xmx384m", *FAST_JVM, f"-Dorg.slf4j.simpleLogger.log.{LOG_MANAGER}=info")
        self.process = None
        self.starts = 0

    def launch(self) -> JvmKafka:
        """With a log of its own each time."""
        self.starts += 1
        self.log_file = self.log_file.with_suffix(f".jvm{self.starts}")
        return super().launch()


class Node:
    """One of the three. It has the interface of a LocalNode as far as cluster_checker needs it."""

    def __init__(self, path: Path, number: int, port: int, controller_port: int):
        self.number, self.port, self.controller_port = number, port, controller_port
        self.bootstrap = f"127.0.0.1:{port}"
        self.data_dir = path / f"data-{number}"
        self.data_dir.mkdir(parents=True)
        self.properties = path / f"{number}.properties"
        self.jvm = Jvm(self.properties, path / f"{number}.jvm")
        self.kafkad = ControllerProcess(self.properties, path / f"{number}.kafkad", controller_port)
        self.kind = JVM

    @property
    def running(self) -> JvmKafka | ControllerProcess:
        return self.jvm if self.kind == JVM else self.kafkad

    @property
    def process(self):
        return self.running.process

    @property
    def log(self) -> str:
        return self.running.log

    def start(self, kind: str) -> None:
        self.kind = kind
        self.running.launch().until_ready(WAIT_S)

    def stop(self) -> None:
        """SIGTERM, and what each program exits with then."""
        assert self.running.stop(WAIT_S) == (143 if self.kind == JVM else 0), self.log

    def kill(self) -> None:
        self.jvm.kill()
        self.kafkad.kill()


class HandoverCluster(cluster_checker.Cluster):
    """`with HandoverCluster(path, static=True)`: controller.quorum.voters (kraft.version 0), else the voters
    stand in the log (kraft.version 1)."""

    def __init__(self, path: Path, *, static: bool):
        self.path, self.static = path, static
        self.cluster_id = random_uuid()
        self._nodes = {number: Node(path, number, free_port(), free_port()) for number in (1, 2, 3)}
        self.ways: list[str] = []
        at = {number: f"127.0.0.1:{node.controller_port}" for number, node in self._nodes.items()}
        quorum = (
            {"controller.quorum.voters": ",".join(f"{number}@{address}" for number, address in at.items())}
            if static
            else {"controller.quorum.bootstrap.servers": ",".join(at.values())}
        )
        self.initial = ",".join(f"{number}@{address}:{random_uuid()}" for number, address in at.items())
        for number, node in self._nodes.items():
            keys = {
                "process.roles": "broker,controller",
                "node.id": number,
                **quorum,
                "listeners": f"PLAINTEXT://{node.bootstrap},CONTROLLER://{at[number]}",
                "controller.listener.names": "CONTROLLER",
                "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
                "log.dirs": node.data_dir,
                **CONFIG,
            }
            node.properties.write_text("".join(f"{key}={value}\n" for key, value in keys.items()))
        ports = {number: node.controller_port for number, node in self._nodes.items()}
        frame = SimpleNamespace(path=path, cluster_id=self.cluster_id, controller_ports=ports)
        self.quorum = ControllerQuorum.around(self._nodes, frame)

    @property
    def nodes(self):
        return self._nodes

    @property
    def bootstrap(self) -> str:
        return ",".join(node.bootstrap for node in self._nodes.values())

    @property
    def kinds(self) -> str:
        return " ".join(f"{number}={node.kind}" for number, node in self._nodes.items())

    def __enter__(self) -> HandoverCluster:
        extra = [] if self.static else ["--initial-controllers", self.initial]
        try:
            for node in self._nodes.values():
                command = ["format", "-t", self.cluster_id, "-c", node.properties, *extra]
                run_tool(NEWEST, "kafka-storage", *command)
                node.jvm.launch()
            for node in self._nodes.values():
                node.jvm.until_ready(WAIT_S)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        for node in self._nodes.values():
            node.kill()

    def hand_over(self, number: int) -> None:
        node = self._nodes[number]
        node.stop()
        node.start(KAFKAD if node.kind == JVM else JVM)
        self._is_clean(node)

    def _is_clean(self, node: Node) -> None:
        """It believes the logs of its predecessor, which has stopped cleanly, and recovers none."""
        if node.kind == JVM:
            assert "since clean shutdown file was found" in node.jvm.log_file.read_text()

    def all_whole(self) -> None:
        """Wait until each broker says that every replica of every topic is in its ISR."""

        def lacking(node: Node) -> list[object]:
            admin = AdminClient({"bootstrap.servers": node.bootstrap, **QUIET})
            try:
                topics = admin.list_topics(timeout=5).topics
            except KafkaException as trouble:
                return [str(trouble)]
            return [
                (name, part.id, part.leader, part.isrs)
                for name, topic in topics.items()
                for part in topic.partitions.values()
                if sorted(part.isrs) != sorted(self._nodes) or part.leader < 0
            ]

        for number, node in self._nodes.items():
            until(lambda n=node: not lacking(n), lambda n=node, of=number: (self.kinds, of, lacking(n)))

    def tracebacks(self) -> list[str]:
        wrong = []
        for number, node in self._nodes.items():
            for word in ("Traceback", " ERROR "):
                log = node.kafkad.log
                if (at := log.find(word)) >= 0:
                    wrong.append(f"kafkad {number}: {log[at : at + 3000]}")
        return wrong


# -- the clients -------------------------------------------------------------------------------------------


class Client(threading.Thread):
    """`turn` is called until `end`, or until something fails."""

    def __init__(self, bootstrap: str):
        super().__init__(daemon=True)
        self.failures: list[str] = []
        self.ended = threading.Event()
        self.count = 0  # what it has achieved
        self.common = {"bootstrap.servers": bootstrap, **QUIET, "error_cb": self._trouble}

    def _trouble(self, error) -> None:
        if error.fatal():
            self.failures.append(f"{type(self).__name__}: {error}")

    def run(self) -> None:
        try:
            while not self.ended.is_set() and not self.failures:
                self.turn()
        except Exception:
            self.failures.append(traceback.format_exc())

    def turn(self) -> None:
        raise NotImplementedError

    def end(self) -> None:
        self.ended.set()
        self.join(WAIT_S)
        if self.is_alive():
            self.failures.append(f"{type(self).__name__} does not end")


class Member(Client):
    """The one member of a group: it skips nothing, and goes back to what it has committed at most."""

    def __init__(self, bootstrap: str, topic: str):
        super().__init__(bootstrap)
        self.topic = topic
        self.committed: dict[int, int] = {}
        self.next: dict[int, int] = {}
        self.consumer = Consumer(
            {
                **self.common, "group.id": "members", "enable.auto.commit": False, "check.crcs": True,
                "auto.offset.reset": "earliest", "session.timeout.ms": 30_000, "fetch.wait.max.ms": 100,
            }
        )  # fmt: skip
        self.consumer.subscribe([topic])

    def turn(self) -> None:
        for message in self.consumer.consume(500, 0.2):
            if error := message.error():
                if not error.retriable() and error.code() == KafkaError._AUTO_OFFSET_RESET:
                    self.failures.append(f"member: {error}")
                continue
            index, offset = message.partition(), message.offset()
            low, high = self.committed.get(index, 0), self.next.get(index, 0)
            if not low <= offset <= high:
                self.failures.append(f"member of {index}: has {offset}, should be from {low} to {high}")
            self.next[index] = max(high, offset + 1)
        if self.next:
            self._commit([TopicPartition(self.topic, index, at) for index, at in self.next.items()])

    def _commit(self, places: list[TopicPartition]) -> None:
        try:
            done = self.consumer.commit(offsets=places, asynchronous=False)
        except KafkaException as trouble:
            error = trouble.args[0]
            if error.code() in (KafkaError.ILLEGAL_GENERATION, KafkaError.UNKNOWN_MEMBER_ID):
                self.failures.append(f"the group has forgotten its member: {error}")
            return  # a later one comes
        for place in done:
            if place.error is None:
                self.committed[place.partition] = place.offset
                self.count += 1

    def end(self) -> None:
        super().end()
        self.consumer.close()


class Mover(Client):
    """Transactions of some records on both partitions, of which some are aborted.

    They have no offsets of a group: librdkafka 2.16 can wait in send_offsets_to_transaction for ever
    when the coordinator of the group goes, whatever its timeout: it asks nobody for the new one."""

    def __init__(self, bootstrap: str, topic: str, seed: int):
        super().__init__(bootstrap)
        self.topic, self.random = topic, random.Random(seed)
        self.number = 0
        self.committed: list[list[bytes]] = [[], []]
        self.producer = Producer(
            {
                **self.common, **CONNECTED, "transactional.id": "mover", "transaction.timeout.ms": 120_000,
                "linger.ms": 2,
            }
        )  # fmt: skip
        self.producer.init_transactions(WAIT_S)

    def turn(self) -> None:
        self.number += 1
        values: list[list[bytes]] = [[], []]
        self.producer.begin_transaction()
        for piece in range(self.random.choice((1, 4, 10))):
            index = self.random.randrange(2)
            values[index].append(b"%d:%d" % (self.number, piece))
            self.producer.produce(self.topic, values[index][-1], partition=index)
        if self.random.random() < 0.3:
            # otherwise librdkafka may end a transaction of which the coordinator has no partition yet: a JVM
            # coordinator was seen to answer INVALID_TXN_STATE, which is fatal
            self.producer.flush(WAIT_S)
            self._retried(lambda: self.producer.abort_transaction(CALL_S))
        else:
            self._retried(lambda: self.producer.commit_transaction(CALL_S))
            for index in (0, 1):
                self.committed[index] += values[index]
            self.count += 1
        self.ended.wait(0.02)

    def _retried(self, call: Callable[[], object]) -> None:
        """What librdkafka calls retriable is called again; any other error is one."""
        ends = time.monotonic() + WAIT_S
        while True:
            try:
                call()
                return
            except KafkaException as trouble:
                if not trouble.args[0].retriable() or time.monotonic() > ends:
                    raise


class CommittedReader(Client):
    """Reads what is committed of the mover's topic."""

    def __init__(self, bootstrap: str, topic: str):
        super().__init__(bootstrap)
        self.found: list[list[bytes]] = [[], []]
        self.last = [-1, -1]
        self.consumer = Consumer(
            {
                **self.common, "group.id": "unused", "enable.auto.commit": False, "check.crcs": True,
                "isolation.level": "read_committed", "auto.offset.reset": "error", "fetch.wait.max.ms": 100,
            }
        )  # fmt: skip
        self.consumer.assign([TopicPartition(topic, index, 0) for index in (0, 1)])

    def turn(self) -> None:
        for message in self.consumer.consume(500, 0.2):
            if error := message.error():
                if error.code() == KafkaError._AUTO_OFFSET_RESET:
                    self.failures.append(f"committed reader: {error}")
                continue
            index = message.partition()
            if message.offset() <= self.last[index]:
                self.failures.append(f"{index}: {message.offset()} comes after {self.last[index]}")
            self.last[index] = message.offset()
            self.found[index].append(message.value())
            self.count += 1

    def end(self) -> None:
        super().end()
        self.consumer.close()


class Keeper(Client):
    """Writes values of a few keys into a compacted topic: the last of each key stays."""

    KEYS = 20

    def __init__(self, bootstrap: str, topic: str, seed: int):
        super().__init__(bootstrap)
        self.topic, self.random = topic, random.Random(seed)
        self.last: dict[bytes, bytes] = {}
        self.producer = Producer(
            {**self.common, "enable.idempotence": True, "acks": "all", "message.timeout.ms": 240_000}
        )

    def _told(self, error, message) -> None:
        if error is not None:
            self.failures.append(f"keeper: {error}")
        self.count += 1

    def turn(self) -> None:
        for _ in range(20 if self.count else 1):  # the first one alone (cluster_checker.Writer)
            key = b"%d" % self.random.randrange(self.KEYS)
            self.last[key] = b"%d:" % self.count + self.random.randbytes(200)
            self.producer.produce(self.topic, self.last[key], key, 0, on_delivery=self._told)
        self.producer.poll(0)
        if not self.count:
            self.producer.flush(WAIT_S)
        self.ended.wait(0.1)

    def end(self) -> None:
        super().end()
        if left := self.producer.flush(WAIT_S):
            self.failures.append(f"keeper: {left} records are never answered")

    def stored(self, bootstrap: str) -> dict[bytes, bytes]:
        """By key, as somebody reads it who begins now."""
        return dict(everything(bootstrap, self.topic, 0))


def everything(bootstrap: str, topic: str, index: int) -> list[tuple[bytes, bytes]]:
    """Keys and values of a partition, as it is now."""
    config = {"bootstrap.servers": bootstrap, "group.id": "unused", "enable.auto.commit": False, **QUIET}
    consumer = Consumer({**config, "enable.partition.eof": True, "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(topic, index, 0)])
    found, ends = [], time.monotonic() + WAIT_S
    try:
        while time.monotonic() < ends:
            message = consumer.poll(1)
            if message is None:
                continue
            if not message.error():
                found.append((message.key(), message.value()))
            elif message.error().code() == KafkaError._PARTITION_EOF:
                return found
    finally:
        consumer.close()
    raise AssertionError(f"{topic}-{index} has no end")


# -- what the metadata keeps -------------------------------------------------------------------------------


def ask(node: Node, request):
    async def asked():
        channel = await Channel.connect("127.0.0.1", node.port, "checker", timeout_s=5)
        try:
            return await channel.ask(request, timeout_s=10)
        finally:
            channel.close()

    return asyncio.run(asked())


class Crowd(Story):
    """All clients, and what is promised to them. `check_at_a_stop` after each handover, `check` at last."""

    topic = "orders"

    def __init__(self, cluster: HandoverCluster, seed: int = 1):
        self.cluster, self.seed = cluster, seed
        self.steps = 0

    def __enter__(self) -> Crowd:
        bootstrap = self.cluster.bootstrap
        self.admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
        self._make()
        self.cluster.all_whole()
        self.writers = [
            cluster_checker.Writer(bootstrap, self.topic, n, self.seed, alone=True) for n in range(2)
        ]
        self.readers = [
            cluster_checker.Reader(bootstrap, self.topic, self.seed, goes_back=back) for back in (False, True)
        ]
        self.member = Member(bootstrap, self.topic)
        self.mover = Mover(bootstrap, "ledger", self.seed)
        self.auditor = CommittedReader(bootstrap, "ledger")
        self.keeper = Keeper(bootstrap, "prices", self.seed)
        self.clients = [
            *self.readers, *self.writers, self.member, self.mover, self.auditor, self.keeper
        ]  # fmt: skip
        for client in self.clients:
            client.start()
        return self

    def __exit__(self, *exception: object) -> None:
        for client in self.clients:
            client.ended.set()

    def _make(self) -> None:
        compacted = {
            "cleanup.policy": "compact", "segment.ms": "2000", "min.cleanable.dirty.ratio": "0.01",
        }  # fmt: skip
        cluster_checker.create(
            self.admin,
            NewTopic(self.topic, PARTITIONS, 3, config={"retention.ms": "987654321"}),
            NewTopic("prices", 1, 3, config=compacted),
            NewTopic("ledger", 2, 3),
            NewTopic("trimmed", 1, 3),
        )
        producer = Producer({"bootstrap.servers": self.cluster.bootstrap, "acks": "all", **QUIET})
        for number in range(100):
            producer.produce("trimmed", b"%d" % number)
        assert producer.flush(WAIT_S) == 0
        for done in self.admin.delete_records([TopicPartition("trimmed", 0, 40)]).values():
            done.result(WAIT_S)
        scram = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
        upsertion = UserScramCredentialUpsertion("alice", scram, b"secret", b"salt")
        for done in self.admin.alter_user_scram_credentials([upsertion]).values():
            done.result(WAIT_S)
        cls = messages.AlterClientQuotasRequest
        entity = cls.Entries.Entity(entity_type="user", entity_name="alice")
        op = cls.Entries.Ops(key="producer_byte_rate", value=54321.0)
        answer = ask(self.cluster.nodes[1], cls(entries=[cls.Entries(entity=[entity], ops=[op])]))
        assert [entry.error_code for entry in answer.entries] == [0], answer

    def failures(self) -> list[str]:
        return [failure for client in self.clients for failure in client.failures]

    def check_at_a_stop(self) -> None:
        """All replicas come into the ISR, all clients get on, and all brokers know what they were told."""
        self.steps += 1
        self.cluster.all_whole()
        self._progress()
        others = (self.member, self.mover, self.auditor, self.keeper)
        before = [client.count for client in others]
        until(
            lambda: self.failures() or all(c.count > n + 2 for c, n in zip(others, before, strict=True)),
            lambda: (self.cluster.kinds, before, [client.count for client in others]),
        )
        name = f"step-{self.steps}"
        cluster_checker.create(self.admin, NewTopic(name, 1, 3))
        self._offsets_are_kept()
        for node in self.cluster.nodes.values():
            self._knows(node, name)
        wrong = self.failures() + self.cluster.tracebacks()
        assert not wrong, self.cluster.kinds + "\n" + "\n".join(wrong[:20])

    def _offsets_are_kept(self) -> None:
        told = dict(self.member.committed)
        consumer = Consumer({"bootstrap.servers": self.cluster.bootstrap, "group.id": "members", **QUIET})
        try:
            wanted = [TopicPartition(self.topic, index) for index in range(PARTITIONS)]
            places = retried(lambda: consumer.committed(wanted, WAIT_S))
            assert all(place.offset >= told.get(place.partition, -1001) for place in places), (told, places)
            ends = retried(lambda: consumer.get_watermark_offsets(TopicPartition("trimmed", 0), WAIT_S))
            assert ends == (40, 100)
        finally:
            consumer.close()

    def _knows(self, node: Node, newest: str) -> None:
        """What this broker tells of its own metadata."""
        admin = AdminClient({"bootstrap.servers": node.bootstrap, **QUIET})
        until(lambda: newest in admin.list_topics(timeout=10).topics, lambda: (node.number, newest))
        cls = messages.DescribeConfigsRequest
        rows = cls.Resources(resource_type=2, resource_name=self.topic, configuration_keys=None)
        told = ask(node, cls(resources=[rows])).results[0]
        values = {each.name: each.value for each in told.configs}
        assert values["retention.ms"] == "987654321", (node.number, node.kind)
        cls = messages.DescribeClientQuotasRequest
        found = ask(node, cls(components=[cls.Components(entity_type="user", match_type=0, match="alice")]))
        (entry,) = found.entries
        assert [(each.key, each.value) for each in entry.values] == [("producer_byte_rate", 54321.0)]
        (credential,) = (
            admin.describe_user_scram_credentials(["alice"])["alice"].result(WAIT_S).scram_credential_infos
        )
        assert (credential.mechanism, credential.iterations) == (ScramMechanism.SCRAM_SHA_256, 4096)

    def check(self) -> int:
        """Ends the clients, and says how many records were acknowledged."""
        for client in (self.mover, self.keeper, self.member):
            client.end()
        count = self._check()
        until(
            lambda: self.auditor.failures or self.auditor.found == self.mover.committed,
            lambda: (
                [len(each) for each in self.auditor.found],
                [len(each) for each in self.mover.committed],
            ),
        )
        self.auditor.end()
        assert not self.failures(), "\n".join(self.failures())
        fresh = CommittedReader(self.cluster.bootstrap, "ledger")
        fresh.start()
        until(lambda: fresh.found == self.mover.committed, lambda: "somebody new reads something else")
        fresh.end()
        assert self.keeper.stored(self.cluster.bootstrap) == self.keeper.last
        for topic, index in (("ledger", 0), ("ledger", 1), ("trimmed", 0)):
            self._same(topic, index)
        return count + self.mover.count

    def _isolations(self) -> int:
        return 0

    def _renewed(self, index: int) -> set[int]:
        return cluster_checker.renewals(self.cluster.nodes[1].data_dir / f"{self.topic}-{index}")

    def _same(self, topic: str, index: int) -> None:
        paths = [node.data_dir / f"{topic}-{index}" for node in self.cluster.nodes.values()]

        def same() -> bool:
            first, *others = map(cluster_checker.batches, paths)
            return bool(first) and all(each == first for each in others)

        until(same, lambda: [cluster_checker.batches(path)[-3:] for path in paths], 30)


def retried(ask: Callable[[], Any]) -> Any:
    """The first answer. librdkafka gives up such a question at NOT_LEADER_OR_FOLLOWER and the like, which
    come while leaders move."""
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            return ask()
        except KafkaException:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def dumped(nodes) -> str:
    """The metadata logs of these nodes as Kafka's own kafka-dump-log reads them."""
    files = [
        str(segment)
        for node in nodes
        for segment in sorted((node.data_dir / "__cluster_metadata-0").glob("*.log"))
    ]
    return run_tool(NEWEST, "kafka-dump-log", "--cluster-metadata-decoder", "--files", ",".join(files)).stdout

"""Three nodes, each broker and controller, kafkad or JVM Kafka, with SASL_SSL between all of them.

Brokers log in to each other by SCRAM, whose users are made when the nodes are formatted, and to controllers
by PLAIN with a certificate besides. StandardAuthorizer decides who may do what; the nodes are super users.

Use: tests/integration/test_cluster_secured.py."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from confluent_kafka.admin import AdminClient

from tests.certificates import PASSWORD, make_stores
from tests.clients import wait_until
from tests.controller_process import ROOT
from tests.handover_cluster import KAFKAD, Node
from tests.jvm import TEST_CONFIG, free_port, random_uuid

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required"
USERS = {"admin": "admin-secret", "writer": "writer-secret", "reader": "reader-secret"}
NODE = "node-secret"
WAIT_S = 90  # JVMs may have to share two cores with other tests


class SecuredCluster:
    """`with SecuredCluster(path, kinds)`; `kinds` says what each node is, `more` has keys by its number."""

    def __init__(
        self,
        path: Path,
        kinds: Sequence[str],
        more: Mapping[int, Mapping[str, object]] | None = None,
        *,
        workers: int = 1,
    ):
        self.path = path
        (path / "stores").mkdir(parents=True)
        self.stores = make_stores(path / "stores")
        self.cluster_id = random_uuid()
        self.kinds = dict(enumerate(kinds, 1))
        self.nodes = {number: Node(path, number, free_port(), free_port()) for number in self.kinds}
        for each in self.nodes.values():
            each.kafkad.workers = workers
        self.bootstrap = ",".join(node.bootstrap for node in self.nodes.values())
        voters = ",".join(f"{number}@127.0.0.1:{node.controller_port}" for number, node in self.nodes.items())
        self.voters = {"controller.quorum.voters": voters}
        for number in self.nodes:
            self.write(number, {**self.voters, **(more or {}).get(number, {})})
        formatting = [self.format(node) for node in self.nodes.values()]
        assert [each.wait(WAIT_S) for each in formatting] == [0] * len(formatting)

    def keys(self, number: int) -> dict[str, object]:
        node = self.nodes[number]
        users = " ".join(f'user_{user}="{password}"' for user, password in USERS.items())
        return {
            "process.roles": "broker,controller",
            "node.id": number,
            "listeners": f"NODES://{node.bootstrap},CONTROLLER://127.0.0.1:{node.controller_port}",
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "NODES",
            "listener.security.protocol.map": "CONTROLLER:SASL_SSL,NODES:SASL_SSL",
            "log.dirs": node.data_dir,
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
            "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512",
            "sasl.mechanism.controller.protocol": "PLAIN",
            "listener.name.controller.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.nodes.plain.sasl.jaas.config": f"{PLAIN} {users};",
            "listener.name.nodes.scram-sha-512.sasl.jaas.config":
                f'{SCRAM} username="node" password="{NODE}";',
            "listener.name.controller.plain.sasl.jaas.config":
                f'{PLAIN} username="node" password="{NODE}" user_node="{NODE}" user_admin="admin-secret"'
                ' user_reader="reader-secret";',
            "ssl.keystore.location": self.stores / "server.p12",
            "ssl.keystore.type": "PKCS12",
            "ssl.keystore.password": PASSWORD,
            "ssl.key.password": PASSWORD,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self.stores / "ca.pem",
            "listener.name.controller.ssl.client.auth": "required",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:node;User:admin",
            "auto.create.topics.enable": "false",
            "broker.session.timeout.ms": 4000,
            "broker.heartbeat.interval.ms": 500,
            "min.insync.replicas": 2,
            **TEST_CONFIG,
            "offsets.topic.replication.factor": 3,
        }  # fmt: skip

    def write(self, number: int, more: Mapping[str, object]) -> None:
        keys = {**self.keys(number), **more}
        text = "".join(f"{key}={value}\n" for key, value in keys.items())
        self.nodes[number].properties.write_text(text)

    def format(self, node: Node) -> subprocess.Popen[bytes]:
        user = f"SCRAM-SHA-512=[name=node,iterations=4096,password={NODE}]"
        command = ["format", "-t", self.cluster_id, "-c", str(node.properties), "--add-scram", user]
        return subprocess.Popen(
            [sys.executable, "-m", "kafkad", *command], cwd=ROOT, stdout=subprocess.DEVNULL
        )

    def client(self, user: str, **more: object) -> dict[str, object]:
        return {
            "bootstrap.servers": self.bootstrap, "security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN",
            "sasl.username": user, "sasl.password": USERS[user],
            "ssl.ca.location": str(self.stores / "ca.pem"), "log_level": 0, **more,
        }  # fmt: skip

    def java(self, user: str) -> Path:
        """The same as a file for Kafka's tools."""
        file = self.path / f"{user}.properties"
        file.write_text(
            "security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\n"
            f'sasl.jaas.config={PLAIN} username="{user}" password="{USERS[user]}";\n'
            f"ssl.truststore.type=PEM\nssl.truststore.location={self.stores}/ca.pem\n"
            f"ssl.keystore.type=PKCS12\nssl.keystore.location={self.stores}/client.p12\n"
            f"ssl.keystore.password={PASSWORD}\nssl.key.password={PASSWORD}\n"
        )
        return file

    def __enter__(self) -> SecuredCluster:
        try:
            self.start(*self.nodes)
        except BaseException:
            self.__exit__()
            raise
        self.admin = AdminClient(self.client("admin"))
        return self

    def start(self, *numbers: int) -> None:
        for number in numbers:
            node = self.nodes[number]
            node.kind = self.kinds[number]
            node.running.launch()
        for number in numbers:
            self.nodes[number].running.until_ready(WAIT_S)

    def __exit__(self, *exception: object) -> None:
        for node in self.nodes.values():
            node.kill()

    def leader(self, topic: str) -> int:
        return self.admin.list_topics(topic, timeout=30).topics[topic].partitions[0].leader

    def whole(self, topic: str, count: int = 3) -> None:
        """Until each replica is in the ISR."""

        def isrs() -> list[int]:
            found = self.admin.list_topics(topic, timeout=30).topics[topic].partitions.values()
            return [len(partition.isrs) for partition in found]

        wait_until(lambda: set(isrs()) == {count}, WAIT_S)

    def logs(self) -> str:
        return "\n".join(f"-- {number}\n{node.log[-3000:]}" for number, node in self.nodes.items())


__all__ = ("KAFKAD", "SecuredCluster")

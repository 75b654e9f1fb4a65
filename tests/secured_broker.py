"""A broker, kafkad or JVM Kafka, whose clients log in by SCRAM over TLS or by a certificate, and need rights.

The same configuration starts both. The admin, a super user, makes the users and ACLs that a test needs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from kafkad.testing import Broker
from tests.certificates import make_stores
from tests.jvm import TEST_CONFIG, JvmKafka, free_port

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required"
CERTIFIED = "User:CN=client,OU=ops,O=Gadgets\\, Ltd,C=DE"  # of tests/certificates.py's client
READ, WRITE = AclOperation.READ, AclOperation.WRITE
WAIT_S = 60


class SecuredBroker:
    """A broker of one kind: kafkad, kafkad-2 (with two workers), or jvm. It has a listener for logins over
    TLS and one for certificates."""

    def __init__(self, kind: str, here: Path) -> None:
        here.mkdir(parents=True)
        self.stores = make_stores(here)
        self.sasl, self.tls, self.plain = (f"127.0.0.1:{free_port()}" for _ in range(3))
        listeners = f"SASL_SSL://{self.sasl},SSL://{self.tls},PLAINTEXT://{self.plain}"
        protocols = "SASL_SSL:SASL_SSL,SSL:SSL,PLAINTEXT:PLAINTEXT"
        config: dict[str, object] = {
            **TEST_CONFIG,
            "inter.broker.listener.name": "PLAINTEXT",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
            "listener.name.sasl_ssl.plain.sasl.jaas.config": f'{PLAIN} user_admin="admin-secret";',
            "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": f"{SCRAM};",
            "listener.name.ssl.ssl.client.auth": "required",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": self.stores / "server.pem",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self.stores / "ca.pem",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:admin;User:ANONYMOUS",
        }
        self.broker: Any
        if kind == "jvm":
            self.broker = JvmKafka(here / "data", config=config)
            controller = self.broker.config["listeners"].partition(",")[2]
            self.broker.config["listeners"] = f"{listeners},{controller}"
            self.broker.config["advertised.listeners"] = f"{listeners},{controller}"
            self.broker.config["listener.security.protocol.map"] = f"{protocols},CONTROLLER:PLAINTEXT"
            lines = (f"{key}={value}\n" for key, value in self.broker.config.items())
            self.broker.properties.write_text("".join(lines).replace("\\", "\\\\"))
        else:
            file = here / "server.properties"
            config |= {"node.id": 1, "process.roles": "broker,controller", "listeners": listeners}
            file.write_text("".join(f"{key}={value}\n" for key, value in config.items()))
            self.broker = Broker(2 if kind == "kafkad-2" else None, properties=file, data_dir=here / "data")

    def __enter__(self) -> SecuredBroker:
        self.broker.start()
        self.own = {
            "bootstrap.servers": self.sasl, "security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN",
            "sasl.username": "admin", "sasl.password": "admin-secret",
            "ssl.ca.location": str(self.stores / "ca.pem"), "log_level": 0,
        }  # fmt: skip
        self.admin = AdminClient(self.own)
        return self

    def __exit__(self, *exception: object) -> None:
        if isinstance(self.broker, Broker):
            self.broker.close()
        else:
            self.broker.kill()

    def topic(self, name: str, partitions: int = 1) -> str:
        self.admin.create_topics([NewTopic(name, partitions, 1)])[name].result(WAIT_S)
        return name

    def add_user(self, name: str, password: str) -> None:
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        wanted = [UserScramCredentialUpsertion(name, info, password.encode())]
        self.admin.alter_user_scram_credentials(wanted)[name].result(WAIT_S)

    def allow(
        self, principal: str, operation: AclOperation, name: str, kind: ResourceType = ResourceType.TOPIC
    ) -> None:
        binding = AclBinding(
            kind, name, ResourcePatternType.LITERAL, principal, "*", operation, AclPermissionType.ALLOW
        )
        self.admin.create_acls([binding])[binding].result(WAIT_S)

    def take(self, principal: str, topic: str) -> None:
        """Remove what was allowed."""
        wanted = AclBindingFilter(
            ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, principal, None, AclOperation.ANY,
            AclPermissionType.ANY,
        )  # fmt: skip
        self.admin.delete_acls([wanted])[wanted].result(WAIT_S)

    def produce(self, topic: str, records: list[Any]) -> None:
        client = Producer({**self.own, "linger.ms": 5})
        for record in records:
            client.produce(topic, record.value, record.key, record.partition, timestamp=record.timestamp_ms)
        assert client.flush(WAIT_S) == 0

    def login(self, user: str, password: str) -> dict[str, str]:
        """Return the options of a Java client that logs in by SCRAM over TLS."""
        return {
            "bootstrap.servers": self.sasl,
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.jaas.config": f'{SCRAM} username="{user}" password="{password}";',
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.stores / "ca.pem"),
        }

    def certificate(self, name: str) -> dict[str, str]:
        """Return the options of a Java client with this certificate of tests/certificates.py."""
        return {
            "bootstrap.servers": self.tls,
            "security.protocol": "SSL",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.stores / "ca.pem"),
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.stores / f"{name}.pem"),
        }

"""A broker of several workers with an authorizer: requests of its workers to each other need no right."""

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from kafkad.testing import Broker
from tests.clients import WAIT_S, read

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
CONFIG = {
    "node.id": "1",
    "process.roles": "broker,controller",
    "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
    "security.inter.broker.protocol": "SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config":
        f'{PLAIN} username="admin" password="admin-secret"'
        ' user_admin="admin-secret" user_anna="anna-secret";',
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:admin",
    "transaction.state.log.num.partitions": "4",
    "offsets.topic.num.partitions": "4",
}  # fmt: skip


@pytest.fixture
def broker(tmp_path):
    file = tmp_path / "server.properties"
    config = {**CONFIG, "log.dirs": str(tmp_path / "data")}
    file.write_text("".join(f"{key}={value}\n" for key, value in config.items()))
    with Broker(properties=file, workers=2) as broker:
        yield broker


def options(broker, user, **more):
    return {
        "bootstrap.servers": broker.bootstrap, "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN", "sasl.username": user, "sasl.password": f"{user}-secret", **more,
    }  # fmt: skip


def test_a_transaction_ends_whichever_workers_have_its_partitions(broker):
    admin = AdminClient(options(broker, "admin"))
    admin.create_topics([NewTopic("t", 8, 1)])["t"].result(WAIT_S)
    rights = [
        AclBinding(
            kind, name, ResourcePatternType.LITERAL, "User:anna", "*", operation, AclPermissionType.ALLOW
        )
        for operation, kind, name in (
            (AclOperation.WRITE, ResourceType.TOPIC, "t"),
            (AclOperation.READ, ResourceType.TOPIC, "t"),
            (AclOperation.READ, ResourceType.GROUP, "g"),
            (AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID, "x"),
        )
    ]
    for made in admin.create_acls(rights).values():
        made.result(WAIT_S)

    producer = Producer(options(broker, "anna", **{"transactional.id": "x"}))
    producer.init_transactions(WAIT_S)
    for commits in (True, False, True):
        producer.begin_transaction()
        for partition in range(8):
            producer.produce("t", b"%d %d" % (commits, partition), partition=partition)
        (producer.commit_transaction if commits else producer.abort_transaction)(WAIT_S)

    own = {"group.id": "g", "auto.offset.reset": "earliest", "isolation.level": "read_committed"}
    consumer = Consumer(options(broker, "anna", **own))
    try:
        consumer.subscribe(["t"])
        values = [message.value() for message in read(consumer, 16)]
    finally:
        consumer.close()
    assert sorted(values) == sorted([b"1 %d" % partition for partition in range(8)] * 2)

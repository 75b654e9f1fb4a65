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

from kafkad.protocol import errors, messages
from kafkad.testing import Broker
from tests.clients import WAIT_S, read, wait_until
from tests.wire import Wire, batch, produce

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


class Login(Wire):
    def __init__(self, broker, user):
        super().__init__(broker.bootstrap)
        assert self.ask(messages.SaslHandshakeRequest(mechanism="PLAIN"), 1).error_code == 0
        login = messages.SaslAuthenticateRequest(auth_bytes=f"\0{user}\0{user}-secret".encode())
        assert self.ask(login, 2).error_code == 0


def test_what_is_refused_is_what_was_asked_for(broker):
    """Workers answer what they refuse last, which must not be mixed up when answers are merged."""
    admin = AdminClient(options(broker, "admin"))
    for made in admin.create_topics([NewTopic(name, 8, 1) for name in ("mine", "theirs")]).values():
        made.result(WAIT_S)
    literal, allow = ResourcePatternType.LITERAL, AclPermissionType.ALLOW
    for operation, kind, name in (
        (AclOperation.READ, ResourceType.TOPIC, "mine"),
        (AclOperation.DELETE, ResourceType.GROUP, "g1"),
        (AclOperation.DELETE, ResourceType.GROUP, "g2"),
    ):
        acl = AclBinding(kind, name, literal, "User:anna", "*", operation, allow)
        admin.create_acls([acl])[acl].result(WAIT_S)
    with Login(broker, "admin") as wire:
        for number in range(8):
            assert produce(wire, "mine", batch(b"x"), number, 9).error_code == 0

    with Login(broker, "anna") as wire:
        topic = messages.OffsetForLeaderEpochRequest.Topics
        numbers = [topic.Partitions(partition=number, leader_epoch=0) for number in range(8)]
        asked = [topic(topic="theirs", partitions=numbers[:6]), topic(topic="mine", partitions=numbers)]
        request = messages.OffsetForLeaderEpochRequest(replica_id=-1, topics=asked)
        theirs, mine = wire.ask(request, 3).topics
        refused, denied = errors.TOPIC_AUTHORIZATION_FAILED, errors.GROUP_AUTHORIZATION_FAILED
        assert (theirs.topic, [each.error_code for each in theirs.partitions]) == ("theirs", [refused] * 6)
        assert (mine.topic, [each.end_offset for each in mine.partitions]) == ("mine", [1] * 8)

        topic = messages.DescribeProducersRequest.Topics
        asked = [topic(name=name, partition_indexes=[*range(8)]) for name in ("theirs", "mine")]
        theirs, mine = wire.ask(messages.DescribeProducersRequest(topics=asked), 0).topics
        assert [each.error_code for each in theirs.partitions] == [refused] * 8
        assert [each.error_code for each in mine.partitions] == [errors.NONE] * 8

        wait_until(lambda: not wire.ask(messages.FindCoordinatorRequest(key="g1"), 2).error_code, WAIT_S)
        groups = [f"no{number}" for number in range(8)] + ["g1", "no1", "g2"]
        answers = wire.ask(messages.DescribeGroupsRequest(groups=groups), 5).groups
        assert sorted(each.group_id for each in answers) == sorted(groups)
        told = wire.ask(messages.DeleteGroupsRequest(groups_names=groups), 2).results
        codes = {each.group_id: each.error_code for each in told}
        assert codes.pop("g1") == codes.pop("g2") != denied and set(codes.values()) == {denied}
        assert len(told) == 10

        transaction = messages.AddPartitionsToTxnRequest.Transactions
        some = [transaction(transactional_id=f"x{number}", topics=[]) for number in range(8)]
        refusal = wire.ask(messages.AddPartitionsToTxnRequest(transactions=some), 4)
        assert refusal.error_code == errors.CLUSTER_AUTHORIZATION_FAILED

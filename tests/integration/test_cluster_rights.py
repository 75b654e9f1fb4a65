"""Brokers whose user is not a super user: what they do for their clients is up to the clients' rights."""

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from tests.handover_cluster import KAFKAD
from tests.secured_cluster import NODE, PLAIN, USERS, WAIT_S, SecuredCluster

BROKER = 'username="broker" password="broker-secret"'
CONTROLLER, SUPER, PLAIN_BROKER = 1, 2, 3
JAAS = "listener.name.controller.plain.sasl.jaas.config"


class ClusterOfFewRights(SecuredCluster):
    """A controller; a broker that logs in as a super user; a broker that does not."""

    def __init__(self, path, **more):
        super().__init__(path, (KAFKAD,) * 3, **more)
        self.nodes[CONTROLLER].kafkad.workers = 1
        self.bootstrap = ",".join(self.nodes[number].bootstrap for number in (SUPER, PLAIN_BROKER))

    def write(self, number, more):
        one_voter = f"{CONTROLLER}@127.0.0.1:{self.nodes[CONTROLLER].controller_port}"
        super().write(number, {**more, "controller.quorum.voters": one_voter})

    def keys(self, number):
        keys = super().keys(number)
        node = self.nodes[number]
        if number == CONTROLLER:
            between = ("inter.broker", "sasl.mechanism.inter", "listener.name.nodes")
            keys = {key: value for key, value in keys.items() if not key.startswith(between)}
            return keys | {
                "process.roles": "controller",
                "listeners": f"CONTROLLER://127.0.0.1:{node.controller_port}",
                JAAS: f'{PLAIN} username="node" password="{NODE}" user_node="{NODE}"'
                ' user_broker="broker-secret";',
            }
        own = BROKER if number == PLAIN_BROKER else f'username="node" password="{NODE}"'
        users = " ".join(f'user_{user}="{password}"' for user, password in USERS.items())
        others = f'user_node="{NODE}" user_broker="broker-secret"'
        return keys | {
            "process.roles": "broker",
            "listeners": f"NODES://{node.bootstrap}",
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            "listener.name.nodes.plain.sasl.jaas.config": f"{PLAIN} {own} {others} {users};",
            JAAS: f"{PLAIN} {own};",
            "auto.create.topics.enable": "true",
            "default.replication.factor": 2,
            "offsets.topic.replication.factor": 2,
            "num.partitions": 2,
        }

    def allow(self, user, operation, kind, name, pattern=ResourcePatternType.LITERAL):
        allow = AclPermissionType.ALLOW
        acl = AclBinding(kind, name, pattern, f"User:{user}", "*", operation, allow)
        self.admin.create_acls([acl])[acl].result(WAIT_S)

    def __enter__(self):
        """The broker without rights is let in by an ACL."""
        try:
            self.start(CONTROLLER, SUPER)
            self.admin = AdminClient(self.client("admin"))
            self.allow("broker", AclOperation.CLUSTER_ACTION, ResourceType.BROKER, "kafka-cluster")
            self.start(PLAIN_BROKER)
        except BaseException:
            self.__exit__()
            raise
        return self


@pytest.mark.parametrize("workers", [1, 2])
def test_a_topic_is_made_for_whoever_may_write_to_it(tmp_path, workers):
    with ClusterOfFewRights(tmp_path / "cluster", workers=workers) as cluster:
        for operation in (AclOperation.WRITE, AclOperation.CREATE):
            cluster.allow("writer", operation, ResourceType.TOPIC, "w-", ResourcePatternType.PREFIXED)
        only = cluster.nodes[PLAIN_BROKER].bootstrap
        for number in range(4):  # with two workers, each is asked
            told = []
            producer = Producer(cluster.client("writer", **{"bootstrap.servers": only}))
            producer.produce(f"w-{number}", b"x", on_delivery=lambda error, _, told=told: told.append(error))
            assert producer.flush(WAIT_S) == 0
            assert told == [None], cluster.logs()

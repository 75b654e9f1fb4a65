"""A secured configuration, unchanged, in JVM Kafka 4.3.1 and then in kafkad, over the same directory.

It has SASL_SSL, users that kafka-storage and kafka-configs made, ACLs that kafka-acls made, and delegation
tokens. One table of what each user tries with librdkafka, and with a token, has the same outcome on both.
"""

import base64
import contextlib
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from kafkad.client.connection import Connection
from kafkad.client.security import AuthenticationFailed, Security
from kafkad.protocol import messages
from kafkad.protocol.errors import NAMES
from kafkad.testing import Broker
from tests.certificates import PASSWORD, make_stores
from tests.clients import WAIT_S, wait_until
from tests.jvm import VERSIONS, JvmKafka, free_port, random_uuid, run_tool

pytestmark = pytest.mark.java

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required"
USERS = {
    "admin": ("PLAIN", "admin-secret"),
    "writer": ("SCRAM-SHA-512", "writer-secret"),
    "reader": ("SCRAM-SHA-256", "reader-secret"),
    "stranger": ("SCRAM-SHA-512", "stranger-secret"),
}


class World:
    """The file, the directory, and who serves them."""

    def __init__(self, here: Path) -> None:
        self.stores = make_stores(here)
        self.here, self.port = here, free_port()
        self.bootstrap = f"127.0.0.1:{self.port}"
        self.kafka = JvmKafka(here / "data")
        controller = self.kafka.config["listeners"].split("CONTROLLER://")[1]
        jaas = f'{PLAIN} username="admin" password="admin-secret" user_admin="admin-secret";'
        self.kafka.config |= {
            "listeners": f"SASL_SSL://{self.bootstrap},CONTROLLER://{controller}",
            "advertised.listeners": f"SASL_SSL://{self.bootstrap},CONTROLLER://{controller}",
            "listener.security.protocol.map": "CONTROLLER:SASL_SSL,SASL_SSL:SASL_SSL",
            "sasl.mechanism.controller.protocol": "PLAIN",
            "listener.name.controller.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.controller.plain.sasl.jaas.config": jaas,
            "security.inter.broker.protocol": "SASL_SSL",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            "listener.name.sasl_ssl.plain.sasl.jaas.config": jaas,
            "listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config": f"{SCRAM};",
            "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": f"{SCRAM};",
            "ssl.keystore.location": str(self.stores / "server.p12"),
            "ssl.keystore.type": "PKCS12",
            "ssl.keystore.password": PASSWORD,
            "ssl.key.password": PASSWORD,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.stores / "ca.pem"),
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:admin",
            "auto.create.topics.enable": "false",
            "delegation.token.secret.key": "token-secret",
        }
        text = "".join(f"{key}={value}\n" for key, value in self.kafka.config.items())
        self.kafka.properties.write_text(text)

    # -- what clients are told

    def librdkafka(self, user: str, **more: object) -> dict[str, object]:
        mechanism, password = USERS[user]
        return {
            "bootstrap.servers": self.bootstrap, "security.protocol": "SASL_SSL", "sasl.mechanism": mechanism,
            "sasl.username": user, "sasl.password": password, "ssl.ca.location": str(self.stores / "ca.pem"),
            **more,
        }  # fmt: skip

    def java(self, user: str) -> dict[str, str]:
        mechanism, password = USERS[user]
        module = PLAIN if mechanism == "PLAIN" else SCRAM
        return {
            "security.protocol": "SASL_SSL", "sasl.mechanism": mechanism,
            "sasl.jaas.config": f'{module} username="{user}" password="{password}";',
            "ssl.truststore.type": "PEM", "ssl.truststore.location": str(self.stores / "ca.pem"),
        }  # fmt: skip

    def holder(self, token: tuple[str, str]) -> dict[str, str]:
        """The login with a delegation token: its id and its HMAC."""
        login = f'{SCRAM} username="{token[0]}" password="{token[1]}" tokenauth="true";'
        return {**self.java("writer"), "sasl.mechanism": "SCRAM-SHA-256", "sasl.jaas.config": login}

    def connect(self, options: dict[str, str]) -> Connection:
        return Connection("127.0.0.1", self.port, "test", security=Security.of(options))

    def file(self, user: str) -> Path:
        path = self.here / f"{user}.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in self.java(user).items()))
        return path

    # -- preparations

    def format(self) -> None:
        run_tool(
            "4.3.1", "kafka-storage", "format", "-t", random_uuid(), "-c", self.kafka.properties,
            "--add-scram", "SCRAM-SHA-512=[name=writer,iterations=4096,password=writer-secret]",
            "--add-scram", "SCRAM-SHA-512=[name=stranger,iterations=4096,password=stranger-secret]",
        )  # fmt: skip

    def prepare(self) -> None:
        admin = ("--bootstrap-server", self.bootstrap, "--command-config", self.file("admin"))
        run_tool(
            "4.3.1", "kafka-configs", *admin, "--alter", "--entity-type", "users", "--entity-name", "reader",
            "--add-config", "SCRAM-SHA-256=[iterations=8192,password=reader-secret]",
        )  # fmt: skip
        create(self, "admin", "in-a", "in-b", "secret")
        prefixed = ("--resource-pattern-type", "prefixed")
        for rights in (
            ("--allow-principal", "User:writer", "--producer", "--topic", "in-", "--transactional-id", "tx",
             *prefixed),
            ("--allow-principal", "User:writer", "--operation", "Create", "--topic", "in-", *prefixed),
            ("--allow-principal", "User:reader", "--consumer", "--topic", "in-", "--group", "g-", *prefixed),
            ("--deny-principal", "User:reader", "--operation", "Read", "--topic", "in-b"),
        ):  # fmt: skip
            run_tool("4.3.1", "kafka-acls", *admin, "--add", *rights)


# -- what a user tries; the outcome is "ok" or the name of an error ----------------------------------------


def named(error: object) -> str:
    return error.name() if isinstance(error, KafkaError) else type(error).__name__


def create(world: World, user: str, *topics: str) -> str:
    admin = AdminClient(world.librdkafka(user))
    asked = [NewTopic(topic, num_partitions=1, replication_factor=1) for topic in topics]
    try:
        for done in admin.create_topics(asked, request_timeout=30).values():
            done.result()
    except KafkaException as refused:
        return named(refused.args[0])
    return "ok"


def delete(world: World, user: str, topic: str) -> str:
    admin = AdminClient(world.librdkafka(user))
    try:
        admin.delete_topics([topic], request_timeout=30)[topic].result()
    except KafkaException as refused:
        return named(refused.args[0])
    return "ok"


def write(world: World, user: str, topic: str, **more: object) -> str:
    told: list[object] = []
    producer = Producer(world.librdkafka(user, **{"message.timeout.ms": 30_000, **more}))
    producer.produce(topic, b"x", on_delivery=lambda error, _: told.append(error))
    producer.flush(WAIT_S)
    return named(told[0]) if told[0] is not None else "ok"


def read(world: World, user: str, topic: str, group: str) -> str:
    consumer = Consumer(
        world.librdkafka(
            user, **{"group.id": group, "auto.offset.reset": "earliest", "session.timeout.ms": 6000}
        )
    )
    try:
        consumer.subscribe([topic])
        message = consumer.poll(WAIT_S)
        return named(message.error()) if message.error() else "ok"
    finally:
        consumer.close()


def transact(world: World, user: str, topic: str, name: str) -> str:
    producer = Producer(world.librdkafka(user, **{"transactional.id": name}))
    try:
        producer.init_transactions(30)
        producer.begin_transaction()
        producer.produce(topic, b"t")
        producer.commit_transaction(30)
    except KafkaException as refused:
        return named(refused.args[0])
    return "ok"


def seen(world: World, user: str) -> str:
    topics = AdminClient(world.librdkafka(user)).list_topics(timeout=30).topics
    return " ".join(sorted(topic for topic in topics if not topic.startswith("__")))


def token_of(world: World, user: str) -> tuple[str, str]:
    connection = world.connect(world.java(user))
    made = connection.ask(messages.CreateDelegationTokenRequest(max_lifetime_ms=-1))
    connection.close()
    assert made.error_code == 0
    return made.token_id, base64.b64encode(bytes(made.hmac)).decode()


def by_token(world: World, token: tuple[str, str], topic: str) -> str:
    """How a topic looks to the holder of a token."""
    connection = world.connect(world.holder(token))
    topics = [messages.MetadataRequest.Topics(name=topic)]
    asked = messages.MetadataRequest(topics=topics, allow_auto_topic_creation=False)
    found = NAMES[connection.ask(asked).topics[0].error_code]
    more = connection.ask(messages.CreateDelegationTokenRequest(max_lifetime_ms=-1)).error_code
    connection.close()
    return f"{found}, then {NAMES[more]}"


def with_token(world: World, user: str, topic: str) -> str:
    token = token_of(world, user)
    told = []

    def known() -> bool:  # Kafka answers before its broker knows the token
        with contextlib.suppress(AuthenticationFailed):
            told.append(by_token(world, token, topic))
        return bool(told)

    wait_until(known)
    return told[0]


def with_a_wrong_hmac(world: World, user: str) -> str:
    token_id, _ = token_of(world, user)
    try:
        return by_token(world, (token_id, "x" * 88), "in-a")
    except AuthenticationFailed:
        return "refused"


def refused(world: World, awaited: str | None = None, **changes: object) -> str:
    """Why a client cannot connect: the first error, or the awaited one. A failed handshake can be _TRANSPORT
    for librdkafka before it is _SSL."""
    errors: list[KafkaError] = []
    own = world.librdkafka("writer", error_cb=errors.append, **changes)
    client = AdminClient(own)
    with contextlib.suppress(KafkaException):
        client.list_topics(timeout=0.5)
    wait_until(lambda: client.poll(0.1) is not None and errors and awaited in (None, *map(named, errors)))
    return awaited or named(errors[0])


ATTEMPTS = {
    "writer writes": (lambda w: write(w, "writer", "in-a"), "ok"),
    "writer writes idempotently": (
        lambda w: write(w, "writer", "in-a", **{"enable.idempotence": True}),
        "ok",
    ),
    "writer writes what it must not": (lambda w: write(w, "writer", "secret"), "TOPIC_AUTHORIZATION_FAILED"),
    "writer in a transaction": (lambda w: transact(w, "writer", "in-a", "tx-1"), "ok"),
    "writer with a foreign transactional id": (
        lambda w: transact(w, "writer", "in-a", "other"),
        "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
    ),
    "writer reads": (lambda w: read(w, "writer", "in-a", "g-1"), "GROUP_AUTHORIZATION_FAILED"),
    "writer creates": (lambda w: create(w, "writer", f"in-{time.time_ns()}"), "ok"),
    "writer creates what it must not": (lambda w: create(w, "writer", "x"), "TOPIC_AUTHORIZATION_FAILED"),
    "writer deletes": (lambda w: delete(w, "writer", "in-b"), "TOPIC_AUTHORIZATION_FAILED"),
    "reader reads": (lambda w: read(w, "reader", "in-a", "g-2"), "ok"),
    "reader in a foreign group": (lambda w: read(w, "reader", "in-a", "x"), "GROUP_AUTHORIZATION_FAILED"),
    "reader reads what is denied": (lambda w: read(w, "reader", "in-b", "g-3"), "TOPIC_AUTHORIZATION_FAILED"),
    "reader writes": (lambda w: write(w, "reader", "in-a"), "TOPIC_AUTHORIZATION_FAILED"),
    "stranger sees": (lambda w: seen(w, "stranger"), ""),
    "stranger writes": (lambda w: write(w, "stranger", "in-a"), "TOPIC_AUTHORIZATION_FAILED"),
    "stranger writes to what is not there": (
        lambda w: write(w, "stranger", "absent"),
        "TOPIC_AUTHORIZATION_FAILED",
    ),
    "admin writes": (lambda w: write(w, "admin", "secret"), "ok"),
    "admin by a token": (
        lambda w: with_token(w, "admin", "secret"),
        "NONE, then DELEGATION_TOKEN_REQUEST_NOT_ALLOWED",
    ),
    "stranger by a token": (
        lambda w: with_token(w, "stranger", "secret"),
        "TOPIC_AUTHORIZATION_FAILED, then DELEGATION_TOKEN_REQUEST_NOT_ALLOWED",
    ),
    "a token with another HMAC": (lambda w: with_a_wrong_hmac(w, "stranger"), "refused"),
    "a wrong password": (lambda w: refused(w, **{"sasl.password": "x"}), "_AUTHENTICATION"),
    "a mechanism that the user has not": (
        lambda w: refused(w, **{"sasl.mechanism": "SCRAM-SHA-256"}),
        "_AUTHENTICATION",
    ),
    "another authority": (
        lambda w: refused(w, "_SSL", **{"ssl.ca.location": str(w.stores / "other.pem")}),
        "_SSL",
    ),
    "no TLS": (lambda w: refused(w, **{"security.protocol": "SASL_PLAINTEXT"}), "_ALL_BROKERS_DOWN"),
    "no login": (lambda w: refused(w, **{"security.protocol": "SSL"}), "_ALL_BROKERS_DOWN"),
}


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    """(world, the outcomes on JVM Kafka), which is over."""
    world = World(tmp_path_factory.mktemp("secured"))
    world.format()
    with world.kafka:
        world.prepare()
        found = {name: attempt(world) for name, (attempt, _) in ATTEMPTS.items()}
        world.token = token_of(world, "admin")
    return world, found


@pytest.fixture(scope="module")
def world(theirs):
    """Served by kafkad from here on: the same file, the same directory."""
    world, _ = theirs
    with Broker(properties=world.kafka.properties, workers=2):
        yield world


def test_jvm_kafka_has_these_outcomes(theirs):
    assert theirs[1] == {name: expected for name, (_, expected) in ATTEMPTS.items()}


def test_a_token_that_kafka_made_is_good_here(world):
    assert by_token(world, world.token, "secret").startswith("NONE")


@pytest.mark.parametrize("name", ATTEMPTS)
def test_each_attempt_ends_as_on_kafka(theirs, world, name):
    assert ATTEMPTS[name][0](world) == theirs[1][name]


@pytest.mark.timeout(400)
@pytest.mark.parametrize("version", VERSIONS)
def test_java_clients_do_what_their_users_may(world, version):
    topic = f"in-java-{version}"
    assert create(world, "writer", topic) == "ok"
    written = run_tool(
        version, "kafka-console-producer", "--bootstrap-server", world.bootstrap, "--topic", topic,
        "--producer.config", world.file("writer"), stdin="one\ntwo\n",
    )  # fmt: skip
    assert "ERROR" not in written.stderr

    def consume(user: str):
        return run_tool(
            version, "kafka-console-consumer", "--bootstrap-server", world.bootstrap, "--topic", topic,
            "--consumer.config", world.file(user), "--group", f"g-{version}", "--from-beginning",
            "--max-messages", 2, "--timeout-ms", 60_000, check=False,
        )  # fmt: skip

    assert consume("reader").lines == ["one", "two"]
    refused = consume("stranger")
    assert not refused.lines and "TopicAuthorizationException" in refused.stderr + refused.stdout

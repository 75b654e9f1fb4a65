"""SASL_PLAINTEXT with PLAIN and SCRAM: the same configuration and the same attempts on kafkad and JVM Kafka,
then real clients, sessions that end, and users that come and go."""

import asyncio
import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import Consumer, KafkaError, Producer
from kafka import KafkaConsumer, KafkaProducer

from kafkad.client.security import plain_conversation, scram_conversation
from kafkad.protocol import codec, errors, messages
from kafkad.testing import Broker
from tests.clients import WAIT_S, wait_until
from tests.jvm import JvmKafka, run_tool
from tests.wire import Wire, create_topic

pytestmark = pytest.mark.workers(2)

ALICE, SECRET = "alice", "alice-secret"
LISTENER = "listener.name.sasl_plaintext"
MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule required"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule required"
SECURED = {
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "security.inter.broker.protocol": "SASL_PLAINTEXT",
    f"{LISTENER}.plain.sasl.jaas.config": (
        f'{MODULE} username="admin" password="admin-secret"'
        f' user_admin="admin-secret" user_{ALICE}="{SECRET}";'
    ),
    f"{LISTENER}.scram-sha-256.sasl.jaas.config": f"{SCRAM_MODULE};",
    f"{LISTENER}.scram-sha-512.sasl.jaas.config": f"{SCRAM_MODULE};",
}
SCRAM = {"SCRAM-SHA-256": (1, "sha256"), "SCRAM-SHA-512": (2, "sha512")}
USERS = {("SCRAM-SHA-256", "bob"): "bob-secret", ("SCRAM-SHA-512", "carol"): "carol-secret"}
COMMON = {"group.initial.rebalance.delay.ms": "0", "offsets.topic.num.partitions": "4", "num.partitions": "1"}


def secured(directory: Path, **more: str) -> Broker:
    properties = directory / "server.properties"
    given = {
        "node.id": "1",
        "process.roles": "broker,controller",
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "log.dirs": str(directory / "data"),
        **COMMON,
        **SECURED,
        **more,
    }
    properties.write_text("".join(f"{key}={value}\n" for key, value in given.items()))
    return Broker(properties=properties)


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with secured(tmp_path_factory.mktemp("kafkad")) as broker:
        with authenticated(broker) as wire:
            assert set(altered(wire, upsertions=[upsertion(*user) for user in USERS]).values()) == {(0, None)}
            create_topic(wire, "t")
        yield broker


@pytest.fixture(scope="module")
def jvm(tmp_path_factory):
    kafka = JvmKafka(tmp_path_factory.mktemp("jvm") / "data", config=SECURED)
    for key in ("listeners", "advertised.listeners"):
        kafka.config[key] = kafka.config[key].replace("PLAINTEXT://", "SASL_PLAINTEXT://", 1)
    kafka.config["listener.security.protocol.map"] = "CONTROLLER:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT"
    kafka.properties.write_text("".join(f"{key}={value}\n" for key, value in kafka.config.items()))
    with kafka:
        with authenticated(kafka) as wire:
            altered(wire, upsertions=[upsertion(*user) for user in USERS])
        yield kafka


# -- steps of a raw client ---------------------------------------------------------------------------------


def handshake(wire: Wire, mechanism: str, version: int = 1):
    return wire.ask(messages.SaslHandshakeRequest(mechanism=mechanism), version)


def authenticate(wire: Wire, token: bytes, version: int = 2):
    return wire.ask(messages.SaslAuthenticateRequest(auth_bytes=token), version)


def conversation(mechanism: str, user: str, password: str):
    if mechanism == "PLAIN":
        return plain_conversation(user, password)
    return scram_conversation(SCRAM[mechanism][1], user, password)


def authenticated(broker, mechanism="PLAIN", user=ALICE, password=SECRET) -> Wire:
    wire = Wire(broker.bootstrap)
    log_in(wire, mechanism, user, password)
    return wire


def log_in(wire: Wire, mechanism="PLAIN", user=ALICE, password=SECRET):
    """The last SaslAuthenticate's answer."""
    assert handshake(wire, mechanism).error_code == 0
    client = conversation(mechanism, user, password)
    said = next(client)
    while True:
        answer = authenticate(wire, said)
        if answer.error_code:
            return answer
        try:
            said = client.send(bytes(answer.auth_bytes))
        except StopIteration:
            return answer


def upsertion(mechanism: str, user: str, password: str = "", rounds: int = 4096, number: int | None = None):
    number_of, hash_name = SCRAM[mechanism]
    password = password or USERS.get((mechanism, user), "secret")
    return messages.AlterUserScramCredentialsRequest.Upsertions(
        name=user,
        mechanism=number_of if number is None else number,
        iterations=rounds,
        salt=b"pepper",
        salted_password=hashlib.pbkdf2_hmac(hash_name, password.encode(), b"pepper", rounds),
    )


def deletion(mechanism: str, user: str):
    return messages.AlterUserScramCredentialsRequest.Deletions(name=user, mechanism=SCRAM[mechanism][0])


def altered(wire: Wire, upsertions=(), deletions=()) -> dict[str, tuple[int, str | None]]:
    request = messages.AlterUserScramCredentialsRequest(
        deletions=list(deletions), upsertions=list(upsertions)
    )
    return {it.user: (it.error_code, it.error_message) for it in wire.ask(request, 0).results}


def described(wire: Wire, *users: str):
    users = [messages.DescribeUserScramCredentialsRequest.Users(name=user) for user in users]
    answer = wire.ask(messages.DescribeUserScramCredentialsRequest(users=users or None), 0)
    return answer.error_code, {
        it.user: (
            it.error_code,
            it.error_message,
            sorted((info.mechanism, info.iterations) for info in it.credential_infos),
        )
        for it in answer.results
    }


def works(wire: Wire) -> int:
    return wire.ask(messages.MetadataRequest(topics=[]), 9).brokers[0].node_id


# -- the same attempts on both -----------------------------------------------------------------------------


def plain(token: bytes, version: int = 2):
    def attempt(wire):
        assert handshake(wire, "PLAIN").error_code == 0
        answer = authenticate(wire, token, version)
        told = answer.error_code, answer.error_message, bytes(answer.auth_bytes), answer.session_lifetime_ms
        return told, wire.is_closed_by_broker() if answer.error_code else works(wire)

    return attempt


def raw_plain(token: bytes):
    def attempt(wire):
        assert handshake(wire, "PLAIN", 0).error_code == 0
        wire.send_frame(token)
        try:
            return wire.read_frame(), works(wire)
        except ConnectionError:
            return "closed"

    return attempt


def scram(mechanism: str, user: str, password: str):
    def attempt(wire):
        answer = log_in(wire, mechanism, user, password)
        told = answer.error_code, answer.error_message, answer.session_lifetime_ms
        return told, wire.is_closed_by_broker() if answer.error_code else works(wire)

    return attempt


def mechanism(name: str, version: int):
    def attempt(wire):
        answer = handshake(wire, name, version)
        return answer.error_code, sorted(answer.mechanisms), wire.is_closed_by_broker()

    return attempt


def frame(data: bytes):
    def attempt(wire):
        try:
            wire.send_frame(data)
        except ConnectionError:
            return True
        return wire.is_closed_by_broker()

    return attempt


def versions_first(wire):
    first = wire.ask(messages.ApiVersionsRequest(), 0).error_code
    return first, log_in(wire).error_code, works(wire)


def versions_twice(wire):
    first = wire.ask(messages.ApiVersionsRequest(), 0).error_code
    wire.send(messages.ApiVersionsRequest(), 0)
    return first, wire.is_closed_by_broker()


def versions_with_a_bad_name(wire):
    bad = messages.ApiVersionsRequest(client_software_name="no blanks", client_software_version="1")
    good = messages.ApiVersionsRequest(client_software_name="x", client_software_version="1")
    return wire.ask(bad, 3).error_code, wire.ask(good, 3).error_code, log_in(wire).error_code


def versions_of_tomorrow(wire):
    request = bytearray(codec.encode_request(messages.ApiVersionsRequest(), 3, 1, "x"))
    request[2:4] = (99).to_bytes(2, "big")
    wire.send_frame(bytes(request))
    _, answer = codec.decode_response(messages.ApiVersionsResponse, 0, wire.read_frame())
    return answer.error_code, wire.ask(messages.ApiVersionsRequest(), 0).error_code, log_in(wire).error_code


def afterwards(wire):
    log_in(wire)
    late = authenticate(wire, b"")
    return handshake(wire, "PLAIN").error_code, late.error_code, late.error_message, works(wire)


def in_the_middle(wire):
    handshake(wire, "SCRAM-SHA-256")
    wire.send_frame(codec.encode_request(messages.SaslAuthenticateRequest(auth_bytes=b""), 2, 1, "x")[:-4])
    return wire.is_closed_by_broker()


def credentials(**changes):
    def attempt(wire):
        log_in(wire)
        return altered(wire, **changes)

    return attempt


def descriptions(*users):
    def attempt(wire):
        log_in(wire)
        return described(wire, *users)

    return attempt


METADATA = codec.encode_request(messages.MetadataRequest(topics=None), 9, 1, "x")
ATTEMPTS = {
    "PLAIN": plain(f"\0{ALICE}\0{SECRET}".encode()),
    "PLAIN by SaslAuthenticate v0": plain(f"\0{ALICE}\0{SECRET}".encode(), 0),
    "PLAIN as oneself": plain(f"{ALICE}\0{ALICE}\0{SECRET}".encode(), 1),
    "PLAIN as somebody else": plain(f"admin\0{ALICE}\0{SECRET}".encode()),
    "PLAIN, a wrong password": plain(f"\0{ALICE}\0wrong".encode()),
    "PLAIN, a longer password": plain(f"\0{ALICE}\0{SECRET}x".encode()),
    "PLAIN, nobody": plain(b"\0nobody\0x"),
    "PLAIN, no user": plain(f"\0\0{SECRET}".encode()),
    "PLAIN, no password": plain(f"\0{ALICE}\0".encode()),
    "PLAIN, nothing": plain(b""),
    "PLAIN, too much": plain(f"\0{ALICE}\0{SECRET}\0".encode()),
    "PLAIN, no text": plain(b"\0\xff\xfe\0\xff"),
    "PLAIN, raw": raw_plain(f"\0{ALICE}\0{SECRET}".encode()),
    "PLAIN, raw, a wrong password": raw_plain(f"\0{ALICE}\0wrong".encode()),
    "SCRAM-SHA-256": scram("SCRAM-SHA-256", "bob", "bob-secret"),
    "SCRAM-SHA-512": scram("SCRAM-SHA-512", "carol", "carol-secret"),
    "SCRAM, a wrong password": scram("SCRAM-SHA-256", "bob", "wrong"),
    "SCRAM, nobody": scram("SCRAM-SHA-256", "nobody", "x"),
    "SCRAM, a user of the other hash": scram("SCRAM-SHA-512", "bob", "bob-secret"),
    "SCRAM, a name of two bytes": scram("SCRAM-SHA-256", "é", "x"),
    "a mechanism that is off": mechanism("GSSAPI", 1),
    "a mechanism that is off, by v0": mechanism("OAUTHBEARER", 0),
    "a mechanism in lower case": mechanism("plain", 1),
    "Metadata first": frame(METADATA),
    "SaslAuthenticate first": frame(
        codec.encode_request(messages.SaslAuthenticateRequest(auth_bytes=b"\0a\0b"), 1, 1, "x")
    ),
    "a frame that is too large": frame(bytes(600_000)),
    "no request": frame(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
    "an empty frame": frame(b""),
    "a handshake of tomorrow": frame(b"\0\x11\0\x09" + bytes(10)),
    "ApiVersions first": versions_first,
    "ApiVersions twice": versions_twice,
    "ApiVersions with a bad name": versions_with_a_bad_name,
    "ApiVersions of tomorrow": versions_of_tomorrow,
    "SASL of an authenticated client": afterwards,
    "a token that is cut": in_the_middle,
    "users: none": credentials(),
    "users: no name": credentials(upsertions=[upsertion("SCRAM-SHA-256", "")]),
    "users: an unknown mechanism": credentials(upsertions=[upsertion("SCRAM-SHA-256", "u", number=3)]),
    "users: too few rounds": credentials(upsertions=[upsertion("SCRAM-SHA-256", "u", rounds=4095)]),
    "users: too many rounds": credentials(upsertions=[upsertion("SCRAM-SHA-256", "u", rounds=16385)]),
    "users: twice": credentials(
        upsertions=[upsertion("SCRAM-SHA-256", "u"), upsertion("SCRAM-SHA-512", "u")]
    ),
    "users: both": credentials(
        upsertions=[upsertion("SCRAM-SHA-256", "bob")], deletions=[deletion("SCRAM-SHA-256", "bob")]
    ),
    "users: one that is not there": credentials(deletions=[deletion("SCRAM-SHA-512", "bob")]),
    "users: one good, one bad": credentials(
        upsertions=[upsertion("SCRAM-SHA-512", "dave", rounds=8192), upsertion("SCRAM-SHA-256", "")]
    ),
    "users: described": descriptions("bob", "carol", "dave"),
    "users: all described": descriptions(),
    "users: nobody described": descriptions("nobody", "bob", "bob"),
    "users: gone": credentials(deletions=[deletion("SCRAM-SHA-512", "dave")]),
}


@pytest.mark.java
def test_each_attempt_ends_as_on_kafka(broker, jvm):
    """One table of attempts, cell by cell."""
    different = {}
    for name, attempt in ATTEMPTS.items():
        with Wire(broker.bootstrap) as ours, Wire(jvm.bootstrap) as theirs:
            found, expected = attempt(ours), attempt(theirs)
        if found != expected:
            different[name] = found, expected
    assert not different, "\n".join(f"{name}: {cell}" for name, cell in different.items())


def test_a_client_that_is_in_the_middle_of_it_is_not_served(broker):
    """Kafka answers such a request in its API's own words, and closes. Here it is not decoded."""
    with Wire(broker.bootstrap) as wire:
        handshake(wire, "PLAIN")
        wire.send_frame(METADATA)
        assert wire.is_closed_by_broker()
    for request in (messages.ProduceRequest(acks=1, timeout_ms=1), messages.FetchRequest()):
        with Wire(broker.bootstrap) as wire:
            handshake(wire, "PLAIN")
            wire.send(request, 9)
            assert wire.is_closed_by_broker()


def test_a_refused_client_waits_and_others_do_not(broker):
    """connection.failed.authentication.delay.ms is 100 by default. If the others waited for it, they would
    each time; a busy machine does not make them wait each time."""
    with authenticated(broker) as other:
        waits = []
        while not waits or (min(waits) >= 0.099 and len(waits) < 10):
            with Wire(broker.bootstrap) as wire:
                handshake(wire, "PLAIN")
                begun = time.monotonic()
                wire.send(messages.SaslAuthenticateRequest(auth_bytes=b"\0x\0y"), 2)
                for _ in range(20):
                    works(other)
                waits.append(time.monotonic() - begun)
                wire.read_frame()
                assert time.monotonic() - begun >= 0.099
                assert wire.is_closed_by_broker()
        assert min(waits) < 0.099
    wait_until(lambda: "Invalid username or password" in broker.log)
    assert "\0" not in broker.log


def test_many_who_never_authenticate_cost_little(broker):
    wires = [Wire(broker.bootstrap) for _ in range(200)]
    try:
        for wire in wires:
            handshake(wire, "SCRAM-SHA-256")
            wire.socket.sendall((500_000).to_bytes(4, "big") + bytes(1_000))
        with authenticated(broker) as other:
            assert works(other) == 1
    finally:
        for wire in wires:
            wire.socket.close()


# -- clients -----------------------------------------------------------------------------------------------

LOGINS = [("PLAIN", ALICE, SECRET), *((name, user, text) for (name, user), text in USERS.items())]


@pytest.mark.parametrize(("mechanism", "user", "password"), LOGINS)
def test_confluent_kafka(broker, mechanism, user, password):
    config = {
        "bootstrap.servers": broker.bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": user,
        "sasl.password": password,
    }
    producer = Producer(config)
    producer.produce("t", user.encode())
    assert producer.flush(WAIT_S) == 0
    consumer = Consumer({**config, "group.id": f"of-{user}", "auto.offset.reset": "earliest"})
    consumer.subscribe(["t"])
    seen = set()

    def has_seen():
        message = consumer.poll(0.2)
        if message is not None and not message.error():
            seen.add(message.value())
        return user.encode() in seen

    wait_until(has_seen)
    consumer.close()

    troubles = []
    refused = Producer({**config, "sasl.password": "wrong", "error_cb": troubles.append})
    wait_until(lambda: refused.poll(0.1) is not None and troubles)
    assert troubles[0].code() == KafkaError._AUTHENTICATION


@pytest.mark.parametrize(("mechanism", "user", "password"), LOGINS)
def test_kafka_python(broker, mechanism, user, password):
    config = {
        "bootstrap_servers": broker.bootstrap,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "sasl_plain_username": user,
    }
    producer = KafkaProducer(**config, sasl_plain_password=password)
    producer.send("t", b"kafka-python").get(WAIT_S)
    producer.close()
    consumer = KafkaConsumer(
        "t",
        **config,
        sasl_plain_password=password,
        auto_offset_reset="earliest",
        consumer_timeout_ms=10_000,
    )
    assert next(consumer) is not None
    consumer.close()


def test_aiokafka(broker):
    async def send():
        producer = AIOKafkaProducer(
            bootstrap_servers=broker.bootstrap,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="SCRAM-SHA-512",
            sasl_plain_username="carol",
            sasl_plain_password="carol-secret",
        )
        await producer.start()
        try:
            return await producer.send_and_wait("t", b"aiokafka")
        finally:
            await producer.stop()

    assert asyncio.run(asyncio.wait_for(send(), WAIT_S)).topic == "t"


@pytest.mark.java
def test_kafkas_tools(broker, tmp_path):
    """kafka-configs makes a user, and the console producer and consumer log in as that one."""
    admin, erin = tmp_path / "admin.properties", tmp_path / "erin.properties"
    protocol = "security.protocol=SASL_PLAINTEXT\n"
    admin.write_text(
        f'{protocol}sasl.mechanism=PLAIN\nsasl.jaas.config={MODULE} username="{ALICE}" password="{SECRET}";\n'
    )
    erin.write_text(
        f"{protocol}sasl.mechanism=SCRAM-SHA-512\n"
        f'sasl.jaas.config={SCRAM_MODULE} username="erin" password="erin-secret";\n'
    )
    run_tool(
        "4.3.1", "kafka-configs", "--bootstrap-server", broker.bootstrap, "--command-config", admin,
        "--alter",
        "--add-config", "SCRAM-SHA-512=[iterations=8192,password=erin-secret]",
        "--entity-type", "users", "--entity-name", "erin",
    )  # fmt: skip
    asked = ("--bootstrap-server", broker.bootstrap, "--topic", "tools")
    run_tool("4.3.1", "kafka-console-producer", *asked, "--command-config", erin, stdin="hello\n")
    said = run_tool(
        "4.3.1", "kafka-console-consumer", *asked, "--command-config", erin, "--from-beginning",
        "--max-messages", 1, "--timeout-ms", 30_000,
    )  # fmt: skip
    assert said.lines == ["hello"]


def test_kafkads_own_commands(broker, tmp_path):
    alice = tmp_path / "alice.properties"
    alice.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
        f'sasl.jaas.config={MODULE} username="{ALICE}" password="{SECRET}";\n'
    )

    def kafkad(*arguments: str, stdin: str = "", code: int = 0) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "kafkad", *arguments, "--bootstrap-server", broker.bootstrap],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
        )
        assert done.returncode == code, done.stderr
        return done.stdout if code == 0 else done.stderr

    login = ("--command-config", str(alice))
    kafkad("topics", "--create", "--topic", "own", *login)
    assert "own" in kafkad("topics", "--list", *login).split()
    kafkad("produce", "--topic", "own", *login, stdin="one\n")
    assert kafkad("consume", "--topic", "own", "--from-beginning", "--max-messages", "1", *login) == "one\n"
    assert "own" in kafkad("offsets", "--topic", "own", *login)
    alice.write_text(alice.read_text().replace(SECRET, "wrong"))
    said = kafkad("topics", "--list", *login, code=1)
    assert "Invalid username or password" in said and "wrong" not in said
    kafkad("topics", "--list", code=1)


# -- sessions and restarts ---------------------------------------------------------------------------------


def test_a_session_ends_unless_the_client_authenticates_anew(tmp_path):
    """connections.max.reauth.ms, KIP-368; the listener's own value wins."""
    own = {
        f"{LISTENER}.connections.max.reauth.ms": "60000",
        f"{LISTENER}.plain.connections.max.reauth.ms": "1500",
    }
    with secured(tmp_path, **own, **{"connections.max.reauth.ms": "9"}) as broker:
        with Wire(broker.bootstrap) as idle, Wire(broker.bootstrap) as keen:
            assert log_in(idle).session_lifetime_ms == log_in(keen).session_lifetime_ms == 1500
            assert works(idle) == 1
            for _ in range(2):
                time.sleep(1.1)
                assert works(keen) == 1
                assert log_in(keen).session_lifetime_ms == 1500
            assert handshake(keen, "PLAIN").error_code == errors.ILLEGAL_SASL_STATE, "once a second at most"
            assert works(keen) == 1
            idle.send(messages.MetadataRequest(topics=[]), 9)
            assert idle.is_closed_by_broker()
        config = {
            "bootstrap.servers": broker.bootstrap,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": ALICE,
            "sasl.password": SECRET,
        }
        troubles, delivered = [], []
        producer = Producer({**config, "linger.ms": 0, "error_cb": troubles.append})
        end = time.monotonic() + 4
        while time.monotonic() < end:
            producer.produce("t", b"x", on_delivery=lambda error, message: delivered.append(error))
            producer.poll(0.02)
        assert producer.flush(WAIT_S) == 0
        assert len(delivered) > 50 and set(delivered) == {None}
        assert not troubles


def test_the_longest_values_of_times_are_for_ever(tmp_path):
    """Long.MAX: a login failed, and waiting Fetches were answered by chance."""
    longest = str((1 << 63) - 1)
    more = {"connections.max.reauth.ms": longest, "connections.max.idle.ms": longest}
    with secured(tmp_path, **more) as broker, authenticated(broker) as wire:
        assert works(wire) == 1
        create_topic(wire, "t")
        cls = messages.FetchRequest
        topics = [cls.Topics(topic="t", partitions=[cls.Topics.Partitions(partition_max_bytes=100)])]
        request = cls(max_wait_ms=20, min_bytes=1, max_bytes=100, topics=topics)
        began = time.monotonic()
        for _ in range(30):
            assert wire.ask(request, 11).error_code == 0
        assert time.monotonic() - began < 15, "each waits for its max_wait_ms, not for another timer"


def test_users_survive_a_restart_and_a_deleted_one_is_out(tmp_path):
    broker = secured(tmp_path)
    with broker:
        with authenticated(broker) as wire:
            altered(wire, upsertions=[upsertion(*user) for user in USERS])
        broker.kill()
        broker.start()
        for (mechanism, user), password in USERS.items():
            with authenticated(broker, mechanism, user, password) as wire:
                assert works(wire) == 1
        with (
            authenticated(broker, "SCRAM-SHA-256", "bob", "bob-secret") as bob,
            authenticated(broker) as wire,
        ):
            assert altered(wire, deletions=[deletion("SCRAM-SHA-256", "bob")]) == {"bob": (0, None)}
            assert works(bob) == 1, "who is in stays in, as on Kafka"
        with Wire(broker.bootstrap) as wire:
            assert log_in(wire, "SCRAM-SHA-256", "bob", "bob-secret").error_code
        with authenticated(broker, "SCRAM-SHA-512", "carol", "carol-secret") as wire:
            configs = messages.IncrementalAlterConfigsRequest.Resources
            change = configs.Configs(
                name=f"{LISTENER}.plain.sasl.jaas.config", config_operation=0, value=f"{MODULE};"
            )
            request = messages.IncrementalAlterConfigsRequest(
                resources=[configs(resource_type=4, resource_name="1", configs=[change])]
            )
            (answer,) = wire.ask(request, 1).responses
            assert answer.error_code == errors.INVALID_CONFIG and "restart the broker" in answer.error_message


@pytest.mark.java
def test_users_that_kafka_storage_made_are_let_in(tmp_path):
    """`kafka-storage format --add-scram`: the first user of a cluster that has no other listener."""
    broker = secured(tmp_path)
    properties = tmp_path / "server.properties"
    jvm = tmp_path / "jvm.properties"
    jvm.write_text(
        properties.read_text().replace(
            "listeners=SASL_PLAINTEXT://127.0.0.1:0", "listeners=SASL_PLAINTEXT://127.0.0.1:9092,C://:9093"
        )
        + "controller.listener.names=C\ncontroller.quorum.voters=1@localhost:9093\n"
        "listener.security.protocol.map=C:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT\n"
    )
    run_tool(
        "4.3.1", "kafka-storage", "format", "-t", "MkU3OEVBNTcwNTJENDM2Qg", "-c", jvm,
        "--add-scram", "SCRAM-SHA-256=[name=frank,iterations=4096,password=frank-secret]",
    )  # fmt: skip
    assert os.path.exists(tmp_path / "data" / "meta.properties")
    with broker, authenticated(broker, "SCRAM-SHA-256", "frank", "frank-secret") as wire:
        assert works(wire) == 1

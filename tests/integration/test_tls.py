"""TLS listeners: the same configuration and the same attempts on kafkad and JVM Kafka, then real clients,
several workers, and those who misbehave beside those who do not."""

import asyncio
import contextlib
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, Producer
from kafka import KafkaConsumer, KafkaProducer

from bench.native import logins
from kafkad.protocol import codec, messages
from kafkad.testing import Broker, BrokerFailed
from tests.certificates import PASSWORD, make_stores, openssl
from tests.clients import wait_until
from tests.jvm import JvmKafka, free_port, run_tool
from tests.neighbours import PARTITIONS, TOPIC, Neighbours
from tests.tls_wire import DATA, HANDSHAKE, KeyUpdates, TlsWire, trusting
from tests.wire import Wire, create_topic

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
PROTOCOLS = (
    "SSL",
    "MUTUAL",
    "OLD",
    "SASL_SSL",
    "MAPPED",
    "Asked",
)  # listeners; MUTUAL and MAPPED want certificates, Asked takes them, OLD speaks TLS 1.2 alone, MAPPED has a
# name for one
NEIGHBOUR_S = 0.1
STALL_S = 0.005  # of CPU time and locks; time without a core is not the broker's
STALL_HANDSHAKES = 5  # or the CPU of so many, with what the neighbours asked meanwhile: 2 ms each if slow
FLOOD = {"tls": 1, "connections": 64, "rate": 1000, "seconds": 2}
FLOODS = 4


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    return make_stores(tmp_path_factory.mktemp("stores"))


def secured(stores) -> dict[str, str]:
    return {
        "security.inter.broker.protocol": "SSL",
        "sasl.enabled.mechanisms": "PLAIN",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(stores / "server.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(stores / "ca.pem"),
        "listener.name.mutual.ssl.client.auth": "required",
        "listener.name.mutual.ssl.keystore.type": "PKCS12",
        "listener.name.mutual.ssl.keystore.location": str(stores / "server.p12"),
        "listener.name.mutual.ssl.keystore.password": PASSWORD,
        "listener.name.mutual.ssl.key.password": PASSWORD,
        "listener.name.mapped.ssl.client.auth": "required",
        "listener.name.asked.ssl.client.auth": "requested",
        "listener.name.ASKED.ssl.enabled.protocols": "TLSv1.2",  # Kafka does not read it
        "listener.name.mapped.ssl.principal.mapping.rules": "RULE:^CN=(client),.*$/$1/U",
        "listener.name.old.ssl.enabled.protocols": "TLSv1.2",
        "listener.name.old.ssl.cipher.suites": "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
        "listener.name.sasl_ssl.plain.sasl.jaas.config": f'{PLAIN} user_alice="alice-secret";',
    }


MAP = "SSL:SSL,MUTUAL:SSL,aSKED:SSL,MAPPED:SSL,OLD:SSL,SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT"


@contextlib.contextmanager
def serving(here, stores, workers, env=None):
    """A broker with a port of each listener in `ports`."""
    ports = {name: free_port() for name in ("PLAINTEXT", *PROTOCOLS)}
    given = {
        "node.id": "1",
        "process.roles": "broker,controller",
        "log.dirs": str(here / "data"),
        "listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in ports.items()),
        "listener.security.protocol.map": MAP,
        "group.initial.rebalance.delay.ms": "0",
        "offsets.topic.num.partitions": "4",
        **secured(stores),
    }
    properties = here / "server.properties"
    properties.write_text("".join(f"{key}={value}\n" for key, value in given.items()))
    with Broker(properties=properties, workers=workers, env=env) as broker:
        broker.ports = ports
        yield broker


@pytest.fixture(scope="module", params=[2, 1, 4])
def broker(request, tmp_path_factory, stores):
    with serving(tmp_path_factory.mktemp(f"kafkad{request.param}"), stores, request.param) as broker:
        yield broker


@pytest.fixture(scope="module")
def jvm(tmp_path_factory, stores):
    kafka = JvmKafka(tmp_path_factory.mktemp("jvm") / "data")
    kafka.ports = {name: free_port() for name in PROTOCOLS}
    extra = "".join(f",{name}://127.0.0.1:{port}" for name, port in kafka.ports.items())
    kafka.config["listeners"] += extra
    kafka.config["advertised.listeners"] += extra
    kafka.config["listener.security.protocol.map"] = f"CONTROLLER:PLAINTEXT,{MAP}"
    kafka.config |= secured(stores)
    kafka.properties.write_text("".join(f"{key}={value}\n" for key, value in kafka.config.items()))
    with kafka:
        yield kafka


def expired(stores, between_brokers: str) -> dict[str, str]:
    return {
        "listener.security.protocol.map": "SSL:SSL,PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": between_brokers,
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(stores / "expired.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(stores / "ca.pem"),
    }


@pytest.mark.parametrize("workers", [1, 2])
def test_an_expired_certificate_between_brokers_is_refused_at_the_start(tmp_path, stores, workers):
    """As in Kafka (the next test). With one for clients only it starts."""
    ports = {name: free_port() for name in ("PLAINTEXT", "SSL")}
    for between_brokers in ("SSL", "PLAINTEXT"):
        given = {
            "node.id": "1",
            "process.roles": "broker,controller",
            "log.dirs": str(tmp_path / "data"),
            "listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in ports.items()),
            **expired(stores, between_brokers),
        }
        properties = tmp_path / "server.properties"
        properties.write_text("".join(f"{key}={value}\n" for key, value in given.items()))
        broker = Broker(properties=properties, workers=workers)
        if between_brokers == "SSL":
            with pytest.raises(BrokerFailed) as failed:
                broker.start()
            said = "listener SSL cannot be served, other brokers would refuse it: the certificate of CN"
            assert said in str(failed.value) and "Traceback" not in str(failed.value)
            continue
        with broker:
            with Wire(f"127.0.0.1:{ports['PLAINTEXT']}") as wire:
                assert wire.ask(messages.ApiVersionsRequest(), 0).error_code == 0
            said = "clients will refuse listener SSL: the certificate of CN=expired has expired"
            assert broker.log.count(said) == 1
            assert attempt(stores, ports["SSL"]) == "refused"


@pytest.mark.java
def test_kafka_refuses_a_start_with_an_expired_certificate_between_brokers(tmp_path, stores):
    kafka = JvmKafka(tmp_path / "jvm", config=expired(stores, "SSL"))
    listener = f",SSL://127.0.0.1:{free_port()}"
    for key in ("listeners", "advertised.listeners"):
        kafka.config[key] += listener
    kafka.properties.write_text("".join(f"{key}={value}\n" for key, value in kafka.config.items()))
    with pytest.raises(
        RuntimeError, match=r"can't connect to a server SSLEngine created with those settings"
    ):
        kafka.start()


def attempt(stores, port: int, own: str | None = None, versions=()) -> str:
    """ApiVersions over TLS: the version of TLS and its cipher suite, or "refused"."""
    try:
        with TlsWire(port, trusting(stores, own, versions)) as wire:
            assert wire.ask(messages.ApiVersionsRequest(), 0).error_code == 0
            return f"{wire.socket.version()}"
    except (ssl.SSLError, ConnectionError):
        return "refused"


NEW = (ssl.TLSVersion.TLSv1_3, ssl.TLSVersion.TLSv1_3)
OLD = (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_2)
ATTEMPTS = {
    ("SSL", None, ()): "TLSv1.3",
    ("SSL", None, OLD): "TLSv1.2",
    ("SSL", "stranger", ()): "TLSv1.3",  # it is not asked for its certificate
    ("OLD", None, ()): "TLSv1.2",
    ("OLD", None, NEW): "refused",
    ("MUTUAL", None, ()): "refused",
    ("MUTUAL", "client", ()): "TLSv1.3",
    ("MUTUAL", "client", OLD): "TLSv1.2",
    ("MUTUAL", "stranger", ()): "refused",
    ("MUTUAL", "expired", ()): "refused",
    ("Asked", None, ()): "TLSv1.3",
    ("Asked", "client", ()): "TLSv1.3",
    ("Asked", "stranger", ()): "refused",
    ("Asked", "expired", ()): "refused",
    ("SASL_SSL", None, ()): "TLSv1.3",
    ("MAPPED", "client", ()): "TLSv1.3",
    ("MAPPED", "server", ()): "refused",  # no rule has a name for it
}


def outcomes(stores, ports) -> dict:
    return {each: attempt(stores, ports[each[0]], each[1], each[2]) for each in ATTEMPTS}


def test_each_attempt_ends_as_with_kafka(broker, stores):
    assert outcomes(stores, broker.ports) == ATTEMPTS
    wait_until(lambda: "No rules apply to CN=server" in broker.log)


@pytest.mark.java
def test_kafka_itself_answers_so(jvm, stores):
    assert outcomes(stores, jvm.ports) == ATTEMPTS


# -- clients -----------------------------------------------------------------------------------------------


def librdkafka(broker, stores, protocol: str) -> dict:
    found = {
        "bootstrap.servers": f"127.0.0.1:{broker.ports[protocol]}",
        "security.protocol": protocol,
        "ssl.ca.location": str(stores / "ca.pem"),
    }
    if protocol == "SASL_SSL":
        found |= {"sasl.mechanism": "PLAIN", "sasl.username": "alice", "sasl.password": "alice-secret"}
    return found


@pytest.mark.parametrize("protocol", ["SSL", "SASL_SSL"])
def test_librdkafka_reads_what_it_wrote(broker, stores, protocol):
    """8 MB: regions of the log and answers far above a record and a turn."""
    topic, values = f"rd-{protocol}", [os.urandom(100_000) for _ in range(80)]
    producer = Producer({**librdkafka(broker, stores, protocol), "linger.ms": 20})
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(30) == 0
    consumer = Consumer(
        {**librdkafka(broker, stores, protocol), "group.id": topic, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    found: list[bytes] = []

    def all_read() -> bool:
        message = consumer.poll(0.5)
        if message is not None and message.error() is None:
            found.append(message.value())
        return len(found) == len(values)

    try:
        wait_until(all_read)
    finally:
        consumer.close()
    assert found == values


def of_python(broker, stores, protocol: str) -> dict:
    found = {"bootstrap_servers": f"127.0.0.1:{broker.ports[protocol]}", "security_protocol": protocol}
    if protocol == "SASL_SSL":
        found |= {
            "sasl_mechanism": "PLAIN",
            "sasl_plain_username": "alice",
            "sasl_plain_password": "alice-secret",
        }
    return found


@pytest.mark.parametrize("protocol", ["SSL", "SASL_SSL"])
def test_kafka_python(broker, stores, protocol):
    own = of_python(broker, stores, protocol) | {"ssl_cafile": str(stores / "ca.pem")}
    topic = f"kp-{protocol}"
    producer = KafkaProducer(**own)
    for number in range(100):
        producer.send(topic, b"%d" % number)
    producer.flush(30)
    producer.close()
    consumer = KafkaConsumer(topic, **own, auto_offset_reset="earliest", consumer_timeout_ms=10_000)
    found = sorted(int(next(consumer).value) for _ in range(100))
    consumer.close()
    assert found == list(range(100))


@pytest.mark.parametrize("protocol", ["SSL", "SASL_SSL"])
def test_aiokafka(broker, stores, protocol):
    async def run() -> list[int]:
        own = of_python(broker, stores, protocol) | {"ssl_context": trusting(stores)}
        topic = f"aio-{protocol}"
        async with AIOKafkaProducer(**own) as producer:
            for number in range(100):
                await producer.send_and_wait(topic, b"%d" % number, partition=0)
        async with AIOKafkaConsumer(topic, **own, auto_offset_reset="earliest") as consumer:
            return [int((await asyncio.wait_for(consumer.getone(), 30)).value) for _ in range(100)]

    assert asyncio.run(run()) == list(range(100))


@pytest.mark.java
def test_java_tools(broker, stores, tmp_path):
    """With a certificate of their own, from a PKCS12 store."""
    config = tmp_path / "client.properties"
    config.write_text(
        "security.protocol=SSL\nssl.truststore.type=PEM\n"
        f"ssl.truststore.location={stores / 'ca.pem'}\nssl.keystore.type=PKCS12\n"
        f"ssl.keystore.location={stores / 'client.p12'}\nssl.keystore.password={PASSWORD}\n"
    )
    bootstrap = f"127.0.0.1:{broker.ports['MUTUAL']}"
    own = ["--bootstrap-server", bootstrap, "--command-config", str(config)]
    run_tool("4.3.1", "kafka-topics", *own, "--create", "--topic", "java", "--partitions", "3")
    assert "java" in run_tool("4.3.1", "kafka-topics", *own, "--list").stdout.split()


# -- those who misbehave, and their neighbours ------------------------------------------------------------


class Neighbour(threading.Thread):
    """Asks a plaintext and a TLS listener in turns, each on the connection that it has from the start."""

    def __init__(self, broker, stores) -> None:
        super().__init__()
        self.wires = [
            Wire(f"127.0.0.1:{broker.ports['PLAINTEXT']}"),
            TlsWire(broker.ports["SSL"], trusting(stores)),
        ]
        self.waits: list[float] = []
        self.done = threading.Event()

    def run(self) -> None:
        while not self.done.wait(0.005):
            for wire in self.wires:
                begun = time.monotonic()
                wire.ask(messages.ApiVersionsRequest(), 0)
                self.waits.append(time.monotonic() - begun)

    def __enter__(self) -> "Neighbour":
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        try:
            wait_until(lambda: len(self.waits) > 20 or not self.is_alive())
        finally:
            self.done.set()
            self.join()
            for wire in self.wires:
                wire.socket.close()
        assert len(self.waits) > 20, "a neighbour was not served"
        # Other processes have the cores, too, for a moment: the broker's own bound is that of nearly all.
        assert sorted(self.waits)[len(self.waits) * 9 // 10] <= NEIGHBOUR_S, sorted(self.waits)[-10:]


def connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=20)


def hello() -> bytes:
    outgoing = ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def test_half_handshakes_and_floods_cost_the_neighbours_nothing(broker, stores):
    """Each hello makes the broker sign; nobody waits for the answer."""
    whole = hello()
    with Neighbour(broker, stores):
        held = []
        for number in range(300):
            client = connected(broker.ports["SSL"])
            client.sendall(whole if number % 3 else whole[: 1 + number % len(whole)])
            held.append(client)
        time.sleep(1)
        for client in held:
            client.close()


def test_a_flood_of_handshakes_stalls_nobody(broker, stores):
    """A stall that is the broker's own comes again in each flood, so one flood without is enough. A stall
    that comes now and then is for the bench (login floods). A turn of the loop has a few handshakes, so the
    bound is in handshakes where STALL_S has no room for them."""
    pids = list(broker.worker_pids.values())
    bootstrap = f"127.0.0.1:{broker.ports['PLAINTEXT']}"
    with Wire(bootstrap) as wire:
        create_topic(wire, TOPIC, PARTITIONS)
    neighbours = Neighbours(bootstrap, pids, (broker.ports["SSL"], stores))
    stalls = []  # seconds, who, the bound
    try:
        while len(stalls) < FLOODS and all(waited >= bound for waited, _, bound in stalls):
            neighbours.begin()
            begun_s = cpu_seconds(pids)
            flood = logins(port=broker.ports["SSL"], **FLOOD)
            assert flood["requests"] > 0 and flood["refused"] == 0
            handshake_s = (cpu_seconds(pids) - begun_s) / flood["requests"]
            stalls.append((*neighbours.worst(), max(STALL_S, STALL_HANDSHAKES * handshake_s)))
    finally:
        neighbours.close()
    assert any(waited < bound for waited, _, bound in stalls), stalls


def cpu_seconds(pids: list[int]) -> float:
    stats = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return sum(int(stat[11]) + int(stat[12]) for stat in stats) / os.sysconf("SC_CLK_TCK")


def test_bytes_one_by_one(broker, stores):
    """In the handshake and after it: what waits inside OpenSSL for its end is nobody's stall."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trusting(stores).wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    frame = bytes.fromhex("0012000000000001ffff")
    with connected(broker.ports["SSL"]) as wire:
        wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def until(step):
            while True:
                try:
                    return step()
                except ssl.SSLWantReadError:
                    send()
                    incoming.write(wire.recv(65536))

        def send() -> None:
            for byte in outgoing.read():
                wire.sendall(bytes([byte]))

        until(client.do_handshake)
        for count in (1, 3):
            for _ in range(count):
                client.write(len(frame).to_bytes(4, "big") + frame)
            send()
            answers = b""
            while len(answers) < 4 or len(answers) < count * (4 + int.from_bytes(answers[:4], "big")):
                answers += until(lambda: client.read(65536))
            assert answers == answers[: len(answers) // count] * count and answers[4:10] == b"\0\0\0\1\0\0"


def test_records_of_one_byte(broker, stores):
    with TlsWire(broker.ports["SSL"], trusting(stores)) as wire:
        frame = bytes.fromhex("0012000000000001ffff")
        for _ in range(3):
            for byte in len(frame).to_bytes(4, "big") + frame:
                wire.socket.sendall(bytes([byte]))
            assert wire.read_frame()[:6] == b"\0\0\0\1\0\0"


def test_a_pipeline_in_one_record_is_answered_whole(broker, stores):
    """More requests than a turn takes wait in OpenSSL and in the reactor; no byte comes to wake them."""
    frame = bytes.fromhex("0012000000000001ffff")
    with TlsWire(broker.ports["SSL"], trusting(stores)) as wire:
        wire.socket.sendall((len(frame).to_bytes(4, "big") + frame) * 1000)
        for _ in range(1000):
            assert wire.read_frame()[:6] == b"\0\0\0\1\0\0"


def test_plaintext_on_a_tls_port_and_the_other_way_round(broker, stores):
    with Wire(f"127.0.0.1:{broker.ports['SSL']}") as wire:
        wire.send(messages.ApiVersionsRequest(), 0)
        assert wire.is_closed_by_broker()
    with pytest.raises((ssl.SSLError, ConnectionError)):
        TlsWire(broker.ports["PLAINTEXT"], trusting(stores))
    wait_until(lambda: "plaintext came to a TLS listener" in broker.log)
    wait_until(lambda: "TLS came to a plaintext listener" in broker.log)


def test_connections_that_end_in_the_middle(broker, stores):
    """Without a goodbye, within a record, by a reset, with garbage for a record."""
    with Neighbour(broker, stores):
        for ending in ("plain", "half", "reset", "garbage") * 5:
            wire = TlsWire(broker.ports["SSL"], trusting(stores))
            raw = socket.socket(fileno=wire.socket.detach())
            if ending == "half":
                raw.sendall(b"\x17\x03\x03\x40\x00" + b"x" * 100)
            elif ending == "garbage":
                raw.sendall(b"\x17\x03\x03\x00\x20" + b"x" * 32)
            elif ending == "reset":
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            raw.close()
        time.sleep(0.3)


def test_a_client_cannot_begin_anew(broker, stores):
    """Renegotiation, which TLS 1.2 has, is a way to make a broker compute."""
    command = ["openssl", "s_client", "-tls1_2", "-connect", f"127.0.0.1:{broker.ports['SSL']}"]
    done = subprocess.run(command, input=b"R\nR\nR\n", capture_output=True, timeout=30, check=False)
    said = done.stdout + done.stderr
    assert b"RENEGOTIATING" in said
    assert b"no renegotiation" in said, said[-2000:]


FLOODED = "changes keys or asks for handshakes again and again"


@pytest.mark.parametrize("asking", [False, True])
def test_a_client_may_change_its_keys(broker, asking):
    client = KeyUpdates(broker.ports["SSL"])
    for _ in range(20):
        client.update(10, asking)
        assert client.ask()[:6] == b"\0\0\0\1\0\0"
    client.close()


def long_answer_of(broker, stores):
    """A Fetch, with its size, and the value of the record in its answer."""
    producer = Producer(librdkafka(broker, stores, "SSL"))
    value = os.urandom(900_000)
    producer.produce("long", value, partition=0)
    assert producer.flush(30) == 0
    part = messages.FetchRequest.Topics.Partitions(partition=0, fetch_offset=0, partition_max_bytes=1 << 24)
    topics = [messages.FetchRequest.Topics(topic="long", partitions=[part])]
    request = messages.FetchRequest(
        max_wait_ms=0, min_bytes=1, max_bytes=1 << 24, topics=topics, replica_id=-1
    )
    frame = codec.encode_request(request, 4, 7, "test")
    return len(frame).to_bytes(4, "big") + frame, value


@pytest.fixture(scope="module")
def long_answer(broker, stores):
    return long_answer_of(broker, stores)


def test_keys_change_before_and_between_long_answers(broker, long_answer):
    """After the first of them kafkad makes the records, and derives the keys."""
    frame, value = long_answer
    for count in range(3):
        client = KeyUpdates(broker.ports["SSL"])
        for _ in range(count):
            client.ask()
            client.update(2, True)
        for asking in (False, True, True, False, True):
            assert client.ask()[:6] == b"\0\0\0\1\0\0"
            assert value in client.ask(frame)
            client.update(3, asking)
        assert value in client.ask(frame)
        client.close()


def kinds_of_answer(client, *frame):
    client.kinds.clear()
    answer = client.ask(*frame)
    return client.kinds, answer


@pytest.mark.parametrize("first", ["long", "short", "nothing"])
def test_each_wish_for_other_keys_is_granted_before_the_next_data(broker, long_answer, first):
    frame, value = long_answer
    client = KeyUpdates(broker.ports["SSL"])
    if first != "nothing":
        client.ask(*[frame] if first == "long" else [])
    for following in ([frame], [], [frame], [frame], [], []):
        client.update(1, True)
        kinds, answer = kinds_of_answer(client, *following)
        assert kinds[0] == HANDSHAKE
        assert set(kinds[1:]) == {DATA}
        assert (value in answer) == bool(following)
        client.update(2, False)
        for again in ([], [frame]):
            kinds, answer = kinds_of_answer(client, *again)
            assert set(kinds) == {DATA}
            assert (value in answer) == bool(again)
    client.update(3, True)
    kinds, answer = kinds_of_answer(client, frame)
    changes = kinds.count(HANDSHAKE)
    assert 1 <= changes <= 3
    assert kinds[:changes] == changes * [HANDSHAKE]
    assert value in answer
    client.close()


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("most", [512, 4096])
def test_a_client_that_wants_short_records_gets_them(broker, long_answer, most, old):
    frame, value = long_answer
    client = KeyUpdates(broker.ports["SSL"], most=most, old=old)
    for _ in range(3):
        client.sizes.clear()
        assert value in client.ask(frame)
        assert len(client.sizes) >= len(value) // most
        assert max(client.sizes) <= most + 64
    client.close()


def test_records_stay_padded_where_openssl_pads_them(tmp_path, stores):
    """It does not pad a full record."""
    settings = tmp_path / "openssl.cnf"
    settings.write_text(
        "openssl_conf = all\n[all]\nssl_conf = tls\n[tls]\nsystem_default = here\n"
        "[here]\nRecordPadding = 1024\n"
    )
    with serving(tmp_path, stores, 1, {"OPENSSL_CONF": str(settings)}) as broker:
        frame, value = long_answer_of(broker, stores)
        client = KeyUpdates(broker.ports["SSL"])
        for _ in range(2):
            assert value in client.ask(frame)
            client.sizes.clear()
            client.ask()
            assert [size % 1024 for size in client.sizes] == [16]
        client.close()


def test_a_client_that_wants_no_short_records_gets_long_ones(broker, long_answer):
    frame, value = long_answer
    client = KeyUpdates(broker.ports["SSL"])
    for _ in range(3):
        client.sizes.clear()
        assert value in client.ask(frame)
        assert len(client.sizes) < len(value) // 16_384 + 8
    client.close()


@pytest.mark.parametrize("asking", [False, True])
def test_a_flood_of_key_updates_is_cut_off(broker, stores, asking):
    """Each costs the broker two derivations of keys, and a segment carries fifty."""
    clients = [KeyUpdates(broker.ports["SSL"]) for _ in range(4)]
    for client in clients:
        client.update(10_000, asking)
    with Neighbour(broker, stores):
        for client in clients:
            with contextlib.suppress(ConnectionError):
                client.send()
        for client in clients:
            with pytest.raises(ConnectionError):
                while True:
                    client.hear()
            client.close()
        time.sleep(0.2)
    wait_until(lambda: FLOODED in broker.log)


def test_a_slow_reader_gets_every_byte(broker, stores):
    """What the socket does not take waits encrypted, and the log's bytes come in pieces."""
    topic = "slow"
    producer = Producer(librdkafka(broker, stores, "SSL"))
    for _ in range(30):
        producer.produce(topic, os.urandom(200_000), partition=0)
    assert producer.flush(30) == 0

    def fetch(wire: Wire, pause: float) -> bytes:
        part = messages.FetchRequest.Topics.Partitions(
            partition=0, fetch_offset=0, partition_max_bytes=1 << 24
        )
        topics = [messages.FetchRequest.Topics(topic=topic, partitions=[part])]
        wire.send(
            messages.FetchRequest(
                max_wait_ms=0, min_bytes=1, max_bytes=1 << 24, topics=topics, replica_id=-1
            ),
            4,
        )
        size = int.from_bytes(wire._read(4), "big")
        answer = bytearray()
        while len(answer) < size:
            time.sleep(pause)
            received = wire.socket.recv(min(size - len(answer), 500_001))
            assert received
            answer += received
        return bytes(answer)

    with TlsWire(broker.ports["SSL"], trusting(stores)) as wire:
        slow = fetch(wire, 0.01)
        assert fetch(wire, 0)[:4] == b"\0\0\0\2"
    with Wire(f"127.0.0.1:{broker.ports['PLAINTEXT']}") as wire:
        assert fetch(wire, 0) == slow
    assert len(slow) > 6_000_000


# -- configurations that cannot be ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"ssl.keystore.location": None}, "Missing configuration ssl.keystore.location of listener SSL"),
        ({"ssl.keystore.location": "/no/such"}, "ssl.keystore.location of listener SSL: it cannot be read"),
        ({"ssl.keystore.password": "hush"}, "[hidden] for configuration ssl.keystore.password"),
        ({"ssl.keystore.location": "{}/ca.pem"}, "it has 0 PEM private keys; exactly one is wanted"),
        ({"ssl.keystore.location": "{}/wrong.pem"}, "private key does not fit the certificate"),
        ({"ssl.keystore.location": "{}/encrypted.pem"}, "ssl.key.password is not given"),
        (
            {"ssl.keystore.location": "{}/encrypted.pem", "ssl.key.password": "hush"},
            "its private key cannot be read; is ssl.key.password right?",
        ),
        (
            {
                "ssl.keystore.type": "JKS",
                "ssl.keystore.password": "hush",
                "ssl.keystore.location": "{}/server.p12",
            },
            "ssl.keystore.location of listener SSL: it cannot be opened with the password",
        ),
        ({"ssl.keystore.type": "PKCS12"}, "Missing configuration ssl.keystore.password of listener SSL"),
        ({"ssl.keystore.key": "x"}, "Missing configuration ssl.keystore.certificate.chain of listener SSL"),
        ({"ssl.keystore.type": "BKS", "ssl.keystore.password": "hush"}, "Invalid value BKS for"),
        ({"ssl.protocol": "TLSv1.1"}, "Invalid value TLSv1.1 for configuration ssl.protocol of listener SSL"),
        ({"ssl.enabled.protocols": "TLSv1"}, "TLSv1 is not supported; those that are: TLSv1.2, TLSv1.3"),
        ({"ssl.cipher.suites": "TLS_RSA_WITH_NULL"}, "the cipher suite TLS_RSA_WITH_NULL is not there"),
        (
            {"listener.name.ssl.ssl.client.auth": "required", "ssl.truststore.location": None},
            "required for configuration listener.name.ssl.ssl.client.auth of listener SSL",
        ),
        ({"ssl.truststore.location": "{}/server.key"}, "there is no PEM certificate in it"),
    ],
)  # fmt: skip
def test_a_store_that_is_wrong_ends_the_start_by_name(tmp_path, stores, more, message):
    if not (stores / "wrong.pem").exists():
        (stores / "wrong.pem").write_text(
            (stores / "client.key").read_text() + (stores / "server.crt").read_text()
        )
        openssl(
            stores,
            "pkcs8",
            "-topk8",
            "-in",
            "server.key",
            "-out",
            "locked.key",
            "-passout",
            f"pass:{PASSWORD}",
        )
        locked = (stores / "locked.key").read_text() + (stores / "server.crt").read_text()
        (stores / "encrypted.pem").write_text(locked)
    given = {
        "listeners": "SSL://127.0.0.1:0",
        "security.inter.broker.protocol": "SSL",
        "log.dirs": str(tmp_path / "data"),
        **{key: text for key, text in secured(stores).items() if key.startswith("ssl.")},
        **more,
    }
    words = [
        word
        for key, text in given.items()
        if text is not None
        for word in ("--override", f"{key}={text.replace('{}', str(stores))}")
    ]
    done = subprocess.run(
        [sys.executable, "-m", "kafkad", "serve", *words], capture_output=True, timeout=30, check=False
    )
    said = done.stderr.decode()
    assert (done.returncode, done.stdout) == (2, b""), said
    assert message in said and "hush" not in said and said.count("\n") == 1, said
    assert not (tmp_path / "data").exists()


def test_no_private_key_and_no_password_is_told(broker, stores):
    """Not in the log, not by DescribeConfigs."""
    resource = messages.DescribeConfigsRequest.Resources(resource_type=4, resource_name="1")
    with TlsWire(broker.ports["SSL"], trusting(stores)) as wire:
        answer = wire.ask(messages.DescribeConfigsRequest(resources=[resource]), 4)
    told = {row.name: row.value for row in answer.results[0].configs}
    assert told["listener.name.mutual.ssl.keystore.password"] is None
    assert told["ssl.keystore.location"] == str(stores / "server.pem")
    assert PASSWORD not in broker.log and "PRIVATE KEY" not in broker.log

"""RangeReader against JVM Kafka: transactions with aborts, compaction, and the ways to prove who one is.

One JVM with a listener for each security protocol; the certificates are made by openssl for this run."""

import shutil
import subprocess
import uuid

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from kafkad.client.cluster import Cluster
from kafkad.client.offsets import LATEST, list_offsets
from kafkad.client.security import AuthenticationFailed
from kafkad.spark.range_reader import FetchTimeout, RangeReader
from tests.clients import create_topic, wait_until
from tests.jvm import JvmKafka, free_port

pytestmark = pytest.mark.java

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required"
PROTOCOLS = "SASL_PLAINTEXT", "SSL", "SASL_SSL"
SECRET = 'se"cr\\et,=;'  # what must be quoted somewhere


def openssl(directory, *arguments):
    subprocess.run(["openssl", *arguments], cwd=directory, check=True, capture_output=True)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """ca.pem; server.pem and client.pem, each with its key; client.crt and client.key apart."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificates, and is not there")
    here = tmp_path_factory.mktemp("certificates")
    req = ["req", "-newkey", "rsa:2048", "-nodes"]
    openssl(here, *req, "-x509", "-days", "2", "-subj", "/CN=ca", "-keyout", "ca.key", "-out", "ca.pem")
    for name, extra in (("server", "subjectAltName=IP:127.0.0.1"), ("client", "subjectAltName=DNS:client")):
        (here / "extensions").write_text(extra)
        openssl(here, *req, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        openssl(
            here, "x509", "-req", "-days", "2", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key",
            "-CAcreateserial", "-extfile", "extensions", "-out", f"{name}.crt",
        )  # fmt: skip
        (here / f"{name}.pem").write_text(
            (here / f"{name}.key").read_text() + (here / f"{name}.crt").read_text()
        )
    return here


@pytest.fixture(scope="module")
def kafka(tmp_path_factory, certificates):
    quoted = SECRET.replace("\\", "\\\\").replace('"', '\\"')
    kafka = JvmKafka(
        tmp_path_factory.mktemp("kafka") / "data",
        config={
            "log.cleaner.backoff.ms": 200,
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": 500,
        },
    )
    kafka.ports = {name: free_port() for name in PROTOCOLS}
    extra = "".join(f",{name}://127.0.0.1:{port}" for name, port in kafka.ports.items())
    kafka.config["listeners"] += extra
    kafka.config["advertised.listeners"] += extra
    kafka.config["listener.security.protocol.map"] += "".join(f",{name}:{name}" for name in PROTOCOLS)
    kafka.config |= {
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(certificates / "server.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(certificates / "ca.pem"),
        "listener.name.ssl.ssl.client.auth": "required",
    }
    for name in ("sasl_plaintext", "sasl_ssl"):
        kafka.config[f"listener.name.{name}.plain.sasl.jaas.config"] = f'{PLAIN} user_alice="{quoted}";'
        for mechanism in ("scram-sha-256", "scram-sha-512"):
            kafka.config[f"listener.name.{name}.{mechanism}.sasl.jaas.config"] = f"{SCRAM};"
    escaped = {key: value.replace("\\", "\\\\") for key, value in kafka.config.items()}
    kafka.properties.write_text("".join(f"{key}={value}\n" for key, value in escaped.items()))
    with kafka:
        yield kafka


def rows(reader, *names):
    table = pa.Table.from_batches(list(reader), schema=None)
    return list(zip(*(table[name].to_pylist() for name in names), strict=True))


def offsets(reader):
    return [offset for batch in reader for offset in batch["offset"].to_pylist()]


def log_end(kafka, topic, isolation=0):
    with Cluster(kafka.bootstrap) as cluster:
        return list_offsets(cluster, topic, {0: LATEST}, isolation)[0]


def committed_by_librdkafka(kafka, topic, start, end):
    """The oracle: what another client gets of the range."""
    client = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap,
            "group.id": "oracle",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    client.assign([TopicPartition(topic, 0, start)])
    got = []
    while (message := client.poll(20)) is not None and not message.error():
        if message.offset() < end:
            got.append((message.offset(), message.value()))
    client.close()
    return got


def transactional(kafka, **config):
    producer = Producer(
        {
            "bootstrap.servers": kafka.bootstrap,
            "transactional.id": uuid.uuid4().hex,
            "linger.ms": 0,
            **config,
        }
    )
    producer.init_transactions(20)
    return producer


def write(producer, topic, tag, count):
    for i in range(count):
        producer.produce(topic, f"{tag}-{i}", partition=0)
    producer.flush(20)


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_aborted_transactions_are_left_out_from_wherever_one_reads(kafka, codec):
    topic = create_topic(kafka, f"transactions-{codec}")
    one, two = (transactional(kafka, **{"compression.type": codec}) for _ in range(2))
    plain = Producer({"bootstrap.servers": kafka.bootstrap})
    for turn in range(12):
        one.begin_transaction()
        two.begin_transaction()
        for part in range(3):
            write(one, topic, f"one-{turn}-{part}", 7)
            write(two, topic, f"two-{turn}-{part}", 5)
            write(plain, topic, f"plain-{turn}-{part}", 2)
        (one.abort_transaction if turn % 3 == 0 else one.commit_transaction)(20)
        (two.abort_transaction if turn % 4 == 1 else two.commit_transaction)(20)
    end = log_end(kafka, topic)
    expected = committed_by_librdkafka(kafka, topic, 0, end)
    assert len(expected) == 12 * 6 + 8 * 21 + 9 * 15
    reading = {"isolation": "read_committed", "timeout_s": 20}
    got = rows(RangeReader(kafka.bootstrap, {}, topic, 0, 0, end, **reading), "offset", "value")
    assert got == expected
    small = {"fetch_bytes": 1, **reading}
    for start in range(0, end, 7):
        reader = RangeReader(kafka.bootstrap, {}, topic, 0, start, min(start + 60, end), **small)
        assert offsets(reader) == [o for o, _ in expected if start <= o < start + 60]
        assert reader.position == min(start + 60, end)
    # uncommitted: all records, and no control record
    everything = offsets(RangeReader(kafka.bootstrap, {}, topic, 0, 0, end))
    assert len(everything) == 12 * 3 * (7 + 5 + 2)
    # the range may end on markers, and be nothing but one
    assert offsets(RangeReader(kafka.bootstrap, {}, topic, 0, end - 1, end, **reading)) == []


def test_an_open_transaction_holds_a_committed_reader_back(kafka):
    topic = create_topic(kafka, "open-transaction")
    producer = transactional(kafka)
    producer.begin_transaction()
    write(producer, topic, "open", 5)
    assert offsets(RangeReader(kafka.bootstrap, {}, topic, 0, 0, 5)) == list(range(5))
    reading = {"isolation": "read_committed"}
    with pytest.raises(FetchTimeout, match="a transaction that began at 0 has not ended"):
        offsets(RangeReader(kafka.bootstrap, {}, topic, 0, 0, 5, timeout_s=0.6, **reading))
    producer.commit_transaction(20)
    assert offsets(RangeReader(kafka.bootstrap, {}, topic, 0, 0, 6, timeout_s=20, **reading)) == list(
        range(5)
    )


def test_the_holes_of_a_compacted_topic(kafka):
    config = {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0.01",
        "segment.ms": "100",
        "max.compaction.lag.ms": "200",
    }
    topic = create_topic(kafka, "compacted", config=config)
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "linger.ms": 0})
    for i in range(300):
        producer.produce(topic, b"%d" % i, b"key %d" % (i % 10 if i % 50 else i), partition=0)
        if i % 20 == 0:
            producer.flush(20)

    def compacted():
        producer.produce(topic, b"later", b"later", partition=0)  # rolls the segment
        producer.flush(20)
        end = log_end(kafka, topic)
        reader = RangeReader(kafka.bootstrap, {}, topic, 0, 0, end, timeout_s=20)
        found = rows(reader, "offset", "key", "value")
        return found if len(found) < 100 else None

    found = wait_until(compacted, 60)
    last = {key: (offset, value) for offset, key, value in found}
    assert last[b"key 3"] == (293, b"293") and last[b"key 50"] == (50, b"50")
    positions = [offset for offset, *_ in found]
    assert positions == sorted(set(positions))
    for start in range(0, 260, 23):  # compaction goes on, so what is read may be less than it was, never more
        reader = RangeReader(kafka.bootstrap, {}, topic, 0, start, start + 40, timeout_s=20)
        told = offsets(reader)
        assert set(told) <= {o for o in positions if start <= o < start + 40}
        assert told == sorted(told) and reader.position == start + 40 and not reader.lost


# -- who one is --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def scram(kafka):
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    kinds = ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512
    for kind in kinds:
        wanted = UserScramCredentialUpsertion("al,i=ce", ScramCredentialInfo(kind, 8192), SECRET.encode())
        for done in admin.alter_user_scram_credentials([wanted]).values():
            done.result(20)
    return "al,i=ce"


@pytest.fixture(scope="module")
def topic(kafka):
    name = create_topic(kafka, "secured")
    write(Producer({"bootstrap.servers": kafka.bootstrap}), name, "v", 5)
    return name


def read_by(kafka, topic, protocol, host="127.0.0.1", timeout_s=10, **options):
    options = {key.replace("_", "."): value for key, value in options.items()}
    address = f"{host}:{kafka.ports[protocol]}"
    config = {"security.protocol": protocol, **options}
    return offsets(RangeReader(address, config, topic, 0, 0, 5, timeout_s=timeout_s))


def jaas(module, user, password):
    quoted = password.replace("\\", "\\\\").replace('"', '\\"')
    return f'{module} username="{user}" password="{quoted}";'


@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_sasl(kafka, topic, scram, certificates, protocol, mechanism):
    user, module = ("alice", PLAIN) if mechanism == "PLAIN" else (scram, SCRAM)
    trust = {"ssl_truststore_location": str(certificates / "ca.pem")} if protocol == "SASL_SSL" else {}
    how = {"sasl_mechanism": mechanism, **trust}
    right = {"sasl_jaas_config": jaas(module, user, SECRET)}
    assert read_by(kafka, topic, protocol, **how, **right) == list(range(5))
    right = {"sasl_username": user, "sasl_password": SECRET}
    assert read_by(kafka, topic, protocol, **how, **right) == list(range(5))
    with pytest.raises(AuthenticationFailed, match="refused"):
        read_by(kafka, topic, protocol, **how, sasl_username=user, sasl_password="wrong")


def test_ssl_with_a_certificate_of_the_client(kafka, topic, certificates):
    here, trust = certificates, {"ssl_ca_location": str(certificates / "ca.pem")}
    both = {"ssl_keystore_type": "PEM", "ssl_keystore_location": str(here / "client.pem")}
    apart = {
        "ssl_certificate_location": str(here / "client.crt"),
        "ssl_key_location": str(here / "client.key"),
    }
    inline = {
        "ssl_keystore_type": "PEM",
        "ssl_keystore_certificate_chain": (here / "client.crt").read_text(),
        "ssl_keystore_key": (here / "client.key").read_text(),
    }
    for own in (both, apart, inline):
        assert read_by(kafka, topic, "SSL", **trust, **own) == list(range(5))
    with pytest.raises(FetchTimeout, match=r"Cannot fetch.*(TLS|closed|gone)"):
        read_by(kafka, topic, "SSL", timeout_s=0.5, **trust)


def test_a_certificate_must_be_of_who_we_trust_and_name_the_host(kafka, topic, certificates):
    password = {"sasl_mechanism": "PLAIN", "sasl_username": "alice", "sasl_password": SECRET}
    with pytest.raises(AuthenticationFailed, match="certificate"):
        read_by(kafka, topic, "SASL_SSL", **password)
    trust = {"ssl_truststore_certificates": (certificates / "ca.pem").read_text()}
    with pytest.raises(AuthenticationFailed, match="localhost"):
        read_by(kafka, topic, "SASL_SSL", host="localhost", **trust, **password)
    unchecked = {"ssl_endpoint_identification_algorithm": ""}
    told = read_by(kafka, topic, "SASL_SSL", host="localhost", **trust, **unchecked, **password)
    assert told == list(range(5))


def test_a_broker_that_wants_more_or_less_than_we_do(kafka, topic):
    with pytest.raises(FetchTimeout):
        address = f"127.0.0.1:{kafka.ports['SASL_PLAINTEXT']}"
        offsets(RangeReader(address, {}, topic, 0, 0, 5, timeout_s=0.5))
    address = kafka.bootstrap
    config = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "a",
        "sasl.password": "b",
    }
    with pytest.raises((AuthenticationFailed, FetchTimeout)):
        offsets(RangeReader(address, config, topic, 0, 0, 5, timeout_s=0.5))

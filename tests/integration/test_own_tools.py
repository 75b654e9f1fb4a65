"""kafkad's own clients over TLS and SASL: the commands, the Spark source and sink, `kafkad ingest`. Each
login is a client's properties, as the Java clients have them."""

import hashlib
import json
import socket
import subprocess
import sys

import pytest

from kafkad.client.security import AuthenticationFailed, Security
from kafkad.protocol import messages
from kafkad.testing import Broker
from tests.certificates import PASSWORD, make_jks, make_stores
from tests.ingest_world import SPARK, Job, landed, verified
from tests.jvm import free_port
from tests.sparks import spark_session
from tests.wire import Wire

pytestmark = pytest.mark.workers(2)

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required"
SALT, ROUNDS = b"pepper", 4096
COMMAND_SECONDS = 60


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    here = make_stores(tmp_path_factory.mktemp("stores"))
    make_jks(here, "client", "server")
    return here


@pytest.fixture(scope="module")
def broker(tmp_path_factory, stores):
    """MUTUAL wants a certificate and has stores of Java's, SASL_SSL wants a password and has PEM. The port of
    each is in `ports`."""
    here = tmp_path_factory.mktemp("kafkad")
    ports = {name: free_port() for name in ("PLAINTEXT", "MUTUAL", "SASL_SSL")}
    given = {
        "node.id": "1",
        "process.roles": "broker,controller",
        "log.dirs": str(here / "data"),
        "listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in ports.items()),
        "listener.security.protocol.map": "MUTUAL:SSL,SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
        "listener.name.sasl_ssl.plain.sasl.jaas.config": f'{PLAIN} user_alice="alice-secret";',
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(stores / "server.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(stores / "ca.pem"),
        "listener.name.mutual.ssl.client.auth": "required",
        "listener.name.mutual.ssl.keystore.type": "JKS",
        "listener.name.mutual.ssl.keystore.location": str(stores / "server.jks"),
        "listener.name.mutual.ssl.keystore.password": PASSWORD,
        "listener.name.mutual.ssl.truststore.type": "JKS",
        "listener.name.mutual.ssl.truststore.location": str(stores / "ca.jks"),
        "group.initial.rebalance.delay.ms": "0",
        "offsets.topic.num.partitions": "4",
        "transaction.state.log.num.partitions": "4",
    }
    properties = here / "server.properties"
    properties.write_text("".join(f"{key}={value}\n" for key, value in given.items()))
    with Broker(properties=properties) as broker:
        broker.ports = ports
        with Wire(f"127.0.0.1:{ports['PLAINTEXT']}") as wire:
            salted = hashlib.pbkdf2_hmac("sha512", b"bob-secret", SALT, ROUNDS)
            bob = messages.AlterUserScramCredentialsRequest.Upsertions(
                name="bob", mechanism=2, iterations=ROUNDS, salt=SALT, salted_password=salted
            )
            request = messages.AlterUserScramCredentialsRequest(deletions=[], upsertions=[bob])
            assert [it.error_code for it in wire.ask(request, 0).results] == [0]
        yield broker


def certificate(stores, kind: str) -> dict[str, str]:
    suffix = {"PEM": "pem", "PKCS12": "p12", "JKS": "jks"}[kind]
    found = {
        "security.protocol": "SSL",
        "ssl.truststore.type": kind,
        "ssl.truststore.location": str(stores / f"ca.{suffix}"),
        "ssl.keystore.type": kind,
        "ssl.keystore.location": str(stores / f"client.{suffix}"),
    }
    if kind != "PEM":
        found |= {"ssl.truststore.password": PASSWORD, "ssl.keystore.password": PASSWORD}
    return found


def password(stores, mechanism: str) -> dict[str, str]:
    module, user = (PLAIN, "alice") if mechanism == "PLAIN" else (SCRAM, "bob")
    return {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": f'{module} username="{user}" password="{user}-secret";',
        "ssl.truststore.location": str(stores / "ca.pem"),
    }


def login(stores, name: str) -> dict[str, str]:
    return certificate(stores, name) if name in ("PEM", "PKCS12", "JKS") else password(stores, name)


def bootstrap(broker, options: dict[str, str]) -> str:
    port = broker.ports["MUTUAL" if options["security.protocol"] == "SSL" else "SASL_SSL"]
    return f"127.0.0.1:{port}"


class Commands:
    def __init__(self, broker, directory, options: dict[str, str]) -> None:
        self.address = bootstrap(broker, options)
        self.file = directory / "client.properties"
        self.file.write_text("".join(f"{key}={value}\n" for key, value in options.items()))

    def __call__(self, *words: str, stdin: str = "", code: int = 0) -> str:
        """stdout, or stderr where it is to fail."""
        own = ("--bootstrap-server", self.address, "--command-config", str(self.file))
        done = subprocess.run(
            [sys.executable, "-m", "kafkad", *words, *own],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
        )
        assert done.returncode == code, done.stderr
        return done.stdout if code == 0 else done.stderr


@pytest.mark.java
@pytest.mark.parametrize("name", ["PEM", "PKCS12", "JKS", "PLAIN", "SCRAM-SHA-512"])
def test_all_commands_log_in(broker, stores, tmp_path, name):
    kafkad = Commands(broker, tmp_path, login(stores, name))
    topic = f"tools-{name}"
    kafkad("topics", "--create", "--topic", topic, "--partitions", "2")
    assert topic in kafkad("topics", "--list").split()
    kafkad("configs", "--alter", "--topic", topic, "--add-config", "retention.ms=-1")
    assert "retention.ms" in kafkad("configs", "--describe", "--topic", topic)
    kafkad("produce", "--topic", topic, stdin="".join(f"{n}\n" for n in range(100)))
    said = kafkad(
        "consume", "--topic", topic, "--group", f"group-{name}", "--from-beginning", "--max-messages", "100"
    )
    assert sorted(map(int, said.split())) == list(range(100))
    (group,) = json.loads(kafkad("groups", "--describe", "--group", f"group-{name}", "--state", "--json"))
    assert group["group"] == f"group-{name}"
    assert kafkad("transactions", "list", "--json").startswith("[")
    assert topic in kafkad("offsets", "--topic", topic)
    assert "api" in kafkad("cluster", "api-versions").lower()
    kafkad("topics", "--delete", "--topic", topic)


@pytest.mark.java
@pytest.mark.parametrize(
    ("name", "change", "code", "told"),
    [
        ("PLAIN", {"sasl.jaas.config": f'{PLAIN} username="alice" password="hush";'}, 1, "Invalid username"),
        ("PLAIN", {"sasl.jaas.config": f"{PLAIN} username=alice password=1hush;"}, 2, "key 'password'"),
        ("SCRAM-SHA-512", {"sasl.jaas.config": f'{SCRAM} username="x" password="hush";'}, 1, "credentials"),
        ("SCRAM-SHA-512", {"sasl.mechanism": "GSSAPI"}, 2, "GSSAPI needs sasl.kerberos.service.name"),
        ("PKCS12", {"ssl.keystore.password": "hush"}, 2, "cannot be opened with the password"),
        ("JKS", {"ssl.truststore.password": "hush"}, 2, "cannot be opened with the password"),
        ("JKS", {"ssl.key.password": "hush"}, 2, "is ssl.key.password right?"),
        ("PEM", {"ssl.truststore.location": "other.pem"}, 1, "the certificate of 127.0.0.1 is refused"),
        ("PEM", {"ssl.keystore.location": "stranger.pem"}, 1, "127.0.0.1"),
        ("PEM", {"ssl.keystore.location": "/nowhere.pem"}, 2, "certificate and key cannot be read"),
        (
            "PLAIN",
            {"security.protocol": "PLAINTEXT"},
            1,
            "if its listener expects TLS or a login, --command-",
        ),
    ],
)
def test_a_login_that_is_wrong_is_one_error_message(broker, stores, tmp_path, name, change, code, told):
    change = {key: str(stores / it) if it.endswith(".pem") else it for key, it in change.items()}
    kafkad = Commands(broker, tmp_path, login(stores, name) | change)
    said = kafkad("topics", "--list", code=code)
    assert told in said and "hush" not in said and "Traceback" not in said, said


@pytest.mark.java
def test_a_host_that_the_certificate_does_not_name_is_refused(broker, stores):
    options = certificate(stores, "PEM") | {
        "ssl.truststore.certificates": (stores / "ca.pem").read_text(),
        "ssl.endpoint.identification.algorithm": "https",
    }
    address = ("127.0.0.1", broker.ports["MUTUAL"])
    with (
        socket.create_connection(address, 10) as plain,
        pytest.raises(AuthenticationFailed, match="elsewhere"),
    ):
        Security.of(options).wrap(plain, "elsewhere.example")
    options["ssl.endpoint.identification.algorithm"] = ""
    with (
        socket.create_connection(address, 10) as plain,
        Security.of(options).wrap(plain, "elsewhere.example") as wrapped,
    ):
        assert wrapped.version() == "TLSv1.3"


@pytest.mark.java
@pytest.mark.spark
@pytest.mark.workers()
@pytest.mark.timeout(300)
def test_spark_and_ingest_log_in(broker, stores, tmp_path):
    """One job writes by password and reads by certificate, and streams; ingest lands what it wrote."""

    def options(name: str) -> dict[str, str]:
        own = login(stores, name)
        return {
            f"kafka.{key}": text
            for key, text in (own | {"bootstrap.servers": bootstrap(broker, own)}).items()
        }

    with spark_session() as spark:
        frame = spark.range(200).selectExpr("cast(id as string) value")
        for name in ("SCRAM-SHA-512", "PKCS12"):
            frame.write.format("kafkad").options(**options(name), topic="of-spark").mode("append").save()
        for name in ("PLAIN", "JKS"):
            rows = spark.read.format("kafkad").options(**options(name), subscribe="of-spark").load()
            assert rows.selectExpr("count(*) n", "sum(cast(cast(value as string) as int)) s").first() == (
                400,
                39800,
            )
        stream = (
            spark.readStream.format("kafkad")
            .options(**options("PEM"), subscribe="of-spark", startingOffsets="earliest")
            .load()
            .select("value")
            .writeStream.format("kafkad")
            .options(**options("SCRAM-SHA-512"), topic="streamed", checkpointLocation=str(tmp_path / "at"))
            .trigger(availableNow=True)
            .start()
        )
        stream.awaitTermination(120)
        assert stream.exception() is None
    kafkad = Commands(broker, tmp_path, login(stores, "PLAIN"))
    said = kafkad("consume", "--topic", "streamed", "--from-beginning", "--max-messages", "400")
    assert sum(map(int, said.split())) == 39800

    own = login(stores, "SCRAM-SHA-512")
    lines = "".join(f"{key} = {json.dumps(text)}\n" for key, text in own.items())
    pipeline = tmp_path / "pipeline.toml"
    pipeline.write_text(f"""
[source]
bootstrap = "{bootstrap(broker, own)}"
topics = "streamed"
[source.kafka]
{lines}
[decode]
format = "raw"
[sink]
path = "table"
{SPARK}
""")
    with Job(pipeline) as job:
        job.finish()
    assert job.rows == 400 and landed(tmp_path / "table", "SELECT count(*) FROM landed") == [(400,)]
    verified(pipeline)

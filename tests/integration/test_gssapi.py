"""GSSAPI with a real KDC: the same configuration and the same attempts on kafkad and JVM Kafka, then Kafka's
own tools and ours."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kafkad.protocol import errors, messages
from kafkad.testing import Broker
from tests.integration.test_sasl import COMMON, authenticate, handshake, works
from tests.jvm import FAST_JVM, JvmKafka, free_port, tool_command
from tests.kdc import REALM, Kdc, program
from tests.no_skips import NO_KDC
from tests.wire import Wire

gssapi = pytest.importorskip("gssapi", reason=NO_KDC)

MODULE = "com.sun.security.auth.module.Krb5LoginModule required"
JAAS = "listener.name.krb.gssapi.sasl.jaas.config"


class Served:
    def __init__(self, broker, bootstrap: str) -> None:
        self.broker, self.bootstrap = broker, bootstrap


@pytest.fixture(scope="module")
def kdc(tmp_path_factory):
    with Kdc(tmp_path_factory.mktemp("kdc")) as kdc, pytest.MonkeyPatch.context() as patch:
        for name in ("alice", "carol", "dave/admin", "kafka/localhost", "other/localhost"):
            kdc.keytab(name)
        for name, value in kdc.environment.items():
            patch.setenv(name, value)
        yield kdc


def jaas(kdc: Kdc, principal: str) -> str:
    keytab = kdc.directory / f"{principal.replace('/', '.')}.keytab"
    return f'{MODULE} useKeyTab=true storeKey=true keyTab="{keytab}" principal="{principal}@{REALM}";'


def settings(kdc: Kdc) -> dict[str, str]:
    return {
        "sasl.enabled.mechanisms": "GSSAPI",
        "sasl.kerberos.service.name": "kafka",
        "sasl.kerberos.principal.to.local.rules": "RULE:[2:$1.$2](dave.*)s/\\./-/U,DEFAULT",
        JAAS: jaas(kdc, "kafka/localhost"),
        "listener.name.krb.connections.max.reauth.ms": "600000",
        "connection.failed.authentication.delay.ms": "10",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS;User:alice;User:DAVE-ADMIN",
    }


def serve(directory: Path, kdc: Kdc, **more: str) -> Served:
    port = free_port()
    given = {
        "node.id": "1",
        "process.roles": "broker,controller",
        "listeners": f"PLAINTEXT://127.0.0.1:0,KRB://localhost:{port}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,KRB:SASL_PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "log.dirs": str(directory / "data"),
        **COMMON,
        **settings(kdc),
        **more,
    }
    properties = directory / "server.properties"
    text = "".join(f"{key}={value}\n" for key, value in given.items())
    properties.write_text(text.replace("\\", "\\\\"))
    return Served(Broker(properties=properties, workers=2), f"localhost:{port}")


@pytest.fixture(scope="module")
def ours(tmp_path_factory, kdc):
    served = serve(tmp_path_factory.mktemp("kafkad"), kdc)
    with served.broker:
        yield served


@pytest.fixture(scope="module")
def theirs(tmp_path_factory, kdc):
    krb5 = f"-Djava.security.krb5.conf={kdc.config}"
    kafka = JvmKafka(
        tmp_path_factory.mktemp("jvm") / "data",
        config=settings(kdc),
        jvm=("-Xmx768m", *FAST_JVM, krb5),
    )
    at = f"localhost:{free_port()}"
    for key in ("listeners", "advertised.listeners"):
        kafka.config[key] += f",KRB://{at}"
    kafka.config["listener.security.protocol.map"] += ",KRB:SASL_PLAINTEXT"
    text = "".join(f"{key}={value}\n" for key, value in kafka.config.items())
    kafka.properties.write_text(text.replace("\\", "\\\\"))
    with kafka:
        yield Served(kafka, at)


# -- the same attempts on both -----------------------------------------------------------------------------


def context(kdc: Kdc, principal: str, service: str) -> gssapi.SecurityContext:
    store = {"ccache": kdc.ticket(principal)}
    flags = gssapi.RequirementFlag.mutual_authentication | gssapi.RequirementFlag.integrity
    return gssapi.SecurityContext(
        name=gssapi.Name(f"{service}@localhost", gssapi.NameType.hostbased_service),
        creds=gssapi.Credentials(usage="initiate", store=store),
        mech=gssapi.MechType.kerberos,
        flags=flags,
        usage="initiate",
    )


def may_create(wire: Wire) -> int:
    topic = messages.CreateTopicsRequest.Topics(name="t", num_partitions=1, replication_factor=1)
    answer = wire.ask(messages.CreateTopicsRequest(topics=[topic], timeout_ms=30_000, validate_only=True), 7)
    return answer.topics[0].error_code


def by_ticket(principal: str, service: str = "kafka", chosen: bytes = b"\x01\0\0\0"):
    """(what was offered, the last answer, whether it may create topics or is closed)."""

    def attempt(wire: Wire, kdc: Kdc):
        assert handshake(wire, "GSSAPI").error_code == 0
        client = context(kdc, principal, service)
        said = client.step()
        while True:
            answer = authenticate(wire, said)
            if answer.error_code:
                return answer.error_code, answer.error_message, wire.is_closed_by_broker()
            if client.complete:
                break
            said = client.step(bytes(answer.auth_bytes)) or b""
            if client.complete and not said:
                answer = authenticate(wire, said)
                break
        offered = client.unwrap(bytes(answer.auth_bytes)).message
        last = authenticate(wire, client.wrap(chosen, False).message)
        told = last.error_code, last.error_message, bytes(last.auth_bytes)
        if last.error_code:
            return offered[0], told, wire.is_closed_by_broker()
        return offered[0], told, last.session_lifetime_ms, works(wire), may_create(wire)

    return attempt


def saying(token: bytes):
    def attempt(wire: Wire, kdc: Kdc):
        assert handshake(wire, "GSSAPI").error_code == 0
        answer = authenticate(wire, token)
        return answer.error_code, answer.error_message, wire.is_closed_by_broker()

    return attempt


def twice(wire: Wire, kdc: Kdc):
    """The first token of a login, also on a second connection."""
    port = wire.socket.getpeername()[1]
    said = context(kdc, "alice", "kafka").step()
    with Wire(f"localhost:{port}") as other:
        assert handshake(other, "GSSAPI").error_code == 0
        assert authenticate(other, said).error_code == 0
    assert handshake(wire, "GSSAPI").error_code == 0
    answer = authenticate(wire, said)
    return answer.error_code, answer.error_message, wire.is_closed_by_broker()


GOOD = 600_000, 1, 0
ATTEMPTS: dict[str, Any] = {
    "a ticket": (by_ticket("alice"), GOOD),
    "a ticket of somebody who may little": (
        by_ticket("carol"),
        (600_000, 1, errors.TOPIC_AUTHORIZATION_FAILED),
    ),
    "a principal of two parts": (by_ticket("dave/admin"), GOOD),
    "a name beside the ticket's": (by_ticket("alice", chosen=b"\x01\0\0\0bob"), GOOD),
    "a ticket for another service": (by_ticket("alice", "other"), (True,)),
    "a layer that was not offered": (by_ticket("alice", chosen=b"\x02\0\0\0"), (True,)),
    "no token of Kerberos": (saying(b"\x60\x01x"), (True,)),
    "a token that comes twice": (twice, (True,)),
    "an empty token": (saying(b""), (True,)),
}


@pytest.mark.java
@pytest.mark.parametrize("kind", ATTEMPTS)
def test_each_attempt_ends_as_on_kafka(ours, theirs, kdc, kind):
    attempt, ends = ATTEMPTS[kind]
    found = []
    for served in (ours, theirs):
        with Wire(served.bootstrap) as wire:
            found.append(attempt(wire, kdc))
    assert found[0] == found[1]
    assert found[0][-len(ends) :] == ends


# -- clients -----------------------------------------------------------------------------------------------


def options(kdc: Kdc, principal: str, path: Path) -> Path:
    path.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=GSSAPI\nsasl.kerberos.service.name=kafka\n"
        f"sasl.jaas.config={jaas(kdc, principal)}\n"
    )
    return path


@pytest.mark.java
def test_kafkas_tools(ours, kdc, tmp_path):
    command = tool_command(
        "4.3.1", "kafka-topics", "--bootstrap-server", ours.bootstrap, "--create", "--topic", "by-java",
        "--command-config", options(kdc, "alice", tmp_path / "alice.properties"),
        jvm=(f"-Djava.security.krb5.conf={kdc.config}",),
    )  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=90)
    assert (done.returncode, done.stdout) == (0, "Created topic by-java.\n"), done.stderr


def kcat(served: Served, kdc: Kdc, principal: str, *arguments: str, stdin: str = "", service: str = "kafka"):
    given = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "GSSAPI",
        "sasl.kerberos.service.name": service,
        "sasl.kerberos.principal": principal,
        "sasl.kerberos.keytab": str(kdc.directory / f"{principal}.keytab"),
        "message.timeout.ms": "30000",
    }
    command = [program("kcat"), "-b", served.bootstrap, *arguments]
    command += [word for item in given.items() for word in ("-X", "=".join(item))]
    cache = {"KRB5CCNAME": f"FILE:{kdc.directory / 'kcat.cache'}"}  # it calls kinit
    return subprocess.run(
        command, input=stdin, capture_output=True, text=True, timeout=90, env={**os.environ, **cache}
    )


def test_librdkafka(ours, kdc, tmp_path):
    common = "--bootstrap-server", ours.bootstrap, "--command-config"
    done = kafkad(
        "topics", "--create", "--topic", "by-c", *common, options(kdc, "alice", tmp_path / "alice.properties")
    )
    assert done.returncode == 0, done.stderr
    done = kcat(ours, kdc, "alice", "-P", "-t", "by-c", stdin="one\ntwo\n")
    assert done.returncode == 0, done.stderr
    done = kcat(ours, kdc, "alice", "-C", "-t", "by-c", "-o", "beginning", "-e", "-q")
    assert done.stdout == "one\ntwo\n", done.stderr
    done = kcat(ours, kdc, "carol", "-C", "-t", "by-c", "-o", "beginning", "-e", "-q")
    assert done.returncode != 0 and "authorization failed" in done.stderr
    done = kcat(ours, kdc, "alice", "-L", service="other")
    assert done.returncode != 0 and "Authentication failed" in done.stderr


def kafkad(*arguments: object, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kafkad", *map(str, arguments)]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=90)


def test_kafkads_own_commands(ours, kdc, tmp_path):
    given = options(kdc, "alice", tmp_path / "alice.properties")
    common = "--bootstrap-server", ours.bootstrap, "--command-config", given
    done = kafkad("topics", "--create", "--topic", "own", *common)
    assert done.returncode == 0, done.stderr
    done = kafkad("produce", "--topic", "own", *common, stdin="hello\n")
    assert done.returncode == 0, done.stderr
    done = kafkad("consume", "--topic", "own", "--from-beginning", "--max-messages", "1", *common)
    assert "hello" in done.stdout, done.stderr
    given.write_text(given.read_text().replace("name=kafka", "name=other"))
    done = kafkad("topics", "--list", *common)
    assert done.returncode != 0 and "refused the ticket: Authentication failed" in done.stderr
    given.write_text(given.read_text().replace("name=other", "name=nobody"))
    done = kafkad("topics", "--list", *common)
    assert done.returncode != 0 and "no login by Kerberos" in done.stderr


# -- what ends the start -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({JAAS: f"{MODULE};"}, "useKeyTab=true is missing"),
        ({JAAS: f"{MODULE} useKeyTab=true storeKey=true;"}, 'keyTab="..." is missing'),
        ({"sasl.kerberos.service.name": ""}, "Missing configuration sasl.kerberos.service.name"),
        ({"sasl.kerberos.principal.to.local.rules": "RULE:[1:$1"}, "Invalid rule: RULE:[1:$1"),
        ({JAAS: "another keytab"}, "cannot be used for kafka/localhost@KAFKAD.TEST"),
    ],
)
def test_a_configuration_that_cannot_be(kdc, tmp_path, more, told):
    if more.get(JAAS) == "another keytab":
        more = {JAAS: jaas(kdc, "kafka/localhost").replace("kafka.localhost.keytab", "alice.keytab")}
    given = {
        "listeners": "KRB://localhost:0,PLAINTEXT://127.0.0.1:0",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,KRB:SASL_PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "log.dirs": str(tmp_path / "data"),
        **settings(kdc),
        **more,
    }
    words = [word for item in given.items() for word in ("--override", "=".join(item))]
    done = subprocess.run(
        [sys.executable, "-m", "kafkad", "serve", *words],
        capture_output=True, text=True, timeout=90, env=os.environ,
    )  # fmt: skip
    assert done.returncode == 2 and told in done.stderr, done.stderr

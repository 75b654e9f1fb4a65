"""OAUTHBEARER: the same configuration and the same attempts on kafkad and JVM Kafka, with unsecured tokens
and with tokens that a provider signed; then real clients, sessions that end, and keys that change."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider
from confluent_kafka import Consumer, KafkaError, Producer

from kafkad.client.connection import Connection
from kafkad.client.security import Security
from kafkad.protocol import messages
from kafkad.security.jwt import unsecured
from kafkad.testing import Broker
from tests.certificates import make_stores
from tests.clients import WAIT_S, wait_until
from tests.integration.test_sasl import COMMON, authenticate, handshake, works
from tests.jvm import FAST_JVM, JvmKafka, free_port, run_tool, tool_command
from tests.oauth_provider import AUDIENCE, ISSUER, EllipticKey, Provider, RsaKey, claims, encoded, signed
from tests.wire import Wire

MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
HANDLER = "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler"
OPEN, SIGNED = "listener.name.sasl_plaintext.oauthbearer", "listener.name.signed.oauthbearer"


def settings(provider: Provider, stores: Path) -> dict[str, str]:
    """Two listeners: SASL_PLAINTEXT takes unsecured tokens, SIGNED those of the provider."""
    own = f'{MODULE} unsecuredLoginStringClaim_sub="broker"'
    return {
        "listener.security.protocol.map": "SASL_PLAINTEXT:SASL_PLAINTEXT,SIGNED:SASL_PLAINTEXT",
        "security.inter.broker.protocol": "SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "connection.failed.authentication.delay.ms": "10",
        "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER",
        f"{OPEN}.sasl.jaas.config": f"{own};",
        f"{SIGNED}.sasl.jaas.config": f'{own} ssl.truststore.type="PEM"'
        f' ssl.truststore.location="{stores / "ca.pem"}";',
        f"{SIGNED}.sasl.server.callback.handler.class": HANDLER,
        "listener.name.signed.sasl.oauthbearer.jwks.endpoint.url": provider.keys_url,
        "listener.name.signed.sasl.oauthbearer.expected.audience": f"web,{AUDIENCE}",
        f"{SIGNED}.sasl.oauthbearer.expected.issuer": ISSUER,
    }


class Served:
    """A broker with both listeners."""

    def __init__(self, broker, unsecured_at: str, signed_at: str) -> None:
        self.broker, self.unsecured_at, self.signed_at = broker, unsecured_at, signed_at

    @property
    def log(self) -> str:
        return self.broker.log


@pytest.fixture(scope="module")
def provider(tmp_path_factory):
    stores = make_stores(tmp_path_factory.mktemp("stores"))
    with Provider(stores / "server.pem") as provider:
        provider.stores = stores
        yield provider


def serve(directory: Path, provider: Provider, workers: int = 2, **more: str) -> Served:
    ports = free_port(), free_port()
    given = {
        "node.id": "1",
        "process.roles": "broker,controller",
        "listeners": f"SASL_PLAINTEXT://127.0.0.1:{ports[0]},SIGNED://127.0.0.1:{ports[1]}",
        "log.dirs": str(directory / "data"),
        **COMMON,
        **settings(provider, provider.stores),
        **more,
    }
    properties = directory / "server.properties"
    properties.write_text("".join(f"{key}={value}\n" for key, value in given.items()))
    broker = Broker(properties=properties, workers=workers)
    return Served(broker, *(f"127.0.0.1:{port}" for port in ports))


@pytest.fixture(scope="module")
def ours(tmp_path_factory, provider):
    served = serve(tmp_path_factory.mktemp("kafkad"), provider)
    with served.broker:
        yield served


@pytest.fixture(scope="module")
def theirs(tmp_path_factory, provider):
    allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={provider.keys_url}"
    kafka = JvmKafka(
        tmp_path_factory.mktemp("jvm") / "data",
        config=settings(provider, provider.stores),
        jvm=("-Xmx768m", *FAST_JVM, allowed),
    )
    signed_at = f"127.0.0.1:{free_port()}"
    for key in ("listeners", "advertised.listeners"):
        text = kafka.config[key].replace("PLAINTEXT://", "SASL_PLAINTEXT://", 1)
        kafka.config[key] = f"{text},SIGNED://{signed_at}"
    kafka.config["listener.security.protocol.map"] += ",CONTROLLER:PLAINTEXT"
    kafka.properties.write_text("".join(f"{key}={value}\n" for key, value in kafka.config.items()))
    with kafka:
        yield Served(kafka, kafka.bootstrap, signed_at)


# -- the same attempts on both -----------------------------------------------------------------------------


def message(token: str, authzid: str = "", more: str = "") -> bytes:
    named = f"a={authzid}" if authzid else ""
    return f"n,{named},\x01auth=Bearer {token}\x01{more}\x01".encode()


def log_in(wire: Wire, said: bytes, answer: bytes = b"\x01"):
    """(the first answer's error, text and token, the second's if there is one, whether it is served).

    A session's end is not the same on both: clocks go on."""
    assert handshake(wire, "OAUTHBEARER").error_code == 0
    first = authenticate(wire, said)
    told = [(first.error_code, first.error_message, bytes(first.auth_bytes))]
    if first.auth_bytes and not first.error_code:
        second = authenticate(wire, answer)
        told.append((second.error_code, second.error_message, bytes(second.auth_bytes)))
    if told[-1][0]:
        return told, wire.is_closed_by_broker()
    return told, 0 < first.session_lifetime_ms <= 3_600_000, works(wire)


def plain_token(**more) -> str:
    """Unsecured. Claims of None are left out."""
    now = time.time()
    body = {"sub": "anna", "iat": now - 1, "exp": now + 3600} | more
    return unsecured({"alg": "none"}, {name: value for name, value in body.items() if value is not None})


KEY = RsaKey("first")
STRANGER = RsaKey("first")
CURVE = EllipticKey("second")


def by_key(**more) -> str:
    return signed(KEY, claims(**more))


def confused() -> str:
    """HS256, with the public key as the secret."""
    import hashlib
    import hmac

    text = f"{encoded({'alg': 'HS256', 'kid': 'first'})}.{encoded(claims())}"
    secret = json.dumps(KEY.public()).encode()
    return f"{text}.{encoded(hmac.digest(secret, text.encode(), hashlib.sha256))}"


UNSECURED = {
    "a token": lambda: message(plain_token()),
    "as oneself": lambda: message(plain_token(), "anna"),
    "as somebody else": lambda: message(plain_token(), "bert"),
    "with extensions": lambda: message(plain_token(), more="logicalCluster=lkc-1\x01"),
    "a name of many letters": lambda: message(plain_token(sub="ü/@:é ")),
    "expired": lambda: message(plain_token(iat=1, exp=time.time() - 1)),
    "no end": lambda: message(plain_token(exp=None)),
    "an end that is text": lambda: message(plain_token(exp="tomorrow")),
    "issued tomorrow": lambda: message(plain_token(iat=time.time() + 86400, exp=time.time() + 90000)),
    "not issued": lambda: message(plain_token(iat=None)),
    "nobody": lambda: message(plain_token(sub=None)),
    "a blank name": lambda: message(plain_token(sub="  ")),
    "a signed one": lambda: message(by_key()),
    "a signature without an algorithm": lambda: message(plain_token() + "AAAA"),
    "no token": lambda: message("x"),
    "four parts": lambda: message(plain_token() + ".x"),
    "no JSON": lambda: message("e30.AAAA."),
    "no message": lambda: b"hello",
    "an empty message": lambda: b"",
    "only the end of one": lambda: b"\x01",
    "no auth": lambda: b"n,,\x01a=b\x01\x01",
    "a bad extension": lambda: message(plain_token(), more="a1=b\x01"),
    "too deep": lambda: message(f"{encoded(b'[' * 30_000)}.e30."),
}
SIGNED_BY = {
    "a token": lambda: message(by_key()),
    "by an elliptic key": lambda: message(signed(CURVE, claims())),
    "without a key id": lambda: message(signed(KEY, claims(), kid=None)),
    "one of several audiences": lambda: message(by_key(aud=["x", "web"])),
    "issued and valid within the skew": lambda: message(by_key(nbf=int(time.time()) + 20)),
    "unsecured": lambda: message(plain_token()),
    "unsecured with all claims": lambda: message(unsecured({"alg": "none"}, claims())),
    "unsecured with a key id": lambda: message(unsecured({"alg": "none", "kid": "first"}, claims()) + "AAAA"),
    "keyed with the public key": lambda: message(confused()),
    "of a stranger": lambda: message(signed(STRANGER, claims())),
    "of a key that is not there": lambda: message(signed(RsaKey("gone"), claims())),
    "expired": lambda: message(by_key(iat=1, exp=int(time.time()) - 40)),
    "no end": lambda: message(by_key(exp=None)),
    "not issued": lambda: message(by_key(iat=None)),
    "not valid yet": lambda: message(by_key(nbf=int(time.time()) + 600)),
    "ended before it began": lambda: message(by_key(iat=int(time.time()) + 9999)),
    "another audience": lambda: message(by_key(aud="web2")),
    "no audience": lambda: message(by_key(aud=None)),
    "another issuer": lambda: message(by_key(iss="https://evil.test")),
    "no issuer": lambda: message(by_key(iss=None)),
    "nobody": lambda: message(by_key(sub=None)),
    "a blank name": lambda: message(by_key(sub=" ")),
    "a number": lambda: message(by_key(sub=7)),
    "a scope twice": lambda: message(by_key(scope=["a", "a"])),
    "a blank scope": lambda: message(by_key(scope=" ")),
    "scopes": lambda: message(by_key(scope=["a", "b"])),
    "nested": lambda: message(signed(KEY, claims(), cty="JWT")),
    "encrypted": lambda: message("a.b.c.d.e"),
    "a critical header": lambda: message(signed(KEY, claims(), crit=["odd"], odd=1)),
    "cut": lambda: message(by_key()[:-20]),
    "as oneself": lambda: message(by_key(), "anna"),
    "as somebody else": lambda: message(by_key(), "admin"),
}


@pytest.fixture(scope="module", autouse=True)
def keys_of_this_file(provider):
    provider.keys = [KEY, CURVE]


@pytest.mark.java
@pytest.mark.parametrize("kind", ["unsecured", "signed"])
def test_each_attempt_ends_as_on_kafka(ours, theirs, kind):
    """One table of attempts, cell by cell."""
    different = {}
    for name, make in (UNSECURED if kind == "unsecured" else SIGNED_BY).items():
        said = make()
        with Wire(getattr(ours, f"{kind}_at")) as one, Wire(getattr(theirs, f"{kind}_at")) as other:
            found, expected = log_in(one, said), log_in(other, said)
        if found != expected:
            different[name] = found, expected
    assert not different, "\n".join(f"{name}: {cell}" for name, cell in different.items())


def test_no_token_is_in_the_log(ours):
    """Whatever is wrong of it."""
    texts = [make() for make in (*UNSECURED.values(), *SIGNED_BY.values())]
    half = len(UNSECURED)
    for number, said in enumerate(texts):
        with Wire(ours.unsecured_at if number < half else ours.signed_at) as wire:
            log_in(wire, said)
    written = ours.broker.log_file.read_text()
    assert "its audience is 'web2', not web or kafka" in written
    assert "the signature is wrong (key 'first', RS256)" in written
    for said in texts:
        for part in said.decode().replace("\x01", ".").split("."):
            assert len(part) < 25 or part not in written


def test_a_flood_of_logins_leaves_others_alone(ours):
    """2,000 tokens of a stranger, each to be verified, on 40 connections at a time."""
    said = message(signed(STRANGER, claims()))
    with Wire(ours.signed_at) as other:
        log_in(other, message(by_key()))
        for _ in range(10):
            wires = [Wire(ours.signed_at) for _ in range(40)]
            for wire in wires:
                wire.send(messages.SaslHandshakeRequest(mechanism="OAUTHBEARER"), 1)
                wire.send(messages.SaslAuthenticateRequest(auth_bytes=said), 2)
            assert works(other) == 1
            for wire in wires:
                wire.read_frame()
                wire.read_frame()
                wire.socket.close()
        assert works(other) == 1


# -- sessions and keys -------------------------------------------------------------------------------------


def test_a_session_ends_with_its_token(ours):
    with Wire(ours.signed_at) as idle, Wire(ours.signed_at) as keen:
        for wire in (idle, keen):
            handshake(wire, "OAUTHBEARER")
            answer = authenticate(wire, message(by_key(exp=int(time.time()) + 3)))
            assert 1_000 < answer.session_lifetime_ms <= 3_000
            assert works(wire) == 1
        time.sleep(1.1)
        handshake(keen, "OAUTHBEARER")
        assert authenticate(keen, message(by_key())).session_lifetime_ms > 3_000_000
        time.sleep(2)
        idle.send(messages.MetadataRequest(topics=[]), 9)
        assert idle.is_closed_by_broker()
        assert works(keen) == 1
        time.sleep(0.2)
        handshake(keen, "OAUTHBEARER")
        answer = authenticate(keen, message(by_key(sub="bert")))
        assert answer.error_message == (
            "Cannot change principals during re-authentication from User.anna: User.bert"
        )
        assert keen.is_closed_by_broker()


def test_a_session_that_is_shorter_than_its_token(tmp_path, provider):
    """librdkafka authenticates anew, and nothing is lost."""
    served = serve(tmp_path, provider, **{f"{SIGNED}.connections.max.reauth.ms": "1500"})
    with served.broker:
        with Wire(served.signed_at) as wire:
            handshake(wire, "OAUTHBEARER")
            assert authenticate(wire, message(by_key())).session_lifetime_ms == 1500
        delivered, troubles = [], []
        producer = Producer({**rdkafka(served, provider), "linger.ms": 0, "error_cb": troubles.append})
        end = time.monotonic() + 4
        while time.monotonic() < end:
            producer.produce("t", b"x", on_delivery=lambda error, message: delivered.append(error))
            producer.poll(0.02)
        assert producer.flush(WAIT_S) == 0
        assert len(delivered) > 50 and set(delivered) == {None} and not troubles


def test_keys_that_change(tmp_path, provider):
    """A token of a new key has the keys fetched; the provider's absence keeps the old ones."""
    served = serve(tmp_path, provider, 1)
    new = EllipticKey("new", "ES384")

    def outcome(key) -> bytes:
        with Wire(served.signed_at) as wire:
            handshake(wire, "OAUTHBEARER")
            return bytes(authenticate(wire, message(signed(key, claims()))).auth_bytes)

    with served.broker:
        assert outcome(KEY) == b""
        provider.answers = [(500, b"not now")] * 3
        assert outcome(new) == b'{"status":"invalid_token"}'
        wait_until(lambda: "answers 500" in served.log)
        assert outcome(KEY) == b"", "the old keys stay"
        provider.keys, provider.answers = [CURVE, new], []
        try:
            wait_until(lambda: outcome(new) == b"")
            assert outcome(KEY) == b'{"status":"invalid_token"}', "it is withdrawn"
        finally:
            provider.keys = [KEY, CURVE]


def test_a_provider_that_is_not_there_ends_the_start(tmp_path, provider):
    properties = tmp_path / "server.properties"
    for url, reason in (
        (f"https://127.0.0.1:{free_port()}/keys", "gives no answer: Connection refused"),
        (f"{provider.url}/x", "answers 404"),
        (f"file://{tmp_path}/absent.json", "No such file"),
        (provider.keys_url, "certificate"),
    ):
        serve(tmp_path, provider)
        text = properties.read_text().replace(provider.keys_url, url)
        if url == provider.keys_url:
            text = text.replace("/ca.pem", "/other.pem")
        properties.write_text(text)
        command = [sys.executable, "-m", "kafkad", "serve", str(properties), "--log-level", "error"]
        done = subprocess.run([*command, "--workers", "1"], capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1), done.stderr
        wrong = f"Invalid value {url} for configuration sasl.oauthbearer.jwks.endpoint.url: "
        assert wrong in done.stderr and reason in done.stderr
    assert not (tmp_path / "data").exists() or not any((tmp_path / "data").iterdir())


def test_keys_in_a_file(tmp_path, provider):
    path = tmp_path / "keys.json"
    path.write_bytes(provider.key_set())
    url = f"file://{path}"
    served = serve(tmp_path, provider, 1, **{"listener.name.signed.sasl.oauthbearer.jwks.endpoint.url": url})
    with served.broker:
        with Wire(served.signed_at) as wire:
            assert log_in(wire, message(by_key()))[-1] == 1
        new = RsaKey("new")
        path.write_text(json.dumps({"keys": [new.public()]}))

        def is_in() -> bool:
            with Wire(served.signed_at) as wire:
                return log_in(wire, message(signed(new, claims())))[-1] == 1 != False

        def taken() -> bool:
            with Wire(served.signed_at) as wire:
                handshake(wire, "OAUTHBEARER")
                return authenticate(wire, message(signed(new, claims()))).auth_bytes == b""

        wait_until(taken)
        path.write_text("no keys")
        wait_until(lambda: "not JSON" in served.log)
        assert taken()


# -- clients -----------------------------------------------------------------------------------------------


def rdkafka(served: Served, provider: Provider, **more: object) -> dict[str, object]:
    return {
        "bootstrap.servers": served.signed_at,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "oauth_cb": lambda _: (provider.token(**more), time.time() + 3600),
    }


def test_confluent_kafka(ours, provider):
    config = rdkafka(ours, provider)
    producer = Producer(config)
    producer.produce("oauth", b"x")
    assert producer.flush(WAIT_S) == 0
    consumer = Consumer({**config, "group.id": "oauth", "auto.offset.reset": "earliest"})
    consumer.subscribe(["oauth"])
    wait_until(lambda: (found := consumer.poll(0.2)) is not None and not found.error())
    consumer.close()

    troubles = []
    refused = Producer({**rdkafka(ours, provider, aud="x"), "error_cb": troubles.append})
    wait_until(lambda: refused.poll(0.1) is not None and troubles)
    assert troubles[0].code() == KafkaError._AUTHENTICATION


def test_librdkafkas_unsecured_tokens(ours):
    producer = Producer(
        {
            "bootstrap.servers": ours.unsecured_at,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "enable.sasl.oauthbearer.unsecure.jwt": True,
            "sasl.oauthbearer.config": "principal=anna",
        }
    )
    producer.produce("unsecured", b"x")
    assert producer.flush(WAIT_S) == 0


def test_aiokafka(ours, provider):
    import asyncio

    class Tokens(AbstractTokenProvider):
        async def token(self) -> str:
            return provider.token()

    async def send():
        producer = AIOKafkaProducer(
            bootstrap_servers=ours.signed_at,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="OAUTHBEARER",
            sasl_oauth_token_provider=Tokens(),
        )
        await producer.start()
        try:
            return await producer.send_and_wait("aio", b"aiokafka")
        finally:
            await producer.stop()

    assert asyncio.run(asyncio.wait_for(send(), WAIT_S)).topic == "aio"


def test_kafkads_own_commands(ours, provider, tmp_path):
    """Unsecured, and by a provider's client id and secret; the provider's certificate is checked."""
    client = tmp_path / "client.properties"
    login = "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=OAUTHBEARER\n"
    fetched = (
        f"sasl.oauthbearer.token.endpoint.url={provider.token_url}\n"
        "sasl.oauthbearer.client.credentials.client.id=anna\n"
        "sasl.oauthbearer.client.credentials.client.secret=anna-secret\n"
    )

    def kafkad(at: str, text: str, *arguments: str, stdin: str = "", code: int = 0) -> str:
        client.write_text(login + text)
        command = [sys.executable, "-m", "kafkad", *arguments, "--bootstrap-server", at]
        done = subprocess.run(
            [*command, "--command-config", str(client)],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == code, done.stderr
        return done.stdout if code == 0 else done.stderr

    jaas = f'sasl.jaas.config={MODULE} unsecuredLoginStringClaim_sub="anna";\n'
    assert kafkad(ours.unsecured_at, jaas, "produce", "--topic", "own", stdin="one\n") is not None
    trust = f'sasl.jaas.config={MODULE} ssl.truststore.type="PEM" ssl.truststore.location="{{}}";\n'
    known, other = (trust.format(provider.stores / name) for name in ("ca.pem", "other.pem"))
    read = ("consume", "--topic", "own", "--from-beginning", "--max-messages", "1")
    assert kafkad(ours.signed_at, fetched + known, *read) == "one\n"
    said = kafkad(ours.signed_at, fetched + other, "topics", "--list", code=1)
    assert "no token: " in said and "certificate" in said
    wrong = fetched.replace("anna-secret", "hush") + known
    said = kafkad(ours.signed_at, wrong, "topics", "--list", code=1)
    assert "answers 401: invalid_client" in said and "hush" not in said
    said = kafkad(ours.signed_at, jaas, "topics", "--list", code=1)
    assert "refused the token" in said and "invalid_token" in said


def test_our_client_logs_in_again_before_its_session_ends(tmp_path, provider):
    """KIP-368, while requests go on over the same connection."""
    served = serve(tmp_path, provider, **{f"{SIGNED}.connections.max.reauth.ms": "2000"})
    with served.broker:
        host, _, port = served.signed_at.rpartition(":")
        security = Security.of(
            {
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "OAUTHBEARER",
                "sasl.oauthbearer.token.endpoint.url": provider.token_url,
                "sasl.oauthbearer.client.id": "anna",
                "sasl.oauthbearer.client.secret": "anna-secret",
                "sasl.jaas.config": f'{MODULE} ssl.truststore.location="{provider.stores / "ca.pem"}";',
            }
        )
        connection = Connection(host, int(port), "x", security=security)
        end = time.monotonic() + 4.5
        while time.monotonic() < end:
            assert connection.ask(messages.MetadataRequest(topics=[])).brokers
            time.sleep(0.05)
        connection.close()


@pytest.mark.java
def test_kafkas_tools_with_unsecured_tokens(ours, tmp_path):
    client = tmp_path / "client.properties"
    client.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=OAUTHBEARER\n"
        f'sasl.jaas.config={MODULE} unsecuredLoginStringClaim_sub="anna";\n'
    )
    asked = ("--bootstrap-server", ours.unsecured_at, "--topic", "tools")
    run_tool("4.3.1", "kafka-console-producer", *asked, "--command-config", client, stdin="hello\n")
    said = run_tool(
        "4.3.1", "kafka-console-consumer", *asked, "--command-config", client, "--from-beginning",
        "--max-messages", 1, "--timeout-ms", 30_000,
    )  # fmt: skip
    assert said.lines == ["hello"]


@pytest.mark.java
def test_kafkas_tools_with_a_providers_tokens(ours, provider, tmp_path):
    """Java asks the provider by client id and secret; over http here, with the same keys."""
    client = tmp_path / "client.properties"
    with Provider() as plain:
        plain.keys = provider.keys
        allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={plain.token_url}"

        def create(secret: str) -> subprocess.CompletedProcess[str]:
            client.write_text(
                "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=OAUTHBEARER\n"
                "sasl.login.callback.handler.class="
                "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler\n"
                f"sasl.oauthbearer.token.endpoint.url={plain.token_url}\n"
                "sasl.oauthbearer.client.credentials.client.id=anna\n"
                f"sasl.oauthbearer.client.credentials.client.secret={secret}\n"
                f"sasl.jaas.config={MODULE};\n"
            )
            command = tool_command(
                "4.3.1", "kafka-topics", "--bootstrap-server", ours.signed_at, "--create",
                "--topic", "by-java", "--command-config", client, jvm=(allowed,),
            )  # fmt: skip
            return subprocess.run(command, capture_output=True, text=True, timeout=90)

        done = create("anna-secret")
        assert (done.returncode, done.stdout) == (0, "Created topic by-java.\n"), done.stderr
        assert plain.asked == ["/token"]
        assert create("guessed").returncode != 0

"""Delegation tokens (KIP-48, KIP-373): the same attempts on kafkad and JVM Kafka 4.3.1, logins with a token,
its end, and Kafka's own tool."""

import base64
import json
import subprocess
import sys
import time

import pytest

from kafkad.client.security import scram_conversation
from kafkad.protocol import errors, messages
from kafkad.testing import Broker
from tests.clients import WAIT_S, wait_until
from tests.integration.test_sasl import (
    COMMON,
    MODULE,
    SCRAM_MODULE,
    SECURED,
    authenticate,
    authenticated,
    handshake,
    works,
)
from tests.jvm import JvmKafka, free_port, run_tool
from tests.wire import Wire

PLAIN = "listener.name.sasl_plaintext.plain.sasl.jaas.config"
USERS = ("admin", "alice", "bob", "carol")
DAY, WEEK = 86_400_000, 7 * 86_400_000
CONFIG = {
    **SECURED,
    PLAIN: f'{MODULE} username="admin" password="admin-secret" '
    + " ".join(f'user_{user}="{user}-secret"' for user in USERS)
    + ";",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:admin;User:ANONYMOUS",
    "delegation.token.secret.key": "a-hush-hush-secret",
    "delegation.token.expiry.check.interval.ms": "1000",
    "connection.failed.authentication.delay.ms": "10",
}


class Served:
    def __init__(self, broker, bootstrap: str, open_at: str) -> None:
        self.broker, self.bootstrap, self.open_at = broker, bootstrap, open_at


def allow(served: Served) -> None:
    """Bob may ask for tokens of alice, and carol may see one of hers."""
    creation = messages.CreateAclsRequest.Creations
    with authenticated(served, user="admin", password="admin-secret") as wire:
        answer = wire.ask(
            messages.CreateAclsRequest(
                creations=[
                    creation(
                        resource_type=7, resource_name="User:alice", resource_pattern_type=3, host="*",
                        principal=principal, operation=operation, permission_type=3,
                    )
                    for principal, operation in (("User:bob", 13), ("User:carol", 14))
                ]
            ),
            3,
        )  # fmt: skip
        assert [it.error_code for it in answer.results] == [0, 0]


def properties(directory, **more) -> tuple[dict[str, str], Served]:
    ports = free_port(), free_port()
    given = {
        "node.id": "1",
        "process.roles": "broker,controller",
        "listeners": f"SASL_PLAINTEXT://127.0.0.1:{ports[0]},PLAINTEXT://127.0.0.1:{ports[1]}",
        "log.dirs": str(directory / "data"),
        **COMMON,
        **CONFIG,
        **more,
    }
    path = directory / "server.properties"
    path.write_text("".join(f"{key}={value}\n" for key, value in given.items()))
    return path, Served(None, *(f"127.0.0.1:{port}" for port in ports))


def serve(directory, workers=2, **more) -> Served:
    path, served = properties(directory, **more)
    served.broker = Broker(properties=path, workers=workers)
    return served


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    served = serve(tmp_path_factory.mktemp("kafkad"))
    with served.broker:
        allow(served)
        yield served


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    kafka = JvmKafka(tmp_path_factory.mktemp("jvm") / "data", config=CONFIG)
    open_at = f"127.0.0.1:{free_port()}"
    for key in ("listeners", "advertised.listeners"):
        text = kafka.config[key].replace("PLAINTEXT://", "SASL_PLAINTEXT://", 1)
        kafka.config[key] = f"{text},PLAINTEXT://{open_at}"
    kafka.config["listener.security.protocol.map"] = (
        "CONTROLLER:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,PLAINTEXT:PLAINTEXT"
    )
    kafka.properties.write_text("".join(f"{key}={value}\n" for key, value in kafka.config.items()))
    with kafka:
        served = Served(kafka, kafka.bootstrap, open_at)
        allow(served)
        yield served


# -- steps -------------------------------------------------------------------------------------------------


def user(served: Served, name: str = "alice") -> Wire:
    return authenticated(served, user=name, password=f"{name}-secret")


def by_token(served: Served, token, mechanism: str = "SCRAM-SHA-256", hmac: bytes | None = None):
    """(wire, the last answer) of a login with a token."""
    wire = Wire(served.bootstrap)
    assert handshake(wire, mechanism).error_code == 0
    password = base64.b64encode(bytes(token.hmac) if hmac is None else hmac).decode()
    hash_name = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}[mechanism]
    client = scram_conversation(hash_name, token.token_id, password, delegated=True)
    said = next(client)
    while True:
        answer = authenticate(wire, said)
        if answer.error_code:
            return wire, answer
        try:
            said = client.send(bytes(answer.auth_bytes))
        except StopIteration:
            return wire, answer


def create(
    wire: Wire, owner: str | None = None, renewers=(), lifetime: int = -1, version: int = 3, kind="User"
):
    request = messages.CreateDelegationTokenRequest
    return wire.ask(
        request(
            **(
                {} if version < 3 else {"owner_principal_type": owner and kind, "owner_principal_name": owner}
            ),
            renewers=[
                request.Renewers(principal_type=it.partition(":")[0], principal_name=it.partition(":")[2])
                for it in renewers
            ],
            max_lifetime_ms=lifetime,
        ),
        version,
    )


def renew(wire: Wire, hmac: bytes, period: int = -1, version: int = 2):
    return wire.ask(messages.RenewDelegationTokenRequest(hmac=hmac, renew_period_ms=period), version)


def expire(wire: Wire, hmac: bytes, period: int = -1, version: int = 2):
    return wire.ask(messages.ExpireDelegationTokenRequest(hmac=hmac, expiry_time_period_ms=period), version)


def describe(wire: Wire, owners=None, version: int = 3):
    request = messages.DescribeDelegationTokenRequest
    if owners is not None:
        owners = [request.Owners(principal_type="User", principal_name=owner) for owner in owners]
    return wire.ask(request(owners=owners), version)


def created(answer):
    """What is the same on both."""
    return (
        answer.error_code,
        (answer.principal_type, answer.principal_name),
        (answer.token_requester_principal_type, answer.token_requester_principal_name),
        answer.expiry_timestamp_ms - answer.issue_timestamp_ms,
        answer.max_timestamp_ms - answer.issue_timestamp_ms,
        answer.issue_timestamp_ms if answer.error_code else abs(answer.issue_timestamp_ms - now()) < 60_000,
        len(answer.token_id),
        len(answer.hmac),
    )


def now() -> int:
    return time.time_ns() // 1_000_000


def shown(answer):
    """Of a description."""
    return answer.error_code, sorted(
        (
            f"{it.principal_type}:{it.principal_name}",
            f"{it.token_requester_principal_type}:{it.token_requester_principal_name}",
            it.max_timestamp - it.issue_timestamp,
            len(it.token_id),
            len(it.hmac),
            sorted(f"{row.principal_type}:{row.principal_name}" for row in it.renewers),
        )
        for it in answer.tokens
    )


def ends(answer) -> tuple[int, int]:
    """An error, and when the token ends, in minutes from now; a time of an error as it is."""
    if answer.error_code:
        return answer.error_code, answer.expiry_timestamp_ms
    return 0, round((answer.expiry_timestamp_ms - now()) / 60_000)


def creation(*names: str, **more):
    def attempt(served):
        with user(served, *names) as wire:
            return created(create(wire, **more))

    return attempt


def is_known(served, token) -> bool:
    """Kafka answers before its broker knows the token."""
    login, answer = by_token(served, token)
    with login:
        return answer.error_code == 0


def with_token(act, renewers=(), owner="alice"):
    """`act(served, wire of alice, a token of alice's)`."""

    def attempt(served):
        with user(served, owner) as wire:
            token = create(wire, renewers=renewers)
            assert token.error_code == 0
            wait_until(lambda: is_known(served, token))
            return act(served, wire, token)

    return attempt


def as_other(name: str, act):
    def acted(served, wire, token):
        with user(served, name) as other:
            return ends(act(other, token.hmac))

    return acted


def logged_in(mechanism: str = "SCRAM-SHA-256", hmac: bytes | None = None):
    def act(served, wire, token):
        login, answer = by_token(served, token, mechanism, hmac)
        with login:
            told = answer.error_code, answer.error_message
            if answer.error_code:
                return told, login.is_closed_by_broker()
            remaining = round(answer.session_lifetime_ms / 60_000)
            return told, remaining, works(login)

    return act


def asks_by_token(served, wire, token):
    """With a token nobody gets, changes or sees tokens."""
    login, _ = by_token(served, token)
    with login:
        return (
            created(create(login)), ends(renew(login, token.hmac)), ends(expire(login, token.hmac)),
            shown(describe(login)),
        )  # fmt: skip


def may_as_the_owner(served, wire, token):
    """The principal is the owner: its rights are his."""
    login, _ = by_token(served, token)
    with login:
        asked = messages.CreateTopicsRequest
        request = asked(
            topics=[asked.Topics(name="x", num_partitions=1, replication_factor=1)], timeout_ms=9000
        )
        denied = login.ask(request, 7).topics[0].error_code
    return denied


def removed(served, wire, token):
    gone = expire(wire, token.hmac)
    return gone.error_code, ends(renew(wire, token.hmac)), logged_in()(served, wire, token)[0]


def by_nobody(served):
    with Wire(served.open_at) as wire:
        return (
            created(create(wire)), ends(renew(wire, b"x")), ends(expire(wire, b"x")), shown(describe(wire)),
        )  # fmt: skip


def tokens_of(name: str, owners=None, version: int = 3):
    def attempt(served):
        with user(served, name) as wire:
            return shown(describe(wire, owners, version))

    return attempt


HOUR = 3_600_000
ATTEMPTS = {
    "a token": creation(),
    "of version 1": creation(version=1),
    "of version 2": creation(version=2),
    "for an hour": creation(lifetime=HOUR),
    "for ten weeks": creation(lifetime=10 * WEEK),
    "for no time": creation(lifetime=0),
    "with renewers": creation(renewers=("User:bob", "User:carol")),
    "with a renewer that is no user": creation(renewers=("Group:x",)),
    "of oneself": creation(owner="alice"),
    "of another without the right": creation("alice", owner="bob"),
    "of another with the right": creation("bob", owner="alice"),
    "of another kind": creation("bob", owner="alice", kind="Group"),
    "without the right and with a wrong renewer": creation("alice", owner="bob", renewers=("Group:x",)),
    "by a super user": creation("admin", owner="dave"),
    "by a client without a login": by_nobody,
    "renewed by its owner": with_token(lambda s, w, t: ends(renew(w, t.hmac))),
    "renewed for an hour": with_token(lambda s, w, t: ends(renew(w, t.hmac, HOUR))),
    "renewed for ever": with_token(lambda s, w, t: ends(renew(w, t.hmac, 10 * WEEK))),
    "renewed by version 1": with_token(lambda s, w, t: ends(renew(w, t.hmac, HOUR, 1))),
    "renewed by a renewer": with_token(as_other("bob", renew), ("User:bob",)),
    "renewed by a stranger": with_token(as_other("carol", renew), ("User:bob",)),
    "renewed by a super user": with_token(as_other("admin", renew)),
    "renewed without a token": with_token(lambda s, w, t: ends(renew(w, b"no such token"))),
    "renewed with nothing": with_token(lambda s, w, t: ends(renew(w, b""))),
    "ended in an hour": with_token(lambda s, w, t: ends(expire(w, t.hmac, HOUR))),
    "ended in ten weeks": with_token(lambda s, w, t: ends(expire(w, t.hmac, 10 * WEEK))),
    "ended by a renewer": with_token(as_other("bob", lambda w, h: expire(w, h, HOUR)), ("User:bob",)),
    "ended by a stranger": with_token(as_other("carol", expire), ("User:bob",)),
    "ended without a token": with_token(lambda s, w, t: ends(expire(w, b"no such token"))),
    "removed": with_token(removed),
    "a login": with_token(logged_in()),
    "a login by SHA-512": with_token(logged_in("SCRAM-SHA-512")),
    "a login with another HMAC": with_token(logged_in(hmac=b"x" * 64)),
    "a login with no token": with_token(
        lambda s, w, t: logged_in()(s, w, messages.CreateDelegationTokenResponse(token_id="x", hmac=b"y"))
    ),
    "tokens by a token": with_token(asks_by_token),
    "rights by a token": with_token(may_as_the_owner),
    "seen by its owner": tokens_of("alice"),
    "seen by version 1": tokens_of("alice", version=1),
    "seen by the owners asked for": tokens_of("alice", ("alice",)),
    "seen by no owners": tokens_of("alice", ()),
    "seen of another": tokens_of("alice", ("bob",)),
    "seen by a renewer": tokens_of("bob"),
    "seen by the right to describe": tokens_of("carol"),
    "seen by a super user": tokens_of("admin"),
}  # fmt: skip


@pytest.mark.java
def test_each_attempt_ends_as_on_kafka(ours, theirs):
    """One table of attempts, cell by cell."""
    different = {}
    for name, attempt in ATTEMPTS.items():
        found, expected = attempt(ours), attempt(theirs)
        if found != expected:
            different[name] = found, expected
    assert not different, "\n".join(f"{name}: {cell}" for name, cell in different.items())


def test_neither_hmac_nor_secret_is_told(ours):
    with user(ours, "alice") as wire:
        token = create(wire)
        renew(wire, token.hmac)
        renew(wire, b"hush" * 16)
    by_token(ours, token)[0].socket.close()
    by_token(ours, token, hmac=b"hush" * 16)[0].socket.close()
    with user(ours, "admin") as wire:
        resource = messages.DescribeConfigsRequest.Resources(resource_type=4, resource_name="1")
        (answer,) = wire.ask(messages.DescribeConfigsRequest(resources=[resource]), 4).results
        values = {it.name: it.value for it in answer.configs}
    assert values["delegation.token.secret.key"] is None
    assert values["delegation.token.expiry.check.interval.ms"] == "1000"
    written = ours.broker.log_file.read_text()
    for secret in (bytes(token.hmac), b"hush" * 16):
        for text in (base64.b64encode(secret).decode(), secret.hex(), repr(secret)[2:-1]):
            assert text not in written
    assert "hush-hush" not in written
    assert f"the HMAC of token {token.token_id} is wrong" in written


def test_a_token_is_known_to_every_worker_at_once(tmp_path):
    served = serve(tmp_path, 4)
    with served.broker, user(served) as wire:
        for _ in range(5):
            token = create(wire)
            for _ in range(4):
                login, answer = by_token(served, token)
                with login:
                    assert answer.error_code == 0 and works(login) == 1


def test_a_token_ends(tmp_path):
    """Sessions with it, logins with it, and then the token itself; a restart changes nothing."""
    short = {"delegation.token.max.lifetime.ms": "60000", "delegation.token.expiry.time.ms": "2500"}
    served = serve(tmp_path, **short)
    with served.broker:
        with user(served) as wire:
            token = create(wire)
            assert token.expiry_timestamp_ms - token.issue_timestamp_ms == 2500
            assert token.max_timestamp_ms - token.issue_timestamp_ms == 60_000
            assert expire(wire, token.hmac, 50_000).error_code == 0
        served.broker.kill()
        served.broker.start()
        with user(served) as wire:
            ends_ms = expire(wire, token.hmac, 2500).expiry_timestamp_ms
        login, answer = by_token(served, token)
        with login:
            assert 0 < answer.session_lifetime_ms <= 2500 and works(login) == 1
            wait_until(lambda: now() > ends_ms + 50)
            login.send(messages.MetadataRequest(topics=[]), 9)
            assert login.is_closed_by_broker()
        assert by_token(served, token)[1].error_code == errors.SASL_AUTHENTICATION_FAILED
        with user(served) as wire:
            wait_until(lambda: not describe(wire).tokens)
            assert renew(wire, token.hmac).error_code == errors.DELEGATION_TOKEN_NOT_FOUND
        assert f"the delegation token {token.token_id} has expired and is removed" in served.broker.log


def test_the_versions_that_kafka_4_dropped(ours):
    with user(ours) as wire:
        token = create(wire, version=0)
        assert token.error_code == 0 and token.principal_name == "alice"
        assert token.token_id in {it.token_id for it in describe(wire, version=0).tokens}
        assert renew(wire, token.hmac, version=0).error_code == 0
        assert expire(wire, token.hmac, version=0).error_code == 0


def test_without_a_secret_there_are_none(tmp_path):
    served = serve(tmp_path, **{"delegation.token.secret.key": ""})
    with served.broker, user(served) as wire:
        answers = create(wire), renew(wire, b"x"), expire(wire, b"x"), describe(wire)
        assert {it.error_code for it in answers} == {errors.DELEGATION_TOKEN_AUTH_DISABLED}


@pytest.mark.java
def test_a_token_of_kafkas_works_here_and_the_other_way_round(tmp_path):
    """The same directory and the same secret."""
    kafka = JvmKafka(tmp_path / "data", config=CONFIG)
    for key in ("listeners", "advertised.listeners"):
        kafka.config[key] = kafka.config[key].replace("PLAINTEXT://", "SASL_PLAINTEXT://", 1)
    kafka.config["listener.security.protocol.map"] = "CONTROLLER:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT"
    kafka.properties.write_text("".join(f"{key}={value}\n" for key, value in kafka.config.items()))
    served = Served(kafka, kafka.bootstrap, "")
    with kafka, user(served) as wire:
        theirs = create(wire, renewers=("User:bob",))
    with Broker(properties=kafka.properties, workers=2):
        assert by_token(served, theirs)[1].error_code == 0
        with user(served, "bob") as wire:
            assert renew(wire, theirs.hmac).error_code == 0
        with user(served) as wire:
            ours = create(wire)
            assert expire(wire, theirs.hmac, HOUR).error_code == 0
    with kafka:
        assert by_token(served, ours)[1].error_code == 0
        _, answer = by_token(served, theirs)
        assert answer.error_code == 0 and answer.session_lifetime_ms <= HOUR


# -- tools -------------------------------------------------------------------------------------------------


@pytest.mark.java
def test_kafkas_tools(ours, tmp_path):
    """kafka-delegation-tokens makes, shows, renews and ends a token, and a Java client logs in with it."""
    alice = tmp_path / "alice.properties"
    alice.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
        f'sasl.jaas.config={MODULE} username="alice" password="alice-secret";\n'
    )

    def tool(*arguments: str) -> str:
        asked = ("--bootstrap-server", ours.bootstrap, "--command-config", alice)
        return run_tool("4.3.1", "kafka-delegation-tokens", *asked, *arguments).stdout

    said = tool("--create", "--max-life-time-period", "-1", "--renewer-principal", "User:bob")
    token_id, hmac = said.splitlines()[-1].split()[:2]
    assert token_id in tool("--describe", "--owner-principal", "User:alice")
    assert "Completed renew operation" in tool("--renew", "--renew-time-period", "-1", "--hmac", hmac)
    holder = tmp_path / "holder.properties"
    holder.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-512\n"
        f'sasl.jaas.config={SCRAM_MODULE} username="{token_id}" password="{hmac}" tokenauth="true";\n'
    )
    run_tool(
        "4.3.1", "kafka-topics", "--bootstrap-server", ours.bootstrap, "--command-config", holder, "--list"
    )
    assert kafkad(ours, "topics", "--list", "--command-config", str(holder)).stdout == ""
    assert "Completed expire operation" in tool("--expire", "--expiry-time-period", "-1", "--hmac", hmac)
    assert token_id not in tool("--describe")


def test_kafkads_own_tools(ours, tmp_path):
    """`kafkad tokens`, `kafkad users`, and a login with a token by our own client."""

    def properties_of(name: str, text: str) -> tuple[str, str]:
        path = tmp_path / f"{name}.properties"
        path.write_text(f"security.protocol=SASL_PLAINTEXT\n{text}\n")
        return "--command-config", str(path)

    def by_password(name: str) -> tuple[str, str]:
        jaas = f'{MODULE} username="{name}" password="{name}-secret";'
        return properties_of(name, f"sasl.mechanism=PLAIN\nsasl.jaas.config={jaas}")

    alice, bob, admin = map(by_password, ("alice", "bob", "admin"))
    made = kafkad(ours, "tokens", "--create", "--renewer-principal", "User:bob", "--json", *alice).stdout
    [token] = json.loads(made)
    assert token["owner"] == token["requester"] == "User:alice" and token["renewers"] == "User:bob"
    described = json.loads(kafkad(ours, "tokens", "--describe", "--json", *alice).stdout)
    assert token["token_id"] in {it["token_id"] for it in described}
    assert "EXPIRES" in kafkad(ours, "tokens", "--renew", "--hmac", token["hmac"], *bob).stdout
    jaas = f'{SCRAM_MODULE} username="{token["token_id"]}" password="{token["hmac"]}" tokenauth="true";'
    holder = properties_of("holder", f"sasl.mechanism=SCRAM-SHA-256\nsasl.jaas.config={jaas}")
    kafkad(ours, "topics", "--list", *holder)
    said = kafkad(ours, "tokens", "--describe", *holder, code=1).stderr
    assert "DELEGATION_TOKEN_REQUEST_NOT_ALLOWED" in said
    said = kafkad(ours, "tokens", "--expire", "--hmac", token["hmac"], *admin, code=1).stderr
    assert "only the token's owner and its renewers may expire it" in said
    kafkad(ours, "tokens", "--expire", "--hmac", token["hmac"], *alice)
    assert token["hmac"] not in kafkad(ours, "topics", "--list", *holder, code=1).stderr
    for wrong in (["--renew"], ["--describe", "--hmac", "x"], ["--expire", "--hmac", "?"], []):
        kafkad(ours, "tokens", *wrong, *alice, code=2)

    added = kafkad(ours, "users", "--add", "--user", "erin", "--json", *admin, stdin="erin-secret\n")
    assert json.loads(added.stdout) == [{"user": "erin", "mechanism": "SCRAM-SHA-512", "iterations": 4096}]
    assert "erin" in kafkad(ours, "users", "--list", *admin).stdout
    jaas = f'{SCRAM_MODULE} username="erin" password="erin-secret";'
    erin = properties_of("erin", f"sasl.mechanism=SCRAM-SHA-512\nsasl.jaas.config={jaas}")
    kafkad(ours, "topics", "--list", *erin)
    removed = kafkad(ours, "users", "--remove", "--user", "erin", "--json", *admin)
    assert json.loads(removed.stdout) == [{"user": "erin", "mechanism": "SCRAM-SHA-512"}]
    kafkad(ours, "topics", "--list", *erin, code=1)
    assert "no SCRAM user erin" in kafkad(ours, "users", "--remove", "--user", "erin", *admin, code=1).stderr
    for wrong in (["--add"], ["--remove"], ["--list", "--iterations", "5000"], ["--add", "--user", "x"]):
        kafkad(ours, "users", *wrong, *admin, code=2)


def kafkad(served: Served, *arguments: str, code: int = 0, stdin: str = ""):
    command = [sys.executable, "-m", "kafkad", *arguments, "--bootstrap-server", served.bootstrap]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, input=stdin)
    assert done.returncode == code, done.stderr
    return done

"""Nodes that log in to each other by tickets of a KDC (GSSAPI) or by tokens of a provider (OAUTHBEARER),
brokers and controllers, kafkad alone and beside JVM Kafka. Sessions end meanwhile, and new logins follow.
Then delegation tokens, which the controllers keep."""

import json
import subprocess
import sys

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic

from tests.clients import wait_until
from tests.handover_cluster import JVM, KAFKAD
from tests.kdc import REALM, Kdc
from tests.no_skips import NO_KDC
from tests.oauth_provider import AUDIENCE, ISSUER, Provider
from tests.secured_cluster import SCRAM, WAIT_S, SecuredCluster

OAUTH = "org.apache.kafka.common.security.oauthbearer."
MIXTURES = [
    pytest.param((KAFKAD, KAFKAD, KAFKAD), id="kafkad"),
    pytest.param((JVM, KAFKAD, JVM), id="one-kafkad", marks=pytest.mark.java),
]
RENEWED = "its session ends, and another one begins"


def between_nodes(mechanism: str, user: str, jaas: str, **more: str) -> dict[str, str]:
    """Keys of a node that logs in to brokers and controllers by `mechanism`."""
    own = mechanism.lower()
    return {
        "sasl.enabled.mechanisms": f"PLAIN,{mechanism}",
        "listener.name.controller.sasl.enabled.mechanisms": mechanism,
        "sasl.mechanism.inter.broker.protocol": mechanism,
        "sasl.mechanism.controller.protocol": mechanism,
        f"listener.name.nodes.{own}.sasl.jaas.config": jaas,
        f"listener.name.controller.{own}.sasl.jaas.config": jaas,
        "super.users": f"User:{user};User:admin",
        "connections.max.reauth.ms": "2500",
        **more,
    }


def works(cluster: SecuredCluster) -> None:
    """Replication, controllers that change, and sessions that end."""
    kafkad = [node for number, node in cluster.nodes.items() if cluster.kinds[number] == KAFKAD]
    for number in cluster.nodes:
        others = [other for other in cluster.nodes if other != number]
        topic = NewTopic(f"t{number}", 1, replica_assignment=[[number, *others]])
        cluster.admin.create_topics([topic])[topic.topic].result(WAIT_S)
    producer = Producer(cluster.client("admin", acks="all"))
    told = []
    wait_until(lambda: all(RENEWED in node.log for node in kafkad), WAIT_S)
    for number in cluster.nodes:
        cluster.whole(f"t{number}")
        producer.produce(f"t{number}", b"x", on_delivery=lambda error, _: told.append(error))
    assert producer.flush(WAIT_S) == 0 and told == [None] * 3, cluster.logs()

    gone = cluster.leader("t1")
    cluster.nodes[gone].kill()
    wait_until(lambda: cluster.leader("t1") not in (-1, gone), WAIT_S)
    cluster.admin.create_topics([NewTopic("later", 1, 2)])["later"].result(WAIT_S)
    cluster.start(gone)
    cluster.whole("t1")
    for node in kafkad:
        assert "Traceback" not in node.log


@pytest.mark.parametrize("kinds", MIXTURES)
def test_by_tickets(tmp_path, kinds, monkeypatch):
    pytest.importorskip("gssapi", reason=NO_KDC)
    (tmp_path / "kdc").mkdir()
    with Kdc(tmp_path / "kdc") as kdc:
        for name, value in kdc.environment.items():
            monkeypatch.setenv(name, value)
        keytab = kdc.keytab("kafka/localhost")
        jaas = (
            "com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true"
            f' keyTab="{keytab}" principal="kafka/localhost@{REALM}";'
        )
        keys = between_nodes("GSSAPI", "kafka", jaas) | {"sasl.kerberos.service.name": "kafka"}
        cluster = SecuredCluster(tmp_path / "cluster", kinds)
        voters = cluster.voters["controller.quorum.voters"].replace("127.0.0.1", "localhost")
        for number, node in cluster.nodes.items():  # by name, as Java does
            listeners = f"NODES://localhost:{node.port},CONTROLLER://localhost:{node.controller_port}"
            cluster.write(number, {**keys, "listeners": listeners, "controller.quorum.voters": voters})
        for node in cluster.nodes.values():
            node.jvm.jvm += (f"-Djava.security.krb5.conf={kdc.config}",)
        with cluster:
            works(cluster)


@pytest.mark.parametrize("kinds", MIXTURES)
def test_by_tokens(tmp_path, kinds):
    with Provider() as provider:
        jaas = f'{OAUTH}OAuthBearerLoginModule required clientId="anna" clientSecret="anna-secret";'
        keys = between_nodes("OAUTHBEARER", "anna", jaas) | {
            "sasl.oauthbearer.token.endpoint.url": provider.token_url,
            "sasl.oauthbearer.jwks.endpoint.url": provider.keys_url,
            "sasl.oauthbearer.expected.audience": AUDIENCE,
            "sasl.oauthbearer.expected.issuer": ISSUER,
        }
        for listener in ("nodes", "controller"):
            prefix = f"listener.name.{listener}.oauthbearer.sasl."
            keys[f"{prefix}login.callback.handler.class"] = f"{OAUTH}OAuthBearerLoginCallbackHandler"
            keys[f"{prefix}server.callback.handler.class"] = f"{OAUTH}OAuthBearerValidatorCallbackHandler"
        cluster = SecuredCluster(tmp_path / "cluster", kinds, dict.fromkeys((1, 2, 3), keys))
        urls = f"{provider.token_url},{provider.keys_url}"
        for node in cluster.nodes.values():
            node.jvm.jvm += (f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={urls}",)
        with cluster:
            works(cluster)
        assert {"/token", "/keys"} == set(provider.asked)


def kafkad(bootstrap, properties, *arguments, code=0):
    command = [sys.executable, "-m", "kafkad", *arguments, "--bootstrap-server", bootstrap]
    command += ["--command-config", str(properties)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == code, done.stderr
    return done.stdout


@pytest.mark.parametrize("kinds", MIXTURES)
def test_delegation_tokens(tmp_path, kinds):
    """Each node knows a token that another one made, and the next active controller, too."""
    keys = {"delegation.token.secret.key": "one for all", "delegation.token.expiry.check.interval.ms": "500"}
    with SecuredCluster(tmp_path / "cluster", kinds, dict.fromkeys((1, 2, 3), keys)) as cluster:
        writer, nodes = cluster.java("writer"), [node.bootstrap for node in cluster.nodes.values()]
        made = kafkad(nodes[0], writer, "tokens", "--create", "--renewer-principal", "User:reader", "--json")
        [token] = json.loads(made)
        token_id, hmac = token["token_id"], token["hmac"]
        holder = tmp_path / "holder.properties"
        lines = [line for line in writer.read_text().splitlines() if not line.startswith("sasl.")]
        login = f'{SCRAM} username="{token_id}" password="{hmac}" tokenauth="true";'
        holder.write_text(
            "\n".join([*lines, "sasl.mechanism=SCRAM-SHA-512", f"sasl.jaas.config={login}", ""])
        )
        for node in nodes:
            wait_until(lambda node=node: token_id in kafkad(node, writer, "tokens", "--describe"), WAIT_S)
            assert kafkad(node, holder, "topics", "--list") == ""
        refused = subprocess.run(  # a token makes no tokens
            [sys.executable, "-m", "kafkad", "tokens", "--create", "--bootstrap-server", nodes[1],
             "--command-config", str(holder)],
            capture_output=True, text=True, timeout=WAIT_S,
        )  # fmt: skip
        assert refused.returncode and "DELEGATION_TOKEN_REQUEST_NOT_ALLOWED" in refused.stderr

        gone = active(cluster)
        cluster.nodes[gone].kill()
        left = [node.bootstrap for number, node in cluster.nodes.items() if number != gone]
        wait_until(lambda: active(cluster) not in (gone, -1), WAIT_S)
        reader = cluster.java("reader")
        assert "EXPIRES" in kafkad(left[0], reader, "tokens", "--renew", "--hmac", hmac)
        assert kafkad(left[1], holder, "topics", "--list") == ""
        kafkad(left[1], reader, "tokens", "--expire", "--hmac", hmac, "--expiry-time-period", "300")
        wait_until(lambda: token_id not in kafkad(left[0], writer, "tokens", "--describe"), WAIT_S)


def active(cluster):
    """The id of the active controller, as a node that lives says; -1: nobody does."""
    for node in cluster.nodes.values():
        asked = [sys.executable, "-m", "kafkad", "cluster", "quorum", "--json", "--bootstrap-server"]
        own = [node.bootstrap, "--command-config", str(cluster.java("admin"))]
        told = subprocess.run([*asked, *own], capture_output=True, text=True, timeout=WAIT_S)
        if told.returncode == 0:
            return json.loads(told.stdout)["leader_id"]
    return -1

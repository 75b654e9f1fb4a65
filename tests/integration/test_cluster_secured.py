"""Clusters with SASL_SSL between all nodes and StandardAuthorizer, of kafkad alone and with JVM Kafka.

Sessions end after a few seconds, so every node also logs in anew while the test runs."""

import os
import shutil
import socket
import ssl

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from kafkad.protocol.errors import NOT_CONTROLLER, TOPIC_AUTHORIZATION_FAILED
from tests.certificates import PASSWORD, openssl
from tests.clients import wait_until
from tests.controller_refusals import refusals
from tests.handover_cluster import JVM, KAFKAD
from tests.integration.test_sasl import log_in
from tests.jvm import NEWEST, run_tool
from tests.secured_cluster import PLAIN, SCRAM, USERS, WAIT_S, SecuredCluster
from tests.tls_wire import TlsWire, trusting

MIXTURES = [
    pytest.param((KAFKAD, KAFKAD, KAFKAD), id="kafkad"),
    pytest.param((JVM, KAFKAD, JVM), id="one-kafkad", marks=pytest.mark.java),
]
SHORT = {"connections.max.reauth.ms": 2500}
# APIs whose requests refusals() leaves empty
NOTHING_ASKED = {"AlterClientQuotas", "AlterUserScramCredentials"}
# of a controller that is not active, either of the two comes first
OF_THE_ACTIVE = ("CreateTopics", "DeleteTopics", "CreatePartitions")
RENEWED = "its session ends, and another one begins"


def right(user, operation, kind, name):
    return AclBinding(
        kind, name, ResourcePatternType.LITERAL, f"User:{user}", "*", operation, AclPermissionType.ALLOW
    )


def write(cluster, user, topic, values):
    """What became of each: None, or the name of an error; of the fatal one that ended them all."""
    told = []
    own = {"enable.idempotence": True, "message.timeout.ms": WAIT_S * 1000}
    producer = Producer(cluster.client(user, **own))
    for value in values:
        producer.produce(topic, value, on_delivery=lambda error, _: told.append(error and error.name()))
    try:
        assert producer.flush(WAIT_S) == 0
    except KafkaException as fatal:
        return {fatal.args[0].name()}
    return set(told)


def read(cluster, user, topic, count):
    """So many values, in a group; or the name of an error."""
    own = {"group.id": "g", "auto.offset.reset": "earliest", "enable.auto.commit": False}
    consumer = Consumer(cluster.client(user, **own))
    found = []
    try:
        consumer.subscribe([topic])
        while len(found) < count:
            message = consumer.poll(WAIT_S)
            assert message is not None, cluster.logs()
            if message.error():
                if message.error().code() != KafkaError._TRANSPORT:
                    return message.error().name()
            else:
                found.append(message.value())
    finally:
        consumer.close()
    return found


def altered(cluster, user, topic):
    """None, or the name of an error."""
    entry = ConfigEntry("retention.ms", "86400000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient(cluster.client(user))
    [done] = admin.incremental_alter_configs([resource]).values()
    try:
        done.result(WAIT_S)
    except KafkaException as refused:
        return refused.args[0].name()
    return None


def controller_refusals(cluster, number):
    """What a controller, active or not, answers on its own listener to the reader."""
    port, context = cluster.nodes[number].controller_port, trusting(cluster.stores, "client")

    def connect():
        wire = TlsWire(port, context, 30)
        assert log_in(wire, "PLAIN", "reader", USERS["reader"]).error_code == 0
        return wire

    return refusals(connect)


@pytest.mark.parametrize("kinds", MIXTURES)
def test_users_do_what_they_may_while_a_leader_is_killed_and_sessions_end(tmp_path, kinds):
    with SecuredCluster(tmp_path, kinds, dict.fromkeys((1, 2, 3), SHORT)) as cluster:
        kafkad = [node for number, node in cluster.nodes.items() if kinds[number - 1] == KAFKAD]
        for number in cluster.nodes:  # each node leads one of them, the others follow
            topic = NewTopic(f"t{number}", 1, replica_assignment=[[number, *({1, 2, 3} - {number})]])
            cluster.admin.create_topics([topic])[f"t{number}"].result(WAIT_S)
        cluster.admin.create_topics([NewTopic("closed", 1, 3)])["closed"].result(WAIT_S)
        topics = [f"t{number}" for number in cluster.nodes]
        rights = [right("reader", AclOperation.READ, ResourceType.GROUP, "g")]
        for topic in topics:
            rights.append(right("writer", AclOperation.WRITE, ResourceType.TOPIC, topic))
            rights.append(right("reader", AclOperation.READ, ResourceType.TOPIC, topic))
        for made in cluster.admin.create_acls(rights).values():
            made.result(WAIT_S)

        values = [b"%d" % number for number in range(50)]
        for topic in topics:
            cluster.whole(topic)
            wait_until(lambda topic=topic: write(cluster, "writer", topic, [b"-"]) == {None}, WAIT_S)
        for topic in topics:  # each leader knows the rights: any of them may be asked for a producer's id
            assert write(cluster, "writer", topic, values) == {None}
        assert write(cluster, "writer", "closed", [b"x"]) == {"TOPIC_AUTHORIZATION_FAILED"}
        assert read(cluster, "writer", "t1", 1) in (
            "TOPIC_AUTHORIZATION_FAILED",
            "GROUP_AUTHORIZATION_FAILED",
        )
        assert altered(cluster, "writer", "t1") == "TOPIC_AUTHORIZATION_FAILED"
        assert altered(cluster, "admin", "t1") is None
        told = [controller_refusals(cluster, number) for number in cluster.nodes]
        for each in told:
            for name in OF_THE_ACTIVE:
                assert each.pop(name)[0][0] in (TOPIC_AUTHORIZATION_FAILED, NOT_CONTROLLER)
        assert told[0] == told[1] == told[2]
        assert {name for name, codes in told[0].items() if not codes} == NOTHING_ASKED
        if JVM in kinds:  # ACLs of a controller, by the user that logs in there
            at = f"127.0.0.1:{kafkad[0].controller_port}"
            own = ("--bootstrap-controller", at, "--command-config", cluster.java("admin"))
            listed = run_tool(NEWEST, "kafka-acls", *own, "--list")
            assert "User:writer" in str(listed)

        wait_until(lambda: all(RENEWED in node.log for node in kafkad), WAIT_S)
        for topic in topics:
            cluster.whole(topic)

        gone = cluster.leader("t2")
        cluster.nodes[gone].kill()
        wait_until(lambda: cluster.leader("t2") not in (-1, gone), WAIT_S)
        assert write(cluster, "writer", "t2", values) == {None}
        found = read(cluster, "reader", "t2", 101)
        assert [value for value in found if value != b"-"][:100] == [*values, *values]
        for node in kafkad:
            assert "Traceback" not in node.log


def test_a_node_that_is_refused_says_so_and_joins_when_it_is_put_right(tmp_path):
    stores = tmp_path / "cluster" / "stores"
    scram, controller = (
        "listener.name.nodes.scram-sha-512.sasl.jaas.config",
        "listener.name.controller.plain.sasl.jaas.config",
    )
    wrong = {
        scram: f'{SCRAM} username="node" password="wrong";',
        controller: f'{PLAIN} username="node" password="wrong" user_node="node-secret";',
        "ssl.keystore.location": stores / "server.p12",
    }
    cluster = SecuredCluster(tmp_path / "cluster", (KAFKAD, KAFKAD, KAFKAD), {3: wrong})
    third = cluster.nodes[3]
    try:
        cluster.start(1, 2)
        cluster.admin = AdminClient(cluster.client("admin"))
        cluster.kinds[3] = third.kind = KAFKAD
        third.running.launch()
        wait_until(lambda: "refused 'node'" in third.log, WAIT_S)
        assert third.running.runs

        # a certificate of somebody else: the others refuse it, and it refuses nobody
        third.kill()
        before = third.log.count("no SASL_SSL connection")
        cluster.write(3, {**cluster.voters, "ssl.keystore.location": stores / "stranger.p12"})
        third.running.launch()
        wait_until(lambda: third.log.count("no SASL_SSL connection") > before, WAIT_S)
        assert third.running.runs

        third.kill()
        cluster.write(3, cluster.voters)
        cluster.start(3)
        cluster.admin.create_topics([NewTopic("t", 1, 3)])["t"].result(WAIT_S)
        cluster.whole("t")
    finally:
        cluster.__exit__()


def test_a_controllers_listener_serves_by_the_certificate_that_is_in_its_file_now(tmp_path):
    cluster = SecuredCluster(tmp_path / "cluster", (KAFKAD, KAFKAD, KAFKAD))
    stores = tmp_path / "cluster" / "stores"
    own = tmp_path / "own.p12"
    node = cluster.nodes[1]

    def shown():
        context = ssl.create_default_context(cafile=stores / "ca.pem")
        context.check_hostname = False
        port = node.controller_port
        with (
            socket.create_connection(("127.0.0.1", port), timeout=WAIT_S) as plain,
            context.wrap_socket(plain) as wrapped,
        ):
            return ssl.DER_cert_to_PEM_cert(wrapped.getpeercert(binary_form=True))

    def put(name):
        shutil.copy(stores / f"{name}.p12", tmp_path / "beside")
        os.replace(tmp_path / "beside", own)

    def certificate(name):
        return ssl.DER_cert_to_PEM_cert(ssl.PEM_cert_to_DER_cert((stores / f"{name}.crt").read_text()))

    names = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "extensions")
    openssl(stores, "x509", "-req", "-days", "2", "-in", "server.csr", *names, "-out", "next.crt")
    both = ("-inkey", "server.key", "-in", "next.crt", "-passout", f"pass:{PASSWORD}")
    openssl(stores, "pkcs12", "-export", *both, "-out", "next.p12")
    put("server")
    cluster.write(1, {**cluster.voters, "listener.name.controller.ssl.keystore.location": own})
    with cluster:
        assert shown() == certificate("server")
        put("next")
        assert shown() == certificate("next") != certificate("server")
        put("stranger")  # for another name: a mistake
        assert shown() == certificate("next")
        assert "keeps the certificate that it has" in node.log
        put("server")
        assert shown() == certificate("server")
        put("next")
        node.running.stop(WAIT_S)  # all that others know of it is its new certificate
        cluster.start(1)
        cluster.admin.create_topics([NewTopic("t", 1, 3)])["t"].result(WAIT_S)
        cluster.whole("t")


def test_a_certificate_that_other_nodes_would_refuse_is_not_taken(tmp_path):
    cluster = SecuredCluster(tmp_path / "cluster", (KAFKAD, KAFKAD, KAFKAD))
    stores, own = tmp_path / "cluster" / "stores", tmp_path / "own.p12"
    names = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "extensions")
    openssl(stores, "x509", "-req", "-days", "-1", "-in", "server.csr", *names, "-out", "old.crt")
    both = ("-inkey", "server.key", "-in", "old.crt", "-passout", f"pass:{PASSWORD}")
    openssl(stores, "pkcs12", "-export", *both, "-out", "old.p12")
    location = "listener.name.nodes.ssl.keystore.location"
    for number in cluster.nodes:
        cluster.write(number, {**cluster.voters, **SHORT, "ssl.keystore.location": own})
    shutil.copy(stores / "server.p12", own)
    with cluster:
        cluster.admin.create_topics([NewTopic("t", 3, 3)])["t"].result(WAIT_S)
        cluster.whole("t")
        shutil.copy(stores / "old.p12", tmp_path / "beside")
        os.replace(tmp_path / "beside", own)
        entry = ConfigEntry(location, str(own), incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ConfigResource.Type.BROKER, "2", incremental_configs=[entry])
        [done] = cluster.admin.incremental_alter_configs([resource]).values()
        with pytest.raises(KafkaException, match="certificate has expired"):
            done.result(WAIT_S)

        nodes = list(cluster.nodes.values())
        kept = "other nodes keep the certificates that they have"
        wait_until(lambda: all(kept in node.log for node in nodes), WAIT_S)
        before = {node.number: node.log.count(RENEWED) for node in nodes}
        wait_until(lambda: all(node.log.count(RENEWED) > before[node.number] + 1 for node in nodes), WAIT_S)
        assert write(cluster, "admin", "t", [b"x"] * 30) == {None}
        for node in nodes:
            assert "no SASL_SSL connection" not in node.log and "certificate expired" not in node.log

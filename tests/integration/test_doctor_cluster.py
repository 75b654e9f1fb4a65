"""`kafkad doctor cluster` beside a cluster that runs: of JVM Kafka, and of kafkad while a node is away."""

import json
import signal
import subprocess
import sys
import time

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.clients import wait_until
from tests.jvm import JvmKafka


def examine(*arguments):
    """(exit code, {check: [(state, found)]})"""
    ran = subprocess.run(
        [sys.executable, "-m", "kafkad", "doctor", "cluster", "--json", *map(str, arguments)],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    found = {}
    for row in json.loads(ran.stdout):
        found.setdefault(row["check"], []).append((row["state"], row["found"]))
    return ran.returncode, found


@pytest.mark.java
def test_a_group_of_the_new_protocol_at_jvm_kafka_is_named(tmp_path):
    with JvmKafka(tmp_path / "data") as jvm:
        admin = AdminClient({"bootstrap.servers": jvm.bootstrap})
        admin.create_topics([NewTopic("t", 2, 1)])["t"].result(60)
        code, found = examine(jvm.properties, "--bootstrap-server", jvm.bootstrap)
        assert (code, found["groups"]) == (0, [("ok", "0, all classic")])
        assert found["topics"] == [("ok", "1, with configurations that kafkad has")]
        assert found["partitions"][0] == (
            "note",
            "with one replica, away while its broker restarts: t-0, t-1",
        )
        assert found["quorum"][0][0] == "note" and "1 vote" in found["quorum"][0][1]
        assert "metadata.version 30" in found["features"][0][1]
        assert found["directories"][0][0] == "ok"

        settings = {"bootstrap.servers": jvm.bootstrap, "group.id": "new", "group.protocol": "consumer"}
        consumer = Consumer(settings)
        consumer.subscribe(["t"])
        wait_until(lambda: consumer.poll(0.5) is not None or consumer.assignment(), 60)
        code, found = examine("--bootstrap-server", jvm.bootstrap)
        consumer.close()
        trouble = ("TROUBLE", "consumer groups, which kafkad does not serve: new")
        assert (code, found["groups"]) == (1, [trouble])
        assert {state for rows in found.values() for state, _ in rows} == {"ok", "note", "TROUBLE"}


def test_replicas_that_are_out_of_the_isr_forbid_the_next_restart(kafkad_cluster):
    cluster = kafkad_cluster
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([NewTopic("t", 2, 3)])["t"].result(60)
    wait_until(lambda: examine("--bootstrap-server", cluster.bootstrap)[0] == 0, 60)
    _, found = examine("--bootstrap-server", cluster.bootstrap)
    assert {state for rows in found.values() for state, _ in rows} == {"ok"}
    assert found["quorum"][0][1].startswith("1, 2, 3 vote (by controller.quorum.voters), ")
    cluster.stop(3)
    code, found = examine("--bootstrap-server", cluster.bootstrap)
    assert code == 1
    assert found["partitions"] == [("TROUBLE", "with replicas out of the ISR: t-0, t-1")]


def test_brokers_that_are_frozen_are_named_soon(kafkad_cluster):
    """Each was asked again and again, and a half of the table was lost at the quorum's silence."""
    cluster = kafkad_cluster
    frozen = [cluster.nodes[number] for number in (2, 3)]
    wait_until(lambda: examine("--bootstrap-server", cluster.bootstrap)[0] == 0, 60)
    for node in frozen:
        node.process.send_signal(signal.SIGSTOP)
    try:
        begun = time.monotonic()
        code, found = examine("--bootstrap-server", cluster.nodes[1].bootstrap)
    finally:
        for node in frozen:
            node.process.send_signal(signal.SIGCONT)
    assert code == 1
    assert time.monotonic() - begun < 45
    ((state, text),) = found["brokers"]
    assert state == "TROUBLE"
    assert all(node.bootstrap in text for node in frozen)
    assert found["quorum"] == [("TROUBLE", "no controller has described it within 10 s")]

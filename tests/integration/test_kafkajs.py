"""kafkajs, a client with protocol code of its own: what a service in Node.js does, plain and secured."""

import json
import os
import shutil
import subprocess

import pytest
from confluent_kafka.admin import AclOperation, ResourceType

from kafkad.testing import Broker
from tests.jvm import ROOT
from tests.no_skips import NO_NPM
from tests.secured_broker import SecuredBroker

VERSION = "2.2.4"
HOME = ROOT / ".cache" / "npm" / f"kafkajs-{VERSION}"
SCRIPT = ROOT / "tests" / "nodejs" / "kafkajs_client.js"


@pytest.fixture(scope="module")
def kafkajs():
    """What runs the script with this JSON, and returns what it printed."""
    if shutil.which("npm") is None:
        pytest.skip(NO_NPM)
    if not (HOME / "node_modules" / "kafkajs").exists():
        command = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(HOME)]
        subprocess.run([*command, f"kafkajs@{VERSION}"], check=True, timeout=300)

    def run(**given):
        done = subprocess.run(
            ["node", str(SCRIPT), json.dumps(given)],
            env={**os.environ, "NODE_PATH": str(HOME / "node_modules")},
            capture_output=True, text=True, timeout=90,
        )  # fmt: skip
        assert done.stdout, done.stderr
        return json.loads(done.stdout)

    return run


def told(first, end):
    return [[number % 2, f"k{number}", str(number), "node"] for number in range(first, end)]


WHOLE = {
    "created": True,
    "read": [*told(0, 50), *told(60, 70)],  # the transaction of 50 to 59 was aborted
    "committed": [[0, 37], [1, 37]],  # behind the last record; a commit marker follows
    "copied": [7],
    "ends": [[0, 38], [1, 38]],
    "group": ["Empty", 0],
    "left": False,
}


@pytest.mark.parametrize("workers", [1, 2])
def test_topics_groups_and_transactions(kafkajs, workers):
    with Broker(workers) as broker:
        assert kafkajs(brokers=[broker.bootstrap], topic="numbers", group="readers") == WHOLE


def test_the_same_over_tls_with_a_login_and_rights(kafkajs, tmp_path):
    with SecuredBroker("kafkad-2", tmp_path / "secured") as broker:
        broker.add_user("node", "node-secret")
        login = {"mechanism": "scram-sha-512", "username": "node", "password": "node-secret"}
        given = {
            "brokers": [broker.sasl], "ca": str(broker.stores / "ca.pem"), "topic": "numbers",
            "group": "readers", "sasl": login,
        }  # fmt: skip
        assert kafkajs(**given)["failed"] == "TOPIC_AUTHORIZATION_FAILED"
        for kind, name in (
            (ResourceType.TOPIC, "numbers"),
            (ResourceType.GROUP, "readers"),
            (ResourceType.GROUP, "readers-copied"),
            (ResourceType.TRANSACTIONAL_ID, "readers-writer"),
        ):
            broker.allow("User:node", AclOperation.ALL, name, kind)
        assert kafkajs(**given) == WHOLE
        wrong = {**given, "sasl": {**login, "password": "another"}}
        refused = kafkajs(**wrong)
        assert refused["failed"] == "KafkaJSSASLAuthenticationError", refused

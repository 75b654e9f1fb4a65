"""What is configured and not there ends a start with one message, or is named in a warning (issue part 1)."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from kafkad.config.broker import BrokerConfig
from kafkad.config.broker_keys import BROKER_KEYS
from kafkad.config.definition import ConfigError
from kafkad.config.effects import Effect
from kafkad.testing import Broker
from tests.clients import wait_until
from tests.unit.test_config_effects import others, valid_for

SECURED = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@localhost:9093
controller.listener.names=CONTROLLER
listeners={listeners},CONTROLLER://127.0.0.1:9093
listener.security.protocol.map=CONTROLLER:PLAINTEXT,{protocol}:{protocol}
inter.broker.listener.name={protocol}
sasl.enabled.mechanisms=SCRAM-SHA-512
sasl.mechanism.inter.broker.protocol=SCRAM-SHA-512
ssl.keystore.location=/no/such/keystore.p12
ssl.keystore.password=hush
authorizer.class.name={authorizer}
super.users=User:admin
log.dirs={data}
"""


def serve(*arguments: object) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "kafkad", "serve", *map(str, arguments)],
        capture_output=True,
        timeout=30,
        check=False,
    )
    return done.returncode, done.stdout.decode(), done.stderr.decode()


STANDARD = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
OTHER = "com.example.OtherAuthorizer"


@pytest.mark.parametrize(
    ("authorizer", "told"),
    [(OTHER, f"{OTHER} for configuration authorizer.class.name: "), (STANDARD, "/no/such/keystore.p12")],
)
@pytest.mark.parametrize("protocol", ["SSL", "SASL_SSL"])
def test_a_secured_configuration_starts_no_open_broker(
    tmp_path: Path, protocol: str, authorizer: str, told: str
) -> None:
    """The issue's first finding: it said that it was ready, in plaintext, with nobody checked."""
    file, data = tmp_path / "server.properties", tmp_path / "data"
    listener = f"{protocol}://127.0.0.1:0"
    given = {"listeners": listener, "protocol": protocol, "data": data, "authorizer": authorizer}
    file.write_text(SECURED.format(**given))
    code, out, err = serve(file)
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert told in err
    assert "hush" not in err
    assert not data.exists()


ENABLED = "sasl.enabled.mechanisms"
JAAS = "listener.name.sasl_plaintext.plain.sasl.jaas.config"
BESIDE = {
    "listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0",
    "security.inter.broker.protocol": "PLAINTEXT",
}


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            {},
            f"Missing configuration {JAAS.replace('.plain.', '.gssapi.')}: GSSAPI takes its keytab from it",
        ),
        (
            {ENABLED: "OAUTHBEARER"},
            f"Missing configuration {JAAS.replace('.plain.', '.oauthbearer.')}: OAUTHBEARER takes",
        ),
        (
            {ENABLED: "", **BESIDE},
            "listener SASL_PLAINTEXT needs one of: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER, GSSAPI",
        ),
        ({ENABLED: "PLAIN"}, f"Missing configuration {JAAS}: PLAIN takes its passwords from it"),
        (
            {ENABLED: "PLAIN", JAAS: "x.PlainLoginModule required user_a=5hush;"},
            f"[hidden] for configuration {JAAS}: Value not specified for key 'user_a' in JAAS config",
        ),
        (
            {ENABLED: "PLAIN", JAAS: 'x.Other required user_a="hush";'},
            "the login module is x.Other, and kafkad has org.apache.kafka.common.security.plain.PlainLogin",
        ),
    ],
)
def test_what_a_sasl_listener_cannot_do_is_refused_by_name(tmp_path, more, message):
    given = {"listeners": "SASL_PLAINTEXT://127.0.0.1:0", "security.inter.broker.protocol": "SASL_PLAINTEXT"}
    mechanisms = more.get("sasl.enabled.mechanisms", "GSSAPI").split(",")
    given |= {
        "sasl.mechanism.inter.broker.protocol": mechanisms[0],
        "log.dirs": str(tmp_path / "data"),
        **more,
    }
    code, out, err = serve(*(word for item in given.items() for word in ("--override", "=".join(item))))
    assert (code, out) == (2, ""), err
    assert message in err and "hush" not in err
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("given", "code", "told"),
    [
        (["process.roles=broker"], 1, "is not formatted: the nodes of a cluster must agree on a cluster id"),
        (["process.roles=controller"], 1, "is not formatted"),
        (["process.roles=broker,controller"], 1, "is not formatted"),
        (["process.roles=controller", "--workers", "2"], 2,
         "--workers 2: a node that is a controller only has one process"),
        (["process.roles=controller", "--override", "listener.security.protocol.map=C:SSL"], 2,
         "Missing configuration ssl.truststore.location of listener C"),
    ],
)  # fmt: skip
def test_a_node_of_a_cluster_says_what_it_lacks_before_anything_is_written(tmp_path, given, code, told):
    data, roles = tmp_path / "data", given[0].partition("=")[2]
    listeners = {"broker": "PLAINTEXT://127.0.0.1:0", "controller": "C://127.0.0.1:0"}
    voters = "2@127.0.0.1:1,3@127.0.0.1:1" + ("" if roles == "broker" else ",1@127.0.0.1:1")
    keys = {
        "listeners": ",".join(listeners[role] for role in roles.split(",")),
        "controller.quorum.voters": voters,
        "controller.listener.names": "C",
        "listener.security.protocol.map": "C:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "log.dirs": data,
        "node.id": 1,
    }
    overrides = (word for item in keys.items() for word in ("--override", "{}={}".format(*item)))
    ended, out, err = serve(*overrides, "--override", *given)
    assert (ended, out) == (code, ""), err
    assert told in err and err.count("\n") == 1
    assert not data.exists()


@pytest.mark.parametrize("kind", ["executable", "client", "comments"])
def test_a_wrong_file_starts_no_broker(tmp_path: Path, kind: str) -> None:
    """HUNTS U4: it opened one on all interfaces, with its data in Kafka's default directory."""
    file = tmp_path / "file"
    file.write_bytes(
        {
            "executable": b"\x7fELF\x02\x01\x01\x00 num.partitions=1\n\0\0",
            "client": b"bootstrap.servers=localhost:9092\nacks=all\n",
            "comments": b"# nothing\n",
        }[kind]
    )
    code, out, err = serve(file)
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert str(file) in err and ("NUL byte" if kind == "executable" else "none of Kafka's keys") in err


def test_every_ignored_key_is_named_at_the_start(tmp_path: Path) -> None:
    """One broker with all of them at once; the unit test has them one by one."""
    given: dict[str, str] = {}
    for key in BROKER_KEYS.values():
        if key.treatment.effect is not Effect.IGNORED:
            continue
        for text in others(key):
            if not valid_for("broker", key, text):
                continue
            try:
                BrokerConfig(given | {key.name: text})
            except ConfigError:
                continue  # not beside the others
            given[key.name] = text
            break
    ignored = [key for key in BROKER_KEYS.values() if key.treatment.effect is Effect.IGNORED]
    assert len(given) > len(ignored) * 0.9
    with Broker(1, given) as broker:
        log = broker.log_file.read_text()
    missing = [name for name in given if f" WARNING kafkad: {name}=" not in log]
    assert missing == []


def test_what_to_try_next_is_shown_on_a_terminal_only(tmp_path: Path) -> None:
    """HUNTS U9: the block stood in redirected logs."""
    with Broker(workers=1) as broker:
        assert "kafkad is ready on" in broker.output
        assert "Try, in another terminal" not in broker.output
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "kafkad", "serve", "--workers", "1", "--listen", "127.0.0.1:0"]
    process = subprocess.Popen(
        [*command, "--data-dir", tmp_path / "data"], stdout=theirs, stderr=subprocess.DEVNULL
    )
    os.close(theirs)
    shown = bytearray()
    try:
        wait_until(lambda: shown.extend(os.read(ours, 4096)) or b"Ctrl-C stops it" in shown)
        assert b"Try, in another terminal" in shown
    finally:
        process.terminate()
        process.wait(30)
        os.close(ours)


def test_a_topic_that_cannot_be_created_on_demand_gets_its_reason() -> None:
    """HUNTS U9: INVALID_REPLICATION_FACTOR stood alone, while `kafkad topics --create` explains it."""
    with Broker(1, {"default.replication.factor": 3}) as broker:
        command = [
            sys.executable,
            "-m",
            "kafkad",
            "produce",
            "--topic",
            "wide",
            "--bootstrap-server",
            broker.bootstrap,
        ]
        done = subprocess.run(command, input=b"hello\n", capture_output=True, timeout=60, check=False)
        assert done.returncode == 1
        assert b"default.replication.factor is above the number of brokers" in done.stderr, done.stderr
        reason = "topic wide cannot be created: Unable to replicate the partition 3 time(s): The target"
        assert reason in broker.log

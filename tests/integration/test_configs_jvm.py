"""The same requests to JVM Kafka and to the handlers of kafkad, with the same server.properties: the same
answers.

Every key of every resource is compared by name, value, source, type, synonyms and flags, after each step of a
transcript of changes, good and bad ones. Texts of errors and documentation are each one's own."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kafkad.api import configs
from kafkad.config.broker import BrokerConfig
from kafkad.protocol import messages
from tests.jvm import JvmKafka
from tests.unit.config_world import World, alter, describe, replace
from tests.wire import Wire, create_topic

pytestmark = pytest.mark.java

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = range(4)

CONFIG = {
    "log.retention.hours": "24",
    "log.roll.ms": "5000000",
    "log.cleanup.policy": "compact,delete",
    "message.max.bytes": "2000000",
    "log.message.timestamp.type": "LogAppendTime",
    "log.cleaner.io.max.bytes.per.second": "12345678.9",
    "ssl.keystore.password": "secret",
    "group.consumer.session.timeout.ms": "50000",
    "internal.metadata.max.batch.size.in.bytes": "4000000",
    "nobody.knows.this": "x",
    "super.users": "User:a",
}


def replicas(first: int) -> str:
    """Replicas to throttle, 20 KB of them."""
    return ",".join(f"{first + index}:1" for index in range(3000))


# What is asked, one after the other; each is an error to both or to neither.
TRANSCRIPT = {
    "a topic's own values": alter(
        TOPIC, "t", ("retention.ms", SET, "60000"), ("cleanup.policy", SET, "delete")
    ),
    "append": alter(TOPIC, "t", ("cleanup.policy", APPEND, "compact")),
    "append what is there": alter(TOPIC, "t", ("cleanup.policy", APPEND, "compact")),
    "subtract": alter(TOPIC, "t", ("cleanup.policy", SUBTRACT, "delete")),
    "append to a default": alter(TOPIC, "t", ("leader.replication.throttled.replicas", APPEND, "0:1")),
    "no policy of its own": alter(TOPIC, "plain", ("cleanup.policy", DELETE, None)),
    "append to the default, not the broker's": alter(TOPIC, "plain", ("cleanup.policy", APPEND, "compact")),
    "delete": alter(TOPIC, "t", ("retention.ms", DELETE, None)),
    "delete what is not there": alter(TOPIC, "t", ("retention.bytes", DELETE, None)),
    "the hidden segment size": alter(TOPIC, "t", ("internal.segment.bytes", SET, "100")),
    "only judged": alter(TOPIC, "t", ("retention.ms", SET, "1"), validate_only=True),
    "replace": replace(TOPIC, "t", segment_ms="100000", compression_type="zstd"),
    "unknown topic key": alter(TOPIC, "t", ("no.such.key", SET, "1")),
    "append to an unknown key": alter(TOPIC, "t", ("no.such.key", APPEND, "1")),
    "append to a number": alter(TOPIC, "t", ("retention.ms", APPEND, "1")),
    "no number": alter(TOPIC, "t", ("retention.ms", SET, "a day")),
    "out of range": alter(TOPIC, "t", ("segment.bytes", SET, "1000")),
    "no such policy": alter(TOPIC, "t", ("cleanup.policy", SET, "shrink")),
    "twice in a list": alter(TOPIC, "t", ("cleanup.policy", SET, "delete,delete")),
    "lags that cross": alter(
        TOPIC, "t", ("min.compaction.lag.ms", SET, "9"), ("max.compaction.lag.ms", SET, "8")
    ),
    "tiers that are not": alter(TOPIC, "t", ("remote.storage.enable", SET, "true")),
    "null": alter(TOPIC, "t", ("retention.ms", SET, None)),
    "the same key twice": alter(TOPIC, "t", ("retention.ms", SET, "1"), ("retention.ms", DELETE, None)),
    "long": alter(TOPIC, "t", ("follower.replication.throttled.replicas", SET, replicas(0))),
    "too long": alter(TOPIC, "t", ("follower.replication.throttled.replicas", APPEND, replicas(3000))),
    "short": alter(TOPIC, "t", ("follower.replication.throttled.replicas", SET, "*")),
    "missing topic": alter(TOPIC, "missing", ("retention.ms", SET, "1")),
    "missing topic, bad value": alter(TOPIC, "missing", ("retention.ms", SET, "x")),
    "bad topic name": alter(TOPIC, "a/b", ("retention.ms", SET, "1")),
    "no topic name": alter(TOPIC, "", ("retention.ms", SET, "1")),
    "for all brokers": alter(
        BROKER, "", ("log.retention.ms", SET, "7000"), ("log.cleaner.threads", SET, "2")
    ),
    "for this broker": alter(BROKER, "1", ("log.retention.ms", SET, "8000"), ("max.connections", SET, "500")),
    "a quota": alter(BROKER, "1", ("leader.replication.throttled.rate", SET, "1000")),
    "a bad quota": alter(BROKER, "1", ("leader.replication.throttled.rate", SET, "-1")),
    "a broker's list": alter(BROKER, "", ("log.cleanup.policy", APPEND, "compact")),
    "a key nobody knows": alter(BROKER, "1", ("some.plugin.key", SET, "v")),
    "append to a key nobody knows": alter(BROKER, "1", ("some.plugin.key", APPEND, "v")),
    "a static key": alter(BROKER, "1", ("log.dirs", SET, "/tmp")),
    "a bad broker value": alter(BROKER, "1", ("log.retention.ms", SET, "never")),
    "a broker value out of range": alter(BROKER, "", ("message.max.bytes", SET, "-5")),
    "too many threads": alter(BROKER, "1", ("num.io.threads", SET, "100")),
    "too few threads": alter(BROKER, "1", ("num.io.threads", SET, "1")),
    "enough threads": alter(BROKER, "1", ("num.io.threads", SET, "10")),
    "a store without a listener": alter(BROKER, "1", ("ssl.keystore.location", SET, "/tmp/k")),
    "a listener's key for all brokers": alter(BROKER, "", ("ssl.cipher.suites", SET, "A")),
    "in sync replicas of a broker": alter(BROKER, "1", ("min.insync.replicas", SET, "2")),
    "in sync replicas of all": alter(BROKER, "", ("min.insync.replicas", SET, "1")),
    "in sync replicas of all, deleted": alter(BROKER, "", ("min.insync.replicas", DELETE, None)),
    "another broker": alter(BROKER, "7", ("log.retention.ms", SET, "1")),
    "no broker": alter(BROKER, "one", ("log.retention.ms", SET, "1")),
    "a broker's deletion": alter(BROKER, "1", ("log.retention.ms", DELETE, None)),
    "a group": alter(GROUP, "g", ("consumer.session.timeout.ms", SET, "55000")),
    "a group out of bounds": alter(GROUP, "g", ("consumer.session.timeout.ms", SET, "1")),
    "a share group's start": alter(GROUP, "g", ("share.auto.offset.reset", SET, "by_duration:PT1H")),
    "a bad share group's start": alter(GROUP, "g", ("share.auto.offset.reset", SET, "by_duration:1H")),
    "unknown group key": alter(GROUP, "g", ("session.timeout.ms", SET, "1")),
    "no group name": alter(GROUP, "", ("consumer.session.timeout.ms", SET, "55000")),
    "a subscription": alter(CLIENT_METRICS, "s", ("metrics", SET, "a.,b."), ("match", SET, "client_id=c.*")),
    "a longer subscription": alter(CLIENT_METRICS, "s", ("metrics", APPEND, "c.")),
    "a bad interval": alter(CLIENT_METRICS, "s", ("interval.ms", SET, "99")),
    "a bad match": alter(CLIENT_METRICS, "s", ("match", SET, "color=red")),
    "a bad expression": alter(CLIENT_METRICS, "s", ("match", SET, "client_id=(")),
    "unknown subscription key": alter(CLIENT_METRICS, "s", ("period", SET, "1")),
    "a level that is none": alter(BROKER_LOGGER, "1", ("root", SET, "LOUD")),
    "a logger that is none": alter(BROKER_LOGGER, "1", ("no.such.logger", SET, "INFO")),
    "no level for the root": alter(BROKER_LOGGER, "1", ("root", DELETE, None)),
    "appended level": alter(BROKER_LOGGER, "1", ("root", APPEND, "INFO")),
    "levels of another broker": alter(BROKER_LOGGER, "2", ("root", SET, "INFO")),
    "unknown resource type": alter(77, "x", ("a", SET, "b")),
    "levels replaced": replace(BROKER_LOGGER, "1", root="INFO"),
}

DESCRIBED = [(TOPIC, "t"), (TOPIC, "plain"), (BROKER, "1"), (BROKER, ""), (GROUP, "g"), (CLIENT_METRICS, "s")]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Wire, World]]:
    directory: Path = tmp_path_factory.mktemp("jvm")
    with JvmKafka(directory / "data", config=CONFIG) as jvm, Wire(jvm.bootstrap) as wire:
        for name in ("t", "plain"):
            create_topic(wire, name)
        world = World(BrokerConfig.load(jvm.properties), ("t", "plain"))
        world.apply(  # Kafka's controller writes this one when it turns eligible leader replicas on (KIP-966)
            [messages.ConfigRecord(resource_type=BROKER, name="min.insync.replicas", value="1")]
        )
        wait_until_applied(wire, world)
        yield wire, world


# kafkad starts without these, so they have a default here, which shows among the synonyms.
DEFAULTED_HERE = ("controller.listener.names", "node.id", "process.roles")


def entries(result: Any) -> dict[str, Any]:
    return {
        entry.name: (
            entry.value,
            entry.config_source,
            entry.config_type,
            entry.read_only,
            entry.is_sensitive,
            [
                (synonym.name, synonym.value, synonym.source)
                for synonym in entry.synonyms
                if not (entry.name in DEFAULTED_HERE and synonym.source == configs.DEFAULT_CONFIG)
            ],
        )
        for entry in result.configs
    }


def assert_same(wire: Wire, world: World, request: Any, version: int) -> None:
    theirs, ours = wire.ask(request, version), world.ask(request, version)
    for expected, got in zip(theirs.results, ours.results, strict=True):
        assert (got.error_code, got.resource_name) == (expected.error_code, expected.resource_name)
        assert entries(got) == entries(expected)
        assert len(got.configs) == len(expected.configs)


def test_a_transcript_of_changes_has_the_same_outcome(both: tuple[Wire, World]) -> None:
    wire, world = both
    wrong = []
    for step, request in TRANSCRIPT.items():
        version = type(request).MAX_VERSION
        expected, got = wire.ask(request, version).responses[0], world.ask(request, version).responses[0]
        print(f"{step}: {expected.error_code} {expected.error_message}\n    {got.error_message}")
        if (got.error_code, got.error_message is None) != (
            expected.error_code,
            expected.error_message is None,
        ):
            wrong.append((step, expected, got))
        else:
            wait_until_applied(wire, world)
    assert wrong == []


def wait_until_applied(wire: Wire, world: World) -> None:
    """JVM Kafka's broker applies what its controller wrote a moment later."""
    for _ in range(50):
        try:
            assert_same(wire, world, describe(*DESCRIBED), 4)
            return
        except AssertionError:
            time.sleep(0.02)
    assert_same(wire, world, describe(*DESCRIBED), 4)


@pytest.mark.parametrize("version", [1, 2, 3, 4])
def test_every_version_describes_the_same(both: tuple[Wire, World], version: int) -> None:
    wire, world = both
    assert_same(wire, world, describe(*DESCRIBED, keys=["retention.ms", "log.retention.hours"]), version)
    assert_same(wire, world, describe(*DESCRIBED, synonyms=False), version)


@pytest.mark.parametrize(
    "resource",
    [
        (TOPIC, "missing"),
        (TOPIC, "a/b"),
        (TOPIC, ""),
        (BROKER, "2"),
        (BROKER, "x"),
        (BROKER_LOGGER, ""),
        (BROKER_LOGGER, "2"),
        (CLIENT_METRICS, ""),
        (GROUP, ""),
    ],
)
def test_what_cannot_be_described_is_the_same_error(
    both: tuple[Wire, World], resource: tuple[int, str]
) -> None:
    assert_same(*both, describe(resource), 4)


@pytest.mark.parametrize(("version", "types"), [(0, []), (1, []), (1, [TOPIC, GROUP]), (1, [3])])
def test_the_same_resources_are_listed(both: tuple[Wire, World], version: int, types: list[int]) -> None:
    wire, world = both
    request = messages.ListConfigResourcesRequest(resource_types=types)
    theirs, ours = wire.ask(request, version), world.ask(request, version)
    assert ours.error_code == theirs.error_code
    assert {(r.resource_type, r.resource_name) for r in ours.config_resources} == {
        (r.resource_type, r.resource_name) for r in theirs.config_resources
    }

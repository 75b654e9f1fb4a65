"""The handlers of api/configs.py over a real metadata image; test_configs_jvm.py has JVM Kafka's answers."""

import asyncio
import logging
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kafkad.api.configs import Resource, describe_configs, incremental_alter_configs, invalid_resources
from kafkad.config.broker import BrokerConfig
from kafkad.config.broker_keys import BROKER_KEYS
from kafkad.config.definition import PASSWORD
from kafkad.config.dynamic import Operation
from kafkad.config.topic import TOPIC_KEYS
from kafkad.metadata.replay import applied
from kafkad.protocol import messages
from kafkad.protocol.errors import (
    INVALID_CONFIG,
    INVALID_REQUEST,
    NOT_CONTROLLER,
    UNKNOWN_TOPIC_OR_PARTITION,
    UNSUPPORTED_VERSION,
    KafkaError,
)
from tests.unit.config_world import World, alter, describe, replace
from tests.unit.steps import finish

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = range(4)


@pytest.fixture
def world() -> World:
    config = {"log.retention.hours": "24", "ssl.key.password": "secret", "no.such.key": "x"}
    return World(BrokerConfig.load(overrides=config), ("a", "b"))


def entry(world: World, kind: int, name: str, key: str, version: int = 4) -> Any:
    (result,) = world.ask(describe((kind, name), keys=[key]), version).results
    assert result.error_code == 0
    return result.configs[0]


def written(world: World) -> list[tuple[int, str, str, str | None]]:
    return [
        (record.resource_type, record.resource_name, record.name, record.value) for record in world.written
    ]


def outcome(world: World, request: Any) -> tuple[int, str | None]:
    (response,) = world.ask(request, type(request).MAX_VERSION).responses
    return response.error_code, response.error_message


def test_every_key_is_described_with_its_documentation(world: World) -> None:
    request = describe((BROKER, "1"), (TOPIC, "a"))
    request.include_documentation = True
    broker, topic = world.ask(request, 4).results
    listed = {name for name, key in BROKER_KEYS.items() if not key.internal}
    assert {entry.name for entry in broker.configs} == listed | {"no.such.key"}
    assert {entry.name for entry in topic.configs} == {
        name for name, key in TOPIC_KEYS.items() if not key.internal
    }
    documented = {entry.name: entry.documentation for entry in broker.configs}
    assert all(documented[name] == BROKER_KEYS[name].doc for name in listed)
    assert documented["no.such.key"] is None


@pytest.mark.parametrize("kind", [BROKER, BROKER_LOGGER])
def test_a_broker_id_of_many_digits_is_refused(world: World, kind: int) -> None:
    digits = "1" * 5_000
    (result,) = world.ask(describe((kind, digits)), 4).results
    assert result.error_code == INVALID_REQUEST and "must be an integer" in result.error_message
    code, message = outcome(world, alter(kind, digits, ("log.retention.ms", SET, "1")))
    assert code == INVALID_REQUEST and "must be an integer" in (message or "")


@pytest.mark.parametrize(
    ("kind", "name", "key", "prefix"),
    [(TOPIC, "a", "retention.ms", ""), (BROKER, "1", "max.connections.per.ip.overrides", "127.0.0.1:")],
)
def test_a_number_of_many_digits_is_as_wrong_as_no_number(
    world: World, kind: int, name: str, key: str, prefix: str
) -> None:
    code, _ = outcome(world, alter(kind, name, (key, SET, f"{prefix}x")))
    assert code in (INVALID_CONFIG, INVALID_REQUEST)
    assert outcome(world, alter(kind, name, (key, SET, prefix + "1" * 5_000)))[0] == code


def test_secrets_are_never_described(world: World) -> None:
    (result,) = world.ask(describe((BROKER, "1")), 4).results
    for described in result.configs:
        key = BROKER_KEYS.get(described.name)
        if key is None or key.type == PASSWORD:
            assert described.is_sensitive and described.value is None
            assert all(synonym.value is None for synonym in described.synonyms)


def test_a_value_tells_where_it_comes_from(world: World) -> None:
    described = entry(world, TOPIC, "a", "retention.ms")
    assert (described.value, described.config_source) == (
        "86400000",
        5,
    )  # from hours: Kafka calls it a default
    outcome(world, alter(BROKER, "", ("log.retention.ms", SET, "5")))
    assert entry(world, TOPIC, "a", "retention.ms").config_source == 3
    outcome(world, alter(BROKER, "1", ("log.retention.ms", SET, "6")))
    assert entry(world, TOPIC, "a", "retention.ms").config_source == 2
    outcome(world, alter(TOPIC, "a", ("retention.ms", SET, "7")))
    described = entry(world, TOPIC, "a", "retention.ms")
    assert (described.value, described.config_source) == ("7", 1)
    assert [(synonym.name, synonym.value, synonym.source) for synonym in described.synonyms] == [
        ("retention.ms", "7", 1),
        ("log.retention.ms", "6", 2),
        ("log.retention.ms", "5", 3),
        ("log.retention.hours", "24", 4),
        ("log.retention.hours", "168", 5),
    ]
    assert entry(world, TOPIC, "b", "retention.ms").value == "6"


def test_a_change_is_written_and_a_change_to_the_same_is_not(world: World) -> None:
    assert outcome(world, alter(TOPIC, "a", ("retention.ms", SET, "5"), ("flush.ms", DELETE, None))) == (
        0,
        None,
    )
    assert written(world) == [(TOPIC, "a", "retention.ms", "5")]
    assert outcome(world, alter(TOPIC, "a", ("retention.ms", SET, "5"))) == (0, None)
    assert len(written(world)) == 1
    outcome(world, alter(BROKER, "1", ("log.retention.ms", SET, "5")))
    outcome(world, alter(BROKER, "1", ("log.retention.ms", SET, "5")))
    assert len(written(world)) == 3  # a broker's values are written again: it reads its key stores again


def test_validate_only_changes_nothing(world: World) -> None:
    assert outcome(world, alter(TOPIC, "a", ("retention.ms", SET, "5"), validate_only=True)) == (0, None)
    assert (
        outcome(world, alter(TOPIC, "a", ("retention.ms", SET, "x"), validate_only=True))[0] == INVALID_CONFIG
    )
    assert written(world) == []


def test_listeners_that_a_jvm_broker_has_accepted_do_not_forbid_other_changes(world: World) -> None:
    record = messages.ConfigRecord(
        resource_type=BROKER, resource_name="1", name="listeners", value="PLAINTEXT://:9092,SSL://:9093"
    )
    world.metadata.image, _ = applied(world.metadata.image, [record])
    for change in (("log.retention.ms", SET, "5"), ("listeners", DELETE, None)):
        assert outcome(world, alter(BROKER, "1", change, validate_only=True)) == (0, None)
    change = ("listeners", SET, "PLAINTEXT://:9999")
    assert outcome(world, alter(BROKER, "1", change, validate_only=True))[0] == INVALID_REQUEST


def test_alter_configs_deletes_what_it_does_not_name(world: World) -> None:
    outcome(world, alter(TOPIC, "a", ("retention.ms", SET, "5"), ("flush.ms", SET, "6")))
    assert outcome(world, replace(TOPIC, "a", flush_ms="7")) == (0, None)
    assert world.metadata.image.configs[TOPIC, "a"] == {"flush.ms": "7"}


def test_one_bad_key_leaves_the_whole_resource_as_it_was(world: World) -> None:
    code, message = outcome(world, alter(TOPIC, "a", ("retention.ms", SET, "5"), ("no.such.key", SET, "1")))
    assert (code, message) == (INVALID_CONFIG, "Unknown topic config name: no.such.key")
    assert written(world) == []


def test_each_resource_has_its_own_outcome(world: World) -> None:
    request = alter(TOPIC, "a", ("retention.ms", SET, "5"))
    request.resources += alter(TOPIC, "missing", ("retention.ms", SET, "5")).resources
    request.resources += alter(GROUP, "g", ("consumer.session.timeout.ms", SET, "x")).resources
    codes = [response.error_code for response in world.ask(request, 1).responses]
    assert codes == [0, UNKNOWN_TOPIC_OR_PARTITION, INVALID_CONFIG]
    assert written(world) == [(TOPIC, "a", "retention.ms", "5")]


def test_a_resource_that_comes_twice_is_refused_both_times(world: World) -> None:
    request = alter(TOPIC, "a", ("retention.ms", SET, "5"))
    request.resources += alter(TOPIC, "a", ("flush.ms", SET, "5")).resources
    responses = world.ask(request, 1).responses
    assert [response.error_code for response in responses] == [INVALID_REQUEST, INVALID_REQUEST]
    assert written(world) == []


def test_the_controllers_refusal_is_told(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(changes: object, validate_only: bool, context: object) -> None:
        raise KafkaError(NOT_CONTROLLER, "elsewhere")

    monkeypatch.setattr(world, "incremental_alter_configs", refuse)
    assert outcome(world, alter(TOPIC, "a", ("retention.ms", SET, "5"))) == (NOT_CONTROLLER, "elsewhere")


def test_a_resource_of_which_many_keys_are_asked_is_described_in_steps(world: World) -> None:
    """The set of 100,000 keys took 10 ms in one go."""
    keys = [f"key-{i}" for i in range(5_000)]
    for chunks, more in ((20, [*keys, "retention.ms"]), (0, ["retention.ms"])):
        request = describe((TOPIC, "a"), (TOPIC, "b"), keys=more)
        steps = describe_configs(world, cast(Any, SimpleNamespace(version=4)), request)
        taken = 0
        while True:
            try:
                next(steps)
            except StopIteration as end:
                response = end.value
                break
            taken += 1
        assert taken >= 2 * chunks
        assert [[entry.name for entry in each.configs] for each in response.results] == [["retention.ms"]] * 2


def test_many_refusals_of_the_controller_are_told_in_steps(world: World) -> None:
    """64,000 of them took 0.06 s in one go."""
    request = alter(TOPIC, "none", ("retention.ms", SET, "5"))
    [resource] = request.resources
    make = type(resource)
    request.resources = [
        make(resource_type=TOPIC, resource_name=f"none-{i}", configs=resource.configs) for i in range(500)
    ]
    written = finish(incremental_alter_configs(world, cast(Any, None), request))
    steps = asyncio.run(_awaited(written))
    count = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            response = end.value
            break
        count += 1
    assert count >= 500
    assert {each.error_code for each in response.responses} == {UNKNOWN_TOPIC_OR_PARTITION}


async def _awaited(written: Any) -> Any:
    return await written


def test_log_levels_are_described_and_set(world: World) -> None:
    logger = logging.getLogger("kafkad.test_api_configs")
    try:
        assert outcome(world, alter(BROKER_LOGGER, "1", (logger.name, SET, "TRACE"))) == (0, None)
        described = entry(world, BROKER_LOGGER, "1", logger.name)
        assert (logger.level, described.value, described.config_source) == (5, "TRACE", 6)
        outcome(world, alter(BROKER_LOGGER, "1", (logger.name, SET, "FATAL"), validate_only=True))
        assert logger.level == 5
        assert outcome(world, alter(BROKER_LOGGER, "1", (logger.name, DELETE, None))) == (0, None)
        assert logger.level == logging.NOTSET
    finally:
        logger.setLevel(logging.NOTSET)


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        (TOPIC, "missing", UNKNOWN_TOPIC_OR_PARTITION),
        (BROKER, "2", INVALID_REQUEST),
        (BROKER_LOGGER, "", INVALID_REQUEST),
        (GROUP, "", INVALID_REQUEST),
        (99, "x", INVALID_REQUEST),
    ],
)
def test_what_cannot_be_described_has_an_error_of_its_own(
    world: World, kind: int, name: str, code: int
) -> None:
    wrong, right = world.ask(describe((kind, name), (TOPIC, "a")), 4).results
    assert (wrong.error_code, wrong.configs) == (code, [])
    assert right.error_code == 0 and right.configs


@pytest.mark.parametrize(
    ("version", "types", "listed"),
    [
        (0, [], [(CLIENT_METRICS, "s")]),
        (
            1,
            [],
            [
                (GROUP, "g"),
                (CLIENT_METRICS, "s"),
                (BROKER_LOGGER, "1"),
                (BROKER, "1"),
                (TOPIC, "a"),
                (TOPIC, "b"),
            ],
        ),
        (1, [TOPIC], [(TOPIC, "a"), (TOPIC, "b")]),
    ],
)
def test_resources_are_listed(
    world: World, version: int, types: list[int], listed: list[tuple[int, str]]
) -> None:
    outcome(world, alter(GROUP, "g", ("consumer.session.timeout.ms", SET, "50000")))
    outcome(world, alter(CLIENT_METRICS, "s", ("metrics", SET, "*")))
    response = world.ask(messages.ListConfigResourcesRequest(resource_types=types), version)
    assert [(found.resource_type, found.resource_name) for found in response.config_resources] == listed


def test_a_type_that_cannot_be_listed_is_an_error(world: World) -> None:
    response = world.ask(messages.ListConfigResourcesRequest(resource_types=[TOPIC, 3]), 1)
    assert (response.error_code, response.config_resources) == (UNSUPPORTED_VERSION, [])


def test_the_cost_of_many_resources_grows_with_their_number(world: World) -> None:
    """HUNTS S7: each resource was looked for among all, 5,000 of them took 765 ms."""

    def seconds(count: int) -> float:
        resources = [
            Resource(TOPIC, f"topic-{i}", [Operation("retention.ms", SET, "1")]) for i in range(count)
        ]
        taken = []
        for _ in range(3):
            begun = time.thread_time()
            assert finish(invalid_resources(world.metadata.image, world.config, resources)) == {}
            taken.append(time.thread_time() - begun)
        return min(taken)

    # 16 times the resources; their square would be 256 times the work
    assert seconds(8_000) < 60 * seconds(500)


def test_a_resource_that_is_named_twice_is_refused_in_both_places(world: World) -> None:
    resources = [Resource(TOPIC, name, [Operation("retention.ms", SET, "1")]) for name in ("a", "b", "a")]
    found = finish(invalid_resources(world.metadata.image, world.config, resources))
    assert {place: error.code for place, error in found.items()} == {0: INVALID_REQUEST, 2: INVALID_REQUEST}


@pytest.mark.parametrize("name", ["", "1"])
def test_one_resource_has_a_bounded_number_of_configurations(world: World, name: str) -> None:
    """100,000 keys of a broker were taken; then each change of one cost every worker 2 s."""

    def keys(first: int, count: int) -> list[tuple[str, int, str | None]]:
        return [(f"listener.name.x{number}.y", SET, "1") for number in range(first, first + count)]

    assert outcome(world, alter(BROKER, name, *keys(0, 2_001)))[0] == INVALID_REQUEST
    code, message = outcome(world, alter(BROKER, name, *keys(0, 2_000)))
    if name:
        assert code == 0
        assert outcome(world, alter(BROKER, name, *keys(2_000, 1)))[0] == INVALID_CONFIG
        assert outcome(world, alter(BROKER, name, *keys(1_999, 1)))[0] == 0
    else:  # the message names all keys, and is cut: it has to fit into a response
        assert code == INVALID_REQUEST
        assert message is not None and 4_000 <= len(message) < 4_100


def test_topics_that_share_their_entries_are_told_their_own(world: World) -> None:
    world.ask(alter(TOPIC, "b", ("retention.ms", SET, "77")), 1)
    for keys in (None, ["retention.ms"]):
        a, b, again = world.ask(describe((TOPIC, "a"), (TOPIC, "b"), (TOPIC, "a"), keys=keys), 4).results
        values = [{each.name: each.value for each in told.configs}["retention.ms"] for told in (a, b, again)]
        assert values == ["86400000", "77", "86400000"]
        assert (a.resource_name, again.resource_name) == ("a", "a") and a.configs == again.configs
        assert len(b.configs) == len(a.configs)

"""Configuration that changes while the broker runs: precedence, operations, and what may not change."""

import time

import pytest

from kafkad.config.broker import BrokerConfig
from kafkad.config.dynamic import (
    APPEND,
    DELETE,
    SET,
    SUBTRACT,
    Operation,
    apply_operations,
    changed,
    changed_keys,
    edited,
    validate_broker_configs,
    with_dynamic,
)
from kafkad.config.served import refuse_changes
from kafkad.config.topic import TOPIC_KEYS, TopicConfig
from kafkad.protocol.errors import INVALID_CONFIG, INVALID_REQUEST, KafkaError

STATIC = BrokerConfig.load(overrides={"log.retention.hours": "1", "message.max.bytes": "1000"})


def test_this_brokers_value_wins_over_that_of_all_over_the_file_over_the_default() -> None:
    assert STATIC.message_max_bytes == 1000
    config, complaints = with_dynamic(STATIC, {"message.max.bytes": "2000"}, {})
    assert (config.message_max_bytes, complaints) == (2000, [])
    config, _ = with_dynamic(config, {"message.max.bytes": "2000"}, {"message.max.bytes": "3000"})
    assert config.message_max_bytes == 3000
    assert TopicConfig.resolve(config, {}).max_message_bytes == 3000
    assert TopicConfig.resolve(config, {"max.message.bytes": "4000"}).max_message_bytes == 4000
    config, _ = with_dynamic(config, {}, {})
    assert config.message_max_bytes == STATIC.message_max_bytes == 1000


def test_a_dynamic_value_puts_the_static_one_in_another_unit_out_of_force() -> None:
    assert STATIC.log_retention_ms == 3_600_000
    config, _ = with_dynamic(STATIC, {"log.retention.ms": "5"}, {})
    assert (config.log_retention_ms, config.value("log.retention.hours")) == (5, 168)
    assert changed_keys(STATIC, config) == {"log.retention.ms", "log.retention.hours"}


@pytest.mark.parametrize(
    ("current", "kind", "value", "after"),
    [
        ({}, SET, "compact", "compact"),
        ({"cleanup.policy": "compact"}, DELETE, None, None),
        ({}, APPEND, "compact", "delete,compact"),  # to the default
        ({"cleanup.policy": "compact"}, APPEND, "compact", "compact"),
        ({"cleanup.policy": "compact"}, APPEND, "delete,compact", "compact,delete"),
        ({"cleanup.policy": ""}, APPEND, "delete", "delete"),
        ({"cleanup.policy": "compact,delete"}, SUBTRACT, "compact", "delete"),
        ({"cleanup.policy": "compact"}, SUBTRACT, "delete", "compact"),
        ({}, SUBTRACT, "delete", ""),
        ({"cleanup.policy": "a,b,a,a"}, SUBTRACT, "a,c,a", "b,a"),
        ({"cleanup.policy": "a,b,a"}, APPEND, "c,a,c,", "a,b,a,c,"),
    ],
)
def test_an_operation_gives(current: dict[str, str], kind: int, value: str | None, after: str | None) -> None:
    operation = Operation("cleanup.policy", kind, value)
    assert apply_operations(current, [operation], TOPIC_KEYS) == {"cleanup.policy": after}


def test_long_lists_are_changed_in_linear_time() -> None:
    """Two of 9,000 entries each fit in a request; they took up to 2 s of the event loop."""
    longest = ",".join(map(chr, range(0x4E00, 0x4E00 + 16_383)))
    begin = time.process_time()
    assert edited("", APPEND, longest) == edited(longest, APPEND, longest) == longest
    assert edited(longest, SUBTRACT, longest[::-1]) == ""
    assert time.process_time() - begin < 0.5


@pytest.mark.parametrize(
    ("operation", "code"),
    [
        (Operation("retention.ms", APPEND, "1"), INVALID_CONFIG),
        (Operation("retention.ms", SUBTRACT, "1"), INVALID_CONFIG),
        (Operation("no.such.key", APPEND, "1"), INVALID_CONFIG),
        (Operation("retention.ms", 9, "1"), INVALID_REQUEST),
    ],
)
def test_an_operation_is_refused(operation: Operation, code: int) -> None:
    with pytest.raises(KafkaError) as caught:
        apply_operations({}, [operation], TOPIC_KEYS)
    assert caught.value.code == code


def test_changes_are_laid_over_what_is_there() -> None:
    assert changed({"a": "1", "b": "2"}, {"a": None, "c": "3"}) == {"b": "2", "c": "3"}


@pytest.mark.parametrize(
    ("texts", "per_broker", "message"),
    [
        (
            {"node.id": "2", "log.dirs": "/x"},
            True,
            "Cannot update these configs dynamically: [log.dirs, node.id]",
        ),
        (
            {"ssl.keystore.location": "/x"},
            True,
            "These security configs can be dynamically updated only per-listener using the listener prefix: "
            "[ssl.keystore.location]",
        ),
        (
            {"listener.name.a.ssl.keystore.location": "/x"},
            False,
            "Cannot update these configs at default cluster level, broker id must be specified: "
            "[listener.name.a.ssl.keystore.location]",
        ),
        (
            {"message.max.bytes": "-1"},
            False,
            "Invalid value -1 for configuration message.max.bytes: Value must be at least 0",
        ),
        (
            {"log.cleaner.min.compaction.lag.ms": "9", "log.cleaner.max.compaction.lag.ms": "8"},
            False,
            "Invalid value 9 for configuration log.cleaner.min.compaction.lag.ms: "
            "Value must be no more than log.cleaner.max.compaction.lag.ms, which is 8",
        ),
        (
            {"num.io.threads": "17"},
            True,
            "Dynamic thread count update validation failed for num.io.threads=17, "
            "value should not be greater than double the current value 8",
        ),
        (
            {"listeners": "PLAINTEXT://:9999"},
            True,
            "Invalid value PLAINTEXT://:9999 for configuration listeners: "
            "kafkad cannot change its listeners while it runs",
        ),
    ],
)
def test_a_broker_cannot_be_changed_so(texts: dict[str, str], per_broker: bool, message: str) -> None:
    with pytest.raises(KafkaError) as caught:
        validate_broker_configs(STATIC, texts, per_broker=per_broker)
    assert (caught.value.code, caught.value.message) == (INVALID_REQUEST, message)


@pytest.mark.parametrize(
    "texts",
    [
        {"log.retention.ms": "1", "max.connections": "5", "num.network.threads": "6"},
        {"leader.replication.throttled.rate": "100"},
        {"a.key.that.nobody.knows": "x"},
        {"listener.name.a.max.connections": "3"},
    ],
)
def test_a_broker_can_be_changed_so(texts: dict[str, str]) -> None:
    validate_broker_configs(STATIC, texts, per_broker=True)
    validate_broker_configs(STATIC, texts, per_broker=False)


@pytest.mark.parametrize("listener", ["a", "a.b"])
def test_a_value_for_a_listener_is_checked(listener: str) -> None:
    """One that is not, was read at each later start, which it ended."""
    texts = {f"listener.name.{listener}.max.connection.creation.rate": "many"}
    with pytest.raises(KafkaError, match="Not a number of type INT"):
        validate_broker_configs(STATIC, texts, per_broker=True)
    config, [complaint] = with_dynamic(STATIC, {}, texts)
    assert config is STATIC and "Not a number of type INT" in complaint


def test_what_stands_in_the_log_is_applied_as_far_as_it_can_be() -> None:
    config, complaints = with_dynamic(
        STATIC,
        {"log.retention.ms": "5", "ssl.cipher.suites": "A", "node.id": "9"},
        {"message.max.bytes": "big", "max.connections": "7", "ssl.key.password": "p"},
    )
    assert (config.log_retention_ms, config.max_connections, config.message_max_bytes) == (5, 7, 1000)
    assert [complaint.split(" is ignored: ") for complaint in complaints] == [
        ["The cluster-wide default ssl.cipher.suites", "it can change for one broker only"],
        ["The cluster-wide default node.id", "it cannot change while the broker runs"],
        [
            "The per-broker message.max.bytes",
            "Invalid value big for configuration message.max.bytes: "
            "Not a number of type INT, allowed is [0,...]",
        ],
        ["The per-broker ssl.key.password", "it can change for a listener only"],
    ]


@pytest.mark.parametrize(
    "name",
    [
        "ssl.client.auth",
        "ssl.enabled.protocols",
        "ssl.endpoint.identification.algorithm",
        "sasl.enabled.mechanisms",
        "sasl.kerberos.principal.to.local.rules",
        "sasl.mechanism.inter.broker.protocol",
        "listener.name.ssl.ssl.client.auth",
        "listener.name.a.b.ssl.client.auth",
        "listener.name.a.b.sasl.enabled.mechanisms",
        "listener.name.sasl_ssl.plain.sasl.jaas.config",
        "listener.name.sasl_ssl.sasl.oauthbearer.assertion.file",
        "listener.name.sasl_ssl.oauthbearer.sasl.server.callback.handler.class",
    ],
)
def test_only_the_file_says_how_a_listener_is_protected(name: str) -> None:
    """A value that a JVM broker has accepted is in the log, and has no effect there either."""
    config, [complaint] = with_dynamic(STATIC, {}, {name: ""})
    assert config is STATIC
    assert complaint == f"The per-broker {name} is ignored: only the properties file sets it for a listener"
    with pytest.raises(KafkaError, match="only the properties file sets it"):
        refuse_changes({name: ""})
    refuse_changes({name: None})


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("listener.security.protocol.map", "A:PLAINTEXT,CONTROLLER:PLAINTEXT"),
        ("listeners", "A://127.0.0.1:9092,B://127.0.0.1:9093"),
    ],
)
def test_the_file_says_which_listeners_there_are(name: str, text: str) -> None:
    """The map was the file's when it was set; since then, the file wants a login from clients."""
    file = {
        "listeners": "A://127.0.0.1:9092",
        "inter.broker.listener.name": "A",
        "listener.security.protocol.map": "A:SASL_SSL,B:SSL,CONTROLLER:PLAINTEXT",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "sasl.enabled.mechanisms": "PLAIN",
    }
    config, [complaint] = with_dynamic(BrokerConfig(file), {}, {name: text, "max.connections": "7"})
    assert complaint.startswith(f"The per-broker {name} is ignored: only the properties file sets it")
    assert [str(each) for each in config.endpoints] == ["A://127.0.0.1:9092"]
    assert (config.listener_protocols["A"], config.max_connections) == ("SASL_SSL", 7)


def test_of_values_that_cannot_be_together_as_few_as_possible_are_left_out() -> None:
    low, high = "log.cleaner.min.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms"
    config, [complaint] = with_dynamic(STATIC, {low: "9", high: "8", "message.max.bytes": "7"}, {})
    assert config.dynamic_default == {high: "8", "message.max.bytes": "7"}
    assert complaint.startswith(f"{low}=9 cannot be applied and is left out: ")
    assert high in complaint


def test_a_default_that_conflicts_with_the_file_costs_no_other_value() -> None:
    """All dynamic values of the broker were left out at a start, as with Kafka: also limits and stores."""
    low, high = "log.cleaner.min.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms"
    file = BrokerConfig({**STATIC.static, high: "50"})
    config, [complaint] = with_dynamic(file, {low: "100", "message.max.bytes": "7"}, {"max.connections": "5"})
    assert (config.message_max_bytes, config.max_connections) == (7, 5)
    assert low in complaint
    # the broker's own values come before those of all brokers
    config, [complaint] = with_dynamic(file, {high: "5"}, {low: "20"})
    assert (config.dynamic_default, config.dynamic_broker) == ({}, {low: "20"})
    assert high in complaint
    # and what has been applied stays
    kept, [complaint] = with_dynamic(config, {high: "5", "message.max.bytes": "7"}, {low: "20"})
    assert (kept.dynamic_default, kept.dynamic_broker) == ({"message.max.bytes": "7"}, {low: "20"})


def test_a_value_that_has_to_wait_for_another_one_is_not_left_out() -> None:
    low, high = "log.cleaner.min.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms"
    file = BrokerConfig({**STATIC.static, low: "20", high: "50"})
    buffer = "log.cleaner.dedupe.buffer.size"
    config, [complaint] = with_dynamic(file, {buffer: "1000"}, {high: "10", low: "5"})
    assert (config.dynamic_default, config.dynamic_broker) == ({}, {high: "10", low: "5"})
    assert buffer in complaint

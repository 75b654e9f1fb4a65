"""The tables of keys against the facts of Kafka 4.3.1, and the rules of values."""

import contextlib
import sys
import time
from pathlib import Path

import pytest

from kafkad.config.broker_keys import BROKER_KEYS, BROKER_QUOTA_KEYS, RETIRED_KEYS
from kafkad.config.client_metrics import CLIENT_METRICS_KEYS
from kafkad.config.definition import (
    ANY,
    BOOLEAN,
    DOUBLE,
    INT,
    LIST,
    LONG,
    MEDIUM,
    PASSWORD,
    SHORT,
    ConfigError,
    Key,
    to_string,
)
from kafkad.config.group import GROUP_KEYS
from kafkad.config.topic import TOPIC_KEYS

ROOT = Path(__file__).resolve().parents[2]
TABLES = {
    "broker": BROKER_KEYS,
    "brokerdyn": BROKER_QUOTA_KEYS,
    "clientmetrics": CLIENT_METRICS_KEYS,
    "group": GROUP_KEYS,
    "topic": TOPIC_KEYS,
}

# Printed by tools/ConfigFacts.java.
FACTS = [line.split("\t") for line in (ROOT / "tests/unit/kafka_config_facts.tsv").read_text().splitlines()]

# Kafka insists on these; here they have a default.
REQUIRED = {"controller.listener.names": "", "node.id": "1", "process.roles": "broker,controller"}

LONGEST = 32_767  # characters of a string in a request

OURS = {"broker": ["kafkad.failover.on.refused", "kafkad.preferred.leader.delay.ms"]}


def test_every_key_of_kafka_is_a_row_and_no_other_but_ours() -> None:
    for table, keys in TABLES.items():
        kafkas = [fact[1] for fact in FACTS if fact[0] == table]
        assert list(keys) == sorted(kafkas + OURS.get(table, []))


@pytest.mark.parametrize("fact", FACTS, ids=lambda fact: f"{fact[0]}:{fact[1]}")
def test_a_row_says_what_kafka_says(fact: list[str]) -> None:
    table, name, type, default, validator, importance, internal, update = fact
    key = TABLES[table][name]
    expected = {"<NULL>": None, "<REQUIRED>": REQUIRED.get(name)}.get(default, default)
    assert (key.type.upper(), to_string(key.default)) == (type, expected)
    assert (key.importance.upper(), key.internal) == (importance, internal == "true")
    assert update in ("", key.update)
    kind, _, allowed = validator.partition(": ")
    if kind in ("Range", "ValidString", "CaseInsensitiveValidString", "NonEmptyString"):
        assert key.valid.allowed == allowed
    elif kind == "ValidList":
        names = allowed[: allowed.index("]") + 1]
        assert key.valid.allowed in (names, "", "non-empty list")
        assert (key.valid.reason([]) is None) == ("empty=true" in allowed)
    assert key.doc.endswith(".")


def test_a_key_is_either_kafkas_or_retired() -> None:
    assert not BROKER_KEYS.keys() & RETIRED_KEYS.keys()


def test_the_documentation_is_what_the_tables_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "tools")
    import config_docs

    assert config_docs.main(["--check"]) == 0, "run python tools/config_docs.py"
    sys.modules.pop("config_docs")


@pytest.mark.parametrize(
    ("type", "text", "value"),
    [
        (BOOLEAN, " TRUE ", True),
        (BOOLEAN, "false", False),
        (INT, "+5", 5),
        (INT, "-2147483648", -(2**31)),
        (SHORT, "32767", 32767),
        (LONG, " 9223372036854775807", 2**63 - 1),
        (DOUBLE, "1e3", 1000.0),
        (DOUBLE, ".5d", 0.5),
        (LIST, "", []),
        (LIST, " a , b,c ", ["a", "b", "c"]),
        (LIST, "a,,b", ["a", "", "b"]),
        (LIST, "a \t\n\v\f\r, \r\f\v\n\t b , ,", ["a", "b", "", ""]),
        (LIST, "a\xa0,\x1fb\u3000,\x85c", ["a\xa0", "\x1fb\u3000", "\x85c"]),  # no blanks to Java's \\s
        (DOUBLE, "1.", 1.0),
        (DOUBLE, "1.5E-2f", 0.015),
    ],
)
def test_values_are_parsed_as_java_does(type: str, text: str, value: object) -> None:
    assert Key("k", type, None, ANY, MEDIUM).parse(text) == value


@pytest.mark.parametrize(
    ("type", "text"),
    [
        (BOOLEAN, "yes"),
        (BOOLEAN, ""),
        (INT, ""),
        (INT, "1_000"),
        (INT, "0x10"),
        (INT, "2147483648"),
        (INT, "1.0"),
        (INT, "٣"),
        (SHORT, "32768"),
        (LONG, "9223372036854775808"),
        (LONG, "1L"),
        (DOUBLE, "half"),
        (DOUBLE, "1_0.5"),
        (DOUBLE, "."),
        (DOUBLE, "1.2.3"),
        (DOUBLE, "1e"),
    ],
)
def test_what_is_not_of_the_type_is_refused(type: str, text: str) -> None:
    with pytest.raises(ConfigError, match=r"Invalid value .* for configuration k: "):
        Key("k", type, None, ANY, MEDIUM).parse(text)


@pytest.mark.parametrize(
    ("type", "text"),
    [
        (DOUBLE, "1" * LONGEST + "x"),
        (DOUBLE, "1." + "1" * LONGEST + "x"),
        (DOUBLE, "1e" + "1" * LONGEST + "x"),
        (LIST, "a" + " " * LONGEST + "b"),
        (LIST, " ," * (LONGEST // 2)),
    ],
)
def test_no_text_of_a_client_takes_long(type: str, text: str) -> None:
    """It did: 40 s for a number of 32,767 digits, in the event loop."""
    begin = time.process_time()
    with contextlib.suppress(ConfigError):
        Key("k", type, None, ANY, MEDIUM).parse(text)
    assert time.process_time() - begin < 1


def test_a_password_is_never_told() -> None:
    error = Key("k", PASSWORD, None, ANY, MEDIUM).error("secret", "no")
    assert str(error) == "Invalid value [hidden] for configuration k: no"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, None),
        (True, "true"),
        (["a", "b"], "a,b"),
        (0.5, "0.5"),
        (100.0, "100.0"),
        (1234567.0, "1234567.0"),
        (12345678.9, "1.23456789E7"),
        (10000000.0, "1.0E7"),
        (0.0001, "1.0E-4"),
        (1.7976931348623157e308, "1.7976931348623157E308"),
        (float("1e999"), "Infinity"),
        (float("-1e999"), "-Infinity"),
    ],
)
def test_values_are_written_as_java_does(value: object, text: str | None) -> None:
    assert to_string(value) == text  # type: ignore[arg-type]


def test_a_stored_value_needs_its_type_only() -> None:
    key = TOPIC_KEYS["segment.bytes"]
    assert key.stored("1000", 7) == 1000
    assert key.stored("much", 7) == 7
    assert key.stored("-5", 7) == 7 and not key.usable("-5")
    assert TOPIC_KEYS["retention.ms"].stored("-1", 7) == -1
    assert TOPIC_KEYS["compression.type"].stored("squash", "zstd") == "zstd"
    assert TOPIC_KEYS["cleanup.policy"].stored("shred", ["delete"]) == ["delete"]

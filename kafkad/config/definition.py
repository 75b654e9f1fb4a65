"""The definition of a configuration key: its type, default, allowed values, and when it may change.

Every key of Kafka is one `Key` row in a table: `broker_keys.py`, `topic.py`, `group.py`, `client_metrics.py`.
A row parses its value from text. For an invalid value it has one error message, which is shown to the
operator at the start and returned to clients (INVALID_CONFIG). The rules of the types are those of ConfigDef.

Caveats: A default is a value instead of text, and is not validated, because some of Kafka's defaults are
outside of their own range. Default lists are shared; `Key.default_value()` returns a copy.
"""

import math
import re
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol

from kafkad.config.effects import ACTED, OF

Value = bool | int | float | str | list[str] | None

# Types, by the names that Kafka's documentation gives them.
BOOLEAN: Final = "boolean"
INT: Final = "int"
SHORT: Final = "short"
LONG: Final = "long"
DOUBLE: Final = "double"
STRING: Final = "string"
LIST: Final = "list"  # comma-separated text
CLASS: Final = "class"  # the name of a Java class: kept, never loaded
PASSWORD: Final = "password"  # text that is never shown

# Importance, for the documentation.
HIGH: Final = "high"
MEDIUM: Final = "medium"
LOW: Final = "low"

# When a broker's key may change (KIP-226).
READ_ONLY: Final = "read-only"  # at a restart
PER_BROKER: Final = "per-broker"  # while it runs, for this broker only
CLUSTER_WIDE: Final = "cluster-wide"  # while it runs, for this broker or for all

KIB: Final = 1 << 10
MIB: Final = 1 << 20
GIB: Final = 1 << 30
SECOND: Final = 1000  # in milliseconds, as the three below
MINUTE: Final = 60 * SECOND
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR
INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1
DOUBLE_MAX: Final = 1.7976931348623157e308

HIDDEN: Final = "[hidden]"  # stands for a password in messages
BITS: Final = {SHORT: 16, INT: 32, LONG: 64}

_INTEGER = re.compile(r"[+-]?[0-9]{1,100}")  # Python does not convert 4,301 digits
# Possessive quantifiers: a client's text of 32,767 digits takes no quadratic time.
_DECIMAL = re.compile(r"[+-]?([0-9]++\.?[0-9]*+|\.[0-9]++)([eE][+-]?[0-9]++)?[dDfF]?")
_TRIMMED: Final = "".join(map(chr, range(0x21)))
_BLANKS: Final = " \t\n\v\f\r"  # Java's \s, which entries of a list may have around them


class ConfigError(ValueError):
    """An invalid value. The error message names the key, the value and what is allowed."""


class Defaults(Protocol):
    """The part of `BrokerConfig` that the configurations of topics and groups use."""

    @property
    def topic_defaults(self) -> "dict[str, Value]": ...
    @property
    def group_defaults(self) -> "dict[str, Value]": ...

    def value(self, name: str) -> Any:
        """Return the given value of a key, or its default."""


class Valid:
    """The values that a key allows, beyond its type. `reason(value)` is None for an allowed value, otherwise
    the error message. `allowed` describes the allowed values in Kafka's notation."""

    __slots__ = ("allowed", "distinct", "reason")

    def __init__(self, allowed: str, reason: Callable[[Any], str | None], distinct: bool = False) -> None:
        self.allowed = allowed
        self.reason = reason
        self.distinct = distinct  # for lists: drop repeated entries


def at_least(low: float) -> Valid:
    return Valid(f"[{low},...]", lambda n: f"Value must be at least {low}" if n < low else None)


def between(low: float, high: float) -> Valid:
    def reason(n: float) -> str | None:
        if n < low:
            return f"Value must be at least {low}"
        return f"Value must be no more than {high}" if n > high else None

    return Valid(f"[{low},...,{high}]", reason)


def one_of(*names: str) -> Valid:
    text = ", ".join(names)
    return Valid(f"[{text}]", lambda s: None if s in names else f"String must be one of: {text}")


def one_of_any_case(*names: str) -> Valid:
    text = ", ".join(names)
    upper = frozenset(name.upper() for name in names)
    return Valid(
        f"(case insensitive) [{text}]",
        lambda s: None if s.upper() in upper else f"String must be one of (case insensitive): {text}",
    )


def distinct(*names: str, empty: bool) -> Valid:
    """Allow a list of distinct, non-empty entries. If there are `names`, allow only these."""
    text = ", ".join(names)

    def reason(values: list[str]) -> str | None:
        if not values:
            return None if empty else "List must not be empty"
        if "" in values:
            return "List must not contain an empty entry"
        if names and not set(values) <= set(names):
            return f"String must be one of: {text}"
        return None

    return Valid(f"[{text}]" if names else "" if empty else "non-empty list", reason, distinct=True)


def matching(pattern: str, allowed: str, message: str) -> Valid:
    """Allow text that matches a regular expression; in a list, every entry must match. Compiled at its first
    use."""

    def reason(value: str | list[str]) -> str | None:
        texts = value if isinstance(value, list) else [value]
        return None if all(re.fullmatch(pattern, text) for text in texts) else message

    return Valid(allowed, reason)


ANY: Final = Valid("", lambda value: None)
NON_EMPTY: Final = Valid("non-empty string", lambda s: None if s else "String must be non-empty")
SOME: Final = distinct(empty=False)  # a list with at least one entry
SOME_OR_NONE: Final = distinct(empty=True)
GZIP_LEVEL: Final = Valid(
    "[1,...,9] or -1", lambda n: None if n == -1 or 1 <= n <= 9 else "Value must be from 1 to 9, or -1"
)


class Key:
    """One row of a table of keys."""

    __slots__ = (
        "attribute",
        "default",
        "doc",
        "importance",
        "internal",
        "name",
        "synonyms",
        "treatment",
        "type",
        "update",
        "valid",
    )

    def __init__(
        self,
        name: str,
        type: str,
        default: Value,
        valid: Valid,
        importance: str,
        update: str = READ_ONLY,
        doc: str = "",
        *,
        internal: bool = False,
        synonyms: tuple[str, ...] = (),
    ) -> None:
        self.name = name
        self.type = type
        self.default = default
        self.valid = valid
        self.importance = importance
        self.update = update
        self.doc = doc
        self.internal = internal  # not listed, but accepted
        self.synonyms = (
            synonyms  # the broker's keys that a topic's or group's default comes from, and their unit
        )
        self.attribute = name.replace(".", "_")
        self.treatment = OF.get(name, ACTED)  # whether kafkad acts on it, ignores or refuses it

    def __repr__(self) -> str:
        return f"Key({self.name!r})"

    @property
    def sensitive(self) -> bool:
        return self.type is PASSWORD

    def default_value(self) -> Value:
        return list(self.default) if isinstance(self.default, list) else self.default

    def parse(self, text: str) -> Value:
        """Parse `text`. Raise ConfigError."""
        value = self._typed(text)
        if reason := self.valid.reason(value):
            raise self.error(text, reason)
        return value

    def stored(self, text: str, otherwise: Value) -> Value:
        """Parse a value from the metadata log, or return `otherwise`. Another version of Kafka may have
        accepted the value by other rules. So a number may be outside of today's range, but not below zero if
        that is not allowed; and text must be one of the known names."""
        try:
            value = self._typed(text)
        except ConfigError:
            return otherwise
        if self.valid.reason(value) and not (
            self.type in (*BITS, DOUBLE) and isinstance(value, int | float) and value > 0
        ):
            return otherwise
        return value

    def usable(self, text: str) -> bool:
        """Return whether `stored` accepts this text."""
        nothing: list[str] = []
        return self.stored(text, nothing) is not nothing

    def error(self, text: str | None, reason: str) -> ConfigError:
        shown = HIDDEN if self.sensitive else text
        return ConfigError(f"Invalid value {shown} for configuration {self.name}: {reason}")

    def _typed(self, text: str) -> Value:
        kind = self.type
        text = trimmed(text)
        if kind in BITS:
            half = 1 << (BITS[kind] - 1)
            if _INTEGER.fullmatch(text) and -half <= (number := int(text)) < half:
                return number
            raise self._not_a_number(text)
        if kind is BOOLEAN:
            lower = text.lower()
            if lower not in ("true", "false"):
                raise self.error(text, "Expected value to be either true or false")
            return lower == "true"
        if kind is LIST:
            entries = [entry.strip(_BLANKS) for entry in text.split(",")] if text else []
            return list(dict.fromkeys(entries)) if self.valid.distinct else entries
        if kind is DOUBLE:
            if _DECIMAL.fullmatch(text):
                return float(text.rstrip("dDfF"))
            raise self._not_a_number(text)
        return text

    def _not_a_number(self, text: str) -> ConfigError:
        allowed = f", allowed is {self.valid.allowed}" if self.valid.allowed else ""
        return self.error(text, f"Not a number of type {self.type.upper()}{allowed}")


def trimmed(text: str) -> str:
    """Return a text as Java's String.trim does: without the characters up to U+0020 at its ends. Others, as
    U+00A0, stay: to Kafka they are a part of a name."""
    return text.strip(_TRIMMED)


def by_name(keys: Iterable[Key]) -> dict[str, Key]:
    return {key.name: key for key in keys}


def to_string(value: Value) -> str | None:
    """Return a value as Kafka writes it, for example in DescribeConfigs. Return None for null."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return ",".join(value)
    return _java_double(value) if isinstance(value, float) else str(value)


def _java_double(number: float) -> str:
    """Format a number like Java's Double.toString: with a decimal point, and with E below 1e-3 and from 1e7
    on."""
    if math.isinf(number):  # "1e999" is one
        return "Infinity" if number > 0 else "-Infinity"
    if number == 0 or 1e-3 <= abs(number) < 1e7:
        return repr(number)
    digits, _, exponent = f"{number:.16e}".partition("e")
    for precision in range(1, 17):  # the fewest digits that read back as the same number
        text = f"{number:.{precision}e}"
        if float(text) == number:
            digits, _, exponent = text.partition("e")
            break
    return f"{digits}E{int(exponent)}"

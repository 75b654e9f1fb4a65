"""Kinds of values in a pipeline file: each converts a TOML value to the value that it means.

For an invalid value, it raises a ValueError whose text says what is allowed ("a whole number of at least 1");
the reader completes the error message. Sizes are 1024-based, as in Spark and Kafka ("64 MB" = 67,108,864).
Durations are "500 ms", "1 minute", "2h". `shown` converts a value back to text for people, with secrets as
stars.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Sequence
from typing import Any

UNITS_OF_SIZE = {"b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
WORDS_OF_TIME = {
    "ms": ("ms", "millisecond", "milliseconds"),
    "s": ("s", "sec", "second", "seconds"),
    "m": ("m", "min", "minute", "minutes"),
    "h": ("h", "hour", "hours"),
    "d": ("d", "day", "days"),
}
SECRET = re.compile(r"(?i)password|secret|token|credential|jaas|access\.?key")


def text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError("a text that is not empty")
    return value


def texts(value: Any) -> tuple[str, ...]:
    values = [part.strip() for part in value.split(",")] if isinstance(value, str) else value
    if not isinstance(values, list) or not values or not all(isinstance(one, str) and one for one in values):
        raise ValueError('a list of texts, as ["a", "b"]')
    if len(set(values)) < len(values):
        raise ValueError("a list that names nothing twice")
    return tuple(values)


def flag(value: Any) -> bool:
    if value in ("true", "false"):
        return bool(value == "true")
    if not isinstance(value, bool):
        raise ValueError("true or false")
    return value


def count(value: Any) -> int:
    number = plain_int(value)
    if number is None or number < 1:
        raise ValueError("a whole number of at least 1")
    return number


def port(value: Any) -> int:
    number = plain_int(value)
    if number is None or not 0 < number < 65536:
        raise ValueError("a port, 1 to 65535")
    return number


def megabytes(value: Any) -> int:
    """Parse a number of MB, or a size with its unit."""
    number = plain_int(value)
    if number is None:
        number = size(value) >> 20
    if not 1 <= number <= 1 << 20:
        raise ValueError("megabytes, 1 to 1048576")
    return number


def size(value: Any) -> int:
    """Return bytes, from a number or a text with a unit."""
    number = plain_int(value)
    if number is None and isinstance(value, str):
        found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?b)?\s*", value, re.IGNORECASE)
        if found:
            number = int(float(found[1]) * UNITS_OF_SIZE[found[2].lower() or "b"])
    if number is None or number < 1:
        raise ValueError('a size, as 268435456 or "256 MB"')
    return number


def duration(value: Any) -> float:
    """Return seconds, from a text with a unit."""
    found = (
        re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*", value.lower()) if isinstance(value, str) else None
    )
    unit = next((unit for unit, words in WORDS_OF_TIME.items() if found and found[2] in words), None)
    if found is None or unit is None or float(found[1]) <= 0:
        raise ValueError('a time with its unit, as "500 ms", "1 minute" or "2 hours"')
    return float(found[1]) * SECONDS[unit]


def one_of(*allowed: str) -> Callable[[Any], str]:
    def choice(value: Any) -> str:
        if value not in allowed:
            near = nearest(str(value), allowed)
            raise ValueError(f"one of {', '.join(allowed)}" + (f" (did you mean {near}?)" if near else ""))
        return str(value)

    return choice


def settings(value: Any) -> dict[str, str]:
    """Flatten a table to dotted names and texts: kafka.isolation.level = "…" is one name."""
    if not isinstance(value, dict):
        raise ValueError("a table of names and values")
    found: dict[str, str] = {}

    def flatten(prefix: str, table: dict[str, Any]) -> None:
        for name, inner in table.items():
            if isinstance(inner, dict):
                flatten(f"{prefix}{name}.", inner)
            elif isinstance(inner, bool | int | float | str):
                found[prefix + name] = str(inner).lower() if isinstance(inner, bool) else str(inner)
            else:
                raise ValueError("names with texts, numbers, true or false")

    flatten("", value)
    return found


def starting(value: Any) -> str:
    """Parse earliest, latest, an RFC 3339 time, or the offsets JSON of Spark's connector."""
    if hasattr(value, "isoformat"):  # a TOML date-time
        return str(value.isoformat())
    if isinstance(value, dict):
        value = json.dumps(value)
    said = 'earliest, latest, a time as 2026-01-31T00:00:00Z, or offsets as {"topic": {"0": 23, "1": -2}}'
    if not isinstance(value, str):
        raise ValueError(said)
    if value in ("earliest", "latest") or re.match(r"\d{4}-\d\d-\d\d", value):
        return value
    try:
        offsets = json.loads(value)
        if not all(
            isinstance(int(p), int) and type(o) is int and o >= -2
            for t in offsets.values()
            for p, o in t.items()
        ):
            raise ValueError
    except (ValueError, AttributeError, TypeError):
        raise ValueError(said) from None
    return value


def plain_int(value: Any) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    return int(value) if isinstance(value, str) and re.fullmatch(r"\s*\d{1,18}\s*", value) else None


def nearest(name: str, names: Sequence[str]) -> str | None:
    found = difflib.get_close_matches(name.lower(), list(names), n=1, cutoff=0.55)
    return found[0] if found else None


def shown(name: str, value: Any, kind: Callable[[Any], Any] | None = None) -> str:
    """Return a value for display; passwords, and table entries that have one, become stars."""
    if value is None or value == () or value == {}:
        return ""
    if isinstance(value, dict):
        flat = settings(value) if kind is not starting else value
        return ", ".join(f"{inner}={shown(inner, each)}" for inner, each in flat.items())
    if SECRET.search(name) and "${" not in str(value):
        return "******"
    if isinstance(value, tuple | list):
        return ", ".join(str(each) for each in value)
    if isinstance(value, bool):
        return str(value).lower()
    if kind is duration or (kind is None and isinstance(value, float)):
        return f"{value:g} s" if isinstance(value, float) else str(value)
    if isinstance(value, int):
        return f"{value:,}"
    return " ".join(str(value).split())

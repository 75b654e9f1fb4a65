"""Client metrics subscriptions (KIP-714): which clients push which metrics, and how often.

A subscription consists of its configuration only. kafkad stores subscriptions, but does not receive metrics
yet."""

import re
from collections.abc import Mapping
from typing import Any, Final

from kafkad.config.definition import (
    ANY,
    CLUSTER_WIDE,
    INT,
    LIST,
    MEDIUM,
    MINUTE,
    SOME_OR_NONE,
    ConfigError,
    Key,
    by_name,
)
from kafkad.protocol.errors import INVALID_CONFIG, INVALID_REQUEST, KafkaError

# fmt: off
CLIENT_METRICS_KEYS: Final = by_name((
    Key("interval.ms", INT, 5 * MINUTE, ANY, MEDIUM, CLUSTER_WIDE,
        "How often a matching client pushes its metrics."),
    Key("match", LIST, [], SOME_OR_NONE, MEDIUM, CLUSTER_WIDE,
        "Clients that the subscription is for, as parameter=regular expression; empty means all."),
    Key("metrics", LIST, [], SOME_OR_NONE, MEDIUM, CLUSTER_WIDE,
        "Prefixes of the metrics asked for; `*` means all, empty means none."),
))
# fmt: on

MATCH_PARAMETERS: Final = frozenset(
    (
        "client_id",
        "client_instance_id",
        "client_software_name",
        "client_software_version",
        "client_source_address",
        "client_source_port",
    )
)
INTERVAL_MS: Final = range(100, 3_600_001)


def client_metrics_values(overrides: Mapping[str, str]) -> dict[str, Any]:
    """Return every key of a subscription with its value. `overrides` are its values in the metadata log."""
    return {
        name: key.stored(overrides[name], key.default) if name in overrides else key.default_value()
        for name, key in CLIENT_METRICS_KEYS.items()
    }


def validate_client_metrics_configs(overrides: Mapping[str, str]) -> None:
    """Raise KafkaError for an invalid subscription. Rules: ClientMetricsConfigs.validate."""
    for name in overrides:
        if name not in CLIENT_METRICS_KEYS:
            raise KafkaError(INVALID_REQUEST, f"Unknown client metrics configuration: {name}")
    try:
        values: dict[str, Any] = {
            name: CLIENT_METRICS_KEYS[name].parse(text) for name, text in overrides.items()
        }
    except ConfigError as error:
        raise KafkaError(INVALID_CONFIG, str(error))
    interval_ms = values.get("interval.ms", INTERVAL_MS[0])
    if interval_ms not in INTERVAL_MS:
        reason = "interval must be between 100 and 3600000 (1 hour)"
        raise KafkaError(INVALID_REQUEST, f"Invalid value {interval_ms} for interval.ms, {reason}")
    for pattern in values.get("match", ()):
        parameter, _, expression = (part.strip() for part in pattern.partition("="))
        if parameter not in MATCH_PARAMETERS or not expression or not _is_regular(expression):
            raise KafkaError(INVALID_CONFIG, f"Illegal client matching pattern: {pattern}")


def _is_regular(expression: str) -> bool:
    try:
        re.compile(expression)
    except (re.error, OverflowError, RecursionError, ValueError):  # the last is a number of 4,301 digits
        return False
    return True

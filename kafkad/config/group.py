"""Group configuration (KIP-848, KIP-932, KIP-1071): Kafka's group keys, and their bounds.

A group's value is its own, or else that of the corresponding broker key. Other broker keys bound it: a
consumer group's session timeout must be between `group.consumer.min.session.timeout.ms` and `…max…`. Classic
groups have no configuration."""

from collections.abc import Mapping
from typing import Any, Final

from kafkad.config.definition import (
    ANY,
    BOOLEAN,
    CLUSTER_WIDE,
    INT,
    MEDIUM,
    SECOND,
    STRING,
    ConfigError,
    Defaults,
    Key,
    Valid,
    Value,
    at_least,
    by_name,
    matching,
    one_of,
)
from kafkad.protocol.errors import INVALID_CONFIG, KafkaError

OFFSET_RESET: Final = matching(
    r"(?i:latest|earliest|by_duration:P(?!$)([0-9]+D)?(T(?=[0-9])([0-9]+H)?([0-9]+M)?([0-9.]+S)?)?)",
    "[latest, earliest, by_duration:PnDTnHnMn.nS]",
    "Value must be latest, earliest or by_duration: and a duration in the ISO 8601 format PnDTnHnMn.nS",
)


def _key(name: str, type: str, default: Value, valid: Valid, synonym: str, doc: str) -> Key:
    return Key(name, type, default, valid, MEDIUM, CLUSTER_WIDE, doc, synonyms=(synonym,) if synonym else ())


# fmt: off
GROUP_KEYS: Final = by_name((
    #    name, type, default, allowed, the broker's key, meaning
    _key("consumer.assignment.interval.ms", INT, SECOND, at_least(0), "group.consumer.assignment.interval.ms",
         "Shortest time between two assignments of the group."),
    _key("consumer.heartbeat.interval.ms", INT, 5 * SECOND, at_least(1),
         "group.consumer.heartbeat.interval.ms",
         "Heartbeat interval sent to the members."),
    _key("consumer.session.timeout.ms", INT, 45 * SECOND, at_least(1), "group.consumer.session.timeout.ms",
         "A member silent for this long is removed."),
    _key("share.assignment.interval.ms", INT, SECOND, at_least(0), "group.share.assignment.interval.ms",
         "Shortest time between two assignments of the share group."),
    _key("share.auto.offset.reset", STRING, "latest", OFFSET_RESET, "",
         "Where a share group begins to read: latest, earliest, or by_duration: and an ISO 8601 duration."),
    _key("share.delivery.count.limit", INT, 5, at_least(2), "group.share.delivery.count.limit",
         "How often a record is delivered at most."),
    _key("share.heartbeat.interval.ms", INT, 5 * SECOND, at_least(1), "group.share.heartbeat.interval.ms",
         "Heartbeat interval sent to the members of the share group."),
    _key("share.isolation.level", STRING, "read_uncommitted", one_of("read_committed", "read_uncommitted"),
         "",
         "Which records a share group sees."),
    _key("share.partition.max.record.locks", INT, 2000, at_least(100),
         "group.share.partition.max.record.locks",
         "Most records of a partition that are held locked."),
    _key("share.record.lock.duration.ms", INT, 30 * SECOND, at_least(SECOND),
         "group.share.record.lock.duration.ms",
         "How long a record stays locked for the member that fetched it."),
    _key("share.renew.acknowledge.enable", BOOLEAN, True, ANY, "",
         "Members may renew their locks."),
    _key("share.session.timeout.ms", INT, 45 * SECOND, at_least(1), "group.share.session.timeout.ms",
         "A member of the share group silent for this long is removed."),
    _key("streams.assignment.interval.ms", INT, SECOND, at_least(0), "group.streams.assignment.interval.ms",
         "Shortest time between two assignments of the streams group."),
    _key("streams.heartbeat.interval.ms", INT, 5 * SECOND, at_least(1), "group.streams.heartbeat.interval.ms",
         "Heartbeat interval sent to the members of the streams group."),
    _key("streams.initial.rebalance.delay.ms", INT, 3 * SECOND, at_least(0),
         "group.streams.initial.rebalance.delay.ms",
         "How long the first rebalance waits for more members."),
    _key("streams.num.standby.replicas", INT, 0, at_least(0), "group.streams.num.standby.replicas",
         "Standby replicas of each task."),
    _key("streams.session.timeout.ms", INT, 45 * SECOND, at_least(1), "group.streams.session.timeout.ms",
         "A member of the streams group silent for this long is removed."),
))
# fmt: on

# Group key -> the broker's keys that bound it, below and above; None means no bound.
BOUNDS: Final = {
    **{
        f"{kind}.{name}": (f"group.{kind}.min.{name}", f"group.{kind}.max.{name}")
        for kind in ("consumer", "share", "streams")
        for name in ("heartbeat.interval.ms", "session.timeout.ms", "assignment.interval.ms")
    },
    **{
        f"share.{name}": (f"group.share.min.{name}", f"group.share.max.{name}")
        for name in ("delivery.count.limit", "partition.max.record.locks", "record.lock.duration.ms")
    },
    "streams.num.standby.replicas": (None, "group.streams.max.standby.replicas"),
}


def group_values(broker: Defaults, overrides: Mapping[str, str]) -> dict[str, Any]:
    """Return every group key with its value for a group. `overrides` are its values in the metadata log."""
    values = dict(broker.group_defaults)
    for name, text in overrides.items():
        if key := GROUP_KEYS.get(name):
            values[name] = key.stored(text, values[name])
    return values


def validate_group_configs(overrides: Mapping[str, str], broker: Defaults) -> None:
    """Raise KafkaError(INVALID_CONFIG) for invalid values of a group. Rules: GroupConfig.validate."""
    for name in overrides:
        if name not in GROUP_KEYS:
            raise KafkaError(INVALID_CONFIG, f"Unknown group config name: {name}")
    values: dict[str, Any] = dict(broker.group_defaults)
    try:
        values.update({name: GROUP_KEYS[name].parse(text) for name, text in overrides.items()})
    except ConfigError as error:
        raise KafkaError(INVALID_CONFIG, str(error))
    for name, (low, high) in BOUNDS.items():
        if low and values[name] < broker.value(low):
            raise KafkaError(INVALID_CONFIG, f"{name} must be greater than or equal to {low}")
        if high and values[name] > broker.value(high):
            raise KafkaError(INVALID_CONFIG, f"{name} must be less than or equal to {high}")
    for kind in ("consumer", "share", "streams"):
        timeout, interval = f"{kind}.session.timeout.ms", f"{kind}.heartbeat.interval.ms"
        if values[timeout] <= values[interval]:
            raise KafkaError(INVALID_CONFIG, f"{timeout} must be greater than {interval}")

"""Topic configuration: Kafka's topic keys, and the values that apply to one topic.

A topic's value is its own (stored in the metadata log), or else that of the corresponding broker key, or else
the default. Some keys have several broker keys in other units; the first one that is set wins: `retention.ms`
uses `log.retention.ms`, then `log.retention.minutes`, then `log.retention.hours` (ServerTopicConfigSynonyms).

Caveats: `TopicConfig` has the values that apply. Its `segment_bytes` is `internal.segment.bytes` if that is
set, and `local_retention_*` is never -2. `topic_values` returns the values as configured.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from kafkad.config.broker_keys import CLEANUP_POLICIES, COMPRESSION_TYPES, TIMESTAMP_TYPES
from kafkad.config.definition import (
    ANY,
    BOOLEAN,
    CLUSTER_WIDE,
    DAY,
    DOUBLE,
    GIB,
    GZIP_LEVEL,
    HOUR,
    INT,
    KIB,
    LIST,
    LONG,
    LONG_MAX,
    MEDIUM,
    MIB,
    MINUTE,
    STRING,
    ConfigError,
    Defaults,
    Key,
    Valid,
    Value,
    at_least,
    between,
    by_name,
    matching,
)
from kafkad.protocol.errors import INVALID_CONFIG, KafkaError

THROTTLED_REPLICAS: Final = matching(
    r"([0-9]+:[0-9]+)?|\*",
    "[partitionId]:[brokerId],[partitionId]:[brokerId],...",
    "Entries must be the literal '*' or pairs of [partitionId]:[brokerId]",
)


def _key(
    name: str, type: str, default: Value, valid: Valid, synonyms: str, doc: str, internal: bool = False
) -> Key:
    """Define a topic's key. Its default comes from the broker keys in `synonyms`; the first one that is set
    wins."""
    broker_keys = tuple(synonyms.split())
    return Key(name, type, default, valid, MEDIUM, CLUSTER_WIDE, doc, internal=internal, synonyms=broker_keys)


# fmt: off
TOPIC_KEYS: Final = by_name((
    #    name, type, default, allowed, the broker's keys, meaning
    _key("cleanup.policy", LIST, ["delete"], CLEANUP_POLICIES, "log.cleanup.policy",
         "What happens to old segments: `delete`, `compact`, both, or nothing."),
    _key("compression.gzip.level", INT, -1, GZIP_LEVEL, "compression.gzip.level",
         "Level at which the broker compresses gzip batches itself."),
    _key("compression.lz4.level", INT, 9, between(1, 17), "compression.lz4.level",
         "Level at which the broker compresses lz4 batches itself."),
    _key("compression.type", STRING, "producer", COMPRESSION_TYPES, "compression.type",
         "How batches are stored: `producer` keeps the codec that the producer chose."),
    _key("compression.zstd.level", INT, 3, between(-131072, 22), "compression.zstd.level",
         "Level at which the broker compresses zstd batches itself."),
    _key("delete.retention.ms", LONG, DAY, at_least(0), "log.cleaner.delete.retention.ms",
         "How long a tombstone stays in a compacted topic."),
    _key("file.delete.delay.ms", LONG, MINUTE, at_least(0), "log.segment.delete.delay.ms",
         "How long a deleted file stays on disk under another name."),
    _key("flush.messages", LONG, LONG_MAX, at_least(1), "log.flush.interval.messages",
         "Messages after which the log is forced to disk."),
    _key("flush.ms", LONG, LONG_MAX, at_least(0), "log.flush.interval.ms log.flush.scheduler.interval.ms",
         "Longest time a message stays unflushed."),
    _key("follower.replication.throttled.replicas", LIST, [], THROTTLED_REPLICAS, "",
         "Replicas whose fetching is throttled, as partition:broker pairs, or `*`."),
    _key("index.interval.bytes", INT, 4 * KIB, at_least(0), "log.index.interval.bytes",
         "Bytes of a log between two entries of its offset index."),
    _key("internal.segment.bytes", INT, None, ANY, "",
         "Size at which a segment is closed, without a lower bound; for tests.", internal=True),
    _key("leader.replication.throttled.replicas", LIST, [], THROTTLED_REPLICAS, "",
         "Replicas whose serving of followers is throttled, as partition:broker pairs, or `*`."),
    _key("local.retention.bytes", LONG, -2, at_least(-2), "log.local.retention.bytes",
         "Local bytes kept of a tiered partition; -2 means `retention.bytes`."),
    _key("local.retention.ms", LONG, -2, at_least(-2), "log.local.retention.ms",
         "How long segments of a tiered partition stay local; -2 means `retention.ms`."),
    _key("max.compaction.lag.ms", LONG, LONG_MAX, at_least(1), "log.cleaner.max.compaction.lag.ms",
         "A record is compacted at this age at the latest."),
    _key("max.message.bytes", INT, MIB + 12, at_least(0), "message.max.bytes",
         "Largest record batch, after compression."),
    _key("message.timestamp.after.max.ms", LONG, HOUR, at_least(0), "log.message.timestamp.after.max.ms",
         "How far a record's timestamp may be ahead of the broker's clock."),
    _key("message.timestamp.before.max.ms", LONG, LONG_MAX, at_least(0),
         "log.message.timestamp.before.max.ms",
         "How far a record's timestamp may be behind the broker's clock."),
    _key("message.timestamp.type", STRING, "CreateTime", TIMESTAMP_TYPES, "log.message.timestamp.type",
         "Whose clock stamps the records: `CreateTime` the producer's, `LogAppendTime` the broker's."),
    _key("min.cleanable.dirty.ratio", DOUBLE, 0.5, between(0, 1), "log.cleaner.min.cleanable.ratio",
         "Share of a log that must be uncleaned before it is cleaned."),
    _key("min.compaction.lag.ms", LONG, 0, at_least(0), "log.cleaner.min.compaction.lag.ms",
         "A record younger than this is not compacted."),
    _key("min.insync.replicas", INT, 1, at_least(1), "min.insync.replicas",
         "In-sync replicas that acks=all needs to succeed."),
    _key("preallocate", BOOLEAN, False, ANY, "log.preallocate",
         "A new segment file gets its full size at once."),
    _key("remote.log.copy.disable", BOOLEAN, False, ANY, "",
         "No more segments are copied to the tier; what is there stays readable."),
    _key("remote.log.delete.on.disable", BOOLEAN, False, ANY, "",
         "Tiered data is deleted when tiering is turned off for the topic."),
    _key("remote.storage.enable", BOOLEAN, False, ANY, "",
         "Segments of the topic are tiered."),
    _key("retention.bytes", LONG, -1, ANY, "log.retention.bytes",
         "Bytes kept of a partition; -1 means no limit."),
    _key("retention.ms", LONG, 7 * DAY, at_least(-1),
         "log.retention.ms log.retention.minutes log.retention.hours",
         "How long a segment is kept after its last record; -1 means for ever."),
    _key("segment.bytes", INT, GIB, at_least(MIB), "log.segment.bytes",
         "Size at which a segment is closed."),
    _key("segment.index.bytes", INT, 10 * MIB, at_least(4), "log.index.size.max.bytes",
         "Largest index file; a full index closes its segment."),
    _key("segment.jitter.ms", LONG, 0, at_least(0), "log.roll.jitter.ms log.roll.jitter.hours",
         "Random part taken off `segment.ms`."),
    _key("segment.ms", LONG, 7 * DAY, at_least(1), "log.roll.ms log.roll.hours",
         "Age, counted from its first record, at which a segment is closed."),
    _key("unclean.leader.election.enable", BOOLEAN, False, ANY, "unclean.leader.election.enable",
         "A replica out of sync may become leader, which loses data."),
))
# fmt: on

DEFAULTS: Final = {key.attribute: key.default for key in TOPIC_KEYS.values()}
UNITS: Final = {"minutes": MINUTE, "hours": HOUR}  # a broker key's unit in milliseconds, by its last word


class TopicConfig:
    """The values that apply to one topic: one attribute per topic key, with underscores instead of dots.
    Immutable."""

    __slots__ = tuple(key.attribute for key in TOPIC_KEYS.values())

    if TYPE_CHECKING:

        def __getattr__(self, attribute: str) -> Any: ...

    def __init__(self, **values: Any) -> None:
        """Use Kafka's defaults, except for `values`, given by attribute."""
        if unknown := values.keys() - set(self.__slots__):
            raise TypeError(f"TopicConfig has no {', '.join(sorted(unknown))}")
        all_values = DEFAULTS | values
        all_values["cleanup_policy"] = tuple(all_values["cleanup_policy"])
        if all_values["internal_segment_bytes"] is not None:
            all_values["segment_bytes"] = all_values["internal_segment_bytes"]
        for unit in ("ms", "bytes"):
            if all_values[f"local_retention_{unit}"] == -2:
                all_values[f"local_retention_{unit}"] = all_values[f"retention_{unit}"]
        for attribute, value in all_values.items():
            setattr(self, attribute, value)

    @classmethod
    def resolve(cls, broker: Defaults, overrides: Mapping[str, str]) -> "TopicConfig":
        """Return the configuration of a topic, given its own values in the metadata log. Skip values that are
        unknown or no longer valid."""
        values = topic_values(broker, overrides)
        return cls(**{TOPIC_KEYS[name].attribute: value for name, value in values.items()})

    @property
    def compact(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def delete(self) -> bool:
        return "delete" in self.cleanup_policy

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TopicConfig) and all(
            getattr(self, name) == getattr(other, name) for name in self.__slots__
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        changed = (
            f"{key.attribute}={getattr(self, key.attribute)!r}"
            for key in TOPIC_KEYS.values()
            if getattr(self, key.attribute) != getattr(_KAFKA, key.attribute)
        )
        return f"TopicConfig({', '.join(changed)})"


_KAFKA: Final = TopicConfig()  # nothing but defaults


def defaults_from(broker: Defaults, keys: Mapping[str, Key]) -> dict[str, Value]:
    """Return the values, by key, of a topic or group without values of its own."""
    return {key.name: _inherited(broker, key) for key in keys.values()}


def _inherited(broker: Defaults, key: Key) -> Value:
    for name in key.synonyms:
        value = broker.value(name)
        if value is not None:
            unit = UNITS.get(name.rpartition(".")[2])
            value = value * unit if unit else value
            return -1 if key.name == "retention.ms" and value < 0 else value
    return key.default


def unusable(overrides: Mapping[str, str]) -> dict[str, str]:
    """Return the topic's own values in the metadata log that cannot be applied."""
    return {
        name: text
        for name, text in overrides.items()
        if name in TOPIC_KEYS and not TOPIC_KEYS[name].usable(text)
    }


def topic_values(broker: Defaults, overrides: Mapping[str, str]) -> dict[str, Value]:
    """Return every topic key with its value as configured."""
    values = dict(broker.topic_defaults)
    for name, text in overrides.items():
        if key := TOPIC_KEYS.get(name):
            values[name] = key.stored(text, values[name])
    return values


def validate_topic_configs(
    overrides: Mapping[str, str],
    broker: Defaults | None = None,
    before: Mapping[str, str] | None = None,
) -> None:
    """Raise KafkaError(INVALID_CONFIG) for invalid values of a topic. `overrides` are all its new values,
    `before` its current ones. Rules: LogConfig.validate."""
    for name in overrides:
        if name not in TOPIC_KEYS:
            raise KafkaError(INVALID_CONFIG, f"Unknown topic config name: {name}")
    values = dict(broker.topic_defaults) if broker else {key.name: key.default for key in TOPIC_KEYS.values()}
    try:
        values.update({name: TOPIC_KEYS[name].parse(text) for name, text in overrides.items()})
    except ConfigError as error:
        raise KafkaError(INVALID_CONFIG, str(error))
    if reason := conflict(
        values, tiered=broker is not None and bool(broker.value("remote.log.storage.system.enable"))
    ):
        raise KafkaError(INVALID_CONFIG, reason)
    was_tiered = before is not None and before.get("remote.storage.enable", "").strip().lower() == "true"
    keeps_tier = values["remote.storage.enable"] or values["remote.log.delete.on.disable"]
    if was_tiered and not keeps_tier:
        raise KafkaError(
            INVALID_CONFIG,
            "Remote storage cannot be turned off while remote data stays: set remote.log.copy.disable=true "
            "to keep the data and only read it, or remote.log.delete.on.disable=true to delete it.",
        )


def conflict(values: Mapping[str, Any], tiered: bool) -> str | None:
    """Return the error message for values that contradict each other, or None."""
    low, high = values["min.compaction.lag.ms"], values["max.compaction.lag.ms"]
    if low > high:
        return f"conflict topic config setting min.compaction.lag.ms ({low}) > max.compaction.lag.ms ({high})"
    if not values["remote.storage.enable"]:
        return None
    if not tiered:
        return (
            "Tiered Storage functionality is disabled in the broker. "
            "Topic cannot be configured with remote log storage."
        )
    if values["cleanup.policy"] not in ([], ["delete"]):
        return (
            "Remote log storage only supports topics with cleanup.policy=delete or an empty cleanup.policy."
        )
    for unit in ("ms", "bytes"):
        total, local = values[f"retention.{unit}"], values[f"local.retention.{unit}"]
        if total != -1 and local != -2 and (local == -1 or local > total):
            return (
                f"Invalid value {local} for configuration local.retention.{unit}: "
                f"Value must not be more than retention.{unit}, which is {total}"
            )
        if values["remote.log.copy.disable"] and local not in (-2, total):
            return (
                f"local.retention.{unit} and retention.{unit} must be equal while remote.log.copy.disable is "
                "true, because no more segments are copied to the remote storage."
            )
    return None

"""The options of format("kafkad"): names, defaults and checks, beginning with those of format("kafka").

A job can switch between the two formats by changing the name. So every option of Spark's connector
(KafkaSourceProvider) exists here with its default and its rules, followed by our own options. PySpark passes
the names in lower case and all values as strings. Unlike the connector, this source refuses unknown names,
and suggests the nearest one, because a misspelt option that is silently ignored is hard to find.

`kafka.*` are settings of a Kafka client. Each is in one of four tables: those that have an effect here; those
of Kafka that have no effect on this client (logged once as a warning); those that a source must not have
(refused, as in the connector); and all others (refused).

All errors raised here are ValueError with an error message for users.
"""

from __future__ import annotations

import difflib
import json
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kafkad.values.options import DECODER_OPTIONS

log = logging.getLogger("kafkad.spark")

LATEST, EARLIEST = -1, -2  # in the offsets JSON

TopicPartition = tuple[str, int]

STRATEGIES = ("subscribe", "subscribePattern", "assign")
BAD_RECORDS = "fail, null, column or dlq:<topic>"
FORMATS = ("raw", "json", "avro", "confluent-avro", "protobuf", "csv")

MIB = 1 << 20
TARGET_PARTITION_BYTES = 128 * MIB  # as spark.sql.files.maxPartitionBytes
TRIGGER_DELAY_S = 15 * 60.0
POLL_TIMEOUT_S = 120.0  # spark.network.timeout
RETRIES = 3
RETRY_PAUSE_S = 1.0

# options of Spark's connector, then ours
KNOWN = (
    "subscribe", "subscribePattern", "assign",
    "startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets",
    "startingOffsetsByTimestampStrategy", "endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets",
    "failOnDataLoss", "maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "minPartitions",
    "maxRecordsPerPartition", "kafkaConsumer.pollTimeoutMs", "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs", "groupIdPrefix", "includeHeaders", "topic",
    "valueFormat", "valueSchema", "columns", "badRecords", "metadataPrefix", "maxBytesPerTrigger",
    "targetPartitionBytes", "commitGroup", "verifyCrc", "logDir",
)  # fmt: skip
ENDINGS = ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")
ADMISSION = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "maxBytesPerTrigger")

# client settings that take effect
EFFECTIVE = frozenset((
    "bootstrap.servers", "client.id", "isolation.level", "request.timeout.ms", "default.api.timeout.ms",
    "max.partition.fetch.bytes", "check.crcs", "security.protocol", "sasl.mechanism",
    "sasl.mechanisms", "sasl.jaas.config", "sasl.username", "sasl.password", "ssl.truststore.location",
    "ssl.truststore.password", "ssl.truststore.type", "ssl.truststore.certificates",
    "ssl.keystore.location", "ssl.keystore.password", "ssl.keystore.type", "ssl.keystore.key",
    "ssl.keystore.certificate.chain", "ssl.key.password", "ssl.endpoint.identification.algorithm",
    "ssl.ca.location", "ssl.certificate.location", "ssl.key.location",
    "sasl.login.callback.handler.class", "sasl.login.connect.timeout.ms", "sasl.login.read.timeout.ms",
    "sasl.login.retry.backoff.max.ms", "sasl.login.retry.backoff.ms", "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.client.credentials.client.id", "sasl.oauthbearer.client.credentials.client.secret",
    "sasl.oauthbearer.client.secret", "sasl.oauthbearer.header.urlencode",
    "sasl.oauthbearer.jwt.retriever.class", "sasl.oauthbearer.scope", "sasl.oauthbearer.token.endpoint.url",
))  # fmt: skip
# Kafka's, but without effect here: we never join a group, return batches rather than polls, and so on
WITHOUT_EFFECT = frozenset((
    "allow.auto.create.topics", "auto.commit.interval.ms", "auto.include.jmx.reporter",
    "client.dns.lookup", "client.rack", "connections.max.idle.ms", "enable.metrics.push",
    "exclude.internal.topics", "fetch.max.bytes", "fetch.max.wait.ms", "fetch.min.bytes", "group.id",
    "group.instance.id", "group.protocol", "group.remote.assignor", "heartbeat.interval.ms",
    "max.poll.interval.ms", "max.poll.records", "metadata.max.age.ms",
    "metadata.recovery.rebootstrap.trigger.ms", "metadata.recovery.strategy", "metric.reporters",
    "metrics.num.samples", "metrics.recording.level", "metrics.sample.window.ms",
    "partition.assignment.strategy", "receive.buffer.bytes", "reconnect.backoff.max.ms",
    "reconnect.backoff.ms", "retries", "retry.backoff.max.ms", "retry.backoff.ms", "send.buffer.bytes",
    "session.timeout.ms", "socket.connection.setup.timeout.max.ms",
    "socket.connection.setup.timeout.ms", "security.providers", "ssl.cipher.suites",
    "ssl.enabled.protocols", "ssl.engine.factory.class", "ssl.keymanager.algorithm", "ssl.protocol",
    "ssl.provider", "ssl.secure.random.implementation", "ssl.trustmanager.algorithm",
))  # fmt: skip
REFUSED = {
    "auto.offset.reset": "say startingOffsets instead: the query itself knows which offsets it has read",
    "key.deserializer": "keys arrive as bytes; turn them into something else with DataFrame operations",
    "value.deserializer": "values arrive as bytes; say valueFormat, or use DataFrame operations",
    "enable.auto.commit": "offsets are in the query's checkpoint; commitGroup publishes them to a group",
    "interceptor.classes": "an interceptor could change the records",
}
BROKERS = "kafka.bootstrap.servers"


@dataclass(frozen=True)
class Bound:
    """Where reading starts or ends: one of `at` (offsets; LATEST, EARLIEST), `times` (ms by partition),
    `time` (ms for all), or `word`: LATEST or EARLIEST for all."""

    option: str
    word: int | None = None
    at: tuple[tuple[TopicPartition, int], ...] | None = None
    times: tuple[tuple[TopicPartition, int], ...] | None = None
    time: int | None = None


@dataclass(frozen=True)
class ReadOptions:
    """The options of a reader; plain values only, because they are pickled with every task."""

    bootstrap: str
    client: tuple[tuple[str, str], ...] = field(default=(), repr=False)  # kafka.*, without the prefix
    subscribe: tuple[str, ...] | None = None
    pattern: str | None = None
    assign: tuple[TopicPartition, ...] | None = None
    start: Bound = Bound("startingOffsets", EARLIEST)
    end: Bound = Bound("endingOffsets", LATEST)
    latest_on_no_match: bool = False
    fail_on_data_loss: bool = True
    offsets_max: int | None = None
    offsets_min: int | None = None
    trigger_delay_s: float = TRIGGER_DELAY_S
    bytes_max: int | None = None
    partitions_min: int | None = None
    partition_records_max: int | None = None
    partition_bytes: int = TARGET_PARTITION_BYTES
    timeout_s: float = POLL_TIMEOUT_S
    retries: int = RETRIES
    retry_pause_s: float = RETRY_PAUSE_S
    headers: bool = False
    commit_group: str | None = None
    verify_crc: bool = True
    log_dir: str | None = None
    value_format: str = "raw"
    value_schema: str | None = None
    columns: tuple[str, ...] | None = None
    bad_records: str = "fail"
    dlq_topic: str | None = None
    prefix: str = ""
    decoder: tuple[tuple[str, str], ...] = field(default=(), repr=False)  # further options of the decoder

    @property
    def client_config(self) -> dict[str, str]:
        return dict(self.client)

    @property
    def read_committed(self) -> bool:
        return self.client_config.get("isolation.level", "read_uncommitted") == "read_committed"

    @property
    def typed(self) -> bool:
        return self.value_format != "raw"

    @property
    def fetch_bytes(self) -> int | None:
        """kafka.max.partition.fetch.bytes, or None if not given."""
        given = self.client_config.get("max.partition.fetch.bytes")
        return int(given) if given else None


class Given:
    """The options of one job, with names in any case; remembers which were read."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.values = {str(name).lower(): str(value) for name, value in dict(options).items()}

    def __contains__(self, name: str) -> bool:
        return name.lower() in self.values

    def text(self, name: str, default: str | None = None) -> str | None:
        return self.values.get(name.lower(), default)

    def stripped(self, name: str) -> str | None:
        value = self.text(name)
        return value.strip() if value is not None else None

    def flag(self, name: str, default: bool) -> bool:
        value = self.stripped(name)
        if value is None:
            return default
        if value.lower() not in ("true", "false"):
            raise wrong(name, value, "must be true or false")
        return value.lower() == "true"

    def number(self, name: str, least: int = 1) -> int | None:
        value = self.stripped(name)
        if value is None:
            return None
        if not re.fullmatch(r"[+-]?[0-9]{1,19}", value) or not least <= int(value) < 1 << 63:
            raise wrong(name, value, f"must be a whole number, {least} or more")
        return int(value)

    def bytes(self, name: str) -> int | None:
        """Parse a size: a number of bytes, or one with a unit (64k, 128m, 1g; 128mb), as in Spark's own
        settings."""
        return self._parsed(name, parse_bytes, "must be a size such as 134217728, 128m or 1g, above 0")

    def seconds(self, name: str, unit: str) -> float | None:
        """Parse a time: a number in `unit`, or one with its unit (us, ms, s, m, min, h, d), as in Spark."""
        return self._parsed(
            name, lambda value: parse_time(value, unit), "must be a time such as 500ms, 10s or 15m"
        )

    def _parsed(self, name: str, parse: Callable[[str], Any], rule: str) -> Any:
        value = self.stripped(name)
        if value is None:
            return None
        try:
            return parse(value)
        except ValueError:
            raise wrong(name, value, rule)


def read_options(
    options: Mapping[str, str], *, streaming: bool | None, decoder_options: tuple[str, ...] = DECODER_OPTIONS
) -> ReadOptions:
    """Check and return the options of a reader. Raises ValueError with one message for the first wrong
    option. `streaming` is None if it is not known yet: then options of both kinds are accepted.

    `decoder_options` are names that belong to the decoder of values, which checks them itself.
    """
    given = Given(options)
    refuse_unknown(given, decoder_options)
    chosen = [name for name in STRATEGIES if name in given]
    log_dir = given.stripped("logDir")
    if log_dir is not None and not chosen and "topic" in given:
        chosen = ["topic"]
    elif log_dir is None and "topic" in given:
        raise ValueError(
            "option topic names the topic of a writer, or of a read with logDir: say subscribe to read"
        )
    if len(chosen) != 1:
        said = "only one of" if chosen else "one of"
        raise ValueError(f"say {said} the options {', '.join(STRATEGIES)}: they name what is read")
    client = client_settings(given)
    if log_dir is None and BROKERS not in given:
        raise ValueError(f"option {BROKERS} is missing: it names the brokers, as host:port[,host:port]")
    if streaming:
        for name in ENDINGS:
            if name in given:
                raise ValueError(f"option {name} is for batch queries: a stream has no end")
    start = bound(given, "starting", LATEST if streaming else EARLIEST)
    end = bound(given, "ending", LATEST)
    if streaming is False:
        check_bounds(start, end)
        for name in ADMISSION:
            if name in given:
                log.warning("option %s has no effect in a batch query", name)
    elif streaming and "targetPartitionBytes" in given:
        log.warning("option targetPartitionBytes has no effect in a stream: maxRecordsPerPartition splits it")
    smallest, largest = given.number("minOffsetsPerTrigger"), given.number("maxOffsetsPerTrigger")
    if smallest is not None and largest is not None and smallest > largest:
        raise ValueError(
            f"option minOffsetsPerTrigger ({smallest}) must not be above maxOffsetsPerTrigger ({largest})"
        )
    strategy = (given.stripped("startingOffsetsByTimestampStrategy") or "error").lower()
    if strategy not in ("error", "latest"):
        raise wrong("startingOffsetsByTimestampStrategy", strategy, "must be error or latest")
    value_format = (given.stripped("valueFormat") or "raw").lower()
    if value_format not in FORMATS:
        near = nearest(value_format, FORMATS)
        raise wrong("valueFormat", value_format, f"must be one of {', '.join(FORMATS)}{near}")
    if value_format not in ("raw", "confluent-avro") and not given.stripped("valueSchema"):
        raise ValueError(
            f"option valueSchema is missing: it says what is in a value of format {value_format}"
        )
    if value_format == "raw":
        for name in decoder_options:
            if name in given:
                raise ValueError(
                    f"option {name} is for typed values: say valueFormat and valueSchema as well"
                )
    bad_records, dlq_topic = bad_records_policy(given, value_format)
    pattern = given.stripped("subscribePattern")
    if pattern is not None:
        check_pattern(pattern)
    if streaming and dlq_topic is not None:
        check_dead_letters(given, pattern, dlq_topic)
    parts_min, records_max = given.number("minPartitions"), given.number("maxRecordsPerPartition")
    return ReadOptions(
        bootstrap=dict(client).get("bootstrap.servers", ""),
        client=tuple(sorted(client.items())),
        subscribe=names(given, "topic" if chosen == ["topic"] else "subscribe"),
        pattern=pattern,
        assign=assigned(given),
        start=start,
        end=end,
        latest_on_no_match=strategy == "latest",
        fail_on_data_loss=given.flag("failOnDataLoss", True),
        offsets_max=largest,
        offsets_min=smallest,
        trigger_delay_s=default(given.seconds("maxTriggerDelay", "ms"), TRIGGER_DELAY_S),
        bytes_max=given.bytes("maxBytesPerTrigger"),
        partitions_min=parts_min,
        partition_records_max=records_max,
        partition_bytes=default(given.bytes("targetPartitionBytes"), TARGET_PARTITION_BYTES),
        timeout_s=default(given.number("kafkaConsumer.pollTimeoutMs"), POLL_TIMEOUT_S * 1000) / 1000,
        retries=default(given.number("fetchOffset.numRetries", 0), RETRIES),
        retry_pause_s=default(given.number("fetchOffset.retryIntervalMs", 0), RETRY_PAUSE_S * 1000) / 1000,
        headers=given.flag("includeHeaders", False),
        commit_group=given.stripped("commitGroup") or None,
        verify_crc=given.flag("verifyCrc", client.get("check.crcs", "true").strip().lower() != "false"),
        log_dir=log_dir,
        value_format=value_format,
        value_schema=given.text("valueSchema"),
        columns=names(given, "columns"),
        bad_records=bad_records,
        dlq_topic=dlq_topic,
        prefix=given.text("metadataPrefix") or "",
        decoder=tuple((n, v) for n in decoder_options if (v := given.text(n)) is not None),
    )


def default(value: Any, otherwise: Any) -> Any:
    return otherwise if value is None else value


def wrong(name: str, value: str, rule: str) -> ValueError:
    shown = value if len(value) <= 60 else value[:57] + "..."
    return ValueError(f"option {name} {rule}, not {shown!r}")


def nearest(name: str, known: Any) -> str:
    """Return ` (did you mean x?)` if a known name is similar."""
    spellings = {each.lower(): each for each in known}
    close = difflib.get_close_matches(name.lower(), spellings, 1, 0.6)
    return f" (did you mean {spellings[close[0]]}?)" if close else ""


def refuse_unknown(given: Given, decoder_options: tuple[str, ...] = DECODER_OPTIONS) -> None:
    known = {name.lower(): name for name in (*KNOWN, *decoder_options)}
    for name in given.values:
        if name in known or name.startswith("kafka."):
            continue
        if name in ("path", "paths"):
            raise ValueError(
                "format kafkad reads topics, not a path: say option subscribe, and load() without a path"
            )
        raise ValueError(f"option {name} is not known{nearest(name, known.values())}")


def client_settings(given: Given) -> dict[str, str]:
    """Return the kafka.* options that take effect, without the prefix."""
    settings: dict[str, str] = {}
    for name, value in given.values.items():
        if not name.startswith("kafka."):
            continue
        key = name.removeprefix("kafka.")
        if key in REFUSED:
            raise ValueError(f"option {name} is not supported: {REFUSED[key]}")
        if key not in EFFECTIVE and key not in WITHOUT_EFFECT:
            near = nearest(name, [f"kafka.{each}" for each in sorted(EFFECTIVE | WITHOUT_EFFECT)])
            raise ValueError(f"option {name} is no setting of a Kafka consumer that this source knows{near}")
        if key in WITHOUT_EFFECT:
            log.warning("option %s has no effect: this source does without it", name)
            continue
        settings[key] = value.strip()
    level = settings.get("isolation.level")
    if level is not None:
        settings["isolation.level"] = level.lower()
        if level.lower() not in ("read_committed", "read_uncommitted"):
            raise wrong("kafka.isolation.level", level, "must be read_committed or read_uncommitted")
    for key in ("max.partition.fetch.bytes", "request.timeout.ms", "default.api.timeout.ms"):
        if key in settings and not (
            settings[key].isascii() and settings[key].isdigit() and int(settings[key]) > 0
        ):
            raise wrong(f"kafka.{key}", settings[key], "must be a whole number above 0")
    return settings


def names(given: Given, option: str) -> tuple[str, ...] | None:
    value = given.text(option)
    if value is None:
        return None
    found = tuple(dict.fromkeys(part.strip() for part in value.split(",") if part.strip()))
    if not found:
        raise wrong(option, value, "must name at least one, separated by commas")
    return found


def assigned(given: Given) -> tuple[TopicPartition, ...] | None:
    value = given.stripped("assign")
    if value is None:
        return None
    rule = 'must be JSON such as {"topicA":[0,1],"topicB":[2]}'
    document = json_object("assign", value, rule)
    found: list[TopicPartition] = []
    for topic, partitions in document.items():
        if not isinstance(partitions, list) or not all(
            type(p) is int and 0 <= p < 1 << 31 for p in partitions
        ):
            raise wrong("assign", value, rule)
        found += [(topic, p) for p in partitions]
    if not found:
        raise wrong("assign", value, rule)
    return tuple(sorted(set(found)))


def check_pattern(pattern: str) -> None:
    if not pattern:
        raise ValueError(
            "option subscribePattern is empty: it is a regular expression that topics' names match"
        )
    try:
        re.compile(pattern)
    except re.error as trouble:
        raise wrong(
            "subscribePattern", pattern, f"must be a regular expression that Python reads ({trouble})"
        )


def bad_records_policy(given: Given, value_format: str) -> tuple[str, str | None]:
    value = given.stripped("badRecords")
    if value is None:
        return "fail", None
    if value_format == "raw":
        raise ValueError("option badRecords needs a valueFormat: raw values are never bad")
    if value.lower().startswith("dlq:") and value[4:].strip():
        return "dlq", value[4:].strip()
    if value.lower() not in ("fail", "null", "column"):
        raise wrong("badRecords", value, f"must be {BAD_RECORDS}")
    return value.lower(), None


def check_dead_letters(given: Given, pattern: str | None, topic: str) -> None:
    """Raise ValueError for a stream that reads its own dead letters: each would be written again for ever."""
    read = {*(names(given, "subscribe") or ()), *(each for each, _ in assigned(given) or ())}
    if topic in read or (pattern is not None and re.search(pattern, topic)):
        raise ValueError(f"option badRecords names {topic}, which the stream reads: it would never end")


# -- where reading starts and ends -------------------------------------------------------------------------


def bound(given: Given, side: str, otherwise: int) -> Bound:
    """Return a bound with Spark's precedence: a time for all, times by partition, offsets."""
    option = f"{side}Timestamp"
    if option in given:
        moment = given.stripped(option) or ""
        if not re.fullmatch(r"[+-]?[0-9]{1,18}", moment):
            raise wrong(option, moment, "must be one time in milliseconds since 1970")
        return Bound(option, time=int(moment))
    option = f"{side}OffsetsByTimestamp"
    if option in given:
        rule = 'must be JSON such as {"topicA":{"0":1700000000000,"1":1700000000000}}'
        return Bound(option, times=by_partition(option, given.stripped(option) or "", rule, least=-(1 << 63)))
    option = f"{side}Offsets"
    value = given.stripped(option)
    if value is None:
        return Bound(option, otherwise)
    if value.lower() in ("latest", "earliest"):
        return Bound(option, LATEST if value.lower() == "latest" else EARLIEST)
    rule = 'must be earliest, latest or JSON such as {"topicA":{"0":23,"1":-1}} (-1 latest, -2 earliest)'
    return Bound(option, at=by_partition(option, value, rule, least=EARLIEST))


def by_partition(option: str, value: str, rule: str, least: int) -> tuple[tuple[TopicPartition, int], ...]:
    document = json_object(option, value, rule)
    try:
        return tuple(sorted(partition_numbers(document, least).items()))
    except ValueError:
        raise wrong(option, value, rule)


def partition_numbers(document: Any, least: int = 0) -> dict[TopicPartition, int]:
    """Parse {"topic": {"0": 23}} to (topic, partition) -> number; the form of offsets in options and
    checkpoints. Raises ValueError for anything else.
    """
    found: dict[TopicPartition, int] = {}
    if not isinstance(document, dict):
        raise ValueError("not an object")
    for topic, partitions in document.items():
        if not isinstance(partitions, dict):
            raise ValueError(f"{topic}: not an object")
        for partition, number in partitions.items():
            if not (partition.isascii() and partition.isdigit()) or type(number) is not int or number < least:
                raise ValueError(f"{topic}: {partition}: {number}")
            found[topic, int(partition)] = number
    return found


def json_object(option: str, value: str, rule: str) -> dict[str, Any]:
    try:
        document = json.loads(value)
    except ValueError:
        raise wrong(option, value, rule)
    if not isinstance(document, dict) or not document:
        raise wrong(option, value, rule)
    return document


def check_bounds(start: Bound, end: Bound) -> None:
    """Raise for bounds that a batch query must not have."""
    if start.word == LATEST:
        raise ValueError(
            f"option {start.option} must not be latest in a batch query: there would be nothing to read"
        )
    if end.word == EARLIEST:
        raise ValueError(
            f"option {end.option} must not be earliest in a batch query: there would be nothing to read"
        )
    for where, offset in start.at or ():
        if offset == LATEST:
            raise ValueError(
                f"option {start.option} must not be -1 (latest) in a batch query, as for {shown(where)}"
            )
    for where, offset in end.at or ():
        if offset == EARLIEST:
            raise ValueError(
                f"option {end.option} must not be -2 (earliest) in a batch query, as for {shown(where)}"
            )
    for ours, theirs in ((start.at, end.at), (start.times, end.times)):
        if ours is None or theirs is None:
            continue
        ends = dict(theirs)
        if {where for where, _ in ours} != set(ends):
            raise ValueError(f"options {start.option} and {end.option} must name the same partitions")
        for where, number in ours:
            if number > ends[where] >= 0 and number >= 0:
                raise ValueError(
                    f"option {start.option} is behind {end.option} for {shown(where)}: {number} and "
                    f"{ends[where]}"
                )


def shown(where: TopicPartition) -> str:
    return f"{where[0]}-{where[1]}"


# -- sizes and times, in Spark's format --------------------------------------------------------------------

SIZES = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
TIMES = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def parse_bytes(text: str) -> int:
    found = re.fullmatch(r"([0-9]{1,19})\s*([a-z]*)", text.strip().lower())
    unit = found[2] if found else ""
    unit = unit[:1] if unit in ("kb", "mb", "gb", "tb", "kib", "mib", "gib", "tib") else unit
    if not found or unit not in SIZES or int(found[1]) == 0 or int(found[1]) * SIZES[unit] >= 1 << 63:
        raise ValueError(text)
    return int(found[1]) * SIZES[unit]


def parse_time(text: str, unit: str) -> float:
    found = re.fullmatch(r"([0-9]{1,15})\s*([a-z]*)", text.strip().lower())
    if not found or (found[2] or unit) not in TIMES:
        raise ValueError(text)
    return int(found[1]) * TIMES[found[2] or unit]

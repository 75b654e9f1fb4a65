"""Configs: changes of topic, broker, group and client-metrics configurations, planned as ConfigRecords.

A resource is changed whole or not at all, independently of the others in the request. New values are checked
together with those that stay. Planners are generators, one resource per step: one request may name 100,000.
Kafka: ConfigurationControlManager.
"""

from collections.abc import Generator, Iterator, Mapping
from typing import Any, Final

from kafkad.config.broker import BrokerConfig
from kafkad.config.broker_keys import BROKER_KEYS
from kafkad.config.definition import LIST, ConfigError, to_string
from kafkad.config.dynamic import edited
from kafkad.config.group import GROUP_KEYS, validate_group_configs
from kafkad.config.served import warn_ignored
from kafkad.config.topic import TOPIC_KEYS, validate_topic_configs
from kafkad.controller.topics import invalid_name
from kafkad.metadata.image import BROKER, CLIENT_METRICS, GROUP, TOPIC, Config, MetadataImage
from kafkad.protocol import errors, messages
from kafkad.protocol.errors import KafkaError

# IncrementalAlterConfigs operations
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3

DIGITS_MAX: Final = 100  # of a broker's id; Python does not convert 4,301
KEYS_MAX: Final = 2_000  # of one resource: every worker reads all keys of a broker at each change
VALUE_SIZE_MAX: Final = 32767  # what a ConfigRecord's readers can take (Kafka: Short.MAX_VALUE)
MIN_ISR: Final = "min.insync.replicas"

Incremental = Mapping[Config, Mapping[str, tuple[int, str | None]]]  # resource -> key -> (operation, value)
Absolute = Mapping[Config, Mapping[str, str | None]]
Outcome = dict[Config, KafkaError | None]
Plan = Generator[None, None, tuple[list[Any], Outcome]]


def plan_incremental(image: MetadataImage, config: BrokerConfig, changes: Incremental) -> Plan:
    """Return (records, the trouble with each resource or None)."""
    records: list[Any] = []
    outcome: Outcome = {}
    for resource, operations in changes.items():
        yield
        before = image.configs.get(resource, {})
        try:
            after = {
                name: _result(config, resource, name, before.get(name), operation, value)
                for name, (operation, value) in operations.items()
            }
            # A broker reloads files (keystores) when a value is set again, so it is written again
            # (KAFKA-14136).
            records += _checked(
                image,
                config,
                resource,
                {n: v for n, v in after.items() if v != before.get(n) or resource[0] == BROKER},
            )
            outcome[resource] = None
        except KafkaError as trouble:
            outcome[resource] = trouble.with_traceback(None)  # else it keeps all that the frames hold
    return records, outcome


def plan_absolute(image: MetadataImage, config: BrokerConfig, wanted: Absolute) -> Plan:
    """Plan an AlterConfigs: keys that are not named get their defaults."""
    records: list[Any] = []
    outcome: Outcome = {}
    for resource, values in wanted.items():
        yield
        before = image.configs.get(resource, {})
        changed = {n: v for n, v in values.items() if v != before.get(n) or resource[0] == BROKER}
        changed |= {name: None for name in before if name not in values}
        try:
            records += _checked(image, config, resource, changed)
            outcome[resource] = None
        except KafkaError as trouble:
            outcome[resource] = trouble.with_traceback(None)  # else it keeps all that the frames hold
    return records, outcome


def _result(
    config: BrokerConfig, resource: Config, name: str, before: str | None, operation: int, value: str | None
) -> str | None:
    """Return the value of a key after one operation. Raises KafkaError."""
    if operation == SET:
        return value
    if operation == DELETE:
        return None
    if operation not in (APPEND, SUBTRACT):
        raise KafkaError(errors.INVALID_REQUEST, f"Unknown operation {operation} on configuration {name}")
    key = _KEYS.get(resource[0], {}).get(name)
    if key is None or key.type is not LIST:
        verb = "APPEND" if operation == APPEND else "SUBTRACT"
        raise KafkaError(errors.INVALID_CONFIG, f"Can't {verb} to key {name} because its type is not LIST.")
    if before is None:
        before = to_string(key.default)  # not what the topic inherits: so does Kafka
    return edited(before or "", operation, value or "")


_KEYS: Final[dict[int, Mapping[str, Any]]] = {TOPIC: TOPIC_KEYS, BROKER: BROKER_KEYS, GROUP: GROUP_KEYS}


def _checked(
    image: MetadataImage, config: BrokerConfig, resource: Config, changes: Mapping[str, str | None]
) -> list[Any]:
    """Return the records of the changes of one resource. Raises KafkaError."""
    kind, name = resource
    before = image.configs.get(resource, {})
    after = {**before, **{key: value for key, value in changes.items() if value is not None}}
    for key, value in changes.items():
        if value is None:
            after.pop(key, None)
        elif len(value) > VALUE_SIZE_MAX:
            raise KafkaError(
                errors.INVALID_CONFIG,
                f"The configuration value cannot be added because it exceeds the maximum value size of "
                f"{VALUE_SIZE_MAX} bytes.",
            )
    if len(after) > KEYS_MAX and len(after) > len(before):
        raise KafkaError(
            errors.INVALID_CONFIG,
            f"{len(after)} configurations of one resource; at most {KEYS_MAX} are allowed.",
        )
    if image.elr_enabled and kind == BROKER and MIN_ISR in changes:
        if name:
            raise KafkaError(
                errors.INVALID_CONFIG, f"Broker-level {MIN_ISR} cannot be altered while ELR is enabled."
            )
        if changes[MIN_ISR] is None:
            raise KafkaError(
                errors.INVALID_CONFIG, f"Cluster-level {MIN_ISR} cannot be removed while ELR is enabled."
            )
    _check_resource(image, config, resource, after, before)
    records = [
        messages.ConfigRecord(resource_type=kind, resource_name=name, name=key, value=value)
        for key, value in changes.items()
    ]
    if image.elr_enabled and MIN_ISR in changes and kind in (TOPIC, BROKER):
        records += without_elr(image, name if kind == TOPIC else "")
    return records


def without_elr(image: MetadataImage, name: str = "") -> Iterator[Any]:
    """Yield the records that clear the ELR of this topic, or of all (""), but partitions with an empty ISR
    keep their ELR and last known leader. Nobody has led them since, so these have all committed records,
    whatever the new minimum is; and without them, nobody could lead (Kafka: nobody does, when they are
    back)."""
    yield messages.ClearElrRecord(topic_name=name)
    topics = [image.topics[name]] if name else image.topics.values()
    for topic in topics:
        for index, state in topic.partitions.items():
            if not state.isr and (state.elr or state.last_known_elr):
                yield messages.PartitionChangeRecord(
                    topic_id=topic.topic_id,
                    partition_id=index,
                    eligible_leader_replicas=list(state.elr),
                    last_known_elr=list(state.last_known_elr),
                )


def _check_resource(
    image: MetadataImage,
    config: BrokerConfig,
    resource: Config,
    after: Mapping[str, str],
    before: Mapping[str, str],
) -> None:
    kind, name = resource
    if kind == TOPIC:
        if not name:
            raise KafkaError(errors.INVALID_REQUEST, "Default topic resources are not allowed.")
        reason = invalid_name(name)
        if reason is not None:
            raise KafkaError(errors.INVALID_TOPIC_EXCEPTION, reason)
        validate_topic_configs(after, config, before)
        warn_ignored("topic", after, TOPIC_KEYS)
        if name not in image.topics:
            raise KafkaError(errors.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")
    elif kind == BROKER:
        _check_broker(image, config, name, after)
    elif kind == GROUP:
        if not name:
            raise KafkaError(errors.INVALID_REQUEST, "Default group resources are not allowed.")
        validate_group_configs(after, config)
        warn_ignored("group", after, GROUP_KEYS)
    elif kind != CLIENT_METRICS:
        raise KafkaError(errors.INVALID_REQUEST, f"Unexpected resource type {kind}.")


def _check_broker(image: MetadataImage, config: BrokerConfig, name: str, after: Mapping[str, str]) -> None:
    if name:
        if not name.isascii() or not name.isdigit() or len(name) > DIGITS_MAX:
            raise KafkaError(errors.INVALID_REQUEST, "Unable to parse broker name as a base 10 number.")
        if int(name) not in image.brokers:
            raise KafkaError(errors.BROKER_ID_NOT_REGISTERED, f"No broker with id {name} found.")
    own = str(config.node_id)
    try:
        if name == own:
            BrokerConfig(config.static, image.configs.get((BROKER, ""), {}), after)
        elif not name:
            BrokerConfig(config.static, after, image.configs.get((BROKER, own), {}))
    except ConfigError as trouble:
        raise KafkaError(errors.INVALID_CONFIG, str(trouble)) from trouble

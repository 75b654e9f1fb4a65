"""Topics: planned here as records, written by the controller.

Each planner reads an image and a request and returns the records and the answer; it changes nothing. It is a
generator, about one topic per step: one request may name 100,000. A request for several topics succeeds for
some and fails for others; the successful changes go into one batch.

Names: 1 to 249 of [a-zA-Z0-9._-], but not "." and "..". Two names that differ only in "." and "_" collide,
because metrics cannot distinguish them (Kafka: Topic).
"""

import re
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from kafkad.config.broker import BrokerConfig
from kafkad.config.definition import to_string
from kafkad.config.served import warn_ignored
from kafkad.config.topic import TOPIC_KEYS, topic_values, validate_topic_configs
from kafkad.controller.elections import default_directory
from kafkad.metadata.image import (
    INTERNAL_TOPICS,
    TOPIC,
    MetadataImage,
    PartitionState,
    partition_record,
)
from kafkad.metadata.placement import UsableBroker, place
from kafkad.metadata.uuids import random_uuid
from kafkad.protocol import errors, messages, wide
from kafkad.protocol.errors import KafkaError

METADATA_TOPIC: Final = "__cluster_metadata"
TRANSACTION_TOPIC: Final = "__transaction_state"
OFFSETS_TOPIC: Final = "__consumer_offsets"
KEPT_BY_HASH: Final = {OFFSETS_TOPIC: "group", TRANSACTION_TOPIC: "transactional id"}
PARTITIONS_MAX: Final = 10_000  # new ones in one request; Kafka: MAX_PARTITIONS_PER_BATCH
_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")

# DescribeConfigsResponse.ConfigSource
SOURCE_TOPIC, SOURCE_BROKER, SOURCE_DEFAULT_BROKER, SOURCE_STATIC, SOURCE_DEFAULT = 1, 2, 3, 4, 5


class Cluster(NamedTuple):
    """What planners need besides the image."""

    config: BrokerConfig
    random: Any


def invalid_name(name: str) -> str | None:
    """Return Kafka's error message if a topic cannot have this name, otherwise None."""
    if not name:
        reason = "the empty string is not allowed"
    elif name in (".", ".."):
        reason = f"'{name}' is not allowed"
    elif len(name) > 249:
        reason = f"the length of '{name}' is longer than the max allowed length 249"
    elif not _NAME.fullmatch(name):
        reason = f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
    else:
        return None
    return f"Topic name is invalid: {reason}"


AT_ONCE: Final = 500  # elements of a request that are looked at in one step
NO_ID: Final = bytes(16)
Plan = Generator[None, None, tuple[list[Any], Any]]  # records, response
Take = Callable[[int], None]  # (number of partitions), before they are created or deleted; raises KafkaError
Described = dict[frozenset[tuple[str, str]], list[Any]]


def unlimited(partitions: int) -> None:
    """Do nothing: there is no quota."""


def plan_create(image: MetadataImage, cluster: Cluster, request: Any, take: Take = unlimited) -> Plan:
    """Return (records, CreateTopicsResponse). With validate_only there are no records."""
    response = messages.CreateTopicsResponse()
    twice = yield from named_twice(topic.name for topic in request.topics)
    records: list[Any] = []
    wanted = yield from _partition_count(request, cluster.config)
    taken: dict[str, str] = {}
    described: Described = {}
    if any("." in topic.name or "_" in topic.name for topic in request.topics):
        taken = {_folded(name): name for name in image.topics if "." in name or "_" in name}
    for topic in request.topics:
        yield
        if topic.name in twice:
            continue
        result = messages.CreateTopicsResponse.Topics(name=topic.name, error_message=None)
        response.topics.append(result)
        try:
            if topic.name == METADATA_TOPIC:
                raise KafkaError(
                    errors.INVALID_REQUEST, f"Creation of internal topic {METADATA_TOPIC} is prohibited."
                )
            if wanted > PARTITIONS_MAX:
                raise KafkaError(
                    errors.POLICY_VIOLATION, "Excessively large number of partitions per request."
                )
            _check_new_name(image, taken, topic.name)
            records += _create(image, cluster, topic, result, described, take)
        except KafkaError as trouble:
            result.error_code, result.error_message = trouble.code, trouble.message
            continue
        if "." in topic.name or "_" in topic.name:
            taken.setdefault(_folded(topic.name), topic.name)
    for name in sorted(twice):
        yield
        response.topics.append(
            messages.CreateTopicsResponse.Topics(
                name=name, error_code=errors.INVALID_REQUEST, error_message="Duplicate topic name."
            )
        )
    return ([] if request.validate_only else records), response


def _partition_count(request: Any, config: BrokerConfig) -> Generator[None, None, int]:
    """Return how many new partitions the whole request asks for."""
    count = 0
    for number, topic in enumerate(request.topics):
        if number % AT_ONCE == 0:
            yield
        if topic.assignments:
            count += len(topic.assignments)
        elif topic.num_partitions == -1:
            count += config.num_partitions
        else:
            count += max(topic.num_partitions, 0)
    return count


def _folded(name: str) -> str:
    return name.replace(".", "_")


def _check_new_name(image: MetadataImage, taken: Mapping[str, str], name: str) -> None:
    reason = invalid_name(name)
    if reason is not None:
        raise KafkaError(errors.INVALID_TOPIC_EXCEPTION, reason)
    if name in image.topics:
        raise KafkaError(errors.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
    if "." in name or "_" in name:
        other = taken.get(_folded(name))
        if other is not None:
            raise KafkaError(
                errors.INVALID_TOPIC_EXCEPTION, f"Topic '{name}' collides with existing topic: {other}"
            )


def _create(
    image: MetadataImage, cluster: Cluster, topic: Any, result: Any, described: Described, take: Take
) -> list[Any]:
    """Return the records of one new topic, in Kafka's order, and fill in its result. `described`: the configs
    of earlier topics, by their overrides. Raises KafkaError."""
    overrides = _overrides(topic)
    alike = frozenset(overrides.items())
    if alike not in described:
        validate_topic_configs(overrides, cluster.config)
        described[alike] = described_configs(cluster.config, overrides)
    warn_ignored("topic", overrides, TOPIC_KEYS)
    if topic.assignments:
        assignments = _assigned(image, topic)
    else:
        assignments = _placed(image, cluster, topic)
    take(len(assignments))
    topic_id = random_uuid(cluster.random)
    result.topic_id = topic_id
    result.num_partitions = len(assignments)
    result.replication_factor = len(assignments[0])
    result.configs = described[alike]
    records = [messages.TopicRecord(name=topic.name, topic_id=topic_id)]
    records += [
        messages.ConfigRecord(resource_type=TOPIC, resource_name=topic.name, name=name, value=value)
        for name, value in overrides.items()
    ]
    if image.elr_enabled and "min.insync.replicas" in overrides:
        records.append(messages.ClearElrRecord(topic_name=topic.name))
    records += [new_partition(image, topic_id, index, replicas) for index, replicas in enumerate(assignments)]
    return records


def _overrides(topic: Any) -> dict[str, str]:
    missing = [config.name for config in topic.configs if config.value is None]
    if missing:
        raise KafkaError(
            errors.INVALID_CONFIG, f"Null value not supported for topic configs: {','.join(missing)}"
        )
    return {config.name: config.value for config in topic.configs}


def _assigned(image: MetadataImage, topic: Any) -> list[list[int]]:
    """Return the replicas by partition, as in the request."""
    if topic.replication_factor != -1:
        raise KafkaError(
            errors.INVALID_REQUEST,
            "A manual partition assignment was specified, but replication factor was not set to -1.",
        )
    if topic.num_partitions != -1:
        raise KafkaError(
            errors.INVALID_REQUEST,
            "A manual partition assignment was specified, but numPartitions was not set to -1.",
        )
    by_index: dict[int, list[int]] = {}
    factor = None
    for assignment in topic.assignments:
        index = assignment.partition_index
        if index in by_index:
            raise KafkaError(
                errors.INVALID_REPLICA_ASSIGNMENT,
                f"Found multiple manual partition assignments for partition {index}",
            )
        _check_assignment(image, index, assignment.broker_ids, factor)
        factor = len(assignment.broker_ids)
        by_index[index] = assignment.broker_ids
    if by_index.keys() != set(range(len(by_index))):
        raise KafkaError(
            errors.INVALID_REPLICA_ASSIGNMENT, "partitions should be a consecutive 0-based integer sequence"
        )
    return [by_index[index] for index in range(len(by_index))]


def check_replicas(image: MetadataImage, replicas: Sequence[int], factor: int | None = None) -> None:
    """Check a client's list of replicas. Raises KafkaError(INVALID_REPLICA_ASSIGNMENT). (Kafka:
    validateManualPartitionAssignment)"""
    includes = "The manual partition assignment includes"
    reason = None
    if not replicas:
        reason = f"{includes} an empty replica list."
    for replica in sorted(replicas):
        broker = image.brokers.get(replica)
        if broker is None:
            reason = f"{includes} broker {replica}, but no such broker is registered."
        elif not broker.placeable:
            reason = f"{includes} broker {replica}, but all its log directories are cordoned."
        elif replicas.count(replica) > 1:
            reason = f"{includes} the broker {replica} more than once."
        if reason is not None:
            break
    if reason is None and factor is not None and len(replicas) != factor:
        reason = (
            f"{includes} a partition with {len(replicas)} replica(s), but this is not consistent with"
            f" previous partitions, which have {factor} replica(s)."
        )
    if reason is not None:
        raise KafkaError(errors.INVALID_REPLICA_ASSIGNMENT, reason)


def _check_assignment(image: MetadataImage, index: int, replicas: Sequence[int], factor: int | None) -> None:
    check_replicas(image, replicas, factor)
    if not any(image.brokers[replica].active for replica in replicas):
        raise KafkaError(
            errors.INVALID_REPLICA_ASSIGNMENT,
            f"All brokers specified in the manual partition assignment for partition {index}"
            " are fenced or in controlled shutdown.",
        )


def _placed(image: MetadataImage, cluster: Cluster, topic: Any) -> list[list[int]]:
    factor, count = topic.replication_factor, topic.num_partitions
    if factor < -1 or factor == 0:
        raise KafkaError(
            errors.INVALID_REPLICATION_FACTOR,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        )
    if count < -1 or count == 0:
        raise KafkaError(
            errors.INVALID_PARTITIONS, "Number of partitions was set to an invalid non-positive value."
        )
    if factor == -1:
        factor = cluster.config.default_replication_factor
    if count == -1:
        count = cluster.config.num_partitions
    try:
        return place(usable_brokers(image), count, factor, cluster.random)
    except KafkaError as trouble:
        raise KafkaError(
            trouble.code, f"Unable to replicate the partition {factor} time(s): {trouble.message}"
        ) from trouble


def usable_brokers(image: MetadataImage) -> list[UsableBroker]:
    """Return the brokers for new replicas: those that are not shutting down and have a directory that is not
    cordoned."""
    return [
        UsableBroker(b.broker_id, b.rack, b.fenced)
        for b in image.brokers.values()
        if b.placeable and (b.fenced or not b.in_controlled_shutdown)
    ]


def new_partition(image: MetadataImage, topic_id: bytes, index: int, replicas: Sequence[int]) -> Any:
    """Return the PartitionRecord of a new partition: its first live replica leads. Raises KafkaError."""
    isr = tuple(replica for replica in replicas if image.brokers[replica].active)
    if not isr:
        raise KafkaError(
            errors.INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {len(replicas)} time(s): "
            "All brokers are currently fenced or in controlled shutdown.",
        )
    state = PartitionState(
        leader=isr[0],
        leader_epoch=0,
        replicas=tuple(replicas),
        isr=isr,
        directories=tuple(default_directory(image, replica) for replica in replicas),
        partition_epoch=0,
    )
    return partition_record(topic_id, index, state, image.metadata_version)


def described_configs(config: BrokerConfig, overrides: Mapping[str, str]) -> list[Any]:
    """Return all configs of a topic with these overrides, for CreateTopics v5 and later (KIP-525)."""
    values = topic_values(config, overrides)
    described = []
    for name in sorted(values):
        key = TOPIC_KEYS[name]
        if key.internal and name not in overrides:
            continue
        described.append(
            messages.CreateTopicsResponse.Topics.Configs(
                name=name,
                value=overrides.get(name, to_string(values[name])),
                config_source=_source(config, key, overrides),
                is_sensitive=key.sensitive,
            )
        )
    return described


def _source(config: BrokerConfig, key: Any, overrides: Mapping[str, str]) -> int:
    if key.name in overrides:
        return SOURCE_TOPIC
    for name in key.synonyms:
        if name in config.dynamic_broker:
            return SOURCE_BROKER
        if name in config.dynamic_default:
            return SOURCE_DEFAULT_BROKER
        if name in config.static:
            return SOURCE_STATIC
    return SOURCE_DEFAULT


def named_twice(names: Iterable[Any]) -> Generator[None, None, set[Any]]:
    seen: set[Any] = set()
    twice: set[Any] = set()
    for number, name in enumerate(names):
        if number % AT_ONCE == 0:
            yield
        (twice if name in seen else seen).add(name)
    yield from wide.empty(seen)
    return twice


# -- what the broker makes by itself -----------------------------------------------------------------------


def auto_created(image: MetadataImage, config: BrokerConfig, name: str) -> Any:
    """Return the CreatableTopic for a topic that a client or a coordinator needs.

    Internal topics have their own size and configs; unlike Kafka's, their replication factor is no more than
    there are live brokers, so that one broker is enough.
    """
    cls = messages.CreateTopicsRequest.Topics
    if name not in INTERNAL_TOPICS:
        return cls(name=name, num_partitions=-1, replication_factor=-1)
    count, factor, configs = _INTERNAL[name](config)
    live = sum(broker.active and broker.placeable for broker in image.brokers.values())
    return cls(
        name=name,
        num_partitions=count,
        replication_factor=max(1, min(factor, live)),
        configs=[cls.Configs(name=key, value=value) for key, value in configs.items()],
    )


def _consumer_offsets(config: BrokerConfig) -> tuple[int, int, dict[str, str]]:
    return (
        config.offsets_topic_num_partitions,
        config.offsets_topic_replication_factor,
        {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(config.offsets_topic_segment_bytes),
        },
    )


def _transaction_state(config: BrokerConfig) -> tuple[int, int, dict[str, str]]:
    return (
        config.transaction_state_log_num_partitions,
        config.transaction_state_log_replication_factor,
        {
            "cleanup.policy": "compact",
            "compression.type": "uncompressed",
            "min.insync.replicas": str(config.transaction_state_log_min_isr),
            "segment.bytes": str(config.transaction_state_log_segment_bytes),
            "unclean.leader.election.enable": "false",
        },
    )


def _share_group_state(config: BrokerConfig) -> tuple[int, int, dict[str, str]]:
    return (
        config.share_coordinator_state_topic_num_partitions,
        config.share_coordinator_state_topic_replication_factor,
        {
            "cleanup.policy": "delete",
            "compression.type": "producer",
            "min.insync.replicas": str(config.share_coordinator_state_topic_min_isr),
            "retention.ms": "-1",
            "segment.bytes": str(config.share_coordinator_state_topic_segment_bytes),
        },
    )


_INTERNAL: Final[dict[str, Callable[[Any], tuple[int, int, dict[str, str]]]]] = {
    OFFSETS_TOPIC: _consumer_offsets,
    TRANSACTION_TOPIC: _transaction_state,
    "__share_group_state": _share_group_state,
}


# -- deleting, growing -------------------------------------------------------------------------------------


def plan_delete(
    image: MetadataImage, config: BrokerConfig, version: int, request: Any, take: Take = unlimited
) -> Plan:
    """Return (records, DeleteTopicsResponse). Topics are named, or from v6 on named or given by id."""
    cls = messages.DeleteTopicsResponse.Responses
    response = messages.DeleteTopicsResponse()
    answers = response.responses
    named: list[tuple[str | None, bytes]] = []
    for number, name in enumerate(request.topic_names):
        if number % AT_ONCE == 0:
            yield
        named.append((name, NO_ID))
    for number, topic in enumerate(request.topics):
        if number % AT_ONCE == 0:
            yield
        named.append((topic.name, topic.topic_id))

    def refuse(name: str | None, topic_id: bytes, code: int, message: str | None = None) -> None:
        answers.append(cls(name=name, topic_id=topic_id, error_code=code, error_message=message))

    if not config.delete_topic_enable:
        # v3 has a separate code
        code = errors.TOPIC_DELETION_DISABLED if version >= 3 else errors.INVALID_REQUEST
        for name, topic_id in named:
            refuse(name, topic_id, code, "Topic deletion is disabled.")
            yield
        yield from wide.empty(named)
        return [], response

    double_names = yield from named_twice(name for name, _ in named if name is not None)
    double_ids = yield from named_twice(
        topic_id for name, topic_id in named if name is None and any(topic_id)
    )
    chosen: dict[bytes, Any] = {}
    for name in sorted(double_names):
        refuse(name, NO_ID, errors.INVALID_REQUEST, "Duplicate topic name.")
        yield
    for topic_id in sorted(double_ids):
        refuse(None, topic_id, errors.INVALID_REQUEST, "Duplicate topic id.")
        yield
    ids_first: list[tuple[str | None, bytes]] = []  # as Kafka does
    for has_name in (False, True):
        for number, pair in enumerate(named):
            if number % AT_ONCE == 0:
                yield
            if (pair[0] is not None) is has_name:
                ids_first.append(pair)
    for name, topic_id in ids_first:
        yield
        if name in double_names or (name is None and topic_id in double_ids):
            continue
        if name is not None and any(topic_id):
            refuse(
                name, topic_id, errors.INVALID_REQUEST, "You may not specify both topic name and topic id."
            )
        elif name is None and not any(topic_id):
            refuse(None, topic_id, errors.INVALID_REQUEST, "Neither topic name nor id were specified.")
        elif name is None:
            topic = image.topics_by_id.get(topic_id)
            if topic is None:
                refuse(None, topic_id, errors.UNKNOWN_TOPIC_ID)
            else:
                chosen[topic_id] = topic
        else:
            topic = image.topics.get(name)
            if topic is None:
                refuse(name, NO_ID, errors.UNKNOWN_TOPIC_OR_PARTITION)
            elif topic.topic_id in chosen or topic.topic_id in double_ids:
                chosen.pop(topic.topic_id, None)
                refuse(
                    name,
                    topic.topic_id,
                    errors.INVALID_REQUEST,
                    "The provided topic name maps to an ID that was already supplied.",
                )
            else:
                chosen[topic.topic_id] = topic
    records = []
    for topic_id, topic in chosen.items():
        try:
            take(len(topic.partitions))
        except KafkaError as trouble:
            refuse(topic.name, topic_id, trouble.code, trouble.message)
            yield
            continue
        answers.append(cls(name=topic.name, topic_id=topic_id))
        records.append(messages.RemoveTopicRecord(topic_id=topic_id))
        yield
    yield from wide.empty(named, ids_first, double_names, double_ids, chosen)
    return records, response


def plan_grow(image: MetadataImage, cluster: Cluster, request: Any, take: Take = unlimited) -> Plan:
    """Return (records, CreatePartitionsResponse)."""
    cls = messages.CreatePartitionsResponse.Results
    response = messages.CreatePartitionsResponse()
    twice = yield from named_twice(topic.name for topic in request.topics)
    records: list[Any] = []
    for name in sorted(twice):
        yield
        response.results.append(
            cls(name=name, error_code=errors.INVALID_REQUEST, error_message="Duplicate topic name.")
        )
    for asked in request.topics:
        yield
        if asked.name in twice:
            continue
        result = cls(name=asked.name)
        response.results.append(result)
        try:
            records += _grow(image, cluster, asked, PARTITIONS_MAX - len(records), take)
        except KafkaError as trouble:
            result.error_code, result.error_message = trouble.code, trouble.message
    return ([] if request.validate_only else records), response


def _grow(image: MetadataImage, cluster: Cluster, asked: Any, added_max: int, take: Take) -> list[Any]:
    topic = image.topics.get(asked.name)
    if topic is None:
        raise KafkaError(errors.UNKNOWN_TOPIC_OR_PARTITION)
    count = len(topic.partitions)
    if asked.count == count:
        raise KafkaError(errors.INVALID_PARTITIONS, f"Topic already has {count} partition(s).")
    if asked.count < count:
        raise KafkaError(
            errors.INVALID_PARTITIONS,
            f"The topic {asked.name} currently has {count} partition(s);"
            f" {asked.count} would not be an increase.",
        )
    kept = KEPT_BY_HASH.get(asked.name)
    if kept is not None:
        raise KafkaError(
            errors.INVALID_PARTITIONS,
            f"{asked.name} cannot grow: its number of partitions says where each {kept} is kept.",
        )
    added = asked.count - count
    if added > added_max:
        raise KafkaError(errors.POLICY_VIOLATION, "Excessively large number of partitions per request.")
    factor = len(next(iter(topic.partitions.values())).replicas)
    if asked.assignments is None:
        replicas = place(usable_brokers(image), added, factor, cluster.random)
    else:
        if len(asked.assignments) != added:
            raise KafkaError(
                errors.INVALID_REPLICA_ASSIGNMENT,
                f"Attempted to add {added} additional partition(s), but only {len(asked.assignments)}"
                " assignment(s) were specified.",
            )
        replicas = [assignment.broker_ids for assignment in asked.assignments]
        for index, listed in enumerate(replicas, count):
            _check_assignment(image, index, listed, factor)
    take(added)
    return [
        new_partition(image, topic.topic_id, index, listed) for index, listed in enumerate(replicas, count)
    ]

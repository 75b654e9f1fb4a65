"""Reassignments: partitions move to other brokers while they are served (KIP-455).

    plan_alter   AlterPartitionReassignments: replicas = the target + those to be removed; new ones are
                 `adding`, those to be removed `removing`. `elections` completes it with the change that
                 brings the last new replica into the ISR. A null list of replicas cancels it
    ongoing      ListPartitionReassignments

Kafka: ReplicationControlManager, PartitionReassignmentReplicas, PartitionReassignmentRevert. If a second
reassignment follows a running one, `adding` and `removing` are the differences between all current replicas,
including new ones, and the target."""

from collections.abc import Generator, Iterable
from typing import Any

from kafkad.controller.elections import Assignment
from kafkad.controller.leadership import STEP, TopicSettings, change_in
from kafkad.controller.topics import check_replicas
from kafkad.metadata.image import MetadataImage, PartitionState, Topic
from kafkad.protocol import errors, messages, wide
from kafkad.protocol.errors import KafkaError

Plan = Generator[None, None, tuple[list[Any], Any]]


def plan_alter(image: MetadataImage, settings: TopicSettings, request: Any) -> Plan:
    """Return (records, AlterPartitionReassignmentsResponse)"""
    cls = messages.AlterPartitionReassignmentsResponse
    may_resize = request.allow_replication_factor_change
    response = cls(error_message=None, allow_replication_factor_change=may_resize)
    records: list[Any] = []
    seen: set[tuple[str, int]] = set()
    number = 0
    for asked in request.topics:
        answer = cls.Responses(name=asked.name)
        response.responses.append(answer)
        for wanted in asked.partitions:
            row = cls.Responses.Partitions(partition_index=wanted.partition_index, error_message=None)
            answer.partitions.append(row)
            try:
                key = (asked.name, wanted.partition_index)
                if key in seen:
                    raise KafkaError(errors.INVALID_REQUEST, f"{key[0]}-{key[1]} is named twice.")
                seen.add(key)
                record = _altered(image, settings, asked.name, wanted, may_resize)
                if record is not None:
                    records.append(record)
            except KafkaError as trouble:
                row.error_code, row.error_message = trouble.code, trouble.message
            number += 1
            if number % STEP == 0:
                yield
    yield from wide.empty(seen)
    return records, response


def _altered(
    image: MetadataImage, settings: TopicSettings, name: str, wanted: Any, may_resize: bool
) -> Any | None:
    topic = image.topics.get(name)
    if topic is None:
        raise KafkaError(errors.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find a topic named {name}.")
    index = wanted.partition_index
    state = topic.partitions.get(index)
    if state is None:
        raise KafkaError(errors.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find partition {name}:{index}.")
    if wanted.replicas is None:
        return _cancelled(image, settings, topic, index, state)
    target = tuple(wanted.replicas)
    check_replicas(image, target)
    if not may_resize and len(target) != _size(state):
        raise KafkaError(
            errors.INVALID_REPLICATION_FACTOR,
            f"The replication factor is changed from {_size(state)} to {len(target)}",
        )
    removing = tuple(sorted(set(state.replicas) - set(target)))
    adding = tuple(sorted(set(target) - set(state.replicas)))
    assignment = Assignment(
        (*target, *removing), adding or state.adding_replicas, removing or state.removing_replicas
    )
    return change_in(image, settings, topic, index, assignment=assignment)


def _size(state: PartitionState) -> int:
    """Return how many replicas the partition has after the running reassignment."""
    return len({*state.replicas, *state.adding_replicas} - {*state.removing_replicas})


def _cancelled(
    image: MetadataImage, settings: TopicSettings, topic: Topic, index: int, state: PartitionState
) -> Any | None:
    """Plan the return to the previous replicas. If none of them is in sync, the first one is treated as in
    sync, if the topic allows unclean elections."""
    if not state.adding_replicas and not state.removing_replicas:
        raise KafkaError(errors.NO_REASSIGNMENT_IN_PROGRESS, "No partition reassignment is in progress.")
    unclean_allowed = settings.unclean_allowed(topic.name)
    replicas = tuple(each for each in state.replicas if each not in state.adding_replicas)
    isr = tuple(each for each in state.isr if each not in state.adding_replicas)
    if not replicas:
        raise KafkaError(
            errors.INVALID_REPLICA_ASSIGNMENT,
            "Invalid replica assignment: addingReplicas contains all replicas.",
        )
    if not isr:
        if not unclean_allowed:
            raise KafkaError(
                errors.INVALID_REPLICA_ASSIGNMENT,
                f"Unable to revert partition assignment for {topic.name}:{index} because it would require an"
                " unclean leader election.",
            )
        isr = (replicas[0],)
    return change_in(
        image,
        settings,
        topic,
        index,
        target_isr=isr,
        assignment=Assignment(replicas, (), ()),
        unclean_allowed=unclean_allowed,
    )


def ongoing(image: MetadataImage, request: Any) -> Generator[None, None, Any]:
    """Return a ListPartitionReassignmentsResponse, in steps."""
    cls = messages.ListPartitionReassignmentsResponse
    response = cls(error_message=None)
    wanted: Iterable[tuple[Topic | None, Iterable[int]]]
    if request.topics is None:
        wanted = ((topic, topic.partitions) for topic in image.topics.values())
    else:
        wanted = ((image.topics.get(each.name), each.partition_indexes) for each in request.topics)
    number = 0
    for topic, indexes in wanted:
        rows = []
        for index in indexes if topic is not None else ():
            number += 1
            if number % STEP == 0:
                yield
            state = topic.partitions.get(index) if topic is not None else None
            if state is not None and (state.adding_replicas or state.removing_replicas):
                rows.append(
                    cls.Topics.Partitions(
                        partition_index=index,
                        replicas=list(state.replicas),
                        adding_replicas=list(state.adding_replicas),
                        removing_replicas=list(state.removing_replicas),
                    )
                )
        if rows and topic is not None:
            response.topics.append(cls.Topics(name=topic.name, partitions=rows))
    return response

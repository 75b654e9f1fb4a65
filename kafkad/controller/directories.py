"""AssignReplicasToDirs: a broker reports in which log directory it has placed which replica (KIP-858).

A replica in an offline directory leaves the ISR, and another one leads (Kafka:
handleAssignReplicasToDirs)."""

from collections.abc import Generator
from typing import Any

from kafkad.controller.leadership import (
    STEP,
    PartitionKey,
    TopicSettings,
    change_in,
    leader_changes,
    state_of,
    stepped,
)
from kafkad.controller.membership import check_epoch
from kafkad.metadata import features
from kafkad.metadata.image import MetadataImage
from kafkad.protocol import errors, messages
from kafkad.protocol.errors import KafkaError

Plan = Generator[None, None, tuple[list[Any], Any]]


def plan_assign(image: MetadataImage, settings: TopicSettings, request: Any) -> Plan:
    """Return (records, AssignReplicasToDirsResponse). Raises KafkaError."""
    if image.metadata_version < features.DIRECTORY_ASSIGNMENT:
        raise KafkaError(errors.UNSUPPORTED_VERSION, "Directory assignment is not supported yet.")
    broker = check_epoch(image, request.broker_id, request.broker_epoch)
    cls = messages.AssignReplicasToDirsResponse
    response = cls()
    records: list[Any] = []
    offline: dict[PartitionKey, None] = {}
    number = 0
    for directory in request.directories:
        answer = cls.Directories(id=directory.id)
        response.directories.append(answer)
        for topic in directory.topics:
            known = image.topics_by_id.get(topic.topic_id)
            row = cls.Directories.Topics(topic_id=topic.topic_id)
            answer.topics.append(row)
            for partition in topic.partitions:
                key = (topic.topic_id, partition.partition_index)
                code = _error_code(image, key, broker.broker_id)
                if not code:
                    assert known is not None
                    placed = {broker.broker_id: directory.id}
                    record = change_in(image, settings, known, key[1], directories=placed)
                    if record is not None:
                        records.append(record)
                    if not broker.has_online(directory.id):
                        offline[key] = None
                row.partitions.append(
                    cls.Directories.Topics.Partitions(partition_index=key[1], error_code=code)
                )
                number += 1
                if number % STEP == 0:
                    yield
    yield from stepped(leader_changes(image, settings, offline, remove=broker.broker_id), records)
    return records, response


def _error_code(image: MetadataImage, key: PartitionKey, broker_id: int) -> int:
    if key[0] not in image.topics_by_id:
        return errors.UNKNOWN_TOPIC_ID
    state = state_of(image, key)
    if state is None:
        return errors.UNKNOWN_TOPIC_OR_PARTITION
    return errors.NONE if broker_id in state.replicas else errors.NOT_LEADER_OR_FOLLOWER

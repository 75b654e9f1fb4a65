"""AlterPartition: the leader of a partition proposes an ISR, and the controller decides (KIP-497, KIP-903).

Each partition is checked on its own, in this order (Kafka: validateAlterPartitionData):

    UNKNOWN_TOPIC_ID, UNKNOWN_TOPIC_OR_PARTITION
    NOT_CONTROLLER           the leader knows newer epochs: this node is no longer the active controller
    FENCED_LEADER_EPOCH      it is no longer the leader
    INVALID_REQUEST          it is not the leader
    INVALID_UPDATE_VERSION   it has not seen the last change yet
    INVALID_REQUEST          members that are not replicas, or repeated; without the leader; several while
                             the leader recovers from an unclean election
    INELIGIBLE_REPLICA       members that are fenced, shutting down, or registered again since their Fetch

Beware: a change may complete a reassignment, which may take the leadership from the sender: then the records
are written, and the answer is NEW_LEADER_ELECTED.
"""

from collections.abc import Generator
from typing import Any

from kafkad.controller.leadership import STEP, TopicSettings, change_in
from kafkad.controller.membership import check_epoch
from kafkad.metadata.image import RECOVERED, RECOVERING, MetadataImage, PartitionState, Topic
from kafkad.metadata.replay import NO_LEADER_CHANGE
from kafkad.protocol import errors, messages

Plan = Generator[None, None, tuple[list[Any], Any]]
WITH_EPOCHS = 3  # version with the broker epochs of the members
UNCHECKED = -1  # a broker epoch that the leader does not know


def plan_alter_partition(image: MetadataImage, settings: TopicSettings, version: int, request: Any) -> Plan:
    """Return (records, AlterPartitionResponse). Raises KafkaError(STALE_BROKER_EPOCH)."""
    check_epoch(image, request.broker_id, request.broker_epoch)
    response = messages.AlterPartitionResponse()
    records: list[Any] = []
    cls = messages.AlterPartitionResponse.Topics
    seen: set[tuple[bytes, int]] = set()
    number = 0
    for asked in request.topics:
        topic = image.topics_by_id.get(asked.topic_id)
        answer = cls(topic_id=asked.topic_id)
        response.topics.append(answer)
        for proposal in asked.partitions:
            key = (asked.topic_id, proposal.partition_index)
            code, record, state = _decide(image, settings, version, request.broker_id, topic, proposal)
            if not code and key in seen:
                code, record = errors.INVALID_REQUEST, None  # the second could only follow the first
            seen.add(key)
            if record is not None:
                records.append(record)
            row = cls.Partitions(partition_index=proposal.partition_index, error_code=code)
            if not code:
                assert state is not None
                row.leader_id, row.leader_epoch = state.leader, state.leader_epoch
                row.isr, row.partition_epoch = list(state.isr), state.partition_epoch
                row.leader_recovery_state = state.leader_recovery_state
            answer.partitions.append(row)
            number += 1
            if number % STEP == 0:
                yield
    return records, response


def _decide(
    image: MetadataImage,
    settings: TopicSettings,
    version: int,
    broker_id: int,
    topic: Topic | None,
    proposal: Any,
) -> tuple[int, Any | None, PartitionState | None]:
    """(error code, record, the state after it)"""
    if topic is None:
        return errors.UNKNOWN_TOPIC_ID, None, None
    state = topic.partitions.get(proposal.partition_index)
    members = [(member.broker_id, member.broker_epoch) for member in proposal.new_isr_with_epochs]
    if version < WITH_EPOCHS:
        members = [(member, UNCHECKED) for member in proposal.new_isr]
    code = _error_code(image, state, broker_id, members, proposal)
    if code:
        return code, None, None
    assert state is not None
    record = change_in(
        image,
        settings,
        topic,
        proposal.partition_index,
        target_isr=tuple(member for member, _ in members),
        recovery_state=proposal.leader_recovery_state,
        unclean_allowed=settings.unclean_allowed(topic.name),
    )
    if record is None:
        return errors.NONE, None, state
    if record.leader not in (broker_id, NO_LEADER_CHANGE):
        return errors.NEW_LEADER_ELECTED, record, None
    elected = record.leader != NO_LEADER_CHANGE
    recovery = record.leader_recovery_state
    after = state._replace(
        isr=state.isr if record.isr is None else tuple(record.isr),
        leader_epoch=state.leader_epoch + elected,
        partition_epoch=state.partition_epoch + 1,
        leader_recovery_state=state.leader_recovery_state if recovery < 0 else recovery,
    )
    return errors.NONE, record, after


def _error_code(
    image: MetadataImage,
    state: PartitionState | None,
    broker_id: int,
    members: list[tuple[int, int]],
    proposal: Any,
) -> int:
    """Return an error code, or NONE."""
    if state is None:
        return errors.UNKNOWN_TOPIC_OR_PARTITION
    if proposal.leader_epoch > state.leader_epoch or proposal.partition_epoch > state.partition_epoch:
        return errors.NOT_CONTROLLER
    if proposal.leader_epoch < state.leader_epoch:
        return errors.FENCED_LEADER_EPOCH
    if broker_id != state.leader:
        return errors.INVALID_REQUEST
    if proposal.partition_epoch < state.partition_epoch:
        return errors.INVALID_UPDATE_VERSION
    isr = [member for member, _ in members]
    if len(set(isr)) != len(isr) or not set(isr) <= set(state.replicas) or state.leader not in isr:
        return errors.INVALID_REQUEST
    recovery = proposal.leader_recovery_state
    if recovery not in (RECOVERED, RECOVERING) or (recovery == RECOVERING and len(isr) > 1):
        return errors.INVALID_REQUEST
    if state.leader_recovery_state == RECOVERED and recovery == RECOVERING:
        return errors.INVALID_REQUEST
    if all(_is_eligible(image, *member) for member in members):
        return errors.NONE
    return errors.INELIGIBLE_REPLICA


def _is_eligible(image: MetadataImage, broker_id: int, epoch: int) -> bool:
    broker = image.brokers.get(broker_id)
    return broker is not None and broker.active and epoch in (UNCHECKED, broker.epoch)

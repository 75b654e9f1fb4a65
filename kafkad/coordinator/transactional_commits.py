"""TxnOffsetCommit: offsets that become visible when their transaction is committed.

    guard of the partition -> ask the transaction's coordinator (admission.py) -> check the member
    -> one transactional batch -> durable: the offsets wait for the transaction's marker (offsets.py)

The coordinator is asked first, so its errors take precedence over the group's. Source: Kafka's
GroupCoordinatorService.commitTransactionalOffsets, OffsetMetadataManager.commitTransactionalOffset."""

import logging
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

from kafkad.coordinator import records
from kafkad.coordinator.admission import COMMIT_ADDS_FROM, Gate
from kafkad.coordinator.admission import commit_error as for_client
from kafkad.coordinator.member import Reply
from kafkad.coordinator.offsets import Key
from kafkad.coordinator.records import CommittedOffset, Entry
from kafkad.log.admission import Admission
from kafkad.protocol import errors, messages
from kafkad.protocol.errors import KafkaError
from kafkad.protocol.strings import java_length

if TYPE_CHECKING:
    from kafkad.coordinator.ports import Coordinator
    from kafkad.coordinator.shard import Shard

logger = logging.getLogger(__name__)

OFFSETS_TOPIC = "__consumer_offsets"
AT_ONCE = 100  # partitions between two looks at the clock
NO_SEQUENCE = -1

Steps = Generator[None, None, None]


def commit_steps(
    coordinator: "Coordinator",
    shard: "Shard",
    request: Any,
    version: int,
    gate: Gate,
    reply: Reply,
    *,
    verifies: bool = True,
) -> Steps:
    """reply(outcome) once: TxnOffsetCommitResponse, or the error code of every partition. The request names
    only topics that exist. verifies: transaction.partition.verification.enable."""
    adds = version >= COMMIT_ADDS_FROM
    admission = Admission.IMPLICIT if adds else Admission.ADDED if verifies else Admission.UNVERIFIED
    producer = request.producer_id, request.producer_epoch
    try:
        guard = coordinator.storage.ask_guard(shard.index, admission, *producer)
    except KafkaError as refused:
        reply(refused.code)
        return
    if not guard:
        yield from _commit(shard, request, admission, guard, reply)
        return

    answers: list[int] = []  # of the coordinator, while this is running
    is_running = True

    def done(code: int) -> None:
        if is_running:
            answers.append(code)
        else:
            _go_on(coordinator, shard, request, version, (admission, guard), code, reply)

    gate.admit(request.transactional_id, *producer, (OFFSETS_TOPIC, shard.index), adds=adds, done=done)
    is_running = False
    for code in answers:
        if code:
            reply(for_client(code, version))
        else:
            yield from _commit(shard, request, admission, guard, reply)


def _go_on(
    coordinator: "Coordinator",
    shard: "Shard",
    request: Any,
    version: int,
    admitted: tuple[Admission, int],
    code: int,
    reply: Reply,
) -> None:
    """The coordinator has answered later."""
    if code:
        reply(for_client(code, version))
        return
    is_begun = False

    def steps() -> Iterator[None]:
        nonlocal is_begun
        committing = _commit(shard, request, *admitted, reply)
        for _ in committing:
            yield
        is_begun = True

    def ended() -> None:
        if not is_begun:  # the partition has left meanwhile
            reply(errors.NOT_COORDINATOR)

    coordinator.run(shard, steps(), ended)


def _commit(shard: "Shard", request: Any, admission: Admission, guard: int, reply: Reply) -> Steps:
    """Replies, or has appended what is to be replied to, when it ends."""
    group_id = request.group_id
    now_ms = shard.now_ms()
    entries: list[Entry] = []
    changes: list[tuple[Key, CommittedOffset | None]] = []
    room = shard.batch_bytes_max()
    response = messages.TxnOffsetCommitResponse()
    for topic in request.topics:
        answer = messages.TxnOffsetCommitResponse.Topics(name=topic.name)
        response.topics.append(answer)
        topic_id = shard.topic_id(topic.name)
        for number, partition in enumerate(topic.partitions):
            if number % AT_ONCE == 0:
                yield
            index, metadata = partition.partition_index, partition.committed_metadata or ""
            too_long = java_length(metadata) > shard.config.offset_metadata_max_bytes
            code = errors.OFFSET_METADATA_TOO_LARGE if too_long else errors.NONE
            answer.partitions.append(
                messages.TxnOffsetCommitResponse.Topics.Partitions(partition_index=index, error_code=code)
            )
            if code:
                continue
            committed = CommittedOffset(
                partition.committed_offset,
                partition.committed_leader_epoch,
                metadata,
                now_ms,
                topic_id=topic_id,
            )
            key, value = records.offset_key(group_id, topic.name, index), records.offset_value(committed)
            entries.append((key, value))
            changes.append(((group_id, topic.name, index), committed))
            room -= len(key) + len(value)
    code = errors.NOT_COORDINATOR if shard.closed else _check(shard, request)
    if room < 0:
        logger.error("group %s: a transaction's offsets do not fit into max.message.bytes", group_id)
        code = code or errors.UNKNOWN_SERVER_ERROR
    if code:
        reply(code)
        return

    def stored(code: int) -> None:
        reply(code or response)

    if entries:
        producer = request.producer_id, request.producer_epoch
        _, settled = shard.to_commit(group_id)
        shard.append(
            entries, changes, stored, settled=settled, producer=producer, admitted=(admission, guard)
        )
    else:
        shard.after_writes(stored)


def _check(shard: "Shard", request: Any) -> int:
    """The error code for a commit of this member, or NONE."""
    group = shard.groups.get(request.group_id)
    if group is not None:
        return group.check_commit(
            request.member_id, request.group_instance_id, request.generation_id, transactional=True
        )
    return errors.NONE if request.generation_id < 0 else errors.ILLEGAL_GENERATION

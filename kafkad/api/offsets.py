"""Committed offsets.

OffsetCommit (key 8), v0-10.   v0 without a member. v1 commit timestamp. v2-4 retention time. v3 throttle.
  v6 leader epoch. v7 static members. v8 flexible. v9 group not found. v10 topic ids. Topics and partitions
  have to exist.
OffsetFetch (key 9), v0-10.   v0 an error if nothing is committed. v1 errors per partition only. v2 null
  topics mean all. v3 throttle. v5 leader epoch. v6 flexible. v7 require stable. v8 several groups. v9 member
  epoch (of consumer groups; ignored). v10 topic ids.
OffsetDelete (key 47), v0.   Not for topics that the group is subscribed to (KIP-496).

An unknown group has committed nothing: offset -1 for each partition, and no error.
v0 is that of Kafka 0.8.1, which stored offsets in ZooKeeper. Here it commits like a consumer without a group,
and reads what later versions committed. Such a client does not look for a coordinator, so its commit creates
`__consumer_offsets`. Not yet: TxnOffsetCommit, consumer groups, authorization."""

import inspect
from collections.abc import Awaitable, Callable, Collection, Generator
from contextlib import suppress
from functools import partial
from typing import Any

from kafkad.api.context import RequestContext, Services
from kafkad.api.coordinators import OFFSETS_TOPIC
from kafkad.api.groups import response_of, response_of_steps
from kafkad.protocol import codec, errors, messages, wide
from kafkad.protocol.errors import KafkaError

Steps = Generator[None, None, Any]

AT_ONCE = 64  # elements per step
TOPIC_IDS_FROM = 10
GROUPS_FROM = 8  # OffsetFetch: several groups
TOP_LEVEL_ERROR_FROM = 2  # OffsetFetch
NO_TOPIC_ID = bytes(16)
NO_OFFSET = -1


def offset_commit(services: Services, context: RequestContext, request: Any) -> Steps:
    if context.version == 0 and OFFSETS_TOPIC not in services.metadata.image.topics:
        created = services.controller.auto_create([OFFSETS_TOPIC])
        if inspect.isawaitable(created):
            return _committed_later(services, context, request, created)
    return (yield from _commit(services, context, request))


async def _committed_later(
    services: Services, context: RequestContext, request: Any, created: Awaitable[Any]
) -> Any:
    with suppress(KafkaError):  # then the commit finds no coordinator
        await created
    return _commit(services, context, request)


def _commit(services: Services, context: RequestContext, request: Any) -> Steps:
    by_id = context.version >= TOPIC_IDS_FROM
    refused = yield from _take_out_unknown(services.metadata.image, by_id, request)
    if not request.topics:
        return messages.OffsetCommitResponse(topics=(yield from _merge(refused, [])))

    def start(reply: Callable[[Any], None]) -> Steps:
        def committed(response: Any) -> None:
            reply(_with_refused(response, refused) if refused else response)

        return services.groups.commit_steps(request, context.version, committed, lives=not context.has_left)

    return (yield from response_of_steps(start))


def _take_out_unknown(image: Any, by_id: bool, request: Any) -> Generator[None, None, list[Any]]:
    """Keep the topics and partitions that exist, with name and id; return the others' part of the response.
    In steps."""
    Answer = messages.OffsetCommitResponse.Topics
    refused: list[Any] = []
    known: list[Any] = []
    for topic in request.topics:
        yield
        found = image.topics_by_id.get(topic.topic_id) if by_id else image.topics.get(topic.name)
        indexes: Collection[int] = ()
        code = errors.UNKNOWN_TOPIC_ID if by_id and found is None else errors.UNKNOWN_TOPIC_OR_PARTITION
        if found is not None:
            topic.name, topic.topic_id = found.name, found.topic_id
            indexes = found.partitions
        right: list[Any] = []
        wrong: list[Any] = []
        for number, partition in enumerate(topic.partitions, 1):
            index = partition.partition_index
            if index in indexes:
                right.append(partition)
            else:
                wrong.append(Answer.Partitions(partition_index=index, error_code=code))
            if number % AT_ONCE == 0:
                yield
        if right:
            before, topic.partitions = topic.partitions, right
            yield from codec.free_in_steps(before)
            known.append(topic)
        if wrong or found is None:
            refused.append(Answer(name=topic.name, topic_id=topic.topic_id, partitions=wrong))
    before, request.topics = request.topics, known
    yield from codec.free_in_steps(before)
    return refused


def _with_refused(response: Any, refused: list[Any]) -> Steps:
    response.topics = yield from _merge(refused, response.topics)
    return response


def offset_fetch(services: Services, context: RequestContext, request: Any) -> Generator[None, None, Any]:
    groups = request.groups if context.version >= GROUPS_FROM else [(yield from _single_group(request))]
    answers: list[Any] = [None] * len(groups)
    missing = len(groups)
    alike: dict[
        str, list[int]
    ] = {}  # positions that request all offsets of the same group, which are read once
    for position, group in enumerate(groups):
        if group.topics is None:
            alike.setdefault(group.group_id, []).append(position)
    reply: Callable[[Any], None] | None = None

    def fetched(position: int, answer: Any) -> None:
        nonlocal missing
        group = groups[position]
        for same in alike[group.group_id] if group.topics is None else (position,):
            answers[same] = answer
            missing -= 1
        if not missing and reply is not None:
            reply(_fetch_response(context.version, groups, answers))

    for position, group in enumerate(groups):
        yield
        if group.topics is None and alike[group.group_id][0] != position:
            continue
        yield from _fetch_group(services, context, group, request.require_stable, partial(fetched, position))
    if not missing:
        return (yield from _fetch_response(context.version, groups, answers))

    def start(when_all_are: Callable[[Any], None]) -> None:
        nonlocal reply
        reply = when_all_are

    return response_of(start)


def _fetch_group(
    services: Services, context: RequestContext, group: Any, require_stable: bool, done: Callable[[Any], None]
) -> Generator[None, None, None]:
    image = services.metadata.image
    by_id = context.version >= TOPIC_IDS_FROM
    everything = group.topics is None
    failed: list[Any] = []
    if by_id and not everything:
        known = []
        for topic in group.topics:
            found = image.topics_by_id.get(topic.topic_id)
            if found is None:
                failed.append((yield from _failed_topic(topic, errors.UNKNOWN_TOPIC_ID)))
            else:
                topic.name = found.name
                known.append(topic)
            yield
        before, group.topics = group.topics, known
        yield from codec.free_in_steps(before)

    def fetched(answer: Any) -> None:
        if by_id and everything:
            # A topic is identified by its id only; a deleted one has none.
            for topic in answer.topics:
                found = image.topics.get(topic.name)
                topic.topic_id = NO_TOPIC_ID if found is None else found.topic_id
            answer.topics = [topic for topic in answer.topics if topic.topic_id != NO_TOPIC_ID]
        if not answer.error_code:
            answer.topics.extend(failed)
        done(answer)

    yield from services.groups.fetch(group, require_stable, fetched)


def _single_group(request: Any) -> Steps:
    """Return the single group of a request before v8, in the later form."""
    Group = messages.OffsetFetchRequest.Groups
    topics = None
    if request.topics is not None:
        topics = []
        for topic in request.topics:
            topics.append(Group.Topics(name=topic.name, partition_indexes=topic.partition_indexes))
            yield
    return Group(group_id=request.group_id, topics=topics)


def _fetch_response(version: int, groups: list[Any], answers: list[Any]) -> Steps:
    if version >= GROUPS_FROM:
        return messages.OffsetFetchResponse(groups=answers)
    Topic = messages.OffsetFetchResponse.Topics
    (group,), (answer,) = groups, answers
    topics, code = answer.topics, answer.error_code
    if code and version < TOP_LEVEL_ERROR_FROM:  # there every partition has the error
        topics = []
        for topic in group.topics:
            topics.append((yield from _failed_topic(topic, code)))
            yield
        code = errors.NONE
    response = messages.OffsetFetchResponse(error_code=code)
    for topic in topics:
        told = Topic(name=topic.name)
        response.topics.append(told)
        for number, partition in enumerate(topic.partitions, 1):
            if version == 0 and not partition.error_code and partition.committed_offset == NO_OFFSET:
                partition.error_code = errors.UNKNOWN_TOPIC_OR_PARTITION
            told.partitions.append(
                Topic.Partitions(
                    partition_index=partition.partition_index,
                    committed_offset=partition.committed_offset,
                    committed_leader_epoch=partition.committed_leader_epoch,
                    metadata=partition.metadata,
                    error_code=partition.error_code,
                )
            )
            if number % AT_ONCE == 0:
                yield
        yield
    yield from codec.free_in_steps(topics)
    return response


def _failed_topic(topic: Any, code: int) -> Steps:
    Topic = messages.OffsetFetchResponse.Groups.Topics
    failed = Topic(name=topic.name, topic_id=topic.topic_id)
    for number, index in enumerate(topic.partition_indexes, 1):
        failed.partitions.append(
            Topic.Partitions(
                partition_index=index,
                committed_offset=-1,
                committed_leader_epoch=-1,
                metadata="",
                error_code=code,
            )
        )
        if number % AT_ONCE == 0:
            yield
    return failed


def offset_delete(services: Services, context: RequestContext, request: Any) -> Steps:
    Answer = messages.OffsetDeleteResponse.Topics
    image = services.metadata.image
    refused: list[Any] = []
    known: list[Any] = []
    for topic in request.topics:
        found = image.topics.get(topic.name)
        existing = {} if found is None else found.partitions
        right: list[Any] = []
        wrong: list[int] = []
        for number, partition in enumerate(topic.partitions, 1):
            if partition.partition_index in existing:
                right.append(partition)
            else:
                wrong.append(partition.partition_index)
            if number % AT_ONCE == 0:
                yield
        before, topic.partitions = topic.partitions, right
        yield from codec.free_in_steps(before)
        if right:
            known.append(topic)
        if wrong or found is None:
            answer = Answer(name=topic.name)
            refused.append(answer)
            for number, index in enumerate(wrong, 1):
                answer.partitions.append(
                    Answer.Partitions(partition_index=index, error_code=errors.UNKNOWN_TOPIC_OR_PARTITION)
                )
                if number % AT_ONCE == 0:
                    yield
        yield
    before, request.topics = request.topics, known
    yield from codec.free_in_steps(before)

    def start(reply: Callable[[Any], None]) -> Steps:
        def deleted(response: Any) -> None:
            reply(response if response.error_code else _with_refused(response, refused))

        return services.groups.delete_offsets_steps(request, deleted)

    return (yield from response_of_steps(start))


def _merge(refused: list[Any], done: list[Any]) -> Generator[None, None, list[Any]]:
    """Merge, in steps, the topics of both halves of a response, each once: it may be in both, or be named
    twice."""
    merged: dict[tuple[str, bytes], Any] = {}
    for number, topic in enumerate((*refused, *done), 1):
        key = (topic.name, getattr(topic, "topic_id", NO_TOPIC_ID))
        if key in merged:
            merged[key].partitions.extend(topic.partitions)
        else:
            merged[key] = topic
        if number % AT_ONCE == 0:
            yield
    topics = list(merged.values())
    yield from wide.empty(merged)
    return topics

"""Requests about partitions, other than Produce, Fetch and ListOffsets.

DeleteRecords (key 21), v0-2.   OffsetForLeaderEpoch (key 23), v0-4.   DescribeProducers (key 61), v0.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from kafkad.api.context import RequestContext, Services, code_of
from kafkad.api.list_offsets import check_leader_epoch, check_leads, each_once
from kafkad.controller.topics import invalid_name
from kafkad.log.log import Log
from kafkad.metadata.image import INTERNAL_TOPICS
from kafkad.protocol import errors, messages, wide
from kafkad.protocol.errors import KafkaError
from kafkad.replication.low_watermarks import LowWatermarks

UNDEFINED_EPOCH = -1
UNDEFINED_OFFSET = -1


def delete_records(services: Services, context: RequestContext, request: Any) -> Any:
    """Move log starts in memory, and answer when they are written (`LogDirs.keep_log_starts`) and every live
    replica has moved its own (`replication.low_watermarks`), or REQUEST_TIMED_OUT."""
    response = messages.DeleteRecordsResponse()
    moved: dict[Log, list[Any]] = {}  # log -> (the partition's answer, the low watermark to wait for)
    deadline = asyncio.get_running_loop().time() + max(request.timeout_ms, 0) / 1000
    wanted, twice = yield from each_once(request.topics)
    for name, partitions in wanted.items():
        answer = messages.DeleteRecordsResponse.Topics(name=name)
        response.topics.append(answer)
        for asked in partitions.values():
            done = messages.DeleteRecordsResponse.Topics.Partitions(
                partition_index=asked.partition_index, low_watermark=-1
            )
            answer.partitions.append(done)
            try:
                if name in INTERNAL_TOPICS:
                    raise KafkaError(errors.INVALID_TOPIC_EXCEPTION)
                log = services.partitions.get(name, asked.partition_index)
                check_leads(log)
                before = log.high_watermark if asked.offset == -1 else asked.offset
                done.low_watermark = log.delete_records(asked.offset)
                moved.setdefault(log, []).append((done, before))
            except KafkaError as trouble:
                done.error_code = code_of(trouble)
            yield
        yield from wide.empty(partitions)
    yield from wide.empty(wanted, twice)
    return _when_kept(services, response, moved, deadline) if moved else response


async def _when_kept(services: Services, response: Any, moved: dict[Log, list[Any]], deadline: float) -> Any:
    kept: asyncio.Future[dict[Log, OSError]] = asyncio.get_running_loop().create_future()

    def end(failed: dict[Log, OSError]) -> None:
        if not kept.done():
            kept.set_result(failed)

    services.log_dirs.keep_log_starts(moved, end)
    for log in await kept:
        for done, _ in moved.pop(log):
            done.error_code, done.low_watermark = errors.KAFKA_STORAGE_ERROR, -1
    if services.low_watermarks is not None:
        await _when_followed(services.low_watermarks, moved, deadline)
    return response


async def _when_followed(lows: LowWatermarks, moved: dict[Log, list[Any]], deadline: float) -> None:
    none_left = asyncio.Event()
    waiting: dict[Callable[[int, int], None], Log] = {}  # callback -> log

    def wait(log: Log, done: Any, before: int) -> None:
        def reached(code: int, low: int) -> None:
            done.error_code, done.low_watermark = code, low
            del waiting[reached]
            if not waiting:
                none_left.set()

        done.error_code = errors.REQUEST_TIMED_OUT
        waiting[reached] = log
        lows.wait(log, before, reached)

    for log, asked in moved.items():
        for done, before in asked:
            done.low_watermark = lows.of(log)
            if done.low_watermark < before:
                wait(log, done, before)
    try:
        async with asyncio.timeout_at(deadline):
            while waiting:
                none_left.clear()
                await none_left.wait()
    except TimeoutError:
        pass
    finally:
        for reached, log in waiting.items():
            lows.forget(log, reached)


def offset_for_leader_epoch(services: Services, context: RequestContext, request: Any) -> Any:
    """Return where an epoch ended: consumers use it after a leader change to find a log truncation
    (KIP-320)."""
    response = messages.OffsetForLeaderEpochResponse()
    for topic in request.topics:
        answer = messages.OffsetForLeaderEpochResponse.Topics(topic=topic.topic)
        response.topics.append(answer)
        for asked in topic.partitions:
            found = messages.OffsetForLeaderEpochResponse.Topics.Partitions(
                partition=asked.partition, leader_epoch=UNDEFINED_EPOCH, end_offset=UNDEFINED_OFFSET
            )
            answer.partitions.append(found)
            try:
                log = services.partitions.get(topic.topic, asked.partition)
                check_leader_epoch(log, asked.current_leader_epoch)
                check_leads(log)
                found.leader_epoch, found.end_offset = log.end_offset_for_epoch(asked.leader_epoch)
            except KafkaError as trouble:
                found.error_code = code_of(trouble)
            yield
    return response


def describe_producers(services: Services, context: RequestContext, request: Any) -> Any:
    """Describe the idempotent producers that a partition remembers."""
    response = messages.DescribeProducersResponse()
    for topic in request.topics:
        answer = messages.DescribeProducersResponse.Topics(name=topic.name)
        response.topics.append(answer)
        for index in topic.partition_indexes:
            found = messages.DescribeProducersResponse.Topics.Partitions(partition_index=index)
            answer.partitions.append(found)
            try:
                if invalid_name(topic.name) is not None:
                    raise KafkaError(errors.INVALID_TOPIC_EXCEPTION)
                log = services.partitions.get(topic.name, index)
            except KafkaError as trouble:
                found.error_code = code_of(trouble)
                found.error_message = trouble.message
                yield
                continue
            for row in log.active_producers():
                producer_id, epoch, sequence, _, _, timestamp, coordinator_epoch, start = row
                found.active_producers.append(
                    messages.DescribeProducersResponse.Topics.Partitions.ActiveProducers(
                        producer_id=producer_id,
                        producer_epoch=epoch,
                        last_sequence=sequence,
                        last_timestamp=timestamp,
                        coordinator_epoch=coordinator_epoch,
                        current_txn_start_offset=start,
                    )
                )
                yield
            yield
    return response

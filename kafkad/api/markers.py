"""WriteTxnMarkers (key 27), v0-2: a transaction coordinator ends transactions in partitions.

Clients send it, too: `kafka-transactions.sh abort` ends a transaction that its coordinator has forgotten. v2
has the transaction.version under which the marker was written (KIP-1228); v0 and v1 mean the older rule.

The answer waits until the high watermark has passed each marker, like acks=all.
"""

import asyncio
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import Any

from kafkad.api.context import RequestContext, Services, code_of
from kafkad.protocol import errors, messages, wide
from kafkad.protocol.errors import KafkaError

OFFSETS_TOPIC = "__consumer_offsets"

# Codes of a group coordinator that a transaction coordinator does not expect: let it retry.
NOT_READY = frozenset(
    {errors.COORDINATOR_NOT_AVAILABLE, errors.COORDINATOR_LOAD_IN_PROGRESS, errors.NOT_COORDINATOR}
)

Codes = dict[int, dict[str, dict[int, int]]]  # producer id -> topic -> partition -> error code


def write_marker(
    services: Services, topic: str, index: int, marker: Any, done: Callable[[int], object]
) -> None:
    """End a transaction in a partition of this worker. `marker` has the fields of the request's markers.
    `done(error code)` is called once, possibly before this returns, when the marker is as durable as with
    acks=all."""
    if topic == OFFSETS_TOPIC:
        services.groups.complete_transaction(
            index,
            marker.producer_id,
            marker.producer_epoch,
            marker.coordinator_epoch,
            commit=marker.transaction_result,
            version=marker.transaction_version,
            done=lambda code: done(errors.NOT_LEADER_OR_FOLLOWER if code in NOT_READY else code),
        )
        return
    try:
        log = services.partitions.get(topic, index)
        offset = log.append_marker(
            marker.producer_id,
            marker.producer_epoch,
            marker.coordinator_epoch,
            commit=marker.transaction_result,
            version=marker.transaction_version,
            now_ms=services.clock.now_ms(),
        )
    except KafkaError as trouble:
        done(trouble.code)
        return
    if log.high_watermark > offset:
        done(errors.NONE)
    else:

        def reached(trouble: BaseException | None) -> None:
            done(errors.NONE if trouble is None else code_of(trouble))

        log.await_high_watermark(offset + 1, reached)


def write_txn_markers(services: Services, context: RequestContext, request: Any) -> Any:
    codes: Codes = {}
    waiting = Waiting()
    for marker in request.markers:
        yield
        for topic in marker.topics:
            yield
            if not topic.partition_indexes:
                continue  # not in Kafka's answer, either
            its = codes.setdefault(marker.producer_id, {}).setdefault(topic.name, {})
            for index in topic.partition_indexes:
                yield
                if not services.partitions.has_replica(topic.name, index):
                    its[index] = errors.UNKNOWN_TOPIC_OR_PARTITION  # as in Kafka: the coordinator tries again
                    continue
                waiting.count += 1
                its[index] = errors.REQUEST_TIMED_OUT
                write_marker(services, topic.name, index, marker, waiting.note(its, index))
    if waiting.count:
        return _when_durable(services, codes, waiting)
    return (yield from _response(codes))


class Waiting:
    """Counts the markers that are not durable yet."""

    __slots__ = ("count", "ended")

    def __init__(self) -> None:
        self.count = 0
        self.ended: asyncio.Future[None] | None = None

    def note(self, its: dict[int, int], index: int) -> Callable[[int], None]:
        def done(code: int) -> None:
            its[index] = code
            self.count -= 1
            if self.count == 0 and self.ended is not None and not self.ended.done():
                self.ended.set_result(None)

        return done


async def _when_durable(services: Services, codes: Codes, waiting: Waiting) -> Any:
    if waiting.count:
        waiting.ended = asyncio.get_running_loop().create_future()
        with suppress(TimeoutError):
            await asyncio.wait_for(waiting.ended, services.config.request_timeout_ms / 1000)
    return _response(codes)


def _response(codes: Codes) -> Generator[None, None, Any]:
    cls = messages.WriteTxnMarkersResponse
    response = cls()
    for producer_id, topics in codes.items():
        marker = cls.Markers(producer_id=producer_id)
        response.markers.append(marker)
        for name, partitions in topics.items():
            topic = cls.Markers.Topics(name=name)
            marker.topics.append(topic)
            for index, code in partitions.items():
                topic.partitions.append(cls.Markers.Topics.Partitions(partition_index=index, error_code=code))
                yield
            yield from wide.empty(partitions)
        yield from wide.empty(topics)
    yield from wide.empty(codes)
    return response

"""ListOffsets (key 2), v0-11.   v0 several offsets (`_offsets_before`). v1 one offset. v2 isolation
level. v4 leader epochs. v6 flexible. v7 max timestamp (KIP-734). v8 earliest local (KIP-405). v9 last tiered
(KIP-1005). v10 timeout. v11 earliest pending upload (KIP-1023). A follower answers only a debugging consumer
(replica id -2).

Latest is the high watermark, or the last stable offset under read_committed (for followers: the log's end).
These and the log start are in memory, because Spark asks thousands of times per second. With several workers
they are in the shared row, and any worker answers (`in_rows`); the owner answers timestamps, and all of v0. A
timestamp is looked up through the time index, and the result is exact within its batch. Nothing is tiered
yet: earliest local is earliest, last tiered is -1.
"""

from collections.abc import Generator
from typing import Any

from kafkad.api.context import RequestContext, Services, code_of
from kafkad.protocol import errors, messages, wide
from kafkad.protocol.errors import KafkaError

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LAST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6

IN_ROWS = frozenset({LATEST, EARLIEST, EARLIEST_LOCAL, LAST_TIERED, EARLIEST_PENDING_UPLOAD})

LOOKED_AT = 64  # partitions per step
LEADER_EPOCH_SINCE = 4
OFFSET_NOT_AVAILABLE_SINCE = 5
CONSUMER = -1
DEBUGGING_CONSUMER = -2

# the first version with each special timestamp; older requests are refused (UNSUPPORTED_VERSION)
SPECIAL_SINCE = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LAST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}


def list_offsets(services: Services, context: RequestContext, request: Any) -> Generator[None, None, Any]:
    """Answer in steps: a look-up by time decompresses the batch up to its record."""
    response = messages.ListOffsetsResponse()
    wanted, duplicates = yield from each_once(request.topics)
    for name, partitions in wanted.items():
        answer = messages.ListOffsetsResponse.Topics(name=name)
        response.topics.append(answer)
        for asked in partitions.values():
            found = messages.ListOffsetsResponse.Topics.Partitions(partition_index=asked.partition_index)
            found.timestamp, found.offset = -1, -1
            answer.partitions.append(found)
            if (name, asked.partition_index) in duplicates:
                found.error_code = errors.INVALID_REQUEST
                yield
                continue
            try:
                yield from _look_up(services, context, request, name, asked, found)
            except KafkaError as trouble:
                found.error_code = code_of(trouble)
            if context.version < LEADER_EPOCH_SINCE:
                found.leader_epoch = -1
            yield
        yield from wide.empty(partitions)
    yield from wide.empty(wanted, duplicates)
    return response


def each_once(
    topics: Any,
) -> Generator[None, None, tuple[dict[str, dict[int, Any]], set[tuple[str, int]]]]:
    """Return, in steps, topic -> partition index -> its element, and the partitions that are named twice, of
    which the last counts. A topic without partitions is left out, as in Kafka's answers."""
    found: dict[str, dict[int, Any]] = {}
    twice: set[tuple[str, int]] = set()
    count = 0
    for topic in topics:
        if topic.partitions:
            its = found.setdefault(topic.name, {})
        for asked in topic.partitions:
            index = asked.partition_index
            if index in its:
                twice.add((topic.name, index))
            its[index] = asked
            count += 1
            if count % LOOKED_AT == 0:
                yield
    return found, twice


def in_rows(services: Services, request: Any) -> Generator[None, None, bool]:
    """Return, in steps, whether this worker can answer everything from its own partitions and the rows of
    others. A debugging consumer may ask a follower, whose row says nothing to clients."""
    if request.replica_id == DEBUGGING_CONSUMER:
        return False
    partitions = services.partitions
    count = 0
    for topic in request.topics:
        for asked in topic.partitions:
            if asked.timestamp not in IN_ROWS or (
                partitions.find(topic.name, asked.partition_index) is None
                and partitions.reader(topic.name, asked.partition_index) is None
            ):
                return False
            count += 1
            if count % LOOKED_AT == 0:
                yield
    return True


def _look_up(
    services: Services, context: RequestContext, request: Any, topic: str, asked: Any, found: Any
) -> Generator[None, None, None]:
    timestamp = asked.timestamp
    if timestamp < EARLIEST_PENDING_UPLOAD or context.version < SPECIAL_SINCE.get(timestamp, 0):
        raise KafkaError(errors.UNSUPPORTED_VERSION)
    log: Any = services.partitions.find(topic, asked.partition_index)  # or a reader, which has IN_ROWS only
    is_reader = False
    if log is None:
        log = services.partitions.reader(topic, asked.partition_index) if timestamp in IN_ROWS else None
        is_reader = log is not None
        if is_reader:
            try:
                log.refresh()
            except KafkaError:  # NOT_LEADER_OR_FOLLOWER: an error of the epoch comes first, as in Kafka
                check_leader_epoch(log, asked.current_leader_epoch)
                raise
        else:
            log = services.partitions.get(topic, asked.partition_index)
    check_leader_epoch(log, asked.current_leader_epoch)
    if not is_reader and request.replica_id != DEBUGGING_CONSUMER:
        check_leads(log)
    if context.version == 0:
        now_ms = services.clock.now_ms()
        found.old_style_offsets = yield from _offsets_before(log, asked, request.replica_id, now_ms)
        return
    isolation = request.isolation_level if request.replica_id == CONSUMER else 0

    if timestamp == LATEST:
        if request.replica_id != CONSUMER:
            found.offset, found.leader_epoch = log.native.end_offset, log.native.leader_epoch
            return
        _refuse_if_behind(context, log)
        _, found.offset, found.leader_epoch = log.latest(isolation)
    elif timestamp in (EARLIEST, EARLIEST_LOCAL):
        _, found.offset, found.leader_epoch = log.earliest()
    elif timestamp in (LAST_TIERED, EARLIEST_PENDING_UPLOAD):
        return  # nothing is tiered: -1, -1
    else:
        if timestamp == MAX_TIMESTAMP:
            hit = yield from log.seek_max_timestamp(isolation)
        else:
            hit = yield from log.seek_timestamp(timestamp, isolation)
        if hit is None and request.replica_id == CONSUMER:
            _refuse_if_behind(context, log)
        _fill(found, hit)


def _refuse_if_behind(context: RequestContext, log: Any) -> None:
    """KIP-207: a new leader's high watermark may be lower than one that clients have seen. Until it has
    reached the end at which the leader began, refuse offsets that would go back."""
    if log.native.epoch_start > log.native.high_watermark:
        since = context.version >= OFFSET_NOT_AVAILABLE_SINCE
        raise KafkaError(errors.OFFSET_NOT_AVAILABLE if since else errors.LEADER_NOT_AVAILABLE)


def _offsets_before(log: Any, asked: Any, replica_id: int, now_ms: int) -> Generator[None, None, list[int]]:
    """Return where segments begin, newest first, from the last one not written after the timestamp on
    (UnifiedLog.legacyFetchOffsetsBefore): clients before 0.10.1 had no other way to find an offset by time.
    The end of the log counts as the beginning of one more segment, written now."""
    if asked.max_num_offsets < 0:
        raise KafkaError(errors.UNKNOWN_SERVER_ERROR)  # as in Kafka, which fails
    segments = log.segments
    begins = [max(base, log.log_start_offset) for base, _ in segments]
    if segments[-1][1] > 0:
        begins.append(log.end_offset)
    last = len(begins) - 1
    if asked.timestamp == EARLIEST:
        last = 0
    elif asked.timestamp != LATEST:
        while (
            last >= 0
            and (now_ms if last == len(segments) else log.written_ms(segments[last][0])) > asked.timestamp
        ):
            last -= 1
            if last % LOOKED_AT == 0:
                yield
    offsets = begins[max(0, last + 1 - asked.max_num_offsets) : last + 1][::-1]
    visible = log.high_watermark
    if replica_id == CONSUMER and offsets and offsets[0] > visible:
        offsets = [visible, *(offset for offset in offsets if offset <= visible)]
    return offsets


def _fill(found: Any, hit: tuple[int, int, int] | None) -> None:
    if hit is not None:
        found.timestamp, found.offset, found.leader_epoch = hit


def check_leads(log: Any) -> None:
    """Refuse a follower's log, which may end before the leader's and has an older high watermark."""
    if not log.native.open:
        raise KafkaError(errors.KAFKA_STORAGE_ERROR if log.native.failure else errors.NOT_LEADER_OR_FOLLOWER)


def check_leader_epoch(log: Any, current_leader_epoch: int) -> None:
    """Check as KIP-320: an epoch older than ours is fenced, a newer one is not known here yet; -1: no
    check."""
    if current_leader_epoch < 0 or current_leader_epoch == log.leader_epoch:
        return
    older = current_leader_epoch < log.leader_epoch
    raise KafkaError(errors.FENCED_LEADER_EPOCH if older else errors.UNKNOWN_LEADER_EPOCH)

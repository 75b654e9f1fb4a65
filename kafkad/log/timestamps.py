"""Searches of a log by record timestamp, for ListOffsets.

Each step of a search reads one segment's largest timestamp, or one batch. The search is a generator, so that
a worker can serve others between two steps. The log may change in between: after segments were deleted or
cleaned, the search begins again; if the log was closed, it raises NOT_LEADER_OR_FOLLOWER."""

import struct
from collections.abc import Callable, Generator
from typing import Any, NamedTuple, Protocol

from kafkad._native.log.partition import Partition
from kafkad.protocol import records
from kafkad.protocol.errors import NOT_LEADER_OR_FOLLOWER, KafkaError

SEGMENTS_AT_A_TIME = 16  # for the largest timestamp; each may have a time index to open
_INT = struct.Struct(">i")


class TimestampOffset(NamedTuple):
    timestamp: int  # -1 for earliest and latest
    offset: int
    leader_epoch: int  # -1 when unknown


Search = Generator[None, None, TimestampOffset | None]


class Searched(Protocol):
    """The part of `log.Log` that a search needs."""

    @property
    def native(self) -> Partition: ...
    @property
    def closed(self) -> bool: ...
    @property
    def log_start_offset(self) -> int: ...
    @property
    def end_offset(self) -> int: ...

    def io(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Call; disk errors become KafkaError."""


def finish(search: Search) -> TimestampOffset | None:
    """Run a search to its end and return its result."""
    while True:
        try:
            next(search)
        except StopIteration as end:
            found: TimestampOffset | None = end.value
            return found


def seek(log: Searched, timestamp: int, bound: int) -> Search:
    """Find the first record at or after `timestamp` and below the offset `bound`."""
    native = log.native
    known, at, position = (native.first_base_offset, native.generation), 0, -1
    while at < native.count:
        if log.io(native.segment_max_timestamp, at)[0] < timestamp:
            at += 1
        else:
            start = log.log_start_offset
            found = log.io(native.batch_by_timestamp, at, timestamp, start, position)
            if found is None:
                at, position = at + 1, -1
            else:
                position, size = found
                data = log.io(native.read_batch, at, position, size)
                record = yield from records.seek_timestamp(data, timestamp, start)
                if record is not None:
                    if record[1] >= bound:
                        return None
                    return TimestampOffset(record[0], record[1], _leader_epoch(data))
        yield
        if log.closed:
            raise KafkaError(NOT_LEADER_OR_FOLLOWER)
        moment = native.first_base_offset, native.generation
        if moment != known:  # segments were deleted or cleaned: the numbers of the others changed
            known, at, position = moment, 0, -1
    return None


def seek_max(log: Searched, bound: int) -> Search:
    """Find the first record that has the log's largest timestamp. None if that is not below the offset
    `bound`: as in Kafka, no other record takes its place."""
    native = log.native
    known, at = (native.first_base_offset, native.generation), 0
    timestamp = offset = best = -1
    while at < native.count:
        largest, last = log.io(native.segment_max_timestamp, at)
        if largest > timestamp:
            timestamp, offset, best = largest, last, at
        at += 1
        if at % SEGMENTS_AT_A_TIME == 0:
            yield
            if log.closed:
                raise KafkaError(NOT_LEADER_OR_FOLLOWER)
            moment = native.first_base_offset, native.generation
            if moment != known:
                known, at, timestamp = moment, 0, -1
    if timestamp < 0:
        return None
    found = log.io(native.batch_by_timestamp, best, timestamp, min(offset, log.end_offset - 1), -1)
    if found is None:
        return None
    data = log.io(native.read_batch, best, *found)
    record = yield from records.seek_max_timestamp(data)
    if record is None or record[1] >= bound:
        return None
    return TimestampOffset(record[0], record[1], _leader_epoch(data))


def _leader_epoch(batch: bytes) -> int:
    return _INT.unpack_from(batch, 12)[0] if batch[16] >= 2 else -1

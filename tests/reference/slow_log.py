"""A log as a list: slow twin of `_native/log/partition`, with Kafka's rules for rolling, indexes and reads.

It takes batches in the order in which they were appended and says what must stand in which file."""

from dataclasses import dataclass, field

from kafkad.protocol.records import read_batches


@dataclass
class SlowBatch:
    base: int
    last: int
    max_timestamp: int
    data: bytes
    records: list[tuple[int, int]]  # (timestamp, offset)


@dataclass
class SlowSegment:
    base: int
    batches: list[SlowBatch] = field(default_factory=list)
    offset_entries: list[tuple[int, int]] = field(default_factory=list)
    time_entries: list[tuple[int, int]] = field(default_factory=list)
    since_index: int = 0
    largest: tuple[int, int] = (-1, 0)

    @property
    def data(self) -> bytes:
        return b"".join(batch.data for batch in self.batches)

    def final_time_entries(self) -> list[tuple[int, int]]:
        """With the one that rolling or closing adds."""
        last = self.time_entries[-1][0] if self.time_entries else -1
        return self.time_entries + ([self.largest] if self.largest[0] > last else [])


def cut(batches: list[bytes], max_bytes: int) -> bytes:
    """Of batches whose first fits: as many bytes as may be; but the first alone when it takes half of them or
    more and the second does not fit."""
    if len(batches) > 1 and len(batches[0]) * 2 >= max_bytes < len(batches[0]) + len(batches[1]):
        return batches[0]
    return b"".join(batches)[:max_bytes]


class SlowLog:
    def __init__(self, *, segment_bytes: int, index_interval: int, index_bytes: int, segment_ms: int) -> None:
        self.segment_bytes = segment_bytes
        self.index_interval = index_interval
        self.index_bytes = index_bytes
        self.segment_ms = segment_ms
        self.segments = [SlowSegment(0)]
        self.end = 0

    def append(self, stored: bytes) -> None:
        """A batch as it was stored, offsets and all."""
        [header] = read_batches(stored)
        batch = SlowBatch(
            header.base_offset,
            header.last_offset,
            header.max_timestamp,
            stored,
            [(record.timestamp, record.offset) for record in header.records()],
        )
        assert batch.base == self.end
        active = self.segments[-1]
        if self._rolls(active, batch):
            active = SlowSegment(batch.base)
            self.segments.append(active)
        position = len(active.data)
        if batch.max_timestamp > active.largest[0]:
            active.largest = (batch.max_timestamp, batch.last)
        if active.since_index > self.index_interval:
            active.offset_entries.append((batch.last, position))
            if active.largest[0] > (active.time_entries[-1][0] if active.time_entries else -1):
                active.time_entries.append(active.largest)
            active.since_index = 0
        active.since_index += len(stored)
        active.batches.append(batch)
        self.end = batch.last + 1

    def _rolls(self, active: SlowSegment, batch: SlowBatch) -> bool:
        if not active.batches:
            return False
        first = active.batches[0].max_timestamp
        return (
            len(active.data) > self.segment_bytes - len(batch.data)
            or batch.max_timestamp - first > self.segment_ms
            or len(active.offset_entries) >= self.index_bytes // 8
            or len(active.time_entries) >= self.index_bytes // 12 - 1
        )

    def read(self, offset: int, max_bytes: int, at_least_one: bool) -> bytes:
        """Up to LEO; within one segment, cut where the bytes end."""
        for segment in self.segments:
            after = [batch for batch in segment.batches if batch.last >= offset]
            if after:
                if len(after[0].data) > max_bytes:
                    return after[0].data if at_least_one else b""
                return cut([batch.data for batch in after], max_bytes)
        return b""

    def offset_for_timestamp(self, timestamp: int, start: int) -> tuple[int, int] | None:
        for segment in self.segments:
            for batch in segment.batches:
                for record in batch.records:
                    if record[0] >= timestamp and record[1] >= start:
                        return record
        return None

    def max_timestamp(self) -> int:
        return max(
            (batch.max_timestamp for segment in self.segments for batch in segment.batches), default=-1
        )

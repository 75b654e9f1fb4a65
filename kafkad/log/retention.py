"""Which of the oldest segments may be deleted (UnifiedLog.deleteOldSegments): by log start, by size, by age.

    log start   all its offsets are below the log start offset (DeleteRecords)
    size        without it, at least retention.bytes remain
    age         its largest record timestamp is older than retention.ms, whatever the order of timestamps

Segments are deleted from the oldest on, never beyond the high watermark. If nothing of the active segment is
kept, it is deleted too, after a roll; an empty active one stays. Without `delete` in cleanup.policy only the
log start applies."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(slots=True, frozen=True)
class SegmentFacts:
    base_offset: int
    next_offset: int  # base offset of the next segment, or LEO
    size: int
    largest_timestamp: int  # of its records, or the file's modification time


def deletable_count(segments: Iterable[SegmentFacts], **limits: int) -> int:
    """Return how many of the oldest segments may be deleted; `limits` are those of `deletable_counts`."""
    count = 0
    for count in deletable_counts(segments, **limits):  # noqa: B007
        pass
    return count


def deletable_counts(
    segments: Iterable[SegmentFacts],
    *,
    total_size: int,
    segment_count: int,
    now_ms: int,
    high_watermark: int,
    log_start_offset: int,
    retention_ms: int,
    retention_bytes: int,
) -> Iterator[int]:
    """Yield 1, 2 and so on, for as many of the oldest segments as may be deleted. Negative limits mean none.

    `segments` is read up to the first segment that stays, and no further."""
    excess = total_size - retention_bytes
    for at, segment in enumerate(segments):
        is_last = at == segment_count - 1
        if segment.next_offset > high_watermark or (is_last and segment.size == 0):
            break
        below_start = not is_last and segment.next_offset <= log_start_offset
        too_large = retention_bytes >= 0 and excess - segment.size >= 0
        too_old = retention_ms >= 0 and now_ms - segment.largest_timestamp > retention_ms
        if not (below_start or too_large or too_old):
            break
        excess -= segment.size
        yield at + 1

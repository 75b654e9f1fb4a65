"""Which log is cleaned next, and how far (Kafka's LogCleanerManager.grabFilthiestCompactedLog).

    clean     below the offset that the last cleaning reached (cleaner-offset-checkpoint)
    dirty     from there on, in segments that end below the last stable offset and the recovery point, are not
              active, and have no record younger than min.compaction.lag.ms

A log is cleaned if the dirty part is more than min.cleanable.dirty.ratio of both parts, or if its oldest
dirty segment is older than max.compaction.lag.ms. The dirtiest log comes first.

Kafka does not have the bound by the recovery point. With it, recovery after a kill walks only segments that
were never cleaned, so a gap that it finds there does not come from the cleaner."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kafkad.log.flusher import LONG_MAX
from kafkad.protocol.records import HEADER_SIZE

if TYPE_CHECKING:
    from kafkad.log.log import Log

MAX_TIMESTAMP_AT: Final = 35  # in a batch of magic 2
MAGIC_AT: Final = 16


@dataclass(frozen=True, slots=True)
class Choice:
    """A log that needs cleaning. `segments`: (base offset, size) from the first one up to
    `first_uncleanable`."""

    log: "Log"
    segments: tuple[tuple[int, int], ...]
    first_dirty: int
    first_uncleanable: int
    dirty_ratio: float


def first_dirty_offset(log: "Log") -> int:
    """Return where the dirty part begins. A checkpoint outside of the log is ignored."""
    offset = log.cleaned_below
    return offset if log.log_start_offset <= offset <= log.end_offset else log.log_start_offset


def choice_of(log: "Log", now_ms: int) -> Choice | None:
    """Return what must be cleaned of a log; None: nothing, or not yet. Raises KafkaError."""
    config = log.config
    if "compact" not in config.cleanup_policy or log.native.count < 2 or log.closed:
        return None
    rows = log.native.segment_rows()
    dirty = first_dirty_offset(log)
    count = _cleanable_count(log, rows, dirty, now_ms)
    first_uncleanable = rows[count][0]
    if first_uncleanable <= dirty:
        return None
    clean_bytes = sum(size for base, size, _ in rows[:count] if base < dirty)
    first = max(at for at in range(count) if at == 0 or rows[at][0] <= dirty)
    dirty_bytes = sum(size for _, size, _ in rows[first:count])
    if dirty_bytes == 0:
        return None
    ratio = dirty_bytes / (clean_bytes + dirty_bytes)
    if ratio <= config.min_cleanable_dirty_ratio and not _is_overdue(log, rows, first, now_ms):
        return None
    segments = tuple((base, size) for base, size, _ in rows[:count])
    return Choice(log, segments, dirty, first_uncleanable, ratio)


def _cleanable_count(log: "Log", rows: list[tuple[int, int, int]], dirty: int, now_ms: int) -> int:
    """Return how many of the oldest segments may be cleaned."""
    limit = min(log.last_stable_offset, log.recovery_point)
    count = 0
    while count + 1 < len(rows) and rows[count + 1][0] <= limit:
        count += 1
    lag_ms = log.config.min_compaction_lag_ms
    if lag_ms > 0:
        for at in range(count):
            behind = rows[at + 1][0]
            if behind > dirty and log.newest_ms(at, rows[at][0]) > now_ms - lag_ms:
                return at
    return count


def _is_overdue(log: "Log", rows: list[tuple[int, int, int]], first: int, now_ms: int) -> bool:
    """Return whether a dirty segment's first batch is older than max.compaction.lag.ms."""
    lag_ms = log.config.max_compaction_lag_ms
    if lag_ms >= LONG_MAX:
        return False
    for at in range(first, len(rows) - 1):
        if rows[at][1] >= HEADER_SIZE:
            header = log.native.read_batch(at, 0, HEADER_SIZE)
            timestamp = int.from_bytes(header[MAX_TIMESTAMP_AT : MAX_TIMESTAMP_AT + 8], "big", signed=True)
            if header[MAGIC_AT] >= 2 and 0 < timestamp < now_ms - lag_ms:
                return True
    return False

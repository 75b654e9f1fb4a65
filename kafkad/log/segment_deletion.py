"""Deletion of a log's oldest segments: by retention, and below the log start that DeleteRecords moved.

The segments leave the log and their files are renamed on the loop; the files are unlinked later, in a thread.

A topic that asks for flushes (flush.messages) also asks that the log start never goes back, not even when the
power goes. So its new log start is in the checkpoint file, synced, before any client sees it and before any
file is renamed. A thread writes it (`log_starts`); the deletion goes on when it is there.

Beware: between the two steps the log may be closed, deleted or truncated."""

import logging
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from kafkad.log.filenames import DELETED, SEGMENT_SUFFIXES, SNAPSHOT, segment_file
from kafkad.log.flusher import LONG_MAX
from kafkad.log.removal import unlink_later
from kafkad.log.retention import SegmentFacts, deletable_count
from kafkad.log.shortages import report
from kafkad.protocol.errors import KafkaError

if TYPE_CHECKING:
    from kafkad.log.log import Log

logger = logging.getLogger("kafkad.log")

Row = tuple[int, int, int]  # of Partition.segment_rows: base offset, size, modification time
Kept = Callable[[OSError | None], None]


def delete_due(log: "Log", now_ms: int) -> int:
    """Delete the oldest segments that may go. Returns how many; with flushes they may go a moment later.
    Raises KafkaError; what is left over goes next time."""
    native = log.native
    if log.closed or log.next_start >= 0 or (native.count == 1 and native.active_size == 0):
        return 0
    rows = native.segment_rows()
    count = _due(log, rows, now_ms)
    if count == len(rows):
        try:
            log.roll(now_ms)
        except KafkaError:
            if log.closed or count == 1:
                raise
            count -= 1  # a full disk: the other segments make room for a new one
    if count == 0:
        return 0
    start = _next_bases(log, rows)[count - 1]
    keep = log.keep_log_start
    if start > log.log_start_offset and log.config.flush_messages < LONG_MAX and keep is not None:
        log.next_start = start
        keep(log, lambda error: _kept(log, start, error))
    else:
        _delete_below(log, start)
    return count


def _due(log: "Log", rows: list[Row], now_ms: int) -> int:
    config = log.config
    by_policy = "delete" in config.cleanup_policy
    retention_ms = config.retention_ms if by_policy else -1

    def facts() -> Iterator[SegmentFacts]:
        # Lazy: reading a timestamp may open a file, and the first segment that stays ends the search.
        for at, ((base, size, created_ms), next_base) in enumerate(
            zip(rows, _next_bases(log, rows), strict=True)
        ):
            largest = log.largest_timestamp(at) if retention_ms >= 0 else 0
            yield SegmentFacts(base, next_base, size, largest if largest >= 0 else created_ms)

    return deletable_count(
        facts(),
        total_size=sum(size for _, size, _ in rows),
        segment_count=len(rows),
        now_ms=now_ms,
        high_watermark=log.high_watermark,
        log_start_offset=log.log_start_offset,
        retention_ms=retention_ms,
        retention_bytes=config.retention_bytes if by_policy else -1,
    )


def _next_bases(log: "Log", rows: list[Row]) -> list[int]:
    """Where each segment of `rows` ends."""
    return [*(base for base, _, _ in rows[1:]), log.end_offset]


def _kept(log: "Log", start: int, error: OSError | None) -> None:
    """The checkpoint has the new log start, or could not be written: then the next retention tries again."""
    log.next_start = -1
    if error is not None:
        report(log.directory, "writing the log start", error)
    elif not log.closed and start <= log.end_offset:
        _delete_below(log, start)


def _delete_below(log: "Log", start: int) -> None:
    if start > log.log_start_offset:
        log.set_log_start(start)
    bases = [base for base, _, _ in log.native.segment_rows()]
    count = sum(1 for next_base in bases[1:] if next_base <= start)
    if count == 0:
        return
    _remove(log, count)
    log.forget_epochs_below(start)
    log.sync_later(log.directory)
    logger.info("%s-%d: %d segments deleted, log start %d", log.topic, log.partition, count, start)


def _remove(log: "Log", count: int) -> None:
    # Renamed at once, unlinked later: a reader in another process may be about to open them.
    gone: list[str] = []
    stuck: list[str] = []
    trouble = None
    for base in log.native.drop_segments(0, count):
        for suffix in (*SEGMENT_SUFFIXES, SNAPSHOT):
            path = segment_file(log.directory, base, suffix)
            try:
                os.replace(path, path + DELETED)
            except FileNotFoundError:
                continue
            except OSError as e:
                trouble = e
                stuck.append(path)
                continue
            gone.append(path + DELETED)
    unlink_later(log.scheduler, log.config.file_delete_delay_ms, gone)
    if trouble is not None:
        # The partition knows these no more, and a start that found them would bring the records back.
        unlink_later(log.scheduler, 0, stuck)
        log.refuse(trouble)

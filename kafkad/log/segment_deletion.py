"""Deletion of a log's oldest segments: by retention, and below the log start that DeleteRecords moved.

The segments are dropped from the log and their files are renamed on the loop, a few segments in each step. A
thread unlinks the files later.

If a topic is configured to flush (flush.messages), its log start must never go back either, not even after a
power loss. So its new log start is in the checkpoint file, synced, before any client sees it and before any
file is renamed. A thread writes it (`log_starts`), and then the deletion continues.

Beware: between two steps the log may be closed, deleted or truncated."""

import logging
import os
from collections.abc import Callable, Generator, Iterator
from itertools import pairwise

from kafkad.log.filenames import DELETED, SEGMENT_SUFFIXES, SNAPSHOT, segment_file
from kafkad.log.flusher import LONG_MAX
from kafkad.log.owner import Owner
from kafkad.log.removal import unlink_later
from kafkad.log.retention import SegmentFacts, deletable_counts
from kafkad.log.shortages import report
from kafkad.protocol.errors import KafkaError

logger = logging.getLogger("kafkad.log")

Row = tuple[int, int, int]  # of Partition.segment_rows: base offset, size, creation time
Kept = Callable[[OSError | None], None]
Steps = Generator[None, None, int]

SEGMENTS_AT_A_TIME = 8  # each of which has up to five files to rename


def delete_due(log: Owner, now_ms: int) -> int:
    """Delete the oldest segments that may be deleted, all of them now. Return how many; with flushes they may
    be deleted a moment later. Raises KafkaError; the rest is deleted next time."""
    steps = delete_in_steps(log, now_ms)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            count: int = end.value
            return count


def delete_in_steps(log: Owner, now_ms: int) -> Steps:
    """Do `delete_due` with a bounded number of files in each step.

    Between two steps clients append and the log may roll, be truncated, closed or deleted."""
    native = log.native
    if log.closed or log.being_cleaned or log.next_start >= 0:
        return 0
    if native.count == 1 and native.active_size == 0:
        return 0
    rows = native.segment_rows()
    generation = native.generation
    count = 0
    for count in _due(log, rows, now_ms):
        if count == len(rows):
            break  # the active segment: a client may append to it in another step
        yield
        if _has_changed(log, rows, generation):
            return 0
    if count == 0:
        return 0
    start = _next_bases(log, rows)[count - 1]
    if count == len(rows):
        try:
            log.roll(now_ms)
        except KafkaError:
            if log.closed or count == 1:
                raise
            count -= 1  # a full disk: the other segments make room for a new one
            start = rows[-1][0]
    keep = log.keep_log_start
    if start > log.log_start_offset and log.config.flush_messages < LONG_MAX and keep is not None:
        log.next_start = start
        keep(log, lambda error: _kept(log, start, error))
    else:
        yield from _delete_below(log, start)
    return count


def _has_changed(log: Owner, rows: list[Row], generation: int) -> bool:
    """Return whether segments of `rows` were removed or cleaned, so that their numbers have changed."""
    native = log.native
    changed = native.generation != generation or native.first_base_offset != rows[0][0]
    return log.closed or log.being_cleaned or changed or native.count < len(rows)


def _due(log: Owner, rows: list[Row], now_ms: int) -> Iterator[int]:
    """Count the oldest segments that may be deleted, one after the other. The last one of `rows` counts only
    if it is the active one when its turn comes, with its state at that time."""
    config = log.config
    by_policy = "delete" in config.cleanup_policy
    retention_ms = config.retention_ms if by_policy else -1

    def facts() -> Iterator[SegmentFacts]:
        # Lazy: reading a timestamp may open a file, and the first segment that stays ends the search.
        for at, (base, size, _) in enumerate(rows):
            if at + 1 < len(rows):
                next_base = rows[at + 1][0]
            elif log.native.count > len(rows):
                return  # rolled meanwhile: the next retention decides
            else:
                next_base, size = log.end_offset, log.native.active_size
            newest = log.newest_ms(at, base) if retention_ms >= 0 else 0
            yield SegmentFacts(base, next_base, size, newest)

    return deletable_counts(
        facts(),
        total_size=sum(size for _, size, _ in rows),
        segment_count=len(rows),
        now_ms=now_ms,
        high_watermark=log.high_watermark,
        log_start_offset=log.log_start_offset,
        retention_ms=retention_ms,
        retention_bytes=config.retention_bytes if by_policy else -1,
    )


def _next_bases(log: Owner, rows: list[Row]) -> list[int]:
    """Return where each segment of `rows` ends."""
    return [*(base for base, _, _ in rows[1:]), log.end_offset]


def _kept(log: Owner, start: int, error: OSError | None) -> None:
    """The checkpoint has the new log start; or it could not be written, and the next retention tries
    again."""
    log.next_start = -1
    if error is not None:
        report(log.directory, "writing the log start", error)
    elif not log.closed and start <= log.end_offset:
        _go_on(log, _delete_below(log, start))


def _go_on(log: Owner, steps: Iterator[None]) -> None:
    """Do a step now, and the others in later turns of the loop."""
    for _ in steps:
        log.scheduler.call_later(0, lambda: _go_on(log, steps))
        return


def _delete_below(log: Owner, start: int) -> Iterator[None]:
    """Move the log start, then delete the segments below it, some in each step. Segments that remain when the
    log is closed are below the log start, and the next retention deletes them."""
    if start > log.log_start_offset:
        log.set_log_start(start)
    deleted = 0
    generation = log.native.generation
    below = _bases_below(log, start)
    for at in range(0, len(below), SEGMENTS_AT_A_TIME):
        bases = below[at : at + SEGMENTS_AT_A_TIME]
        if deleted:
            yield
            moment = log.native.first_base_offset, log.native.generation
            if log.closed or log.being_cleaned or moment != (bases[0], generation):
                break  # closed, truncated, or being cleaned
        else:
            log.forget_epochs_below(start)
        log.sync_later(log.directory)
        deleted += len(bases)
        _remove(log, len(bases))
    if deleted:
        logger.info("%s-%d: %d segments deleted, log start %d", log.topic, log.partition, deleted, start)


def _bases_below(log: Owner, start: int) -> list[int]:
    """Return the base offsets of the segments that end at `start` or before, without the active one."""
    bases = [base for base, _, _ in log.native.segment_rows()]
    return [base for base, next_base in pairwise(bases) if next_base <= start]


def _remove(log: Owner, count: int) -> None:
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
        # The partition no longer knows these, and a start that found them would bring the records back.
        unlink_later(log.scheduler, 0, stuck)
        log.refuse(trouble)

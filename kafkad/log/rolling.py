"""Rolling a log: the new active segment's files are created now, were created ahead, or already have a batch.

The files come first, then the partition switches to them. If the disk refuses, they are removed and the old
segment stays active. The next flush syncs the names of the new files and the indexes of the old segment: no
append to the new segment is acknowledged as durable before."""

import logging
import os
from contextlib import suppress
from typing import Protocol

from kafkad._native.log.next_segment import NextSegment as Files
from kafkad.log import recovery
from kafkad.log.filenames import INDEX, LOG, TIME_INDEX, TXN_INDEX, segment_file
from kafkad.log.flusher import FATAL, Flusher
from kafkad.log.next_segment import NextSegment
from kafkad.log.owner import Owner
from kafkad.log.producer_state import write_snapshot
from kafkad.log.shortages import report

logger = logging.getLogger("kafkad.log")


class Rolled(Owner, Protocol):
    """The part of `log.Log` that a roll needs."""

    snapshot_offset: int  # of the newest producer snapshot

    @property
    def flusher(self) -> Flusher: ...

    def request_flush(self) -> None: ...


def roll(log: Rolled, ahead: NextSegment, now_ms: int, base: int, files: Files | None) -> bool:
    """Begin a new active segment at `base`: from `files` if given, unless False is returned; otherwise from
    the files of `ahead`, if any. Raises KafkaError."""
    old = log.native.active_base_offset
    assert base > old  # an empty segment is never rolled
    try:
        if files is None:
            ready = ahead.take(base)
        else:
            ready = files if files.link(log.directory, base) else None
        if ready is None:
            recovery.create_segment_files(log.directory, base)
        log.native.roll(base, now_ms, ready)
    except OSError as e:
        # The old segment may extend beyond `base`: a start that finds another one there would hide that part.
        for suffix in (LOG, INDEX, TIME_INDEX):
            with suppress(OSError):
                os.unlink(segment_file(log.directory, base, suffix))
        raise log.refuse(e) from e
    # The new segment accepts appends now: its name must be on disk before they are acknowledged.
    log.flusher.directories.add(log.directory)
    log.flusher.paths.update(index_files(log, old))
    ahead.watch(now_ms)
    _snapshot(log, base)
    logger.debug("%s-%d rolled at %d", log.topic, log.partition, base)
    log.request_flush()
    return ready is not None


def put_in_place(
    log: Rolled, ahead: NextSegment, files: Files, batch: bytearray | memoryview, now_ms: int
) -> bool:
    """Make `files`, which begin with `batch`, the active segment's. False: that failed, and nothing of the
    batch is in the active segment. Raises KafkaError."""
    native = log.native
    try:
        files.stamp(batch, log.end_offset, native.leader_epoch)
    except OSError:
        return False
    if native.active_size > 0:
        return roll(log, ahead, now_ms, log.end_offset, files)
    if not files.replace_log(log.directory, native.active_base_offset):
        return False
    native.take_log(files)
    log.flusher.directories.add(log.directory)
    log.request_flush()
    return True


def index_files(log: Owner, base: int) -> list[str]:
    """Return the index files that a start after a crash reads unchanged, if the segment is no longer
    active."""
    paths = [segment_file(log.directory, base, suffix) for suffix in (INDEX, TIME_INDEX)]
    if log.native.aborted_end > base:
        paths.append(segment_file(log.directory, base, TXN_INDEX))
    return paths


def _snapshot(log: Rolled, base: int) -> None:
    """Write a snapshot. It only saves a later start some reading, so a full disk may do without."""
    try:
        path = write_snapshot(log.directory, base, log.native.producers, sync=False)
    except OSError as e:
        if e.errno in FATAL:
            raise log.refuse(e) from e
        report(log.directory, "writing a producer snapshot", e, level=logging.WARNING)
        return
    log.snapshot_offset = base
    log.flusher.paths.add(path)

"""Truncation of a log: its end moves back, or everything is removed and the log restarts at another offset.

Followers truncate to the leader's log; a metadata log restarts after a snapshot. The segments are dropped
from memory first, then their files are removed, then the leader epochs and the producers are adjusted. If a
shortage (of space, descriptors, memory) interrupts that, files and memory may differ. The log serves nothing
then, and all steps are done again until they succeed (`half_done`), so each step can be repeated.

Data that is cut may be on its way to a client: a leader sends data above HW to its followers, directly from
the file, and may become a follower before all of it has been sent. Such a segment gets a new file with the
bytes that stay, and the old file stays open, without a name, until it has been sent (`_cut`)."""

import errno
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import pairwise
from typing import Any, Final, Protocol

from kafkad._native.log.producer_table import ProducerTable
from kafkad._native.log.segment_recovery import replay_producers, scan_segment
from kafkad.log import recovery
from kafkad.log.filenames import (
    DELETED,
    INDEX,
    LOG,
    SNAPSHOT,
    SWAP,
    TIME_INDEX,
    TXN_INDEX,
    offset_of,
    segment_file,
)
from kafkad.log.flusher import Flusher
from kafkad.log.owner import Owner
from kafkad.log.producer_state import load_snapshot
from kafkad.log.txn_index import read_txn_index, write_txn_index
from kafkad.protocol.errors import CORRUPT_MESSAGE, KAFKA_STORAGE_ERROR, KafkaError, Malformed

logger = logging.getLogger("kafkad.log")

CUT: Final = ".cut"
COPIED_AT_A_TIME: Final = 64 << 20  # bytes


class Truncated(Owner, Protocol):
    """The part of `log.Log` that truncation needs."""

    snapshot_offset: int  # of the newest producer snapshot
    producer_expiration_ms: int
    cleaned_below: int
    cuts: int  # how often this was called
    cut_to: int  # the lowest offset to which

    @property
    def flusher(self) -> Flusher: ...

    def cut_epochs(self, offset: int) -> bool:
        """Forget leader epochs that begin at `offset` or later."""

    def io(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Call; disk errors become KafkaError."""

    def half_done(
        self,
        what: str,
        error: OSError | ValueError,
        code: int = KAFKA_STORAGE_ERROR,
        again: Callable[[], None] | None = None,
    ) -> KafkaError: ...


def truncate_to(log: Truncated, offset: int) -> None:
    """Remove everything from the batch that holds `offset` on; `offset` is below the end. Raises
    KafkaError."""
    log.cleaned_below = min(log.cleaned_below, offset)
    log.cut_to = min(log.cut_to, offset)
    log.cuts += 1
    rows = log.native.segment_rows()
    if offset <= rows[0][0]:
        _do(log, partial(_truncate_all, log, offset))
        return
    base, position = log.io(log.native.position_of, offset)
    created_ms = next(created_ms for found, _, created_ms in rows if found == base)
    _do(log, partial(_truncate, log, offset, base, position, created_ms))


def _do(log: Truncated, work: Callable[[], None]) -> None:
    try:
        work()
    except OSError as e:
        raise log.half_done("its truncation", e, again=partial(_do, log, work)) from e
    except ValueError as e:
        raise log.half_done("its truncation", e, CORRUPT_MESSAGE) from e


def _truncate(log: Truncated, offset: int, base: int, position: int, created_ms: int) -> None:
    native = log.native
    _end_cleaning(log)
    _remove_from(log, base, kept=base)
    path = segment_file(log.directory, base, LOG)
    if os.path.getsize(path) > position:
        _cut(log, path, base, position, offset)
    scan = scan_segment(  # by the headers: the bytes were checked when they came
        log.directory, base, ProducerTable(), index_interval=log.config.index_interval_bytes, below=offset
    )
    native.add_segment(base, scan.valid_size, created_ms, scan.max_timestamp)
    native.truncated(offset, scan.valid_size)
    txns = segment_file(log.directory, base, TXN_INDEX)
    if os.path.exists(txns):
        write_txn_index(txns, [txn for txn in read_txn_index(txns) if txn.last_offset < offset])
        log.flusher.paths.add(txns)
    _adjust(log, offset, epochs_from=offset)


def _truncate_all(log: Truncated, offset: int) -> None:
    _end_cleaning(log)
    _remove_all(log, offset)
    _adjust(log, offset, epochs_from=offset)


def _adjust(log: Truncated, offset: int, epochs_from: int) -> None:
    log.flusher.directories.add(log.directory)
    log.cut_epochs(epochs_from)
    reload_producers(log, offset)
    log.native.refresh_stable()


def _remove_from(log: Truncated, first: int, kept: int = -1) -> None:
    """Remove the segments whose base offset is at least `first`, and the files of all of them but `kept`,
    also those that a try before this one has left. The last one goes first, so what is left is a log."""
    native = log.native
    gone = {row[0] for row in native.segment_rows() if row[0] >= first}
    native.drop_segments(native.count - len(gone), native.count)
    for name in os.listdir(log.directory):
        base = offset_of(name) if name.endswith(LOG) else None
        if base is not None and base >= first:
            gone.add(base)
    for base in sorted(gone - {kept}, reverse=True):
        recovery.remove_segment_files(log.directory, base)


def _end_cleaning(log: Truncated) -> None:
    """Cancel an announced exchange, which would bring the removed part back at the next start. The cleaner
    notices."""
    if log.being_cleaned:
        for name in os.listdir(log.directory):
            if name.endswith(SWAP):
                os.unlink(os.path.join(log.directory, name))


def _cut(log: Truncated, path: str, base: int, position: int, offset: int) -> None:
    """Cut the segment at `position`. Readers that have the file open may still read beyond it."""
    native = log.native
    may_be_sent = native.read_to_end or native.has_readers or offset < log.high_watermark
    if not may_be_sent:
        os.truncate(path, position)
        return
    fresh = path + CUT + DELETED  # a start after a crash removes it
    with open(path, "rb") as old, open(fresh, "wb") as new:
        left = position
        while left > 0:
            copied = os.copy_file_range(old.fileno(), new.fileno(), min(left, COPIED_AT_A_TIME))
            if copied == 0:
                raise OSError(errno.EIO, f"{path} is shorter than {position} bytes")
            left -= copied
        if native.flushed_offset > base:
            os.fdatasync(new.fileno())  # the new name may reach the disk before the old data
    os.replace(fresh, path)
    native.read_to_end = False


def start_at(log: Truncated, offset: int) -> None:
    """Remove everything; the log continues, empty, at `offset`. Raises KafkaError."""
    log.cut_to = 0
    log.cuts += 1
    _do(log, partial(_start_at, log, offset))


def _start_at(log: Truncated, offset: int) -> None:
    _end_cleaning(log)
    _remove_all(log, offset)
    _adjust(log, offset, epochs_from=0)
    log.native.set_log_start(offset)
    log.native.advance_high_watermark(offset)


def reload_producers(log: Truncated, end_offset: int) -> None:
    """Rebuild the producers at `end_offset`, from the newest good snapshot and the log after it."""
    producers = log.native.producers
    producers.clear()
    start = log.log_start_offset
    snapshots = sorted(
        offset
        for name in os.listdir(log.directory)
        if name.endswith(SNAPSHOT) and (offset := offset_of(name)) is not None
    )
    for offset in snapshots:
        if offset > end_offset:
            os.unlink(segment_file(log.directory, offset, SNAPSHOT))
    for offset in reversed([offset for offset in snapshots if offset <= end_offset]):
        try:
            path = segment_file(log.directory, offset, SNAPSHOT)
            load_snapshot(path, producers, log.flusher.now_ms, log.producer_expiration_ms)
            start = offset
            break
        except Malformed as e:
            logger.warning("%s is unreadable and is ignored: %s", path, e)
    log.snapshot_offset = start
    bases = [base for base, _, _ in log.native.segment_rows()]
    for base, next_base in pairwise([*bases, log.end_offset]):
        if next_base > start:
            replay_producers(segment_file(log.directory, base, LOG), producers, start, end_offset)


def _remove_all(log: Truncated, offset: int) -> None:
    """The new segment is there before the last old one goes: a log that has none counts as lost at the next
    start (`opening.Emptied`)."""
    bases = (offset_of(name) for name in os.listdir(log.directory) if name.endswith(LOG))
    lowest = min((base for base in bases if base is not None), default=offset)
    _remove_from(log, 0, kept=lowest)
    if lowest == offset:  # by another file: readers may have the old one open
        path = segment_file(log.directory, offset, LOG)
        fresh = path + CUT + DELETED
        os.close(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644))
        os.replace(fresh, path)
        for suffix in (INDEX, TIME_INDEX, SNAPSHOT):  # other workers may have them mapped
            with suppress(FileNotFoundError):
                os.unlink(segment_file(log.directory, offset, suffix))
    recovery.create_segment_files(log.directory, offset)
    if lowest != offset:
        recovery.remove_segment_files(log.directory, lowest)
    log.native.add_segment(offset, 0, log.flusher.now_ms)
    log.native.truncated(offset, 0)

"""Truncation of a log: its end moves back, or everything is removed and the log restarts at another offset.

Followers truncate to the leader's log; a metadata log restarts after a snapshot. What takes long is prepared
first, for a follower in a thread (`cutting`). The segments are dropped from memory then, their files are
removed or replaced, and the leader epochs and the producers are adjusted. If a shortage (of space,
descriptors, memory) interrupts that, files and memory may differ. The log serves nothing then, and all steps
are done again until they succeed (`half_done`), so each step can be repeated.

Data that is cut may be on its way to a client: a leader sends data above HW to its followers, directly from
the file, and may become a follower before all of it has been sent. Such a segment gets a new file with the
bytes that stay, and the old file stays open, without a name, until it has been sent (`Plan.copies`)."""

import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

from kafkad.log import cutting, recovery
from kafkad.log.cutting import CUT, Prepared, load_producers, refusal_of, snapshots_in
from kafkad.log.filenames import (
    DELETED,
    INDEX,
    LOG,
    SEGMENT_SUFFIXES,
    SNAPSHOT,
    SWAP,
    TIME_INDEX,
    offset_of,
    segment_file,
)
from kafkad.log.flusher import Flusher
from kafkad.log.owner import Owner
from kafkad.log.removal import unlink_later
from kafkad.protocol.errors import CORRUPT_MESSAGE, KAFKA_STORAGE_ERROR, KafkaError


class Truncated(Owner, Protocol):
    """The part of `log.Log` that truncation needs."""

    snapshot_offset: int  # of the newest producer snapshot
    producer_expiration_ms: int
    cleaned_below: int
    cuts: int  # how often this was called
    cut_to: int  # the lowest offset to which
    on_cut: Callable[[Any], None] | None  # the checkpoints may be ahead of the log now

    @property
    def flusher(self) -> Flusher: ...

    def cut_epochs(self, offset: int) -> bool:
        """Forget leader epochs that begin at `offset` or later."""

    def io(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Call; disk errors become KafkaError."""

    def truncate_to(self, offset: int, prepared: Prepared | None = None) -> bool: ...

    def half_done(
        self,
        what: str,
        error: OSError | ValueError,
        code: int = KAFKA_STORAGE_ERROR,
        again: Callable[[], None] | None = None,
    ) -> KafkaError: ...


def truncate_to(log: Truncated, offset: int, prepared: Prepared | None = None) -> None:
    """Remove everything from the batch that holds `offset` on; `offset` is below the end. `prepared`: fits
    the log as it is. Raises KafkaError."""
    everything = offset <= log.native.first_base_offset
    if prepared is None and not everything:
        prepared = Prepared(cutting.plan(log, offset, in_place=True))
        try:
            prepared.make()
        except (OSError, ValueError, MemoryError) as e:
            raise refusal_of(log, e) from e
    log.cleaned_below = min(log.cleaned_below, offset)
    log.cut_to = min(log.cut_to, offset)
    log.cuts += 1
    if prepared is None or everything:
        _do(log, partial(_truncate_all, log, offset, offset == log.native.first_base_offset))
    else:
        _do(log, partial(_truncate, log, prepared))


def _do(log: Truncated, work: Callable[[], None]) -> None:
    try:
        work()
    except OSError as e:
        raise log.half_done("its truncation", e, again=partial(_do, log, work)) from e
    except ValueError as e:
        raise log.half_done("its truncation", e, CORRUPT_MESSAGE) from e
    if log.on_cut is not None:
        log.on_cut(log)


def _truncate(log: Truncated, prepared: Prepared) -> None:
    plan, native = prepared.plan, log.native
    _end_cleaning(log)
    _remove_from(log, plan.base, kept=plan.base)
    prepared.install(log)
    native.add_segment(plan.base, prepared.size, plan.created_ms, prepared.max_timestamp)
    native.truncated(plan.offset, prepared.size)
    log.flusher.directories.add(log.directory)
    log.cut_epochs(plan.offset)
    prepared.give_producers(native.producers)
    _forget_snapshots(log, plan.offset, prepared.snapshot_offset)
    native.refresh_stable()


def _truncate_all(log: Truncated, offset: int, begins_there: bool) -> None:
    """`begins_there`: the log's first segment begins at `offset`, so a snapshot there is good."""
    _end_cleaning(log)
    _remove_all(log, offset)
    if not begins_there:
        _remove_snapshots(log)
    _adjust(log, offset, epochs_from=offset)


def _remove_snapshots(log: Truncated) -> None:
    """Remove those, too, that an earlier close left within a segment: batches after them are gone, and with
    them sequence numbers and the ends of transactions."""
    for offset in snapshots_in(log.directory):
        os.unlink(segment_file(log.directory, offset, SNAPSHOT))


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
        _remove(log, base)


def _remove(log: Truncated, base: int) -> None:
    """Rename the files of a segment; a thread removes them."""
    paths = [segment_file(log.directory, base, suffix) for suffix in (*SEGMENT_SUFFIXES, SNAPSHOT)]
    unlink_later(log.scheduler, 0, [path + DELETED for path in paths])
    for path in paths:
        with suppress(FileNotFoundError):
            os.replace(path, path + DELETED)


def _end_cleaning(log: Truncated) -> None:
    """Cancel an announced exchange, which would bring the removed part back at the next start. The cleaner
    notices."""
    if log.being_cleaned:
        swaps = [name for name in os.listdir(log.directory) if name.endswith(SWAP)]
        for name in sorted(swaps, key=lambda name: name.endswith(LOG + SWAP)):  # as `take_back_swap`
            os.unlink(os.path.join(log.directory, name))


def start_at(log: Truncated, offset: int) -> None:
    """Remove everything; the log continues, empty, at `offset`. Raises KafkaError."""
    log.cleaned_below = min(log.cleaned_below, offset)
    log.cut_to = 0
    log.cuts += 1
    _do(log, partial(_start_at, log, offset))


def _start_at(log: Truncated, offset: int) -> None:
    _end_cleaning(log)
    _remove_all(log, offset)
    _remove_snapshots(log)
    _adjust(log, offset, epochs_from=0)
    log.native.set_log_start(offset)
    log.native.advance_high_watermark(offset)


def reload_producers(log: Truncated, end_offset: int) -> None:
    """Rebuild the producers at `end_offset`, from the newest good snapshot and the log after it."""
    producers = log.native.producers
    producers.clear()
    snapshot_offset = load_producers(
        producers,
        log.directory,
        tuple(base for base, _, _ in log.native.segment_rows()),
        end_offset,
        log.flusher.now_ms,
        log.producer_expiration_ms,
    )
    _forget_snapshots(log, end_offset, snapshot_offset)


def _forget_snapshots(log: Truncated, end_offset: int, newest: int) -> None:
    for offset in snapshots_in(log.directory):
        if offset > end_offset:
            os.unlink(segment_file(log.directory, offset, SNAPSHOT))
    log.snapshot_offset = newest


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
        with suppress(OSError):  # a thread frees its blocks; without links the loop does
            os.link(path, path + DELETED)
        os.replace(fresh, path)
        unlink_later(log.scheduler, 0, [path + DELETED])
        for suffix in (INDEX, TIME_INDEX):  # other workers may have them mapped
            with suppress(FileNotFoundError):
                os.unlink(segment_file(log.directory, offset, suffix))
    recovery.create_segment_files(log.directory, offset)
    if lowest != offset:
        _remove(log, lowest)
    log.native.add_segment(offset, 0, log.flusher.now_ms)
    log.native.truncated(offset, 0)

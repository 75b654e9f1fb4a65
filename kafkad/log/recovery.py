"""Loading a partition's directory: what to trust, what to scan, what to cut (Kafka's LogLoader).

    .deleted, .cleaned  removed          .swap  renamed into place, after the files it replaces are removed
    clean shutdown      sizes and names are trusted; only the end of the active segment is walked
    unclean shutdown    from the segment of the recovery point on, every batch is checked; at the first bad
                        one the log is cut, later segments are removed, indexes and producers are rebuilt
    a row in memory     its owner died, the machine did not: everything below LEO is whole. The headers of the
                        active segment are walked up to LEO, and the rest, which no client has seen, is cut. A
                        log that was idle, with its indexes closed, is taken as it is

Damaged small files (index, snapshot, checkpoint) are rebuilt or ignored, with one line in the log.

Beware: all of it runs in a loader's thread, before the partition has an owner loop."""

import logging
import os
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

from kafkad._native.log.directory_listing import list_partition
from kafkad._native.log.partition import Partition
from kafkad._native.log.producer_table import ProducerTable
from kafkad._native.log.segment_recovery import SegmentScan, replay_producers, scan_segment
from kafkad.log.clean_marks import CleanStop
from kafkad.log.filenames import (
    CLEANED,
    DELETED,
    INDEX,
    LOG,
    SEGMENT_SUFFIXES,
    SNAPSHOT,
    SWAP,
    TIME_INDEX,
    TXN_INDEX,
    offset_of,
    segment_file,
)
from kafkad.log.flusher import FATAL
from kafkad.log.leader_epochs import LeaderEpochs
from kafkad.log.producer_state import NO_PRODUCERS, load_snapshot, write_snapshot
from kafkad.log.shortages import report
from kafkad.log.txn_index import AbortedTxn, read_txn_index, write_txn_index
from kafkad.protocol.errors import Malformed

logger = logging.getLogger("kafkad.log")

LOST = ".lost"
HEADER = struct.Struct(">qi")  # of a batch: base offset, size of what follows
RECORDS_AT, RECORDS = 23, struct.Struct(">i30xi")  # last offset delta, count of records
EPOCH: Final = struct.Struct(">qxxxxib")  # of a batch: base offset, leader epoch, magic
OFFSET_MAX: Final = (1 << 63) - 1
INDEX_ENTRY_SIZES = {INDEX: 8, TIME_INDEX: 12}


@dataclass(slots=True)
class Files:
    """The contents of a partition's directory."""

    sizes: dict[int, int] = field(default_factory=dict)  # base offset -> size of the .log
    created_ms: dict[int, int] = field(default_factory=dict)  # its modification time
    indexes: dict[str, dict[int, int]] = field(default_factory=lambda: {INDEX: {}, TIME_INDEX: {}})
    snapshots: list[int] = field(default_factory=list)
    epochs: bytes | None = None  # leader-epoch-checkpoint
    metadata: bytes | None = None  # partition.metadata
    newest_snapshot: tuple[int, bytes | None] | None = None  # its offset and bytes; None: it is long


@dataclass(slots=True)
class Loaded:
    end_offset: int
    log_start_offset: int
    recovery_point: int
    snapshot_offset: int  # of the newest snapshot file, or -1
    scanned_bytes: int
    clean: bool  # the files were as after a clean stop


@dataclass(slots=True, frozen=True)
class OwnersRow:
    """The shared row of an owner that was killed while it led the partition. The row is written after the
    file, so its values are valid. If the owner died between two of the row's words, one may be newer than the
    other. Beware: before it led, the row belongs to a log that is being loaded, and its values are too
    low."""

    end_offset: int
    end_segment: int
    end_position: int  # position in it; -1 if the owner died between two words
    last_epoch: int  # the latest leader epoch of the log; -1: none


def has_swaps(directory: str) -> bool:
    """Return whether an exchange of segments was announced and not completed."""
    try:
        return any(name.endswith(SWAP) for name in os.listdir(directory))
    except FileNotFoundError:
        return False


def list_files(directory: str) -> Files:
    """Return names and sizes, after completing interrupted deletions and swaps."""
    files = _list(directory)
    if files is None:
        _finish_swaps(directory)
        files = _list(directory)
        assert files is not None
    return files


def _list(directory: str) -> Files | None:
    # None: there are files of an interrupted deletion, cleaning or swap.
    found = list_partition(directory)
    if found is None:
        return None
    sizes, created_ms, indexes, time_indexes, snapshots, epochs, metadata, newest = found
    by_suffix = {INDEX: indexes, TIME_INDEX: time_indexes}
    newest_snapshot = (snapshots[-1], newest) if snapshots else None
    return Files(sizes, created_ms, by_suffix, snapshots, epochs, metadata, newest_snapshot)


def _finish_swaps(directory: str) -> None:
    # A cleaner writes .cleaned, renames all files of a group to .swap, then removes the old ones and renames
    # again. So a .swap without .cleaned is complete, and replaces the files in its range; one at or above a
    # .cleaned is incomplete.
    names = sorted(os.listdir(directory))
    cleaned = [offset for name in names if name.endswith(CLEANED) and (offset := offset_of(name)) is not None]
    swaps = [name for name in names if name.endswith(SWAP)]
    incomplete = [name for name in swaps if cleaned and (offset_of(name) or 0) >= min(cleaned)]
    # The .cleaned go last: if this start is killed, they show the next one what is incomplete.
    for name in (*incomplete, *(name for name in names if name.endswith((DELETED, CLEANED)))):
        os.unlink(os.path.join(directory, name))
    swaps = [name for name in swaps if name not in incomplete]
    low, high = 1 << 63, -1
    for name in swaps:
        base = offset_of(name)
        if base is None or name[20:] != LOG + SWAP:
            continue
        low = min(low, base)
        # Under its own name: a start that is killed here must leave what says how far the swap reaches.
        scan = scan_segment(directory, base, ProducerTable(), write_indexes=False, log_suffix=LOG + SWAP)
        high = max(high, scan.next_offset)
    for name in names:
        offset = offset_of(name)
        if offset is not None and low <= offset < high and name[20:] in SEGMENT_SUFFIXES:
            _remove(os.path.join(directory, name))
    for name in swaps:
        logger.info("finishing the swap of %s", os.path.join(directory, name))
        os.replace(os.path.join(directory, name), os.path.join(directory, name[: -len(SWAP)]))


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass


def create_segment_files(directory: str, base_offset: int) -> None:
    """Create an empty .log with both indexes; existing files of these names are removed."""
    _remove(segment_file(directory, base_offset, TXN_INDEX))
    for suffix in (LOG, INDEX, TIME_INDEX):
        path = segment_file(directory, base_offset, suffix)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644))


def set_segment_aside(directory: str, base_offset: int) -> None:
    """Rename a segment's .log to .log.lost, which is never read; files that can be rebuilt from it are
    removed."""
    path = segment_file(directory, base_offset, LOG)
    aside, number = path + LOST, 1
    while os.path.exists(aside):
        number += 1
        aside = f"{path}.{number}{LOST}"
    with suppress(FileNotFoundError):
        os.rename(path, aside)
    remove_segment_files(directory, base_offset)


def remove_segment_files(directory: str, base_offset: int) -> None:
    for suffix in (*SEGMENT_SUFFIXES, SNAPSHOT):
        _remove(segment_file(directory, base_offset, suffix))


def was_compacted(path: str, base_offset: int) -> bool:
    """Return whether offsets are missing within a segment: between two batches, or in one."""
    expected, position = base_offset, 0
    with open(path, "rb") as file:
        while len(header := file.read(61)) == 61:
            base, size = HEADER.unpack_from(header)
            last_delta, count = RECORDS.unpack_from(header, RECORDS_AT)
            if base != expected or count != last_delta + 1:
                return True
            expected = base + last_delta + 1
            position += HEADER.size + size
            file.seek(position)
    return False


class Loader:
    """Loads one directory into one Partition."""

    def __init__(
        self,
        directory: str,
        native: Partition,
        epochs: LeaderEpochs,
        *,
        now_ms: int,
        index_interval_bytes: int,
        producer_expiration_ms: int,
        index_size_max: int = 10 << 20,
        compacted: bool = False,
        cleaned_below: int = 0,
        epochs_lost: bool = False,
    ) -> None:
        self.directory = directory
        self.native = native
        self.producers: ProducerTable = native.producers
        self.epochs = epochs
        self.now_ms = now_ms
        self.index_interval_bytes = index_interval_bytes
        self.index_size_max = index_size_max
        self.producer_expiration_ms = producer_expiration_ms
        self.compacted = compacted
        self.cleaned_below = cleaned_below
        self.epochs_lost = epochs_lost
        self.scanned_bytes = 0
        self.snapshot_lost = False  # there was one, and it is not of this log's segments, or unreadable
        self.rebuilt: list[str] = []  # files written here, which must be synced later

    def load(
        self,
        files: Files,
        *,
        clean: bool | CleanStop,
        recovery_point: int,
        log_start_offset: int,
        trusted: OwnersRow | None = None,
    ) -> Loaded:
        directory = self.directory
        self._doubt_epochs(trusted)
        stop, clean = (clean, True) if isinstance(clean, CleanStop) else (None, clean)
        if stop is not None and self._is_doubtful(stop.doubt_about_files(files.created_ms.values())):
            stop, clean = None, False
        self._remove_orphaned_indexes(files)
        self._remove_empty_segments(files, -1 if trusted is None else trusted.end_segment)
        bases = sorted(files.sizes)
        if bases:
            self._remove_snapshots_before(files, bases[0])
        known: dict[int, SegmentScan] = {}
        end_offset = None
        rested = bool(bases) and trusted is not None and self._at_rest(files, bases[-1], trusted)
        if rested:
            assert trusted is not None
            end_offset = trusted.end_offset
            self._note_unflushed(bases, recovery_point, end_offset)
        elif bases and trusted is not None:
            end_offset = self._trust(files, bases, known, trusted, recovery_point)
            bases = sorted(files.sizes)
        if end_offset is None and bases and not clean:
            end_offset = self._recover(files, bases, known, recovery_point)
            bases = sorted(files.sizes)
        elif bases and (clean or rested):
            self._find_epochs(bases)
            self._rebuild_indexes(files, bases, known)
        self._add_segments(files, bases, known)
        if bases and end_offset is None:
            end_offset = self._find_end(files, bases, known)
            if stop is not None and self._is_doubtful(stop.doubt_about_end(end_offset)):
                clean = False
                self.native.drop_segments(0, self.native.count)
                if end_offset < recovery_point:
                    recovery_point = 0  # it belonged to other files
                end_offset = self._recover(files, bases, known, recovery_point)
                bases = sorted(files.sizes)
                self._add_segments(files, bases, known)
        if end_offset is None or end_offset < log_start_offset:
            if end_offset is not None:
                logger.error(
                    "%s ends at %d, before its log start offset %d: all segments are kept as *.log%s",
                    directory, end_offset, log_start_offset, LOST,
                )  # fmt: skip
                # first: a log without a segment counts as lost at the next start (opening.Emptied)
                create_segment_files(directory, log_start_offset)
                for base in self.native.drop_segments(0, self.native.count):
                    set_segment_aside(directory, base)
                self.producers.clear()
                self._keep_epochs(self.epochs.truncate_from_end, 0)
            self._remove_snapshots_before(files, log_start_offset)
            create_segment_files(directory, log_start_offset)
            self.native.add_segment(log_start_offset, 0, self.now_ms)
            end_offset = log_start_offset
            bases = [log_start_offset]
        self.native.set_end(end_offset)
        log_start_offset = max(log_start_offset, bases[0])
        # An epoch that begins at the end had no records yet. After a clean stop it stays, because usually it
        # continues: otherwise each start would write the files of all empty partitions twice.
        self._keep_epochs(self.epochs.truncate_from_end, end_offset + 1 if clean or rested else end_offset)
        self.epochs.truncate_from_start(log_start_offset)
        snapshot = self._producers_at_end(files, bases, end_offset, clean, rested)
        return Loaded(
            end_offset=end_offset,
            log_start_offset=log_start_offset,
            recovery_point=end_offset if clean else min(recovery_point, end_offset),
            snapshot_offset=snapshot,
            scanned_bytes=self.scanned_bytes,
            clean=clean,
        )

    def _is_doubtful(self, doubt: str) -> bool:
        if doubt:
            logger.warning("%s: %s; it is checked as after a kill", self.directory, doubt)
        return bool(doubt)

    def _add_segments(self, files: Files, bases: list[int], known: dict[int, SegmentScan]) -> None:
        for base in bases:
            scan = known.get(base)
            self.native.add_segment(
                base, files.sizes[base], files.created_ms[base], scan.max_timestamp if scan else None
            )

    # -- leader epochs ---------------------------------------------------------------------------------------

    def _doubt_epochs(self, trusted: OwnersRow | None) -> None:
        """Forget the epochs of the file if it is older than the dead owner's: its disk was full."""
        latest = self.epochs.latest
        if trusted is not None and trusted.last_epoch != (-1 if latest is None else latest):
            logger.info(
                "%s: the leader epochs end with %s, its owner's with %d: they are read from the batches",
                self.directory, latest, trusted.last_epoch,
            )  # fmt: skip
            self.epochs.fill(())
            self.epochs_lost = True

    def _find_epochs(self, bases: list[int]) -> None:
        """If the file was lost or is old, take the epochs of these segments, the log's first ones, from their
        batches. Nothing is cut here, and a segment within one epoch is not read."""
        if not self.epochs_lost:
            return
        found: list[tuple[int, int]] = []
        begins = [self._first_epoch(base) for base in bases]
        for base, (first, following) in zip(bases, pairwise([*begins, None]), strict=True):
            if first is not None and following is not None and first[0] == following[0]:
                found.append(first)
            else:
                scan = scan_segment(
                    self.directory, base, ProducerTable(), write_indexes=False, below=OFFSET_MAX
                )
                found += scan.epochs
        self._keep_epochs(self.epochs.rebuild, 0, found)

    def _first_epoch(self, base: int) -> tuple[int, int] | None:
        """Return (epoch, base offset) of a segment's first batch; None without one, or without an epoch."""
        with open(segment_file(self.directory, base, LOG), "rb") as file:
            header = file.read(EPOCH.size)
        if len(header) < EPOCH.size:
            return None
        offset, epoch, magic = EPOCH.unpack(header)
        return (epoch, offset) if magic == 2 and epoch >= 0 else None

    def _keep_epochs(self, change: Callable[..., None], *arguments: Any) -> None:
        """Change the epochs. A full disk is no reason not to load a log: a flush writes the file later."""
        try:
            change(*arguments)
        except OSError as e:
            if e.errno in FATAL:
                raise
            report(self.directory, "writing the leader epochs", e)

    # -- segments --------------------------------------------------------------------------------------------

    def _remove_orphaned_indexes(self, files: Files) -> None:
        for suffix, sizes in files.indexes.items():
            for base in [base for base in sizes if base not in files.sizes]:
                logger.warning("an index without its log: %s", segment_file(self.directory, base, suffix))
                _remove(segment_file(self.directory, base, suffix))
                del sizes[base]

    def _remove_empty_segments(self, files: Files, active: int) -> None:
        """Remove empty segments between others. A failed roll may have left one, with the previous segment
        extending beyond its name: an offset there would be searched for in the empty one. The first stays,
        because the log begins with its name; the last may be the active one."""
        for base in sorted(files.sizes)[1:-1]:
            if files.sizes[base] == 0 and base != active:
                self._remove_empty_segment(files, base)

    def _remove_empty_segment(self, files: Files, base: int) -> None:
        logger.warning("%s is empty and is removed", segment_file(self.directory, base, LOG))
        for suffix in SEGMENT_SUFFIXES:
            _remove(segment_file(self.directory, base, suffix))
        del files.sizes[base]

    @staticmethod
    def _indexes_look_right(files: Files, base: int) -> bool:
        for suffix, entry_size in INDEX_ENTRY_SIZES.items():
            size = files.indexes[suffix].get(base)
            if size is None or size % entry_size:
                return False
        return True

    def _rebuild_indexes(self, files: Files, bases: list[int], known: dict[int, SegmentScan]) -> None:
        """Rebuild the indexes that do not look right. The .txnindex is one of them: a transaction that is
        aborted in a segment may have begun in an earlier one."""
        producers, at = ProducerTable(), 0
        for base in bases:
            if not self._indexes_look_right(files, base):
                logger.warning("rebuilding the indexes of %s", segment_file(self.directory, base, LOG))
                producers, at = self._producers_before(files, bases, base, producers, at)
                known[base] = self._scan(base, producers, producers_from=at)
                at = max(at, known[base].next_offset)

    def _producers_before(
        self, files: Files, bases: list[int], base: int, producers: ProducerTable, at: int
    ) -> tuple[ProducerTable, int]:
        """Return the producers before the segment at `base`, and up to which offset they are known: from a
        snapshot, or `producers`, which are those at `at`, and the batches after it."""
        for offset in reversed([offset for offset in files.snapshots if at < offset <= base]):
            found = ProducerTable()
            with suppress(Malformed, FileNotFoundError):  # whoever needs it later reports it
                path = segment_file(self.directory, offset, SNAPSHOT)
                load_snapshot(path, found, self.now_ms, self.producer_expiration_ms)
                producers, at = found, offset
                break
        self._replay(producers, [each for each in bases if each < base], at, base)
        return producers, max(at, base)

    def _scan(
        self, base: int, producers: ProducerTable, *, producers_from: int, below: int | None = None
    ) -> SegmentScan:
        """`below`: nothing from that offset on is read, and everything before is known to be whole."""
        scan = scan_segment(
            self.directory,
            base,
            producers,
            producers_from=producers_from,
            index_interval=self.index_interval_bytes,
            below=-1 if below is None else below,
        )
        self.scanned_bytes += scan.valid_size
        self.rebuilt += (segment_file(self.directory, base, suffix) for suffix in (INDEX, TIME_INDEX))
        if scan.completed or os.path.exists(segment_file(self.directory, base, TXN_INDEX)):
            aborted = [AbortedTxn(*row[:4]) for row in scan.completed if row[4]]
            path = segment_file(self.directory, base, TXN_INDEX)
            if below is None or read_txn_index(path) != aborted:
                write_txn_index(path, aborted)
                self.rebuilt.append(path)
        return scan

    def _cut(self, files: Files, scan: SegmentScan) -> None:
        path = segment_file(self.directory, scan.base_offset, LOG)
        if scan.fault is not None:
            logger.warning(
                "%s: %s; cut at position %d of %d, offset %d",
                path, scan.fault, scan.valid_size, scan.file_size, scan.next_offset,
            )  # fmt: skip
            os.truncate(path, scan.valid_size)
        files.sizes[scan.base_offset] = scan.valid_size

    def _recover(
        self,
        files: Files,
        bases: list[int],
        known: dict[int, SegmentScan],
        recovery_point: int,
    ) -> int:
        first = max((at for at, base in enumerate(bases) if base <= recovery_point), default=0)
        if first > 0 and files.sizes[bases[first]] == 0:
            first -= 1  # it may extend beyond the name of the empty one
        self._find_epochs(bases[:first])
        self._rebuild_indexes(files, bases[:first], known)
        start = self._load_newest_snapshot(files, bases[first])
        if start is None:  # batches below the log start count: their producers go on, and retry
            start = bases[0]
        self._replay(self.producers, bases[:first], start, bases[first])
        for at in range(first, len(bases)):
            base = bases[at]
            if at > first:
                self._write_snapshot(files, base)
            scan = known[base] = self._scan(base, self.producers, producers_from=start)
            self._keep_epochs(self.epochs.rebuild, base, scan.epochs)
            self._cut(files, scan)
            behind = bases[at + 1 :]
            if behind and not self._follows(scan, behind[0]):
                if files.sizes[behind[0]] == 0:
                    self._remove_empty_segment(files, behind[0])  # the others were removed before
                    break
                for gone in behind:
                    set_segment_aside(self.directory, gone)
                    del files.sizes[gone]
                logger.error(
                    "%s ends at offset %d: %d segments do not follow, from offset %d on, and are kept as"
                    " *.log%s; to use them put back what is missing and remove that ending",
                    self.directory, scan.next_offset, len(behind), behind[0], LOST,
                )  # fmt: skip
                break
        return scan.next_offset

    def _trust(
        self,
        files: Files,
        bases: list[int],
        known: dict[int, SegmentScan],
        trusted: OwnersRow,
        flushed_offset: int,
    ) -> int | None:
        """Return the log's end, found by the headers of the last segment alone. None if the files contradict
        the row: then every batch is checked."""
        end = trusted.end_offset
        # A segment that begins at LEO is the active one if the row says so; otherwise its owner died creating
        # it.
        mine = [base for base in bases if base < end or (base == end and base == trusted.end_segment)]
        if not mine:
            return None
        active = mine[-1]
        start = self._load_newest_snapshot(files, active)
        if start is None:
            start = mine[0]
        self._replay(self.producers, mine[:-1], start, active)
        self._find_epochs(mine[:-1])
        # Readers may have the indexes open: they keep the old files.
        for suffix in (INDEX, TIME_INDEX):
            _remove(segment_file(self.directory, active, suffix))
        scan = self._scan(active, self.producers, producers_from=start, below=end)
        if scan.next_offset != end:
            logger.warning(
                "%s ends at %d, its owner said %d: all of it is checked",
                self.directory,
                scan.next_offset,
                end,
            )
            self.producers.clear()
            return None
        for gone in bases[len(mine) :]:
            remove_segment_files(self.directory, gone)
            del files.sizes[gone]
        if scan.file_size > scan.valid_size:
            path = segment_file(self.directory, active, LOG)
            logger.info("%s: %d bytes beyond LEO are cut", path, scan.file_size - scan.valid_size)
            os.truncate(path, scan.valid_size)
        files.sizes[active] = scan.valid_size
        known[active] = scan
        self._keep_epochs(self.epochs.rebuild, active, scan.epochs)
        self._rebuild_indexes(files, mine[:-1], known)
        self._note_unflushed(mine, flushed_offset, active)
        return end

    def _note_unflushed(self, bases: list[int], flushed_offset: int, end: int) -> None:
        """Note what a dead owner may not have flushed of the segments below `end`."""
        for base, following in pairwise([*bases, end]):
            if following > base and following >= flushed_offset:
                self.rebuilt += (segment_file(self.directory, base, suffix) for suffix in (INDEX, TIME_INDEX))
                self.rebuilt.append(segment_file(self.directory, following, SNAPSHOT))

    def _at_rest(self, files: Files, active: int, trusted: OwnersRow) -> bool:
        """Return whether a dead owner had closed the files, or never opened them: then everything is as after
        a clean stop, and thousands of such logs load quickly. Open indexes are stretched before the first
        byte is appended, and then end in zeros; a full one proves nothing."""
        if active != trusted.end_segment or files.sizes[active] != trusted.end_position:
            return False
        for suffix, entry_size in INDEX_ENTRY_SIZES.items():
            size = files.indexes[suffix].get(active, -1)
            if size % entry_size or not 0 <= size < self.index_size_max - self.index_size_max % entry_size:
                return False
            if size:
                with open(segment_file(self.directory, active, suffix), "rb") as file:
                    file.seek(size - entry_size)
                    if not any(file.read(entry_size)):
                        return False
        return True

    def _follows(self, scan: SegmentScan, next_base: int) -> bool:
        """Return whether the segment that begins at `next_base` continues the scanned one. A power loss may
        have lost the end of the scanned one, or the removal of this one. Compaction leaves gaps, which stay
        when cleanup.policy changes."""
        if scan.fault is not None:
            return False
        if next_base == scan.next_offset:
            return True
        path = segment_file(self.directory, scan.base_offset, LOG)
        logger.warning("%s ends at %d, the next begins at %d", path, scan.next_offset, next_base)
        if next_base < scan.next_offset:
            return False
        return self.compacted or next_base <= self.cleaned_below or was_compacted(path, scan.base_offset)

    def _find_end(self, files: Files, bases: list[int], known: dict[int, SegmentScan]) -> int:
        base = bases[-1]
        if files.sizes[base] == 0 and len(bases) > 1:
            return self._find_end_before_empty(files, bases)
        try:
            return self.native.find_end()
        except ValueError as e:
            logger.warning("%s: %s", self.directory, e)
        producers, start = self._producers_before(files, bases, base, ProducerTable(), 0)
        scan = known[base] = self._scan(base, producers, producers_from=start)
        self._cut(files, scan)
        self.native.drop_segments(len(bases) - 1, len(bases))
        self.native.add_segment(base, files.sizes[base], files.created_ms[base], scan.max_timestamp)
        return scan.next_offset

    def _find_end_before_empty(self, files: Files, bases: list[int]) -> int:
        """Like `_find_end`, if the last segment is empty: it begins at the end, or is left over from a failed
        roll, and the previous one extends beyond its name."""
        last = bases[-1]
        self.native.drop_segments(len(bases) - 1, len(bases))
        try:
            end = self.native.find_end()
        except ValueError as e:
            logger.warning("%s: %s", self.directory, e)
            end = last
        if end > last:
            self._remove_empty_segment(files, last)
            bases.pop()
            return end
        self.native.add_segment(last, 0, files.created_ms[last])
        return last

    # -- producers -------------------------------------------------------------------------------------------

    def _remove_snapshots_before(self, files: Files, first: int) -> None:
        """Remove snapshots before the first segment, which an earlier close left within one: batches after
        them are gone, and with them sequence numbers and the ends of transactions."""
        for offset in [offset for offset in files.snapshots if offset < first]:
            _remove(segment_file(self.directory, offset, SNAPSHOT))
            files.snapshots.remove(offset)
            self.snapshot_lost = True

    def _load_newest_snapshot(self, files: Files, not_after: int) -> int | None:
        for offset in reversed([offset for offset in files.snapshots if offset <= not_after]):
            path = segment_file(self.directory, offset, SNAPSHOT)
            try:
                if files.newest_snapshot != (offset, NO_PRODUCERS):
                    load_snapshot(path, self.producers, self.now_ms, self.producer_expiration_ms)
                return offset
            except (Malformed, FileNotFoundError) as e:
                logger.warning("%s is unreadable and is ignored: %s", path, e)
                _remove(path)
                files.snapshots.remove(offset)
                self.snapshot_lost = True
        return None

    def _replay(self, producers: ProducerTable, bases: list[int], start: int, end: int) -> None:
        for at, base in enumerate(bases):
            if at + 1 < len(bases) and bases[at + 1] <= start:
                continue
            if start < end:
                replay_producers(segment_file(self.directory, base, LOG), producers, start, end)

    def _write_snapshot(self, files: Files, offset: int) -> None:
        write_snapshot(self.directory, offset, self.producers, sync=False)
        self.rebuilt.append(segment_file(self.directory, offset, SNAPSHOT))
        if offset not in files.snapshots:
            files.snapshots.append(offset)
            files.snapshots.sort()

    def _producers_at_end(
        self, files: Files, bases: list[int], end_offset: int, clean: bool, rested: bool
    ) -> int:
        for offset in [offset for offset in files.snapshots if offset > end_offset]:
            _remove(segment_file(self.directory, offset, SNAPSHOT))
            files.snapshots.remove(offset)
            self.snapshot_lost = True
        if clean or rested:
            start = self._load_newest_snapshot(files, end_offset)
            if start is None and clean and not self.snapshot_lost:
                # no append ever had a producer id, or an upgrade: begin empty, like Kafka
                return files.snapshots[-1] if files.snapshots else -1
            if start is None:  # the only one was lost, or none was written yet: replay the batches
                start = bases[0]
            self._replay(self.producers, bases, start, end_offset)
        elif end_offset > 0:
            self._write_snapshot(files, end_offset)
        wanted = {*bases, end_offset}
        for offset in files.snapshots[:-1]:
            if offset not in wanted:  # left by an earlier close
                _remove(segment_file(self.directory, offset, SNAPSHOT))
        return files.snapshots[-1] if files.snapshots else -1

"""A partition's files, copied byte by byte into a directory of another disk (KIP-113).

A thread copies in bounded pieces, and knows the log only as the loop saw it (`Sight`): nothing below these
sizes changes, except by a truncation, of which the loop tells (`cut`).

    step      copies the next piece. A closed segment is complete with its indexes and the producers' snapshot
              at its end; it is on disk before the next one begins. So all segments of a copy but the newest
              survive a power loss, and `take_over` trusts them
    finish    copies the rest, and syncs it
    add_tail  on the loop: what was appended since, and the active segment's indexes

A copy has the source's segments, with the same names, sizes and contents. A directory with other ones, such
as JVM Kafka's, which appends what it reads to a log that rolls on its own, keeps those that are equal.

Beware: one thread at a time has `held`; a stop waits for it."""

import errno
import os
import threading
from collections.abc import Iterable
from contextlib import suppress
from itertools import pairwise
from typing import Final, NamedTuple

from kafkad.log.checkpoints import checkpoint_text, sync_directory, write_file
from kafkad.log.filenames import (
    INDEX,
    LEADER_EPOCHS,
    LOG,
    SEGMENT_SUFFIXES,
    SNAPSHOT,
    TIME_INDEX,
    TXN_INDEX,
    offset_of,
    segment_file,
)

PIECE: Final = 8 << 20  # bytes copied in one go
UNSYNCED_MAX: Final = 64 << 20  # bytes; many more at once would make the syncs of others wait
INDEXES: Final = (INDEX, TIME_INDEX, TXN_INDEX)


class SourceError(Exception):
    """The log's own files could not be read: `__cause__` is an OSError."""


class Sight(NamedTuple):
    """A log as the loop saw it."""

    directory: str
    rows: tuple[tuple[int, int], ...]  # base offset and size of each segment; the last one is active
    log_start_offset: int
    end_offset: int
    epochs: tuple[tuple[int, int], ...]


class Copy:
    """The copy in `directory`, which exists. `sizes` and `whole` are read by the loop while no thread has
    `held`."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.held = threading.Lock()
        self.sizes: dict[int, int] = {}  # base offset -> bytes of its .log that are here
        self.whole: set[int] = set()  # closed segments that are complete, and on disk
        self._bases: tuple[int, ...] = ()  # of the last sight
        self._stopped = False
        self._unsynced = 0  # bytes of the segment that is being copied
        self._untidy = True  # there may be files that do not belong to the copy

    @property
    def size(self) -> int:
        return sum(list(self.sizes.values()))  # a thread may add to them

    def take_over(self, rows: Iterable[tuple[int, int]], below: int) -> None:
        """Trust what an earlier start has copied: all but the newest segment, where it equals the log's, and
        ends at or below `below`. Raises OSError."""
        bases = sorted(
            base
            for name in os.listdir(self.directory)
            if name.endswith(LOG) and (base := offset_of(name)) is not None
        )
        known = list(rows)
        ends = {base: following for (base, _), (following, _) in pairwise(known)}
        sizes = dict(known)
        for base in bases[:-1]:
            is_there = all(os.path.exists(self._path(base, suffix)) for suffix in (INDEX, TIME_INDEX))
            if ends.get(base, below + 1) > below or not is_there:
                continue
            if os.stat(self._path(base, LOG)).st_size == sizes[base]:
                self.sizes[base] = sizes[base]
                self.whole.add(base)

    def cut(self, offset: int) -> None:
        """The log was truncated: what was copied of the segment that holds `offset`, and after it, is
        void."""
        first = max((base for base in self.sizes if base <= offset), default=offset)
        for base in [base for base in self.sizes if base >= first]:
            del self.sizes[base]
            self.whole.discard(base)
        self._untidy = True

    def left(self, rows: Iterable[tuple[int, int]]) -> int:
        """Return how many bytes of a log with these segments are not here."""
        return sum(size - min(self.sizes.get(base, 0), size) for base, size in rows)

    def end(self, sight: Sight) -> int:
        """Return the offset up to which the log is here at least."""
        for base, size in sight.rows:
            if self.sizes.get(base, 0) < size:
                return base
        return sight.end_offset

    # -- in a thread -----------------------------------------------------------------------------------------

    def step(self, sight: Sight, limit: int) -> int:
        """Copy up to `limit` bytes of segments, and return how many. Raises SourceError, and OSError if the
        copy cannot be written."""
        with self.held:
            return self._step(sight, limit)

    def finish(self, sight: Sight) -> None:
        """Copy all that is left, and sync it. Raises as `step`."""
        with self.held:
            self._untidy = True
            while self._step(sight, PIECE):
                pass
            for offset in self._snapshots(sight.directory):
                if offset <= sight.end_offset and not os.path.exists(self._path(offset, SNAPSHOT)):
                    self._copy_file(sight.directory, offset, SNAPSHOT)
            self._write_epochs(sight)
            _sync(self._path(sight.rows[-1][0], LOG))
            sync_directory(self.directory)

    def _step(self, sight: Sight, limit: int) -> int:
        if self._stopped:
            return 0
        self._tidy(sight)
        copied = 0
        active = sight.rows[-1][0]
        following = [base for base, _ in sight.rows[1:]]
        for (base, size), next_base in zip(sight.rows, [*following, -1], strict=True):
            if base in self.whole:
                continue
            copied += self._extend(sight.directory, base, size, limit - copied)
            if base != active and self.sizes[base] == size:
                self._complete(sight, base, next_base)
            if copied >= limit:
                break
        return copied

    def _tidy(self, sight: Sight) -> None:
        """Remove what the log no longer has."""
        bases = tuple(base for base, _ in sight.rows)
        if not self._untidy and self._bases[:1] == bases[:1]:
            return
        known = set(bases)
        for base in [base for base in self.sizes if base not in known]:
            del self.sizes[base]
            self.whole.discard(base)
        snapshots = set(self._snapshots(sight.directory))
        for name in os.listdir(self.directory):
            offset = offset_of(name)
            if offset is None:
                continue
            stays = offset in snapshots if name.endswith(SNAPSHOT) else offset in self.sizes
            if not stays or not name.endswith((*SEGMENT_SUFFIXES, SNAPSHOT)):
                os.unlink(os.path.join(self.directory, name))
        self._bases, self._untidy = bases, False

    def _extend(self, source: str, base: int, size: int, limit: int) -> int:
        """Copy bytes of one .log, up to `size` in all."""
        have = self.sizes.get(base, 0)
        if have > size:  # it was cut; the loop will tell
            raise SourceError(base) from FileNotFoundError(errno.ENOENT, "the segment was cut")
        if have == 0:
            self._create(base)
        count = min(size - have, limit)
        if count > 0:
            copy_range(segment_file(source, base, LOG), self._path(base, LOG), have, count)
            self._unsynced += count
            if self._unsynced >= UNSYNCED_MAX:
                _sync(self._path(base, LOG))
                self._unsynced = 0
        self.sizes[base] = have + count
        return count

    def _create(self, base: int) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        os.close(os.open(self._path(base, LOG), flags, 0o644))

    def _complete(self, sight: Sight, base: int, next_base: int) -> None:
        """Copy the other files of a closed segment, and sync all of them."""
        self._copy_indexes(sight.directory, base)
        self._copy_file(sight.directory, next_base, SNAPSHOT)
        for suffix in SEGMENT_SUFFIXES:
            with suppress(FileNotFoundError):
                _sync(self._path(base, suffix))
        self._write_epochs(sight)
        sync_directory(self.directory)
        self.whole.add(base)

    def _copy_indexes(self, source: str, base: int) -> None:
        for suffix in INDEXES:
            self._copy_file(source, base, suffix)

    def _copy_file(self, source: str, base: int, suffix: str) -> None:
        """Copy a file as it is; remove the copy if there is none."""
        path = segment_file(source, base, suffix)
        target = self._path(base, suffix)
        with suppress(FileNotFoundError):
            os.unlink(target)
        try:
            size = os.stat(path).st_size
        except FileNotFoundError:
            return
        except OSError as e:
            raise SourceError(path) from e
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        os.close(os.open(target, flags, 0o644))
        if size:
            copy_range(path, target, 0, size)

    def _write_epochs(self, sight: Sight) -> None:
        lines = checkpoint_text(f"{epoch} {start}" for epoch, start in sight.epochs)
        write_file(os.path.join(self.directory, LEADER_EPOCHS), lines, sync=True)

    def _snapshots(self, source: str) -> list[int]:
        try:
            names = os.listdir(source)
        except OSError as e:
            raise SourceError(source) from e
        offsets = (offset_of(name) for name in names if name.endswith(SNAPSHOT))
        return [offset for offset in offsets if offset is not None]

    # -- on the loop -----------------------------------------------------------------------------------------

    def add_tail(self, sight: Sight) -> None:
        """Copy what was appended to the active segment since `finish`, and its indexes, which are closed.
        Raises as `step`."""
        base, size = sight.rows[-1]
        self._extend(sight.directory, base, size, size)
        path = self._path(base, LOG)
        if os.stat(path).st_size != size:
            os.truncate(path, size)
        self._copy_indexes(sight.directory, base)

    def settle(self) -> None:
        """Before a clean stop: leave only complete segments, since the next start, also one of JVM Kafka's,
        checks nothing. Raises OSError."""
        with self.held:
            self._stopped = True
            for base in [base for base in self.sizes if base not in self.whole]:
                del self.sizes[base]
                for suffix in SEGMENT_SUFFIXES:
                    with suppress(FileNotFoundError):
                        os.unlink(self._path(base, suffix))
            sync_directory(self.directory)

    def stop(self) -> None:
        """Copy no more."""
        with self.held:
            self._stopped = True

    def _path(self, base: int, suffix: str) -> str:
        return segment_file(self.directory, base, suffix)


def copy_range(source: str, target: str, at: int, count: int) -> None:
    """Copy `count` bytes at position `at` into an existing file. Raises SourceError, or OSError of the
    target."""
    try:
        reading = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as e:
        raise SourceError(source) from e
    try:
        writing = os.open(target, os.O_WRONLY | os.O_CLOEXEC)
        try:
            _copy(reading, writing, at, count)
        finally:
            os.close(writing)
    finally:
        os.close(reading)


def _copy(reading: int, writing: int, at: int, count: int) -> None:
    end = at + count
    while at < end:
        try:
            copied = os.copy_file_range(reading, writing, end - at, at, at)
        except OSError:  # not between these file systems, or a disk has failed: this tells which
            copied = _copy_by_hand(reading, writing, at, min(end - at, 1 << 20))
        if copied == 0:
            raise SourceError(at) from FileNotFoundError(errno.ENOENT, "the segment was cut")
        at += copied


def _copy_by_hand(reading: int, writing: int, at: int, count: int) -> int:
    try:
        data = os.pread(reading, count, at)
    except OSError as e:
        raise SourceError(at) from e
    written = 0
    while written < len(data):
        written += os.pwrite(writing, data[written:], at + written)
    return len(data)


def _sync(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fdatasync(fd)
    finally:
        os.close(fd)

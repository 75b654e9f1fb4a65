"""One data directory, and its checkpoint files.

The checkpoints combine the values of the open logs with the previous values of partitions that are not open:
another worker's, and those that could not be loaded. With several workers each write reads, merges and writes
under flock of the directory, so that no entry is lost if two workers write at once, or one is killed in
between:

    an entry of a partition that this worker has open     gets this worker's value
    any other                                             stays unchanged
    one of a partition that has no directory here         is dropped, by worker 0, unless it is `missing`

Information for the supervisor, or for a worker's successor, is in memory that all of them share
(`SharedFacts`): no process uses a failed directory again until the broker is restarted.

Beware: flock belongs to an open file, so each write opens the directory again; an fd inherited through fork
would exclude nobody."""

import errno
import fcntl
import logging
import mmap
import os
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

from kafkad._native.log.group_commit import GroupCommit
from kafkad.log.checkpoints import (
    CLEANER_OFFSETS,
    HIGH_WATERMARKS,
    LOG_START_OFFSETS,
    RECOVERY_POINTS,
    offsets_text,
    read_offsets,
    sync_directory,
    write_new,
    write_offsets,
)
from kafkad.log.filenames import future_names, partition_directory
from kafkad.protocol.errors import Malformed

if TYPE_CHECKING:
    from kafkad.log.log import Log

logger = logging.getLogger("kafkad.log")

CHECKPOINTS = (RECOVERY_POINTS, LOG_START_OFFSETS, HIGH_WATERMARKS, CLEANER_OFFSETS)

Key = tuple[str, int]
Signature = tuple[int, int, int]

TRIES = 3  # of a write; the last one does its fsync under the locks
RACY_NS = 50_000_000  # files written within one tick of the kernel's clock may look the same

_WORD = struct.Struct("q")
FAILED, NOT_CLEAN, PARTITIONS = 0, 1, 2  # a directory's words
WORDS = 3


class SharedFacts:
    """Memory that a supervisor shares with its workers, created before the fork:

    broker epoch i64 | metadata offset i64 | of each directory: failed i64, not closed cleanly i64,
    partitions i64

    Worker 0 writes the first two. `failed` and `not closed` are only ever set, by any process, and may be
    read late. `partitions` changes under `alone`."""

    def __init__(self, directories: int) -> None:
        size = _WORD.size * (2 + WORDS * directories)
        self._fd = os.memfd_create("kafkad-told", os.MFD_CLOEXEC)
        os.ftruncate(self._fd, size)
        self._map = mmap.mmap(self._fd, size)
        self.broker_epoch = self.metadata_offset = -1

    def __del__(self) -> None:
        os.close(self._fd)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Briefly, on the loop: no other worker places a partition."""
        fcntl.lockf(self._fd, fcntl.LOCK_EX)  # held by the process, and released with it
        try:
            yield
        finally:
            fcntl.lockf(self._fd, fcntl.LOCK_UN)

    @property
    def broker_epoch(self) -> int:
        epoch: int = _WORD.unpack_from(self._map)[0]
        return epoch

    @broker_epoch.setter
    def broker_epoch(self, epoch: int) -> None:
        _WORD.pack_into(self._map, 0, epoch)

    @property
    def metadata_offset(self) -> int:
        offset: int = _WORD.unpack_from(self._map, _WORD.size)[0]
        return offset

    @metadata_offset.setter
    def metadata_offset(self, offset: int) -> None:
        _WORD.pack_into(self._map, _WORD.size, offset)

    def set(self, directory: int, what: int) -> None:
        _WORD.pack_into(self._map, self._at(directory, what), 1)

    def is_set(self, directory: int, what: int) -> bool:
        return self.count(directory, what) != 0

    def add(self, directory: int, what: int, count: int) -> None:
        _WORD.pack_into(self._map, self._at(directory, what), self.count(directory, what) + count)

    def count(self, directory: int, what: int) -> int:
        count: int = _WORD.unpack_from(self._map, self._at(directory, what))[0]
        return count

    def _at(self, directory: int, what: int) -> int:
        return _WORD.size * (2 + WORDS * directory + what)


class Seen:
    """The contents of a checkpoint file when it was read. `fd` keeps the file open while it is young, or is
    -1."""

    __slots__ = ("fd", "found", "signature")

    def __init__(self, signature: Signature, found: dict[Key, int], fd: int) -> None:
        self.signature = signature
        self.found = found
        self.fd = fd

    def let_go(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __del__(self) -> None:
        self.let_go()


class Directory:
    """One data directory, as one worker sees it."""

    def __init__(self, path: str, number: int, *, for_logs: bool) -> None:
        self.path = path
        self.number = number  # its index in `SharedFacts`
        self.for_logs = for_logs  # False: it has only the metadata log
        self.id = bytes(16)
        self.offline = False
        self.clean = False
        self.broker_epoch = -1  # of the previous clean shutdown
        self.marked_ms = -1  # when its clean-shutdown file was written
        self.lock: int | None = None
        self.place: tuple[int, int] | None = None  # device and inode, since it is locked
        self.is_doubted = False  # something in it was missing
        self.group_commit: GroupCommit | None = None  # of its logs, if a loop calls `publish`
        self.shared = False  # with other workers
        self.writer = 0  # the number of this worker
        self.keeper = False  # worker 0: drops entries that no worker owns
        self.logs_by_key: dict[Key, Log] = {}
        # Logs that were gone at the start, or had no segment any more, with the offset that they had reached.
        # They are not `create`d yet.
        self.missing: dict[Key, int] = {}
        self._reported: set[Key] = set()
        self._removed: dict[Key, Log] = {}  # logs whose directory was not there
        self.written: dict[str, dict[Key, int]] = {}  # checkpoint name -> what we wrote last
        self.unsynced: set[str] = set()  # checkpoints whose last write was not synced
        self.in_flight: list[Mapping[Key, object]] = []  # what threads are about to write
        self.writing = False  # a thread is writing checkpoints
        self.owed = False  # all of them are due again after that
        self.cut_lately = False  # logs were truncated, and the checkpoints written
        self.cut_again = False  # logs were truncated since
        self.serial = 0  # of the newest checkpoints requested
        self._write_lock = threading.Lock()  # never held across an fsync, except for the last try
        self._turn = threading.Lock()  # of the threads that write a checkpoint; no loop takes it
        self._seen: dict[str, Seen] = {}

    def logs(self) -> "list[Log]":
        return list(self.logs_by_key.values())

    def volume(self) -> tuple[int, int]:
        """(total, usable) bytes of the file system; -1 if not available."""
        try:
            status = os.statvfs(self.path)
        except OSError:
            return -1, -1
        return status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize

    def take_place(self) -> None:
        """Call when the directory is locked. Raises OSError."""
        found = os.stat(self.path)
        self.place = found.st_dev, found.st_ino

    def check_place(self) -> None:
        """Raise OSError (ENODEV, which takes the directory offline) if its path has become another one's: it
        was removed, or its file system was unmounted. Records would go to open files that nobody finds again,
        until the next segment; then all requests would be refused."""
        try:
            found = os.stat(self.path)
        except (FileNotFoundError, NotADirectoryError):
            now = None
        else:
            now = found.st_dev, found.st_ino
        if self.place is not None and now != self.place:
            raise OSError(errno.ENODEV, "the directory was removed or unmounted", self.path)

    def look_for_removed(self) -> None:
        """Report, once, each log whose directory was removed by hand. It serves on, with the files that it
        has open. A log that is being moved has no directory for a moment, so the second look counts. In one
        thread at a time; raises OSError."""
        before, ours = self._removed, dict(self.logs_by_key)
        there = set(os.listdir(self.path))
        gone = {key: log for key, log in ours.items() if partition_directory(*key) not in there}
        for key, log in gone.items():
            if before.get(key) is log and self.logs_by_key.get(key) is log and key not in self._reported:
                self._reported.add(key)
                logger.error(
                    "%s was removed: its records, and those that are written now, are lost at the next stop",
                    log.directory,
                )
        self._removed = gone
        self._reported &= gone.keys()

    # -- checkpoints ---------------------------------------------------------------------------------------

    def write(self, checkpoints: Mapping[str, dict[Key, int]], serial: int) -> None:
        """Write checkpoints, unless newer ones were requested meanwhile. In any thread; raises OSError."""
        self.check_place()

        def still_due(name: str, offsets: dict[Key, int]) -> dict[Key, int] | None:
            return offsets if serial == self.serial and self.is_due(name, offsets) else None

        def wrote(name: str, offsets: dict[Key, int]) -> None:
            self.written[name] = offsets
            self.unsynced.discard(name)

        for name, offsets in checkpoints.items():
            self._write_synced(name, partial(still_due, name, offsets), partial(wrote, name))

    def work_to_write(self, name: str, key: Key) -> Callable[[], int]:
        """Return a function for any thread that writes the logs' current values, unless newer checkpoints
        were requested meanwhile. It returns the file's value for `key`, and raises OSError."""
        offsets = self.offsets_now(name)
        self.serial += 1
        serial = self.serial

        def write() -> int:
            self.write({name: offsets}, serial)
            return self.written.get(name, {}).get(key, -1)

        return write

    def offsets_now(self, name: str) -> dict[Key, int]:
        """Return the values of the open logs for one checkpoint."""
        logs = self.logs_by_key.items()
        if name == RECOVERY_POINTS:
            return {key: log.recovery_point for key, log in logs}
        if name == HIGH_WATERMARKS:
            return {key: log.high_watermark for key, log in logs}
        if name == CLEANER_OFFSETS:
            return {key: log.cleaned_below for key, log in logs if log.cleaned_below}
        return {key: start for key, log in logs if (start := log.start_to_keep)}

    def is_due(self, name: str, offsets: dict[Key, int]) -> bool:
        """Return whether a checkpoint with `offsets` would change the file on disk."""
        return name in self.unsynced or self.written.get(name) != offsets

    def write_log_starts(self, starts: "Mapping[Key, tuple[Log, int]]", sync: bool) -> None:
        """Save log starts. In any thread; raises OSError. A log that was deleted since `starts` was taken is
        left out, even if another one has its name by now. Without `sync`, power loss may restore the previous
        file, but never a part of either: the file also has the values of other partitions."""

        def take() -> dict[Key, int]:
            ours = self.logs_by_key
            return {key: offset for key, (log, offset) in starts.items() if ours.get(key) is log}

        def wrote(offsets: dict[Key, int]) -> None:
            self.written[LOG_START_OFFSETS] = offsets
            self.unsynced.add(LOG_START_OFFSETS)  # the next checkpoint writes it again, and syncs its name

        self._write_synced(LOG_START_OFFSETS, take, wrote, sync_name=sync)

    def may_name(self, key: Key) -> bool:
        """Return whether a checkpoint of this directory has an entry for `key`, or is about to get one. Takes
        no lock. Raises OSError."""
        return any(key in offsets for offsets in self.in_flight) or any(
            key in self._found(name) for name in CHECKPOINTS
        )

    def forget(self, *keys: Key) -> None:
        """Drop the entries of partitions that have no directory here any more. In any thread; raises
        OSError."""
        for name in CHECKPOINTS:
            without = partial(self._without, name, keys)
            with self._write_lock, self._alone():
                if without() is None:
                    continue
            self._write_synced(name, without, partial(self._forgot, name, keys), merge=lambda found: found)

    def offsets_of(self, key: Key) -> dict[str, int]:
        """Return the value of each checkpoint for a partition, by checkpoint name. Raises OSError."""
        with self._write_lock:
            found = {name: self._found(name).get(key) for name in CHECKPOINTS}
        return {name: offset for name, offset in found.items() if offset is not None}

    def name_again(self, key: Key, offsets: Mapping[str, int], rename: Callable[[], None]) -> None:
        """Call `rename`, which restores a partition's name, after restoring its entries, `offsets` by
        checkpoint. For other workers this is one step; otherwise worker 0 might drop entries without a
        directory. Raises OSError."""
        with self._write_lock, self._alone():
            for name in CHECKPOINTS:
                found = self._found(name)
                if found.get(key) != offsets.get(name):
                    kept = {other: offset for other, offset in found.items() if other != key}
                    if name in offsets:
                        kept[key] = offsets[name]
                    write_offsets(os.path.join(self.path, name), kept)
            rename()
        sync_directory(self.path)

    def _without(self, name: str, keys: tuple[Key, ...]) -> dict[Key, int] | None:
        found = self._found(name)
        named = [key for key in keys if key in found]
        there = self._names() if named else set()
        gone = {key for key in named if partition_directory(*key) not in there}
        return {key: offset for key, offset in found.items() if key not in gone} if gone else None

    def _forgot(self, name: str, keys: tuple[Key, ...], _written: dict[Key, int]) -> None:
        before = self.written.get(name)
        if before is not None and any(key in before for key in keys):
            self.written[name] = {key: offset for key, offset in before.items() if key not in keys}

    def _write_synced(
        self,
        name: str,
        take: Callable[[], dict[Key, int] | None],
        wrote: Callable[[dict[Key, int]], None],
        *,
        merge: Callable[[dict[Key, int]], dict[Key, int]] | None = None,
        sync_name: bool = True,
    ) -> None:
        """Write what `take` returns (None: nothing), and call `wrote` with it; both under the locks. `merge`
        makes the contents of the file from it.

        The fsync of the new file comes between two short times under the locks, so nothing else waits for it.
        If another worker has written the checkpoint meanwhile, or a log was added or removed, everything is
        repeated. One thread of this worker does this at a time: all use the same name for the new file."""
        path = os.path.join(self.path, name)
        beside = f"{path}.{self.writer}.tmp"
        merge = merge or partial(self._merged, name)
        with self._turn:
            for _ in range(TRIES):
                with ExitStack() as held:
                    with self._write_lock, self._alone():
                        offsets, ours, before = take(), dict(self.logs_by_key), self._hold(path, held)
                        if offsets is None:
                            return
                        lines = offsets_text(merge(offsets))
                    held.callback(_unlink, beside)
                    write_new(beside, lines, sync=True)
                    with self._write_lock, self._alone():
                        if take() == offsets and self.logs_by_key == ours and _identity(path) == before:
                            os.replace(beside, path)
                            wrote(offsets)
                            break
            else:
                with self._write_lock, self._alone():
                    offsets = take()
                    if offsets is not None:
                        write_offsets(path, merge(offsets))
                        wrote(offsets)
                return
        if sync_name:
            sync_directory(self.path)

    @staticmethod
    def _hold(path: str, held: ExitStack) -> int | None:
        """Return the inode number of the file, which no other file gets while it is open."""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        held.callback(os.close, fd)
        return os.fstat(fd).st_ino

    def _merged(self, name: str, offsets: dict[Key, int]) -> dict[Key, int]:
        ours = self.logs_by_key  # a log removed since `offsets` was taken may be another worker's by now
        merged = {key: offset for key, offset in self._found(name).items() if key not in ours}
        if merged and (self.keeper or not self.shared):
            there = self._names()
            merged = {
                key: offset
                for key, offset in merged.items()
                if key in self.missing or partition_directory(*key) in there
            }
        merged.update((key, offset) for key, offset in offsets.items() if key in ours)
        return merged

    def _names(self) -> set[str]:
        """The names here, and those that logs on their way will have: their entries come first."""
        names = os.listdir(self.path)
        return {*names, *future_names(names)}

    def _found(self, name: str) -> dict[Key, int]:
        # A file is replaced, never changed, so it is read again only if another file has its name. That file
        # may have the inode number of a deleted one, within the same clock tick. A file that we keep open
        # keeps its number, so a young file is kept open.
        path = os.path.join(self.path, name)
        try:
            status = os.stat(path)
        except FileNotFoundError:
            return {}
        signature = _signature(status)
        is_young = time.time_ns() - status.st_mtime_ns <= RACY_NS
        seen = self._seen.get(name)
        if seen is not None and seen.signature == signature:
            if not is_young:
                seen.let_go()
            return seen.found
        fd = -1
        if is_young:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        held = Seen(signature, {}, fd)
        with suppress(Malformed):  # logged at load; its entries cannot be read
            held.found = read_offsets(path)
        if fd < 0 or _signature(os.fstat(fd)) == signature == _signature(os.stat(path)):
            self._seen[name] = held
        return held.found

    @contextmanager
    def _alone(self) -> Iterator[None]:
        if not self.shared:
            yield
            return
        fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)  # and the lock with it


def _signature(status: os.stat_result) -> Signature:
    return status.st_ino, status.st_mtime_ns, status.st_size


def _identity(path: str) -> int | None:
    try:
        return os.stat(path).st_ino
    except FileNotFoundError:
        return None


def _unlink(path: str) -> None:
    with suppress(OSError):
        os.unlink(path)

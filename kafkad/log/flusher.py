"""The flush policy of one log: what is not on disk yet, and when it is flushed.

With flush.messages = M, an append that would leave M messages unflushed is written, but HW, and with it the
ack and visibility, waits for an fdatasync that began after the append. All appends in the meantime share the
next one. `_native/log/group_commit` does the plain case, one fdatasync of the active segment, directly for
the native append. This module does the rest, in a thread of the scheduler: several segments after a roll,
small files and directory entries, and logs without a group commit.

A failed fsync takes the log directory offline and is never retried: the kernel may have dropped the pages
(the fsyncgate of 2018). A file that cannot be opened (no descriptor, no memory) or rewritten (a full disk) is
not a failed fsync: the flush is retried with a growing delay, and acks wait for it.

Small files and directory entries must be synced, too. The code that creates one notes it here (`paths`,
`directories`), and the next flush includes it, before that flush counts for anything appended after the note.

Beware: the flush itself runs in a thread, with file references and paths; it accesses neither log nor
partition."""

import errno
import os
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from kafkad.log.owner import Owner
from kafkad.log.shortages import report
from kafkad.protocol.errors import KAFKA_STORAGE_ERROR, KafkaError

if TYPE_CHECKING:
    from kafkad._native.log.segments import FileRef

LONG_MAX: Final = (1 << 63) - 1
RETRY_MS: Final = 100  # after a shortage; doubled after each further one, up to
RETRY_MS_MAX: Final = 5_000
BLOCKING_TRIES_S: Final = (0.005, 0.01, 0.02, 0.04)  # between the tries of a flush that the loop waits for
# The errors of a broken disk, as opposed to a full or busy one: as in _native/log/fileio.is_fatal.
FATAL: Final = frozenset(
    (
        errno.EIO,
        errno.EROFS,
        errno.ENODEV,
        errno.ENXIO,
        errno.EBADF,
        errno.ESTALE,
        errno.EUCLEAN,
        errno.ENOTCONN,
    )
)

Callback = Callable[[BaseException | None], None]


class NotOpened(OSError):
    """A file or directory to be synced could not be opened: nothing is known to be lost."""


class Flusher:
    __slots__ = (
        "_again",
        "_clean_ms",
        "_directories",
        "_held",
        "_log",
        "_paths",
        "_retry_ms",
        "_under_way",
        "_waiting",
        "now_ms",
    )

    def __init__(self, log: Owner, now_ms: int) -> None:
        self._log = log
        self._under_way = self._again = self._held = False
        self._waiting: list[tuple[int, Callback]] = []
        self._paths: set[str] = set()
        self._directories: set[str] = set()
        self._retry_ms = RETRY_MS
        self._clean_ms = -1  # monotonic: nothing was unflushed, or flush.ms had it flushed; -1: unknown
        self.now_ms = now_ms  # wall clock, at the last call of `request_if_due`

    @property
    def paths(self) -> set[str]:
        """The files beside the segments that must be synced. The caller may add to the set, so the next flush
        runs here, not in the group commit."""
        self._log.native.flush_by_log = True
        return self._paths

    @property
    def directories(self) -> set[str]:
        """The directories that must be synced; like `paths`."""
        self._log.native.flush_by_log = True
        return self._directories

    def request(self) -> None:
        if self._under_way or self._held:
            self._again = True
        elif not self._log.closed and not self._log.native.failure and not self._log.native.flush():
            self._under_way = True
            self._log.scheduler.call_later(0, self._begin)

    def hold(self) -> None:
        """Begin no flush until `release`: the flushed offset stays where it is. (One that has begun may raise
        it once more.)"""
        self._held = True
        self._log.native.flush_by_log = True  # or the group commit goes on

    def release(self) -> None:
        self._held = False
        if self._again or self._is_awaited():
            self.request()

    @property
    def at_rest(self) -> bool:
        return not self._under_way

    def moved(self) -> None:
        """The log has gone on in another directory, in which all but the last batches are on disk."""
        self._paths = set()
        self._directories = {self._log.directory, os.path.dirname(self._log.directory)}
        self._log.native.flush_by_log = True
        self._again = True

    def wait_for(self, offset: int, callback: Callback) -> None:
        if self._log.native.flushed_offset >= offset:
            callback(None)
            return
        self._waiting.append((offset, callback))
        self._log.native.notify_flush = True
        self.request()

    def on_flushed(self) -> None:
        """The group commit has flushed the log."""
        self._answer()
        if self._is_awaited():
            self.request()

    def _is_awaited(self) -> bool:
        native = self._log.native
        return bool(self._waiting) and native.flushed_offset < native.end_offset  # otherwise it was cut off

    def _answer(self) -> None:
        flushed = self._log.native.flushed_offset
        ready = [callback for offset, callback in self._waiting if offset <= flushed]
        self._waiting = [waiter for waiter in self._waiting if waiter[0] > flushed]
        self._log.native.notify_flush = bool(self._waiting)
        for callback in ready:
            callback(None)

    def fail_waiters(self, error: BaseException) -> None:
        waiting, self._waiting = self._waiting, []
        self._log.native.notify_flush = False
        for _, callback in waiting:
            callback(error)

    def flush(self) -> None:
        """Flush and wait. Raises KafkaError; after a shortage the log is unchanged, and may be flushed
        later."""
        for pause_s in (*BLOCKING_TRIES_S, None):
            try:
                work = self._work()
                try:
                    work()
                except NotOpened:
                    work.put_back(self)
                    raise
            except OSError as e:
                if not _is_shortage(e):
                    self._log.on_failure(e)
                elif pause_s is not None:
                    time.sleep(pause_s)
                    continue
                else:
                    report(self._log.directory, "a flush", e)
                raise KafkaError(KAFKA_STORAGE_ERROR, str(e)) from e
            self._flushed(work)
            return

    def take_work(self) -> "Work | None":
        """Return the work of `flush`, for another thread; call `settle` after it. In a shortage, do what
        `flush` does, here and now, with its retries, and return None. Raises KafkaError."""
        try:
            return self._work()
        except NotOpened:
            self.flush()
            return None

    def settle(self, work: "Work", error: Exception | None) -> None:
        """Call after `work` ended or failed in another thread. Raises KafkaError."""
        if error is None:
            self._flushed(work)
            return
        if not isinstance(error, OSError):
            raise error
        work.put_back(self)
        if _is_shortage(error):
            self.flush()
            return
        self._log.on_failure(error)
        raise KafkaError(KAFKA_STORAGE_ERROR, str(error)) from error

    def request_if_due(self, now_ms: int, monotonic_ms: int) -> None:
        log = self._log
        self.now_ms = now_ms
        if log.config.flush_ms >= LONG_MAX:
            return
        if self._clean_ms < 0 or log.native.flushed_offset >= log.end_offset:
            self._clean_ms = monotonic_ms
        elif monotonic_ms - self._clean_ms >= log.config.flush_ms:
            self._clean_ms = monotonic_ms
            self.request()

    def _begin(self) -> None:
        log = self._log
        self._again = False
        if log.closed or log.native.failure:
            self._under_way = False
            return
        try:
            work = self._work()
        except OSError as e:
            self._failed(e)
            return
        log.scheduler.run_in_thread(work, lambda error: self._end(work, error), lane="flush")

    def _end(self, work: "Work", error: BaseException | None) -> None:
        if error is None:
            self._under_way = False
            self._retry_ms = RETRY_MS
            if self._flushed(work) or self._again or self._is_awaited():
                self.request()
        elif isinstance(error, OSError):
            work.put_back(self)
            self._failed(error)
        else:
            raise error

    def _failed(self, error: OSError) -> None:
        log = self._log
        if not _is_shortage(error):
            self._under_way = False
            log.on_failure(error)
        elif log.closed:
            self._under_way = False
        else:  # the next try serves later requests, too
            report(log.directory, "a flush", error)
            log.scheduler.call_later(self._retry_ms, self._begin)
            self._retry_ms = min(2 * self._retry_ms, RETRY_MS_MAX)

    def _work(self) -> "Work":
        """Return what to sync, as of now on the loop. Raises NotOpened."""
        native = self._log.native
        epochs = self._log.leader_epochs
        try:
            if epochs.unwritten:
                epochs.write()
            end, generation, files = native.files_to_flush()
        except OSError as e:
            raise NotOpened(*e.args) from e
        paths, self._paths = self._paths, set()
        directories, self._directories = self._directories, set()
        if epochs.unsynced:
            epochs.unsynced = False
            paths = {*paths, epochs.path}
            directories = {*directories, self._log.directory}  # it was renamed into place
        native.flush_by_log = False
        first_base = native.first_base_offset
        return Work(end, generation, first_base, [reference for _, reference in files], paths, directories)

    def _flushed(self, work: "Work") -> bool:
        if self._log.halted:  # a truncation may have replaced the files since
            return False
        if self._log.directory in work.directories:
            self._log.first_base_synced = work.first_base
        again = self._log.native.flushed(work.end, work.generation)
        self._answer()
        return again


class Work:
    """One flush, for a thread."""

    __slots__ = ("directories", "end", "files", "first_base", "generation", "paths")

    def __init__(
        self,
        end: int,
        generation: int,
        first_base: int,
        files: "list[FileRef]",
        paths: set[str],
        directories: set[str],
    ) -> None:
        self.end = end
        self.generation = generation
        self.first_base = first_base
        self.files = files
        self.paths = paths
        self.directories = directories

    def __call__(self) -> None:
        """Sync. Raises NotOpened, or OSError if an fsync failed."""
        for file in self.files:
            os.fdatasync(file.fd)
        _sync_all(self.paths, os.O_RDONLY, os.fdatasync)
        _sync_all(self.directories, os.O_RDONLY | os.O_DIRECTORY, os.fsync)

    def put_back(self, flusher: Flusher) -> None:
        """On the loop: let the next flush do what this one did not."""
        flusher.paths.update(self.paths)
        flusher.directories.update(self.directories)


def _sync_all(paths: Iterable[str], flags: int, sync: Callable[[int], None]) -> None:
    for path in paths:
        try:
            fd = os.open(path, flags | os.O_CLOEXEC)
        except FileNotFoundError:
            continue  # deleted, or renamed for deletion, meanwhile
        except OSError as e:
            raise NotOpened(*e.args) from e
        try:
            sync(fd)
        finally:
            os.close(fd)


def _is_shortage(error: OSError) -> bool:
    return isinstance(error, NotOpened) and error.errno not in FATAL


def is_fatal(error: Exception) -> bool:
    """Return whether a directory has failed, as opposed to one log or a shortage."""
    cause = error if isinstance(error, OSError) else error.__cause__
    return isinstance(cause, OSError) and cause.errno in FATAL

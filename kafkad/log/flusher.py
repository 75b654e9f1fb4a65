"""The flush policy of one log: what is not on the disk yet, and when it gets there.

With flush.messages = M an append that would leave M messages unflushed is written, but HW, and with it the
ack and visibility, stays behind until an fdatasync that began after it; all appends that come meanwhile share
the next one. The plain case, one fdatasync of the active segment, is `_native/group_commit`'s, which the
native append asks by itself. Here is the rest, in a thread of the scheduler: several segments after a roll,
small files and directory entries, and logs without a group commit. A failed fsync takes the log directory
offline and is never tried again: the kernel may have dropped the pages (the fsyncgate of 2018).

Beside the segments there are small files and directory entries to sync: whoever makes one notes it here
(`paths`, `directories`), and the next flush takes it along, before it counts for anything that was appended
after the note.

Beware: the work itself runs in a thread, with file references and paths; it touches neither log nor
partition."""

import errno
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from kafkad.log.checkpoints import sync_directory
from kafkad.protocol.errors import KAFKA_STORAGE_ERROR, KafkaError

if TYPE_CHECKING:
    from kafkad.log.log import Log

LONG_MAX: Final = (1 << 63) - 1
RETRY_MS: Final = 100  # after which a file that could not be opened for want of a descriptor is tried again
# What makes a disk broken rather than full or busy: as in _native/fileio.is_fatal.
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


class Flusher:
    __slots__ = ("_again", "_directories", "_log", "_paths", "_under_way", "_waiting", "last_ms")

    def __init__(self, log: "Log", now_ms: int) -> None:
        self._log = log
        self._under_way = self._again = False
        self._waiting: list[tuple[int, Callback]] = []
        self._paths: set[str] = set()
        self._directories: set[str] = set()
        self.last_ms = now_ms  # when nothing was unflushed, or flush.ms had it flushed

    @property
    def paths(self) -> set[str]:
        """Files beside the segments that are to be synced. Who asks for the set may add to it, so the next
        flush is ours, not the group commit's."""
        self._log.native.flush_by_log = True
        return self._paths

    @property
    def directories(self) -> set[str]:
        """Directories that are to be synced; as `paths`."""
        self._log.native.flush_by_log = True
        return self._directories

    def request(self) -> None:
        if self._under_way:
            self._again = True
        elif not self._log.closed and not self._log.native.failure and not self._log.native.flush():
            self._under_way = True
            self._log.scheduler.call_later(0, self._begin)

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
        return bool(self._waiting) and native.flushed_offset < native.end_offset  # else it was cut off

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
        """Blocks. Raises KafkaError."""
        try:
            end, generation, work = self._work()
            work()
        except OSError as e:
            self._log.on_failure(e)
            raise KafkaError(KAFKA_STORAGE_ERROR, str(e)) from e
        self._flushed(end, generation)

    def request_if_due(self, now_ms: int) -> None:
        log = self._log
        if log.config.flush_ms >= LONG_MAX:
            return
        if log.native.flushed_offset >= log.end_offset:
            self.last_ms = now_ms
        elif now_ms - self.last_ms >= log.config.flush_ms:
            self.last_ms = now_ms
            self.request()

    def _begin(self) -> None:
        log = self._log
        self._again = False
        if log.closed or log.native.failure:
            self._under_way = False
            return
        try:
            end, generation, work = self._work()
        except OSError as e:
            self._under_way = False
            if e.errno not in FATAL:  # no descriptor or memory left: it may be had later
                if log.native.flushed(log.native.flushed_offset, log.native.generation):
                    log.scheduler.call_later(RETRY_MS, self.request)
                self.fail_waiters(e)
                return
            log.on_failure(e)
            return
        log.scheduler.run_in_thread(work, lambda error: self._end(end, generation, error))

    def _end(self, end: int, generation: int, error: BaseException | None) -> None:
        self._under_way = False
        if error is not None:
            if self._log.closed:
                return
            if not isinstance(error, OSError):
                raise error
            self._log.on_failure(error)
            return
        if self._flushed(end, generation) or self._again or self._is_awaited():
            self.request()

    def _work(self) -> tuple[int, int, Callable[[], None]]:
        # What to sync, taken on the loop.
        end, generation, files = self._log.native.files_to_flush()
        self._log.native.flush_by_log = False
        paths, self._paths = self._paths, set()
        directories, self._directories = self._directories, set()
        epochs = self._log.leader_epochs
        if epochs.unsynced:
            epochs.unsynced = False
            paths = {*paths, epochs.path}
            directories = {*directories, self._log.directory}  # it was renamed into place

        def work() -> None:
            for _, reference in files:
                os.fdatasync(reference.fd)
            for path in paths:
                _sync_path(path)
            for directory in directories:
                try:
                    sync_directory(directory)
                except FileNotFoundError:
                    pass  # renamed for deletion meanwhile

        return end, generation, work

    def _flushed(self, end: int, generation: int) -> bool:
        again = self._log.native.flushed(end, generation)
        self._answer()
        return again


def _sync_path(path: str) -> None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return  # deleted meanwhile
    try:
        os.fdatasync(fd)
    finally:
        os.close(fd)

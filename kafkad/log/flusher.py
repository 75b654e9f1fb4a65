"""The flush policy of one log: what is not on the disk yet, and when it gets there.

With flush.messages = M an append that would leave M messages unflushed is written, but HW, and with it the
ack and visibility, stays behind until an fdatasync that began after it. That runs in a flusher thread; all
appends that come meanwhile share the next one (group commit). A failed fsync takes the log directory offline
and is never tried again: the kernel may have dropped the pages (the fsyncgate of 2018).

Beside the segments there are small files and directory entries to sync: whoever makes one notes it here
(`paths`, `directories`), and the next flush takes it along.

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
    __slots__ = ("_again", "_log", "_under_way", "_waiting", "directories", "last_ms", "paths")

    def __init__(self, log: "Log", now_ms: int) -> None:
        self._log = log
        self._under_way = self._again = False
        self._waiting: list[tuple[int, Callback]] = []
        self.paths: set[str] = set()  # of files beside the segments that are to be synced
        self.directories: set[str] = set()
        self.last_ms = now_ms  # when nothing was unflushed, or flush.ms had it flushed

    def request(self) -> None:
        if self._under_way:
            self._again = True
        elif not self._log.closed and not self._log.native.failure:
            self._under_way = True
            self._log.scheduler.call_later(0, self._begin)

    def wait_for(self, offset: int, callback: Callback) -> None:
        if self._log.native.flushed_offset >= offset:
            callback(None)
            return
        self._waiting.append((offset, callback))
        self.request()

    def fail_waiters(self, error: BaseException) -> None:
        waiting, self._waiting = self._waiting, []
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
                log.native.flushed(log.native.flushed_offset, log.native.generation)
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
        if self._flushed(end, generation) or self._again or self._waiting:
            self.request()

    def _work(self) -> tuple[int, int, Callable[[], None]]:
        # What to sync, taken on the loop.
        end, generation, files = self._log.native.files_to_flush()
        paths, self.paths = self.paths, set()
        directories, self.directories = self.directories, set()
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
        native = self._log.native
        again = native.flushed(end, generation)
        self._log.recovery_point = max(self._log.recovery_point, native.flushed_offset)
        if self._waiting:
            flushed = native.flushed_offset
            ready = [callback for offset, callback in self._waiting if offset <= flushed]
            self._waiting = [waiter for waiter in self._waiting if waiter[0] > flushed]
            for callback in ready:
                callback(None)
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

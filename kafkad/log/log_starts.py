"""The log starts that DeleteRecords moved: they are in the checkpoint file before any client is answered.

DeleteRecords moves log starts in memory, as many as its request names, and then asks once per directory to
save them. One write, off the loop, covers all moves before it began; later moves share the next one. So a
request costs one write of the file, not one per partition.

Deleted records do not come back after a kill. They may after a power loss, until the next checkpoint, unless
the topic is configured to flush (flush.messages): then the name of the new file is synced before the answer,
too. Retention of such a topic also saves its log start here before it moves it (`segment_deletion`).

Beware: the write runs in a thread, everything else on the loop. A log may be deleted, and its name reused,
before the thread writes: `Directory.write_log_starts` compares the logs themselves."""

import errno
from collections.abc import Callable
from typing import TYPE_CHECKING

from kafkad.log.directory import Directory
from kafkad.log.flusher import LONG_MAX

if TYPE_CHECKING:
    from kafkad.log.log import Log
    from kafkad.log.scheduler import Scheduler

Done = Callable[[OSError | None], None]


class LogStarts:
    """The log starts of one directory. `on_error` gets the error of each failed write, before the waiting
    callers."""

    def __init__(self, directory: Directory, scheduler: "Scheduler", on_error: Callable[[OSError], None]):
        self._directory = directory
        self._scheduler = scheduler
        self._on_error = on_error
        self._moved = self._sync = False  # since the last write began
        self._under_way = False
        self._answered: list[Done] = []  # to be called by the current write
        self._waiting: list[Done] = []  # to be called by the next write

    def move(self, log: "Log") -> None:
        """Note that the log start of `log` has moved in memory."""
        self._moved = True
        self._sync = self._sync or log.config.flush_messages < LONG_MAX

    def keep(self, done: Done) -> None:
        """Call `done` when all moves up to now are in the file, or with the error that prevents it."""
        if self._under_way and not self._moved:
            self._answered.append(done)
        elif self._under_way:
            self._waiting.append(done)
        elif self._moved:
            self._answered.append(done)
            self._begin()
        else:
            done(None)

    def _begin(self) -> None:
        directory = self._directory
        if directory.offline:
            self._answer(OSError(errno.EIO, f"the log directory {directory.path} is offline"))
            return
        sync, self._sync, self._moved, self._under_way = self._sync, False, False, True
        directory.serial += 1  # checkpoints taken before and not written yet are out of date
        starts = {
            key: (log, start) for key, log in directory.logs_by_key.items() if (start := log.start_to_keep)
        }
        directory.in_flight.append(starts)

        def end(error: BaseException | None) -> None:
            directory.in_flight.remove(starts)
            if error is not None and not isinstance(error, OSError):
                raise error
            self._end(sync, error)

        self._scheduler.run_in_thread(lambda: directory.write_log_starts(starts, sync), end)

    def _end(self, sync: bool, error: OSError | None) -> None:
        self._under_way = False
        if error is not None:
            self._moved, self._sync = True, self._sync or sync
            self._on_error(error)
        self._answer(error)
        if self._waiting:
            self._answered, self._waiting = self._waiting, []
            self._begin()

    def _answer(self, error: OSError | None) -> None:
        answered, self._answered = self._answered, []
        for done in answered:
            done(error)


def keep_all(keepers: list[LogStarts], done: Callable[[list[OSError | None]], None]) -> None:
    """Call all `keepers`, and `done` with the error of each when the last one has answered."""
    errors: list[OSError | None] = [None] * len(keepers)
    waiting = len(keepers)

    def kept(at: int, error: OSError | None) -> None:
        nonlocal waiting
        errors[at] = error
        waiting -= 1
        if waiting == 0:
            done(errors)

    if not keepers:
        done(errors)
    for at, keeper in enumerate(keepers):
        keeper.keep(lambda error, at=at: kept(at, error))  # type: ignore[misc]

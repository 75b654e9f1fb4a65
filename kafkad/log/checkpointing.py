"""When the checkpoint files of the data directories are written, and what happens if that fails.

`Directory` has the files themselves. They are written in a thread: periodically, after a truncation, and when
the log cleaner or DeleteRecords need it; at a clean stop they are written at once. A directory whose disk
fails goes offline; after a shortage (a full disk) the next checkpoint tries again."""

import logging
from collections.abc import Callable, Sequence

from kafkad.log.directory import CHECKPOINTS, Directory
from kafkad.log.flusher import FATAL
from kafkad.log.log_starts import LogStarts
from kafkad.log.scheduler import Scheduler

logger = logging.getLogger("kafkad.log")


class Checkpointing:
    """Belongs to the loop. `go_offline` is called with a directory whose disk has failed."""

    def __init__(self, go_offline: Callable[[Directory], None]) -> None:
        self._go_offline = go_offline
        self._starts: dict[int, LogStarts] = {}  # by directory number

    def write_later(self, scheduler: Scheduler, directory: Directory, names: Sequence[str]) -> None:
        """Write those of `names` whose offsets have changed, in a thread; one such write at a time. If
        all checkpoints are named, look for removed logs, too: that lists the directory, so it is not done for
        each change."""
        directory.owed |= directory.writing and len(names) == len(CHECKPOINTS)
        if directory.offline or directory.writing:
            return
        changed = {}
        for name in names:
            offsets = directory.offsets_now(name)
            if directory.is_due(name, offsets):
                changed[name] = offsets
        looks = len(names) == len(CHECKPOINTS)
        if not changed and not looks:
            return
        directory.writing = True
        directory.serial += bool(changed)
        serial = directory.serial
        directory.in_flight.extend(changed.values())

        def write() -> None:
            directory.write(changed, serial)
            if looks:
                directory.look_for_removed()

        def done(error: BaseException | None) -> None:
            directory.writing = False
            for offsets in changed.values():
                directory.in_flight.remove(offsets)
            if isinstance(error, OSError):
                self.failed(directory, error)
            elif error is not None:
                raise error
            elif directory.owed:
                directory.owed = False
                self.write_later(scheduler, directory, CHECKPOINTS)

        scheduler.run_in_thread(write, done)

    def write_now(self, directory: Directory) -> bool:
        """Write all of them now: before their contents would be wrong, and at the end. Return whether it
        worked."""
        if directory.offline:
            return False
        directory.serial += 1
        try:
            directory.write({name: directory.offsets_now(name) for name in CHECKPOINTS}, directory.serial)
        except OSError as e:
            self.failed(directory, e)
            return False
        return True

    def log_starts(self, scheduler: Scheduler, directory: Directory) -> LogStarts:
        """The log starts of a directory that DeleteRecords moves."""
        known = self._starts.get(directory.number)
        if known is None:
            known = self._starts[directory.number] = LogStarts(
                directory, scheduler, lambda error: self.failed(directory, error)
            )
        return known

    def failed(self, directory: Directory, error: OSError) -> None:
        logger.error("checkpoints of %s could not be written: %s", directory.path, error)
        if error.errno in FATAL:
            self._go_offline(directory)

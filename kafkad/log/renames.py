"""Partition directories that were renamed, for deletion or as strays, until the new names are on disk.

A change of metadata renames many; each data directory is synced once for all of them. The same job drops the
offsets of deleted partitions from the checkpoint files, because a new partition of that name must not inherit
them. Both need fsyncs, so they run off the loop."""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from kafkad.log.checkpoints import sync_directory
from kafkad.log.directory import Directory, Key
from kafkad.log.flusher import FATAL

if TYPE_CHECKING:
    from kafkad.log.scheduler import Scheduler

logger = logging.getLogger("kafkad.log")


class Renames:
    """`on_failed` gets each directory whose disk is broken."""

    def __init__(self, on_failed: Callable[[Directory], None]) -> None:
        self._on_failed = on_failed
        self._renamed: dict[Directory, set[Key]] = {}
        self._forgetting: set[tuple[Directory, Key]] = set()

    @property
    def are_due(self) -> bool:
        return bool(self._renamed)

    def add(self, directory: Directory, key: Key) -> None:
        """Note that the directory of a partition was renamed, and that its offsets are void."""
        self._renamed.setdefault(directory, set()).add(key)
        directory.serial += 1  # checkpoints taken before name the partition: they are not written

    def sync(self, scheduler: "Scheduler | None", done: Callable[[], None]) -> bool:
        """Sync what was added since the last call, in a thread, then call `done`; here and now if there is no
        scheduler. False: there is nothing to sync, and `done` is not called."""
        renamed, self._renamed = self._renamed, {}
        renamed = {directory: keys for directory, keys in renamed.items() if not directory.offline}
        failed: list[tuple[Directory, OSError]] = []

        def sync() -> None:
            for directory, keys in renamed.items():
                try:
                    sync_directory(directory.path)
                    directory.forget(*keys)
                except OSError as e:
                    failed.append((directory, e))

        def synced(error: BaseException | None) -> None:
            for directory, trouble in failed:
                self._failed(directory, trouble)
            if error is not None:
                raise error
            done()

        if renamed and scheduler is not None:
            scheduler.run_in_thread(sync, synced)
        elif renamed:
            sync()
            synced(None)
        return bool(renamed)

    def forget(self, scheduler: "Scheduler", directory: Directory, key: Key) -> None:
        """Drop the checkpoint entries of a partition that is gone, in a thread."""
        if (directory, key) in self._forgetting:
            return
        self._forgetting.add((directory, key))

        def done(error: BaseException | None) -> None:
            self._forgetting.discard((directory, key))
            if isinstance(error, OSError):
                self._failed(directory, error)
            elif error is not None:
                raise error

        scheduler.run_in_thread(lambda: directory.forget(key), done)

    def _failed(self, directory: Directory, trouble: OSError) -> None:
        logger.error("%s could not be synced after deletions: %s", directory.path, trouble)
        if trouble.errno in FATAL:
            self._on_failed(directory)

"""Removal of files and directories: after a delay, off the loop, one after the other.

Deleting a topic of a thousand partitions removes a thousand directories at the same moment. One thread does
it, in a lane of its own (`Scheduler.run_in_thread`), so only other removals wait for it. It syncs the data
directory once, when no more removals are due. (A removal that power loss undoes is repeated at the next
start: the names show what must be removed.)"""

import logging
import os
import shutil
from collections import deque

from kafkad.log.checkpoints import sync_directory
from kafkad.log.scheduler import Scheduler

logger = logging.getLogger("kafkad.log")


class Removals:
    """Directories of partitions that were renamed for deletion."""

    def __init__(self) -> None:
        self._due: deque[str] = deque()
        self._under_way = self._stopped = False

    def stop(self) -> None:
        """Finish only the current directory: a stop does not wait, and the next start continues."""
        self._stopped = True

    def later(self, scheduler: Scheduler, delay_ms: int, path: str) -> None:
        def due() -> None:
            self._due.append(path)
            self._begin(scheduler)

        scheduler.call_later(delay_ms, due)

    def _begin(self, scheduler: Scheduler) -> None:
        if self._under_way or self._stopped or not self._due:
            return
        self._under_way = True

        def done(error: BaseException | None) -> None:
            self._under_way = False
            _expect_none(error)
            self._begin(scheduler)

        scheduler.run_in_thread(self._remove_all, done, lane="delete")

    def _remove_all(self) -> None:
        # Runs in the thread; more may become due meanwhile.
        parents = set()
        while self._due and not self._stopped:
            path = self._due.popleft()
            if _remove(path):
                parents.add(os.path.dirname(path))
        for parent in parents:
            try:
                sync_directory(parent)
            except FileNotFoundError:
                pass
            except OSError as e:
                logger.warning("%s could not be synced after removals: %s", parent, e)


def _remove(path: str) -> bool:
    try:
        while os.path.exists(path):
            try:
                shutil.rmtree(path)
            except FileNotFoundError:
                pass  # another worker removes it as well
    except OSError as e:
        logger.warning("%s stays until the next start: %s", path, e)
        return False
    return True


def unlink_later(scheduler: Scheduler, delay_ms: int, paths: list[str]) -> None:
    """Remove files off the loop: freeing a gigabyte takes the file system a tenth of a second."""

    def unlink_all() -> None:
        for path in paths:
            try:
                os.unlink(path)
            except FileNotFoundError:
                pass
            except OSError as e:
                logger.warning("%s stays: %s", path, e)

    scheduler.call_later(delay_ms, lambda: scheduler.run_in_thread(unlink_all, _expect_none, lane="delete"))


def _expect_none(error: BaseException | None) -> None:
    if error is not None:
        raise error  # removing raises no expected errors: a bug

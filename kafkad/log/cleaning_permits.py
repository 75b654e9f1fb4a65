"""Permits for cleaning: log.cleaner.threads limits the whole broker, not each worker.

A permit is one locked byte of a file that all workers share. The lock ends with its process, so a killed
worker returns its permits."""

import fcntl
import os


class Permits:
    """Created before the workers are forked; used on each worker's loop."""

    def __init__(self) -> None:
        self._fd = os.memfd_create("kafkad-cleaners", os.MFD_CLOEXEC)
        self._taken: set[int] = set()

    def __del__(self) -> None:
        os.close(self._fd)

    def take(self, count: int) -> int | None:
        """Return one of `count` permits, to be given back; None: all are taken."""
        for number in range(count):
            if number not in self._taken:
                try:
                    fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, number)
                except OSError:
                    continue
                self._taken.add(number)
                return number
        return None

    def give_back(self, number: int) -> None:
        self._taken.remove(number)
        fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, number)

"""Logs that could not be loaded at the start because of a shortage (of descriptors, memory, disk space).

Requests for such a log come again and again. Loading may have to check gigabytes, so each try runs in a
thread, and its result is available to a later request."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from kafkad.log.directory import Directory

if TYPE_CHECKING:
    from kafkad.log.log import Log
    from kafkad.log.scheduler import Scheduler


class Unloaded:
    """One log that is not loaded yet. `load` returns the log, None for a stray, and may raise."""

    def __init__(self, directory: Directory, load: "Callable[[], Log | None]", trouble: Exception) -> None:
        self.directory = directory
        self.loaded = False  # `log` is the result; None: a stray
        self.log: Log | None = None
        self.trouble: Exception | None = trouble  # of the last try, until it is taken
        self._load = load
        self._under_way = False
        self._awaited: list[Callable[[], None]] = []

    def begin(self, scheduler: "Scheduler") -> None:
        """Try in a thread, unless one is trying."""
        if self._under_way:
            return
        self._under_way = True
        found: list[Log | None] = []

        def done(error: BaseException | None) -> None:
            self._under_way = False
            if error is None:
                self.loaded, self.log = True, found[0]
            elif isinstance(error, Exception) and not isinstance(error, AssertionError):
                self.trouble = error
            else:
                raise error
            awaited, self._awaited = self._awaited, []
            for call in awaited:
                call()

        scheduler.run_in_thread(lambda: found.append(self._load()), done)

    def take_trouble(self) -> Exception | None:
        """Return what the last try raised; None if it was taken before, or no try has ended."""
        trouble, self.trouble = self.trouble, None
        return trouble

    def when_at_rest(self, call: Callable[[], None]) -> None:
        """Call `call` when no thread uses the directory, perhaps at once."""
        if self._under_way:
            self._awaited.append(call)
        else:
            call()

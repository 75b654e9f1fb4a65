"""The next segment of one log, created ahead: its files exist, without a name, before the active one is full.

A roll creates three files, stretches two of them and maps them. On a disk that is busy with fsyncs each of
these may wait for the file system's journal, and the loop and all its clients would wait, too. So if a log is
written fast (its active segment went from half to three quarters full in less than a minute), a thread
creates the files (`_native/log/next_segment`, O_TMPFILE), and the roll only names them. If that fails, the
roll creates its files itself: without O_TMPFILE support, on a full disk, or if the roll came first. Files
that are late for one roll are used for the next.

The cost is three descriptors and two mappings; a log that has not rolled for two sweeps releases them.

Beware: the thread creates the files; everything else here belongs to the loop."""

import logging
from typing import Final

from kafkad._native.log.next_segment import NextSegment as Files
from kafkad.log.owner import Owner

logger = logging.getLogger("kafkad.log")

NEVER: Final = (1 << 63) - 1
FAST_MS: Final = 60_000  # for a quarter of a segment
SEGMENT_BYTES_MIN: Final = 1 << 20  # Kafka's minimum; below, there is no time to create anything ahead


class NextSegment:
    __slots__ = ("_files", "_log", "_refused", "_seen", "_since_ms", "_under_way")

    def __init__(self, log: Owner) -> None:
        self._log = log
        self._files: Files | None = None
        self._since_ms = -1  # when the active segment was half full, or new
        self._under_way = self._refused = self._seen = False

    @property
    def ready(self) -> bool:
        return self._files is not None

    def watch(self, rolled_ms: int = -1) -> None:
        """The active segment is new, rolled at `rolled_ms`; or `segment.bytes` has changed."""
        self._since_ms = rolled_ms
        size = self._log.config.segment_bytes
        self._log.native.filling_at = NEVER if size < SEGMENT_BYTES_MIN or self._refused else size // 2

    def on_filling(self, now_ms: int) -> None:
        """Called by the native side: the active segment has reached `filling_at`."""
        native = self._log.native
        quarters = native.active_size * 4 // self._log.config.segment_bytes
        if quarters < 3:
            self._since_ms = now_ms
            native.filling_at = self._log.config.segment_bytes * 3 // 4
        elif self._since_ms >= 0 and now_ms - self._since_ms < FAST_MS:
            self._make()

    def _make(self) -> None:
        log = self._log
        if self._files is not None or self._under_way or log.closed:
            return
        self._under_way = True
        directory, index_bytes = log.directory, log.config.segment_index_bytes
        offsets, times = (entries * 3 // 2 for entries in log.native.index_entries())
        made: list[Files] = []

        def make() -> None:
            made.append(Files(directory, index_bytes, offsets, times))

        def done(error: BaseException | None) -> None:
            self._under_way = False
            if error is None:
                self._files = None if log.closed else made.pop()
                self._seen = False
            elif isinstance(error, OSError):
                self._refused = True  # if the cause is not O_TMPFILE, the roll will report it
                logger.debug("%s: nothing is made ahead: %s", directory, error)
            else:
                raise error

        log.scheduler.run_in_thread(make, done)

    def take(self, base_offset: int) -> Files | None:
        """Return the files, named, for the segment that begins at `base_offset`; None: they must be
        created."""
        files, self._files = self._files, None
        if files is None or files.index_size_max != self._log.config.segment_index_bytes:
            return None
        if not files.link(self._log.directory, base_offset):
            return None
        return files

    def release_idle(self) -> None:
        """Do a sweep: release files that were already there at the last one."""
        if self._seen:
            self._files = None
        self._seen = self._files is not None

    def close(self) -> None:
        self._files = None

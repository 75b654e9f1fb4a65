"""Loads the groups of partitions of `__consumer_offsets`, or the transactional ids of partitions of
`__transaction_state`, while other requests are served.

    load(partition)    its groups are answered COORDINATOR_LOAD_IN_PROGRESS from now on
    followers          must have the whole log, so that nothing is served that could be lost with the leader.
                       After READS_AFTER_MS without them, what they have is loaded, and may be read: a leader
                       that lacks followers for min.insync.replicas may wait for long
    a thread           reads the segment files and keeps the last record of each key, without the GIL
    the loop           builds groups and offsets from those records in slices, then serves them

One partition is read at a time, READ_AT_ONCE bytes per job, so that other jobs of the pool need not wait
long. Small partitions, which means nearly all, are loaded at once. A partition whose files cannot be opened
or read is retried with a growing delay, while the others are loaded. Unloading a partition cancels its load.
If the followers of a partition do not catch up, that is logged repeatedly.

Beware: records appended after `load` are not read, so nothing may append to a partition that is loading."""

import gc
import logging
import os
from collections import deque
from collections.abc import Callable, Container
from typing import Any, Generic, Protocol, TypeVar

from kafkad._native.shared.watermarks import LEADER
from kafkad.log.filenames import LOG, segment_file
from kafkad.log.log import Log
from kafkad.protocol.errors import Malformed
from kafkad.replication.partitions import Partitions
from kafkad.server.group_storage import OFFSETS_TOPIC
from kafkad.server.scheduler import LoopScheduler

logger = logging.getLogger(__name__)

CHUNK = 1 << 20
READ_AT_ONCE = 32 << 20
AT_ONCE = 1 << 20  # bytes loaded in one turn of the loop, over all partitions: about 15 ms
RETRY_MS = 1_000  # after the first failure; doubled after each further one
RETRY_MS_MAX = 30_000
READS_AFTER_MS = 1_000
TAIL_TOLD_MS = 10_000  # between two log lines about a partition that waits for its followers


class Replay(Protocol):
    """What was read of a partition so far."""

    def feed(self, buffer: Any, start_offset: int = 0) -> int:
        """Take whole batches, and return how many bytes that were. Raises Malformed."""


class Loading(Protocol):
    """A partition of a coordinator (coordinator.shard, coordinator.transaction_shard)."""

    index: int
    closed: bool
    tail_open: bool  # only what is committed is loaded, for reads

    @property
    def replay(self) -> Replay: ...


Loaded = TypeVar("Loaded", bound=Loading)


class Coordinator(Protocol[Loaded]):
    """The coordinator of groups or of transactions."""

    @property
    def shards(self) -> Container[int]: ...  # by partition: loaded or loading
    def begin_load(self, partition: int) -> Loaded: ...
    def end_load(self, shard: Loaded, done: Callable[[], object] | None = None) -> None: ...
    def refuse_load(self, shard: Loaded, why: Exception) -> None: ...
    def unload(self, partition: int) -> None: ...


class SegmentFiles:
    """The bytes of a log as it is now, or below `end_offset`, read from its segment files in any thread."""

    def __init__(self, log: Log, end_offset: int | None = None) -> None:
        self._log = log
        self._directory = log.directory
        self._start_offset = log.log_start_offset
        self._segments = [(base, size) for base, size, _ in log.native.segment_rows()]
        if end_offset is not None:
            last, end = log.native.position_of(end_offset)
            self._segments = [
                (base, end if base == last else size) for base, size in self._segments if base <= last
            ]
        self._at = 0  # number of the segment
        self._position = 0
        self.size = sum(size for _, size in self._segments)
        self.failures = 0  # since the last successful read

    @property
    def ended(self) -> bool:
        return self._at == len(self._segments)

    def feed(self, replay: Replay, limit: int) -> None:
        """Feed about `limit` bytes. Raises Malformed, or OSError; then it may be called again."""
        while limit > 0 and not self.ended:
            limit -= self._feed_segment(replay, limit)

    def _feed_segment(self, replay: Replay, limit: int) -> int:
        base, size = self._segments[self._at]
        begun = self._position
        if begun < size:
            file = os.open(segment_file(self._directory, base, LOG), os.O_RDONLY | os.O_CLOEXEC)
            try:
                while self._position < size and self._position - begun < limit:
                    self._feed_chunk(replay, file, base, size)
            finally:
                os.close(file)
        taken = self._position - begun
        if self._position >= size:
            self._at += 1
            self._position = 0
        return taken

    def _feed_chunk(self, replay: Replay, file: int, base: int, size: int) -> None:
        wanted = CHUNK
        while True:
            wanted = min(wanted, size - self._position)
            data = os.pread(file, wanted, self._position)
            taken = replay.feed(data, self._start_offset)
            if taken:
                self._position += taken
                return
            needed = 12 + int.from_bytes(data[8:12], "big") if len(data) >= 12 else size
            if len(data) < wanted or needed <= wanted or wanted == size - self._position:
                raise Malformed(f"segment {base} ends within a batch at position {self._position}")
            wanted = needed

    def skip_deleted(self) -> bool:
        """Call on the loop after a file was not found: continue after the segments that the log has deleted.
        Return False if it has deleted none."""
        first = self._log.native.first_base_offset
        skipped = self._at
        while not self.ended and self._segments[self._at][0] < first:
            self._at += 1
            self._position = 0
        return self._at > skipped


class TailWatch:
    """Logs a partition that waits for its followers, every TAIL_TOLD_MS."""

    def __init__(self, scheduler: LoopScheduler, topic: str, shard: Loading, log: Log) -> None:
        self._scheduler = scheduler
        self._topic = topic
        self._shard = shard
        self._log = log
        self._timer = scheduler.call_later(TAIL_TOLD_MS, self._tell)

    def _tell(self) -> None:
        if not self._shard.closed:
            logger.warning(
                "%s-%d is not served yet: it waits for its followers, which have it up to %d of %d",
                self._topic, self._shard.index, self._log.high_watermark, self._log.end_offset,
            )  # fmt: skip
            self._timer = self._scheduler.call_later(TAIL_TOLD_MS, self._tell)

    def cancel(self) -> None:
        self._timer.cancel()


class GroupLoader(Generic[Loaded]):
    """One per worker: call `load` for each partition that it begins to lead."""

    def __init__(
        self,
        groups: Coordinator[Loaded],
        partitions: Partitions,
        scheduler: LoopScheduler,
        topic: str = OFFSETS_TOPIC,
    ) -> None:
        """`topic`: what the coordinator reads."""
        self._topic = topic
        self._groups = groups
        self._partitions = partitions
        self._scheduler = scheduler
        self._queue: deque[tuple[Loaded, SegmentFiles]] = deque()  # the first one is being loaded
        self._room = AT_ONCE
        self._gc_held = False

    def load(self, index: int) -> None:
        """Load a partition, if it is led here and neither loaded nor loading."""
        log = self._partitions.find(self._topic, index)
        if log is None or log.native.role != LEADER or index in self._groups.shards:
            return
        self._load_when_committed(self._groups.begin_load(index), log)

    def _load_when_committed(self, shard: Loaded, log: Log) -> None:
        """Load once the log is committed to its end: another leader may not have the records above the high
        watermark. Without followers, only the flush policy holds it back."""
        if log.native.follows_end or log.high_watermark >= log.end_offset:
            self._begin(shard, SegmentFiles(log))
            return

        watch = TailWatch(self._scheduler, self._topic, shard, log)
        reads = self._scheduler.call_later(READS_AFTER_MS, lambda: self._load_for_reads(shard, log))

        def reached(trouble: BaseException | None) -> None:
            watch.cancel()
            reads.cancel()
            self._scheduler.call_later(0, lambda: self._tail_ended(shard, log, trouble))

        log.await_high_watermark(log.end_offset, reached)

    def _load_for_reads(self, shard: Loaded, log: Log) -> None:
        """The followers do not come. As Kafka does, let requests read what is committed."""
        if not shard.closed and self._topic == OFFSETS_TOPIC:
            shard.tail_open = True
            self._begin(shard, SegmentFiles(log, log.high_watermark))

    def _tail_ended(self, shard: Loaded, log: Log, trouble: BaseException | None) -> None:
        if shard.closed:
            return
        if trouble is None and shard.tail_open:
            self._groups.unload(shard.index)
            self.load(shard.index)
        elif trouble is None:
            self._load_when_committed(shard, log)
        else:  # it is not led any more, or its disk has failed
            self._groups.unload(shard.index)

    def _begin(self, shard: Loaded, files: SegmentFiles) -> None:
        if files.size <= self._room:
            self._load_at_once(shard, files)
            return
        self._queue_up(shard, files)

    def _queue_up(self, shard: Loaded, files: SegmentFiles) -> None:
        self._queue.append((shard, files))
        if len(self._queue) == 1:
            self._scheduler.call_later(0, self._read)

    def _put_aside(self, shard: Loaded, files: SegmentFiles, trouble: BaseException) -> None:
        """Queue it again later; the partitions behind it are loaded first."""
        if shard.closed:
            return
        delay_ms = min(RETRY_MS << min(files.failures, 10), RETRY_MS_MAX)
        files.failures += 1
        logger.error(
            "%s-%d cannot be read yet: %s; the next try is in %d s",
            self._topic, shard.index, trouble, delay_ms // 1000,
        )  # fmt: skip
        self._scheduler.call_later(delay_ms, lambda: self._queue_up(shard, files))

    def _load_at_once(self, shard: Loaded, files: SegmentFiles) -> None:
        if self._room == AT_ONCE:
            self._scheduler.call_later(0, self._make_room)
        self._room -= files.size
        try:
            files.feed(shard.replay, AT_ONCE)
        except (OSError, MemoryError) as trouble:
            self._put_aside(shard, files, trouble)
        except AssertionError:
            raise
        except Exception as trouble:  # Malformed, or a record that nobody has foreseen
            self._groups.refuse_load(shard, trouble)
        else:
            self._groups.end_load(shard)

    def _make_room(self) -> None:
        self._room = AT_ONCE

    # -- longer work ---------------------------------------------------------------------------------------

    def _read(self) -> None:
        shard, files = self._queue[0]
        if shard.closed:
            self._go_on()
            return
        if gc.isenabled():  # the new objects all stay: repeated collections would take long
            self._gc_held = True
            gc.disable()
        self._scheduler.run_in_thread(lambda: files.feed(shard.replay, READ_AT_ONCE), self._have_read)

    def _have_read(self, trouble: BaseException | None) -> None:
        shard, files = self._queue[0]
        if shard.closed and isinstance(trouble, (Malformed, OSError, MemoryError)):
            self._go_on()  # a follower's log may be cut while it is read
        elif isinstance(trouble, FileNotFoundError) and not shard.closed and files.skip_deleted():
            self._read()
        elif isinstance(trouble, (OSError, MemoryError)):
            self._put_aside(shard, files, trouble)
            self._go_on(loaded=False)
        elif isinstance(trouble, Exception) and not isinstance(trouble, AssertionError):
            self._groups.refuse_load(shard, trouble)
            self._go_on()
        elif trouble is not None:
            raise trouble
        elif files.ended:
            self._groups.end_load(shard, self._go_on)
        else:
            files.failures = 0
            self._read()

    def _go_on(self, *, loaded: bool = True) -> None:
        """The first partition in the queue is done, or put aside."""
        self._queue.popleft()
        if self._gc_held:
            self._gc_held = False
            if loaded:
                gc.freeze()
            gc.enable()
        if self._queue:
            self._scheduler.call_later(0, self._read)

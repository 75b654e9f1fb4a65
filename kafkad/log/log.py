"""One partition's log: Kafka's UnifiedLog over the native hot path.

The native `Partition` appends and reads. Rare cases are handled here and in the modules that this one calls:
`opening`, `appending` (what the native append leaves), `rolling`, `truncation`, `segment_deletion`
(retention), `timestamps` (searches by time) and `flusher` (what is on disk).

Beware: one thread owns a log, the worker's loop. Only functions passed to `Scheduler.run_in_thread` run
elsewhere; they get file references and paths, never the log."""

import errno
import logging
import os
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Literal

from kafkad._native.log.next_segment import NextSegment as Files
from kafkad._native.log.partition import Partition
from kafkad.log import appending, opening, relocation, rolling, timestamps, truncation
from kafkad.log.admission import NEED_TRANSACTION, Admission
from kafkad.log.appending import Origin
from kafkad.log.checkpoints import write_partition_metadata
from kafkad.log.clean_marks import CleanStop
from kafkad.log.cutting import Cutting, Prepared
from kafkad.log.down_conversion import DownConversion
from kafkad.log.filenames import (
    LOG,
    PARTITION_METADATA,
    SNAPSHOT,
    segment_file,
)
from kafkad.log.flusher import FATAL, RETRY_MS, RETRY_MS_MAX, Flusher, Work
from kafkad.log.leader_epochs import OFFSET_MAX, LeaderEpochs
from kafkad.log.next_segment import NextSegment
from kafkad.log.pending_append import AppendResult, PendingAppend, append_rules
from kafkad.log.producer_state import ProducerRow, producer_rows, write_snapshot
from kafkad.log.scheduler import Handle, Scheduler
from kafkad.log.segment_deletion import delete_due
from kafkad.log.shortages import report
from kafkad.log.timestamps import Search, TimestampOffset, finish
from kafkad.log.txn_index import AbortedTxn
from kafkad.log.whole_batches import whole_batches as whole_batches
from kafkad.protocol.errors import (
    CORRUPT_MESSAGE,
    KAFKA_STORAGE_ERROR,
    NOT_LEADER_OR_FOLLOWER,
    OFFSET_OUT_OF_RANGE,
    POLICY_VIOLATION,
    KafkaError,
)

if TYPE_CHECKING:
    from kafkad._native.shared.watermarks import RowSlot
    from kafkad.config.topic import TopicConfig

logger = logging.getLogger("kafkad.log")

READ_SIZE: Final = 1 << 20
PRODUCER_EXPIRATION_MS: Final = 86_400_000  # producer.id.expiration.ms

Below = Literal["high_watermark", "end", "stable"]
ISOLATIONS: Final[dict[str, int]] = {"high_watermark": 0, "stable": 1, "end": 2}
_SIZE = struct.Struct(">i")


class Log:
    """Opened by `Log.open`; then `set_leader_epoch` opens it to clients."""

    down_conversion = DownConversion

    __slots__ = (
        "_config",
        "_half_done",
        "_jitter",
        "_next",
        "_retry",
        "_retry_ms",
        "_role",
        "_unfinished",
        "_waiting_watermark",
        "being_cleaned",
        "cleaned_below",
        "closed",
        "cut_to",
        "cuts",
        "directory",
        "first_base_synced",
        "flusher",
        "keep_log_start",
        "leader_epochs",
        "native",
        "next_start",
        "on_cut",
        "on_log_start",
        "on_offline",
        "on_replica_start",
        "on_short",
        "partition",
        "producer_expiration_ms",
        "replica_joins",
        "scanned_bytes",
        "scheduler",
        "snapshot_offset",
        "topic",
        "uncleanable",
    )

    # -- opening ---------------------------------------------------------------------------------------------

    @classmethod
    def open(
        cls,
        directory: str,
        topic: str,
        partition: int,
        config: "TopicConfig",
        *,
        now_ms: int,
        clean: bool | CleanStop,
        scheduler: Scheduler,
        recovery_point: int = 0,
        log_start_offset: int = 0,
        high_watermark: int = 0,
        cleaned_below: int = 0,
        topic_id: bytes | None = None,
        row: "RowSlot | None" = None,
        left: "RowSlot | None" = None,
        jitter: float = 0.0,
        producer_expiration_ms: int = PRODUCER_EXPIRATION_MS,
    ) -> "Log":
        """Load the partition in `directory` (its own, `…/<topic>-<partition>`), or create it there.

        `clean`: the last owner closed it; a CleanStop is believed unless the files contradict it.
        `topic_id` is written where there is none yet; one that differs raises Malformed.
        `left`: the shared row of the previous owner, which has just died. Its values are trusted, other
        workers keep reading from it, and this log takes it over when loading is done. Raises Emptied if it
        had records and its segments are gone, OSError if the disk fails."""
        kept = opening.Kept(clean, recovery_point, log_start_offset, high_watermark, cleaned_below, left)
        kept.trust(directory)
        seen = opening.survey(directory, topic, partition, topic_id, row, kept)
        self = cls(
            directory, seen.native, seen.epochs, config, scheduler, jitter, producer_expiration_ms, now_ms
        )
        opening.load(self, seen, kept, topic_id, now_ms)
        return self

    def __init__(
        self,
        directory: str,
        native: Partition,
        epochs: LeaderEpochs,
        config: "TopicConfig",
        scheduler: Scheduler,
        jitter: float,
        producer_expiration_ms: int,
        now_ms: int,
    ) -> None:
        self.directory = directory
        self.topic = native.topic
        self.partition = native.index
        self.native = native
        native.log = self
        native.epochs = epochs
        self.scheduler = scheduler
        self.producer_expiration_ms = producer_expiration_ms
        self.on_log_start: Callable[[Log], None] | None = None  # called when DeleteRecords moved it
        self.replica_joins: Callable[[Log, int], None] | None = None  # a follower may join the ISR
        self.on_replica_start: Callable[[Log], None] | None = None  # set while DeleteRecords waits
        self.keep_log_start: Callable[[Log, Callable[[OSError | None], None]], None] | None = None
        self.first_base_synced = 0  # the first segment when the directory was last synced
        self.next_start = -1  # to which retention will move the log start once that is on disk
        self.on_offline: Callable[[Log, OSError], None] | None = None
        self.on_short: Callable[[Log, OSError], None] | None = None  # of on_shortage
        self.on_cut: Callable[[Log], None] | None = None  # called when it was truncated
        self.closed = False
        self.being_cleaned = self.uncleanable = False
        self.cleaned_below = 0  # the cleaner's checkpoint
        self.cuts = 0  # how often it was truncated: that invalidates a cleaning in progress
        self.cut_to = OFFSET_MAX  # the lowest offset to which, since a move has last looked (log.moves)
        self.scanned_bytes = 0  # by recovery
        self.leader_epochs = epochs
        self.snapshot_offset = -1
        self._half_done = ""  # what left files and memory different
        self._unfinished: Callable[[], None] | None = None  # tries that once more
        self._retry: Handle | None = None
        self._retry_ms = RETRY_MS
        self._role: tuple[int, int, int] | None = None  # arguments of the last `follow`
        self._jitter = jitter
        self._waiting_watermark: list[tuple[int, Callable[[BaseException | None], None]]] = []
        self.flusher = Flusher(self, now_ms)
        self._next = NextSegment(self)
        self._configure(config)

    def _configure(self, config: "TopicConfig") -> None:
        self._config = config
        age_max_ms = config.segment_ms
        if "compact" in config.cleanup_policy:  # otherwise its records could not be cleaned in time
            age_max_ms = min(age_max_ms, config.max_compaction_lag_ms)
        jitter_ms = int(self._jitter * min(config.segment_jitter_ms, age_max_ms))
        self.native.configure(
            **append_rules(config),
            segment_bytes=config.segment_bytes,
            segment_age_max_ms=age_max_ms - jitter_ms,
            index_interval_bytes=config.index_interval_bytes,
            index_size_max=config.segment_index_bytes,
            flush_interval=config.flush_messages,
            insync_min=config.min_insync_replicas,
        )
        self._next.watch()

    # -- properties ------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        offsets = f"{self.log_start_offset}..{self.end_offset}"
        return f"<Log {self.topic}-{self.partition} {offsets} in {self.directory}>"

    @property
    def config(self) -> "TopicConfig":
        return self._config

    @property
    def topic_id(self) -> bytes:
        return self.native.topic_id

    @property
    def size(self) -> int:
        return self.native.size

    @property
    def log_start_offset(self) -> int:
        return self.native.log_start_offset

    @property
    def start_to_keep(self) -> int:
        """The log start offset that a checkpoint must have; 0 if the first segment's name is enough.

        Power loss brings back segments whose new names are not on disk yet. So the relevant segment is the
        first one that the disk certainly has."""
        start = max(self.log_start_offset, self.next_start)
        return start if start > min(self.first_base_synced, self.native.first_base_offset) else 0

    @property
    def end_offset(self) -> int:
        return self.native.end_offset

    @property
    def high_watermark(self) -> int:
        return self.native.high_watermark

    @property
    def last_stable_offset(self) -> int:
        return self.native.last_stable_offset

    @property
    def recovery_point(self) -> int:
        """Everything below is on disk."""
        return self.native.flushed_offset

    @property
    def leader_epoch(self) -> int:
        return self.native.leader_epoch

    @property
    def epochs(self) -> list[tuple[int, int]]:
        """(leader epoch, its start offset), ascending."""
        return self.leader_epochs.entries

    @property
    def segments(self) -> list[tuple[int, int]]:
        """(base offset, size) of each, oldest first."""
        return [(base, size) for base, size, _ in self.native.segment_rows()]

    def written_ms(self, base: int) -> int:
        """Return when the segment that begins at `base` was last written. Raises KafkaError."""
        status: os.stat_result = self.io(os.stat, segment_file(self.directory, base, LOG))
        return status.st_mtime_ns // 1_000_000

    def active_producers(self) -> Iterator[ProducerRow]:
        """The producers that are known now. There may be very many: no row exists before it is asked for."""
        return producer_rows(self.native.producers)

    def adopt_topic_id(self, topic_id: bytes) -> None:
        """Set the topic id from the metadata, after partition.metadata was lost. Raises KafkaError."""
        assert self.topic_id == bytes(16)
        self.native.set_topic_id(topic_id)
        try:
            write_partition_metadata(self.directory, topic_id, sync=False)
        except OSError as e:
            raise self.refuse(e) from e
        self.flusher.paths.add(os.path.join(self.directory, PARTITION_METADATA))

    # -- leading ---------------------------------------------------------------------------------------------

    def set_leader_epoch(
        self, epoch: int, leader_id: int = -1, partition_epoch: int = 0, *, alone: bool = True
    ) -> None:
        """Lead the partition from LEO on under `epoch`: serve appends and reads; `leader_id` is this broker.
        `alone`: it is the only replica, so HW follows LEO; otherwise HW stays until the followers have
        fetched. Raises KafkaError; then it does not lead."""
        self._finish()
        self._role = None
        self._change_epochs(lambda: self.leader_epochs.assign(epoch, self.end_offset))
        self.native.follows_end = alone
        if alone:
            self.native.forget_replicas()
        if self.native.has_readers:
            self.native.read_to_end = True  # other workers do not say so when they read
        entries = self.leader_epochs.entries
        previous = entries[-2][0] if len(entries) > 1 else -1
        self.native.lead(epoch, leader_id, partition_epoch, entries[-1][1], previous)
        if self.leader_epochs.unwritten:  # the loader found no room
            self._write_epochs_soon()
        if self.end_offset - self.native.flushed_offset >= self._config.flush_messages:
            self.request_flush()

    def assign_epoch(self, epoch: int, start_offset: int) -> None:
        """The first batch of a leader's `epoch` is about to be appended. Raises KafkaError."""
        self.assign_epoch_of(epoch, start_offset)
        self.native.note_epochs()
        self.native.flush_by_log = True  # the file is flushed with the batch

    def assign_epoch_of(self, epoch: int, start_offset: int) -> None:
        """The first batch of `epoch` was appended at `start_offset`. Raises KafkaError."""
        self._change_epochs(lambda: self.leader_epochs.assign(epoch, start_offset))

    def _change_epochs(self, change: Callable[[], None]) -> None:
        """Change the epochs; in a shortage a flush writes the file, as soon as it can. Until then the workers
        that read this log refuse to say where an epoch ended. Raises KafkaError."""
        try:
            change()
        except OSError as e:
            if e.errno in FATAL:
                raise self.refuse(e) from e
            report(self.directory, "writing the leader epochs", e)
            self._write_epochs_soon()

    def _write_epochs_soon(self) -> None:
        self.native.flush_by_log = True  # the group commit does not write the file
        self.request_flush()

    def follow(self, epoch: int, leader_id: int, partition_epoch: int = 0) -> None:
        """Follow the leader of `epoch`, or nobody (-1). The broker can still read the log; clients get
        NOT_LEADER_OR_FOLLOWER, including waiting ones."""
        self._role = epoch, leader_id, partition_epoch
        if self.halted:  # `_finish` does it
            return
        self.native.follow(epoch, leader_id, partition_epoch)
        if self.leader_epochs.unwritten:
            self._write_epochs_soon()
        self._fail_waiters(KafkaError(NOT_LEADER_OR_FOLLOWER))

    def resign(self, code: int = NOT_LEADER_OR_FOLLOWER) -> None:
        """Answer clients with `code` from now on, including waiting ones."""
        self._role = None
        self.native.close_to_clients(code)
        self._fail_waiters(KafkaError(code))

    def update_config(self, config: "TopicConfig") -> None:
        self._configure(config)
        if self.native.open:
            self.native.settle()
            if self.end_offset - self.native.flushed_offset >= config.flush_messages:
                self.request_flush()

    # -- appending -------------------------------------------------------------------------------------------

    def append_client(
        self,
        records: memoryview | bytearray | bytes,
        now_ms: int,
        admission: Admission = Admission.PLAIN,
        guard: int = 0,
    ) -> AppendResult:
        """Append a client batch that the native append did not take. Raises KafkaError (InvalidBatch if a
        single record is invalid), and NeedTransaction if `guard` is 0."""
        begun = self.begin_append(records, now_ms, admission, guard)
        if isinstance(begun, AppendResult):
            return begun
        while begun.step() >= 0:
            pass
        return begun.finish(now_ms)

    def begin_append(
        self,
        records: memoryview | bytearray | bytes,
        now_ms: int,
        admission: Admission = Admission.PLAIN,
        guard: int = 0,
    ) -> "AppendResult | PendingAppend":
        """Do `append_client`; if the batch must be decompressed or rebuilt first, return that work. Raises as
        `append_client`."""
        return appending.begin(self, self._next, records, now_ms, admission, guard)

    def ask_guard(
        self, admission: Admission, producer_id: int, epoch: int, base_sequence: int, now_ms: int
    ) -> int:
        """Return the guard with which to ask the coordinator and to append our own batch in a transaction;
        0 if the transaction is open here. Raises KafkaError."""
        code = self.native.ask_guard(admission, producer_id, epoch, base_sequence, now_ms)
        if code == NEED_TRANSACTION:
            return self.native.guard
        if code:
            raise KafkaError(code)
        return 0

    def append(
        self,
        batch: bytearray,
        now_ms: int,
        *,
        origin: Origin = "coordinator",
        epoch: int | None = None,
        admission: Admission = Admission.PLAIN,
        guard: int = 0,
    ) -> int:
        """Append a batch of the broker or of a leader, without checking its records; return its base offset.
        Sets offsets and `epoch` (default: the leader epoch) unless `origin` is "replica". `admission`:
        for a group's commit in a transaction, with the guard from `ask_guard`. Raises KafkaError."""
        return appending.append(self, batch, now_ms, origin, epoch, admission, guard)

    def take_marks(self, high_watermark: int, log_start: int) -> None:
        """Follow the leader's marks: HW, at most to LEO, and the log start, at most to HW. Raises
        KafkaError."""
        if self.native.take_marks(high_watermark, log_start):
            self.advance_log_start(log_start)

    def append_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        *,
        commit: bool,
        version: int,
        now_ms: int,
    ) -> int:
        """End a producer's transaction for the coordinator of `coordinator_epoch`, under transaction.version
        `version`. Return the marker's offset. Raises KafkaError; then nothing has changed."""
        return appending.append_marker(
            self, producer_id, producer_epoch, coordinator_epoch, commit, version, now_ms
        )

    def roll(self, now_ms: int, base_offset: int | None = None, files: Files | None = None) -> bool:
        """Begin a new active segment at LEO, or at `base_offset` after it; from `files`, unless False is
        returned. Raises KafkaError."""
        base = self.end_offset if base_offset is None else base_offset
        return rolling.roll(self, self._next, now_ms, base, files)

    # -- reading ---------------------------------------------------------------------------------------------

    def read(self, offset: int, max_bytes: int, *, below: Below = "high_watermark") -> bytes:
        """Return whole batches from the one that holds `offset`: at least one, or as many as fit; b"" at the
        end. Raises KafkaError."""
        code, _, _, _, data = self.native.try_read(offset, max_bytes, True, ISOLATIONS[below])
        if code:
            raise KafkaError(code)
        return whole_batches(data)

    def batches(self, start: int, end: int) -> Iterator[bytes]:
        """Yield the bytes of each batch that begins below `end`, from the one that holds `start`."""
        offset = start
        while offset < end:
            data = self.read(offset, READ_SIZE, below="end")
            if not data:
                return
            at = 0
            while at < len(data):
                size = _SIZE.unpack_from(data, at + 8)[0] + 12
                base = int.from_bytes(data[at : at + 8], "big")
                if base >= end:
                    return
                yield data[at : at + size]
                offset = base + (_SIZE.unpack_from(data, at + 23)[0] if data[at + 16] >= 2 else 0) + 1
                at += size

    def aborted_transactions(self, start: int, end: int) -> list[AbortedTxn]:
        """Return those that overlap [start, end), for a consumer of committed data."""
        return [AbortedTxn(*txn) for txn in self.io(self.native.aborted_transactions, start, end)]

    # -- offsets ---------------------------------------------------------------------------------------------

    def earliest(self) -> TimestampOffset:
        start = self.native.log_start_offset
        entries = self.leader_epochs.entries
        epoch = entries[0][0] if entries and entries[0][1] <= start else -1
        return TimestampOffset(-1, start, epoch)

    def latest(self, isolation: int = 0) -> TimestampOffset:
        """HW, or LSO for `isolation` 1 (read committed)."""
        offset = self.native.last_stable_offset if isolation == 1 else self.native.high_watermark
        epoch = self.leader_epochs.latest
        return TimestampOffset(-1, offset, -1 if epoch is None else epoch)

    def offset_for_timestamp(self, timestamp: int, isolation: int = 0) -> TimestampOffset | None:
        """Return the first record at or after `timestamp`, below HW (or LSO), or None. The offset is exact
        within its batch."""
        return finish(self.seek_timestamp(timestamp, isolation))

    def seek_timestamp(self, timestamp: int, isolation: int = 0) -> Search:
        """`offset_for_timestamp` in steps of bounded work; the log may change between them."""
        return timestamps.seek(self, timestamp, self.latest(isolation).offset)

    def offset_for_max_timestamp(self, isolation: int = 0) -> TimestampOffset | None:
        """Return the first record that has the log's largest timestamp; None if it is not below HW (or
        LSO)."""
        return finish(self.seek_max_timestamp(isolation))

    def seek_max_timestamp(self, isolation: int = 0) -> Search:
        """`offset_for_max_timestamp` in steps of bounded work."""
        return timestamps.seek_max(self, self.latest(isolation).offset)

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """Return (epoch, end offset) as OffsetForLeaderEpoch answers; (-1, -1) if unknown."""
        return self.leader_epochs.end_offset_for(epoch, self.end_offset)

    # -- flushing --------------------------------------------------------------------------------------------

    def request_flush(self) -> None:
        """Flush off the loop, once for all requests before it begins; HW follows by the flush policy."""
        self.flusher.request()

    def await_flushed(self, offset: int, callback: Callable[[BaseException | None], None]) -> None:
        """Call `callback` with None when everything below `offset` is on disk, or with an exception."""
        self.flusher.wait_for(offset, callback)

    def on_flushed(self) -> None:
        """Called by the native side after a flush, if `native.notify_flush` is set."""
        self.flusher.on_flushed()

    def flush(self) -> None:
        """Wait until everything is on disk: for start and shutdown, and for the metadata log. Raises
        KafkaError."""
        self.flusher.flush()

    def flush_if_due(self, now_ms: int, monotonic_ms: int) -> None:
        """Apply flush.ms: no message stays unflushed for longer, by the monotonic clock. Acks do not wait."""
        self.flusher.request_if_due(now_ms, monotonic_ms)

    def await_high_watermark(self, offset: int, callback: Callable[[BaseException | None], None]) -> None:
        """Call `callback(None)` when HW has reached `offset`, as for acks=all, or with an exception."""
        if self.native.high_watermark >= offset:
            callback(None)
            return
        self._waiting_watermark.append((offset, callback))
        self.native.notify_log = True

    # -- called by the native side ---------------------------------------------------------------------------

    def on_filling(self, now_ms: int) -> None:
        """The active segment is filling up: the next one may be created ahead."""
        self._next.on_filling(now_ms)

    def on_advance(self) -> None:
        reached = self.native.high_watermark
        ready = [callback for offset, callback in self._waiting_watermark if offset <= reached]
        self._waiting_watermark = [waiter for waiter in self._waiting_watermark if waiter[0] > reached]
        self.native.notify_log = bool(self._waiting_watermark)
        for callback in ready:
            callback(None)

    def on_replica(self, broker_id: int) -> None:
        """A follower has everything that is committed, and is not in the ISR."""
        if self.replica_joins is not None:
            self.replica_joins(self, broker_id)

    def on_start_told(self) -> None:
        """A follower has raised its log start."""
        if self.on_replica_start is not None:
            self.on_replica_start(self)

    def on_shortage(self, error: OSError) -> None:
        """A request was refused for lack of space, descriptors or memory; the log is unchanged. There may be
        room for the batch behind it, which must not overtake it."""
        self.native.expect_stragglers(0)
        report(self.directory, "a request", error)
        if self.on_short is not None:
            self.on_short(self, error)

    def on_failure(self, error: OSError) -> None:
        """The disk is broken: this log serves nothing more, and its directory goes offline."""
        if self.closed and not self.halted:
            return
        self._unfinished = None
        self.closed = True
        self._next.close()
        logger.error("%s-%d goes offline, %s: %s", self.topic, self.partition, self.directory, error)
        self.native.close_to_clients(KAFKA_STORAGE_ERROR, error.errno or errno.EIO)
        self._fail_waiters(KafkaError(KAFKA_STORAGE_ERROR, str(error)))
        if self.on_offline is not None:
            self.on_offline(self, error)

    def _fail_waiters(self, error: BaseException) -> None:
        waiting, self._waiting_watermark = self._waiting_watermark, []
        self.native.notify_log = False
        self.flusher.fail_waiters(error)
        for _, callback in waiting:
            callback(error)

    def refuse(self, error: OSError) -> KafkaError:
        """Log `error` and return the exception to raise; a broken disk takes the log offline."""
        if error.errno in FATAL:
            self.on_failure(error)
        else:
            self.on_shortage(error)
        return KafkaError(KAFKA_STORAGE_ERROR, str(error))

    def io(self, call: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return call(*arguments)
        except OSError as e:
            raise self.refuse(e) from e
        except ValueError as e:
            raise KafkaError(CORRUPT_MESSAGE, str(e)) from e

    # -- deleting --------------------------------------------------------------------------------------------

    def delete_records(self, before_offset: int) -> int:
        """Do DeleteRecords: move the log start offset in memory (LogDirs.keep_log_starts writes it) and
        return it; -1 means HW. The next retention deletes segments. Raises KafkaError."""
        policy = self._config.cleanup_policy
        if "compact" in policy and "delete" not in policy:
            raise KafkaError(
                POLICY_VIOLATION, "the topic is compacted, its records are not deleted by offset"
            )
        offset = self.high_watermark if before_offset == -1 else before_offset
        if offset < 0 or offset > self.high_watermark:
            raise KafkaError(OFFSET_OUT_OF_RANGE)
        if offset > self.log_start_offset:
            self.advance_log_start(offset)
            if self.on_log_start is not None:
                self.on_log_start(self)
        return self.log_start_offset

    def advance_log_start(self, offset: int) -> None:
        """Raise the log start, for followers, and for a metadata log after a snapshot."""
        if offset > self.log_start_offset:
            self.set_log_start(offset)
            self.forget_epochs_below(offset)

    def advance_high_watermark(self, offset: int) -> None:
        """Raise HW, at most to LEO, as told by the leader of a quorum."""
        self.native.advance_high_watermark(offset)

    def apply_retention(self, now_ms: int) -> int:
        """Delete the oldest segments that retention or the log start offset allows; return how many. Raises
        KafkaError; the rest is deleted next time."""
        return delete_due(self, now_ms)

    def set_log_start(self, offset: int) -> None:
        """Clients see it at once. `leader_epochs` follows."""
        self.native.set_log_start(offset)

    def forget_epochs_below(self, offset: int) -> None:
        self._change_epochs(lambda: self.leader_epochs.truncate_from_start(offset))

    def newest_ms(self, at: int, base: int) -> int:
        """The largest record timestamp of segment `at`, which begins at `base`; of records without timestamps
        the time of the last write. Raises KafkaError."""
        largest: int = self.io(self.native.segment_max_timestamp, at)[0]
        if largest >= 0:
            return largest
        written: int = self.io(os.stat, segment_file(self.directory, base, LOG)).st_mtime_ns // 1_000_000
        return written

    def sync_later(self, directory: str) -> None:
        """The next flush syncs the names in a directory."""
        self.flusher.directories.add(directory)

    def truncate_to(self, offset: int, prepared: Prepared | None = None) -> bool:
        """Remove everything from `offset` on (from the start of the batch that holds it), and epochs that
        begin there: the leader may not know an epoch without records. Return whether anything was removed.
        Raises KafkaError."""
        self._finish()
        if offset < self.end_offset:
            truncation.truncate_to(self, offset, prepared)
            return True
        return self.cut_epochs(offset)

    def begin_truncation(self, offset: int, done: Callable[[KafkaError | None], None]) -> Cutting:
        """Do `truncate_to` without holding up the loop, if nobody appends meanwhile; then call `done`."""
        return Cutting(self, offset, done)

    def cut_epochs(self, offset: int) -> bool:
        """Forget leader epochs that begin at `offset` or later; return whether there were any. Raises
        KafkaError."""
        latest = self.leader_epochs.latest
        self._change_epochs(lambda: self.leader_epochs.truncate_from_end(offset))
        if self.leader_epochs.latest == latest:
            return False
        self.native.note_epochs()
        return True

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Remove everything; the log continues, empty, at `offset`: a snapshot has the rest. Raises
        KafkaError."""
        self._finish()
        truncation.start_at(self, offset)

    @property
    def halted(self) -> bool:
        """Whether the log is closed only until there is room to finish a truncation."""
        return self._unfinished is not None

    @property
    def ended(self) -> bool:
        """Whether the log is closed, and will not serve again."""
        return self.closed and self._unfinished is None

    def half_done(
        self,
        what: str,
        error: OSError | ValueError,
        code: int = KAFKA_STORAGE_ERROR,
        again: Callable[[], None] | None = None,
    ) -> KafkaError:
        """Files and memory may differ now. The log serves nothing until `again` succeeds, which is tried with
        growing pauses; without it, until the next start, which recovers the log."""
        if isinstance(error, OSError) and error.errno in FATAL:
            self.on_failure(error)
        elif isinstance(error, OSError) and again is not None and not self.ended:
            self._halt(what, error, again)
        elif not self.ended:
            self._unfinished = None
            logger.error("%s serves nothing until the next start, %s failed: %s",
                         self.directory, what, error)  # fmt: skip
            self.closed = True
            self._half_done = f"{what} failed"
            self._next.close()
            self.native.close_to_clients(KAFKA_STORAGE_ERROR, getattr(error, "errno", None) or errno.EIO)
            self._fail_waiters(KafkaError(code, str(error)))
        return KafkaError(code, str(error))

    def _halt(self, what: str, error: OSError, again: Callable[[], None]) -> None:
        if self.on_short is not None:
            self.on_short(self, error)
        if self.halted:
            report(self.directory, what, error)
        else:
            logger.error("%s serves nothing until %s succeeds: %s", self.directory, what, error)
            self.closed = True
            self._half_done = f"{what} failed"
            self._retry_ms = RETRY_MS
            self._next.close()
            self.native.halt(error.errno or errno.EIO)
            self._fail_waiters(KafkaError(KAFKA_STORAGE_ERROR, str(error)))
        self._unfinished = again
        self._retry = self.scheduler.call_later(self._retry_ms, self._try_to_finish)
        self._retry_ms = min(2 * self._retry_ms, RETRY_MS_MAX)

    def _try_to_finish(self) -> None:
        with suppress(KafkaError):  # it is logged, and tried again
            self._finish()

    def _finish(self) -> None:
        """Finish what a shortage interrupted, and serve again. Raises KafkaError."""
        if self._unfinished is None:
            return
        assert self._retry is not None
        self._retry.cancel()
        self._unfinished()
        self._unfinished = None
        self._half_done = ""
        self.closed = False
        self.native.serve_again()
        logger.warning("%s serves again", self.directory)
        if self._role is not None:
            self.native.follow(*self._role)
        self._write_epochs_soon()

    def remove_expired_producers(self, now_ms: int) -> int:
        self.native.expire_guards(now_ms - self.producer_expiration_ms)
        count = self.native.producers.remove_expired(now_ms, self.producer_expiration_ms)
        if count:
            self.native.expect_forgotten()
        return count

    # -- closing ---------------------------------------------------------------------------------------------

    def release_idle(self) -> int:
        """Close files of old segments that were not read since the last call."""
        self._next.release_idle()
        return self.native.release_idle()

    def close(self, clean: bool = True) -> None:
        """Close the log. Clean: everything is on disk, indexes are cut, the producers are in a snapshot, and
        the recovery point is LEO. Raises KafkaError if the disk fails."""
        work = self.begin_close(clean)
        if work is not None:
            try:
                work()
            except Exception as e:
                self.end_close(work, e)
            else:
                self.end_close(work, None)

    def begin_close(self, clean: bool) -> Work | None:
        """Do the first part of `close`: return work that syncs files, for any thread; call `end_close` after
        it. None: there is nothing to sync, the log is closed. Raises KafkaError."""
        if self.closed:
            self._unfinished = None
            if clean and self._half_done:
                raise KafkaError(KAFKA_STORAGE_ERROR, self._half_done)
            return None
        self.resign()
        self._next.close()
        work = None
        try:
            if clean:
                work = self._work_to_close()
        except OSError as e:
            raise self.refuse(e) from e
        finally:
            if work is None:
                self.closed = True  # also after a shortage: the next start recovers the log
        return work

    def _work_to_close(self) -> Work | None:
        end = self.end_offset
        touched = (
            self.native.flushed_offset < end
            or end > max(self.snapshot_offset, 0)
            or self.flusher.paths
            or self.flusher.directories
            or self.leader_epochs.unsynced
        )
        active = self.native.active_base_offset
        self.native.close_files()
        if not touched:
            return None
        if end > self.snapshot_offset and end > 0:
            write_snapshot(self.directory, end, self.native.producers, sync=False)
            self.flusher.paths.add(segment_file(self.directory, end, SNAPSHOT))
            self.snapshot_offset = end
        self.flusher.directories.add(self.directory)
        self.flusher.paths.update(rolling.index_files(self, active))
        work = self.flusher.take_work()
        if work is None:
            self.native.close_files()
        return work

    def end_close(self, work: Work, error: Exception | None) -> None:
        """Do the last part of `close`; `error`: what the work raised. Raises KafkaError."""
        try:
            if isinstance(error, KafkaError):  # the work has not ended: it still has its files
                raise error
            self.flusher.settle(work, error)
            self.native.close_files()
        except OSError as e:
            raise self.refuse(e) from e
        finally:
            self.closed = True

    def move_directory(self, directory: str) -> None:
        """Rename the partition's directory, for deletion; the log serves nothing any more. The caller syncs
        the parent. Raises KafkaError."""
        self._unfinished = None
        self.resign()
        self._next.close()
        self.closed = True
        try:
            os.rename(self.directory, directory)
        except OSError as e:
            raise self.refuse(e) from e
        self.directory = directory
        self.native.set_directory(directory)

    def relocate(self, directory: str, rename: Callable[[], None]) -> None:
        """Go on in another directory, as `relocation` says. What `rename` raises is raised."""
        relocation.relocate(self, self._next, directory, rename)

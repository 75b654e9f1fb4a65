"""The appends that the native side does not finish alone.

When the native append returns NEED_PYTHON, a segment must be rolled, a batch decompressed or rebuilt, or old
batches of a producer looked up. This is done here, and the same native append is called again, so each rule
exists once."""

import os
import struct
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from kafkad._native.log.next_segment import NextSegment as Files
from kafkad._native.log.partition_appends import (
    IN_PLACE,
    NOT_IN_PLACE,
    NOT_WRITTEN,
    WANTS_PRODUCERS,
    WANTS_ROLL,
)
from kafkad._native.log.producer_table import ProducerTable
from kafkad._native.log.segment_recovery import replay_producers
from kafkad._native.wire.batch import AppendRules
from kafkad.log import rolling
from kafkad.log.admission import NEED_TRANSACTION, Admission, NeedTransaction
from kafkad.log.filenames import INDEX, LOG, segment_file
from kafkad.log.next_segment import NextSegment
from kafkad.log.pending_append import AppendResult, PendingAppend, PendingSet, Target, append_rules
from kafkad.protocol.errors import (
    KAFKA_STORAGE_ERROR,
    NOT_LEADER_OR_FOLLOWER,
    OFFSET_OUT_OF_RANGE,
    KafkaError,
)
from kafkad.protocol.message_sets import MAGIC_AT
from kafkad.protocol.validation import InvalidBatch

if TYPE_CHECKING:
    from kafkad.config.topic import TopicConfig

Origin = Literal["coordinator", "raft", "replica"]

NEED_PYTHON: Final = -1000
ORIGINS: Final[dict[Origin, int]] = {"coordinator": 1, "raft": 2, "replica": 3}
# The end of a log that contains five batches of a busy producer, in entries of an offset index. These are as
# many batches, or 16 MB of small ones: they are read on the loop.
RECALLED_ENTRIES: Final = 4096
RECALLED_ENTRIES_MIN: Final = 64  # that a segment counts for: opening it takes time, too
INDEX_ENTRY: Final = struct.Struct(">ii")  # relative offset, position
_EPOCH = struct.Struct(">i")

LZ4_LEVEL_DEFAULT: Final = 9


class Appended(rolling.Rolled, Protocol):
    """The part of `log.Log` that an append needs."""

    def io(self, call: Any, *arguments: Any) -> Any: ...

    def roll(self, now_ms: int, base_offset: int | None = None) -> bool: ...

    def assign_epoch_of(self, epoch: int, start_offset: int) -> None: ...


def begin(
    log: Appended,
    ahead: NextSegment,
    records: memoryview | bytearray | bytes,
    now_ms: int,
    admission: Admission,
    guard: int,
) -> AppendResult | PendingAppend:
    """See Log.begin_append."""
    batch: Any = records
    if memoryview(records).readonly:
        batch = bytearray(records)
    kind = PendingSet if len(batch) <= MAGIC_AT or batch[MAGIC_AT] < 2 else PendingAppend
    result = None
    if kind is PendingAppend:
        result = _append_checked(log, ahead, batch, now_ms, False, admission, guard)
    if result is None:
        rules = AppendRules(transactions=True, **append_rules(log.config))  # `admission` decides
        target = Target(
            log.native,
            partial(_append_pending, log, ahead, admission, guard),
            log.directory,
            log.config.segment_bytes,
            log.config.segment_index_bytes,
        )
        return kind(target, batch, rules, now_ms, _compression_level(log.config))
    return result


def _append_pending(
    log: Appended,
    ahead: NextSegment,
    admission: Admission,
    guard: int,
    batch: bytearray | memoryview,
    now_ms: int,
    files: Files | None,
) -> AppendResult:
    result = _append_checked(log, ahead, batch, now_ms, True, admission, guard, files)
    assert result is not None
    return result


def _append_checked(
    log: Appended,
    ahead: NextSegment,
    batch: bytearray | memoryview,
    now_ms: int,
    checked: bool,
    admission: Admission,
    guard: int,
    files: Files | None = None,
) -> AppendResult | None:
    """Return None if it must be decompressed or rebuilt first. `checked`: it was. `files` begin with it."""
    native = log.native
    written = NOT_WRITTEN if files is None else NOT_IN_PLACE
    while True:
        code, base, end, time_ms, start, bad_record, message = native.try_append(
            batch, now_ms, checked, written, admission, guard
        )
        if code == 0:
            return AppendResult(base, end, time_ms, start)
        if written == IN_PLACE:
            log.io(native.cut_active)
            written = NOT_WRITTEN
        if code == NEED_TRANSACTION:
            raise NeedTransaction(native.guard)
        if code != NEED_PYTHON:
            raise InvalidBatch(code, message, bad_record)
        if native.wants == WANTS_ROLL:
            if written == NOT_IN_PLACE:
                assert files is not None
                # False: that failed, and nothing of the batch is in the active segment
                is_in_place = rolling.put_in_place(log, ahead, files, batch, now_ms)
                written = IN_PLACE if is_in_place else NOT_WRITTEN
            else:
                log.roll(now_ms)
            continue
        if native.wants == WANTS_PRODUCERS:
            _recall_producers(log)
            continue
        assert not checked
        return None


def _recall_producers(log: Appended) -> None:
    """Complete producers from a snapshot, which has only their last batch, from the log: a client may retry
    any of the last five. At most once after a start, when such a retry comes."""
    replayed = ProducerTable()
    starts: list[tuple[int, int]] = []
    left = RECALLED_ENTRIES
    active = log.native.active_base_offset
    for base, _, _ in reversed(log.native.segment_rows()):
        entries = log.native.index_entries()[0] if base == active else 0
        position, count = log.io(_tail_of, segment_file(log.directory, base, INDEX), entries, left)
        starts.append((base, position))
        left -= max(count, RECALLED_ENTRIES_MIN)
        if left <= 0:
            break
    for base, position in reversed(starts):
        path = segment_file(log.directory, base, LOG)
        log.io(replay_producers, path, replayed, base, log.end_offset, position)
    log.native.producers.recall(replayed)


def _tail_of(path: str, entries: int, wanted: int) -> tuple[int, int]:
    """Return where in a segment the batch of its `wanted`-th last index entry begins (0: it has fewer), and
    the number of entries from there on. `path`: of the offset index; `entries`: how many it has, 0 if its
    size shows that."""
    try:
        with open(path, "rb") as file:
            entries = entries or file.seek(0, os.SEEK_END) // INDEX_ENTRY.size
            if entries < wanted:
                return 0, entries
            file.seek((entries - wanted) * INDEX_ENTRY.size)
            entry = file.read(INDEX_ENTRY.size)
    except FileNotFoundError:
        return 0, 0
    position = INDEX_ENTRY.unpack(entry)[1] if len(entry) == INDEX_ENTRY.size else 0
    return (position, wanted) if position > 0 else (0, 0)  # 0: behind the entries, the file is stretched


def _compression_level(config: "TopicConfig") -> int | None:
    if config.compression_type == "gzip":
        return config.compression_gzip_level
    if config.compression_type == "zstd":
        return config.compression_zstd_level
    if config.compression_type == "lz4" and config.compression_lz4_level != LZ4_LEVEL_DEFAULT:
        return config.compression_lz4_level
    # Also for lz4's default: Kafka's Lz4BlockOutputStream uses the fast compressor then, which has no level.
    return None


def append(
    log: Appended,
    batch: bytearray,
    now_ms: int,
    origin: Origin,
    epoch: int | None,
    admission: Admission,
    guard: int,
) -> int:
    """See Log.append."""
    native = log.native
    if log.closed:
        raise KafkaError(KAFKA_STORAGE_ERROR if native.failure else NOT_LEADER_OR_FOLLOWER)
    if origin == "coordinator" and not native.open:
        raise KafkaError(NOT_LEADER_OR_FOLLOWER)
    if origin == "replica":
        epoch = _EPOCH.unpack_from(batch, 12)[0]
        if int.from_bytes(batch[:8], "big") < log.end_offset:
            raise KafkaError(OFFSET_OUT_OF_RANGE, "the batch lies before the end of the log")
    elif epoch is None:
        epoch = native.leader_epoch
    while True:
        code, base, message = native.append_trusted(batch, now_ms, ORIGINS[origin], epoch, admission, guard)
        if code != NEED_PYTHON:
            break
        log.roll(now_ms, int.from_bytes(batch[:8], "big") if origin == "replica" else None)
    if code:
        raise KafkaError(code, message)
    if epoch >= 0 and epoch != log.leader_epochs.latest:
        log.assign_epoch_of(epoch, base)
    return base


def append_marker(
    log: Appended,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    commit: bool,
    version: int,
    now_ms: int,
) -> int:
    """See Log.append_marker."""
    while True:
        code, offset, message = log.native.append_marker(
            producer_id, producer_epoch, coordinator_epoch, commit, version, now_ms
        )
        if code == 0:
            return offset
        if code != NEED_PYTHON:
            raise KafkaError(code, message)
        log.roll(now_ms)

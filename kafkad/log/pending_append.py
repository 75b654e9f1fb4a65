"""A client's batch that is not appended in one turn of the loop: it is decompressed, rebuilt or just large.

A thread makes the steps (`_native/serving/unpacking`), and the loop appends the batch in `finish`, under the
state of the log at that time. Then only the write takes long: 40 MB take 20 ms of the loop, and 100 ms if the
system has to find the memory first. So a thread writes a batch of AHEAD_BYTES or more into a segment file
that has no name yet. `finish` writes the offset and the leader epoch into it, which the CRC does not cover,
and the file becomes the next segment, or replaces the active one if that is empty. Other producers append to
the partition meanwhile. If there is no such file, or it cannot be written, the loop writes the batch, and
reports a disk error as usual.

Beware: a segment begins with each batch of that size, so AHEAD_BYTES is far above what clients send."""

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kafkad._native.log.next_segment import NextSegment as Files
from kafkad._native.log.partition import Partition
from kafkad._native.wire.batch import AppendRules
from kafkad.protocol.errors import INVALID_RECORD
from kafkad.protocol.message_sets import SetValidation
from kafkad.protocol.validation import HEADER_SIZE, InvalidBatch, Validation

if TYPE_CHECKING:
    from kafkad.config.topic import TopicConfig

AHEAD_BYTES: Final = 32 << 20
PIECE: Final = 2 << 20
CODECS: Final[dict[str, int]] = {
    "producer": -1, "uncompressed": 0, "none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4,
}  # fmt: skip


class AppendResult(NamedTuple):
    base_offset: int
    end_offset: int  # acknowledge when HW has reached it
    append_time_ms: int  # -1 unless message.timestamp.type=LogAppendTime
    log_start_offset: int


class Target(NamedTuple):
    """The log for a batch. `append(batch, now_ms, files)`: `files` begin with the batch."""

    partition: Partition
    append: Callable[[bytearray | memoryview, int, Files | None], AppendResult]
    directory: str
    segment_bytes: int
    index_bytes: int


class PendingAppend(Validation):
    """The validation of a client batch: call `step` until it returns -1, in any thread, then `finish` on the
    loop."""

    __slots__ = ("_files", "_target")

    def __init__(
        self,
        target: Target,
        batch: bytearray | memoryview,
        rules: AppendRules,
        now_ms: int,
        level: int | None,
    ) -> None:
        self._target = target
        self._files: Files | None = None
        super().__init__(batch, rules, now_ms, level)

    @property
    def partition(self) -> Partition:
        return self._target.partition

    def close(self) -> None:
        super().close()
        self._files = None

    def finish(self, now_ms: int) -> AppendResult:
        """Append the batch, if the log still accepts it. Raises KafkaError."""
        batch = self.settle(now_ms)
        if len(batch) < HEADER_SIZE:
            raise InvalidBatch(INVALID_RECORD, "not a record batch")
        return self._target.append(batch, now_ms, self._files)

    def _run(self, now_ms: int) -> Generator[int, None, None]:
        yield from super()._run(now_ms)
        if AHEAD_BYTES <= len(self.batch) <= self._target.segment_bytes:
            yield from self._write_ahead()

    def _write_ahead(self) -> Generator[int, None, None]:
        try:
            files = Files(self._target.directory, self._target.index_bytes)
            with memoryview(self.batch) as batch:
                for position in range(0, len(batch), PIECE):
                    files.write(batch[position : position + PIECE], position)
                    yield PIECE
        except OSError:
            return
        self._files = files


class PendingSet(PendingAppend, SetValidation):
    """A client's message set of magic 0 or 1, which becomes one batch v2."""

    __slots__ = ()

    def finish(self, now_ms: int) -> AppendResult:
        """Append the set, like a batch. Without a whole message the answer has no offsets, and nothing
        changes."""
        if len(self.batch) == 0:
            return AppendResult(-1, -1, -1, self.partition.log_start_offset)
        return super().finish(now_ms)


def append_rules(config: "TopicConfig") -> dict[str, Any]:
    """Return a topic's rules for a client's batch, with the native side's names."""
    return {
        "max_message_bytes": config.max_message_bytes,
        "compression_type": CODECS[config.compression_type],
        "log_append_time": config.message_timestamp_type == "LogAppendTime",
        "before_max_ms": config.message_timestamp_before_max_ms,
        "after_max_ms": config.message_timestamp_after_max_ms,
        "compacted": "compact" in config.cleanup_policy,
    }

"""The slow part of a client's append, for batches to which `_native/wire/batch.validate` answers NEED_PYTHON.

A compressed batch is decompressed chunk by chunk and walked natively. So memory is bounded by a chunk,
whatever the batch claims to hold, and the GIL is released meanwhile. A good batch is stored unchanged, unless
the topic has another codec or the offset deltas are wrong; then it is rebuilt, also chunk by chunk.

A `Validation` works in steps of bounded work: an event loop does small batches itself and leaves the others
to threads (`_native/serving/unpacking`). It uses the log's configuration from its beginning. The append
itself handles what may change meanwhile (the leader epoch, producers, the time of a LogAppendTime). A batch
above LARGE_BATCH is always checked by a thread, even if it is not compressed, because a CRC and a walk over
megabytes take milliseconds.

The rules themselves are in `_native/wire/batch.pyx`; this module only has their order.

DECOMPRESSED_FACTOR bounds the work that one batch can cause. Kafka has no such limit. 64 times
max.message.bytes, and at least 64 MiB, is far above real data. A larger batch gets MESSAGE_TOO_LARGE, which
makes producers split it."""

from collections.abc import Generator, Sequence
from typing import Any, Final

from kafkad._native.wire import records as native
from kafkad._native.wire.batch import AppendRules, BatchHeader, RecordWalk, copied
from kafkad.protocol import compression as codecs
from kafkad.protocol.errors import CORRUPT_MESSAGE, INVALID_RECORD, MESSAGE_TOO_LARGE, KafkaError, Malformed

DECOMPRESSED_FACTOR: Final = 64
DECOMPRESSED_MIN: Final = 64 << 20

NEED_PYTHON: Final = -1000
HEADER_SIZE: Final = 61
ATTRIBUTES_AT: Final = 22  # the second byte of the 16 bits; the first is unused
COMPRESSION_MASK: Final = 0x07
PACKED_PIECE: Final = 16 << 10
LARGE_BATCH: Final = 2 << 20
LARGE_PIECE: Final = 1 << 20  # piece of an uncompressed batch


class InvalidBatch(KafkaError):
    """A client's batch is refused. `bad_record` is the index of the bad record, or -1 if the error is about
    the batch. `bad_records` has all of them, as in RecordWalk."""

    def __init__(
        self, code: int, message: str | None, bad_record: int = -1, bad_records: Sequence[int] = ()
    ) -> None:
        super().__init__(code, message)
        self.bad_record = bad_record
        self.bad_records = bad_records


class Validation:
    """The one client batch in `records` (writable), on its way to be appended: `step` until it answers -1,
    then `settle`. Its timestamps are held against `now_ms`; `level` is for a recompression. Raises
    InvalidBatch, at once or in a step: the end of it."""

    __slots__ = (
        "_chunks", "_copies", "_header", "_steps",
        "ahead", "batch", "large", "level", "memory", "rewrites", "rules", "size",
    )  # fmt: skip

    def __init__(
        self, records: bytearray | memoryview, rules: AppendRules, now_ms: int, level: int | None = None
    ) -> None:
        self.memory = 0  # bytes held from the next step on, without a chunk and the new batch
        self.ahead = 0  # bytes that the next step unpacks at once, if that is more than a chunk
        self.rewrites = False
        self.rules = rules
        self.level = level
        self.batch = records
        self.size = len(records)
        self.large = self.size > LARGE_BATCH
        self._copies = False
        self._header: BatchHeader | None = None
        self._chunks: codecs.Chunks | None = None
        if self.large:
            self.ahead = self.size
        else:
            self._check_header()
        self._steps = self._run(now_ms)

    @property
    def header(self) -> BatchHeader:
        assert self._header is not None
        return self._header

    def copy_first(self) -> None:
        """Copy a large batch before the first step, and use only the copy, because another process may
        overwrite the bytes."""
        assert self.large
        self._copies = True
        self.memory = self.size

    def _check_header(self) -> None:
        verdict, header = self.rules.check_header(self.batch)
        if verdict == NEED_PYTHON:
            raise InvalidBatch(INVALID_RECORD, "Only record batches of magic 2 may be produced")
        if verdict:
            raise InvalidBatch(verdict, header.message, header.bad_record)
        self._header = header
        self.rewrites = self.rules.compression_type not in (-1, header.compression)

    def step(self) -> int:
        """Do a bounded piece of work. Return the number of unpacked bytes, or -1 when everything is done."""
        return next(self._steps, -1)

    def close(self) -> None:
        """Release the bytes, in any state."""
        self._steps.close()
        if self._chunks is not None:
            self._chunks.close()
        self.batch = bytearray()

    def settle(self, now_ms: int) -> bytearray | memoryview:
        """Return the batch after the last step, ready for its offsets: the same buffer, patched if necessary,
        or a new one."""
        self.rules.settle(self.batch, self.header, now_ms)
        return self.batch

    def _run(self, now_ms: int) -> Generator[int, None, None]:
        if self.large:
            if self._copies:
                self.batch = copied(self.batch)
                yield len(self.batch)
            self._check_header()
            yield 0
        header, rules, records = self.header, self.rules, self.batch
        source = header.compression
        target = source if rules.compression_type < 0 else rules.compression_type
        body = memoryview(records)[HEADER_SIZE:]
        limit = max(DECOMPRESSED_MIN, DECOMPRESSED_FACTOR * rules.max_message_bytes)
        walk = RecordWalk(header, rules, now_ms)
        output = Rebuilt(target, self.level, rules.max_message_bytes) if target != source else None
        size = 0
        try:
            for chunk in self._unpack(source, body, output):
                size += len(chunk)
                if size > limit:
                    raise InvalidBatch(MESSAGE_TOO_LARGE, f"The record batch holds more than {limit} bytes")
                if walk.feed(chunk):
                    break
                if output is not None:
                    output.write(chunk)
                yield len(chunk)
        except Malformed as error:
            raise InvalidBatch(CORRUPT_MESSAGE, f"The record batch cannot be decompressed: {error}") from None
        verdict = walk.end()
        if verdict:
            bad_records = walk.bad_records if header.bad_record >= 0 else ()
            raise InvalidBatch(verdict, header.message, header.bad_record, bad_records)

        if not walk.consecutive:
            output = Rebuilt(target, self.level, rules.max_message_bytes)
            renumbering = native.Renumbering()
            for chunk in self._unpack(source, body, output):
                output.write(renumbering.feed(chunk))
                yield len(chunk)
            renumbering.end(header.records_count)
        if output is not None:
            self.batch = output.finish(records)
            header.seal(self.batch)

    def _unpack(self, source: int, body: memoryview, output: "Rebuilt | None") -> codecs.Chunks:
        # Compressing takes much longer than decompressing, so pieces to compress are smaller.
        chunk_size = PACKED_PIECE if output is not None else LARGE_PIECE if source == 0 else codecs.CHUNK
        self._chunks = codecs.steps(source, body, chunk_size, self)
        return self._chunks


def validate_slow(
    records: bytearray | memoryview, rules: AppendRules, now_ms: int, *, level: int | None = None
) -> tuple[bytearray | memoryview, BatchHeader]:
    """Run a whole Validation. Return the batch and its header with the results of the walk. Raise
    InvalidBatch."""
    validation = Validation(records, rules, now_ms, level)
    while validation.step() >= 0:
        pass
    return validation.settle(now_ms), validation.header


class Rebuilt:
    """Rebuild a batch with other records, which are compressed as they come."""

    def __init__(self, codec: int, level: int | None, max_bytes: int) -> None:
        self.codec = codec
        self.compressor = codecs.Compressor(codec, level)
        self.max_bytes = max_bytes
        self.batch = bytearray(HEADER_SIZE)

    def write(self, chunk: Any) -> None:
        self.batch += self.compressor.write(chunk)
        self._check_size()

    def end(self) -> bytearray:
        """Return the batch. Its header is not written yet."""
        self.batch += self.compressor.finish()
        self._check_size()
        return self.batch

    def finish(self, original: Any) -> bytearray:
        self.end()
        self.batch[:HEADER_SIZE] = original[:HEADER_SIZE]
        self.batch[ATTRIBUTES_AT] = self.batch[ATTRIBUTES_AT] & ~COMPRESSION_MASK | self.codec
        return self.batch

    def _check_size(self) -> None:
        if len(self.batch) > self.max_bytes:
            raise InvalidBatch(
                MESSAGE_TOO_LARGE, "The rewritten record batch is larger than max.message.bytes"
            )

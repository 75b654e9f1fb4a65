"""The slow half of a client's append: what `_native/batch.validate` answered NEED_PYTHON to.

Compressed batches are decompressed chunk by chunk and walked natively as the chunks come, so memory stays
at a chunk whatever the batch claims to hold, and the GIL is free meanwhile. A batch that passes is stored
as it came, unless the topic asks for another codec (recompressed, chunk by chunk) or the inner offset
deltas are wrong (rebuilt; the one case that takes the decompressed records into memory, as old clients'
batches are small).

The rules themselves stand in `_native/batch.pyx`; here is only the order in which they are asked.

DECOMPRESSED_FACTOR bounds the work that one batch can cause. Kafka has no such bound. 64 times
max.message.bytes, and 64 MiB at least, is far above what real data reach and keeps a bomb under a tenth
of a second; a larger batch is MESSAGE_TOO_LARGE, which makes producers split it."""

from typing import Any, Final

from kafkad._native import records as native
from kafkad._native.batch import AppendRules, BatchHeader, RecordWalk
from kafkad.protocol import compression as codecs
from kafkad.protocol.errors import CORRUPT_MESSAGE, INVALID_RECORD, MESSAGE_TOO_LARGE, KafkaError, Malformed

DECOMPRESSED_FACTOR: Final = 64
DECOMPRESSED_MIN: Final = 64 << 20

NEED_PYTHON: Final = -1000
HEADER_SIZE: Final = 61
ATTRIBUTES_AT: Final = 22  # the byte of the 16 bits that is in use
COMPRESSION_MASK: Final = 0x07


class InvalidBatch(KafkaError):
    """A client's batch is refused. `bad_record` is the index of the record at fault, -1 if the batch is."""

    def __init__(self, code: int, message: str | None, bad_record: int = -1) -> None:
        super().__init__(code, message)
        self.bad_record = bad_record


def validate_slow(
    records: bytearray | memoryview, rules: AppendRules, now_ms: int, *, level: int | None = None
) -> tuple[bytearray | memoryview, BatchHeader]:
    """The one client batch in `records` (writable), ready for its offsets: the same buffer, patched
    where it must be, or a new one; and its header with what the walk found. `level` is for a
    recompression. Raises InvalidBatch."""
    verdict, header = rules.check_header(records)
    if verdict == NEED_PYTHON:
        raise InvalidBatch(INVALID_RECORD, "Only record batches of magic 2 may be produced")
    if verdict:
        raise InvalidBatch(verdict, header.message, header.bad_record)
    source = header.compression
    target = source if rules.compression_type < 0 else rules.compression_type
    body = memoryview(records)[HEADER_SIZE:]
    limit = max(DECOMPRESSED_MIN, DECOMPRESSED_FACTOR * rules.max_message_bytes)

    walk = RecordWalk(header, rules, now_ms)
    output = _Rebuilt(target, level, rules.max_message_bytes) if target != source else None
    size = 0
    try:
        for chunk in codecs.chunks(source, body):
            size += len(chunk)
            if size > limit:
                raise InvalidBatch(MESSAGE_TOO_LARGE, f"The record batch holds more than {limit} bytes")
            if walk.feed(chunk):
                break
            if output is not None:
                output.write(chunk)
    except Malformed as error:
        raise InvalidBatch(CORRUPT_MESSAGE, f"The record batch cannot be decompressed: {error}") from None
    verdict = walk.end()
    if verdict:
        raise InvalidBatch(verdict, header.message, header.bad_record)

    batch = records
    if not walk.consecutive:
        output = _Rebuilt(target, level, rules.max_message_bytes)
        whole = codecs.decompress(source, body, limit)
        output.write(memoryview(native.renumber(whole, header.records_count))[HEADER_SIZE:])
    if output is not None:
        batch = output.finish(records)
        header.seal(batch)
    rules.settle(batch, header, now_ms)
    return batch, header


class _Rebuilt:
    """The batch with other records behind its header, compressed as they come."""

    def __init__(self, codec: int, level: int | None, max_bytes: int) -> None:
        self.codec = codec
        self.compressor = codecs.Compressor(codec, level)
        self.max_bytes = max_bytes
        self.batch = bytearray(HEADER_SIZE)

    def write(self, chunk: Any) -> None:
        self.batch += self.compressor.write(chunk)
        self._check_size()

    def finish(self, original: Any) -> bytearray:
        self.batch += self.compressor.finish()
        self._check_size()
        self.batch[:HEADER_SIZE] = original[:HEADER_SIZE]
        self.batch[ATTRIBUTES_AT] = self.batch[ATTRIBUTES_AT] & ~COMPRESSION_MASK | self.codec
        return self.batch

    def _check_size(self) -> None:
        if len(self.batch) > self.max_bytes:
            raise InvalidBatch(
                MESSAGE_TOO_LARGE, "The rewritten record batch is larger than max.message.bytes"
            )

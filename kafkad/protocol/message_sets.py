"""Convert a client's message set of magic 0 or 1 to a v2 batch, because a log holds v2 batches only (Kafka's
LogValidator).

Small, plain sets do not come here if they are good (`WholeSets` in `_native/wire/message_set`). For the rest,
`MessageSet` checks the set (sizes, CRCs, codecs). Then `UpConverter` converts its messages to the records of
one v2 batch, which is compressed with the topic's codec. Both work piece by piece. Memory is bounded by a
piece, a message that a piece cuts, and the new batch, which is not larger than max.message.bytes.

Beware: in magic 0, the header checksum of an lz4 frame covers the wrong bytes (KAFKA-3160), so it is
corrected first."""

from collections.abc import Generator
from typing import Any, Final

from kafkad._native.wire.batch import copied
from kafkad._native.wire.message_set import MessageSet, UpConverter
from kafkad.protocol import compression as codecs
from kafkad.protocol.errors import CORRUPT_MESSAGE, MESSAGE_TOO_LARGE, Malformed
from kafkad.protocol.lz4_headers import with_right_lz4_checksum
from kafkad.protocol.validation import (
    DECOMPRESSED_FACTOR,
    DECOMPRESSED_MIN,
    LARGE_PIECE,
    PACKED_PIECE,
    InvalidBatch,
    Rebuilt,
    Validation,
)

MAGIC_AT: Final = 16
CHECKED_PIECE: Final = 256 << 10
MEMORY_STEP: Final = 1 << 20
GZIP_LEVEL: Final = 3  # if the producer chose the codec: twice as fast as the default, up to 10% larger


class SetValidation(Validation):
    """A Validation of a message set. After its last step, `batch` is a v2 batch, or empty if the set is
    empty."""

    __slots__ = ()

    def _check_header(self) -> None:
        """Check nothing, because there is no header."""
        codec = self.rules.compression_type
        self.rewrites = codec > 0

    def settle(self, now_ms: int) -> bytearray | memoryview:
        return super().settle(now_ms) if len(self.batch) else self.batch

    def _run(self, now_ms: int) -> Generator[int, None, None]:
        if self.large and self._copies:
            self.batch = copied(self.batch)
            yield len(self.batch)
        self.ahead = 0
        found = MessageSet(self.rules.max_message_bytes)
        while (size := found.check(self.batch, CHECKED_PIECE)) >= 0:
            yield size
        if found.verdict:
            raise InvalidBatch(found.verdict, found.message)
        if found.count:
            yield from self._convert(found, now_ms)
        else:
            self.batch = bytearray()

    def _convert(self, found: MessageSet, now_ms: int) -> Generator[int, None, None]:
        rules = self.rules
        target = found.codec if rules.compression_type < 0 else rules.compression_type
        self.rewrites = target > 0
        limit = max(DECOMPRESSED_MIN, DECOMPRESSED_FACTOR * rules.max_message_bytes)
        converter = UpConverter(rules, now_ms, found.magic, found.codec != 0, limit)
        level = self.level
        if level is None and target == codecs.GZIP and rules.compression_type < 0:
            level = GZIP_LEVEL
        output = Rebuilt(target, level, rules.max_message_bytes)
        needs = codecs.Needs()
        self._chunks = self._messages(found, target, needs)
        size = 0
        try:
            for chunk in self._chunks:
                size += len(chunk)
                if size > limit:
                    raise InvalidBatch(MESSAGE_TOO_LARGE, f"The message set holds more than {limit} bytes")
                records = converter.feed(chunk)
                if converter.verdict:
                    break
                output.write(records)
                held = needs.memory + converter.held
                self.memory = -(-held // MEMORY_STEP) * MEMORY_STEP  # whose need grows waits for its turn
                self.ahead = needs.ahead
                yield len(chunk)
        except Malformed as error:
            raise InvalidBatch(CORRUPT_MESSAGE, f"The message cannot be decompressed: {error}") from None
        verdict = converter.end(found.offset if found.codec else 0)
        if verdict:
            bad = converter.bad_record
            raise InvalidBatch(verdict, converter.message, bad, converter.bad_records if bad >= 0 else ())
        self.batch = output.end()
        self._header = converter.seal(self.batch, target)

    def _messages(self, found: MessageSet, target: int, needs: codecs.Needs) -> codecs.Chunks:
        view = memoryview(self.batch)
        if found.codec == 0:
            return codecs.steps(0, view[: found.size], PACKED_PIECE if target else LARGE_PIECE, needs)
        value: Any = view[found.value_at : found.value_at + found.value_size]
        if found.codec == codecs.LZ4 and found.magic == 0:
            value = with_right_lz4_checksum(value)
        return codecs.steps(found.codec, value, PACKED_PIECE if target else codecs.CHUNK, needs)

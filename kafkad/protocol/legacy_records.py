"""Read message sets of magic 0 and 1, the formats before Kafka 0.11.

    offset i64 | size i32 | crc u32 | magic i8 | attributes i8 | timestamp i64 (magic 1) | key bytes | value
    bytes

The CRC is zlib's, from the magic to the end. Key and value have a length of 32 bits; -1 is null. An entry
with a codec in its attributes wraps a message set in its value. Its offset is that of the *last* message
inside. The inner offsets are absolute in magic 0, and start at 0 in magic 1 (KIP-31). With LogAppendTime (bit
3), the wrapper's timestamp applies to all messages.

Beware: in magic 0, the header checksum of an lz4 frame covers the wrong bytes (KAFKA-3160). It is corrected
before the library reads the frame (lz4_headers). This module writes nothing."""

import struct
import zlib
from collections.abc import Generator, Iterator
from typing import Any, Final

from kafkad._native.wire.records import Record
from kafkad.protocol import compression as codecs
from kafkad.protocol.errors import Malformed
from kafkad.protocol.lz4_headers import with_right_lz4_checksum

LOG_OVERHEAD: Final = 12  # offset and size
HEADER_SIZE: Final = (LOG_OVERHEAD + 6, LOG_OVERHEAD + 14)  # up to the key, by magic
TIMESTAMP_LOG_APPEND: Final = 0x08
CODEC_MASK: Final = 0x07
DECOMPRESSED_MAX: Final = 1 << 30

Search = Generator[None, None, tuple[int, int] | None]


class LegacyEntry:
    """One entry of a message set: a message, or the wrapper of a compressed set. Malformed if it does not
    parse."""

    __slots__ = ("_message", "attributes", "crc", "key", "magic", "offset", "size", "timestamp", "value")

    def __init__(self, buffer: Any, position: int = 0) -> None:
        view = memoryview(buffer).cast("B")[position:]
        try:
            self.offset, size, self.crc, self.magic, self.attributes = struct.unpack_from(">qiIbb", view)
            if self.magic not in (0, 1) or size > len(view) - LOG_OVERHEAD:
                raise Malformed(f"no message of magic 0 or 1 at position {position}")
            self.size = LOG_OVERHEAD + size
            self._message = view[LOG_OVERHEAD : self.size]
            self.timestamp: int = struct.unpack_from(">q", view, 18)[0] if self.magic else -1
            self.key, end = self._sized(view, HEADER_SIZE[self.magic])
            self.value, end = self._sized(view, end)
        except struct.error:
            raise Malformed(f"a message is cut off at position {position}") from None
        if end != self.size:
            raise Malformed(f"a message's size and its fields do not agree at position {position}")

    def _sized(self, view: memoryview, position: int) -> tuple[bytes | None, int]:
        (size,) = struct.unpack_from(">i", view, position)
        position += 4
        if size < 0:
            return None, position
        if size > self.size - position:
            raise Malformed("a message's key or value is longer than the message")
        return bytes(view[position : position + size]), position + size

    @property
    def compression(self) -> int:
        return self.attributes & CODEC_MASK

    @property
    def timestamp_type(self) -> int:
        return 1 if self.magic and self.attributes & TIMESTAMP_LOG_APPEND else 0

    def is_intact(self) -> bool:
        """The CRC is that of the bytes."""
        return zlib.crc32(self._message[4:]) == self.crc

    def _packed(self) -> Any:
        if self.value is None:
            raise Malformed("a compressed message without value")
        if self.compression == codecs.LZ4 and self.magic == 0:
            return with_right_lz4_checksum(self.value)
        return self.value

    def _shift(self, last: int) -> int:
        """What is to be added to inner offsets, of which `last` is the last."""
        return self.offset - last if self.magic else 0

    def _inside(self) -> Iterator[list[tuple[int, int]]]:
        """In steps: (offset as it stands inside, timestamp) of each message that is wrapped. Raises
        Malformed."""
        rest = b""
        for chunk in codecs.steps(self.compression, self._packed(), codecs.CHUNK, codecs.Needs()):
            rest += chunk
            position = 0
            found = []
            while len(rest) - position >= HEADER_SIZE[1]:
                offset, size = struct.unpack_from(">qi", rest, position)
                if size < HEADER_SIZE[0] - LOG_OVERHEAD:
                    raise Malformed(f"a message of size {size} is wrapped")
                if size > len(rest) - position - LOG_OVERHEAD:
                    break
                timestamp = self.timestamp
                if self.magic and not self.timestamp_type:
                    (timestamp,) = struct.unpack_from(">q", rest, position + HEADER_SIZE[0])
                found.append((offset, timestamp))
                position += LOG_OVERHEAD + size
            rest = rest[position:]
            yield found

    def seek(self, timestamp: int | None, from_offset: int = 0) -> "Search":
        """In steps: (timestamp, offset) of the first message at or after both; with None, of the first one
        with the largest timestamp. None if there is none. Raises Malformed."""
        if not self.compression:
            fits = self.timestamp >= 0 if timestamp is None else self.timestamp >= timestamp
            return (self.timestamp, self.offset) if fits and self.offset >= from_offset else None
        last = -1
        for messages in self._inside():
            if messages:
                last = messages[-1][0]
            yield
        shift = self._shift(last)
        best = None
        for messages in self._inside():
            for offset, time in messages:
                if timestamp is not None:
                    if time >= timestamp and offset + shift >= from_offset:
                        return time, offset + shift
                elif time >= 0 and (best is None or time > best[0]):
                    best = time, offset + shift
            yield
        return best

    def messages(self) -> "list[LegacyEntry]":
        """This message, or those that it wraps, whose offsets are as they stand inside. Raises Malformed."""
        if not self.compression:
            return [self]
        inner = list(read_entries(codecs.decompress(self.compression, self._packed(), DECOMPRESSED_MAX)))
        if not inner:
            raise Malformed("a compressed message that wraps none")
        if any(entry.compression or entry.magic != self.magic for entry in inner):
            raise Malformed("a compressed message wraps one that is compressed too, or of another magic")
        return inner

    def records(self) -> list[Record]:
        """The message, or those that it wraps, with absolute offsets. Raises Malformed."""
        found = self.messages()
        shift = self._shift(found[-1].offset)
        return [
            Record(
                entry.key,
                entry.value,
                None,
                self.timestamp if self.timestamp_type else entry.timestamp,
                entry.offset + shift,
            )
            for entry in found
        ]


def read_entries(buffer: Any) -> Iterator[LegacyEntry]:
    """The entries of a message set; one that the buffer's end cuts is left out. Raises Malformed."""
    view = memoryview(buffer).cast("B")
    position = 0
    while len(view) - position >= LOG_OVERHEAD:
        (size,) = struct.unpack_from(">i", view, position + 8)
        if size < HEADER_SIZE[0] - LOG_OVERHEAD:
            raise Malformed(f"a message of size {size} at position {position}")
        if size > len(view) - position - LOG_OVERHEAD:
            return
        yield LegacyEntry(view, position)
        position += LOG_OVERHEAD + size

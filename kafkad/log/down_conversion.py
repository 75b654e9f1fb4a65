"""Conversion for Fetch v0 to v3: v2 batches of a log become messages of magic 0 or 1.

Kafka announces the size of the stored data, converts while it sends, and fills up with a truncated message.
Here an answer is converted before it is sent, and is small: ANSWER_BYTES over all partitions. Clients ask for
the rest with their next Fetch. So the size is exact, and memory does not depend on what clients ask for.

The work is done in steps: the event loop makes the first ones, threads the rest
(`_native/serving/unpacking`). This module reads the files itself, because a thread may wait for the disk."""

import os
from collections.abc import Generator
from typing import Any, Final, NamedTuple

from kafkad._native.wire.batch import BatchHeader
from kafkad._native.wire.down_conversion import DownConverter, Messages
from kafkad.protocol import compression as codecs
from kafkad.protocol.errors import (
    CORRUPT_MESSAGE,
    KAFKA_STORAGE_ERROR,
    NONE,
    UNSUPPORTED_COMPRESSION_TYPE,
    Malformed,
)
from kafkad.protocol.legacy_records import LegacyEntry
from kafkad.protocol.lz4_headers import with_broken_lz4_checksum

ANSWER_BYTES: Final = 1 << 20  # for all partitions of an answer; a first message may be larger
READ_BYTES: Final = 128 << 10  # of bytes, per step
LARGE: Final = 1 << 20
GZIP_LEVEL: Final = 1  # for uncompressed data: three times as fast as the default
LOOP_PACKED: Final = 16 << 10  # of a compressed batch, which must be decompressed and compressed
MAGIC_AT: Final = 16
SIZE_AT: Final = 8
OVERHEAD: Final = 12

# how to handle a first message larger than the client's limit
LEFT_OUT, WHOLE, CUT = 0, 1, 2


class Source(NamedTuple):
    """The data read for one partition: `size` bytes at `position` of a file, or of bytes."""

    data: int | bytes  # a file descriptor, or bytes
    position: int
    size: int
    from_offset: int
    bytes_max: int  # the client's limit for this partition


class Converted(NamedTuple):
    code: int
    messages: bytes | Messages
    next_offset: int  # behind what became no message at all, else -1


class DownConversion:
    """Call `step` until it returns -1; then `results` has one Converted for each of `sources`. `version` is
    the Fetch's. The partition at `begin` comes first, so that none is always last."""

    __slots__ = ("_chunks", "_steps", "ahead", "large", "memory", "results", "rewrites", "size")

    def __init__(self, sources: list[tuple[Any, ...]], version: int, bytes_max: int, begin: int) -> None:
        self.memory = 0  # bytes held from the next step on
        self.ahead = 0  # bytes that the next step produces at once, if more than a piece
        self.rewrites = False
        self.large = False
        self.size = 0
        self.results: list[Converted] = [Converted(NONE, b"", -1)] * len(sources)
        self._chunks: codecs.Chunks | None = None
        wanted = [Source(*each) for each in sources]
        self._steps = self._run(wanted, version, min(bytes_max, ANSWER_BYTES), begin)

    def step(self) -> int:
        """Do a bounded piece of work. Return the number of bytes it took, -1 if there is nothing left to
        do."""
        return next(self._steps, -1)

    def close(self) -> None:
        self._steps.close()
        if self._chunks is not None:
            self._chunks.close()

    def _run(
        self, sources: list[Source], version: int, bytes_max: int, begin: int
    ) -> Generator[int, None, None]:
        magic = 0 if version < 2 else 1
        left = bytes_max
        for number in [*range(begin, len(sources)), *range(begin)]:
            source = sources[number]
            if left <= 0 and self.size:
                break
            if version >= 3:
                first = LEFT_OUT if self.size else WHOLE
            else:  # only the client's limit cuts a message
                first = LEFT_OUT if self.size and left < source.bytes_max else CUT
            room = min(left, source.bytes_max)
            converter = DownConverter(magic, source.from_offset, room, first, source.bytes_max)
            code = NONE
            try:
                code = yield from self._convert(source, converter, magic)
            except Malformed:
                code = CORRUPT_MESSAGE
            except OSError:
                code = KAFKA_STORAGE_ERROR
            if converter.size:
                code = NONE  # the next answer begins with the error
            passed = not converter.size and not converter.full and not code
            self.results[number] = Converted(
                code, converter.messages(), converter.next_offset if passed else -1
            )
            self.size += converter.size
            left -= converter.size

    def _convert(self, source: Source, converter: DownConverter, magic: int) -> Generator[int, None, int]:
        """Return the error code for the data after the converted part."""
        at = 0
        while at < source.size and not converter.full:
            begun = at
            if isinstance(source.data, bytes):
                data = _read(source, at, bytearray(READ_BYTES))
            else:
                end = source.position + source.size
                at = converter.convert_file(source.data, source.position + at, end) - source.position
                if at > begun:
                    yield at - begun
                    continue
                data = converter.unread
            while not converter.full:  # all that was read: batches one by one, where they are compressed
                done = converter.convert(data, at - begun) - (at - begun)
                if done == 0:
                    size = _size_of(data[at - begun :])
                    if size < 0 and begun < at < source.size:
                        break  # read on
                    if size < 0 or size > source.size - at:
                        return NONE  # cut by the end of what was read
                    if size <= MAGIC_AT:
                        raise Malformed(f"a batch of {size} bytes")
                    whole = data[at - begun :]
                    if size > len(whole):
                        if begun < at:
                            break
                        whole = _read(source, at, bytearray(size))
                        done = converter.convert(whole, 0)
                    if len(whole) < size:
                        return NONE  # truncated meanwhile
                    if done == 0 and not converter.full:
                        code = yield from self._pack(bytes(whole[:size]), converter, magic)
                        if code or converter.full:
                            return code
                        done = size
                at += done
                yield done
                if at - begun >= len(data):
                    break
        return NONE

    def _pack(self, data: bytes, converter: DownConverter, magic: int) -> Generator[int, None, int]:
        """Convert one batch that is compressed or of an older magic."""
        if data[MAGIC_AT] < 2:
            for record in LegacyEntry(data).records():
                if not converter.add(record.offset, record.key, record.value):
                    break
            return NONE
        try:
            header = BatchHeader(data)
        except ValueError as error:
            raise Malformed(str(error)) from None
        codec = header.compression
        if codec == codecs.ZSTD:
            return UNSUPPORTED_COMPRESSION_TYPE
        if len(data) > LOOP_PACKED:
            self.ahead = LARGE  # compression takes too long for the loop
            yield 0
        needs = codecs.Needs()
        self._chunks = codecs.steps(codec, memoryview(data)[61:], codecs.PIECE, needs)
        compressor = codecs.Compressor(codec, GZIP_LEVEL if codec == codecs.GZIP else None)
        packed = bytearray()
        converter.begin()
        for chunk in self._chunks:
            packed += compressor.write(converter.feed(header, chunk))
            held = needs.memory + converter.held + len(packed)
            self.memory = -(-held // LARGE) * LARGE  # a job that needs more memory waits for its turn
            self.ahead = needs.ahead
            yield len(chunk)
        packed += compressor.finish()
        converter.wrap(
            header, with_broken_lz4_checksum(packed) if codec == codecs.LZ4 and magic == 0 else packed
        )
        return NONE


def _read(source: Source, at: int, buffer: bytearray) -> memoryview:
    """As much as the buffer takes, into it if it is not in memory already."""
    size = min(len(buffer), source.size - at)
    begin = source.position + at
    if isinstance(source.data, bytes):
        return memoryview(source.data)[begin : begin + size]
    view = memoryview(buffer)[:size]
    return view[: os.preadv(source.data, [view], begin)]


def _size_of(data: memoryview) -> int:
    """Of the batch or message at the beginning, -1 if too little of it is there."""
    if len(data) <= MAGIC_AT:
        return -1
    return max(int.from_bytes(data[SIZE_AT : SIZE_AT + 4], "big", signed=True), 0) + OVERHEAD

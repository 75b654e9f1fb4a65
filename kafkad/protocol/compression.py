"""Compress and decompress record batches, as whole buffers or in chunks of bounded size.

The codecs are 0 none, 1 gzip, 2 snappy, 3 lz4 and 4 zstd. Libraries do the work and release the GIL. This
module adds Kafka's framing and protects against invalid data:

- `chunks` never holds more than CHUNK bytes of output, whatever the data claims. (A snappy block cannot be
  cut, and has at most 22 times its own size; a zstd frame also keeps its window.)
- `steps` does the same in steps of bounded work, for an event loop and for threads that take turns: data may
  consist of empty members, blocks or frames, which take time and give no bytes.
- Data that ends early or does not decode is Malformed, even if all requested bytes came out before the end.
- lz4 is a frame of independent blocks (the Java client reads no other). Bytes after its end mark are ignored,
  as are bytes after a gzip member that are not another member: both as in Java. zstd frames must fill the
  data.
- snappy is written with xerial's framing, in blocks of 32 KB. librdkafka's unframed snappy is read, too."""

import struct
from collections.abc import Callable, Generator, Iterator
from typing import Any, Final, Protocol

import cramjam
import lz4.frame
import zstandard

from kafkad._native.wire.zstd_frames import zstd_walk
from kafkad.protocol.errors import Malformed

try:
    from zlib_ng import zlib_ng as zlib
except ImportError:  # no wheel for this machine: the same results in twice the time
    import zlib  # type: ignore[no-redef]

NONE: Final = 0
GZIP: Final = 1
SNAPPY: Final = 2
LZ4: Final = 3
ZSTD: Final = 4
NAMES: Final = ("none", "gzip", "snappy", "lz4", "zstd")

CHUNK: Final = 256 << 10
PIECE: Final = 32 << 10  # input per call; at worst it takes gzip 10 ms, for the tables of empty blocks
GZIP_FIRST: Final = 4 << 10
EMPTY_BLOCKS: Final = 64  # empty snappy blocks per step
ZSTD_FRAMES: Final = 64  # zstd frames per step, and blocks
ZSTD_BLOCKS: Final = 1024
ZSTD_WINDOW_MAX: Final = 128 << 20  # largest window of a frame: libzstd's limit, and so Kafka's
ZSTD_WINDOW_KEPT: Final = 8 << 20  # the window of level 19: a spare decompressor keeps its memory

XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
XERIAL_HEADER: Final = XERIAL_MAGIC + struct.pack(">ii", 1, 1)  # version, oldest compatible version
XERIAL_BLOCK: Final = 32 << 10
SNAPPY_RATIO_MAX: Final = 22  # a copy of 64 bytes takes 3

LZ4_MAGIC: Final = 0x184D2204

_SIZE: Final = struct.Struct(">i")


def compress(codec: int, data: Any, level: int | None = None) -> bytes:
    """Compress `data` as one unit, with the framing of Kafka's Java client."""
    compressor = Compressor(codec, level)
    return compressor.write(data) + compressor.finish()


def decompress(codec: int, data: Any, max_size: int) -> bytes:
    """Decompress `data`. Raise Malformed if it does not decode, or has more than `max_size` bytes."""
    pieces: list[Any] = []
    size = 0
    for chunk in chunks(codec, data, min(CHUNK, max_size + 1)):
        size += len(chunk)
        if size > max_size:
            raise Malformed(f"{NAMES[codec]} data holds more than {max_size} bytes")
        pieces.append(chunk)
    return bytes(pieces[0]) if len(pieces) == 1 else b"".join(pieces)


def chunks(codec: int, data: Any, chunk_size: int = CHUNK) -> Iterator[Any]:
    """Yield the decompressed data in buffers of at most `chunk_size` bytes (snappy: in blocks). Raise
    Malformed."""
    return (chunk for chunk in steps(codec, data, chunk_size, Needs()) if len(chunk))


Chunks = Generator[Any, None, None]


class Needs:
    """The memory that the next step of `steps` will need. It is set before the previous step yields its
    chunk."""

    __slots__ = ("ahead", "memory")

    def __init__(self) -> None:
        self.memory = 0  # bytes held from then on, beyond a chunk
        self.ahead = 0  # bytes that are yielded at once, if that is more than a chunk


class _Needs(Protocol):
    memory: int
    ahead: int


def steps(codec: int, data: Any, chunk_size: int, needs: _Needs) -> Chunks:
    """Do the same as `chunks` in steps of bounded work. A step without output yields an empty chunk. `close`
    releases `data`."""
    try:
        reader = READERS[codec]
    except (KeyError, TypeError):
        raise Malformed(f"unknown compression type {codec}") from None
    return reader(memoryview(data).cast("B"), chunk_size, needs)


# -- reading -----------------------------------------------------------------------------------------------


def _plain_chunks(data: memoryview, chunk_size: int, needs: _Needs) -> Chunks:
    for position in range(0, len(data), chunk_size):
        yield data[position : position + chunk_size]


def _gzip_chunks(data: memoryview, chunk_size: int, needs: _Needs) -> Chunks:
    position = 0
    size = PIECE
    while True:
        member = zlib.decompressobj(wbits=31)
        unread: Any = b""
        while not member.eof:
            if not unread:
                unread = data[position : position + size]
                position += len(unread)
                size = PIECE
            try:
                chunk = member.decompress(unread, chunk_size)
            except zlib.error as error:  # type: ignore[misc]  # zlib_ng's stub says that this is a value
                raise Malformed(f"gzip: {error}") from None
            unread = member.unconsumed_tail
            if not chunk and not unread and not member.eof and position >= len(data):
                raise Malformed("gzip: the data ends before its end")
            yield chunk
        position -= len(member.unused_data)
        if bytes(data[position : position + 2]) != b"\x1f\x8b":
            return
        # Another member: the rest of its first bytes is copied, so it gets few. Most data has only one
        # member.
        size = GZIP_FIRST


def _snappy_chunks(data: memoryview, chunk_size: int, needs: _Needs) -> Chunks:
    if bytes(data[:8]) != XERIAL_MAGIC:
        needs.memory = needs.ahead = _snappy_size(data)
        if needs.ahead > CHUNK:
            yield b""
        yield _snappy_block(data)
        return
    if len(data) < 16:
        raise Malformed("snappy: the header is cut off")
    position, empty = 16, 0
    while position < len(data):
        if bytes(data[position : position + 8]) == XERIAL_MAGIC:  # streams may follow one another
            position += 16
            chunk = b""
        else:
            if len(data) - position < 4:
                raise Malformed("snappy: a block's size is cut off")
            (size,) = _SIZE.unpack_from(data, position)
            position += 4
            if size < 0 or size > len(data) - position:
                raise Malformed(f"snappy: a block of {size} bytes where {len(data) - position} remain")
            block = data[position : position + size]
            position += size
            if size == 1 and block[0] == 0:
                chunk = b""
            else:
                needs.memory = needs.ahead = _snappy_size(block)
                if needs.ahead > CHUNK:
                    yield b""
                chunk = _snappy_block(block)
        empty = 0 if len(chunk) else empty + 1
        if not empty or empty % EMPTY_BLOCKS == 0:
            yield chunk


def _snappy_size(block: memoryview) -> int:
    try:
        claimed: int = cramjam.snappy.decompress_raw_len(block)
    except cramjam.DecompressionError as error:
        raise Malformed(str(error)) from None
    if claimed > SNAPPY_RATIO_MAX * len(block):
        raise Malformed(f"snappy: {len(block)} bytes cannot hold the {claimed} that they claim")
    return claimed


def _snappy_block(block: memoryview) -> Any:
    try:
        return cramjam.snappy.decompress_raw(block)
    except cramjam.DecompressionError as error:
        raise Malformed(str(error)) from None


def _lz4_chunks(data: memoryview, chunk_size: int, needs: _Needs) -> Chunks:
    if len(data) < 7 or struct.unpack_from("<I", data)[0] != LZ4_MAGIC:
        raise Malformed("lz4: no frame")
    if data[4] & 0xE3 != 0x60:  # version 1, blocks independent, reserved bits clear
        raise Malformed("lz4: not a frame of version 1 with independent blocks")
    needs.memory = 2 << (8 + 2 * (data[5] >> 4 & 7))  # a block before and after
    context = lz4.frame.create_decompression_context()
    position = 0
    while True:
        piece = data[position : position + PIECE]
        try:
            chunk, read, ended = lz4.frame.decompress_chunk(context, piece, max_length=chunk_size)
        except RuntimeError as error:
            raise Malformed(f"lz4: {error}") from None
        position += read
        if not ended and not chunk and not read:
            raise Malformed("lz4: the data ends before the end mark")
        yield chunk
        if ended:
            return


_zstd_decompressors: list[Any] = []  # spare ones, because creating one takes longer than a small batch


def _new_zstd_decompressor() -> Any:
    return zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW_MAX)


def _zstd_chunks(data: memoryview, chunk_size: int, needs: _Needs) -> Chunks:
    if len(data) == 0:
        raise Malformed("zstd: no frame")
    position = 0
    while position < len(data):
        start, state, frames, window = position, 0, ZSTD_FRAMES, 0
        while position < len(data) and frames:  # whole frames
            position, state, frames, largest = zstd_walk(data, position, state, ZSTD_BLOCKS, frames)
            window = max(window, largest)
            if state or (frames and position < len(data)):
                yield b""
        window = min(window, ZSTD_WINDOW_MAX)  # the library refuses more, and allocates nothing for it
        if window > needs.memory:
            needs.memory = window
            yield b""
        try:
            decompressor = _zstd_decompressors.pop()
        except IndexError:  # several threads share the list, so checking before the pop does not help
            decompressor = _new_zstd_decompressor()
        try:
            reader = decompressor.stream_reader(data[start:position], read_across_frames=True)
            while chunk := reader.read(chunk_size):
                yield chunk
        except zstandard.ZstdError as error:
            raise Malformed(f"zstd: {error}") from None
        finally:
            if window <= ZSTD_WINDOW_KEPT and len(_zstd_decompressors) < 4:
                _zstd_decompressors.append(decompressor)
        yield b""


READERS: Final[dict[int, Callable[[memoryview, int, _Needs], Chunks]]] = {
    NONE: _plain_chunks,
    GZIP: _gzip_chunks,
    SNAPPY: _snappy_chunks,
    LZ4: _lz4_chunks,
    ZSTD: _zstd_chunks,
}


# -- writing -----------------------------------------------------------------------------------------------


class _Writer(Protocol):
    def compress(self, data: Any, /) -> bytes: ...

    def flush(self) -> bytes: ...


class Compressor:
    """Compress data piece by piece. `finish` returns the rest and ends the frame."""

    __slots__ = ("_head", "_writer")

    def __init__(self, codec: int, level: int | None = None) -> None:
        self._head = b""
        self._writer: _Writer
        if codec == NONE:
            self._writer = _Plain()
        elif codec == GZIP:
            self._writer = zlib.compressobj(-1 if level is None else level, wbits=31)
        elif codec == SNAPPY:
            self._head = XERIAL_HEADER
            self._writer = _Snappy()
        elif codec == LZ4:
            writer = lz4.frame.LZ4FrameCompressor(
                block_size=lz4.frame.BLOCKSIZE_MAX64KB,
                block_linked=False,
                compression_level=0 if level is None else level,
            )
            self._head = writer.begin()
            self._writer = writer
        elif codec == ZSTD:
            self._writer = zstandard.ZstdCompressor(level=3 if level is None else level).compressobj()
        else:
            raise ValueError(f"unknown compression type {codec}")

    def write(self, data: Any) -> bytes:
        head, self._head = self._head, b""
        return head + self._writer.compress(data)

    def finish(self) -> bytes:
        return self._head + self._writer.flush()


class _Plain:
    __slots__ = ()

    def compress(self, data: Any) -> bytes:
        return bytes(data)

    def flush(self) -> bytes:
        return b""


class _Snappy:
    """Collect data up to a block."""

    __slots__ = ("_block",)

    def __init__(self) -> None:
        self._block = bytearray()

    def compress(self, data: Any) -> bytes:
        self._block += data
        pieces = []
        while len(self._block) >= XERIAL_BLOCK:
            pieces.append(_xerial_block(self._block[:XERIAL_BLOCK]))
            del self._block[:XERIAL_BLOCK]
        return b"".join(pieces)

    def flush(self) -> bytes:
        return _xerial_block(self._block) if self._block else b""


def _xerial_block(data: bytearray) -> bytes:
    block = bytes(cramjam.snappy.compress_raw(data))
    return struct.pack(">i", len(block)) + block

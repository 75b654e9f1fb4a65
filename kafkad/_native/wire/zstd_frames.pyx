"""Find where the frames and blocks of zstd data end (RFC 8878), without unpacking them.

The library's reader treats a cut frame as the end of the data, and reads any number of frames and blocks in one call.
Hostile data may consist of millions of empty blocks of 3 bytes. So this module walks over the frames first, a bounded
number at a time."""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from kafkad._native.wire.malformed import Malformed

cdef enum:
    MAGIC = 0xFD2FB528
    SKIPPABLE = 0x184D2A50              # to 0x184D2A5F
    IN_FRAME = 1                        # state bits of a walk; 0: a frame begins here
    CHECKSUM = 2                        # the frame ends with a checksum


cdef inline uint32_t get_u32(const uint8_t* p) noexcept nogil:
    return <uint32_t>p[0] | <uint32_t>p[1] << 8 | <uint32_t>p[2] << 16 | <uint32_t>p[3] << 24


cdef inline uint64_t window_of(const uint8_t* header, int single_segment, int content_size) noexcept nogil:
    # Return the window: how many unpacked bytes the frame's reader keeps. `header` points after the descriptor.
    cdef uint64_t size = 0
    cdef int i
    if not single_segment:
        size = <uint64_t>1 << (10 + (header[0] >> 3))
        return size + (size >> 3) * (header[0] & 7)
    for i in range(content_size):
        size |= <uint64_t>header[i] << 8 * i
    return size + 256 if content_size == 2 else size


cdef int64_t walk(const uint8_t* data, int64_t at, int64_t end, int* state, int* blocks, int* frames,
                  uint64_t* window) noexcept nogil:
    # Return the position after the last complete block or frame; -1: the data is cut, -2: it is not a frame.
    cdef uint32_t magic, block
    cdef uint64_t size
    cdef int descriptor, single_segment, content_size, dictionary
    while blocks[0] > 0 and frames[0] > 0 and at < end:
        blocks[0] -= 1
        if state[0] & IN_FRAME:
            if end - at < 3:
                return -1
            block = data[at] | <uint32_t>data[at + 1] << 8 | <uint32_t>data[at + 2] << 16
            at += 3 + (1 if block >> 1 & 3 == 1 else <int64_t>(block >> 3))     # type 1: one byte, repeated
            if block & 1:                               # the last one
                at += 4 if state[0] & CHECKSUM else 0
                state[0] = 0
                frames[0] -= 1
        else:
            if end - at < 4:
                return -1
            magic = get_u32(data + at)
            if magic >> 4 == SKIPPABLE >> 4:
                if end - at < 8:
                    return -1
                at += 8 + <int64_t>get_u32(data + at + 4)
                frames[0] -= 1
            elif magic != <uint32_t>MAGIC:
                return -2
            else:
                if end - at < 5:
                    return -1
                descriptor = data[at + 4]
                single_segment = descriptor >> 5 & 1
                content_size = 1 << (descriptor >> 6)
                if content_size == 1:
                    content_size = single_segment
                dictionary = (1 << (descriptor & 3)) >> 1
                if end - at < 5 + (1 - single_segment) + dictionary + content_size:
                    return -1
                size = window_of(data + at + 5 + (dictionary if single_segment else 0), single_segment, content_size)
                if size > window[0]:
                    window[0] = size
                at += 5 + (1 - single_segment) + dictionary + content_size
                state[0] = IN_FRAME | (CHECKSUM if descriptor >> 2 & 1 else 0)
        if at > end:
            return -1
    return at


def zstd_walk(const uint8_t[::1] data not None, int64_t position, int state, int blocks, int frames) -> tuple:
    """Walk over at most `blocks` blocks and `frames` frames from `position`. Return (position, state, frames left, largest
    window). `state` is 0 at the start, and wherever a frame begins. Raise Malformed if the data is cut or not a frame."""
    cdef uint64_t window = 0
    cdef int64_t at
    if not 0 <= position < data.shape[0]:
        raise ValueError("a walk begins inside of the data")
    with nogil:
        at = walk(&data[0], position, data.shape[0], &state, &blocks, &frames, &window)
        if at == data.shape[0] and state:
            at = -1
    if at == -1:
        raise Malformed("zstd: the data ends before its last frame does")
    if at == -2:
        raise Malformed("zstd: no frame where one should start")
    return at, state, frames, window

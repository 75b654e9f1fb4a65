"""WriteBuffer: a growing byte buffer for encoding on the control plane.

It is one malloc'd block that doubles when it is full. `reserve` makes room and returns where to write; the caller
then increases `size`. Functions that may allocate are declared `except -1` (or NULL) and raise MemoryError; they take
the GIL only for that. A size that is not known beforehand is back-filled: `back_fill_uvarint` moves the bytes written
since and puts their size in front. Beware: growing moves the block, so keep positions instead of pointers.
"""

from cpython.mem cimport PyMem_RawFree, PyMem_RawRealloc
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcpy, memmove

from kafkad._native.wire.primitives cimport put_i16, put_i32, put_i64, put_uvarint


cdef struct WriteBuffer:
    uint8_t* data
    size_t size
    size_t capacity


cdef inline void buffer_init(WriteBuffer* b) noexcept nogil:
    b.data = NULL
    b.size = 0
    b.capacity = 0


cdef inline void buffer_free(WriteBuffer* b) noexcept nogil:
    PyMem_RawFree(b.data)
    b.data = NULL


cdef inline int buffer_grow(WriteBuffer* b, size_t more) except -1 nogil:
    cdef size_t capacity = b.capacity * 2 if b.capacity else 512
    cdef uint8_t* data
    if capacity < b.size + more:
        capacity = b.size + more
    data = <uint8_t*>PyMem_RawRealloc(b.data, capacity)
    if data == NULL:
        with gil:
            raise MemoryError(f"no {capacity} bytes for a message")
    b.data = data
    b.capacity = capacity
    return 0


cdef inline uint8_t* reserve(WriteBuffer* b, size_t more) except NULL nogil:
    if b.capacity - b.size < more:
        buffer_grow(b, more)
    return b.data + b.size


cdef inline int write_i8(WriteBuffer* b, int value) except -1 nogil:
    reserve(b, 1)[0] = <uint8_t>value
    b.size += 1
    return 0


cdef inline int write_i16(WriteBuffer* b, int16_t value) except -1 nogil:
    put_i16(reserve(b, 2), value)
    b.size += 2
    return 0


cdef inline int write_i32(WriteBuffer* b, int32_t value) except -1 nogil:
    put_i32(reserve(b, 4), value)
    b.size += 4
    return 0


cdef inline int write_i64(WriteBuffer* b, int64_t value) except -1 nogil:
    put_i64(reserve(b, 8), value)
    b.size += 8
    return 0


cdef inline int write_uvarint(WriteBuffer* b, uint32_t value) except -1 nogil:
    b.size += put_uvarint(reserve(b, 5), value)
    return 0


cdef inline int write_raw(WriteBuffer* b, const void* data, size_t size) except -1 nogil:
    if size:
        memcpy(reserve(b, size), data, size)
        b.size += size
    return 0


cdef inline int back_fill_uvarint(WriteBuffer* b, size_t start) except -1 nogil:
    """Insert, at `start`, the number of bytes that were written since."""
    cdef size_t size = b.size - start
    cdef uint8_t length[5]
    cdef int width = put_uvarint(length, <uint32_t>size)
    reserve(b, width)
    memmove(b.data + start + width, b.data + start, size)
    memcpy(b.data + start, length, width)
    b.size += width
    return 0

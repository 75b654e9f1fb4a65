"""Memory of partial frames: a pool of buffers in sizes 64, 80, 96, 112, 128, 160, … so at most a fifth is unused.

A connection holds one only while it keeps unserved bytes. `buffered_bytes` counts what connections hold and
`pooled_bytes` what is free for the next one, which is bounded, and given back when nothing happens for a while."""

from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memmove

from kafkad._native.connection cimport BUFFER_CLASSES, Conn, Core
from kafkad._native.wire cimport KAFKAD_CHECK

cdef enum:
    SMALLEST_BUFFER = 64


cdef inline int buffer_class(size_t size, size_t* rounded) noexcept nogil:
    cdef int power = 6
    cdef int quarter
    if size < SMALLEST_BUFFER:
        size = SMALLEST_BUFFER
    while (<size_t>2 << power) <= size:
        power += 1
    quarter = <int>((size - (<size_t>1 << power) + ((<size_t>1 << power) >> 2) - 1) >> (power - 2))
    if quarter == 4:
        quarter = 0
        power += 1
    rounded[0] = (<size_t>1 << power) + <size_t>quarter * ((<size_t>1 << power) >> 2)
    return (power - 6) * 4 + quarter


cdef uint8_t* buffer_take(Core* core, size_t size, size_t* capacity) noexcept nogil:
    cdef int place = buffer_class(size, capacity)
    cdef void* buffer
    core.stats.buffered_bytes += <int64_t>capacity[0]
    if place < BUFFER_CLASSES and core.buffers[place].free is not NULL:
        buffer = core.buffers[place].free
        core.buffers[place].free = (<void**>buffer)[0]
        core.stats.pooled_bytes -= <int64_t>capacity[0]
        return <uint8_t*>buffer
    buffer = malloc(capacity[0])
    KAFKAD_CHECK(buffer is not NULL)
    return <uint8_t*>buffer


cdef void buffer_give(Core* core, uint8_t* buffer, size_t capacity) noexcept nogil:
    cdef size_t rounded
    cdef int place = buffer_class(capacity, &rounded)
    core.stats.buffered_bytes -= <int64_t>capacity
    if place < BUFFER_CLASSES and core.stats.pooled_bytes + <int64_t>capacity <= core.pooled_bytes_max:
        (<void**>buffer)[0] = core.buffers[place].free
        core.buffers[place].free = buffer
        core.stats.pooled_bytes += <int64_t>capacity
    else:
        free(buffer)


cdef void buffers_trim(Core* core) noexcept nogil:
    cdef void* buffer
    for place in range(BUFFER_CLASSES):
        while core.buffers[place].free is not NULL:
            buffer = core.buffers[place].free
            core.buffers[place].free = (<void**>buffer)[0]
            free(buffer)
    core.stats.pooled_bytes = 0


cdef uint8_t* input_reserve(Conn* conn, uint32_t size) noexcept nogil:
    """Room for `size` bytes of input in all, counted from the first unserved one, which moves to the front."""
    cdef uint32_t held = conn.input_end - conn.input_start
    cdef uint8_t* grown
    cdef size_t capacity
    if size > conn.input_capacity:
        grown = buffer_take(conn.core, size, &capacity)
        if conn.input is not NULL:
            memcpy(grown, conn.input + conn.input_start, held)
            buffer_give(conn.core, conn.input, conn.input_capacity)
        conn.input = grown
        conn.input_capacity = <uint32_t>capacity
    elif conn.input_start and size > conn.input_capacity - conn.input_start:
        memmove(conn.input, conn.input + conn.input_start, held)
    else:
        return conn.input
    conn.input_start = 0
    conn.input_end = held
    return conn.input


cdef void input_release(Conn* conn) noexcept nogil:
    if conn.input is not NULL:
        buffer_give(conn.core, conn.input, conn.input_capacity)
        conn.input = NULL
    conn.input_start = 0
    conn.input_end = 0
    conn.input_capacity = 0

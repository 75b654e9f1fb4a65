"""Memory of frames: a pool of buffers in sizes 64, 80, 96, 112, 128, 160, ..., so at most a fifth is unused.

A connection holds a buffer only while it keeps unserved bytes. The area that sockets are read into is a buffer, too. A
request that outlives its turn keeps its bytes in place: it takes a reference to the buffer, whose memory is then
neither moved nor reused until the reference is released. With several workers, buffers are in this worker's arena,
where the others can read them; with one worker they come from malloc.

`buffered_bytes` counts what connections and requests hold. `pooled_bytes` counts free memory kept for reuse, which is
bounded, and given back after some time without traffic.

Beware: only the worker that took a buffer counts its references. The others only read the bytes that messages name."""

from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memmove

from kafkad._native.shared.arena cimport arena_give, arena_take
from kafkad._native.serving.connection cimport BUFFER_CLASSES, SCRATCH_SIZE, Conn, Core
from kafkad._native.wire.primitives cimport KAFKAD_CHECK

cdef enum:
    SMALLEST_BUFFER = 64
    COPY_BYTES = 2 * 1024 * 1024        # of a growing frame, copied per turn: 2 ms with page faults


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
    cdef uint8_t* data
    cdef Buffer* buffer = NULL
    core.stats.buffered_bytes += <int64_t>capacity[0]
    if place < BUFFER_CLASSES and core.buffers[place].free is not NULL:
        data = <uint8_t*>core.buffers[place].free
        core.buffers[place].free = (<void**>data)[0]
        core.stats.pooled_bytes -= <int64_t>capacity[0]
        buffer_of(data).references = 1
        return data
    if core.arena is not NULL:
        buffer = <Buffer*>arena_take(core.arena, sizeof(Buffer) + capacity[0])
        if buffer is not NULL:
            buffer.is_private = False
    if buffer is NULL:
        buffer = <Buffer*>malloc(sizeof(Buffer) + capacity[0])
        KAFKAD_CHECK(buffer is not NULL)
        buffer.is_private = True
    buffer.references = 1
    buffer.capacity = capacity[0]
    return <uint8_t*>(buffer + 1)


cdef inline void memory_free(Core* core, uint8_t* data) noexcept nogil:
    cdef Buffer* buffer = buffer_of(data)
    if buffer.is_private:
        free(buffer)
    else:
        arena_give(core.arena, <uint8_t*>buffer, sizeof(Buffer) + buffer.capacity)


cdef void buffer_free(Core* core, uint8_t* data) noexcept nogil:
    cdef size_t capacity = buffer_of(data).capacity
    cdef size_t rounded
    cdef int place = buffer_class(capacity, &rounded)
    core.stats.buffered_bytes -= <int64_t>capacity
    if place < BUFFER_CLASSES and core.stats.pooled_bytes + <int64_t>capacity <= core.pooled_bytes_max and (
            core.arena is NULL or not buffer_of(data).is_private):
        (<void**>data)[0] = core.buffers[place].free
        core.buffers[place].free = data
        core.stats.pooled_bytes += <int64_t>capacity
    else:
        memory_free(core, data)


cdef void buffers_trim(Core* core) noexcept nogil:
    cdef void* data
    for place in range(BUFFER_CLASSES):
        while core.buffers[place].free is not NULL:
            data = core.buffers[place].free
            core.buffers[place].free = (<void**>data)[0]
            memory_free(core, <uint8_t*>data)
    while core.answer_count:
        core.answer_count -= 1
        free(core.answers[core.answer_count])
    core.stats.pooled_bytes = 0


cdef uint8_t* input_reserve(Conn* conn, uint32_t size) noexcept nogil:
    """Make room for `size` bytes of input in all; the first unserved byte moves to the front."""
    cdef uint32_t held = conn.input_end - conn.input_start
    cdef uint8_t* grown
    cdef size_t capacity
    if conn.input is NULL or size > conn.input_capacity or (
            size > conn.input_capacity - conn.input_start and buffer_is_shared(conn.input)):
        grown = buffer_take(conn.core, size, &capacity)
        if conn.input is not NULL:
            memcpy(grown, conn.input + conn.input_start, held)
            buffer_release(conn.core, conn.input)
        conn.input = grown
        conn.input_capacity = <uint32_t>capacity
    elif size > conn.input_capacity - conn.input_start:
        memmove(conn.input, conn.input + conn.input_start, held)
    else:
        return conn.input
    conn.input_start = 0
    conn.input_end = held
    return conn.input


cdef bint input_grow(Conn* conn, uint32_t size) noexcept nogil:
    """As `input_reserve`, but copy a piece per call. False: not done yet, and the input must not be used otherwise."""
    cdef uint32_t held = conn.input_end - conn.input_start
    cdef uint32_t piece
    cdef size_t capacity
    if conn.growing is NULL:
        if held <= COPY_BYTES:
            input_reserve(conn, size)
            return True
        conn.growing = buffer_take(conn.core, size, &capacity)
        conn.grown = 0
    piece = min(<uint32_t>COPY_BYTES, held - conn.grown)
    memcpy(conn.growing + conn.grown, conn.input + conn.input_start + conn.grown, piece)
    conn.grown += piece
    if conn.grown < held:
        return False
    buffer_release(conn.core, conn.input)
    conn.input = conn.growing
    conn.input_capacity = <uint32_t>buffer_of(conn.input).capacity
    conn.input_start = 0
    conn.input_end = held
    conn.growing = NULL
    return True


cdef void input_release(Conn* conn) noexcept nogil:
    if conn.growing is not NULL:
        buffer_release(conn.core, conn.growing)
        conn.growing = NULL
    if conn.input is not NULL:
        buffer_release(conn.core, conn.input)
        conn.input = NULL
    conn.input_start = 0
    conn.input_end = 0
    conn.input_capacity = 0


# By itself the scratch area does not count as held. Once requests keep a part of it, it counts, and later reads go
# behind that part, as long as there is enough room.

cdef void scratch_renew(Core* core) noexcept nogil:
    cdef size_t capacity = 0
    scratch_free(core)
    core.scratch = buffer_take(core, SCRATCH_SIZE, &capacity)
    core.stats.buffered_bytes -= <int64_t>capacity


cdef void scratch_keep(Core* core, size_t size) noexcept nogil:
    if core.scratch_at == 0:
        core.stats.buffered_bytes += <int64_t>buffer_of(core.scratch).capacity
    core.scratch_at = <uint32_t>(size + 63) & ~<uint32_t>63
    if core.scratch_at > SCRATCH_SIZE // 2:
        scratch_renew(core)


cdef void scratch_free(Core* core) noexcept nogil:
    cdef uint8_t* scratch = core.scratch
    if scratch is NULL:
        return
    if core.scratch_at == 0:
        core.stats.buffered_bytes += <int64_t>buffer_of(scratch).capacity
    core.scratch = NULL
    core.scratch_at = 0
    buffer_release(core, scratch)

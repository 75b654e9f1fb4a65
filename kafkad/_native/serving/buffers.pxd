"""Memory of frames, with reference counts. See buffers.pyx."""

from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from kafkad._native.serving.connection cimport Conn, Core

cdef struct Buffer:                 # header in front of a buffer's data
    uint32_t references
    uint32_t is_private             # from malloc, although the core has an arena
    uint64_t capacity

# Takes memory for at least `size` bytes, with one reference. `buffered_bytes` counts it until the last release.
cdef uint8_t* buffer_take(Core* core, size_t size, size_t* capacity) noexcept nogil
cdef void buffer_free(Core* core, uint8_t* data) noexcept nogil    # called when the last reference goes

cdef inline Buffer* buffer_of(uint8_t* data) noexcept nogil:
    return <Buffer*>data - 1

cdef inline void buffer_retain(uint8_t* data) noexcept nogil:
    buffer_of(data).references += 1

cdef inline void buffer_release(Core* core, uint8_t* data) noexcept nogil:
    buffer_of(data).references -= 1
    if buffer_of(data).references == 0:
        buffer_free(core, data)
    elif data is core.scratch and core.scratch_at and buffer_of(data).references == 1:
        core.scratch_at = 0
        core.stats.buffered_bytes -= <int64_t>buffer_of(data).capacity

cdef inline bint buffer_is_shared(uint8_t* data) noexcept nogil:
    return buffer_of(data).references > 1

cdef uint8_t* input_reserve(Conn* conn, uint32_t size) noexcept nogil
cdef bint input_grow(Conn* conn, uint32_t size) noexcept nogil
cdef void input_release(Conn* conn) noexcept nogil
cdef void scratch_renew(Core* core) noexcept nogil                 # replaces it by another
cdef void scratch_keep(Core* core, size_t size) noexcept nogil     # requests keep its first `size` bytes
cdef void scratch_free(Core* core) noexcept nogil
cdef void buffers_trim(Core* core) noexcept nogil                  # gives pooled memory back

"""Memory of partial frames. See buffers.pyx."""

from libc.stdint cimport uint8_t, uint32_t

from kafkad._native.connection cimport Conn, Core

cdef uint8_t* input_reserve(Conn* conn, uint32_t size) noexcept nogil
cdef void input_release(Conn* conn) noexcept nogil
cdef void buffers_trim(Core* core) noexcept nogil                  # give pooled memory back

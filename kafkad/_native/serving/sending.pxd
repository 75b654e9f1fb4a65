"""Sending answers: see sending.pyx."""

from kafkad._native.serving.connection cimport Conn, Core

cdef enum:
    COPIES_SIZE = 128 * 1024

# Sends what is ready; may close the connection.
cdef void conn_flush(Conn* conn) noexcept nogil

# Called at the end of a round.
cdef void copies_forget(Core* core) noexcept nogil

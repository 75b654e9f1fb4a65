"""One connection's turn: see connection_turns.pyx."""

from libc.stdint cimport int16_t

from kafkad._native.serving.connection cimport API_KEYS, Conn, Core
from kafkad._native.serving.fetch_state cimport Fetching
from kafkad._native.serving.produce_state cimport Producing

cdef enum:
    CALLS_US_MAX = 5000                 # of a round; after that a connection's turn ends with the current call

cdef class ConnectionTurns:
    cdef Core* core
    cdef Producing producing
    cdef Fetching fetching
    cdef object dispatch            # (connection, request_id, frame): called for requests not served in C
    cdef bint has_mail              # there are mailboxes, and so other workers
    cdef int16_t native_low[API_KEYS]
    cdef int16_t native_high[API_KEYS]

# Sends, serves kept frames, reads once (a big frame as far as it has arrived), serves that, sends.
cdef void serve(ConnectionTurns turns, Conn* conn) noexcept nogil

# Sends the answers that waited for those of other workers.
cdef void flush_late(Core* core) noexcept nogil

# Resumes connections that waited for memory, after some was released.
cdef void feed_starved(Core* core) noexcept nogil

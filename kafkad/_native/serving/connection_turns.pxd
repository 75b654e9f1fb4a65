"""One connection's turn: see connection_turns.pyx."""

from libc.stdint cimport int16_t

from kafkad._native.serving.connection cimport API_KEYS, Conn, Core
from kafkad._native.serving.fetch_state cimport Fetching
from kafkad._native.serving.produce_state cimport Producing

cdef enum:
    CALLS_US_MAX = 5000                 # of a round, then a connection's turn ends behind the call at hand

cdef class ConnectionTurns:
    cdef Core* core
    cdef Producing producing
    cdef Fetching fetching
    cdef object dispatch            # (connection, request_id, frame): what is not served in C
    cdef bint has_mail              # there are mailboxes, and so other workers
    cdef int16_t native_low[API_KEYS]
    cdef int16_t native_high[API_KEYS]

# Send, serve what is kept, read once (a big frame as far as it is there), serve that, send.
cdef void serve(ConnectionTurns turns, Conn* conn) noexcept nogil

# The answers that waited for those of other workers leave.
cdef void flush_late(Core* core) noexcept nogil

# Connections that waited for memory go on, when some was given back.
cdef void feed_starved(Core* core) noexcept nogil

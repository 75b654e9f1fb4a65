"""Produce (key 0) in C. See produce.pyx."""

from libc.stdint cimport int16_t, int32_t, uint8_t, uint32_t

from kafkad._native.serving.connection cimport Conn
from kafkad._native.serving.partition_table cimport Entry
from kafkad._native.wire.primitives cimport Cursor
from kafkad._native.serving.produce_state cimport HeldProduce, Outcome, Part, Producing

# Returns NULL, or why the connection must be closed. `body` points behind the client id.
cdef const char* produce_frame(Producing self, Conn* conn, int16_t version, int32_t correlation_id,
                               const uint8_t* client, int16_t client_size, Cursor* body) noexcept nogil

# The next slice of the request that `conn.slicing` holds. May close the connection.
cdef void produce_slice(Producing self, Conn* conn) noexcept nogil
# Whether all outcomes of the last slice have come. If not, `produce_outcome` runs the connection later.
cdef bint slice_due(const Conn* conn) noexcept nogil

# The two steps of one partition: check, then append. The caller sets the outcome's admission and guard, and drops its text.
# OUTCOME_TO_COME: `take_pending` returns the remaining work, with a copy of the records.
cdef int check_part(const Entry* entry, const Part* part, int16_t version, bint admin, bint acks_all) noexcept nogil
cdef void append_part(Producing self, Entry* entry, const Part* part, Outcome* outcome) noexcept nogil
cdef void drop_text(Outcome* outcome) noexcept nogil

# An outcome has come. Takes over `outcome` and its text. May free `held`, and call Python.
cdef void produce_outcome(HeldProduce* held, uint32_t number, const Outcome* outcome) noexcept nogil
# No outcome will come, because this process ends. The frame is not released: an owner may still read from it.
cdef void produce_forget(HeldProduce* held) noexcept nogil

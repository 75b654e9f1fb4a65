"""Produce (key 0) in C. See produce.pyx."""

from libc.stdint cimport int16_t, int32_t, uint8_t, uint32_t

from kafkad._native.serving.connection cimport Conn
from kafkad._native.serving.partition_table cimport Entry
from kafkad._native.wire.primitives cimport Cursor
from kafkad._native.serving.produce_state cimport HeldProduce, Outcome, Part, Producing

# NULL, or why the connection must be closed. `body` stands behind the client id.
cdef const char* produce_frame(Producing self, Conn* conn, int16_t version, int32_t correlation_id,
                               const uint8_t* client, int16_t client_size, Cursor* body) noexcept nogil

# The next slice of the request that `conn.slicing` holds. May close the connection.
cdef void produce_slice(Producing self, Conn* conn) noexcept nogil
# False: what the last slice left to others has not come yet. `produce_outcome` runs the connection when it has.
cdef bint slice_due(const Conn* conn) noexcept nogil

# The steps of one partition: check whether it may be appended, and append. The caller sets the outcome's admission and guard,
# and drops its text. OUTCOME_TO_COME: `take_pending` returns the work that is left, on a copy of the records.
cdef int check_part(const Entry* entry, const Part* part, int16_t version, bint admin, bint acks_all) noexcept nogil
cdef void append_part(Producing self, Entry* entry, const Part* part, Outcome* outcome) noexcept nogil
cdef void drop_text(Outcome* outcome) noexcept nogil

# The outcome of a part that was to come. It takes over `outcome` and its text. It may free `held`, and call Python.
cdef void produce_outcome(HeldProduce* held, uint32_t number, const Outcome* outcome) noexcept nogil
# None will come, since this process ends. The frame is not released: its owner may still read from it.
cdef void produce_forget(HeldProduce* held) noexcept nogil

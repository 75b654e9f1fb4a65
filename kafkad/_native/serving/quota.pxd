"""Client quotas in the data plane: what a request is charged to, and connections that must pause. See quota.pyx."""

from cpython.object cimport PyObject
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t

from kafkad._native.serving.connection cimport Charge, Conn, Core, Slot

cdef enum QuotaKind:                # as kafkad.quota.Kind
    QUOTA_PRODUCE = 0
    QUOTA_FETCH = 1
    QUOTA_REQUEST = 2
    QUOTA_KINDS = 3

cdef struct Quotas:                 # of a worker. Core.quotas points here while any quota is set
    PyObject* table                 # QuotaTable
    PyObject* resolve               # (kind, principal, client id) -> (key, limit), or None
    uint64_t version                # raised by each change of a quota
    double full_s                   # of the whole windows that a rate is taken over
    int kinds                       # bits: of these kinds there are quotas
    Conn* timed                     # whose client pays for what this thread does now, or NULL
    int64_t since_ns                # CPU time of this thread: up to here it was charged

# What a request of this client is charged to; a limit of 0: nothing.
cdef void quota_of(Conn* conn, int kind, const uint8_t* client, int16_t client_size, Charge* charge) noexcept nogil

cdef inline void quota_charge(Conn* conn, const uint8_t* client, int16_t client_size, size_t body_size,
                              Charge* charge) noexcept nogil:
    """What a Produce will be charged to, and its size; `body_size`: of what stands behind the client id."""
    charge.limit = 0
    if conn.core.quotas is not NULL:
        quota_of(conn, QUOTA_PRODUCE, client, client_size, charge)
        charge.size = <uint32_t>(10 + max(client_size, 0) + body_size)

# Charge `amount` and return for how many milliseconds the client must pause.
cdef int64_t quota_take(Core* core, Charge* charge, double amount) noexcept nogil
# The connection is read no more for so long. What was asked before is answered.
cdef void quota_mute(Conn* conn, int64_t pause_ms) noexcept nogil
# A Produce is answered: charge it, and write the pause into its answer.
cdef void quota_produced(Slot* slot) noexcept nogil
# A Produce of acks=0, which has no answer.
cdef void quota_unanswered(Conn* conn, Charge* charge) noexcept nogil
# The most that one answer to this client may have, so that it can ever pass.
cdef int64_t quota_answer_max(Core* core, const Charge* charge) noexcept nogil
# A Fetch is to be answered with `size` bytes. 0: they may go. Else the pause; `empty`: the answer has no data then.
cdef int64_t quota_fetched(Conn* conn, Charge* charge, int64_t size, bint* empty) noexcept nogil
# A request comes, and has an API key: who pays for the time that it takes.
cdef void quota_request(Conn* conn, int16_t key, const uint8_t* client, int16_t client_size) noexcept nogil
# Nobody pays for it: it is a broker's, or has no answer.
cdef void quota_exempt(Conn* conn) noexcept nogil
# For how long a client must pause because of the time that its requests took; what this one took up to now is charged.
cdef int64_t quota_overtime(Conn* conn) noexcept nogil
# Work for a connection begins, and ends. True: it is timed, and has an end.
cdef bint quota_turn_begin(Conn* conn) noexcept nogil
cdef void quota_turn_end(Core* core) noexcept nogil
# A connection is closed.
cdef void quota_left(Conn* conn) noexcept nogil

cdef class ClientQuotaCounting:
    cdef object table
    cdef object resolver
    cdef Quotas quotas
    cdef void change(self, Core* core, int kinds) noexcept

"""Client quotas in the data plane: what a request is charged to, and connections that must pause. See quota.pyx."""

from cpython.object cimport PyObject
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t

from kafkad._native.serving.connection cimport Charge, Conn, Core, Slot

cdef enum QuotaKind:                # as kafkad.quota.Kind
    QUOTA_PRODUCE = 0
    QUOTA_FETCH = 1
    QUOTA_REQUEST = 2
    QUOTA_KINDS = 3

cdef struct Quotas:                 # belongs to a worker; Core.quotas points here while any quota is set
    PyObject* table                 # QuotaTable
    PyObject* resolve               # (kind, principal, client id) -> (key, limit), or None
    uint64_t version                # raised by each change of a quota
    double full_s                   # seconds of the whole windows over which a rate is measured
    int kinds                       # bits: the kinds with quotas
    Conn* timed                     # the connection whose client is charged for this thread's current work, or NULL
    int64_t since_ns                # CPU time of this thread that has been charged so far

# Finds what a request of this client is charged to. Limit 0: nothing.
cdef void quota_of(Conn* conn, int kind, const uint8_t* client, int16_t client_size, Charge* charge) noexcept nogil

cdef inline void quota_charge(Conn* conn, const uint8_t* client, int16_t client_size, size_t body_size,
                              Charge* charge) noexcept nogil:
    """Find what a Produce will be charged to, and its size. `body_size`: the bytes after the client id."""
    charge.limit = 0
    if conn.core.quotas is not NULL:
        quota_of(conn, QUOTA_PRODUCE, client, client_size, charge)
        charge.size = <uint32_t>(10 + max(client_size, 0) + body_size)

# Charge `amount` and return for how many milliseconds the client must pause.
cdef int64_t quota_take(Core* core, Charge* charge, double amount) noexcept nogil
# Stops reading the connection for this time. Earlier requests are answered.
cdef void quota_mute(Conn* conn, int64_t pause_ms) noexcept nogil
# A Produce is answered: charges it, and writes the pause to its answer.
cdef void quota_produced(Slot* slot) noexcept nogil
# A Produce with acks=0, which has no answer.
cdef void quota_unanswered(Conn* conn, Charge* charge) noexcept nogil
# The largest answer for this client, so that every answer can pass.
cdef int64_t quota_answer_max(Core* core, const Charge* charge) noexcept nogil
# A Fetch is about to be answered with `size` bytes. 0: send them. Otherwise the pause; `empty`: then send no data.
cdef int64_t quota_fetched(Conn* conn, Charge* charge, int64_t size, bint* empty) noexcept nogil
# A request with an API key arrives: sets which client pays for its time.
cdef void quota_request(Conn* conn, int16_t key, const uint8_t* client, int16_t client_size) noexcept nogil
# No client pays for the request: it is a broker's, or has no answer.
cdef void quota_exempt(Conn* conn) noexcept nogil
# Charges this request's time so far. Returns how long the client must pause because of the time of its requests.
cdef int64_t quota_overtime(Conn* conn) noexcept nogil
# Work for a connection begins, or ends. True: it is timed, and the end must be called.
cdef bint quota_turn_begin(Conn* conn) noexcept nogil
cdef void quota_turn_end(Core* core) noexcept nogil
# A connection is closed.
cdef void quota_left(Conn* conn) noexcept nogil

cdef class ClientQuotaCounting:
    cdef object table
    cdef object resolver
    cdef Quotas quotas
    cdef void change(self, Core* core, int kinds) noexcept

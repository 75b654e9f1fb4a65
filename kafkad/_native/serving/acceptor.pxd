"""Which connections are accepted, and which worker serves them. See acceptor.pyx."""

from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t

from kafkad._native.serving.connection cimport Conn, Core, Timer
from kafkad._native.shared.connection_handover cimport Handed, Handover

cdef struct Listener:
    int kind                        # KIND_LISTENER: epoll points here
    int fd
    int phase
    uint32_t index                  # in the order of `add`: identifies it to other workers
    bint paused                     # at max.connections or a rate, or out of descriptors: the backlog waits
    int64_t rests_until_ms          # monotonic: over a rate until then
    PyObject* name                  # str

cdef struct AcceptTimer:            # the next time that a pause ends or a held connection is closed
    Timer timer                     # must be the first field
    PyObject* acceptor

cdef class Acceptor:
    cdef Core* core                 # the reactor's
    cdef object log
    cdef Handover handover          # None: new connections stay with this worker
    cdef bint hands_over
    cdef int handover_kind          # KIND_HANDOVER: epoll points here
    cdef int64_t in_hand            # accepted or taken from others, not served yet
    cdef uint32_t listener_count    # listeners ever added
    cdef bint paused                # some listener is paused
    cdef int64_t retry_ms           # monotonic: when to try again after accept failed; 0: it did not fail
    cdef int64_t told_ms            # monotonic: when that was last logged
    cdef int64_t told_rate_ms       # the same for a rate that was reached
    cdef dict listeners             # fd -> address of its Listener
    cdef list retired               # removed listeners, freed before the next poll
    cdef dict names                 # every listener name, to keep it alive
    cdef dict per_host              # address (16 bytes) -> its number of connections
    cdef dict contexts              # listener name -> TlsContext, for listeners with TLS
    cdef object hosts               # the same across workers (host_counts), or None
    cdef dict per_host_overrides
    cdef int per_host_max
    cdef int64_t connections_max
    cdef bint lowered               # it was, and there may be more connections
    cdef PyObject* protected        # name of the listener for which that does not hold, or NULL
    cdef int send_buffer_size, receive_buffer_size
    cdef object rates               # server.connection_rates.ConnectionRates, or None: no rate limits
    cdef bint rated
    cdef list held                  # (monotonic ms, fd): over the rate of its address, to be closed at that time
    cdef AcceptTimer timer

    cdef object add(self, int fd, str name, int phase)
    cdef object remove(self, int fd)
    cdef Listener* listener_of(self, uint32_t index) noexcept
    cdef object join_hand_over(self)
    cdef void free_retired(self) noexcept
    cdef object limit(self, connections_max, per_host_max, per_host_overrides)
    cdef object protect(self, str name)

    # Serves a connection from now on. NULL: its host has too many, or epoll refuses it, and it is closed.
    cdef Conn* adopt(self, int fd, str listener, int phase) except? NULL
    cdef Conn* attach(self, writer, str listener, peer, int phase) except? NULL
    cdef Conn* admit(
        self, int fd, uint8_t* peer, uint16_t port, PyObject* listener, int phase, bint served=*) except? NULL
    cdef bint describe(self, Conn* conn, Handed* handed) noexcept
    cdef bint described(self, Conn* conn, Handed* handed) except -1
    cdef object settle(self, Conn* conn, const Handed* handed)
    cdef object left(self, bytes host)

    cdef bint count_host(self, bytes host, bint limited) except -1
    cdef object uncount_host(self, bytes host)
    cdef void welcome(self, Listener* listener, int fd, uint8_t* peer, uint16_t port) noexcept
    cdef void welcome_handed(self, int fd, const Handed* handed) noexcept
    cdef object limit_rates(self, rates)
    cdef int64_t wait_for_rate(self, Listener* listener) noexcept
    cdef bint holds(self, Listener* listener, int fd, const uint8_t* peer) noexcept
    cdef void rests_ended(self) noexcept
    cdef void start_timer(self, int64_t deadline_ms) noexcept nogil
    cdef void accept_failed(self, Listener* listener, int number) noexcept
    cdef void say(self, str text) noexcept
    cdef object close(self)

# A listener is readable, or other workers have handed over connections.
cdef void accept_some(Acceptor self, Listener* listener) noexcept nogil
cdef void take_some(Acceptor self) noexcept nogil
# Gives a connection to the worker that its requests are for, if nothing is under way for it. Returns whether it is gone.
cdef bint acceptor_move(Conn* conn) noexcept nogil
# Resumes paused listeners that have room again; called between turns.
cdef void look_at_rest(Acceptor self) noexcept
# Closes a connection, if there are more than max.connections, which was lowered; called in each round.
cdef void obey_lowered(Acceptor self) noexcept nogil
# Resumes paused listeners, if there is room again.
cdef void resume_listeners(Acceptor self) noexcept

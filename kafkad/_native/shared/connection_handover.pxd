"""Which worker serves a new connection. See connection_handover.pyx."""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t

from kafkad._native.shared.mailbox cimport WORKERS_MAX

cdef struct Handed:                 # 32 bytes beside a socket on its way
    uint32_t listener               # the how-manieth of the reactor's, the same in all workers
    uint16_t phase
    uint16_t peer_port
    uint8_t peer[16]
    uint8_t spare[8]

cdef struct Post:                   # what a worker shows the others, a cache line
    int64_t load                    # connections that it serves or has in its hands; written by it alone
    uint32_t open                   # it takes connections of others
    uint32_t spare
    int64_t _spare[6]

cdef struct Board:                  # opens the shared memory; the posts follow
    uint8_t lock[64]                # a pthread_mutex_t

cdef class Handover:
    cdef readonly int me            # -1 before `enter`
    cdef readonly int count
    cdef Board* board
    cdef Post* posts
    cdef int senders[WORKERS_MAX]   # a socket pair a worker: everybody's end,
    cdef int receivers[WORKERS_MAX]     # and its own
    cdef int64_t seen[WORKERS_MAX]      # with what is on its way, as last looked
    cdef bint locked
    cdef bint impatient             # whoever holds the lock does not move: no more waiting for it
    cdef bint serving               # this worker takes connections, until it shuts
    cdef readonly int64_t given, taken      # connections, since `enter`
    cdef size_t size(self) noexcept

# False: somebody holds it and does not move; then go on without, and the counts are good but not exact.
cdef bint handover_lock(Handover self) noexcept nogil
cdef void handover_unlock(Handover self) noexcept nogil
cdef void handover_publish(Handover self, int64_t load) noexcept nogil
# Looks at everybody's load, and gives their sum. Exact under the lock.
cdef int64_t handover_look(Handover self) noexcept nogil
# After a look: whether somebody else has this socket now. If so its fd is closed here.
cdef bint handover_give(Handover self, int fd, const Handed* handed) noexcept nogil
# The next socket that was given to me: its fd, NOTHING, or LOST when there was no descriptor for it; then I shut.
cdef int handover_take(Handover self, Handed* handed) noexcept nogil

cdef enum:
    NOTHING = -1
    LOST = -2

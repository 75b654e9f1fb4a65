"""Choose the worker that serves a connection. See connection_handover.pyx."""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t

from kafkad._native.shared.mailbox cimport WORKERS_MAX

cdef struct Handed:                 # 128 bytes that are sent with a socket
    uint32_t listener               # index of the reactor's listener, the same in all workers
    uint16_t phase
    uint16_t peer_port
    uint8_t peer[16]
    uint8_t served                  # another worker has served it: it counts as one connection of its host already
    uint8_t name_size               # bytes of the client's software name and version, one after the other in `text`
    uint8_t version_size
    uint8_t spare[5]
    uint8_t text[96]

cdef struct Post:                   # a worker's part of the board, one cache line
    int64_t load                    # connections that it serves or has received; only this worker writes it
    int64_t settled                 # of these, the ones that have moved to it
    uint32_t open                   # whether it takes connections from other workers
    uint32_t spare
    int64_t _spare[5]

cdef struct Board:                  # the start of the shared memory; the posts follow
    uint8_t lock[64]                # a pthread_mutex_t

cdef class Handover:
    cdef readonly int me            # -1 before `enter`
    cdef readonly int count
    cdef Board* board
    cdef Post* posts
    cdef int senders[WORKERS_MAX]   # a socket pair per worker: the end that all workers send to,
    cdef int receivers[WORKERS_MAX]     # and the end that it receives from
    cdef int64_t seen[WORKERS_MAX]      # loads at the last look, including connections on their way
    cdef int64_t fresh[WORKERS_MAX]     # the same without those that have moved
    cdef bint locked
    cdef bint impatient             # the holder of the lock is stuck: do not wait for the lock
    cdef bint serving               # this worker takes connections, until it shuts
    cdef readonly int64_t given, taken      # number of connections since `enter`
    cdef size_t size(self) noexcept

# Return False if the holder of the lock is stuck. Then continue without the lock; the counts are close, but not exact.
cdef bint handover_lock(Handover self) noexcept nogil
cdef void handover_unlock(Handover self) noexcept nogil
cdef void handover_publish(Handover self, int64_t load, int64_t settled) noexcept nogil
# Read the loads of all workers, and return their sum. It is exact under the lock.
cdef int64_t handover_look(Handover self) noexcept nogil
# After a look: send the socket to the worker with the fewest connections that have not moved. Return whether it was sent;
# its fd is closed then.
cdef bint handover_give(Handover self, int fd, const Handed* handed) noexcept nogil
# After a look: send the socket to this worker, unless it has far more than the others. Return whether it was sent; its
# fd stays open.
cdef bint handover_move(Handover self, int worker, int fd, const Handed* handed) noexcept nogil
# Send the socket to this worker. Return whether it was sent; its fd stays open.
cdef bint handover_send(Handover self, int worker, int fd, const Handed* handed) noexcept nogil
# Return the fd of the next socket for this worker, or NOTHING. Return LOST, and shut this worker, if the process has no
# descriptor left for it.
cdef int handover_take(Handover self, Handed* handed) noexcept nogil

cdef enum:
    NOTHING = -1
    LOST = -2

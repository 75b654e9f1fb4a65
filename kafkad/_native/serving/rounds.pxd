"""The rounds of the reactor: see rounds.pyx."""

from cpython.object cimport PyObject
from libc.stdint cimport int64_t

from kafkad._native.serving.acceptor cimport Acceptor
from kafkad._native.serving.connection_turns cimport ConnectionTurns
from kafkad._native.serving.partition_table cimport PartitionTable
from kafkad._native.serving.produce_forwarding cimport Forwarding
from kafkad._native.serving.unpacking cimport Unpacker
from kafkad._native.shared.mailbox cimport Mailboxes

cdef enum:
    TRIM_BYTES = 16 * 1024 * 1024       # after this much is freed, the heap is trimmed

cdef struct Commits:
    int kind                        # KIND_COMMIT: epoll points here
    PyObject* group                 # GroupCommit

cdef class Rounds(ConnectionTurns):
    cdef Acceptor acceptor
    cdef PartitionTable table
    cdef Unpacker unpacker
    cdef Mailboxes mailboxes        # None: there are no other workers
    cdef Forwarding forwarding
    cdef bint called                # Python has something to do: `wait` ends
    cdef bint loop_ready            # the event loop's own descriptor is readable
    cdef bint asleep                # as its mailbox shows
    cdef bint open
    cdef list outgoing              # owners of connections that we opened; closed ones stay until the next call
    cdef int late_rounds            # number of rounds that answers have waited for those of other workers
    cdef int64_t idle_ms
    cdef int64_t stall_ms

# Runs rounds without sleeping, until nothing is ready or the time is up.
cdef void run_rounds(Rounds rounds) noexcept nogil

# Runs rounds, and sleeps between them, until asyncio has something to do or `wait_ms` are over (-1: never).
cdef void run_until_called(Rounds rounds, int64_t wait_ms, PyObject* ready, PyObject* scheduled) noexcept nogil

# Answers the waiters of all partitions that advanced since the last call, each partition once.
cdef void answer_waiters(Rounds rounds) noexcept nogil

# Gives up what was in flight to peers that died and came back.
cdef void note_lost(Rounds rounds) noexcept nogil

# Closes idle connections, gives memory back, and ends a shortage of memory.
cdef void expire_idle(Rounds rounds) noexcept nogil

# Sets the timer fd to the earliest deadline. If the deadline moves later, the timer fires early once.
cdef void arm(Rounds rounds) noexcept nogil

# Monotonic ms, or 0.
cdef int64_t next_deadline(Rounds rounds) noexcept nogil

"""What the reactor does again and again: see rounds.pyx."""

from cpython.object cimport PyObject
from libc.stdint cimport int64_t

from kafkad._native.serving.acceptor cimport Acceptor
from kafkad._native.serving.connection_turns cimport ConnectionTurns
from kafkad._native.serving.partition_table cimport PartitionTable
from kafkad._native.serving.produce_forwarding cimport Forwarding
from kafkad._native.serving.unpacking cimport Unpacker
from kafkad._native.shared.mailbox cimport Mailboxes

cdef enum:
    TRIM_BYTES = 16 * 1024 * 1024       # given back to the heap in big requests: then it is trimmed

cdef struct Commits:
    int kind                        # KIND_COMMIT, what epoll points to
    PyObject* group                 # GroupCommit

cdef class Rounds(ConnectionTurns):
    cdef Acceptor acceptor
    cdef PartitionTable table
    cdef Unpacker unpacker
    cdef Mailboxes mailboxes        # None: this process is the only worker
    cdef Forwarding forwarding
    cdef bint called                # Python has something to do: `wait` ends
    cdef bint loop_ready            # it is the event loop
    cdef bint asleep                # as its mailbox says
    cdef bint open
    cdef list outgoing              # of the connections that we opened, who has them; the closed ones until the next call
    cdef int late_rounds            # that answers have waited for those of other workers
    cdef int64_t idle_ms
    cdef int64_t stall_ms

# Rounds that never sleep, until nothing is ready or the time is up.
cdef void run_rounds(Rounds rounds) noexcept nogil

# Rounds, and sleep between them, until asyncio has something to do or `wait_ms` are over (-1: never).
cdef void run_until_called(Rounds rounds, int64_t wait_ms, PyObject* ready, PyObject* scheduled) noexcept nogil

# All partitions that advanced since the last look answer their waiters, each once.
cdef void answer_waiters(Rounds rounds) noexcept nogil

# Peers that died and came back: what was in flight to them is given up.
cdef void note_lost(Rounds rounds) noexcept nogil

# Closes idle connections, gives memory back, and ends a shortage of it.
cdef void expire_idle(Rounds rounds) noexcept nogil

# The timer fd fires at the earliest deadline; moving it later is left to its firing.
cdef void arm(Rounds rounds) noexcept nogil

# Monotonic ms, 0 for none.
cdef int64_t next_deadline(Rounds rounds) noexcept nogil

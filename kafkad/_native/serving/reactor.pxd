"""The event loop's C half. See reactor.pyx."""

from cpython.object cimport PyObject
from libc.stdint cimport int16_t, int64_t

from kafkad._native.serving.acceptor cimport Acceptor
from kafkad._native.serving.connection cimport API_KEYS, Conn, Core
from kafkad._native.serving.fetch cimport Fetching
from kafkad._native.serving.produce_forwarding cimport Forwarding
from kafkad._native.shared.mailbox cimport Mailboxes
from kafkad._native.serving.partition_table cimport PartitionTable
from kafkad._native.serving.produce cimport Producing
from kafkad._native.serving.unpacking cimport Unpacker

cdef struct Commits:
    int kind                        # KIND_COMMIT, what epoll points to
    PyObject* group                 # GroupCommit

cdef class Reactor:
    cdef Core* core
    cdef Acceptor acceptor
    cdef PartitionTable table
    cdef Producing producing
    cdef Unpacker unpacker
    cdef Fetching fetching
    cdef Mailboxes mailboxes        # None: this process is the only worker
    cdef Forwarding forwarding
    cdef bint has_mail              # there are mailboxes
    cdef PyObject* arena            # Mailboxes, a reference: the core's buffers lie there
    cdef int mail_kind              # what epoll points to: KIND_MAIL
    cdef int loop_kind              # what epoll points to: KIND_LOOP
    cdef bint called                # Python has something to do: `wait` ends
    cdef bint loop_ready            # it is the event loop
    cdef bint asleep                # as its mailbox says
    cdef int late_rounds            # that answers have waited for those of other workers
    cdef object dispatch, on_fatal, log
    cdef public object on_certificate   # (connection, DER of a client's certificate), or None
    cdef list commits               # (address of a Commits, its group)
    cdef int64_t idle_ms
    cdef int64_t stall_ms
    cdef int16_t native_low[API_KEYS]
    cdef int16_t native_high[API_KEYS]
    cdef bint open
    cdef object admitted(self, Conn* conn)
    cdef void finish(self) noexcept

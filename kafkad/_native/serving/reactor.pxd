"""The C part of the event loop. See reactor.pyx."""

from cpython.object cimport PyObject
from libc.stdint cimport int64_t

from kafkad._native.serving.connection cimport Conn
from kafkad._native.serving.quota cimport ClientQuotaCounting
from kafkad._native.serving.rounds cimport Rounds
from kafkad._native.serving.topic_rights cimport TopicRights

cdef class Reactor(Rounds):
    cdef PyObject* arena            # Mailboxes, a reference: the core's buffers are there
    cdef int mail_kind              # KIND_MAIL: epoll points here
    cdef int loop_kind              # KIND_LOOP: epoll points here
    cdef object on_fatal, log
    cdef int64_t failed_ms          # monotonic, of the last failure that was logged
    cdef public object on_certificate   # (connection, DER of a client's certificate), or None
    cdef ClientQuotaCounting counting   # None: no quota was ever set
    cdef TopicRights rights         # None: there is no authorizer
    cdef list commits               # (address of a Commits, its group)
    cdef object admitted(self, Conn* conn)
    cdef void finish(self) noexcept
    cdef void let_go(self) noexcept

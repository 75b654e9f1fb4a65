"""The beginning of a connection with TLS that this broker opens: see outgoing_tls.pyx."""

from kafkad._native.serving.tls cimport Tls, TlsContext

cdef class OutgoingTls:
    cdef Tls* tls                   # NULL: a ReplicaFetch has it, or it is closed
    cdef int fd                     # not ours
    cdef object reactor
    cdef TlsContext context

    cdef Tls* release(self) noexcept        # to the caller
    cdef bint is_open(self) noexcept        # the handshake is over, and it is not closed
    cdef Tls* held(self) except NULL

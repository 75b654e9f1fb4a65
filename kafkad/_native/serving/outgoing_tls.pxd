"""TLS of a connection that this broker opens, until a ReplicaFetch takes it over: see outgoing_tls.pyx."""

from kafkad._native.serving.tls cimport Tls, TlsContext

cdef class OutgoingTls:
    cdef Tls* tls                   # NULL: closed, or a ReplicaFetch owns it
    cdef int fd                     # owned by the caller
    cdef object reactor
    cdef TlsContext context

    cdef Tls* release(self) noexcept        # the caller owns it from now on
    cdef bint is_open(self) noexcept        # the handshake has ended, and it is not closed
    cdef Tls* held(self) except NULL

"""TLS of a connection that this broker opens: the handshake, and the login before the first Fetch.

Python (server/node_links) runs one step whenever the socket is ready. A ReplicaFetch then takes over the connection, and
serves it without Python."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.errno cimport EAGAIN, errno

cimport cython

from kafkad._native.serving.reactor cimport Reactor
from kafkad._native.serving.tls cimport (
    TLS_OPEN, Tls, TlsContext, iovec, tls_client, tls_free, tls_goodbye, tls_push, tls_receive, tls_send, tls_shake, tls_waits)

from kafkad._native.serving.tls_keys import TlsError


@cython.no_gc_clear              # __dealloc__ needs the reactor's core
cdef class OutgoingTls:
    """See outgoing_tls.pyi."""

    def __cinit__(self, Reactor reactor not None, TlsContext context not None, int fd, str host not None, *,
                  bint checks_host, bint names_host):
        cdef bytes name = host.encode()
        if not context.is_client:
            raise ValueError("the context is a server's")
        self.reactor = reactor
        self.context = context
        self.fd = fd
        self.tls = tls_client(
            context, reactor.core, &self.fd, PyBytes_AS_STRING(name) if checks_host else NULL,
            PyBytes_AS_STRING(name) if names_host else NULL)
        if self.tls is NULL:
            raise MemoryError()

    def __dealloc__(self):
        if self.tls is not NULL:
            tls_free(self.tls)

    cdef Tls* release(self) noexcept:
        cdef Tls* tls = self.tls
        self.tls = NULL
        return tls

    cdef bint is_open(self) noexcept:
        return self.tls is not NULL and self.tls.state == TLS_OPEN

    cdef Tls* held(self) except NULL:
        if self.tls is NULL:
            raise ValueError("this TLS is closed, or a ReplicaFetch owns it")
        return self.tls

    def _failed(self):
        reason = self.tls.reason.decode("utf-8", "replace")
        return TlsError(reason) if reason else ConnectionError("the peer has closed the connection")

    def shake(self):
        cdef Tls* tls = self.held()
        cdef bint more = True
        cdef int done = 0
        while done == 0 and more:
            done = tls_shake(tls, &more)
        if done < 0:
            raise self._failed()
        return done == 1

    @property
    def waits(self):
        return tls_waits(self.held())

    def push(self):
        if not tls_push(self.held()):
            raise self._failed()

    def write(self, bytes data not None):
        cdef Tls* tls = self.held()
        cdef iovec part
        part.iov_base = PyBytes_AS_STRING(data)
        part.iov_len = len(data)
        if tls_send(tls, &part, 1) != len(data):
            raise self._failed()

    def read(self, int size):
        cdef Tls* tls = self.held()
        cdef bytes data
        cdef bint more = True
        cdef iovec part
        cdef ssize_t n = -1
        if size <= 0:
            raise ValueError(f"a read of {size} bytes")
        data = PyBytes_FromStringAndSize(NULL, size)
        part.iov_base = PyBytes_AS_STRING(data)
        part.iov_len = size
        while n < 0 and more:
            n = tls_receive(tls, &part, 1, &more)
            if n < 0 and errno != EAGAIN:
                raise self._failed()
        if n == 0:
            raise ConnectionError("the peer has closed the connection")
        return data[:max(n, 0)]

    def close(self):
        if self.tls is not NULL:
            tls_goodbye(self.tls)
            tls_free(self.release())

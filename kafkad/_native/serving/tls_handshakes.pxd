"""The first bytes of a TLS connection. See tls_handshakes.pyx."""

from kafkad._native.serving.connection cimport Conn
from kafkad._native.serving.tls cimport TlsContext

cdef bint handshake_begin(Conn* conn, TlsContext context) noexcept      # False: no memory
cdef bint handshake_done(Conn* conn) noexcept nogil                     # True: its bytes may be served

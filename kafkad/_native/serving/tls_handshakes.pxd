"""The first bytes of a TLS connection. See tls_handshakes.pyx."""

from kafkad._native.serving.connection cimport Conn, Core
from kafkad._native.serving.tls cimport TlsContext

cdef bint handshake_begin(Conn* conn, TlsContext context) noexcept      # False: no memory
# Steps of a chain of connections (by `run_next`) that are taken from the run list; it gets those that must wait.
cdef void shake_some(Core* core, Conn* first, Conn* last) noexcept nogil

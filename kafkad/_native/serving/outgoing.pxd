"""A connection that this broker opened, in the reactor's epoll set: see outgoing.pyx."""

from libc.stdint cimport int64_t, uint8_t, uint32_t

from kafkad._native.serving.connection cimport Core
from kafkad._native.serving.tls cimport Tls

cdef struct Outgoing:               # initially zeros, except `fd`, which is -1
    int kind                        # KIND_OUTGOING: epoll points here
    int fd                          # -1: closed
    Core* core
    Tls* tls                        # NULL: plaintext
    bint watches_out                # EPOLLOUT: there are bytes to send, or `tls` may hold bytes to read
    uint8_t* out                    # bytes to send
    size_t out_size
    size_t out_sent
    size_t out_capacity
    void (*ready)(void* owner) noexcept nogil       # called when there is data to read, or the peer is gone
    void* owner

# Takes over the connected, non-blocking `fd`, and `tls`, whose handshake has ended. Returns 0; or -errno, and then `fd` is
# still the caller's.
cdef int outgoing_open(Outgoing* self, Core* core, int fd, Tls* tls) noexcept nogil

# Sends a message; bytes that the socket does not take are kept. The previous message must be sent. Returns 0, or -errno.
cdef int outgoing_send(Outgoing* self, const uint8_t* data, size_t size) noexcept nogil

# Returns bytes read; 0: none available; -EPIPE: the peer has closed; otherwise -errno.
cdef int64_t outgoing_read(Outgoing* self, uint8_t* into, size_t room) noexcept nogil

# Returns why a read has failed with errno `number`.
cdef object outgoing_reason(Outgoing* self, int number)

cdef void outgoing_close(Outgoing* self) noexcept nogil

# Handles an event from epoll.
cdef void outgoing_event(Outgoing* self, uint32_t events) noexcept nogil

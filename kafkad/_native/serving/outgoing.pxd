"""A connection that this broker opened, in the reactor's epoll set: see outgoing.pyx."""

from libc.stdint cimport int64_t, uint8_t, uint32_t

from kafkad._native.serving.connection cimport Core
from kafkad._native.serving.tls cimport Tls

cdef struct Outgoing:               # zeros to begin with, except `fd`, which is -1
    int kind                        # KIND_OUTGOING: epoll points here
    int fd                          # -1: closed
    Core* core
    Tls* tls                        # NULL: plaintext
    bint watches_out                # epoll tells when the socket takes bytes, or when `tls` has some that nobody has read
    uint8_t* out                    # what is still to be sent
    size_t out_size
    size_t out_sent
    size_t out_capacity
    void (*ready)(void* owner) noexcept nogil       # called when there is data to read, or the peer is gone
    void* owner

# Takes the connected, non-blocking `fd`, and `tls`, whose handshake is over. 0, or -errno: then `fd` is still the caller's.
cdef int outgoing_open(Outgoing* self, Core* core, int fd, Tls* tls) noexcept nogil

# Sends, or keeps what the socket does not take. One message at a time: nothing may be kept yet. 0, or -errno.
cdef int outgoing_send(Outgoing* self, const uint8_t* data, size_t size) noexcept nogil

# Returns bytes read; 0: none available; -EPIPE: the peer has closed; otherwise -errno.
cdef int64_t outgoing_read(Outgoing* self, uint8_t* into, size_t room) noexcept nogil

# Why a read has failed, with `number`.
cdef object outgoing_reason(Outgoing* self, int number)

cdef void outgoing_close(Outgoing* self) noexcept nogil

# Handles an event from epoll.
cdef void outgoing_event(Outgoing* self, uint32_t events) noexcept nogil

"""A connection that this broker opened, in the reactor's epoll set: bytes out, bytes in, without the GIL.

Python opens the socket and hands it over once it is connected (replication/fetchers), so names, timeouts and back-off
are handled in Python. The owner is called when there is data to read, and reads as much as it has room for. Epoll
reports again while there is more.

With TLS, data is decrypted from the core's area into the owner's buffer, and a request is encrypted when it is sent.
Handshake and login come before (outgoing_tls). OpenSSL may hold data for which the owner has no room, and epoll does
not know of it. So the connection then also watches for EPOLLOUT, which epoll reports in the next round.

Beware: an event of the same round may still point to a closed Outgoing. It lives until the next call of the reactor
(Reactor.hold)."""

import os

from libc.errno cimport EAGAIN, EINTR, ENOMEM, EPIPE, errno
from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy

from kafkad._native.serving.connection cimport KIND_OUTGOING, Core
from kafkad._native.serving.tls cimport Tls, iovec, tls_free, tls_goodbye, tls_push, tls_receive, tls_send, tls_waits

cdef extern from "sockets.h" nogil:
    void kafkad_no_delay(int fd)
    int kafkad_epoll_listen(int epoll_fd, int fd, void* pointer, int operation)

cdef extern from * nogil:
    """
    #include <sys/epoll.h>
    #include <sys/socket.h>
    #include <unistd.h>
    static int kafkad_watch_out(int epoll_fd, int fd, void* pointer, int out) {
        struct epoll_event event = {0};
        event.events = out ? EPOLLIN | EPOLLOUT : EPOLLIN;
        event.data.ptr = pointer;
        return epoll_ctl(epoll_fd, EPOLL_CTL_MOD, fd, &event);
    }
    """
    int EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLLIN, EPOLLOUT, EPOLLHUP, EPOLLERR
    int MSG_NOSIGNAL, MSG_DONTWAIT
    ssize_t send(int fd, const void* data, size_t size, int flags)
    ssize_t recv(int fd, void* data, size_t size, int flags)
    int close(int fd)
    int kafkad_watch_out(int epoll_fd, int fd, void* pointer, int out)


cdef int outgoing_open(Outgoing* self, Core* core, int fd, Tls* tls) noexcept nogil:
    cdef int failure
    self.kind = KIND_OUTGOING
    self.core = core
    self.out_size = self.out_sent = 0
    self.watches_out = False
    self.tls = tls
    if tls is not NULL:
        tls.fd = &self.fd
    if kafkad_epoll_listen(core.epoll_fd, fd, self, EPOLL_CTL_ADD) != 0:
        failure = errno
        outgoing_close(self)
        return -failure
    kafkad_no_delay(fd)
    self.fd = fd
    if tls is not NULL:
        watch_out(self, True)           # OpenSSL may hold data that came with the end of the login
    return 0


cdef int watch_out(Outgoing* self, bint out) noexcept nogil:
    if out == self.watches_out:
        return 0
    if kafkad_watch_out(self.core.epoll_fd, self.fd, self, out) != 0:
        return -errno
    self.watches_out = out
    return 0


cdef int push(Outgoing* self) noexcept nogil:
    # 1 if everything is sent, 0 if the socket is full, or -errno.
    cdef ssize_t n
    if self.tls is not NULL:
        return push_encrypted(self)
    while self.out_sent < self.out_size:
        n = send(self.fd, self.out + self.out_sent, self.out_size - self.out_sent, MSG_NOSIGNAL | MSG_DONTWAIT)
        if n < 0:
            if errno == EINTR:
                continue
            return 0 if errno == EAGAIN else -errno
        self.out_sent += n
    return 1


cdef int push_encrypted(Outgoing* self) noexcept nogil:
    cdef iovec part
    cdef ssize_t n
    if not tls_push(self.tls):
        return -EPIPE
    while self.out_sent < self.out_size:
        part.iov_base = self.out + self.out_sent
        part.iov_len = self.out_size - self.out_sent
        n = tls_send(self.tls, &part, 1)
        if n < 0:
            return 0 if errno == EAGAIN else -errno
        self.out_sent += n
    return 0 if tls_waits(self.tls) else 1


cdef int outgoing_send(Outgoing* self, const uint8_t* data, size_t size) noexcept nogil:
    cdef uint8_t* room
    cdef int done
    if self.out_capacity < size:
        room = <uint8_t*>realloc(self.out, size)
        if room == NULL:
            return -ENOMEM
        self.out = room
        self.out_capacity = size
    memcpy(self.out, data, size)
    self.out_size = size
    self.out_sent = 0
    done = push(self)
    return watch_out(self, True) if done == 0 else min(done, 0)


cdef int64_t outgoing_read(Outgoing* self, uint8_t* into, size_t room) noexcept nogil:
    cdef ssize_t n
    if self.tls is not NULL:
        return read_encrypted(self, into, room)
    while True:
        n = recv(self.fd, into, room, MSG_DONTWAIT)
        if n > 0:
            return n
        if n == 0:
            return -EPIPE
        if errno != EINTR:
            return 0 if errno == EAGAIN else -errno


cdef int64_t read_encrypted(Outgoing* self, uint8_t* into, size_t room) noexcept nogil:
    cdef bint more = False
    cdef iovec part
    cdef ssize_t n
    cdef int failed
    part.iov_base = into
    part.iov_len = room
    n = tls_receive(self.tls, &part, 1, &more)
    failed = errno
    if n == 0:
        return -EPIPE
    if n < 0 and failed != EAGAIN:
        return -failed
    if watch_out(self, more or tls_waits(self.tls) or self.out_sent < self.out_size) != 0:
        return -errno
    return max(n, 0)


cdef void outgoing_close(Outgoing* self) noexcept nogil:
    if self.tls is not NULL:
        tls_goodbye(self.tls)
        tls_free(self.tls)
        self.tls = NULL
    if self.fd >= 0:
        kafkad_epoll_listen(self.core.epoll_fd, self.fd, self, EPOLL_CTL_DEL)
        close(self.fd)
        self.fd = -1
    free(self.out)
    self.out = NULL
    self.out_size = self.out_sent = self.out_capacity = 0


cdef object outgoing_reason(Outgoing* self, int number):
    if self.tls is not NULL and self.tls.reason[0]:
        return self.tls.reason.decode("utf-8", "replace")
    return "the leader has closed the connection" if number == EPIPE else os.strerror(number)


cdef void outgoing_event(Outgoing* self, uint32_t events) noexcept nogil:
    if self.fd < 0:
        return
    if events & EPOLLOUT:
        if push(self) != 0:             # sent, or broken: then the read reports it
            watch_out(self, False)
        if self.tls is not NULL:
            events |= EPOLLIN           # only a read can tell whether OpenSSL holds data
    if events & (EPOLLIN | EPOLLHUP | EPOLLERR):
        self.ready(self.owner)

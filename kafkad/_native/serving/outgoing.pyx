"""A connection that this broker opened, in the reactor's epoll set: bytes out, bytes in, without the GIL.

Who opens the socket gives it here once it is connected (replication/fetchers), so names, timeouts and back-off are
Python's. The owner is called when there is something to read, and reads as much as it has room for: epoll tells again
while more is there.

This is plaintext. TLS and SASL would come between `outgoing_read` and the socket; replication/fetchers refuses a listener
that needs them, by name.

Beware: an Outgoing that is closed may still be named by an event of the same round. It lives until the reactor is called
the next time (Reactor.hold)."""

from libc.errno cimport EAGAIN, EINTR, ENOMEM, EPIPE, errno
from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy

from kafkad._native.serving.connection cimport KIND_OUTGOING, Core

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


cdef int outgoing_open(Outgoing* self, Core* core, int fd) noexcept nogil:
    self.kind = KIND_OUTGOING
    self.core = core
    self.out_size = self.out_sent = 0
    if kafkad_epoll_listen(core.epoll_fd, fd, self, EPOLL_CTL_ADD) != 0:
        return -errno
    kafkad_no_delay(fd)
    self.fd = fd
    return 0


cdef int push(Outgoing* self) noexcept nogil:
    # 1 when all is sent, 0 when the socket is full, or -errno.
    cdef ssize_t n
    while self.out_sent < self.out_size:
        n = send(self.fd, self.out + self.out_sent, self.out_size - self.out_sent, MSG_NOSIGNAL | MSG_DONTWAIT)
        if n < 0:
            if errno == EINTR:
                continue
            return 0 if errno == EAGAIN else -errno
        self.out_sent += n
    return 1


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
    if done == 0 and kafkad_watch_out(self.core.epoll_fd, self.fd, self, True) != 0:
        return -errno
    return min(done, 0)


cdef int64_t outgoing_read(Outgoing* self, uint8_t* into, size_t room) noexcept nogil:
    cdef ssize_t n
    while True:
        n = recv(self.fd, into, room, MSG_DONTWAIT)
        if n > 0:
            return n
        if n == 0:
            return -EPIPE
        if errno != EINTR:
            return 0 if errno == EAGAIN else -errno


cdef void outgoing_close(Outgoing* self) noexcept nogil:
    if self.fd >= 0:
        kafkad_epoll_listen(self.core.epoll_fd, self.fd, self, EPOLL_CTL_DEL)
        close(self.fd)
        self.fd = -1
    free(self.out)
    self.out = NULL
    self.out_size = self.out_sent = self.out_capacity = 0


cdef void outgoing_event(Outgoing* self, uint32_t events) noexcept nogil:
    if self.fd < 0:
        return
    if events & EPOLLOUT and self.out_sent < self.out_size:
        if push(self) != 0:             # sent, or broken: then the read says so
            kafkad_watch_out(self.core.epoll_fd, self.fd, self, False)
    if events & (EPOLLIN | EPOLLHUP | EPOLLERR):
        self.ready(self.owner)

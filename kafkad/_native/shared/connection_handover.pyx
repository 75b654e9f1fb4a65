"""Connection handover: choose the worker that serves a connection.

The workers listen on one port. The kernel spreads connections over them by a hash, which puts two connections on the
same worker half of the time. So a worker that accepts a connection, and has more than another worker, sends it to the
worker with the fewest. It does so before it reads the first byte, as a descriptor (SCM_RIGHTS) through the receiver's
socket; all workers have both ends of all these sockets.

    Board: lock | Post × N: load, open

**Loads.** A worker publishes how many connections it serves and has received; only this worker writes the count. The
kernel reports what is on the way to a worker, as the bytes that its socket holds. So a worker that dies at any
instruction leaves no wrong count: the supervisor resets its count, connections that it sent are still in a socket, and
those that it did not send are closed with its descriptors.

**Exactness.** Comparing, choosing and sending is one step under a lock. Receiving and publishing is another. While
connections only come, the loads of two workers differ by at most one, however many come at once. Connections that have
moved are not compared, because clients decide where these are. max.connections and max.connections.per.ip are checked
under the same lock, so they hold for all workers together. The lock is a robust mutex: if its holder dies, it is
released. If its holder is stopped, the others wait PATIENCE_MS once, and then continue without the lock.

**Moving.** A worker also sends a connection that it has served, to the worker that answers nearly all of its requests
(acceptor.pyx). `Handed` says what is known of its client. It counts for the receiver before it stops to count for the
sender, under the lock. No worker gets far more than the others in this way, because its descriptors are limited.

**Death.** The supervisor keeps the sockets. Connections that are on their way to a dead worker wait for its successor,
like the backlog of its listener, which the supervisor resets if that takes long. A worker gets no connections while it is
not open: before it has started, while it stops, and when the supervisor knows that it has died or hangs. If a socket
cannot be sent (too many are on their way), the worker that accepted it keeps it.

Beware: a socket stays in an epoll set as long as another process has it open. Remove it there before it is closed."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.errno cimport EINTR, errno
from libc.stdint cimport int64_t, uint16_t, uint32_t
from libc.string cimport memcpy, memset

from kafkad._native.shared.mailbox cimport WORKERS_MAX
from kafkad._native.shared.robust_mutex cimport (
    robust_mutex_give, robust_mutex_new, robust_mutex_size, robust_mutex_take)
from kafkad._native.wire.primitives cimport KAFKAD_CHECK

import os
import socket

cdef extern from * nogil:
    """
    #include <errno.h>
    #include <string.h>
    #include <sys/ioctl.h>
    #include <sys/mman.h>
    #include <sys/socket.h>
    #include <unistd.h>

    static inline ssize_t kafkad_send_fd(int to, int fd, const void* data, size_t size) {
        union { struct cmsghdr header; char space[CMSG_SPACE(sizeof(int))]; } control;
        struct iovec part = {(void*)data, size};
        struct msghdr message = {0};
        memset(&control, 0, sizeof(control));
        message.msg_iov = &part;
        message.msg_iovlen = 1;
        message.msg_control = &control;
        message.msg_controllen = sizeof(control);
        control.header.cmsg_level = SOL_SOCKET;
        control.header.cmsg_type = SCM_RIGHTS;
        control.header.cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(&control.header), &fd, sizeof(int));
        return sendmsg(to, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    }
    /* Return the result of recvmsg. *fd is -1 if no descriptor came with the message. */
    static inline ssize_t kafkad_receive_fd(int from, int* fd, void* data, size_t size) {
        union { struct cmsghdr header; char space[CMSG_SPACE(sizeof(int))]; } control;
        struct iovec part = {data, size};
        struct msghdr message = {0};
        ssize_t n;
        message.msg_iov = &part;
        message.msg_iovlen = 1;
        message.msg_control = &control;
        message.msg_controllen = sizeof(control);
        *fd = -1;
        n = recvmsg(from, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        if (n > 0 && CMSG_FIRSTHDR(&message) && control.header.cmsg_type == SCM_RIGHTS
                && control.header.cmsg_len == CMSG_LEN(sizeof(int)))
            memcpy(fd, CMSG_DATA(&control.header), sizeof(int));
        return n;
    }
    static inline int64_t kafkad_unread(int fd) {
        int size = 0;
        return ioctl(fd, FIONREAD, &size) == 0 ? size : 0;
    }
    #define post_load(p) __atomic_load_n(p, __ATOMIC_ACQUIRE)
    #define post_store(p, value) __atomic_store_n(p, value, __ATOMIC_RELEASE)
    """
    ssize_t kafkad_send_fd(int to, int fd, const void* data, size_t size)
    ssize_t kafkad_receive_fd(int source, int* fd, void* data, size_t size)
    int64_t kafkad_unread(int fd)
    int64_t load_of "post_load"(int64_t* p)
    void store_load "post_store"(int64_t* p, int64_t value)
    uint32_t is_open "post_load"(uint32_t* p)
    void store_open "post_store"(uint32_t* p, uint32_t value)
    void* mmap(void* address, size_t length, int protection, int flags, int fd, long offset)
    int munmap(void* address, size_t length)
    void* MAP_FAILED
    enum: PROT_READ, PROT_WRITE, MAP_SHARED, MAP_ANONYMOUS
    int close(int fd)

cdef enum:
    PATIENCE_MS = 500               # a holder that waits for a CPU needs less; a longer wait means that it was stopped
    QUEUE_BYTES = 1 << 20           # requested buffer; the system limits it to what it allows
    MOVED_SHARE = 2                 # no connection moves to a worker that has so many times the mean of all, and
    MOVED_MIN = 64                  # so many more

if sizeof(Handed) != 128 or sizeof(Post) != 64 or sizeof(Board) != 64 or robust_mutex_size > sizeof(Board):
    raise ImportError("the layout of what workers share of connections has changed")


cdef bint handover_lock(Handover self) noexcept nogil:
    KAFKAD_CHECK(not self.locked)
    self.locked = robust_mutex_take(&self.board.lock, 0 if self.impatient else PATIENCE_MS)
    self.impatient = not self.locked
    return self.locked


cdef void handover_unlock(Handover self) noexcept nogil:
    if self.locked:
        self.locked = False
        robust_mutex_give(&self.board.lock)


cdef void handover_publish(Handover self, int64_t load, int64_t settled) noexcept nogil:
    store_load(&self.posts[self.me].load, load)
    store_load(&self.posts[self.me].settled, settled)


cdef int64_t handover_look(Handover self) noexcept nogil:
    cdef int64_t total = 0
    cdef int worker
    for worker in range(self.count):
        self.seen[worker] = (
            load_of(&self.posts[worker].load) + kafkad_unread(self.receivers[worker]) // <int64_t>sizeof(Handed))
        self.fresh[worker] = self.seen[worker] - load_of(&self.posts[worker].settled)
        total += self.seen[worker]
    return total


cdef bint handover_give(Handover self, int fd, const Handed* handed) noexcept nogil:
    cdef int best = self.me
    cdef int i, worker
    for i in range(1, self.count):                  # of the least loaded workers, the next one after me
        worker = (self.me + i) % self.count
        if self.fresh[worker] < self.fresh[best] and is_open(&self.posts[worker].open):
            best = worker
    if best == self.me:
        return False
    if not handover_send(self, best, fd, handed):
        return False
    close(fd)
    return True


cdef bint handover_move(Handover self, int worker, int fd, const Handed* handed) noexcept nogil:
    cdef int64_t total = 0
    cdef int each
    for each in range(self.count):
        total += self.seen[each]
    if worker == self.me or self.seen[worker] >= MOVED_MIN + total * MOVED_SHARE // self.count:
        return False
    return handover_send(self, worker, fd, handed)


cdef bint handover_send(Handover self, int worker, int fd, const Handed* handed) noexcept nogil:
    if not is_open(&self.posts[worker].open):
        return False
    while kafkad_send_fd(self.senders[worker], fd, handed, sizeof(Handed)) < 0:
        if errno != EINTR:
            return False
    self.given += 1
    return True


cdef int handover_take(Handover self, Handed* handed) noexcept nogil:
    cdef int fd = -1
    cdef ssize_t n = kafkad_receive_fd(self.receivers[self.me], &fd, handed, sizeof(Handed))
    while n < 0 and errno == EINTR:
        n = kafkad_receive_fd(self.receivers[self.me], &fd, handed, sizeof(Handed))
    if n <= 0:
        return NOTHING
    KAFKAD_CHECK(n == sizeof(Handed))
    if fd < 0:                                      # shut until the next heartbeat; otherwise all would come here
        store_open(&self.posts[self.me].open, 0)
        return LOST
    self.taken += 1
    return fd


cdef class Handover:
    """See kafkad/_native/shared/connection_handover.pyi."""

    def __cinit__(self, int count):
        cdef void* map
        cdef int worker
        self.me = -1
        for worker in range(WORKERS_MAX):
            self.senders[worker] = self.receivers[worker] = -1
        if not 1 <= count <= WORKERS_MAX:
            raise ValueError(f"there may be 1 to {WORKERS_MAX} workers")
        self.count = count
        map = mmap(NULL, self.size(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)
        if map == MAP_FAILED:
            raise MemoryError("no memory for the workers' counts of connections")
        self.board = <Board*>map
        self.posts = <Post*>(self.board + 1)
        if robust_mutex_new(&self.board.lock) != 0:
            raise OSError("no lock for the workers' counts of connections")
        for worker in range(count):
            sender, receiver = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
            sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, QUEUE_BYTES)
            receiver.setblocking(False)
            self.senders[worker] = sender.detach()
            self.receivers[worker] = receiver.detach()

    def __dealloc__(self):
        cdef int worker
        for worker in range(WORKERS_MAX):
            for fd in (self.senders[worker], self.receivers[worker]):
                if fd >= 0:
                    os.close(fd)
        if self.board is not NULL:
            munmap(self.board, self.size())

    cdef size_t size(self) noexcept:
        return sizeof(Board) + self.count * sizeof(Post)

    def enter(self, int me):
        if not 0 <= me < self.count:
            raise ValueError("there is no such worker")
        self.me = me
        self.locked = self.impatient = self.serving = False
        self.given = self.taken = 0
        store_open(&self.posts[me].open, 0)
        handover_publish(self, 0, 0)

    def fileno(self):
        return self.receivers[self.me]

    def open(self):
        self.serving = True
        store_open(&self.posts[self.me].open, 1)

    def open_again(self):
        if self.serving:
            self.open()

    def shut(self, int worker):
        if not 0 <= worker < self.count:
            raise ValueError("there is no such worker")
        store_open(&self.posts[worker].open, 0)

    def bury(self, int worker):
        self.shut(worker)
        store_load(&self.posts[worker].load, 0)
        store_load(&self.posts[worker].settled, 0)

    def leave(self):
        cdef Handed handed
        cdef int count = 0, fd
        handover_lock(self)                         # nobody is sending to us now
        self.serving = False
        self.shut(self.me)
        handover_unlock(self)
        fd = handover_take(self, &handed)
        while fd != NOTHING:
            if fd >= 0:
                close(fd)
            count += 1
            fd = handover_take(self, &handed)
        return count

    def loads(self):
        handover_look(self)
        return [self.seen[worker] for worker in range(self.count)]

    # -- for tests: a worker without a reactor

    def lock(self):
        return handover_lock(self)

    def unlock(self):
        handover_unlock(self)

    def publish(self, int64_t load, int64_t settled=0):
        handover_publish(self, load, settled)

    def give(self, int fd, uint32_t listener, int phase=2, bytes peer=bytes(16), int port=0):
        """Compare, choose and send under the lock, as the reactor does. If the connection stays here, count it as ours."""
        cdef Handed handed
        cdef bint given
        if len(peer) != 16 or self.me < 0:
            raise ValueError("an address is 16 bytes, and a worker enters first")
        memset(&handed, 0, sizeof(handed))
        handed.listener = listener
        handed.phase = <uint16_t>phase
        handed.peer_port = <uint16_t>port
        memcpy(handed.peer, PyBytes_AS_STRING(peer), 16)
        handover_lock(self)
        handover_look(self)
        given = handover_give(self, fd, &handed)
        if not given:
            handover_publish(self, load_of(&self.posts[self.me].load) + 1, load_of(&self.posts[self.me].settled))
        handover_unlock(self)
        return given

    def take(self):
        cdef Handed handed
        cdef int fd = handover_take(self, &handed)
        if fd == NOTHING:
            return None
        return fd, handed.listener, handed.phase, PyBytes_FromStringAndSize(<char*>handed.peer, 16), handed.peer_port

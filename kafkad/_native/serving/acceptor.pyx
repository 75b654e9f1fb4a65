"""The acceptor: connections come from listeners, from other workers, or by hand, and become Conns here, or are refused.

A listener is read until it is empty, a bounded number of connections per round. With several workers, a worker that has
more connections than another hands the new one over (connection_handover.pyx). Connections from other workers arrive
through the hand-over's own descriptor.

**Moving.** A connection whose requests are nearly all for another worker (conn_answered) is given to that worker between
two requests: then its answers take no second process. Clients have a connection of their own to the coordinator of a
group or of a transaction, and it ends up where the coordinator is. A connection stays if it has state here: TLS, a
login, a fetch session, anything under way; and if connections of its host are limited, because it would count for no
worker for a moment.

**Limits.** At max.connections, counted over all workers, a listener pauses: it leaves the epoll set, and new
connections wait in its backlog until one is closed. If accept fails for lack of descriptors, or for another lasting
reason, the listener pauses until a connection is closed or RETRY_MS have passed, and logs that at most once in TELL_MS.
A connection that failed before it was accepted is skipped. A connection beyond max.connections.per.ip of its host is
closed, and that is logged.

As in Kafka, max.connections does not hold for the listener between brokers if there is another listener: otherwise its
clients could keep brokers from replicating. For each connection of that listener above the limit, the connection of
another listener that has been silent for longest is closed: by the worker that serves the new one or accepted it. When
the limit is lowered below the number of connections, each worker closes one in each of its rounds until it holds.

**Rates** (server/connection_rates.py). Over the rate of the broker or of a listener, the listener pauses until the rate
allows the next connection. A connection over the rate of its address is held unserved for that time, and then closed.
At most HELD_MAX are held: the oldest is closed at once. Without a limit no rate is checked."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from libc.errno cimport (
    EAGAIN, ECONNABORTED, EHOSTDOWN, EHOSTUNREACH, EINTR, ENETDOWN, ENETUNREACH, ENOPROTOOPT, EOPNOTSUPP, EPROTO, errno)
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from kafkad._native.serving.connection cimport (
    KIND_HANDOVER, KIND_LISTENER, Conn, Connection, Core, Timer, clock_us, conn_close, conn_handle, conn_is_quiet,
    conn_new, core_fatal, core_wake)
from kafkad._native.serving.timers cimport timer_start, timer_stop
from kafkad._native.serving.tls cimport TlsContext
from kafkad._native.serving.tls_handshakes cimport handshake_begin
from kafkad._native.shared.connection_handover cimport (
    LOST, NOTHING, Handed, Handover, handover_give, handover_lock, handover_look, handover_move, handover_publish,
    handover_take, handover_unlock)
from kafkad._native.wire.primitives cimport KAFKAD_CHECK

from kafkad._native.serving.connection import host_of

import os
import socket

cdef extern from "sockets.h" nogil:
    int kafkad_accept(int listener, uint8_t* peer, uint16_t* port)
    void kafkad_no_delay(int fd)
    void kafkad_congestion_control(int fd, const uint8_t* peer)
    void kafkad_buffers(int fd, int send_size, int receive_size)
    int kafkad_epoll_listen(int epoll_fd, int fd, void* pointer, int operation)

cdef extern from * nogil:
    """
    #include <sys/epoll.h>
    #include <unistd.h>

    static inline void kafkad_epoll_leave(int epoll_fd, int fd) {
        epoll_ctl(epoll_fd, EPOLL_CTL_DEL, fd, NULL);
    }
    """
    int EPOLL_CTL_ADD, EPOLL_CTL_DEL
    void kafkad_epoll_leave(int epoll_fd, int fd)
    int close(int fd)

cdef enum:
    ACCEPTS_PER_ROUND = 64          # unless ACCEPTS_US are over before
    TAKES_PER_ROUND = 16
    ACCEPTS_US = 500
    RETRY_MS = 100
    TELL_MS = 10_000
    HELD_MAX = 1000
    NO_LIMIT = 2147483647           # connections per host: Kafka's value for no limit


# -- a round -----------------------------------------------------------------------------------------------

cdef void accept_some(Acceptor self, Listener* listener) noexcept nogil:
    cdef uint8_t peer[16]
    cdef uint16_t port = 0
    cdef int fd
    cdef bint given, held
    cdef int64_t wait_ms
    cdef int failed = 0
    for _ in range(ACCEPTS_PER_ROUND):
        if listener.fd < 0:
            return
        if self.hands_over:
            handover_lock(self.handover)
        if connection_count(self) >= self.connections_max and listener.name is not self.protected:
            if self.hands_over:
                handover_unlock(self.handover)
            if not listener.paused:
                rest(self, listener)
                with gil:
                    self.say("max.connections is reached: new connections wait in the backlog")
            return
        if self.rated:
            with gil:
                wait_ms = self.wait_for_rate(listener)
            if wait_ms:
                if self.hands_over:
                    handover_unlock(self.handover)
                return
        fd = kafkad_accept(listener.fd, peer, &port)
        failed = errno if fd < 0 else 0
        if self.rated:
            with gil:
                held = self.holds(listener, fd, peer)
            if held:
                if self.hands_over:
                    handover_unlock(self.handover)
                continue
        if self.hands_over:
            given = fd >= 0 and hand_over(self, listener, fd, peer, port)
            handover_unlock(self.handover)
            if given:
                if listener.name is self.protected:
                    make_room(self)
                continue
        if fd < 0:
            if failed == EINTR or is_of_one_connection(failed):
                continue
            if failed != EAGAIN:
                with gil:
                    self.accept_failed(listener, failed)
            return
        with gil:
            self.welcome(listener, fd, peer, port)
        if listener.name is self.protected:
            make_room(self)
        if clock_us() - self.core.awake_us > ACCEPTS_US:
            return                                      # epoll reports the rest again


cdef inline bint is_of_one_connection(int failed) noexcept nogil:
    """Return whether accept(2) removed a failed connection from the backlog, so that the next call gets another."""
    return failed in (
        ECONNABORTED, EHOSTDOWN, EHOSTUNREACH, ENETDOWN, ENETUNREACH, ENOPROTOOPT, EOPNOTSUPP, EPROTO)


cdef bint hand_over(Acceptor self, Listener* listener, int fd, const uint8_t* peer, uint16_t port) noexcept nogil:
    """Return whether another worker serves it; otherwise this worker must. Holds the lock while it compares loads."""
    cdef Handed handed
    memset(&handed, 0, sizeof(Handed))
    handed.listener = listener.index
    handed.phase = <uint16_t>listener.phase
    handed.peer_port = port
    memcpy(handed.peer, peer, 16)
    if handover_give(self.handover, fd, &handed):
        return True
    self.in_hand += 1
    publish_load(self)
    return False


cdef void take_some(Acceptor self) noexcept nogil:
    """Take connections that other workers have accepted."""
    cdef Handed handed[TAKES_PER_ROUND]
    cdef int fds[TAKES_PER_ROUND]
    cdef int count = 0, i
    handover_lock(self.handover)
    while count < TAKES_PER_ROUND:
        fds[count] = handover_take(self.handover, &handed[count])
        if fds[count] == NOTHING:
            break
        count += 1
    self.in_hand += count
    publish_load(self)
    handover_unlock(self.handover)
    with gil:
        for i in range(count):
            self.welcome_handed(fds[i], &handed[i])
    if self.protected is not NULL:
        for i in range(count):
            make_room(self)


cdef bint make_room(Acceptor self) noexcept nogil:
    """Close a connection of a listener that is not between brokers, if there are more than max.connections. Return
    whether one was closed."""
    cdef Conn* conn
    if connection_count(self) <= self.connections_max:
        return False
    conn = self.core.oldest
    while conn is not NULL:
        if conn.listener is not self.protected and conn.fd >= 0:
            conn_close(conn, "there are more than max.connections, and it was silent for longest")
            return True
        conn = conn.newer
    return False


cdef bint acceptor_move(Conn* conn) noexcept nogil:
    return conn_is_quiet(conn) and move(<Acceptor>conn.core.acceptor, conn)


cdef bint move(Acceptor self, Conn* conn) noexcept nogil:
    cdef Core* core = self.core
    cdef Handed handed
    cdef int worker = <int>conn.away_to
    cdef bint may_leave, gone
    conn.away = 0                                       # try again after as many requests
    with gil:
        may_leave = self.describe(conn, &handed)
    if not may_leave:
        return False
    handover_lock(self.handover)
    handover_look(self.handover)
    gone = handover_move(self.handover, worker, conn.fd, &handed)
    if gone:
        handover_publish(self.handover, core.stats.connections + self.in_hand - 1, core.stats.settled - conn.settled)
    handover_unlock(self.handover)
    if gone:
        kafkad_epoll_leave(core.epoll_fd, conn.fd)
        close(conn.fd)                                  # the other worker has its own descriptor
        conn.fd = -1
        core.stats.moved += 1
        conn_close(conn, NULL)
    return gone


cdef int64_t connection_count(Acceptor self) noexcept nogil:
    """The connections of all workers."""
    if self.hands_over:
        return handover_look(self.handover)
    return self.core.stats.connections


cdef inline void publish_load(Acceptor self) noexcept nogil:
    if self.hands_over:
        handover_publish(self.handover, self.core.stats.connections + self.in_hand, self.core.stats.settled)


cdef void rest(Acceptor self, Listener* listener) noexcept nogil:
    listener.paused = True
    self.paused = True
    kafkad_epoll_listen(self.core.epoll_fd, listener.fd, listener, EPOLL_CTL_DEL)


cdef void resume_listeners(Acceptor self) noexcept:
    cdef Listener* listener
    cdef bint full
    if not self.paused:
        return
    full = connection_count(self) >= self.connections_max
    if full and self.protected is NULL:
        return
    self.paused = False
    self.retry_ms = 0
    for address in self.listeners.values():
        listener = <Listener*><size_t>address
        if listener.paused and (
                listener.rests_until_ms > self.core.monotonic_ms or (full and listener.name is not self.protected)):
            self.paused = True
        elif listener.paused:
            listener.paused = False
            kafkad_epoll_listen(self.core.epoll_fd, listener.fd, listener, EPOLL_CTL_ADD)


cdef void look_at_rest(Acceptor self) noexcept:
    if self.paused and (self.core.monotonic_ms >= self.retry_ms if self.retry_ms else self.hands_over):
        resume_listeners(self)


cdef void obey_lowered(Acceptor self) noexcept nogil:
    self.lowered = make_room(self)
    if self.lowered:
        core_wake(self.core)                            # there may be more


cdef void accept_timer_ended(Core* core, Timer* timer) noexcept nogil:
    with gil:
        (<Acceptor>(<AcceptTimer*>timer).acceptor).rests_ended()


cdef class Acceptor:
    """Belongs to a reactor, which sets `core` before anything else."""

    def __cinit__(self, log, Handover handover, hosts, connections_max, per_host_max, per_host_overrides,
                  int send_buffer_size, int receive_buffer_size):
        self.log = log
        self.handover = handover
        self.hands_over = handover is not None
        self.handover_kind = KIND_HANDOVER
        self.hosts = hosts
        self.listeners = {}
        self.retired = []
        self.names = {}
        self.contexts = {}
        self.per_host = {}
        self.held = []
        self.timer.timer.place = -1
        self.timer.acceptor = <PyObject*>self
        self.per_host_overrides = {}
        self.limit(connections_max, per_host_max, per_host_overrides)
        self.send_buffer_size = send_buffer_size
        self.receive_buffer_size = receive_buffer_size

    cdef object limit(self, connections_max, per_host_max, per_host_overrides):
        """Set those that are not None."""
        if connections_max is not None:
            self.lowered = self.lowered or connections_max < self.connections_max
            self.connections_max = connections_max
        if per_host_max is not None:
            self.per_host_max = per_host_max
        if per_host_overrides is not None:
            self.per_host_overrides = {packed(host): limit for host, limit in per_host_overrides.items()}

    # -- listeners

    cdef object protect(self, str name):
        """max.connections does not hold for this listener, in place of the one before; None: it holds for all."""
        self.protected = NULL
        if name is not None:
            name = self.names.setdefault(name, name)
            self.protected = <PyObject*>name
        resume_listeners(self)

    cdef object add(self, int fd, str name, int phase):
        cdef Listener* listener
        if fd in self.listeners:
            raise ValueError("this listener is there already")
        os.set_blocking(fd, False)
        name = self.names.setdefault(name, name)
        listener = <Listener*>calloc(1, sizeof(Listener))
        KAFKAD_CHECK(listener is not NULL)
        listener.kind = KIND_LISTENER
        listener.fd = fd
        listener.phase = phase
        listener.index = self.listener_count
        listener.name = <PyObject*>name
        if kafkad_epoll_listen(self.core.epoll_fd, fd, listener, EPOLL_CTL_ADD) != 0:
            free(listener)
            raise OSError(errno, os.strerror(errno))
        self.listeners[fd] = <size_t>listener
        self.listener_count += 1
        if self.hands_over and self.listener_count == 1:
            self.join_hand_over()

    cdef object join_hand_over(self):
        """Accept connections from other workers from now on. Those for a dead predecessor are waiting already."""
        if kafkad_epoll_listen(
                self.core.epoll_fd, self.handover.fileno(), &self.handover_kind, EPOLL_CTL_ADD) != 0:
            raise OSError(errno, os.strerror(errno))
        self.handover.open()

    cdef object remove(self, int fd):
        """Stop accepting; the fd stays the caller's."""
        cdef Listener* listener = <Listener*><size_t>self.listeners.pop(fd)
        if not listener.paused:
            kafkad_epoll_listen(self.core.epoll_fd, fd, listener, EPOLL_CTL_DEL)
        listener.fd = -1
        self.retired.append(<size_t>listener)           # events of this turn may still point to it

    cdef Listener* listener_of(self, uint32_t index) noexcept:
        cdef Listener* listener
        for address in self.listeners.values():
            listener = <Listener*><size_t>address
            if listener.index == index:
                return listener
        return NULL

    cdef void free_retired(self) noexcept:
        for address in self.retired:
            free(<void*><size_t>address)
        self.retired.clear()

    cdef object close(self):
        for fd in list(self.listeners):
            self.remove(fd)
        timer_stop(self.core, &self.timer.timer)
        for _, fd in self.held:
            close(fd)
        self.held.clear()
        if self.hands_over:
            self.handover.leave()

    # -- connections

    cdef void welcome(self, Listener* listener, int fd, uint8_t* peer, uint16_t port) noexcept:
        self.in_hand -= self.hands_over                 # counted when it is served, or refused
        try:
            self.admit(fd, peer, port, listener.name, listener.phase)
        except BaseException:
            core_fatal(self.core)
        publish_load(self)

    cdef void welcome_handed(self, int fd, const Handed* handed) noexcept:
        cdef Listener* listener = self.listener_of(handed.listener)
        cdef Conn* conn
        self.in_hand -= 1
        try:
            if fd == LOST:
                self.say("a connection that another worker had accepted was lost: no descriptor was left for it")
            elif listener is NULL:
                close(fd)
            else:
                conn = self.admit(
                    fd, <uint8_t*>handed.peer, handed.peer_port, listener.name, handed.phase, handed.served)
                if conn is not NULL and handed.served:
                    self.settle(conn, handed)
        except BaseException:
            core_fatal(self.core)
        publish_load(self)

    cdef bint describe(self, Conn* conn, Handed* handed) noexcept:
        """Fill in what another worker must know of a connection. Return False if it has to stay."""
        try:
            return self.described(conn, handed)
        except MemoryError:
            return False
        except BaseException:
            core_fatal(self.core)
            return False

    cdef bint described(self, Conn* conn, Handed* handed) except -1:
        cdef Connection handle = None if conn.handle is NULL else <Connection>conn.handle
        cdef Listener* listener
        cdef bytes name = b"", version = b""
        host = PyBytes_FromStringAndSize(<char*>conn.peer, 16)
        if self.per_host_overrides.get(host, self.per_host_max) < NO_LIMIT:
            return False
        if handle is not None:
            if handle.state is not None or handle.principal is not None:
                return False
            name = (handle.client_software_name or "").encode()
            version = (handle.client_software_version or "").encode()
            if len(name) + len(version) > <Py_ssize_t>sizeof(handed.text):
                return False
        memset(handed, 0, sizeof(Handed))
        for address in self.listeners.values():
            listener = <Listener*><size_t>address
            if listener.name is conn.listener:
                break
        else:
            return False
        handed.listener = listener.index
        handed.phase = <uint16_t>conn.phase
        handed.peer_port = conn.peer_port
        memcpy(handed.peer, conn.peer, 16)
        handed.served = 1
        handed.name_size = <uint8_t>len(name)
        handed.version_size = <uint8_t>len(version)
        memcpy(handed.text, PyBytes_AS_STRING(name), len(name))
        memcpy(handed.text + len(name), PyBytes_AS_STRING(version), len(version))
        return True

    cdef object settle(self, Conn* conn, const Handed* handed):
        """Take over what another worker knew of a connection."""
        cdef Connection handle
        cdef const char* text = <const char*>handed.text
        conn.settled = True
        self.core.stats.settled += 1
        handle = conn_handle(conn)
        if handed.name_size:
            handle.client_software_name = text[:handed.name_size].decode()
        if handed.version_size:
            handle.client_software_version = text[handed.name_size:handed.name_size + handed.version_size].decode()

    # -- rates

    cdef object limit_rates(self, rates):
        """Ask `rates` from now on; None: no rate limits."""
        cdef Listener* listener
        self.rates = rates
        self.rated = rates is not None
        for address in self.listeners.values():         # their pauses may be over
            listener = <Listener*><size_t>address
            listener.rests_until_ms = 0
        resume_listeners(self)

    cdef int64_t wait_for_rate(self, Listener* listener) noexcept:
        """Count the next connection of a listener. If the result is not 0, the listener pauses that many ms first."""
        cdef int64_t wait_ms = 0
        try:
            wait_ms = self.rates.enter(<object>listener.name)
        except BaseException:
            core_fatal(self.core)
        if wait_ms:
            listener.rests_until_ms = self.core.monotonic_ms + wait_ms
            if not listener.paused:
                rest(self, listener)
            self.start_timer(listener.rests_until_ms)
            if self.told_rate_ms == 0 or self.core.monotonic_ms - self.told_rate_ms >= TELL_MS:
                self.told_rate_ms = self.core.monotonic_ms
                self.say(f"max.connection.creation.rate is reached: new connections wait in the backlog of "
                         f"{<object>listener.name}")
        return wait_ms

    cdef bint holds(self, Listener* listener, int fd, const uint8_t* peer) noexcept:
        """Return whether an accepted connection is over the rate of its address. `fd` < 0: there was none."""
        cdef int64_t wait_ms = 0
        try:
            if fd >= 0:
                host = PyBytes_FromStringAndSize(<char*>peer, 16)
                wait_ms = self.rates.hold(host)
            if fd < 0 or wait_ms:
                self.rates.leave(<object>listener.name)
            if wait_ms == 0:
                return False
            self.core.stats.refused += 1
            if len(self.held) >= HELD_MAX:
                close(self.held.pop(0)[1])
            self.held.append((self.core.monotonic_ms + wait_ms, fd))
            self.start_timer(self.core.monotonic_ms + wait_ms)
        except BaseException:
            core_fatal(self.core)
        return True

    cdef void start_timer(self, int64_t deadline_ms) noexcept nogil:
        if self.timer.timer.place < 0 or deadline_ms < self.timer.timer.deadline_ms:
            timer_stop(self.core, &self.timer.timer)
            timer_start(self.core, &self.timer.timer, deadline_ms, accept_timer_ended)

    cdef void rests_ended(self) noexcept:
        """Some pauses may have ended. Set the timer for the others."""
        cdef int64_t now_ms = self.core.monotonic_ms
        cdef Listener* listener
        try:
            for until_ms, fd in self.held:
                if until_ms <= now_ms:
                    close(fd)
            self.held = [it for it in self.held if it[0] > now_ms]
            for until_ms, _ in self.held:
                self.start_timer(until_ms)
            for address in self.listeners.values():
                listener = <Listener*><size_t>address
                if listener.rests_until_ms > now_ms:
                    self.start_timer(listener.rests_until_ms)
            resume_listeners(self)
        except BaseException:
            core_fatal(self.core)

    cdef void accept_failed(self, Listener* listener, int number) noexcept:
        """Pause the listener after EMFILE or the like. It stays readable, so the loop would spin."""
        cdef int64_t now_ms = self.core.monotonic_ms
        rest(self, listener)
        self.retry_ms = now_ms + RETRY_MS
        if self.told_ms == 0 or now_ms - self.told_ms >= TELL_MS:
            self.told_ms = now_ms
            self.say(f"accepting a connection failed: {os.strerror(number)}; new connections wait in the backlog")

    cdef Conn* adopt(self, int fd, str listener, int phase) except? NULL:
        """Take over a connected socket that something else accepted, and its fd."""
        cdef uint8_t peer[16]
        cdef uint16_t port = 0
        cdef bytes host
        memset(peer, 0, 16)
        os.set_blocking(fd, False)
        there = socket.socket(fileno=fd)
        try:
            if there.family in (socket.AF_INET, socket.AF_INET6):
                address = there.getpeername()
                host = packed(address[0])
                memcpy(peer, PyBytes_AS_STRING(host), 16)
                port = address[1]
        finally:
            there.detach()
        listener = self.names.setdefault(listener, listener)
        return self.admit(fd, peer, port, <PyObject*>listener, phase)

    cdef Conn* attach(self, writer, str listener, peer, int phase) except? NULL:
        """Make a connection without a socket: `writer` takes its answers."""
        cdef uint8_t address[16]
        cdef bytes host
        cdef Conn* conn
        memset(address, 0, 16)
        if peer[0]:
            host = packed(peer[0])
            memcpy(address, PyBytes_AS_STRING(host), 16)
        listener = self.names.setdefault(listener, listener)
        conn = self.admit(-1, address, peer[1], <PyObject*>listener, phase)
        if conn is not NULL:
            Py_INCREF(writer)
            conn.writer = <PyObject*>writer
        return conn

    cdef Conn* admit(self, int fd, uint8_t* peer, uint16_t port, PyObject* listener, int phase,
                     bint served=False) except? NULL:
        cdef Conn* conn
        host = PyBytes_FromStringAndSize(<char*>peer, 16)
        if not self.count_host(host, not served and (port or fd < 0)):
            self.core.stats.refused += 1
            limit = self.per_host_overrides.get(host, self.per_host_max)
            self.say(f"refused a connection from {host_of(host)}: max.connections.per.ip is {limit}")
            if fd >= 0:
                close(fd)
            return NULL
        if fd >= 0:
            kafkad_no_delay(fd)
            kafkad_congestion_control(fd, peer)
            kafkad_buffers(fd, self.send_buffer_size, self.receive_buffer_size)
        conn = conn_new(self.core, fd, listener, phase)
        if conn is NULL:
            close(fd)
            self.uncount_host(host)
            self.say("epoll takes no more connections")
            return NULL
        memcpy(conn.peer, peer, 16)
        conn.peer_port = port
        publish_load(self)
        context = self.contexts.get(<object>listener)
        if context is not None and fd >= 0 and not served and not handshake_begin(conn, <TlsContext>context):
            conn_close(conn, "OpenSSL has no memory for it")
            return NULL
        return conn

    cdef object left(self, bytes host):
        """A connection of the host has ended."""
        self.uncount_host(host)
        publish_load(self)

    cdef bint count_host(self, bytes host, bint limited) except -1:
        """Count one more connection of the host, if its limit allows. Holds the lock, so that only one of two workers
        gets the last place."""
        limit = self.per_host_overrides.get(host, self.per_host_max)
        held = self.per_host.get(host, 0)
        cdef bint shared = self.hosts is not None and limit < NO_LIMIT
        if shared and self.hands_over:
            handover_lock(self.handover)
        try:
            if limited and held + (self.hosts.elsewhere(host) if shared else 0) >= limit:
                return False
            self.per_host[host] = held + 1
            if self.hosts is not None:
                self.hosts.set(host, held + 1)
            return True
        finally:
            if shared and self.hands_over:
                handover_unlock(self.handover)

    cdef object uncount_host(self, bytes host):
        held = self.per_host.get(host, 0) - 1
        if held > 0:
            self.per_host[host] = held
        else:
            self.per_host.pop(host, None)
        if self.hosts is not None:
            self.hosts.set(host, max(held, 0))

    cdef void say(self, str text) noexcept:
        try:
            self.log.warning("%s", text)
        except BaseException:
            core_fatal(self.core)


def packed(str host):
    """Return a numeric address as 16 bytes, IPv4 mapped to IPv6. ValueError for a host name: a look-up would block."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            address = socket.inet_pton(family, host.split("%")[0])
        except OSError:
            continue
        return address if len(address) == 16 else b"\0" * 10 + b"\xff\xff" + address
    raise ValueError(f"{host!r} is not an IPv4 or IPv6 address")

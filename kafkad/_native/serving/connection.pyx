"""Connections of the data plane, and their answers in request order.

**Answers.** Every request opens a `Slot` at the end of its connection's list. The answer is written to the slot, now or
later, and is sent when all answers before it have been sent (sending.pyx).

**Input.** A read goes to a scratch area that all connections share, and whole frames are served there. If a connection
sends big frames, only their first bytes go there. The rest (a partial frame, frames behind one that waits) is kept in a
buffer from the pool, which grows with the bytes that have arrived, not with the claimed size. The sum of these buffers
is bounded: beyond it nothing more is read, and a connection that holds a buffer without sending is closed first
(rounds.pyx).

**Epoll** is edge-triggered for both directions and set once: `readable` and `blocked` remember the events, so muting a
connection costs no system call.

Beware: `conn_close` frees at the end of the turn, so a frame that closes its own connection can still return.
Everything here belongs to the event loop's thread."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memset, strncpy

from kafkad._native.shared.arena cimport Arena
from kafkad._native.serving.buffers cimport buffers_trim, input_release, input_reserve, scratch_free, scratch_renew
from kafkad._native.log.cold_reads cimport cold_close, cold_init
from kafkad._native.log.segments cimport LogFile, log_file_release
from kafkad._native.serving.quota cimport quota_left
from kafkad._native.serving.timers cimport timer_start, timer_stop
from kafkad._native.serving.tls cimport Tls, areas_free, tls_free, tls_goodbye
from kafkad._native.wire.primitives cimport KAFKAD_CHECK, put_i32
from kafkad._native.serving.sending cimport COPIES_SIZE, conn_flush, copies_forget

import socket

cdef extern from * nogil:
    """
    #include <errno.h>
    #include <stdint.h>
    #include <stdlib.h>
    #include <sys/epoll.h>
    #include <sys/eventfd.h>
    #include <sys/socket.h>
    #include <sys/timerfd.h>
    #include <sys/uio.h>
    #include <time.h>
    #include <unistd.h>

    static inline int64_t kafkad_clock_us(clockid_t clock) {
        struct timespec t;
        clock_gettime(clock, &t);
        return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
    }
    static inline int kafkad_epoll_add(int epoll_fd, int fd, void* pointer, int edge_triggered) {
        struct epoll_event event = {0};
        event.events = edge_triggered ? (EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET) : EPOLLIN;
        event.data.ptr = pointer;
        return epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event);
    }
    static inline void kafkad_epoll_remove(int epoll_fd, int fd) {
        struct epoll_event event = {0};
        epoll_ctl(epoll_fd, EPOLL_CTL_DEL, fd, &event);
    }
    """
    int CLOCK_REALTIME, CLOCK_MONOTONIC, EPOLL_CLOEXEC, EFD_CLOEXEC, EFD_NONBLOCK, TFD_CLOEXEC, TFD_NONBLOCK
    int64_t kafkad_clock_us(int clock)
    int kafkad_epoll_add(int epoll_fd, int fd, void* pointer, int edge_triggered)
    void kafkad_epoll_remove(int epoll_fd, int fd)
    int epoll_create1(int flags)
    int eventfd(unsigned int value, int flags)
    int timerfd_create(int clock, int flags)
    ssize_t write(int fd, const void* data, size_t size)
    int close(int fd)

cdef enum:
    FREE_SLOTS_MAX = 4096
    BIG_ANSWER = 64 * 1024              # the heap may be trimmed after it
    ANSWER_LEAST = 512 * 1024           # from this size to that one answers have the same room, which is kept
    ANSWER_ROOM = 1024 * 1024 + 64 * 1024
    END_MS = 5000
    POOLED_BYTES_MAX = 32 * 1024 * 1024


# -- core --------------------------------------------------------------------------------------------------

cdef Core* core_new(Arena* arena) noexcept:
    cdef Core* core = <Core*>calloc(1, sizeof(Core))
    KAFKAD_CHECK(core is not NULL)
    core.epoll_fd = epoll_create1(EPOLL_CLOEXEC)
    core.wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)
    core.timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)
    core.wake_kind = KIND_WAKE
    core.timer_kind = KIND_TIMER
    core.copies = <uint8_t*>malloc(COPIES_SIZE)
    KAFKAD_CHECK(core.copies is not NULL)
    core.pooled_bytes_max = POOLED_BYTES_MAX
    core.arena = arena
    cold_init(&core.cold, core.wake_fd)
    scratch_renew(core)
    core_read_clocks(core)
    if core.epoll_fd >= 0 and core.wake_fd >= 0 and core.timer_fd >= 0:
        kafkad_epoll_add(core.epoll_fd, core.wake_fd, &core.wake_kind, 0)
        kafkad_epoll_add(core.epoll_fd, core.timer_fd, &core.timer_kind, 0)
    return core


cdef void core_free(Core* core) noexcept:
    cdef Slot* slot
    conn_reap(core)
    copies_forget(core)
    scratch_free(core)
    buffers_trim(core)
    while core.free_slots is not NULL:
        slot = core.free_slots
        core.free_slots = slot.next
        free(slot)
    core_shut(core)
    free(core.heap)
    free(core.copies)
    areas_free(core.tls_areas)
    free(core)


cdef void core_shut(Core* core) noexcept:
    cold_close(&core.cold)
    for fd in (core.wake_fd, core.timer_fd, core.epoll_fd):
        if fd >= 0:
            close(fd)
    core.wake_fd = -1
    core.timer_fd = -1
    core.epoll_fd = -1


cdef void core_read_clocks(Core* core) noexcept nogil:
    core.now_ms = kafkad_clock_us(CLOCK_REALTIME) // 1000
    core.awake_us = clock_us()
    core.monotonic_ms = core.awake_us // 1000
    core.cold.monotonic_ms = core.monotonic_ms


cdef int64_t clock_us() noexcept nogil:
    return kafkad_clock_us(CLOCK_MONOTONIC)


cdef void core_wake(Core* core) noexcept nogil:
    cdef uint64_t one = 1
    if not core.woken:
        core.woken = True
        if not core.waits:
            write(core.wake_fd, &one, 8)


cdef void core_fatal(Core* core) noexcept:
    """Call in an except block: passes the exception to the server's `on_fatal`, which ends the worker."""
    import sys
    (<object>core.reactor).fatal(sys.exc_info()[1])


cdef void core_failed(Core* core, str what) noexcept:
    """Call in an except block, if the work for one client can go on without the result: logs the exception. An
    AssertionError ends the worker."""
    import sys
    (<object>core.reactor).failed(sys.exc_info()[1], what)


# -- slots -------------------------------------------------------------------------------------------------

cdef Slot* slot_open(Conn* conn, int16_t api_key, int16_t api_version, int32_t correlation_id) noexcept nogil:
    cdef Core* core = conn.core
    cdef Slot* slot = core.free_slots
    if slot is not NULL:
        core.free_slots = slot.next
        core.free_slot_count -= 1
    else:
        slot = <Slot*>malloc(sizeof(Slot))
        KAFKAD_CHECK(slot is not NULL)
    memset(slot, 0, sizeof(Slot) - SLOT_INLINE)
    slot.conn = conn
    slot.request_id = conn.next_request_id
    conn.next_request_id += 1
    slot.api_key = api_key
    slot.api_version = api_version
    slot.correlation_id = correlation_id
    slot.data = slot.inline_data
    slot.capacity = SLOT_INLINE
    slot.regions = &slot.inline_region
    slot.region_capacity = 1
    if conn.last is NULL:
        conn.first = slot
    else:
        conn.last.next = slot
    conn.last = slot
    conn.slot_count += 1
    conn.pending_count += 1
    put_i32(slot.data + 4, correlation_id)
    slot.size = 8
    return slot


cdef inline void hold(Conn* conn, int64_t size) noexcept nogil:
    conn.answer_bytes += size
    conn.core.stats.buffered_bytes += size


cdef inline uint8_t* answer_take(Core* core, size_t capacity) noexcept nogil:
    """A long answer's memory is used again at once: new pages, each with its fault, cost more than copying into them."""
    if capacity == ANSWER_ROOM and core.answer_count:
        core.answer_count -= 1
        core.stats.pooled_bytes -= ANSWER_ROOM
        return core.answers[core.answer_count]
    return <uint8_t*>malloc(capacity)


cdef inline void answer_give(Core* core, uint8_t* data, size_t capacity) noexcept nogil:
    if (capacity == ANSWER_ROOM and core.answer_count < ANSWERS_KEPT
            and core.stats.pooled_bytes + <int64_t>ANSWER_ROOM <= core.pooled_bytes_max):
        core.answers[core.answer_count] = data
        core.answer_count += 1
        core.stats.pooled_bytes += ANSWER_ROOM
        return
    if capacity >= BIG_ANSWER:
        core.freed_bytes += <int64_t>capacity
    free(data)


cdef uint8_t* slot_extend(Slot* slot, size_t size) noexcept nogil:
    cdef uint8_t* grown
    cdef size_t capacity
    if slot.size + size > slot.capacity:
        capacity = max(<size_t>slot.capacity * 2, slot.size + size)
        KAFKAD_CHECK(capacity < <size_t>1 << 31)
        if slot.data is slot.inline_data:
            if ANSWER_LEAST <= capacity <= ANSWER_ROOM:
                capacity = ANSWER_ROOM
            grown = answer_take(slot.conn.core, capacity)
            if grown is not NULL:
                memcpy(grown, slot.data, slot.size)
        else:
            grown = <uint8_t*>realloc(slot.data, capacity)
        KAFKAD_CHECK(grown is not NULL)
        hold(slot.conn, <int64_t>capacity - (0 if slot.data is slot.inline_data else <int64_t>slot.capacity))
        slot.data = grown
        slot.capacity = <uint32_t>capacity
    slot.size += <uint32_t>size
    return slot.data + slot.size - size


cdef void slot_region(Slot* slot, LogFile* file, int64_t position, int64_t size) noexcept nogil:
    cdef Region* regions
    cdef Region* region
    if slot.region_count == slot.region_capacity:
        regions = <Region*>malloc(slot.region_capacity * 4 * sizeof(Region))
        KAFKAD_CHECK(regions is not NULL)
        memcpy(regions, slot.regions, slot.region_count * sizeof(Region))
        hold(slot.conn, <int64_t>(slot.region_capacity * 4 * sizeof(Region)))
        if slot.regions is not &slot.inline_region:
            hold(slot.conn, -<int64_t>(slot.region_capacity * sizeof(Region)))
            free(slot.regions)
        slot.regions = regions
        slot.region_capacity *= 4
    region = &slot.regions[slot.region_count]
    slot.region_count += 1
    region.at = slot.size
    region.file = file
    region.position = position
    region.size = size


cdef void slot_pend(Slot* slot, void* waiting, CancelFunction cancel, bint overtakable) noexcept nogil:
    slot.waiting = waiting
    slot.cancel = cancel
    if overtakable:
        slot.overtakable = True
        slot.conn.pending_produces += 1


cdef void slot_settle(Slot* slot) noexcept nogil:
    cdef Conn* conn = slot.conn
    KAFKAD_CHECK(not slot.ready)
    slot.ready = True
    slot.waiting = NULL
    slot.cancel = NULL
    conn.pending_count -= 1
    if slot.overtakable:
        conn.pending_produces -= 1
    if conn.first is slot or conn.pending_count == 0:
        conn_run(conn)


cdef void slot_finish(Slot* slot) noexcept nogil:
    cdef int64_t total = slot.size - 4
    for i in range(slot.region_count):
        total += slot.regions[i].size
    KAFKAD_CHECK(total < <int64_t>1 << 31)
    put_i32(slot.data, <int32_t>total)
    slot_settle(slot)


cdef void slot_drop(Slot* slot) noexcept nogil:
    slot.silent = True
    slot.size = 0
    slot_settle(slot)


cdef void slot_free(Slot* slot) noexcept nogil:
    """Remove the first slot of its connection."""
    cdef Conn* conn = slot.conn
    cdef Core* core = conn.core
    KAFKAD_CHECK(conn.first is slot)
    conn.first = slot.next
    if slot.next is NULL:
        conn.last = NULL
    conn.slot_count -= 1
    for i in range(slot.region_sent, slot.region_count):
        log_file_release(slot.regions[i].file)
    if slot.regions is not &slot.inline_region:
        hold(conn, -<int64_t>(slot.region_capacity * sizeof(Region)))
        free(slot.regions)
    if slot.data is not slot.inline_data:
        hold(conn, -<int64_t>slot.capacity)
        answer_give(core, slot.data, slot.capacity)
    if core.free_slot_count < FREE_SLOTS_MAX:
        slot.next = core.free_slots
        core.free_slots = slot
        core.free_slot_count += 1
    else:
        free(slot)


# -- connections -------------------------------------------------------------------------------------------

cdef Conn* conn_new(Core* core, int fd, PyObject* listener, int phase) noexcept:
    """Make a connection for `fd` (-1: fed by Python) and watch it. NULL if epoll refuses it."""
    cdef Conn* conn = <Conn*>calloc(1, sizeof(Conn))
    KAFKAD_CHECK(conn is not NULL)
    conn.kind = KIND_CONNECTION
    conn.fd = fd
    conn.core = core
    conn.phase = phase
    core.stats.accepted += 1
    conn.id = <uint64_t>core.stats.accepted
    if fd >= 0 and kafkad_epoll_add(core.epoll_fd, fd, conn, 1) != 0:
        free(conn)
        return NULL
    Py_INCREF(<object>listener)
    conn.listener = listener
    core.stats.connections += 1
    conn.active_ms = core.monotonic_ms
    conn.older = core.newest
    if core.newest is not NULL:
        core.newest.newer = conn
    else:
        core.oldest = conn
    core.newest = conn
    return conn


cdef inline void conn_unlink(Conn* conn) noexcept nogil:
    if conn.older is not NULL:
        conn.older.newer = conn.newer
    else:
        conn.core.oldest = conn.newer
    if conn.newer is not NULL:
        conn.newer.older = conn.older
    else:
        conn.core.newest = conn.older
    conn.older = NULL
    conn.newer = NULL


cdef void conn_touch(Conn* conn) noexcept nogil:
    cdef Core* core = conn.core
    conn.active_ms = core.monotonic_ms
    if core.newest is conn:
        return
    conn_unlink(conn)
    conn.older = core.newest
    core.newest.newer = conn
    core.newest = conn


cdef void conn_run(Conn* conn) noexcept nogil:
    cdef Core* core = conn.core
    if conn.queued or conn.busy or conn.closed:
        return
    conn.queued = True
    conn.run_next = NULL
    conn_run_chain(core, conn, conn)
    if not core.polling:
        core_wake(core)


cdef void conn_run_chain(Core* core, Conn* first, Conn* last) noexcept nogil:
    if core.run_last is NULL:
        core.run_first = first
    else:
        core.run_last.run_next = first
    core.run_last = last


cdef bint conn_may_serve(Conn* conn, int16_t api_key) noexcept nogil:
    """Kafka's channel muting: after pending Produces only a Produce may run, after any other pending request
    nothing."""
    return conn.pending_count == 0 or (
        api_key == 0 and conn.pending_count == conn.pending_produces and conn.slot_count < SLOTS_MAX
        and conn.unpacking == 0 and conn.answer_bytes <= UNSENT_MAX)


cdef void conn_close(Conn* conn, const char* reason) noexcept nogil:
    """Close it for the peer and all waiters; the memory is freed at the end of the turn. NULL `reason`: the peer
    left."""
    cdef Core* core = conn.core
    cdef Slot* slot
    if conn.closed:
        return
    conn.closed = True
    if conn.tls is not NULL:
        timer_stop(core, <Timer*>(<Tls*>conn.tls).deadline)
        tls_goodbye(<Tls*>conn.tls)
    if conn.fd >= 0:
        kafkad_epoll_remove(core.epoll_fd, conn.fd)
        close(conn.fd)
    if conn.cold_job is not NULL:
        conn.cold_job.waiter = NULL
        conn.cold_job = NULL
    if conn.ending is not NULL:
        timer_stop(core, &conn.ending.timer)
    quota_left(conn)
    conn_unlink(conn)
    if conn.fetch_session:
        core.session_left(core, conn.fetch_session)
    slot = conn.first
    while slot is not NULL:
        if slot.cancel is not NULL:
            slot.cancel(slot)
        slot = slot.next
    while conn.first is not NULL:
        slot_free(conn.first)
    core.stats.connections -= 1
    core.stats.settled -= conn.settled
    core.stats.closed += 1
    with gil:
        conn_closed(conn, reason)
    free(conn.ending)
    conn.ending = NULL
    conn.older = core.dead              # it may be in the run list until conn_reap
    core.dead = conn
    if not core.polling:
        core_wake(core)


cdef void conn_answered(Conn* conn) noexcept nogil:
    """Count a request that this worker answers, or a Fetch. A connection whose requests are for another worker by more
    than HERE_WEIGHT to one, MOVE_AT requests long, moves there (acceptor.pyx). If they are for both alike, that is as
    good as impossible."""
    conn.away -= min(conn.away, <uint32_t>HERE_WEIGHT)


cdef bint conn_is_quiet(Conn* conn) noexcept nogil:
    """Return whether no request, answer, timer or session of it is in this process: only its socket."""
    return (conn.first is NULL and conn.input is NULL and conn.fd >= 0 and conn.tls is NULL and conn.writer is NULL
            and conn.phase == PHASE_READY and conn.session_expires_ms == 0 and not conn.closed and not conn.hung_up
            and not conn.blocked and not conn.starved and not conn.late and not conn.busy and not conn.muted
            and conn.ending is NULL and conn.cold_job is NULL and conn.slicing is NULL and conn.asking is NULL
            and conn.unpacking == 0 and conn.fetch_session == 0)


cdef void conn_end(Conn* conn, const char* reason) noexcept nogil:
    """Close it as Kafka does when bytes do not parse: earlier requests are answered first, within END_MS. The current
    request gets no answer."""
    cdef Core* core = conn.core
    cdef Slot* slot = conn.first
    cdef Slot* following
    cdef bint answers = False
    if conn.closed or conn.ending is not NULL:
        return
    while slot is not NULL:
        following = slot.next
        if not slot.ready and slot.cancel is NULL:
            slot_drop(slot)
        answers = answers or not slot.silent
        slot = following
    if not answers:
        conn_close(conn, reason)
        return
    conn.ending = <Ending*>calloc(1, sizeof(Ending))
    KAFKAD_CHECK(conn.ending is not NULL)
    conn.ending.conn = conn
    strncpy(conn.ending.reason, reason, sizeof(conn.ending.reason) - 1)
    timer_start(core, &conn.ending.timer, core.monotonic_ms + END_MS, conn_end_expired)
    conn_run(conn)


cdef void conn_end_expired(Core* core, Timer* timer) noexcept nogil:
    conn_close((<Ending*>timer).conn, (<Ending*>timer).reason)


cdef void conn_closed(Conn* conn, const char* reason) noexcept:
    cdef Connection handle = None
    try:
        if conn.handle is not NULL:
            handle = <Connection>conn.handle
            handle.conn = NULL
            Py_DECREF(handle)
            conn.handle = NULL
        if conn.rights is not NULL:
            Py_DECREF(<object>conn.rights)
            conn.rights = NULL
        if conn.writer is not NULL:
            writer = <object>conn.writer
            conn.writer = NULL
            Py_DECREF(writer)
            writer(None)
        (<object>conn.core.reactor).closed(
            PyBytes_FromStringAndSize(<char*>conn.peer, 16), conn.peer_port, <object>conn.listener, handle,
            None if reason is NULL else reason.decode("utf-8", "replace"))
        Py_DECREF(<object>conn.listener)
        conn.listener = NULL
    except BaseException:
        core_fatal(conn.core)


cdef void conn_reap(Core* core) noexcept nogil:
    cdef Conn* conn = core.dead
    cdef Conn* following
    cdef Conn** link
    if conn is NULL:
        return
    link = &core.starved_first
    while link[0] is not NULL:
        if link[0].closed:
            link[0] = link[0].starved_next
        else:
            link = &link[0].starved_next
    link = &core.late_first
    while link[0] is not NULL:
        if link[0].closed:
            link[0] = link[0].late_next
        else:
            link = &link[0].late_next
    link = &core.run_first
    core.run_last = NULL
    while link[0] is not NULL:
        if link[0].closed:
            link[0] = link[0].run_next
        else:
            core.run_last = link[0]
            link = &link[0].run_next
    core.dead = NULL
    while conn is not NULL:
        following = conn.older
        input_release(conn)
        if conn.tls is not NULL:
            tls_free(<Tls*>conn.tls)
        free(conn)
        conn = following


# -- the Python side ---------------------------------------------------------------------------------------

cdef Connection conn_handle(Conn* conn):
    cdef Connection handle
    if conn.handle is not NULL:
        return <Connection>conn.handle
    handle = Connection.__new__(Connection)
    handle.conn = conn
    handle.id = conn.id
    handle.listener = <str>(<object>conn.listener)
    handle.peer_host = host_of(PyBytes_FromStringAndSize(<char*>conn.peer, 16))
    handle.peer_port = conn.peer_port
    Py_INCREF(handle)
    conn.handle = <PyObject*>handle
    return handle


def host_of(bytes address not None):
    """Return the text of a 16-byte address, IPv4 in dotted form."""
    if address.startswith(b"\0" * 10 + b"\xff\xff"):
        return socket.inet_ntop(socket.AF_INET, address[12:])
    return socket.inet_ntop(socket.AF_INET6, address)


cdef class Connection:
    """A client connection, as Python's handlers see it. Valid also after the socket is closed: answers are then
    dropped."""

    @property
    def closed(self):
        return self.conn is NULL

    @property
    def hung_up(self):
        return self.conn is NULL or self.conn.hung_up

    @property
    def phase(self):
        return PHASE_READY if self.conn is NULL else self.conn.phase

    @phase.setter
    def phase(self, int phase):
        if phase not in (PHASE_HANDSHAKE, PHASE_AUTHENTICATING, PHASE_READY):
            raise ValueError("a phase is 0, 1 or 2")
        if self.conn is not NULL:
            self.conn.phase = phase

    @property
    def session_expires_ms(self):
        """Monotonic milliseconds; 0: never."""
        return 0 if self.conn is NULL else self.conn.session_expires_ms

    @session_expires_ms.setter
    def session_expires_ms(self, int64_t when):
        if self.conn is not NULL:
            self.conn.session_expires_ms = when

    @property
    def local_host(self):
        return self.local_address()[0]

    @property
    def local_port(self):
        return self.local_address()[1]

    def local_address(self):
        if self.conn is NULL or self.conn.fd < 0:
            return "", 0
        here = socket.socket(fileno=self.conn.fd)
        try:
            return here.getsockname()[:2] if here.family in (socket.AF_INET, socket.AF_INET6) else ("", 0)
        finally:
            here.detach()

    cdef Slot* slot_of(self, uint32_t request_id) except? NULL:
        """Return the slot; NULL if the connection is closed. ValueError if the request has been answered."""
        cdef Slot* slot
        if self.conn is NULL:
            return NULL
        slot = self.conn.first
        while slot is not NULL and slot.request_id != request_id:
            slot = slot.next
        if self.conn.ending is not NULL:
            return NULL
        if slot is NULL or slot.ready or slot.cancel is not NULL:
            raise ValueError(f"request {request_id} of connection {self.id} waits for no answer")
        return slot

    cdef int answered(self) except -1:
        cdef Conn* conn = self.conn
        if not conn.core.polling:            # a later answer is sent at once
            with nogil:
                conn_flush(conn)
                if conn.away >= MOVE_AT and conn.core.move is not NULL:
                    conn.core.move(conn)

    def respond(self, uint32_t request_id, *pieces):
        """Answer a dispatched request with header and body (bytes-like); the size is added in front."""
        cdef Slot* slot = self.slot_of(request_id)
        cdef Py_buffer view
        if slot is NULL:
            return
        slot.size = 4
        for piece in pieces:
            PyObject_GetBuffer(piece, &view, PyBUF_SIMPLE)
            if slot.size + <size_t>view.len >= <size_t>1 << 30:     # clients can cause such an answer, but do not get it
                PyBuffer_Release(&view)
                conn_close(self.conn, "an answer of more than 1 GiB")
                return
            memcpy(slot_extend(slot, <size_t>view.len), view.buf, <size_t>view.len)
            PyBuffer_Release(&view)
        slot_finish(slot)
        self.answered()

    def answered_by(self, uint32_t worker):
        """Count a request of this connection that another worker answers. See conn_answered."""
        cdef Conn* conn = self.conn
        if conn is NULL:
            return
        if conn.away and conn.away_to != worker:
            conn.away -= 1
            return
        conn.away_to = worker
        conn.away += 1

    def answered_here(self):
        if self.conn is not NULL:
            conn_answered(self.conn)

    def no_response(self, uint32_t request_id):
        """Finish the request without an answer."""
        cdef Slot* slot = self.slot_of(request_id)
        if slot is not NULL:
            slot_drop(slot)
            self.answered()

    def close(self, reason=None):
        """Close the connection. With a reason: after the answers to its earlier requests, and with one log line that
        gives it."""
        cdef bytes text
        if self.conn is not NULL:
            if reason is None:
                conn_close(self.conn, NULL)
            else:
                text = str(reason).encode("utf-8", "replace")
                conn_end(self.conn, text)

    def feed(self, data):
        """Add bytes to a connection without a socket of its own (TLS). Return how many are kept unserved: stop feeding
        above some bound, and continue when `buffered` has fallen."""
        cdef Py_buffer view
        cdef Conn* conn = self.conn
        cdef uint64_t held
        if conn is NULL:
            return 0
        if conn.fd >= 0:
            raise ValueError("this connection reads its own socket")
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        held = conn.input_end - conn.input_start
        if view.len and held + <uint64_t>view.len < <uint64_t>1 << 31:
            input_reserve(conn, <uint32_t>(held + view.len))
            memcpy(conn.input + conn.input_end, view.buf, <size_t>view.len)
            conn.input_end += <uint32_t>view.len
            conn.core.stats.bytes_in += view.len
            conn_touch(conn)
            conn_run(conn)
        PyBuffer_Release(&view)
        return conn.input_end - conn.input_start

    @property
    def buffered(self):
        """The number of input bytes that wait to be served."""
        return 0 if self.conn is NULL else self.conn.input_end - self.conn.input_start

    def pause_writing(self):
        """The transport of a fed connection is full: serve nothing more until `resume_writing`."""
        if self.conn is not NULL and self.conn.fd < 0:
            self.conn.blocked |= BLOCKED_SOCKET

    def resume_writing(self):
        if self.conn is not NULL and self.conn.fd < 0:
            self.conn.blocked &= ~BLOCKED_SOCKET
            conn_run(self.conn)

    def __repr__(self):
        return f"<Connection {self.id} {self.listener} {self.peer_host}:{self.peer_port}>"

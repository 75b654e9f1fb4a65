"""TLS handshakes, on the loop. A step takes a few hundred microseconds, or more for a large RSA key. So a round does them
after all its other work, for SHAKES_US at most (and always one); the rest wait for the next round. A flood of clients
thus delays the requests of others by SHAKES_US and one step. A connection that has not finished within SHAKE_MS is
closed, because an unfinished handshake would hold one of max.connections."""

from libc.stdint cimport int64_t
from libc.stdlib cimport calloc

from kafkad._native.serving.connection cimport (
    BLOCKED_SOCKET, Conn, Core, Timer, clock_us, conn_close, conn_handle, conn_run, conn_run_chain, conn_touch, core_fatal)
from kafkad._native.serving.timers cimport timer_start, timer_stop
from kafkad._native.serving.tls cimport (
    Tls, TlsContext, tls_certificate, tls_new, tls_push, tls_shake, tls_waits)
from kafkad._native.wire.primitives cimport KAFKAD_CHECK

cdef enum:
    SHAKE_MS = 30_000
    SHAKES_US = 1000                # of one round

cdef struct Deadline:
    Timer timer                     # must be the first field
    Conn* conn


cdef bint handshake_begin(Conn* conn, TlsContext context) noexcept:
    cdef Tls* tls = tls_new(context, conn.core, &conn.fd, &conn.answer_bytes)
    cdef Deadline* deadline
    if tls is NULL:
        return False
    deadline = <Deadline*>calloc(1, sizeof(Deadline))
    KAFKAD_CHECK(deadline is not NULL)
    deadline.conn = conn
    deadline.timer.place = -1
    tls.deadline = deadline
    conn.tls = tls
    conn.core.stats.tls_connections += 1
    timer_start(conn.core, &deadline.timer, conn.core.monotonic_ms + SHAKE_MS, expired)
    return True


cdef void expired(Core* core, Timer* timer) noexcept nogil:
    core.stats.tls_failures += 1
    conn_close((<Deadline*>timer).conn, "its TLS handshake did not finish in 30 seconds")


cdef void shake_some(Core* core, Conn* first, Conn* last) noexcept nogil:
    cdef Conn* conn
    cdef int64_t began = clock_us()
    while first is not NULL:
        conn = first
        first = conn.run_next
        conn.queued = False
        if not conn.closed:
            shake(conn)
        if clock_us() - began >= SHAKES_US:
            break
    if first is not NULL:
        conn_run_chain(core, first, last)


cdef void shake(Conn* conn) noexcept nogil:
    """Do a step. A connection whose handshake is done is served in the next round."""
    cdef Core* core = conn.core
    cdef Tls* tls = <Tls*>conn.tls
    cdef bint more = False
    cdef int result
    if tls_waits(tls):
        if not tls_push(tls):
            conn_close(conn, NULL)
        elif tls_waits(tls):
            conn.blocked |= BLOCKED_SOCKET
    if conn.closed or conn.blocked or not conn.readable:
        return
    result = tls_shake(tls, &more)
    if tls_waits(tls):
        conn.blocked |= BLOCKED_SOCKET
    if result < 0:
        core.stats.tls_failures += 1
        conn_close(conn, tls.reason if tls.reason[0] else NULL)
        return
    if result == 0:
        conn.readable = more
        if more:
            conn_run(conn)
        return
    core.stats.tls_handshakes += 1
    timer_stop(core, <Timer*>tls.deadline)
    conn.readable = True                                # requests may have arrived with the end of the handshake
    conn_touch(conn)
    with gil:
        certified(conn)
    conn_run(conn)


cdef void certified(Conn* conn) noexcept:
    cdef bytes text
    try:
        certificate = tls_certificate(<Tls*>conn.tls)
        if certificate is not None:
            (<object>conn.core.reactor).certified(conn_handle(conn), certificate)
    except ValueError as wrong:
        text = str(wrong).encode("utf-8", "replace")
        conn_close(conn, text)
    except BaseException:
        core_fatal(conn.core)

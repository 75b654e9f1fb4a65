"""The reactor: sockets, frames and turns, in C.

asyncio sleeps in `wait` (server/event_loop.py): rounds, and sleep between them, until it has something to do itself.
Any other loop watches `fileno()`, an epoll set, and calls `poll()`, which runs rounds until nothing is ready or its
time is up. A round is

    epoll_wait → accept | read, cut frames, serve → advanced partitions answer their waiters → deadlines → send

A frame is Produce or Fetch, in the versions that `serve_native` named, and is answered in C; any other goes to
`dispatch(connection, request_id, frame)`, whose answer comes by `connection.respond`, now or later. Behind a request
that waits, its connection's next frames wait too (conn_may_serve); Produces alone may follow one another.

With several workers, mail is drained at the start of a round and doorbells are rung at its end; answers that stand
before those of other workers leave late (send_late), and who was busy lets others run before it sleeps.

Bounds, so that no connection costs the others more than its turn: bytes, frames, partitions answered, calls of Python
and their time per turn, unanswered requests, unsent answers (UNSENT_MAX). Partial frames, waiting requests and answers
of all connections together have `buffered_bytes_max`. A socket that takes no more answers is not read, and one that
sent bytes that do not parse is closed when its earlier answers have left. Idle connections are a list in order of their
last activity, which is a read or a send.

Beware: a Python exception in a callback is never passed over: it goes to `on_fatal`, which ends the worker.

Over 900 lines: the loop, and its face for Python."""

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.errno cimport EAGAIN, EINTR, errno
from libc.math cimport ceil
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from kafkad._native.serving.acceptor cimport Acceptor, Listener, accept_some, look_at_rest, resume_listeners, take_some
from kafkad._native.serving.buffers cimport buffer_is_shared, buffers_trim, input_grow, input_release, input_reserve, scratch_keep
from kafkad._native.log.cold_reads cimport cold_hold, cold_settle
from kafkad._native.serving.connection cimport (
    API_KEYS, BLOCKED_SOCKET, CALLS_PER_TURN, Conn, Core, ELEMENTS_PER_FRAME, FRAMES_PER_TURN, KIND_COMMIT, KIND_CONNECTION, KIND_HANDOVER,
    KIND_LISTENER, KIND_LOOP, KIND_MAIL, KIND_TIMER, KIND_WAKE, PHASE_AUTHENTICATING, PHASE_READY, SCRATCH_SIZE,
    SLOTS_MAX, Slot, UNSENT_MAX, conn_close, conn_end, conn_flush, conn_handle, conn_may_serve, conn_reap, conn_run, conn_touch,
    clock_us, copies_forget, core_fatal, core_free, core_new, core_read_clocks, core_shut, core_wake, slot_open,
)
from kafkad._native.serving.fetch cimport (
    Fetching, Result, fetch_advanced, fetch_drop_orphans, fetch_frame, fetch_session_left, fetch_settle)
from kafkad._native.serving.produce_forwarding cimport Forwarding, forward_mail, forwarding_peer_lost
from kafkad._native.log.group_commit cimport GroupCommit, commit_turn
from kafkad._native.shared.connection_handover cimport Handover
from kafkad._native.shared.mailbox cimport (
    Mail, Mailboxes, mail_awake, mail_done, mail_lost, mail_peek, mail_ring, mail_sleep,
)
from kafkad._native.serving.partition_table cimport Entry, PartitionTable, Table
from kafkad._native.serving.produce cimport (
    Outcome, Part, Producing, TopicParts, Wait, produce_advanced, produce_frame, produce_slice, slice_due,
)
from kafkad._native.serving.timers cimport timers_expire
from kafkad._native.serving.tls cimport (
    TLS_SHAKES_PER_ROUND, Tls, TlsContext, iovec, tls_peek, tls_receive, tls_waits)
from kafkad._native.serving.tls_handshakes cimport handshake_done
from kafkad._native.serving.unpacking cimport Unpacker
from kafkad._native.wire.primitives cimport Cursor, KAFKAD_CHECK, cursor_init, get_i16, get_i32, read_i16, read_raw

from kafkad._native.serving.connection import host_of

import errno as errors
import logging
import os

cdef extern from "sockets.h" nogil:
    void kafkad_arm(int timer_fd, int64_t deadline_ms)
    int kafkad_epoll_doorbell(int epoll_fd, int fd, void* pointer)
    int kafkad_epoll_listen(int epoll_fd, int fd, void* pointer, int operation)

cdef extern from * nogil:
    """
    #include <malloc.h>
    #include <sched.h>
    #include <sys/epoll.h>
    #include <sys/socket.h>
    #include <sys/uio.h>
    #include <unistd.h>
    """
    Py_ssize_t Py_SIZE(PyObject* object)
    struct epoll_data_t:
        void* ptr
    struct epoll_event:
        uint32_t events
        epoll_data_t data
    int EPOLLIN, EPOLLOUT, EPOLLRDHUP, EPOLLHUP, EPOLLERR, EPOLL_CTL_ADD, MSG_PEEK
    int sched_yield()
    int malloc_trim(size_t pad)
    int epoll_wait(int epoll_fd, epoll_event* events, int count, int timeout_ms)
    ssize_t readv(int fd, iovec* parts, int count)
    ssize_t recv(int fd, void* data, size_t size, int flags)
    ssize_t read(int fd, void* data, size_t size)

cdef enum:
    EVENTS = 256
    ROUNDS = 64                         # of one poll, and
    POLL_MS = 5                         # its time, after which asyncio has its turn
    # Frames as big as this are read into a buffer of their own, only their first bytes are copied there; and in one
    # turn as far as they have come, since half a frame that waits has left the CPU's cache when it is written.
    BIG_FRAME = 128 * 1024
    FIRST_BYTES = 16 * 1024
    BYTES_PER_TURN = 2 * 1024 * 1024
    BUSY = 16                           # requests and messages since the last sleep: others have more, if they run
    FEW = 4                             # so many in a round: nobody sends much
    UNPACK_NS = 4_000_000               # a round's own unpacking of compressed batches; the rest is for threads
    LATE_ROUNDS = 3                     # answers wait no longer than this for those of other workers
    FIRST_BUFFER = 64 * 1024            # kept for a partial frame at first; doubled as its bytes come
    MAILS_PER_ROUND = 256
    PAUSE_MS = 100                      # whether other workers have closed connections is looked at so often
    TRIM_BYTES = 16 * 1024 * 1024       # given back to the heap in big requests: then it is trimmed,
    TRIM_PAD = 1024 * 1024
    TRIM_PAUSE_MS = 1000                # no more often than this
    SASL_HANDSHAKE = 17
    SHORTAGE_MS_MAX = 10_000            # then the connection that holds most of the memory goes
    # A frame for Python is copied whole, on the loop. What is stored of one is a record of 1 MB at most.
    CALLS_US_MAX = 5000                 # of a round, then a connection's turn ends behind the call at hand
    CALL_SIZE_MAX = 16 * 1024 * 1024
    BIG_CALL = 256 * 1024               # a frame whose objects are worth a trim of the heap
    TRIM_AFTER_MS = 2000                # pooled buffers live on as long as this without a poll


# -- one connection's turn ---------------------------------------------------------------------------------

cdef void serve(Reactor reactor, Conn* conn) noexcept nogil:
    """Send, serve what is kept, read once (a big frame as far as it is there), serve that, send."""
    cdef Core* core = conn.core
    cdef int frames = FRAMES_PER_TURN
    cdef int calls = CALLS_PER_TURN
    cdef int64_t bytes_in = core.stats.bytes_in
    if conn.tls is not NULL and not handshake_done(conn):
        return
    conn.busy = True
    if conn.slicing is not NULL:
        produce_slice(reactor.producing, conn)
    if not conn.closed:
        conn_flush(conn)
    if not conn.closed and not conn.blocked and (conn.first is NULL or not conn.first.ready) and conn.ending is NULL:
        if conn.input is not NULL:
            serve_kept(reactor, conn, &frames, &calls)
        if may_read(conn):
            read_once(reactor, conn, &frames, &calls)
            while (conn.input_capacity >= BIG_FRAME and core.stats.bytes_in - bytes_in < BYTES_PER_TURN
                    and conn.growing is NULL and may_read(conn)):
                read_once(reactor, conn, &frames, &calls)
        if conn.first is not NULL and conn.first.ready:
            if reactor.has_mail and conn.pending_produces:
                send_late(conn)
            else:
                conn_flush(conn)
    conn.busy = False
    if conn.slicing is not NULL and not conn.closed and slice_due(conn):
        conn_run(conn)
    if conn.ending is not NULL and not conn.closed:
        if conn.first is NULL:
            if conn.tls is NULL or not tls_waits(<Tls*>conn.tls):
                conn_close(conn, conn.ending.reason)
        else:
            input_release(conn)
            if conn.first.ready and not conn.blocked and not conn.late:
                conn_run(conn)
        return
    if conn.closed or conn.blocked:
        return
    if frames <= 0 or calls <= 0 or may_read(conn) or (
            conn.first is not NULL and conn.first.ready and not conn.late):
        conn_run(conn)                                  # there may be more: after the others
    elif conn.hung_up and not conn.readable and conn.first is NULL and conn.fd >= 0:
        conn_close(conn, NULL)


cdef void send_late(Conn* conn) noexcept nogil:
    """What is answered here leaves together with what another worker is about to answer, if that comes soon."""
    cdef Core* core = conn.core
    if not conn.late:
        conn.late = True
        conn.late_next = core.late_first
        core.late_first = conn


cdef void flush_late(Core* core) noexcept nogil:
    cdef Conn* conn
    while core.late_first is not NULL:
        conn = core.late_first
        core.late_first = conn.late_next
        conn.late = False
        conn_flush(conn)
        if conn.ending is not NULL:
            conn_run(conn)


cdef bint may_read(Conn* conn) noexcept nogil:
    """There may be bytes in the socket, and frames in them would be served."""
    return (conn.readable and not conn.closed and not conn.blocked and (not conn.starved or conn.input is NULL)
            and conn.pending_count == conn.pending_produces and conn.slot_count < SLOTS_MAX
            and conn.answer_bytes <= UNSENT_MAX and conn.ending is NULL and not has_frame(conn))


cdef inline bint has_frame(Conn* conn) noexcept nogil:
    """A whole frame (or a bad size) is kept: it waits, so reading on would only keep more."""
    cdef uint32_t held = conn.input_end - conn.input_start
    cdef int32_t size
    if held < 4:
        return False
    size = get_i32(conn.input + conn.input_start)
    return size < 0 or <uint64_t>held >= <uint64_t>size + 4


cdef void serve_kept(Reactor reactor, Conn* conn, int* frames, int* calls) noexcept nogil:
    cdef size_t served
    conn.core.serving = conn.input
    served = serve_bytes(
        reactor, conn, conn.input + conn.input_start, conn.input_end - conn.input_start, frames, calls)
    conn.core.serving = NULL
    if conn.closed:
        return
    conn.input_start += <uint32_t>served
    if conn.input_start == conn.input_end:
        input_release(conn)


cdef size_t serve_bytes(Reactor reactor, Conn* conn, uint8_t* data, size_t size, int* frames,
                        int* calls) noexcept nogil:
    """Serves whole frames from the front; answers how many bytes it is done with."""
    cdef size_t at = 0
    cdef int32_t frame_size
    while size - at >= 4 and not conn.closed and frames[0] > 0 and calls[0] > 0 and conn.ending is NULL:
        frame_size = get_i32(data + at)
        if frame_size < 0 or frame_size > conn.core.request_bytes_max:
            conn.core.stats.bad_frames += 1
            conn_end(conn, "TLS came to a plaintext listener; does the client use this listener's security.protocol?"
                     if conn.tls is NULL and frame_size >> 16 == 0x1603 else
                     "a request's size is negative or above socket.request.max.bytes")
            break
        if conn.phase != PHASE_READY and frame_size > conn.core.sasl_bytes_max:
            conn.core.stats.bad_frames += 1
            conn_end(conn, "a request before authentication is above sasl.server.max.receive.size")
            break
        if size - at - 4 < <size_t>frame_size:
            break
        if not serve_frame(reactor, conn, data + at + 4, <size_t>frame_size, calls):
            break
        at += 4 + <size_t>frame_size
        frames[0] -= 1 + <int>(conn.core.elements // ELEMENTS_PER_FRAME)
        conn.core.elements = 0
        if conn.answer_bytes > UNSENT_MAX:
            frames[0] = 0                               # they leave first
        conn.last_size = <uint32_t>frame_size + 4
        if <uint32_t>frame_size + 4 > conn.proven_size:
            conn.proven_size = <uint32_t>frame_size + 4
    return at


cdef void read_once(Reactor reactor, Conn* conn, int* frames, int* calls) noexcept nogil:
    cdef Core* core = conn.core
    cdef iovec parts[2]
    cdef int count = 0
    cdef uint32_t held = conn.input_end - conn.input_start
    cdef uint32_t room = 0
    cdef size_t first = 0
    cdef uint64_t whole = 0, wanted
    cdef size_t asked, served
    cdef uint8_t* scratch = core.scratch + core.scratch_at
    cdef ssize_t n
    cdef bint more = False

    if held:                                            # a partial frame: the rest of it goes straight behind it
        whole = <uint64_t>held + 4 if held < 4 else <uint64_t>get_i32(conn.input + conn.input_start) + 4
        room = conn.input_capacity - conn.input_start - held
        if room == 0 or held < 4:
            wanted = min(whole, max(<uint64_t>held * 2, believed_size(conn)))
            if conn.growing is NULL and not may_buffer(conn, wanted):
                return
            if not input_grow(conn, <uint32_t>wanted):
                return
            room = conn.input_capacity - held
        if held < 4:
            room = min(room, 4 - held)
        room = <uint32_t>min(<uint64_t>room, whole - held)
        parts[0].iov_base = conn.input + conn.input_end
        parts[0].iov_len = room
        count = 1
    elif core.stats.buffered_bytes > core.buffered_bytes_max:
        first = first_frame(conn, scratch, SCRATCH_SIZE - core.scratch_at)
        if first == 0:
            return
    if not held or (held >= 4 and held + room == whole and core.stats.buffered_bytes <= core.buffered_bytes_max):
        parts[count].iov_base = scratch
        if first:
            parts[count].iov_len = first
        else:
            parts[count].iov_len = FIRST_BYTES if conn.last_size >= BIG_FRAME else SCRATCH_SIZE - core.scratch_at
        count += 1
    asked = parts[0].iov_len + (parts[1].iov_len if count == 2 else 0)
    if conn.tls is not NULL:
        n = tls_receive(<Tls*>conn.tls, parts, count, &more)
    else:
        n = readv(conn.fd, parts, count)
        more = n > 0 and <size_t>n == asked
    core.stats.reads += 1
    if n <= 0:
        if n < 0 and errno == EINTR:
            return
        conn.readable = more
        if n == 0:
            conn.hung_up = True
            if conn.first is not NULL and conn.pending_count == conn.pending_produces:
                return                                  # answers are on their way; then it closes
            conn_close(conn, NULL)
        elif errno != EAGAIN:
            conn_close(conn, NULL if conn.tls is NULL else (<Tls*>conn.tls).reason)
        return
    if not more and not conn.hung_up:
        conn.readable = False
    core.stats.bytes_in += n
    conn_touch(conn)

    if held:
        conn.input_end += <uint32_t>min(<size_t>n, <size_t>room)
        if has_frame(conn):
            serve_kept(reactor, conn, frames, calls)
            if conn.closed:
                return
        n -= min(<size_t>n, <size_t>room)
        if n == 0:
            return
    if conn.input is NULL:
        core.serving = core.scratch
        served = serve_bytes(reactor, conn, scratch, <size_t>n, frames, calls)
        core.serving = NULL
    else:
        served = 0                                      # the kept frame waits: these bytes wait behind it
    if served < <size_t>n and not conn.closed and conn.ending is NULL:
        keep(conn, scratch + served, <uint32_t>(<size_t>n - served))
    if buffer_is_shared(core.scratch):                  # a request outlives this turn
        scratch_keep(core, <size_t>(scratch - core.scratch) + <size_t>n)


cdef size_t first_frame(Conn* conn, uint8_t* scratch, size_t size) noexcept nogil:
    """How many bytes to read while memory is short: the first frame, if it has come whole, so that nothing is kept of it.
    Else 0, and the connection waits for more bytes or for memory."""
    cdef ssize_t n
    cdef int32_t frame_size
    if conn.tls is not NULL:
        n = tls_peek(<Tls*>conn.tls, scratch, size)
    else:
        n = recv(conn.fd, scratch, size, MSG_PEEK)
    if n <= 0:
        return 1                                        # the read gets the same, and acts on it
    if n >= 4:
        frame_size = get_i32(scratch)
        if frame_size < 0 or <size_t>frame_size + 4 <= <size_t>n:
            return 4 if frame_size < 0 else <size_t>frame_size + 4
    conn.readable = False
    may_buffer(conn, 0)
    return 0


cdef inline uint64_t believed_size(Conn* conn) noexcept nogil:
    """How much room a claimed size is given before its bytes have come."""
    return max(<uint64_t>FIRST_BUFFER, <uint64_t>conn.proven_size)


cdef void keep(Conn* conn, const uint8_t* data, uint32_t size) noexcept nogil:
    """Bytes that were read and cannot be served yet."""
    cdef uint32_t held = conn.input_end - conn.input_start
    cdef uint64_t wanted = <uint64_t>held + size
    cdef int32_t whole
    if held == 0 and size >= 4:
        whole = get_i32(data)
        if whole >= 0 and <uint64_t>whole + 4 > size:   # a partial frame: room for all of it if it is not too big
            wanted = max(wanted, min(<uint64_t>whole + 4, believed_size(conn)))
            if conn.core.stats.buffered_bytes + <int64_t>wanted > conn.core.buffered_bytes_max:
                wanted = <uint64_t>held + size          # requests in flight hold much: no more than must be
    input_reserve(conn, <uint32_t>wanted)
    memcpy(conn.input + conn.input_end, data, size)
    conn.input_end += size


cdef bint may_buffer(Conn* conn, uint64_t size) noexcept nogil:
    """Whether `size` bytes may be kept for it. If not it waits until others have given theirs back."""
    cdef Core* core = conn.core
    if core.stats.buffered_bytes - conn.input_capacity + <int64_t>size <= core.buffered_bytes_max:
        return True
    core.starved_level = core.stats.buffered_bytes
    if not conn.starved:
        conn.starved = True
        conn.starved_next = core.starved_first
        core.starved_first = conn
    return False


cdef void feed_starved(Core* core) noexcept nogil:
    cdef Conn* conn = core.starved_first
    cdef Conn* following
    if conn is NULL or core.stats.buffered_bytes >= core.starved_level:
        return
    core.starved_level = core.stats.buffered_bytes
    core.starved_first = NULL
    while conn is not NULL:
        following = conn.starved_next
        conn.starved = False
        conn.readable = True                            # `first_frame` may have left bytes there
        conn_run(conn)
        conn = following


# -- one frame ---------------------------------------------------------------------------------------------

cdef bint serve_frame(Reactor reactor, Conn* conn, uint8_t* frame, size_t size, int* calls) noexcept nogil:
    """False when the frame must wait for the answers before it."""
    cdef Core* core = conn.core
    cdef Cursor header
    cdef int16_t key, version, client_size
    cdef int32_t correlation_id
    cdef const uint8_t* client
    cdef const char* trouble
    cdef int64_t slow

    if conn.phase == PHASE_AUTHENTICATING:
        if conn.pending_count:
            return False
        calls[0] -= 1
        call_python(reactor, conn, frame, size, -1, -1, 0)
        return True
    if size < 10:
        core.stats.bad_frames += 1
        conn_end(conn, "a request's header does not parse")
        return True
    key = get_i16(frame)
    if not conn_may_serve(conn, key):
        return False
    version = get_i16(frame + 2)
    correlation_id = get_i32(frame + 4)
    cursor_init(&header, frame + 8, size - 8)
    client_size = read_i16(&header)
    client = read_raw(&header, <size_t>max(client_size, 0))
    if header.failed or client_size < -1:
        core.stats.bad_frames += 1
        conn_end(conn, "a request's header does not parse")
        return True
    if conn.session_expires_ms and core.monotonic_ms > conn.session_expires_ms and key != SASL_HANDSHAKE:
        conn_end(conn, "its session has ended: it must authenticate again")
        return True
    if key >= 0 and key < API_KEYS:
        core.stats.requests[key] += 1
        if reactor.native_high[key] >= 0:
            if conn.phase != PHASE_READY:
                conn_end(conn, "a Produce or Fetch came before authentication")
                return True
            if version < reactor.native_low[key] or version > reactor.native_high[key]:
                core.stats.bad_frames += 1
                conn_end(conn, "a Produce's version is not served" if key == 0 else
                           "a Fetch's version is not served")
                return True
            if key == 0:
                slow = core.stats.python_appends
                trouble = produce_frame(reactor.producing, conn, version, correlation_id, client, client_size, &header)
                if core.stats.python_appends != slow:   # a roll makes files
                    calls[0] -= 1
                    if clock_us() - core.awake_us > CALLS_US_MAX:
                        calls[0] = 0
            else:
                trouble = fetch_frame(reactor.fetching, conn, version, correlation_id, &header)
            if trouble is not NULL:
                core.stats.bad_frames += 1
                conn_end(conn, trouble)
            return True
    if size > CALL_SIZE_MAX:
        core.stats.bad_frames += 1
        conn_end(conn, "a request is above 16 MiB and no Produce")
        return True
    calls[0] -= 1
    call_python(reactor, conn, frame, size, key, version, correlation_id)
    if clock_us() - core.awake_us > CALLS_US_MAX:
        calls[0] = 0                                    # the others first
    return True


cdef void call_python(Reactor reactor, Conn* conn, const uint8_t* frame, size_t size, int16_t key, int16_t version,
                      int32_t correlation_id) noexcept nogil:
    cdef Slot* slot = slot_open(conn, key, version, correlation_id)
    conn.core.stats.dispatched += 1
    if size >= BIG_CALL:
        conn.core.freed_bytes += <int64_t>size * 8      # at a guess: its objects are small
    with gil:
        try:
            reactor.dispatch(conn_handle(conn), slot.request_id, PyBytes_FromStringAndSize(<char*>frame, <Py_ssize_t>size))
        except MemoryError:
            conn_end(conn, "no memory was left for its request")
        except BaseException:
            core_fatal(conn.core)


# -- other workers -----------------------------------------------------------------------------------------

cdef int drain_mail(Reactor reactor) noexcept nogil:
    """Serves messages of the other workers; tells how many."""
    cdef int count = 0, sender = -1
    cdef int64_t slow = reactor.core.stats.python_appends
    cdef const Mail* mail
    note_lost(reactor)
    while count < MAILS_PER_ROUND:
        mail = mail_peek(reactor.mailboxes, &sender)
        if mail is NULL:
            break
        forward_mail(reactor.forwarding, sender, mail)
        mail_done(reactor.mailboxes)
        count += 1
        if reactor.core.stats.python_appends != slow:
            slow = reactor.core.stats.python_appends
            if clock_us() - reactor.core.awake_us > CALLS_US_MAX:
                break                                   # the connections first
    return count


cdef void note_lost(Reactor reactor) noexcept nogil:
    """Peers that died and came back: what was in flight to them is given up."""
    cdef int peer = mail_lost(reactor.mailboxes)
    while peer >= 0:
        forwarding_peer_lost(reactor.forwarding, peer)
        peer = mail_lost(reactor.mailboxes)


# -- a poll ------------------------------------------------------------------------------------------------

cdef int one_round(Reactor reactor, int timeout_ms, int* mails) noexcept nogil:
    """Waits for events as long as `timeout_ms`, and does what they and the other workers ask for; how many there were."""
    cdef Core* core = reactor.core
    cdef epoll_event events[EVENTS]
    cdef int count
    cdef uint64_t ignored
    cdef int kind
    cdef Conn* conn
    cdef Conn* last
    core.stats.rounds += 1
    count = epoll_wait(core.epoll_fd, events, EVENTS, timeout_ms)
    if count < 0:
        reactor.called = True                           # EINTR: a signal, whose handler is Python's
    if reactor.asleep:
        reactor.asleep = False
        mail_awake(reactor.mailboxes)
    core_read_clocks(core)
    reactor.producing.unpack_ns = UNPACK_NS
    core.shakes_left = TLS_SHAKES_PER_ROUND
    for i in range(max(count, 0)):
        kind = (<int*>events[i].data.ptr)[0]
        if kind == KIND_CONNECTION:
            conn = <Conn*>events[i].data.ptr
            if conn.closed:
                continue
            if events[i].events & (EPOLLHUP | EPOLLERR):
                conn_close(conn, NULL)
                continue
            if events[i].events & EPOLLRDHUP:
                conn.hung_up = True
            if events[i].events & EPOLLIN:
                conn.readable = True
            if events[i].events & EPOLLOUT:
                conn.blocked &= ~BLOCKED_SOCKET
            if conn.hung_up and conn.pending_count > conn.pending_produces and long_polls(conn):
                conn_close(conn, NULL)                  # nobody is there to wait for the data
                continue
            conn_run(conn)
        elif kind == KIND_LISTENER:
            accept_some(reactor.acceptor, <Listener*>events[i].data.ptr)
        elif kind == KIND_HANDOVER:
            take_some(reactor.acceptor)
        elif kind == KIND_COMMIT:
            with gil:
                publish_commits(reactor, (<Commits*>events[i].data.ptr).group)
        elif kind == KIND_LOOP:
            reactor.called = True
            reactor.loop_ready = True
        elif kind == KIND_WAKE:
            read(core.wake_fd, &ignored, 8)
            core.woken = False
            cold_settle(&core.cold)
            if reactor.unpacker.waiting:
                with gil:
                    settle_unpacked(reactor)
        elif kind == KIND_TIMER:
            read(core.timer_fd, &ignored, 8)
            core.timer_armed_ms = 0
            reactor.called = True                       # listeners that rest are looked at there
    mails[0] = drain_mail(reactor) if reactor.has_mail else 0
    last = core.run_last                                # who is queued again has its turn in the next round
    while core.run_first is not NULL:
        conn = core.run_first
        core.run_first = conn.run_next
        if core.run_first is NULL:
            core.run_last = NULL
        conn.queued = False
        if not conn.closed:
            serve(reactor, conn)
        if conn is last:
            break
    if core.copied_count:
        copies_forget(core)
    commit_turn(True)
    answer_waiters(reactor)
    timers_expire(core)
    feed_starved(core)
    conn_reap(core)
    if reactor.has_mail:
        mail_ring(reactor.mailboxes)
    reactor.late_rounds = reactor.late_rounds + 1 if core.late_first is not NULL else 0
    if reactor.late_rounds >= LATE_ROUNDS:
        flush_late(core)
    return count


cdef void settle_unpacked(Reactor reactor) noexcept:
    try:
        reactor.unpacker.settle()
    except BaseException:
        core_fatal(reactor.core)


cdef void publish_commits(Reactor reactor, PyObject* group) noexcept:
    try:
        (<GroupCommit>group).publish()
    except BaseException:
        core_fatal(reactor.core)


cdef inline bint has_more(Reactor reactor) noexcept nogil:
    return reactor.core.run_first is not NULL or reactor.table.table.pending is not NULL


cdef void run_rounds(Reactor reactor) noexcept nogil:
    """Rounds that never sleep, until nothing is ready or the time is up."""
    cdef Core* core = reactor.core
    cdef int count
    cdef int64_t began
    cdef int mails = 0
    cdef int64_t served = work_done(reactor)
    cdef bint asleep = False
    core_read_clocks(core)
    began = core.monotonic_ms
    if reactor.has_mail:
        mail_awake(reactor.mailboxes)
    commit_turn(True)
    for _ in range(ROUNDS):
        count = one_round(reactor, 0, &mails)
        if count <= 0 and mails == 0 and not has_more(reactor):
            if not reactor.has_mail:
                break
            if work_done(reactor) - served >= BUSY and core.monotonic_ms - began <= POLL_MS:
                served = work_done(reactor)             # peers and clients first: what they send then needs no wake-up
                sched_yield()
                continue
            flush_late(core)
            if mail_sleep(reactor.mailboxes):
                asleep = True
                break
        if core.monotonic_ms - began > POLL_MS:
            break
    commit_turn(False)
    flush_late(core)
    if has_more(reactor):
        core_wake(core)
    elif reactor.has_mail and not asleep and not mail_sleep(reactor.mailboxes):
        core_wake(core)


cdef void run_until_called(Reactor reactor, int64_t wait_ms, PyObject* ready, PyObject* scheduled) noexcept nogil:
    """Rounds, and sleep between them, until asyncio has something to do or `wait_ms` are over (-1: never)."""
    cdef Core* core = reactor.core
    cdef Py_ssize_t timers = Py_SIZE(scheduled)
    cdef int64_t deadline = 0, left
    cdef int64_t served = work_done(reactor)            # before the last yield or sleep
    cdef int64_t before = served                        # and before the last round
    cdef int mails = 0, count = 1
    cdef int timeout_ms
    core_read_clocks(core)
    if wait_ms > 0:
        deadline = core.monotonic_ms + wait_ms
    commit_turn(True)
    while True:
        timeout_ms = 0
        if core.woken or has_more(reactor) or wait_ms == 0:
            pass
        elif reactor.has_mail and work_done(reactor) - served >= BUSY:
            # Peers and clients first: what they send then needs no wake-up.
            if count <= 0 and mails == 0:
                served = work_done(reactor)
                sched_yield()
        elif not reactor.has_mail or work_done(reactor) - before <= FEW or (count <= 0 and mails == 0):
            # With few at a time it is not worth a look whether there is more: a call that may sleep tells, too.
            flush_late(core)
            expire_idle(reactor)
            conn_reap(core)
            arm(reactor)
            commit_turn(True)                           # what a callback of the round's end has asked for
            if reactor.called or Py_SIZE(ready) or not reactor.open:
                break                                   # a closed connection
            timeout_ms = -1
            if deadline:
                left = deadline - core.monotonic_ms
                timeout_ms = <int>min(left, <int64_t>1 << 30)
                if left <= 0:
                    timeout_ms = 0
            if reactor.has_mail and timeout_ms:
                if not reactor.mailboxes.told and mail_sleep(reactor.mailboxes):
                    reactor.asleep = True
                    served = work_done(reactor)
                else:
                    timeout_ms = 0
        core.woken = False
        before = work_done(reactor)
        count = one_round(reactor, timeout_ms, &mails)
        if (reactor.called or Py_SIZE(ready) or Py_SIZE(scheduled) != timers or wait_ms == 0 or not reactor.open
                or (deadline and core.monotonic_ms >= deadline)):
            break
    commit_turn(False)
    flush_late(core)
    expire_idle(reactor)
    conn_reap(core)
    arm(reactor)


cdef inline int64_t work_done(Reactor reactor) noexcept nogil:
    """Requests served in C and messages taken, since the start."""
    return (reactor.core.stats.requests[0] + reactor.core.stats.requests[1]
            + (reactor.mailboxes.mail_in if reactor.has_mail else 0))


cdef bint long_polls(Conn* conn) noexcept nogil:
    cdef Slot* slot = conn.first
    while slot is not NULL:
        if not slot.ready and slot.cancel is not NULL and not slot.overtakable:
            return True
        slot = slot.next
    return False


cdef void answer_waiters(Reactor reactor) noexcept nogil:
    """All partitions that advanced since the last look, each once."""
    cdef Table* table = &reactor.table.table
    cdef Entry* entry = table.pending
    cdef Entry* following
    cdef uint32_t why
    if entry is NULL:
        return
    table.pending = NULL
    while entry is not NULL:
        following = entry.pending_next
        why = entry.advanced
        entry.advanced = 0
        if entry.produces is not NULL:
            produce_advanced(reactor.producing, entry, why)
        if entry.fetches is not NULL:
            fetch_advanced(reactor.fetching, entry, why)
        if entry.removed:
            KAFKAD_CHECK(entry.produces is NULL)
            entry.pending_next = table.graveyard
            table.graveyard = entry
        entry = following
    fetch_settle(reactor.fetching)


cdef void arm(Reactor reactor) noexcept nogil:
    """The timer fd fires at the earliest deadline; moving it later is left to its firing."""
    cdef Core* core = reactor.core
    cdef int64_t deadline = next_deadline(reactor)
    if deadline == 0:
        return
    if core.timer_armed_ms == 0 or deadline < core.timer_armed_ms:
        core.timer_armed_ms = deadline
        kafkad_arm(core.timer_fd, deadline)


cdef int64_t next_deadline(Reactor reactor) noexcept nogil:
    """Monotonic ms, 0 for none."""
    cdef Core* core = reactor.core
    cdef int64_t deadline = 0
    if core.heap_size:
        deadline = core.heap[0].deadline_ms
    if core.oldest is not NULL and reactor.idle_ms >= 0:
        if deadline == 0 or core.oldest.active_ms + reactor.idle_ms + 1 < deadline:
            deadline = core.oldest.active_ms + reactor.idle_ms + 1
    if reactor.acceptor.paused and (reactor.acceptor.hands_over or reactor.acceptor.retry_ms):
        if deadline == 0 or core.monotonic_ms + PAUSE_MS < deadline:
            deadline = core.monotonic_ms + PAUSE_MS
    if core.freed_bytes + reactor.fetching.freed >= TRIM_BYTES:
        if deadline == 0 or core.trimmed_ms + TRIM_PAUSE_MS < deadline:
            deadline = max(core.trimmed_ms + TRIM_PAUSE_MS, core.monotonic_ms + 1)
    if core.stats.pooled_bytes or core.starved_first is not NULL:
        if deadline == 0 or core.monotonic_ms + TRIM_AFTER_MS < deadline:
            deadline = core.monotonic_ms + TRIM_AFTER_MS
    if reactor.fetching.cache.orphans and (deadline == 0 or reactor.fetching.cache.look_ms < deadline):
        deadline = max(reactor.fetching.cache.look_ms, core.monotonic_ms + 1)
    return deadline


cdef void wake_core(void* context) noexcept nogil:
    cdef Core* core = <Core*>context
    if not core.polling:
        core_wake(core)


cdef class Reactor:
    """See kafkad/_native/serving/reactor.pyi for the arguments and methods."""

    def __cinit__(self, PartitionTable partitions not None, dispatch, *, on_fatal=None, log=None,
                  int32_t socket_request_max_bytes=100 * 1024 * 1024, int32_t sasl_server_max_receive_size=512 * 1024,
                  int64_t buffered_bytes_max=512 * 1024 * 1024,
                  int64_t connections_max=2147483647, int connections_max_per_ip=2147483647,
                  connections_max_per_ip_overrides=None, int64_t connections_max_idle_ms=600_000,
                  int64_t stall_ms=10_000, int send_buffer_bytes=100 * 1024, int receive_buffer_bytes=100 * 1024,
                  int32_t fetch_max_bytes=55 * 1024 * 1024, int fetch_session_slots=1000,
                  int64_t fetch_session_eviction_ms=120_000, int64_t fetch_session_partitions_max=1_000_000,
                  int64_t fetch_session_orphan_ms=10_000,
                  Mailboxes mailboxes=None, hosts=None, Handover handover=None):
        if handover is not None and handover.me < 0:
            raise ValueError("a worker enters the hand-over before it makes a reactor")
        if mailboxes is not None and mailboxes.me < 0:
            raise ValueError("a worker enters its mailbox before it makes a reactor")
        self.core = core_new(NULL if mailboxes is None else &mailboxes.arena)
        if self.core.epoll_fd < 0 or self.core.wake_fd < 0 or self.core.timer_fd < 0:
            raise OSError(errors.EMFILE, "no file descriptors for a reactor")
        self.core.reactor = <PyObject*>self
        self.core.request_bytes_max = socket_request_max_bytes
        self.core.sasl_bytes_max = sasl_server_max_receive_size
        self.core.buffered_bytes_max = buffered_bytes_max
        self.table = partitions
        if partitions.table.wake is not NULL:
            raise ValueError("this partition table has a reactor")
        partitions.table.wake = wake_core
        partitions.table.wake_context = self.core
        self.dispatch = dispatch
        self.on_fatal = on_fatal
        self.log = log or logging.getLogger("kafkad.net")
        self.acceptor = Acceptor(self.log, handover, hosts, connections_max, connections_max_per_ip,
                                 connections_max_per_ip_overrides, send_buffer_bytes, receive_buffer_bytes)
        self.acceptor.core = self.core
        self.commits = []
        self.idle_ms = connections_max_idle_ms
        self.stall_ms = stall_ms
        for i in range(API_KEYS):
            self.native_low[i] = -1
            self.native_high[i] = -1
        self.producing = Producing(partitions)
        self.producing.core = self.core
        self.unpacker = self.producing.unpacker = Unpacker(self.core.wake_fd)
        self.fetching = Fetching(partitions, fetch_max_bytes, fetch_session_slots, fetch_session_eviction_ms,
                                 fetch_session_partitions_max, fetch_session_orphan_ms)
        self.fetching.core = self.core
        self.fetching.unpacker = self.unpacker
        self.core.fetching = <PyObject*>self.fetching
        self.core.session_left = fetch_session_left
        if mailboxes is not None:
            Py_INCREF(mailboxes)
            self.arena = <PyObject*>mailboxes
            self.mailboxes = mailboxes
            self.has_mail = True
            self.mail_kind = KIND_MAIL
            mailboxes.wake = wake_core
            mailboxes.wake_context = self.core
            self.forwarding = Forwarding(partitions, mailboxes, self.producing)
            self.forwarding.core = self.core
            if kafkad_epoll_doorbell(self.core.epoll_fd, mailboxes.doorbells[mailboxes.me], &self.mail_kind) != 0:
                raise OSError(errno, os.strerror(errno))
        self.open = True

    def __dealloc__(self):
        if self.core is not NULL:
            if self.table is not None and self.table.table.wake_context is self.core:
                self.table.table.wake = NULL
                self.table.table.wake_context = NULL
            if self.arena is not NULL:
                (<Mailboxes>self.arena).wake = NULL
            core_free(self.core)
            self.core = NULL
            if self.arena is not NULL:
                Py_DECREF(<object>self.arena)
                self.arena = NULL

    def fileno(self):
        return self.core.epoll_fd

    def serve_native(self, int key, int low, int high):
        if key not in (0, 1) or not 0 <= low <= high:
            raise ValueError("only Produce (0) and Fetch (1) are served natively")
        if high > (13, 18)[key]:
            raise ValueError("natively served are Produce 0 to 13 and Fetch 0 to 18")
        self.native_low[key] = <int16_t>low
        self.native_high[key] = <int16_t>high

    def serve_transactions(self, gate, *, bint verify=True):
        """Serve Produces with a transactional id. See reactor.pyi for `gate`."""
        self.producing.gate = gate
        self.producing.serves_transactions = gate is not None
        self.producing.verifies = verify

    # -- listeners and connections

    def add_listener(self, int fd, str name not None, *, int phase=PHASE_READY):
        self.acceptor.add(fd, name, phase)

    def secure(self, str name not None, TlsContext context):
        """TLS for the connections that this listener accepts from now on; those that are there keep theirs."""
        self.acceptor.contexts[name] = context

    def remove_listener(self, int fd):
        """Accept no more; the fd stays the caller's."""
        self.acceptor.remove(fd)

    def adopt(self, int fd, str listener not None, *, int phase=PHASE_READY):
        """Serve a connected socket that something else accepted; its fd is the reactor's from now on."""
        return self.admitted(self.acceptor.adopt(fd, listener, phase))

    def attach(self, writer, str listener not None, *, peer=("", 0), int phase=PHASE_READY):
        """A connection without a socket: bytes come by `feed`, answers go to `writer(bytes)`, `writer(None)` is told
        that it was closed."""
        return self.admitted(self.acceptor.attach(writer, listener, peer, phase))

    cdef object admitted(self, Conn* conn):
        if conn is NULL:
            return None
        arm(self)
        return conn_handle(conn)

    def closed(self, bytes host, port, listener, connection, reason):
        """Called by conn_close for every connection that ends."""
        self.acceptor.left(host)
        if reason is not None:
            self.log.info("closed the connection from %s:%s on %s: %s", host_of(host), port, listener, reason)
        if self.open:
            resume_listeners(self.acceptor)

    def certified(self, connection, certificate):
        """Called once a client's certificate has been verified (DER). A ValueError closes the connection."""
        if self.on_certificate is not None:
            self.on_certificate(connection, certificate)

    def fatal(self, error):
        if self.on_fatal is None:
            self.log.critical("a callback of the reactor failed", exc_info=error)
            os.abort()
        self.on_fatal(error)

    # -- turns

    def poll(self):
        """Do what is ready. The event loop calls it when `fileno()` is readable."""
        if self.core.polling or not self.open:
            return
        self.table.bury()
        self.acceptor.free_retired()
        look_at_rest(self.acceptor)
        self.core.stats.polls += 1
        self.core.polling = True
        with nogil:
            run_rounds(self)
            expire_idle(self)
            conn_reap(self.core)
            arm(self)
        self.core.polling = False
        if not self.open:
            self.finish()
        elif self.core.run_first is not NULL:
            core_wake(self.core)

    def wait(self, timeout, ready, scheduled):
        """The sleep of the event loop that `join_loop` named: serves, as `poll`, until its descriptor is readable
        (True), or `ready` has something, or `scheduled` has more, a signal came, or `timeout` seconds are over
        (None: never)."""
        cdef int64_t wait_ms = -1 if timeout is None else <int64_t>ceil(max(timeout, 0) * 1000)
        if self.core.polling or not self.open:
            raise ValueError("this reactor is closed, or in the middle of a poll")
        self.table.bury()
        self.acceptor.free_retired()
        look_at_rest(self.acceptor)
        self.core.stats.polls += 1
        self.core.polling = True
        self.called = self.loop_ready = False
        with nogil:
            run_until_called(self, wait_ms, <PyObject*>ready, <PyObject*>scheduled)
        self.core.polling = False
        if not self.open:
            self.finish()
        elif self.core.run_first is not NULL:
            core_wake(self.core)
        return self.loop_ready

    def join_loop(self, int fd):
        """From now on an event loop calls `wait` instead of sleeping; `fd` is readable when it has something to do."""
        self.loop_kind = KIND_LOOP
        if kafkad_epoll_listen(self.core.epoll_fd, fd, &self.loop_kind, EPOLL_CTL_ADD) != 0:
            raise OSError(errno, os.strerror(errno))
        self.core.waits = True

    def join_commits(self, GroupCommit group not None):
        """From now on the fdatasyncs of `group` that have ended are published here, in the round that sees them."""
        cdef Commits* commits = <Commits*>calloc(1, sizeof(Commits))
        KAFKAD_CHECK(commits is not NULL)
        commits.kind = KIND_COMMIT
        commits.group = <PyObject*>group
        if kafkad_epoll_listen(self.core.epoll_fd, group.fileno(), commits, EPOLL_CTL_ADD) != 0:
            free(commits)
            raise OSError(errno, os.strerror(errno))
        self.commits.append((<size_t>commits, group))

    def next_deadline_ms(self):
        """Monotonic milliseconds of the next deadline, or None. The reactor keeps its own timer: for tests."""
        return next_deadline(self) or None

    def tick(self):
        """Look at the deadlines now. Never needed beside `poll`: for tests."""
        self.poll()

    def now_ms(self):
        return self.core.now_ms

    def set_limits(self, *, connections_max=None, connections_max_per_ip=None, connections_max_per_ip_overrides=None,
                   connections_max_idle_ms=None, fetch_max_bytes=None):
        """Dynamic configuration."""
        self.acceptor.limit(connections_max, connections_max_per_ip, connections_max_per_ip_overrides)
        if connections_max is not None:
            resume_listeners(self.acceptor)
        if connections_max_idle_ms is not None:
            self.idle_ms = connections_max_idle_ms
        if fetch_max_bytes is not None:
            self.fetching.max_bytes = fetch_max_bytes

    def name_leader(self, int32_t broker_id, nodes):
        self.fetching.broker_id = broker_id
        self.fetching.nodes = dict(nodes)

    def trim_soon(self):
        """Give free memory of the heap back to the system at the next occasion, at most once in TRIM_PAUSE_MS."""
        self.core.freed_bytes += TRIM_BYTES

    def stats(self):
        """Counters since the start and gauges, by name; `requests` by API key."""
        cdef dict values
        if self.has_mail:
            self.core.stats.mail_in = self.mailboxes.mail_in
            self.core.stats.mail_out = self.mailboxes.mail_out
            self.core.stats.doorbells = self.mailboxes.rings
        self.core.stats.cold_reads = self.core.cold.reads
        self.core.stats.cold_bytes = self.core.cold.bytes_read
        self.core.stats.cold_checks = self.core.cold.checks
        values = self.core.stats
        values["requests"] = {key: count for key, count in enumerate(values["requests"]) if count}
        forwarding, handover = self.forwarding, self.acceptor.handover
        values["unpack_jobs"] = self.unpacker.jobs
        values["unpacking"] = self.unpacker.waiting
        values["in_flight"] = forwarding.in_flight if self.has_mail else 0
        values["forwarded"] = forwarding.forwarded if self.has_mail else 0
        values["appended"] = forwarding.appended if self.has_mail else 0
        values["handed_over"] = 0 if handover is None else handover.given
        values["adopted"] = 0 if handover is None else handover.taken
        values["scratch_bytes"] = (
            self.producing.part_capacity * (sizeof(Part) + sizeof(Outcome))
            + self.producing.topic_capacity * sizeof(TopicParts) + self.producing.wait_capacity * sizeof(Wait)
            + self.fetching.result_capacity * sizeof(Result))
        return values

    def hold_cold_reads(self, bint held):
        """For tests: what is not in memory is not read until it is let go."""
        cold_hold(&self.core.cold, held)

    def peer_lost(self, int peer):
        """A worker has died. What it has not taken is given up, and fails; nothing happens when it is there again by
        now, since its new life is noticed by itself."""
        if self.has_mail and self.open:
            note_lost(self)
            if self.mailboxes.lose(peer):
                forwarding_peer_lost(self.forwarding, peer)
            core_wake(self.core)

    def connections(self):
        """(id, listener, peer host, peer port, idle ms, unanswered requests, kept input bytes) of each."""
        cdef Conn* conn = self.core.oldest
        rows = []
        while conn is not NULL:
            rows.append((conn.id, <object>conn.listener, host_of(PyBytes_FromStringAndSize(<char*>conn.peer, 16)),
                         conn.peer_port, self.core.monotonic_ms - conn.active_ms, conn.slot_count, conn.input_capacity))
            conn = conn.newer
        return rows

    def close(self):
        """Close every connection and the reactor's own fds (stop watching `fileno()` first). Listeners' fds stay
        their owner's. Called by a handler, in the middle of a poll, it ends with that poll."""
        if not self.open:
            return
        self.open = False
        self.acceptor.close()
        while self.core.oldest is not NULL:
            conn_close(self.core.oldest, NULL)
        if not self.core.polling:
            self.finish()

    cdef void finish(self) noexcept:
        self.core.polling = True                        # nobody is to be woken any more
        try:
            self.unpacker.close()
        except BaseException:
            core_fatal(self.core)
        if self.has_mail:
            self.forwarding.forget()
        answer_waiters(self)
        self.core.polling = False
        self.core.run_first = NULL
        self.core.run_last = NULL
        conn_reap(self.core)
        self.fetching.forget()
        self.table.bury()
        self.acceptor.free_retired()
        core_shut(self.core)
        for address, _ in self.commits:
            free(<void*><size_t>address)
        self.commits.clear()


cdef void close_holder(Conn* conn) noexcept nogil:
    conn_close(conn, "an unfinished request holds memory that others wait for" if conn.input_capacity else
               "answers that are not read hold memory that others wait for")


cdef void relieve_shortage(Reactor reactor) noexcept nogil:
    """Memory is short. A connection that holds some and moves no bytes goes first. One that waits for memory itself cannot
    move any: it goes when nobody else holds some. If all of them move bytes, and it lasts, the one that holds most goes."""
    cdef Core* core = reactor.core
    cdef Conn* conn = core.oldest
    cdef Conn* most = NULL
    cdef Conn* waiting = NULL
    cdef bint others_move = False
    while conn is not NULL and not (waiting is NULL and core.monotonic_ms - conn.active_ms <= reactor.stall_ms):
        if not conn.input_capacity and not conn.answer_bytes:
            pass
        elif core.monotonic_ms - conn.active_ms <= reactor.stall_ms:
            others_move = True
            break
        elif not conn.starved:
            close_holder(conn)
            return
        elif waiting is NULL:
            waiting = conn
        conn = conn.newer
    if waiting is not NULL and not others_move:
        close_holder(waiting)
        return
    if core.starved_since_ms == 0:
        core.starved_since_ms = core.monotonic_ms
    elif core.monotonic_ms - core.starved_since_ms > SHORTAGE_MS_MAX:
        core.starved_since_ms = 0
        conn = core.oldest
        while conn is not NULL:
            if most is NULL or conn.answer_bytes + conn.input_capacity > most.answer_bytes + most.input_capacity:
                most = conn
            conn = conn.newer
        if most is not NULL and most.answer_bytes + most.input_capacity:
            conn_close(most, "it holds most of the memory that others wait for")


cdef void expire_idle(Reactor reactor) noexcept nogil:
    cdef Core* core = reactor.core
    cdef Conn* conn
    while core.oldest is not NULL and reactor.idle_ms >= 0 and (
            core.monotonic_ms - core.oldest.active_ms > reactor.idle_ms):
        core.stats.expired_idle += 1
        conn_close(core.oldest, "idle for connections.max.idle.ms")
    if reactor.fetching.cache.orphans and core.monotonic_ms >= reactor.fetching.cache.look_ms:
        fetch_drop_orphans(reactor.fetching)
    if core.freed_bytes + reactor.fetching.freed >= TRIM_BYTES and core.monotonic_ms - core.trimmed_ms >= TRIM_PAUSE_MS:
        core.freed_bytes = 0
        reactor.fetching.freed = 0
        core.trimmed_ms = core.monotonic_ms
        core.stats.trims += 1
        malloc_trim(TRIM_PAD)
    if core.starved_first is NULL:
        core.starved_since_ms = 0
    if core.starved_first is not NULL:
        relieve_shortage(reactor)
    elif core.stats.pooled_bytes and core.stats.buffered_bytes == 0 and (
            core.newest is NULL or core.monotonic_ms - core.newest.active_ms >= TRIM_AFTER_MS):
        core.freed_bytes += core.stats.pooled_bytes     # the heap is trimmed, too, when that is much
        buffers_trim(core)


"""One connection's turn: read, cut frames, serve them, send.

Produce and Fetch, in the versions that `serve_native` named, are answered in C. Any other frame goes to
`dispatch(connection, request_id, frame)`, which answers through `connection.respond`, now or later. While a request
waits, the next frames of its connection wait too (conn_may_serve); only a Produce may follow another Produce. Answers
that precede those of other workers are sent late (send_late).

Each turn is bounded, so that no connection costs the others more: bytes, frames, partitions answered, calls of Python
and their time, unanswered requests, unsent answers (UNSENT_MAX). Partial frames, waiting requests and answers of all
connections together are bounded by `buffered_bytes_max`. A socket that takes no more answers is not read. A connection
that sent bytes that do not parse is closed when its earlier answers have been sent."""

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from kafkad._native.serving.buffers cimport buffer_is_shared, input_grow, input_release, input_reserve, scratch_keep
from kafkad._native.serving.connection cimport (
    API_KEYS, CALLS_PER_TURN, Conn, Core, ELEMENTS_PER_FRAME, FRAMES_PER_TURN, MOVE_AT, PHASE_AUTHENTICATING, PHASE_READY,
    SCRATCH_SIZE, SLOTS_MAX, Slot, UNSENT_MAX, conn_answered, conn_close, conn_end, conn_handle, conn_may_serve, conn_run,
    conn_touch, clock_us, core_fatal, slot_open)
from kafkad._native.serving.sending cimport conn_flush
from kafkad._native.serving.fetch cimport fetch_frame
from kafkad._native.serving.produce cimport produce_frame, produce_slice, slice_due
from kafkad._native.serving.quota cimport quota_request, quota_turn_begin, quota_turn_end
from kafkad._native.serving.tls cimport Tls, iovec, tls_peek, tls_receive, tls_waits
from kafkad._native.wire.primitives cimport Cursor, cursor_init, get_i16, get_i32, read_i16, read_raw

cdef extern from * nogil:
    """
    #include <sys/socket.h>
    #include <sys/uio.h>
    """
    int MSG_PEEK
    ssize_t readv(int fd, iovec* parts, int count)
    ssize_t recv(int fd, void* data, size_t size, int flags)

cdef enum:
    # From this size on, a frame is read into a buffer of its own (only its first bytes are copied there), and in one
    # turn as far as it has arrived: half a frame that waits would have left the CPU's cache when it is written.
    BIG_FRAME = 128 * 1024
    FIRST_BYTES = 16 * 1024
    BYTES_PER_TURN = 2 * 1024 * 1024
    FIRST_BUFFER = 64 * 1024            # the first buffer for a partial frame; doubled as its bytes arrive
    SASL_HANDSHAKE = 17
    # A frame for Python is copied whole, on the loop. Of its contents, at most a record of 1 MB is stored.
    CALL_SIZE_MAX = 16 * 1024 * 1024
    BULK = 16 * 1024                    # a Produce of this size is read here while its worker appends another one
    BIG_CALL = 256 * 1024               # above this, the objects of a frame are worth a trim of the heap


cdef class ConnectionTurns:
    """What a turn needs: the base class of Rounds and of the Reactor."""


cdef void serve(ConnectionTurns turns, Conn* conn) noexcept nogil:
    """Do a turn, and time it if a quota needs that."""
    cdef Core* core = conn.core
    cdef bint timed = core.quotas is not NULL and quota_turn_begin(conn)
    take_turn(turns, conn)
    if timed:
        quota_turn_end(core)


cdef void take_turn(ConnectionTurns turns, Conn* conn) noexcept nogil:
    """Send, serve kept frames, read once (a big frame as far as it has arrived), serve that, send."""
    cdef Core* core = conn.core
    cdef int frames = FRAMES_PER_TURN
    cdef int calls = CALLS_PER_TURN
    cdef int64_t bytes_in = core.stats.bytes_in
    conn.busy = True
    if conn.slicing is not NULL:
        produce_slice(turns.producing, conn)
    if not conn.closed:
        conn_flush(conn)
    if not conn.closed and not conn.blocked and (conn.first is NULL or not conn.first.ready) and conn.ending is NULL and (
            not conn.muted):
        if conn.input is not NULL:
            serve_kept(turns, conn, &frames, &calls)
        if may_read(conn):
            read_once(turns, conn, &frames, &calls)
            while (conn.input_capacity >= BIG_FRAME and core.stats.bytes_in - bytes_in < BYTES_PER_TURN
                    and conn.growing is NULL and may_read(conn)):
                read_once(turns, conn, &frames, &calls)
        if conn.first is not NULL and conn.first.ready:
            if turns.has_mail and conn.pending_produces:
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
    if conn.away >= MOVE_AT and core.move is not NULL and core.move(conn):
        return
    if conn.muted:                                      # the end of the pause queues it again
        if conn.first is not NULL and conn.first.ready and not conn.late:
            conn_run(conn)
        return
    if frames <= 0 or calls <= 0 or may_read(conn) or (
            conn.first is not NULL and conn.first.ready and not conn.late):
        conn_run(conn)                                  # there may be more: after the others
    elif conn.hung_up and not conn.readable and conn.first is NULL and conn.fd >= 0:
        conn_close(conn, NULL)


cdef void send_late(Conn* conn) noexcept nogil:
    """Delay its answers, so that they leave together with those that another worker is about to send."""
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

# -- reading ------------------------------------------------------------------------------------------------

cdef bint may_read(Conn* conn) noexcept nogil:
    """Whether there may be bytes in the socket, and frames in them would be served."""
    return (conn.readable and not conn.closed and not conn.blocked and (not conn.starved or conn.input is NULL)
            and conn.pending_count == conn.pending_produces and conn.slot_count < SLOTS_MAX
            and conn.answer_bytes <= UNSENT_MAX and conn.ending is NULL and not conn.muted and not has_frame(conn))


cdef inline bint has_frame(Conn* conn) noexcept nogil:
    """Whether a whole frame (or a bad size) is kept: it waits, so reading on would only keep more."""
    cdef uint32_t held = conn.input_end - conn.input_start
    cdef int32_t size
    if held < 4:
        return False
    size = get_i32(conn.input + conn.input_start)
    return size < 0 or <uint64_t>held >= <uint64_t>size + 4


cdef void serve_kept(ConnectionTurns turns, Conn* conn, int* frames, int* calls) noexcept nogil:
    cdef size_t served
    conn.core.serving = conn.input
    served = serve_bytes(
        turns, conn, conn.input + conn.input_start, conn.input_end - conn.input_start, frames, calls)
    conn.core.serving = NULL
    if conn.closed:
        return
    conn.input_start += <uint32_t>served
    if conn.input_start == conn.input_end:
        input_release(conn)


cdef size_t serve_bytes(ConnectionTurns turns, Conn* conn, uint8_t* data, size_t size, int* frames,
                        int* calls) noexcept nogil:
    """Serve whole frames from the front. Return how many bytes are done with."""
    cdef size_t at = 0
    cdef int32_t frame_size
    while size - at >= 4 and not conn.closed and frames[0] > 0 and calls[0] > 0 and conn.ending is NULL and not conn.muted:
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
        if not serve_frame(turns, conn, data + at + 4, <size_t>frame_size, calls):
            break
        at += 4 + <size_t>frame_size
        frames[0] -= 1 + <int>(conn.core.elements // ELEMENTS_PER_FRAME)
        conn.core.elements = 0
        if conn.answer_bytes > UNSENT_MAX:
            frames[0] = 0                               # their answers are sent first
        conn.last_size = <uint32_t>frame_size + 4
        if <uint32_t>frame_size + 4 > conn.proven_size:
            conn.proven_size = <uint32_t>frame_size + 4
    return at


cdef void read_once(ConnectionTurns turns, Conn* conn, int* frames, int* calls) noexcept nogil:
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

    if held:                                            # a partial frame: read the rest right behind it
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
                return                                  # answers are on their way; it is closed after them
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
            serve_kept(turns, conn, frames, calls)
            if conn.closed:
                return
        n -= min(<size_t>n, <size_t>room)
        if n == 0:
            return
    if conn.input is NULL:
        core.serving = core.scratch
        served = serve_bytes(turns, conn, scratch, <size_t>n, frames, calls)
        core.serving = NULL
    else:
        served = 0                                      # the kept frame waits: these bytes wait behind it
    if served < <size_t>n and not conn.closed and conn.ending is NULL:
        keep(conn, scratch + served, <uint32_t>(<size_t>n - served))
    if buffer_is_shared(core.scratch):                  # a request outlives this turn
        scratch_keep(core, <size_t>(scratch - core.scratch) + <size_t>n)


cdef size_t first_frame(Conn* conn, uint8_t* scratch, size_t size) noexcept nogil:
    """Return how many bytes to read while memory is short: the first frame if it has arrived whole, so that nothing of
    it is kept. Otherwise 0: the connection waits for more bytes, or for memory."""
    cdef ssize_t n
    cdef int32_t frame_size
    if conn.tls is not NULL:
        n = tls_peek(<Tls*>conn.tls, scratch, size)
    else:
        n = recv(conn.fd, scratch, size, MSG_PEEK)
    if n <= 0:
        return 1                                        # the read gets the same error, and handles it
    if n >= 4:
        frame_size = get_i32(scratch)
        if frame_size < 0 or <size_t>frame_size + 4 <= <size_t>n:
            return 4 if frame_size < 0 else <size_t>frame_size + 4
    conn.readable = False
    may_buffer(conn, 0)
    return 0


cdef inline uint64_t believed_size(Conn* conn) noexcept nogil:
    """Return how much room a claimed size gets before its bytes have arrived."""
    return max(<uint64_t>FIRST_BUFFER, <uint64_t>conn.proven_size)


cdef void keep(Conn* conn, const uint8_t* data, uint32_t size) noexcept nogil:
    """Keep bytes that were read and cannot be served yet."""
    cdef uint32_t held = conn.input_end - conn.input_start
    cdef uint64_t wanted = <uint64_t>held + size
    cdef int32_t whole
    if held == 0 and size >= 4:
        whole = get_i32(data)
        if whole >= 0 and <uint64_t>whole + 4 > size:   # a partial frame: room for all of it, if it is not too big
            wanted = max(wanted, min(<uint64_t>whole + 4, believed_size(conn)))
            if conn.core.stats.buffered_bytes + <int64_t>wanted > conn.core.buffered_bytes_max:
                wanted = <uint64_t>held + size          # requests in flight hold a lot: no more than necessary
    input_reserve(conn, <uint32_t>wanted)
    memcpy(conn.input + conn.input_end, data, size)
    conn.input_end += size

# -- memory that is short -----------------------------------------------------------------------------------

cdef bint may_buffer(Conn* conn, uint64_t size) noexcept nogil:
    """Return whether `size` bytes may be kept for it. If not, it waits until others have released theirs."""
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

# -- one frame ----------------------------------------------------------------------------------------------

cdef bint serve_frame(ConnectionTurns turns, Conn* conn, uint8_t* frame, size_t size, int* calls) noexcept nogil:
    """Return False if the frame must wait for earlier answers."""
    cdef Core* core = conn.core
    cdef Cursor header
    cdef int16_t key, version, client_size
    cdef int32_t correlation_id
    cdef const uint8_t* client
    cdef const char* trouble
    cdef int64_t slow, neutral

    if conn.phase == PHASE_AUTHENTICATING:
        if conn.pending_count:
            return False
        calls[0] -= 1
        call_python(turns, conn, frame, size, -1, -1, 0)
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
    if core.quotas is not NULL and conn.phase == PHASE_READY:
        quota_request(conn, key, client, client_size)
    if key >= 0 and key < API_KEYS:
        core.stats.requests[key] += 1
        if turns.native_high[key] >= 0:
            if conn.phase != PHASE_READY:
                conn_end(conn, "a Produce or Fetch came before authentication")
                return True
            if version < turns.native_low[key] or version > turns.native_high[key]:
                core.stats.bad_frames += 1
                conn_end(conn, "a Produce's version is not served" if key == 0 else
                           "a Fetch's version is not served")
                return True
            if key == 0:
                slow = core.stats.python_appends
                neutral = core.stats.hops + core.stats.transactional
                trouble = produce_frame(turns.producing, conn, version, correlation_id, client, client_size, &header)
                if core.stats.hops + core.stats.transactional == neutral or size >= BULK:
                    conn_answered(conn)                 # a small one for another worker, or in a transaction, counts for none
                if core.stats.python_appends != slow:   # a roll creates files
                    calls[0] -= 1
                    if clock_us() - core.awake_us > CALLS_US_MAX:
                        calls[0] = 0
            else:
                trouble = fetch_frame(turns.fetching, conn, version, correlation_id, client, client_size, &header)
                conn_answered(conn)                     # any worker could, but only the owner need not be woken
            if trouble is not NULL:
                core.stats.bad_frames += 1
                conn_end(conn, trouble)
            return True
    if size > CALL_SIZE_MAX:
        core.stats.bad_frames += 1
        conn_end(conn, "a request is above 16 MiB and no Produce")
        return True
    calls[0] -= 1
    call_python(turns, conn, frame, size, key, version, correlation_id)
    if clock_us() - core.awake_us > CALLS_US_MAX:
        calls[0] = 0                                    # the others come first
    return True


cdef void call_python(ConnectionTurns turns, Conn* conn, const uint8_t* frame, size_t size, int16_t key, int16_t version,
                      int32_t correlation_id) noexcept nogil:
    cdef Slot* slot = slot_open(conn, key, version, correlation_id)
    conn.core.stats.dispatched += 1
    if size >= BIG_CALL:
        conn.core.freed_bytes += <int64_t>size * 8      # an estimate: its objects are small
    with gil:
        try:
            turns.dispatch(conn_handle(conn), slot.request_id, PyBytes_FromStringAndSize(<char*>frame, <Py_ssize_t>size))
        except MemoryError:
            conn_end(conn, "no memory was left for its request")
        except BaseException:
            core_fatal(conn.core)

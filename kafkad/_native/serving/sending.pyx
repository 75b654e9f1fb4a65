"""Sending: ready answers are sent in request order.

A slot's answer is its own bytes with file regions between them. Bytes are sent by sendmsg, many slots at once, regions
by sendfile. MSG_MORE joins a header to its region, TCP_CORK a region to what follows. Small regions are read and sent
with their header, which is cheaper; several waiters for the same batch get the same copy. A region that is not in
memory is not touched: its connection is parked, neither sent to nor read, until a helper has read the region
(cold_reads.pyx).

One connection sends at most BYTES_PER_TURN, then the others get their turn."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.errno cimport EAGAIN, EINTR, ENODATA, errno
from libc.stdint cimport int64_t, uint32_t

from kafkad._native.log.cold_reads cimport READ_MAX, ColdJob, cold_ask, cold_warm
from kafkad._native.log.segments cimport log_file_release, log_file_hot, log_file_retain
from kafkad._native.serving.tls cimport Tls, iovec, tls_push, tls_send, tls_sendfile, tls_waits
from kafkad._native.serving.connection cimport (
    BLOCKED_DISK, BLOCKED_SOCKET, COPIES_KEPT, Conn, Copy, Core, Region, Slot, conn_close, conn_run, conn_touch,
    core_fatal, slot_free)

cdef extern from * nogil:
    """
    #include <netinet/in.h>
    #include <netinet/tcp.h>
    #include <sys/sendfile.h>
    #include <sys/socket.h>
    #include <sys/uio.h>
    #include <unistd.h>

    static inline ssize_t kafkad_send(int fd, struct iovec* parts, int count, int more) {
        struct msghdr message = {0};
        message.msg_iov = parts;
        message.msg_iovlen = count;
        return sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT | (more ? MSG_MORE : 0));
    }
    static inline void kafkad_cork(int fd, int on) {
        setsockopt(fd, IPPROTO_TCP, TCP_CORK, &on, sizeof(on));
    }
    """
    ssize_t kafkad_send(int fd, iovec* parts, int count, int more)
    void kafkad_cork(int fd, int on)
    ssize_t sendfile(int out, int into, int64_t* position, size_t size)
    ssize_t pread(int fd, void* data, size_t size, int64_t position)

cdef enum:
    IOVECS = 64
    # A region up to this size is read and sent with its header (2 system calls, one copy) instead of sendfile
    # between cork and uncork (5 system calls, none).
    COPY_MAX = 16 * 1024
    # Of answers, in one connection's turn, and a small rest (COPY_MAX): a Produce of another connection waits no longer
    # than that.
    BYTES_PER_TURN = 256 * 1024

cdef const char* CUT = "a log file is shorter than the answer that was promised from it"


cdef void conn_flush(Conn* conn) noexcept nogil:
    cdef Core* core = conn.core
    cdef iovec parts[IOVECS]
    cdef int count
    cdef size_t gathered
    cdef bint copied
    cdef int64_t copy
    cdef Slot* slot
    cdef Region* region
    cdef Region* pending                 # the region to send by sendfile after the gathered bytes
    cdef Region* cold                    # or the region to wait for
    cdef uint32_t sent, upto, index
    cdef ssize_t n
    cdef int64_t position
    cdef int64_t following               # bytes of `pending` that are sent now
    cdef int64_t left = BYTES_PER_TURN
    cdef bint more

    if conn.closed or conn.blocked:
        return
    if conn.fd < 0:
        with gil:
            flush_writer(conn)
        return
    if conn.tls is not NULL and not push_secret(conn):
        return
    while conn.first is not NULL and conn.first.ready:
        if left <= 0:
            conn_run(conn)                   # the rest after the others' turns; `serve` queues it itself
            return
        # gather bytes of ready slots up to the first big region
        count = 0
        gathered = 0
        copied = False
        pending = NULL
        cold = NULL
        more = False
        slot = conn.first
        while slot is not NULL and slot.ready and pending is NULL and cold is NULL and count < IOVECS - 1:
            sent = slot.sent
            index = slot.region_sent
            while count < IOVECS - 1:
                region = &slot.regions[index] if index < slot.region_count else NULL
                upto = region.at if region is not NULL else slot.size
                if upto > sent:
                    parts[count].iov_base = slot.data + sent
                    parts[count].iov_len = upto - sent
                    gathered += upto - sent
                    sent = upto
                    count += 1
                if region is NULL:
                    break
                if region.size <= COPY_MAX and region_ready(conn, region) < region.size:
                    cold = region
                    break
                copy = copy_of(core, region, not copied) if region.size <= COPY_MAX else -1
                if copy == -1:
                    pending = region
                    more = upto < slot.size or index + 1 < slot.region_count or (
                        slot.next is not NULL and slot.next.ready)
                    break
                if copy == -2:
                    conn_close(conn, CUT)
                    return
                parts[count].iov_base = core.copies + copy
                parts[count].iov_len = <size_t>region.size
                gathered += <size_t>region.size
                copied = True
                count += 1
                index += 1
            else:
                break                    # no room for more parts
            slot = slot.next

        following = 0
        if conn.tls is not NULL and pending is not NULL and 0 < <int64_t>gathered < left:
            following = region_part(conn, pending, left - <int64_t>gathered)
        if more and not conn.corked and conn.tls is NULL:
            conn.corked = True
            kafkad_cork(conn.fd, 1)
        if gathered:
            if conn.tls is not NULL:
                n = send_secret(conn, parts, count, pending, following)
            else:
                n = kafkad_send(conn.fd, parts, count, pending is not NULL)
            core.stats.writes += 1
            if n < 0:
                if errno == EINTR:
                    continue
                if errno == EAGAIN:
                    conn.blocked |= BLOCKED_SOCKET
                    break
                conn_close(conn, trouble_of(conn))
                return
            core.stats.bytes_out += n
            conn_touch(conn)             # reading an answer counts as activity
            sent_bytes(conn, <size_t>n)
            left -= n
            if following or <size_t>n < gathered:
                continue                 # also to get EAGAIN, which arms the edge
        elif pending is NULL and cold is NULL:
            sent_bytes(conn, 0)          # only silent slots
        if cold is not NULL and conn_park(conn, cold):
            break
        if pending is not NULL:
            slot = conn.first
            while pending.size and left > 0:
                following = region_part(conn, pending, left)
                if following == 0:
                    if conn_park(conn, pending):
                        break
                    continue
                position = pending.position
                if conn.tls is not NULL:
                    n = send_secret(conn, parts, 0, pending, following)
                else:
                    n = sendfile(conn.fd, pending.file.fd, &position, <size_t>following)
                    core.stats.sendfiles += 1
                if n > 0:
                    core.stats.bytes_out += n
                    conn_touch(conn)
                    pending.position += n
                    pending.size -= n
                    left -= n
                elif n == 0:
                    conn_close(conn, CUT)
                    return
                elif errno == EAGAIN:
                    conn.blocked |= BLOCKED_SOCKET
                    break
                elif errno != EINTR:
                    conn_close(conn, trouble_of(conn))
                    return
            if conn.blocked:
                break
            sent_bytes(conn, 0)
    if not core.polling:
        copies_forget(core)
    if conn.corked:                          # also when blocked: under cork a window below the MSS stays unused
        conn.corked = False
        kafkad_cork(conn.fd, 0)
    if conn.tls is not NULL:
        push_secret(conn)


cdef const char* trouble_of(Conn* conn) noexcept nogil:
    """Return why nothing could be sent, by errno and TLS. NULL: the peer has gone."""
    if errno == ENODATA:
        return CUT
    if conn.tls is not NULL and (<Tls*>conn.tls).reason[0]:
        return (<Tls*>conn.tls).reason
    return NULL


cdef ssize_t send_secret(Conn* conn, iovec* parts, int count, Region* region, int64_t following) noexcept nogil:
    """Encrypt and send the parts together with so many bytes of the region: a small answer is one send."""
    (<Tls*>conn.tls).follows = region is not NULL and following < region.size
    if following == 0:
        return tls_send(<Tls*>conn.tls, parts, count)
    return tls_sendfile(<Tls*>conn.tls, parts, count, region.file, region.position, <size_t>following)


cdef bint push_secret(Conn* conn) noexcept nogil:
    """Send what TLS has encrypted. Return False if the socket does not take it, or is broken."""
    cdef Tls* tls = <Tls*>conn.tls
    if not tls_waits(tls):
        return True
    if not tls_push(tls):
        conn_close(conn, NULL)
        return False
    if tls_waits(tls):
        conn.blocked |= BLOCKED_SOCKET
        return False
    return True


cdef void sent_bytes(Conn* conn, size_t n) noexcept nogil:
    """Advance over `n` sent bytes, and over regions and slots that are done."""
    cdef Slot* slot
    cdef Region* region
    cdef size_t step
    while conn.first is not NULL and conn.first.ready:
        slot = conn.first
        region = &slot.regions[slot.region_sent] if slot.region_sent < slot.region_count else NULL
        step = (region.at if region is not NULL else slot.size) - slot.sent
        if step:
            if n == 0:
                return
            if step > n:
                step = n
            slot.sent += <uint32_t>step
            n -= step
            continue
        if region is NULL:
            slot_free(slot)
            continue
        if region.size:
            if n == 0:
                return
            step = min(<size_t>region.size, n)
            region.position += <int64_t>step
            region.size -= <int64_t>step
            n -= step
            if region.size:
                return
        log_file_release(region.file)
        slot.region_sent += 1


cdef void flush_writer(Conn* conn) noexcept:
    """Pass the ready answers of a fed connection to its writer, as one bytes object."""
    cdef Slot* slot
    cdef Region* region
    cdef uint32_t sent
    cdef bytes piece
    pieces = []
    try:
        while conn.first is not NULL and conn.first.ready:
            slot = conn.first
            sent = 0
            for index in range(slot.region_count):
                region = &slot.regions[index]
                pieces.append(PyBytes_FromStringAndSize(<char*>slot.data + sent, region.at - sent))
                sent = region.at
                piece = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>region.size)
                if pread(region.file.fd, PyBytes_AS_STRING(piece), <size_t>region.size, region.position) != region.size:
                    conn_close(conn, CUT)
                    return
                pieces.append(piece)
            pieces.append(PyBytes_FromStringAndSize(<char*>slot.data + sent, slot.size - sent))
            slot_free(slot)
        answer = b"".join(pieces)
        if answer and conn.writer is not NULL:
            conn.core.stats.bytes_out += len(answer)
            (<object>conn.writer)(answer)
    except BaseException:
        core_fatal(conn.core)


# -- data that is not in memory --------------------------------------------------------------------------------

cdef inline int64_t region_ready(Conn* conn, Region* region) noexcept nogil:
    """Return how many bytes of the region may be sent at once; 0: the next byte is not in memory."""
    if log_file_hot(region.file, region.position, conn.core.monotonic_ms):
        return region.size
    if conn.cold_file is region.file and region.position < conn.cold_end:
        return min(region.size, conn.cold_end - region.position)
    return cold_warm(&conn.core.cold, region.file, region.position, region.size)


cdef inline int64_t region_part(Conn* conn, Region* region, int64_t left) noexcept nogil:
    """Return how many bytes of the region to send now. A small rest is sent at once: alone it would cost another turn."""
    cdef int64_t ready = region_ready(conn, region)
    return ready if ready <= left + COPY_MAX else left


cdef bint conn_park(Conn* conn, Region* region) noexcept nogil:
    """Park it until a helper has read the region, or the start of a long one. Return False if there is no helper."""
    conn.cold_job = cold_ask(&conn.core.cold, region.file, region.position,
                             min(region.size, <int64_t>READ_MAX), conn, conn_unpark)
    if conn.cold_job is NULL:
        conn.cold_file = region.file
        conn.cold_end = region.position + region.size
        return False
    conn.blocked |= BLOCKED_DISK
    return True


cdef void conn_unpark(void* waiter, ColdJob* job) noexcept nogil:
    cdef Conn* conn = <Conn*>waiter
    conn.cold_job = NULL
    conn.cold_file = job.file               # also after a disk error: sending then finds it
    conn.cold_end = job.position + job.size
    conn.blocked &= ~BLOCKED_DISK
    conn_run(conn)


# -- copies of small regions ---------------------------------------------------------------------------------

cdef void copies_forget(Core* core) noexcept nogil:
    cdef uint32_t i
    for i in range(core.copied_count):
        log_file_release(core.copied[i].file)
    core.copied_count = 0
    core.copies_end = 0


cdef int64_t copy_of(Core* core, const Region* region, bint fresh) noexcept nogil:
    """Return the position in `copies` of a region's bytes, after reading them if necessary. -1: no room (`fresh`: the
    existing copies are not needed any more), -2: the file does not have them."""
    cdef uint32_t i
    cdef Copy* copy
    for i in range(core.copied_count):
        copy = &core.copied[i]
        if copy.position == region.position and copy.size == region.size and copy.file is region.file:
            return copy.at
    if core.copied_count == COPIES_KEPT or core.copies_end + region.size > COPIES_SIZE:
        if not fresh:
            return -1
        copies_forget(core)
    if pread(region.file.fd, core.copies + core.copies_end, <size_t>region.size, region.position) != region.size:
        return -2
    core.stats.copies += 1
    copy = &core.copied[core.copied_count]
    log_file_retain(region.file)                # so that no other file gets its address
    copy.file = region.file
    copy.position = region.position
    copy.size = region.size
    copy.at = core.copies_end
    core.copied_count += 1
    core.copies_end += <uint32_t>region.size
    return copy.at

"""Followed partitions and the connection to their leader: Fetch (key 1, v13-v18) as a replica sends it.

    request    one at a time. It names the partitions whose offsets changed, and those to forget (sessions, KIP-227)
    answer     parsed as it comes. Heads are parsed when they are complete; batches go from the buffer into the log in
               runs (_native/log/partition_runs), so an answer is never in memory as a whole
    next       when the answer has ended, with the offsets that it moved

There is no Python object per batch or partition. Python is called if a run needs it (a roll, a new epoch), and after the
parsing, if a partition stopped (`error`, `diverged`, `trouble`, `refused` of `sink`) or the connection ended (`lost`). A
partition that stopped waits for `resume`.

The leader is not trusted. Bytes that do not parse, or sizes above the limits, end the connection with a reason. Bad records
stop their partition only. The buffer grows to the size of a batch, at most `batch_bytes_max`, and shrinks again.

Each call reads the socket once, so a turn is bounded by the buffer. If Python is called often for what is in it (each
batch may have an epoch of its own), the parsing stops after TURN_US and continues after the others' turns (`later`).

Beware: the calls during the parsing (`go_on`, `overlap`, and callbacks of a log) may remove partitions or close the
connection. After each, check `current` and `link.fd`. The other calls of `sink` come after it."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport INT32_MAX, int16_t, int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memmove

from kafkad._native.log.partition cimport Partition
from kafkad._native.log.partition_runs cimport RUN_NEWER, RUN_OVERLAPS, RunInfo
from kafkad._native.serving.connection cimport Core, Timer, clock_us, core_fatal
from kafkad._native.serving.followed cimport (
    DELAYED, FAILED, FETCHING, TRUNCATING, Followed, FollowedPartitions, followed_write, forgotten_write)
from kafkad._native.serving.outgoing cimport (
    outgoing_close, outgoing_open, outgoing_read, outgoing_reason, outgoing_send)
from kafkad._native.serving.outgoing_tls cimport OutgoingTls
from kafkad._native.serving.reactor cimport Reactor
from kafkad._native.serving.replication_quota cimport FOLLOWER_SIDE, ReplicationQuota
from kafkad._native.serving.timers cimport timer_start, timer_stop
from kafkad._native.shared.watermarks cimport Row
from kafkad._native.wire.batch cimport NEED_PYTHON
from kafkad._native.wire.buffer cimport (
    WriteBuffer, buffer_free, write_i16, write_i32, write_i64, write_i8, write_raw, write_uvarint)
from kafkad._native.wire.errors cimport (
    CORRUPT_MESSAGE, FETCH_SESSION_ID_NOT_FOUND, FETCH_SESSION_TOPIC_ID_ERROR, INVALID_FETCH_SESSION_EPOCH)
from kafkad._native.wire.primitives cimport (
    KAFKAD_CHECK, Cursor, cursor_init, get_i32, put_i32, read_i16, read_i32, read_i64, read_raw, read_uvarint)

import os

cimport cython

cdef enum:
    FETCH_KEY = 1
    BUFFER_BYTES = 1 << 20
    SHRINK_ABOVE = 4 << 20
    HEAD_BYTES_MAX = 256            # of a part that is parsed at once
    BATCH_HEAD = 17                 # bytes of a batch up to its magic
    ANSWER_SLACK = 16 << 20         # for heads and tags of an answer, beside its records
    EMPTY_ANSWERS = 64              # more of them than this within EMPTY_MS delay the next request. A leader that expects
                                    # followers answers every 10 ms (fetch_state.EXPECTED_WAIT_MS), which is not too often
    EMPTY_MS = 500
    TRUNCATING_WAIT_MS = 10         # of a request while a partition is truncated, which only the next one can name
    GOES_ON_MAX = 4                 # calls of `go_on` at one place
    TURN_US = 5000


cdef inline bint is_asked(const Followed* followed) noexcept nogil:
    return followed.state == FETCHING and not followed.held


cdef void link_ready(void* owner) noexcept nogil:
    (<ReplicaFetch>owner).read_on()


cdef void its_turn(Core* core, Timer* timer) noexcept nogil:
    (<ReplicaFetch>(<Later*>timer).owner).parse_on()


@cython.no_gc_clear              # __dealloc__ needs the reactor's core
cdef class ReplicaFetch(FollowedPartitions):
    """See kafkad/_native/serving/replica_fetch.pyi for the arguments and methods."""

    def __cinit__(self, Reactor reactor not None, sink, *, int32_t broker_id, bytes client_id not None, int version=18,
                  int32_t max_wait_ms=500, int32_t min_bytes=1, int32_t max_bytes=10 << 20,
                  int32_t partition_bytes=1 << 20, int32_t batch_bytes_max=100 << 20,
                  ReplicationQuota quota=None):
        if not 13 <= version <= 18:
            raise ValueError(f"Fetch v{version}: replicas use v13 to v18")
        if not 0 < len(client_id) < 1 << 15:
            raise ValueError("a client id has 1 to 32767 bytes")
        self.link.fd = -1
        self.later.timer.place = -1
        self.later.owner = <void*>self
        self.reactor = reactor
        self.sink = sink
        self.broker_id = broker_id
        self.client_id = client_id
        self.version = <int16_t>version
        self.max_wait_ms = max_wait_ms
        self.min_bytes = min_bytes
        self.max_bytes = max_bytes
        self.partition_bytes = partition_bytes
        self.batch_bytes_max = batch_bytes_max
        self.answer_bytes_max = <int32_t>min(
            <int64_t>max_bytes + batch_bytes_max + ANSWER_SLACK, <int64_t>INT32_MAX)
        self.events = []
        self.quota = quota

    def __dealloc__(self):
        if self.link.core is not NULL:
            timer_stop(self.link.core, &self.later.timer)
            outgoing_close(&self.link)
        free(self.buffer)
        buffer_free(&self.request)

    # -- partitions ------------------------------------------------------------------------------------------

    def add(self, Partition partition not None, bytes topic_id not None, int32_t index, int32_t leader_epoch):
        self.follow(partition, topic_id, index, leader_epoch)
        self.go()

    def resume(self, bytes topic_id not None, int32_t index):
        """Continue a partition that stopped, from the end of its log."""
        if self.restart(topic_id, index):
            self.go()

    # -- the connection --------------------------------------------------------------------------------------

    @property
    def connected(self) -> bool:
        return self.link.fd >= 0

    @property
    def waiting_since_ms(self) -> int:
        """When the current request was sent (monotonic); 0 if there is none."""
        return self.sent_ms

    @property
    def buffer_bytes(self) -> int:
        return self.capacity_bytes

    def attach(self, int fd, int64_t broker_epoch, OutgoingTls tls=None):
        """Fetch over a connected, non-blocking socket, and take over the socket and its TLS. Raises OSError; then the
        socket is still the caller's."""
        cdef Reactor reactor = self.reactor
        cdef int failure
        KAFKAD_CHECK(self.link.fd < 0)
        if tls is not None and not tls.is_open():
            raise ValueError("the handshake of this connection has not ended, or it is closed")
        if self.buffer is NULL:
            self.buffer = <uint8_t*>malloc(BUFFER_BYTES)
            if self.buffer is NULL:
                raise MemoryError()
            self.capacity_bytes = BUFFER_BYTES
        self.link.ready = link_ready
        self.link.owner = <void*>self
        failure = outgoing_open(&self.link, reactor.core, fd, NULL if tls is None else tls.release())
        if failure != 0:
            raise OSError(-failure, os.strerror(-failure))
        reactor.hold(self)
        self.broker_epoch = broker_epoch
        self.begin = self.end = 0
        self.place = FRAME
        self.frame_left = 0
        self.current = NULL
        self.sent_ms = 0
        self.paused = False
        self.empty_streak = 0
        self.begin_session()
        self.go()

    def detach(self, reason):
        """Close the connection, if there is one, and call `sink.lost(reason)`."""
        if self.link.fd >= 0:
            self.lose(reason)
            self.deliver()

    cdef void begin_session(self) noexcept nogil:
        cdef int32_t i
        self.session_id = 0
        self.session_epoch = 0
        for i in range(self.count):
            self.followed[i].in_session = False
            self.followed[i].asked_offset = -1

    cdef void lose(self, object reason) noexcept:
        timer_stop(self.link.core, &self.later.timer)
        outgoing_close(&self.link)
        self.current = NULL
        self.sent_ms = 0
        if not self.reading:
            self.drop_large_buffer()
        self.events.append(("lost", (reason,)))

    cdef void drop_large_buffer(self) noexcept nogil:
        if self.capacity_bytes > BUFFER_BYTES:
            free(self.buffer)
            self.buffer = NULL
            self.capacity_bytes = 0

    cdef void deliver(self) noexcept:
        try:
            while self.events:
                events, self.events = self.events, []
                for name, arguments in events:
                    getattr(self.sink, name)(*arguments)
        except BaseException:
            core_fatal((<Reactor>self.reactor).core)

    def go(self):
        """Send the next request, unless one is not answered yet or there is nothing to fetch."""
        self.paused = False
        if self.link.fd >= 0 and self.sent_ms == 0:
            if not self.send_request():
                self.deliver()

    # -- the request -----------------------------------------------------------------------------------------

    cdef bint send_request(self) noexcept:
        # Returns False if `events` must be delivered.
        cdef int failure
        try:
            if self.build() == 0:
                if self.held:
                    self.events.append(("throttled", ()))
                return self.held == 0
        except MemoryError:
            self.lose("no memory for a request")
            return False
        self.sent_ms = (<Reactor>self.reactor).core.monotonic_ms
        self.requests += 1
        failure = outgoing_send(&self.link, self.request.data, self.request.size)
        if failure != 0:
            self.lose(os.strerror(-failure))
            return False
        return True

    cdef void hold_back(self) noexcept nogil:
        # While the quota is exceeded, throttled partitions that are not in sync are not fetched
        # (ReplicaFetcherThread.shouldFollowerThrottle).
        cdef Followed* followed
        cdef int32_t i
        cdef bint exceeded = self.quota.exceeded(FOLLOWER_SIDE, self.link.core.monotonic_ms), held
        if not exceeded and self.held == 0:
            return
        self.held = 0
        for i in range(self.count):
            followed = self.followed[i]
            held = exceeded and followed.state == FETCHING and followed.lag != 0 and (
                (<Partition>followed.partition).throttled & (1 << FOLLOWER_SIDE)) != 0
            if held != followed.held:
                followed.held = held
                self.list_changed(followed)
            self.held += held

    cdef int build(self) except -1:
        # Returns 1 with the next request in `request`, or 0 if there is nothing to fetch.
        cdef WriteBuffer* out = &self.request
        cdef Followed* followed
        cdef int32_t i, kept = 0
        cdef bint any_fetched = False
        if self.quota is not None:
            self.hold_back()
        for i in range(self.count):
            if is_asked(self.followed[i]):
                any_fetched = True
                break
        if not any_fetched and not self.forgotten and not self.leaves_session():
            return 0
        self.full = self.session_id == 0
        if self.full:
            if not any_fetched:
                return 0
            self.session_epoch = 0
            self.forgotten.clear()
            self.changed_count = 0
            for i in range(self.count):
                self.followed[i].in_session = False
                self.followed[i].listed = False
                if is_asked(self.followed[i]):
                    self.list_changed(self.followed[i])
        for i in range(self.changed_count):
            followed = self.changed[i]
            if is_asked(followed):
                self.changed[kept] = followed
                kept += 1
            else:
                followed.listed = False
                if followed.in_session:
                    followed.in_session = False
                    self.forgotten[PyBytes_FromStringAndSize(<char*>followed.topic_id, 16), followed.index] = True
        self.changed_count = kept
        self.correlation = (self.correlation + 1) & INT32_MAX
        out.size = 0
        write_i32(out, 0)
        write_i16(out, FETCH_KEY)
        write_i16(out, self.version)
        write_i32(out, self.correlation)
        write_i16(out, <int16_t>len(self.client_id))
        write_raw(out, PyBytes_AS_STRING(self.client_id), len(self.client_id))
        write_i8(out, 0)                                # header tags
        if self.version < 15:
            write_i32(out, self.broker_id)
        write_i32(out, min(self.max_wait_ms, <int32_t>TRUNCATING_WAIT_MS) if self.truncating else self.max_wait_ms)
        write_i32(out, self.min_bytes)
        write_i32(out, self.max_bytes)
        write_i8(out, 0)                                # isolation level
        write_i32(out, self.session_id)
        write_i32(out, self.session_epoch)
        followed_write(self.changed, kept, self.partition_bytes, out)
        self.changed_count = 0
        forgotten_write(self.forgotten, out)
        write_uvarint(out, 1)                           # rack: ""
        if self.version < 15:
            write_i8(out, 0)
        else:
            write_uvarint(out, 1)                       # tags: replica_state
            write_uvarint(out, 1)
            write_uvarint(out, 13)
            write_i32(out, self.broker_id)
            write_i64(out, self.broker_epoch)
            write_i8(out, 0)
        put_i32(out.data, <int32_t>(out.size - 4))
        return 1

    cdef bint leaves_session(self) noexcept:
        cdef int32_t i
        for i in range(self.changed_count):
            if self.changed[i].in_session and self.session_id:
                return True
        return False

    # -- the answer ------------------------------------------------------------------------------------------

    cdef void read_on(self) noexcept nogil:
        cdef int64_t n
        if self.later.timer.place >= 0:                 # what was read before is not parsed yet
            return
        if self.make_room(HEAD_BYTES_MAX) != 0:
            with gil:
                self.lose("no memory for an answer")
                self.deliver()
            return
        n = outgoing_read(&self.link, self.buffer + self.end, self.capacity_bytes - self.end)
        if n == 0:
            return
        if n < 0:
            with gil:
                self.lose(outgoing_reason(&self.link, <int>-n))
                self.deliver()
            return
        self.end += n
        self.bytes_read += n
        self.parse_on()

    cdef void parse_on(self) noexcept nogil:
        cdef int64_t began_us = clock_us()
        cdef int state = 1
        self.trouble = NULL
        self.reading = True
        while state > 0 and self.link.fd >= 0:
            if self.called:
                self.called = False
                if clock_us() - began_us > TURN_US:
                    timer_start(self.link.core, &self.later.timer, self.link.core.monotonic_ms + 1, its_turn)
                    break
            state = self.parse()
        self.reading = False
        if self.link.fd < 0:                            # a callback has closed it
            self.drop_large_buffer()
        elif state < 0:
            with gil:
                self.lose(self.trouble.decode() if self.trouble is not NULL else "its answer does not parse")
        if self.begin == self.end:
            self.begin = self.end = 0
        with gil:
            if self.removed:
                self.removed.clear()
            if self.events:
                self.deliver()

    cdef int make_room(self, size_t wanted) noexcept nogil:
        # Makes room for `wanted` bytes from `begin` on, and for at least one more byte. Returns 0, or -1 without memory.
        cdef uint8_t* more
        cdef size_t capacity
        if wanted > self.capacity_bytes:
            capacity = wanted + (64 << 10)
            more = <uint8_t*>malloc(capacity)
            if more == NULL:
                return -1
            memcpy(more, self.buffer + self.begin, self.end - self.begin)
            free(self.buffer)
            self.buffer = more
            self.capacity_bytes = capacity
            self.end -= self.begin
            self.begin = 0
        elif self.capacity_bytes - self.begin < wanted or self.end == self.capacity_bytes:
            memmove(self.buffer, self.buffer + self.begin, self.end - self.begin)
            self.end -= self.begin
            self.begin = 0
        return 0 if self.end < self.capacity_bytes else -1

    cdef int parse(self) noexcept nogil:
        # One step. Returns 1, 0 if more bytes are needed, or -1 if the answer is refused (`trouble`).
        cdef Cursor c
        cdef const uint8_t* at = self.buffer + self.begin
        cdef int64_t there = self.end - self.begin, size
        cdef uint32_t tag, n
        cdef const uint8_t* raw
        if self.place == FRAME:
            if there == 0:
                return 0
            if self.sent_ms == 0:
                self.trouble = b"it sends an answer without a request"
                return -1
            if self.link.out_sent < self.link.out_size:
                self.trouble = b"it answers a request before it has the whole of it"
                return -1
            if there < 4:
                return 0
            size = get_i32(at)
            if size < 4 or size > self.answer_bytes_max:
                self.trouble = b"its answer has a size out of bounds"
                return -1
            cursor_init(&c, at + 4, min(there - 4, size))
            if read_i32(&c) != self.correlation and not c.failed:
                self.trouble = b"its answer has a wrong correlation id"
                return -1
            if read_uvarint(&c) != 0 and not c.failed:
                self.trouble = b"its answer has tags in the header"
                return -1
            read_i32(&c)                                # throttle time
            self.answer_code = read_i16(&c)
            tag = <uint32_t>read_i32(&c)
            n = read_uvarint(&c)
            if c.failed:
                if there - 4 < min(size, <int64_t>HEAD_BYTES_MAX):
                    return 0
                self.trouble = b"its answer does not parse"
                return -1
            if n == 0 or n > <uint32_t>INT32_MAX:
                self.trouble = b"its answer has no list of topics"
                return -1
            self.topics_left = <int32_t>(n - 1)
            self.frame_left = size - (c.at - (at + 4))
            self.begin += c.at - at
            self.moved = False
            if self.answer_code == 0:
                self.session_id = <int32_t>tag
            self.place = TOPICS
            return 1
        if there > self.frame_left:
            there = self.frame_left
        cursor_init(&c, at, there)
        if self.place == TOPICS:
            if self.topics_left == 0:
                self.in_partition = False
                self.place = TAGS
                self.after_tags = FRAME
            else:
                self.topics_left -= 1
                self.place = TOPIC
            return 1
        if self.place == TOPIC:
            raw = read_raw(&c, 16)
            n = read_uvarint(&c)
            if c.failed:
                return self.short_of(there)
            if n == 0 or n > <uint32_t>INT32_MAX:
                self.trouble = b"its answer has no list of partitions"
                return -1
            memcpy(self.topic_id, raw, 16)
            self.partitions_left = <int32_t>(n - 1)
            self.take(&c, at)
            self.next_partition()
            return 1
        if self.place == PARTITION:
            self.index = read_i32(&c)
            self.code = read_i16(&c)
            self.high_watermark = read_i64(&c)
            read_i64(&c)
            self.log_start = read_i64(&c)
            n = read_uvarint(&c)
            if c.failed:
                return self.short_of(there)
            if n > <uint32_t>INT32_MAX:
                self.trouble = b"its answer has too many aborted transactions"
                return -1
            self.aborted_left = <int32_t>(n - 1) if n else 0
            self.take(&c, at)
            self.diverging_epoch = -1
            self.diverging_end = -1
            self.gone_on = 0
            self.current = self.find(self.topic_id, self.index)
            if self.current is not NULL and (
                    self.current.state != FETCHING or self.current.asked_epoch != self.current.leader_epoch
                    or self.current.asked_offset != (<Partition>self.current.partition).row.log_end_offset):
                self.current = NULL                     # asked before it was added, cut or stopped
            self.place = ABORTED
            return 1
        if self.place == ABORTED:
            if self.aborted_left == 0:
                self.place = RECORDS_SIZE
                return 1
            read_raw(&c, 16)
            n = read_uvarint(&c)
            if c.failed:
                return self.short_of(there)
            if n != 0:
                self.trouble = b"its aborted transactions have tags"
                return -1
            self.take(&c, at)
            self.aborted_left -= 1
            return 1
        if self.place == RECORDS_SIZE:
            read_i32(&c)                                # preferred read replica
            n = read_uvarint(&c)
            if c.failed:
                return self.short_of(there)
            self.take(&c, at)
            self.records_left = <int64_t>n - 1 if n else 0
            if self.records_left > self.frame_left:
                self.trouble = b"its records are larger than its answer"
                return -1
            self.place = RECORDS
            return 1
        if self.place == RECORDS:
            return self.records()
        if self.place == TAGS:
            n = read_uvarint(&c)
            if c.failed:
                return self.short_of(there)
            self.take(&c, at)
            self.tags_left = n
            self.place = TAG
            return 1
        if self.place == TAG:
            if self.tags_left == 0:
                return self.tags_over()
            tag = read_uvarint(&c)
            n = read_uvarint(&c)
            if c.failed:
                return self.short_of(there)
            self.take(&c, at)
            if <int64_t>n > self.frame_left:
                self.trouble = b"a tag is larger than its answer"
                return -1
            self.tags_left -= 1
            self.skip_left = n
            self.after_skip = TAG
            self.place = SKIP
            if self.in_partition and tag == 0 and 12 <= n <= HEAD_BYTES_MAX:
                self.place = DIVERGING
            return 1
        if self.place == DIVERGING:
            if there < self.skip_left:
                return self.short_of(there)
            self.diverging_epoch = read_i32(&c)
            self.diverging_end = read_i64(&c)
            self.place = SKIP
            return 1
        KAFKAD_CHECK(self.place == SKIP)
        size = min(there, self.skip_left)
        self.skip_left -= size
        self.begin += size
        self.frame_left -= size
        if self.skip_left == 0:
            self.place = self.after_skip
            return 1
        return 0 if self.frame_left else -1

    cdef int short_of(self, int64_t there) noexcept nogil:
        # A head is incomplete. Returns 0 if the rest may come, otherwise -1.
        if there >= HEAD_BYTES_MAX or there == self.frame_left:
            self.trouble = b"its answer ends in the middle, or does not parse"
            return -1
        return 0

    cdef void take(self, Cursor* c, const uint8_t* at) noexcept nogil:
        self.begin += c.at - at
        self.frame_left -= c.at - at

    cdef void next_partition(self) noexcept nogil:
        if self.partitions_left:
            self.partitions_left -= 1
            self.place = PARTITION
        else:
            self.in_partition = False
            self.place = TAGS
            self.after_tags = TOPICS

    cdef int tags_over(self) noexcept nogil:
        if self.in_partition:
            self.in_partition = False
            self.partition_over()
            self.next_partition()
            return 1
        self.place = self.after_tags
        if self.after_tags == FRAME:
            if self.frame_left != 0:
                self.trouble = b"its answer has bytes behind its end"
                return -1
            return self.answer_over()
        return 1

    # -- records ---------------------------------------------------------------------------------------------

    cdef int records(self) noexcept nogil:
        cdef int64_t there = min(<int64_t>(self.end - self.begin), self.records_left)
        cdef RunInfo run
        cdef int code
        if self.records_left == 0:
            self.records_over()
            return 1
        if self.current is NULL or self.code != 0:
            return self.skip_records()
        if there < BATCH_HEAD:
            return 0 if there < self.records_left else self.skip_records()
        run.fetch_epoch = self.current.asked_epoch
        run.high_watermark = self.high_watermark
        code = (<Partition>self.current.partition).append_run(
            self.buffer + self.begin, there, self.link.core.now_ms, &run)
        if run.taken:
            self.moved = True
            self.batches_bytes += run.taken
            self.gone_on = 0
            self.begin += run.taken
            self.frame_left -= run.taken
            self.records_left -= run.taken
        if self.current is NULL:                        # a callback of the log has removed it
            return self.skip_records()
        if run.taken:
            if self.quota is not None and (<Partition>self.current.partition).throttled & (1 << FOLLOWER_SIDE):
                self.quota.count(FOLLOWER_SIDE, run.taken, self.link.core.monotonic_ms)
            self.list_changed(self.current)
        if code == 0:
            if self.records_left == 0:
                return 1
            if run.needed > self.records_left or (run.needed == 0 and self.records_left < BATCH_HEAD):
                return self.skip_records()              # the last batch is cut (KIP-74); the next answer has all of it
            if run.needed > self.batch_bytes_max:
                self.note(self.current, FAILED, 0, b"a batch is larger than socket.request.max.bytes")
                return self.skip_records()
            if run.needed > there and self.make_room(run.needed) != 0:
                self.note(self.current, DELAYED, 0, b"no memory for a batch")
                return self.skip_records()
            return 0
        if code == NEED_PYTHON:
            self.gone_on += 1
            self.called = True
            with gil:
                if self.gone_on <= GOES_ON_MAX and self.go_on(run.base_offset, run.epoch):
                    return 1
            if self.current is not NULL and self.current.state == FETCHING:
                self.note(self.current, DELAYED, 0, b"its log does not continue")
        elif code == RUN_OVERLAPS:
            self.gone_on += 1
            with gil:
                if self.gone_on == 1 and self.overlap(run.base_offset, run.last_offset):
                    return 1
            if self.current is not NULL and self.current.state == FETCHING:
                self.note(self.current, FAILED, 0, b"a batch begins below the end of the log")
        elif code == CORRUPT_MESSAGE:
            self.note(self.current, DELAYED, code, b"the leader sent a damaged batch")
        elif code != RUN_NEWER:
            self.note(self.current, DELAYED, code, b"writing the log failed")
        return self.skip_records()

    cdef int skip_records(self) noexcept nogil:
        # Ignores the rest of this partition's records.
        self.skip_left = self.records_left
        self.records_left = 0
        self.after_skip = RECORDS
        self.place = SKIP
        return 1

    cdef void records_over(self) noexcept nogil:
        self.in_partition = True
        self.place = TAGS

    cdef void partition_over(self) noexcept nogil:
        cdef Followed* followed = self.current
        if followed is not NULL and followed.state == FETCHING:
            self.marks_over(followed)
        self.current = NULL

    cdef void marks_over(self, Followed* followed) noexcept nogil:
        cdef Row* row
        if self.code != 0:
            self.note(followed, DELAYED, self.code, NULL)
            return
        if self.diverging_epoch != -1 or self.diverging_end != -1:
            self.enter(followed, TRUNCATING)
            self.list_changed(followed)
            with gil:
                self.events.append(("diverged", (PyBytes_FromStringAndSize(<char*>followed.topic_id, 16), followed.index,
                                                 followed.leader_epoch, self.diverging_epoch, self.diverging_end)))
            return
        row = (<Partition>followed.partition).row
        if self.high_watermark > row.high_watermark < row.log_end_offset:
            self.moved = True
        followed.lag = max(self.high_watermark - row.log_end_offset, 0)
        if (<Partition>followed.partition).follow_marks(self.high_watermark, self.log_start):
            self.moved = True
            if self.current is not NULL:
                with gil:
                    self.raise_log_start()
            if self.current is not NULL:
                self.list_changed(followed)

    cdef void note(self, Followed* followed, uint8_t state, int code, const char* why) noexcept nogil:
        # The partition stops; `sink` decides for how long.
        self.enter(followed, state)
        self.list_changed(followed)
        with gil:
            topic_id = PyBytes_FromStringAndSize(<char*>followed.topic_id, 16)
            if why is NULL:
                self.events.append(("error", (topic_id, followed.index, followed.leader_epoch, code)))
            else:
                self.events.append(("trouble", (topic_id, followed.index, followed.leader_epoch, state == FAILED,
                                                why.decode())))

    cdef bint go_on(self, int64_t base, int32_t epoch) noexcept:
        try:
            self.sink.go_on((<Partition>self.current.partition).log, base, epoch, self.link.core.now_ms)
            return self.current is not NULL
        except Exception as e:
            self.note_refused(e)
            return False

    cdef bint overlap(self, int64_t base, int64_t last) noexcept:
        try:
            return self.sink.overlap((<Partition>self.current.partition).log, base, last) and self.current is not NULL
        except Exception as e:
            self.note_refused(e)
            return False

    cdef void raise_log_start(self) noexcept:
        try:
            (<Partition>self.current.partition).log.advance_log_start(self.log_start)
        except Exception as e:
            self.note_refused(e)

    cdef void note_refused(self, object error) noexcept:
        # `current` is NULL if the failed call has removed or stopped it.
        cdef Followed* followed = self.current
        if followed is not NULL:
            self.enter(followed, DELAYED)
            self.list_changed(followed)
            topic_id = PyBytes_FromStringAndSize(<char*>followed.topic_id, 16)
            self.events.append(("refused", (topic_id, followed.index, followed.leader_epoch, error)))

    cdef int answer_over(self) noexcept nogil:
        cdef int64_t now = self.link.core.monotonic_ms
        cdef uint8_t* fresh
        self.place = FRAME
        self.sent_ms = 0
        self.answers += 1
        if self.answer_code in (FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH, FETCH_SESSION_TOPIC_ID_ERROR):
            self.begin_session()
            self.moved = False
        elif self.answer_code != 0:
            with gil:
                self.events.append(("answered", (self.answer_code,)))
            self.trouble = b"it refuses the whole Fetch"
            return -1
        elif self.session_id:
            self.session_epoch = self.session_epoch + 1 if self.session_epoch < INT32_MAX else 1
        if self.capacity_bytes > SHRINK_ABOVE and self.end - self.begin < BUFFER_BYTES:
            fresh = <uint8_t*>malloc(BUFFER_BYTES)
            if fresh is not NULL:
                memcpy(fresh, self.buffer + self.begin, self.end - self.begin)
                free(self.buffer)
                self.buffer = fresh
                self.capacity_bytes = BUFFER_BYTES
                self.end -= self.begin
                self.begin = 0
        if self.moved:
            self.empty_streak = 0
        elif self.empty_streak == 0 or now - self.streak_ms > EMPTY_MS:
            self.empty_streak = 1
            self.streak_ms = now
        else:
            self.empty_streak += 1
        if self.empty_streak > EMPTY_ANSWERS:           # the leader does not wait for data, so we do
            self.empty_streak = 0
            self.paused = True
            with gil:
                self.events.append(("paused", ()))
        with gil:
            self.deliver_and_fetch()
        return 1 if self.link.fd >= 0 else 0

    cdef void deliver_and_fetch(self) noexcept:
        # Events first: `sink` may resume a partition at once, and the next request then names it.
        if self.events:
            self.deliver()
        if self.link.fd >= 0 and self.sent_ms == 0 and not self.paused:
            self.send_request()

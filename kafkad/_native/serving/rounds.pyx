"""Rounds: the repeated work of the reactor.

    epoll_wait → accept | read, cut frames, serve → advanced partitions answer their waiters → deadlines → send
               → TLS handshakes

`run_rounds` is for a loop that sleeps elsewhere: rounds until nothing is ready or the time is up. `run_until_called` is
the sleep of our own event loop: rounds, and sleep between them, until asyncio has something to do.

With several workers, mail is read at the start of a round, and doorbells are rung at its end. Answers that precede
those of other workers are sent late, and a busy worker lets other processes run before it sleeps.

Idle connections are in a list ordered by their last activity, a read or a send. If memory is short, a connection that
holds some and moves no bytes is closed (relieve_shortage)."""

from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint32_t, uint64_t

from kafkad._native.serving.acceptor cimport Listener, accept_some, obey_lowered, take_some
from kafkad._native.serving.buffers cimport buffers_trim
from kafkad._native.log.cold_reads cimport cold_settle
from kafkad._native.serving.connection cimport (
    BLOCKED_SOCKET, Conn, Core, KIND_COMMIT, KIND_CONNECTION, KIND_HANDOVER, KIND_LISTENER, KIND_LOOP, KIND_OUTGOING,
    KIND_TIMER, KIND_WAKE, PHASE_READY, Slot, conn_close, conn_reap, conn_run, conn_touch, clock_us, core_fatal,
    core_read_clocks, core_wake)
from kafkad._native.serving.sending cimport copies_forget
from kafkad._native.serving.fetch cimport fetch_advanced, fetch_drop_orphans, fetch_settle
from kafkad._native.serving.produce_forwarding cimport forward_mail, forwarding_peer_lost
from kafkad._native.log.group_commit cimport GroupCommit, commit_turn
from kafkad._native.shared.mailbox cimport Mail, mail_awake, mail_done, mail_lost, mail_peek, mail_ring, mail_sleep
from kafkad._native.serving.outgoing cimport Outgoing, outgoing_event
from kafkad._native.serving.partition_table cimport Entry, Table
from kafkad._native.serving.produce_answers cimport produce_advanced
from kafkad._native.serving.timers cimport timers_expire
from kafkad._native.serving.tls cimport TLS_SHAKING, Tls
from kafkad._native.serving.tls_handshakes cimport shake_some
from kafkad._native.wire.down_conversion cimport give_back_spare_blocks
from kafkad._native.wire.primitives cimport KAFKAD_CHECK
from kafkad._native.serving.connection_turns cimport CALLS_US_MAX, ConnectionTurns, feed_starved, flush_late, serve

cdef extern from "sockets.h" nogil:
    void kafkad_arm(int timer_fd, int64_t deadline_ms)

cdef extern from * nogil:
    """
    #include <malloc.h>
    #include <sched.h>
    #include <sys/epoll.h>
    #include <unistd.h>
    """
    Py_ssize_t Py_SIZE(PyObject* object)
    struct epoll_data_t:
        void* ptr
    struct epoll_event:
        uint32_t events
        epoll_data_t data
    int EPOLLIN, EPOLLOUT, EPOLLRDHUP, EPOLLHUP, EPOLLERR
    int sched_yield()
    int malloc_trim(size_t pad)
    int epoll_wait(int epoll_fd, epoll_event* events, int count, int timeout_ms)
    ssize_t read(int fd, void* data, size_t size)

cdef enum:
    EVENTS = 256
    ROUNDS = 64                         # in one poll
    POLL_MS = 5                         # time of one poll, after which asyncio gets its turn
    BUSY = 16                           # requests and messages since the last sleep: above this, let other processes run
    FEW = 4                             # this many in a round: nobody sends much
    UNPACK_NS = 4_000_000               # how long a round may decompress batches itself; threads do the rest
    LATE_ROUNDS = 3                     # how many rounds answers wait for those of other workers
    MAILS_PER_ROUND = 256
    PAUSE_MS = 100                      # how often to check whether other workers have closed connections
    TRIM_PAD = 1024 * 1024
    TRIM_PAUSE_MS = 1000                # the heap is trimmed at most this often
    SHORTAGE_MS_MAX = 10_000            # after this time of a shortage, the connection that holds most memory is closed
    STRANGERS_PART = 8                  # of the memory of requests that those without a login may hold in a shortage
    STRANGERS_A_ROUND = 64              # of their connections that are closed
    TRIM_AFTER_MS = 2000                # pooled buffers are freed after this time without a poll


cdef class Rounds(ConnectionTurns):
    """What a round needs: the base class of the Reactor."""


cdef int one_round(Rounds rounds, int timeout_ms, int* mails) noexcept nogil:
    """Wait up to `timeout_ms` for events, and handle them and other workers' mail. Return the number of events."""
    cdef Core* core = rounds.core
    cdef epoll_event events[EVENTS]
    cdef int count
    cdef uint64_t ignored
    cdef int kind
    cdef Conn* conn
    cdef Conn* last
    cdef Conn* shaking_first = NULL                     # their TLS handshakes come last
    cdef Conn* shaking_last = NULL
    core.stats.rounds += 1
    count = epoll_wait(core.epoll_fd, events, EVENTS, timeout_ms)
    if count < 0:
        rounds.called = True                           # EINTR: a signal, with a handler in Python
    if rounds.asleep:
        rounds.asleep = False
        mail_awake(rounds.mailboxes)
    core_read_clocks(core)
    rounds.producing.unpack_ns = UNPACK_NS
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
                conn_close(conn, NULL)                  # nobody waits for the data
                continue
            conn_run(conn)
        elif kind == KIND_LISTENER:
            accept_some(rounds.acceptor, <Listener*>events[i].data.ptr)
        elif kind == KIND_HANDOVER:
            take_some(rounds.acceptor)
        elif kind == KIND_COMMIT:
            with gil:
                publish_commits(rounds, (<Commits*>events[i].data.ptr).group)
        elif kind == KIND_OUTGOING:
            outgoing_event(<Outgoing*>events[i].data.ptr, events[i].events)
        elif kind == KIND_LOOP:
            rounds.called = True
            rounds.loop_ready = True
        elif kind == KIND_WAKE:
            read(core.wake_fd, &ignored, 8)
            core.woken = False
            cold_settle(&core.cold)
            if rounds.unpacker.waiting:
                with gil:
                    settle_unpacked(rounds)
        elif kind == KIND_TIMER:
            read(core.timer_fd, &ignored, 8)
            core.timer_armed_ms = 0
            rounds.called = True                       # paused listeners are checked there
    mails[0] = drain_mail(rounds) if rounds.has_mail else 0
    last = core.run_last                                # connections queued again get their turn in the next round
    while core.run_first is not NULL:
        conn = core.run_first
        core.run_first = conn.run_next
        if core.run_first is NULL:
            core.run_last = NULL
        if conn.tls is not NULL and (<Tls*>conn.tls).state == TLS_SHAKING and not conn.closed:
            conn.run_next = NULL
            if shaking_first is NULL:
                shaking_first = conn
            else:
                shaking_last.run_next = conn
            shaking_last = conn
        else:
            conn.queued = False
            if not conn.closed:
                serve(rounds, conn)
        if conn is last:
            break
    if core.copied_count:
        copies_forget(core)
    commit_turn(True)
    answer_waiters(rounds)
    timers_expire(core)
    if core.starved_first is not NULL:
        feed_starved(core)
    if rounds.has_mail:
        mail_ring(rounds.mailboxes)
    rounds.late_rounds = rounds.late_rounds + 1 if core.late_first is not NULL else 0
    if rounds.late_rounds >= LATE_ROUNDS or (shaking_first is not NULL and core.late_first is not NULL):
        flush_late(core)
    if shaking_first is not NULL:
        shake_some(core, shaking_first, shaking_last)
    conn_reap(core)
    return count


cdef void settle_unpacked(Rounds rounds) noexcept:
    try:
        rounds.unpacker.settle()
    except BaseException:
        core_fatal(rounds.core)


cdef void publish_commits(Rounds rounds, PyObject* group) noexcept:
    try:
        (<GroupCommit>group).publish()
    except BaseException:
        core_fatal(rounds.core)


cdef bint long_polls(Conn* conn) noexcept nogil:
    cdef Slot* slot = conn.first
    while slot is not NULL:
        if not slot.ready and slot.cancel is not NULL and not slot.overtakable:
            return True
        slot = slot.next
    return False


cdef void answer_waiters(Rounds rounds) noexcept nogil:
    """Answer the waiters of all partitions that advanced since the last call, each partition once."""
    cdef Table* table = &rounds.table.table
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
            produce_advanced(rounds.producing, entry, why)
        if entry.fetches is not NULL:
            fetch_advanced(rounds.fetching, entry, why)
        if entry.removed:
            KAFKAD_CHECK(entry.produces is NULL)
            entry.pending_next = table.graveyard
            table.graveyard = entry
        entry = following
    fetch_settle(rounds.fetching)

# -- other workers ------------------------------------------------------------------------------------------

cdef int drain_mail(Rounds rounds) noexcept nogil:
    """Handle messages of the other workers. Return how many."""
    cdef int count = 0, sender = -1
    cdef int64_t slow = rounds.core.stats.python_appends
    cdef const Mail* mail
    note_lost(rounds)
    while count < MAILS_PER_ROUND:
        mail = mail_peek(rounds.mailboxes, &sender)
        if mail is NULL:
            break
        forward_mail(rounds.forwarding, sender, mail)
        mail_done(rounds.mailboxes)
        count += 1
        if rounds.core.stats.python_appends != slow:
            slow = rounds.core.stats.python_appends
            if clock_us() - rounds.core.awake_us > CALLS_US_MAX:
                break                                   # the connections come first
    return count


cdef void note_lost(Rounds rounds) noexcept nogil:
    """Give up what was in flight to peers that died and came back."""
    cdef int peer = mail_lost(rounds.mailboxes)
    while peer >= 0:
        forwarding_peer_lost(rounds.forwarding, peer)
        peer = mail_lost(rounds.mailboxes)

# -- rounds until something is to be done elsewhere ---------------------------------------------------------

cdef void run_rounds(Rounds rounds) noexcept nogil:
    """Run rounds without sleeping, until nothing is ready or the time is up."""
    cdef Core* core = rounds.core
    cdef int count
    cdef int64_t began
    cdef int mails = 0
    cdef int64_t served = work_done(rounds)
    cdef bint asleep = False
    core_read_clocks(core)
    began = core.monotonic_ms
    if rounds.has_mail:
        mail_awake(rounds.mailboxes)
    commit_turn(True)
    for _ in range(ROUNDS):
        count = one_round(rounds, 0, &mails)
        if count <= 0 and mails == 0 and not has_more(rounds):
            if not rounds.has_mail:
                break
            if work_done(rounds) - served >= BUSY and core.monotonic_ms - began <= POLL_MS:
                served = work_done(rounds)             # let peers and clients run: what they send then needs no wake-up
                sched_yield()
                continue
            if core.late_first is not NULL:
                flush_late(core)
            if mail_sleep(rounds.mailboxes):
                asleep = True
                break
        if core.monotonic_ms - began > POLL_MS:
            break
    commit_turn(False)
    if core.late_first is not NULL:
        flush_late(core)
    if has_more(rounds):
        core_wake(core)
    elif rounds.has_mail and not asleep and not mail_sleep(rounds.mailboxes):
        core_wake(core)


cdef void run_until_called(Rounds rounds, int64_t wait_ms, PyObject* ready, PyObject* scheduled) noexcept nogil:
    """Run rounds, and sleep between them, until asyncio has something to do or `wait_ms` are over (-1: never)."""
    cdef Core* core = rounds.core
    cdef Py_ssize_t timers = Py_SIZE(scheduled)
    cdef int64_t deadline = 0, left
    cdef int64_t served = work_done(rounds)            # before the last yield or sleep
    cdef int64_t before = served                        # and before the last round
    cdef int mails = 0, count = 1
    cdef int timeout_ms
    core_read_clocks(core)
    if wait_ms > 0:
        deadline = core.monotonic_ms + wait_ms
    commit_turn(True)
    while True:
        timeout_ms = 0
        if core.woken or has_more(rounds) or wait_ms == 0:
            pass
        elif rounds.has_mail and work_done(rounds) - served >= BUSY:
            # Let peers and clients run: what they send then needs no wake-up.
            if count <= 0 and mails == 0:
                served = work_done(rounds)
                sched_yield()
        elif not rounds.has_mail or work_done(rounds) - before <= FEW or (count <= 0 and mails == 0):
            # With few requests at a time an extra check does not pay: the call that may sleep finds new events, too.
            if core.late_first is not NULL:
                flush_late(core)
            expire_idle(rounds)
            conn_reap(core)
            arm(rounds)
            commit_turn(True)                           # requested by a callback at the end of the round
            if rounds.called or Py_SIZE(ready) or not rounds.open:
                break                                   # or a connection was closed
            timeout_ms = -1
            if core.woken:                              # by expire_idle, which has more to do
                timeout_ms = 0
            elif deadline:
                left = deadline - core.monotonic_ms
                timeout_ms = <int>min(left, <int64_t>1 << 30)
                if left <= 0:
                    timeout_ms = 0
            if rounds.has_mail and timeout_ms:
                if not rounds.mailboxes.told and mail_sleep(rounds.mailboxes):
                    rounds.asleep = True
                    served = work_done(rounds)
                else:
                    timeout_ms = 0
        core.woken = False
        before = work_done(rounds)
        count = one_round(rounds, timeout_ms, &mails)
        if (rounds.called or Py_SIZE(ready) or Py_SIZE(scheduled) != timers or wait_ms == 0 or not rounds.open
                or (deadline and core.monotonic_ms >= deadline)):
            break
    commit_turn(False)
    if core.late_first is not NULL:
        flush_late(core)
    expire_idle(rounds)
    conn_reap(core)
    arm(rounds)


cdef inline bint has_more(Rounds rounds) noexcept nogil:
    return rounds.core.run_first is not NULL or rounds.table.table.pending is not NULL


cdef inline int64_t work_done(Rounds rounds) noexcept nogil:
    """Return how many requests were served in C and messages taken, since the start."""
    return (rounds.core.stats.requests[0] + rounds.core.stats.requests[1]
            + (rounds.mailboxes.mail_in if rounds.has_mail else 0))

# -- time and memory ----------------------------------------------------------------------------------------

cdef void arm(Rounds rounds) noexcept nogil:
    """Set the timer fd to the earliest deadline. If the deadline moves later, the timer fires early once."""
    cdef Core* core = rounds.core
    cdef int64_t deadline = next_deadline(rounds)
    if deadline == 0:
        return
    if core.timer_armed_ms == 0 or deadline < core.timer_armed_ms:
        core.timer_armed_ms = deadline
        kafkad_arm(core.timer_fd, deadline)


cdef int64_t next_deadline(Rounds rounds) noexcept nogil:
    """Return monotonic ms, or 0."""
    cdef Core* core = rounds.core
    cdef int64_t deadline = 0
    if core.heap_size:
        deadline = core.heap[0].deadline_ms
    if core.oldest is not NULL and rounds.idle_ms >= 0:
        if deadline == 0 or core.oldest.active_ms + rounds.idle_ms + 1 < deadline:
            deadline = core.oldest.active_ms + rounds.idle_ms + 1
    if rounds.acceptor.paused and (rounds.acceptor.hands_over or rounds.acceptor.retry_ms):
        if deadline == 0 or core.monotonic_ms + PAUSE_MS < deadline:
            deadline = core.monotonic_ms + PAUSE_MS
    if core.freed_bytes + rounds.fetching.freed >= TRIM_BYTES:
        if deadline == 0 or core.trimmed_ms + TRIM_PAUSE_MS < deadline:
            deadline = max(core.trimmed_ms + TRIM_PAUSE_MS, core.monotonic_ms + 1)
    if core.stats.pooled_bytes or core.starved_first is not NULL:
        if deadline == 0 or core.monotonic_ms + TRIM_AFTER_MS < deadline:
            deadline = core.monotonic_ms + TRIM_AFTER_MS
    if rounds.fetching.cache.orphans and (deadline == 0 or rounds.fetching.cache.look_ms < deadline):
        deadline = max(rounds.fetching.cache.look_ms, core.monotonic_ms + 1)
    return deadline


cdef void expire_idle(Rounds rounds) noexcept nogil:
    cdef Core* core = rounds.core
    cdef Conn* conn
    while core.oldest is not NULL and rounds.idle_ms >= 0 and (
            core.monotonic_ms - core.oldest.active_ms > rounds.idle_ms):
        if core.oldest.muted and not core.oldest.hung_up:
            conn_touch(core.oldest)                     # the pause keeps it idle, and its peer is connected
            continue
        core.stats.expired_idle += 1
        conn_close(core.oldest, "idle for connections.max.idle.ms")
    if rounds.acceptor.lowered:
        obey_lowered(rounds.acceptor)
    if rounds.fetching.cache.orphans and core.monotonic_ms >= rounds.fetching.cache.look_ms:
        fetch_drop_orphans(rounds.fetching)
    if core.freed_bytes + rounds.fetching.freed >= TRIM_BYTES and core.monotonic_ms - core.trimmed_ms >= TRIM_PAUSE_MS:
        core.freed_bytes = 0
        rounds.fetching.freed = 0
        core.trimmed_ms = core.monotonic_ms
        core.stats.trims += 1
        malloc_trim(TRIM_PAD)
        with gil:
            give_back_spare_blocks()
    if core.starved_first is NULL:
        core.starved_since_ms = 0
    if core.starved_first is not NULL:
        relieve_shortage(rounds)
    elif core.stats.pooled_bytes and core.stats.buffered_bytes == 0 and (
            core.newest is NULL or core.monotonic_ms - core.newest.active_ms >= TRIM_AFTER_MS):
        core.freed_bytes += core.stats.pooled_bytes     # if that is a lot, the heap is trimmed, too
        buffers_trim(core)


cdef void relieve_shortage(Rounds rounds) noexcept nogil:
    """Handle a shortage of memory. Connections that have not logged in have to do without it first. Then one that holds
    some and moves no bytes is closed. One that itself waits for memory cannot move any: it is closed if no other holds
    some. If all move bytes, and the shortage lasts, the one that holds most is closed."""
    cdef Core* core = rounds.core
    cdef Conn* conn = core.oldest
    cdef Conn* most = NULL
    cdef Conn* waiting = NULL
    cdef bint others_move = False
    if close_strangers(core):
        return
    while conn is not NULL and not (waiting is NULL and core.monotonic_ms - conn.active_ms <= rounds.stall_ms):
        if not conn.input_capacity and not conn.answer_bytes:
            pass
        elif core.monotonic_ms - conn.active_ms <= rounds.stall_ms:
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


cdef bint close_strangers(Core* core) noexcept nogil:
    """Close connections that hold much and have not logged in, if such connections hold more than their part of the
    memory: anyone can make them, and sending a byte now and then they would keep it from clients that have. Return
    whether any was closed."""
    cdef int64_t most = core.buffered_bytes_max // STRANGERS_PART
    cdef int64_t held = 0, count = 0, average
    cdef int closed = 0
    cdef Conn* conn = core.oldest
    cdef Conn* following
    while conn is not NULL:
        if conn.phase != PHASE_READY and conn.input_capacity:
            held += conn.input_capacity
            count += 1
        conn = conn.newer
    if held <= most:
        return False
    average = held // count
    conn = core.oldest
    while conn is not NULL and held > most and closed < STRANGERS_A_ROUND:
        following = conn.newer
        if conn.phase != PHASE_READY and conn.input_capacity and <int64_t>conn.input_capacity >= average:
            held -= conn.input_capacity
            closed += 1
            conn_close(conn, "an unfinished login holds memory that others wait for")
        conn = following
    core_wake(core)                                     # the starved may go on, and there may be more to close
    return True


cdef void close_holder(Conn* conn) noexcept nogil:
    conn_close(conn, "an unfinished request holds memory that others wait for" if conn.input_capacity else
               "answers that are not read hold memory that others wait for")

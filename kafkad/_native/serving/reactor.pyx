"""The reactor: sockets, frames and turns, in C.

asyncio sleeps in `wait` (server/event_loop.py): rounds, and sleep between them, until asyncio has something to do. Any
other loop watches `fileno()`, an epoll set, and calls `poll()`, which runs rounds until nothing is ready or its time is
up. The class has three layers, each a base class of the next:

    connection_turns   one connection's turn: read, cut frames, serve, send
    rounds             epoll, mail, turns, waiters, deadlines
    reactor            the Python interface: listeners, limits, the loop it joins, counters

Beware: a Python exception in a callback is never ignored: it goes to `on_fatal`, which ends the worker."""

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.errno cimport errno
from libc.math cimport ceil
from libc.stdint cimport int16_t, int32_t, int64_t
from libc.stdlib cimport calloc, free

from kafkad._native.serving.acceptor cimport Acceptor, acceptor_move, look_at_rest, resume_listeners
from kafkad._native.log.cold_reads cimport cold_hold
from kafkad._native.serving.connection cimport (
    API_KEYS, Conn, Core, KIND_COMMIT, KIND_LOOP, KIND_MAIL, PHASE_READY, conn_close, conn_handle, conn_reap,
    core_fatal, core_free, core_new, core_shut, core_wake)
from kafkad._native.serving.fetch cimport fetch_session_left
from kafkad._native.serving.follower_mail cimport FollowerMail
from kafkad._native.serving.fetch_state cimport Fetching, Result, expect_followers
from kafkad._native.serving.produce_forwarding cimport Forwarding, forwarding_peer_lost
from kafkad._native.log.group_commit cimport GroupCommit
from kafkad._native.shared.connection_handover cimport Handover
from kafkad._native.shared.mailbox cimport Mailboxes
from kafkad._native.shared.quota_table cimport QuotaTable
from kafkad._native.serving.partition_table cimport PartitionTable
from kafkad._native.serving.produce_state cimport Outcome, Part, Producing, TopicParts, Wait
from kafkad._native.serving.quota cimport ClientQuotaCounting
from kafkad._native.serving.tls cimport TlsContext
from kafkad._native.serving.unpacking cimport Unpacker
from kafkad._native.wire.primitives cimport KAFKAD_CHECK
from kafkad._native.serving.rounds cimport (
    TRIM_BYTES, Commits, Rounds, answer_waiters, arm, expire_idle, next_deadline, note_lost, run_rounds,
    run_until_called)

from kafkad._native.serving.connection import host_of

import errno as errors
import logging
import os

cdef extern from "sockets.h" nogil:
    int kafkad_epoll_doorbell(int epoll_fd, int fd, void* pointer)
    int kafkad_epoll_listen(int epoll_fd, int fd, void* pointer, int operation)

cdef extern from "<sys/epoll.h>" nogil:
    int EPOLL_CTL_ADD


cdef void wake_core(void* context) noexcept nogil:
    cdef Core* core = <Core*>context
    if not core.polling:
        core_wake(core)

cdef enum:
    FAILED_MS = 30_000


cdef class Reactor(Rounds):
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
        self.core.acceptor = <PyObject*>self.acceptor
        if handover is not None:
            self.core.move = acceptor_move
        self.commits = []
        self.outgoing = []
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
            self.fetching.followers = FollowerMail(partitions, mailboxes)
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

    def hand_over(self, takes, moving=None):
        """Offer Produces to `takes` before they are appended. See reactor.pyi. None: no more."""
        self.producing.hand_over = takes
        self.producing.hands_over = takes is not None
        self.producing.hands_over_all = moving is None
        for topic, index in self.producing.moving:
            self.table.mark_moving(topic, index, False)
        self.producing.moving = [] if moving is None else list(moving)
        for topic, index in self.producing.moving:
            self.table.mark_moving(topic, index, True)

    def authorize(self, authorizer not None):
        """Check Produce and Fetch against the rights from `authorizer` (security/authorizer)."""
        self.rights = TopicRights(self.table, authorizer)
        self.core.rights = <PyObject*>self.rights
        self.core.acl_version += 1
        self.core.authorizing = True

    def count_quotas(self, QuotaTable table not None, resolve not None):
        """Count how clients use their quotas. `resolve(kind, principal, client id)` -> (key, limit) or None."""
        self.counting = ClientQuotaCounting(table, resolve)

    def quotas_changed(self, int kinds):
        """Resolve the limits of each client again. `kinds`: bits of the kinds with quotas; 0 ends the counting."""
        self.counting.change(self.core, kinds)

    def limit_connection_rates(self, rates):
        """Ask `rates` (server/connection_rates) before a connection is accepted. None: no rate limits."""
        self.acceptor.limit_rates(rates)

    def acls_changed(self):
        """Check the rights again for later requests."""
        self.core.acl_version += 1

    # -- listeners and connections

    def add_listener(self, int fd, str name not None, *, int phase=PHASE_READY):
        self.acceptor.add(fd, name, phase)

    def secure(self, str name not None, TlsContext context):
        """Use TLS for later connections of this listener; existing ones keep their context."""
        self.acceptor.contexts[name] = context

    def protect_listener(self, str name):
        """max.connections does not hold for this listener, which is between brokers. None: it holds for all."""
        self.acceptor.protect(name)

    def remove_listener(self, int fd):
        """Stop accepting; the fd stays the caller's."""
        self.acceptor.remove(fd)

    def adopt(self, int fd, str listener not None, *, int phase=PHASE_READY):
        """Take over and serve a connected socket that something else accepted, with its fd."""
        return self.admitted(self.acceptor.adopt(fd, listener, phase))

    def attach(self, writer, str listener not None, *, peer=("", 0), int phase=PHASE_READY):
        """Make a connection without a socket: bytes come from `feed`, answers go to `writer(bytes)`, and `writer(None)`
        reports that it was closed."""
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
        """Called when a client's certificate (DER) has been verified. A ValueError closes the connection."""
        if self.on_certificate is not None:
            self.on_certificate(connection, certificate)

    def fatal(self, error):
        if self.on_fatal is None:
            self.log.critical("a callback of the reactor failed", exc_info=error)
            os.abort()
        self.on_fatal(error)

    def failed(self, error, what):
        """Log an exception that concerns one client, at most once in FAILED_MS: the client may repeat it."""
        if isinstance(error, AssertionError) or not isinstance(error, Exception):
            self.fatal(error)
        elif self.failed_ms == 0 or self.core.monotonic_ms - self.failed_ms >= FAILED_MS:
            self.failed_ms = self.core.monotonic_ms
            self.log.error("%s failed", what, exc_info=error)

    # -- turns

    def poll(self):
        """Serve what is ready. The event loop calls it when `fileno()` is readable."""
        if self.core.polling or not self.open:
            return
        self.table.bury()
        self.acceptor.free_retired()
        if self.outgoing:
            self.let_go()
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
        """Sleep for the event loop that `join_loop` named, and serve like `poll`, until its descriptor is readable
        (True); or `ready` is not empty, `scheduled` has grown, a signal came, or `timeout` seconds are over (None:
        never)."""
        cdef int64_t wait_ms = -1 if timeout is None else <int64_t>ceil(max(timeout, 0) * 1000)
        if self.core.polling or not self.open:
            raise ValueError("this reactor is closed, or in the middle of a poll")
        self.table.bury()
        self.acceptor.free_retired()
        if self.outgoing:
            self.let_go()
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
        """Serve an event loop that calls `wait` instead of sleeping; `fd` is readable if it has something to do."""
        self.loop_kind = KIND_LOOP
        if kafkad_epoll_listen(self.core.epoll_fd, fd, &self.loop_kind, EPOLL_CTL_ADD) != 0:
            raise OSError(errno, os.strerror(errno))
        self.core.waits = True

    def join_commits(self, GroupCommit group not None):
        """Publish the ended fdatasyncs of `group` here from now on, in the round that sees them."""
        cdef Commits* commits = <Commits*>calloc(1, sizeof(Commits))
        KAFKAD_CHECK(commits is not NULL)
        commits.kind = KIND_COMMIT
        commits.group = <PyObject*>group
        if kafkad_epoll_listen(self.core.epoll_fd, group.fileno(), commits, EPOLL_CTL_ADD) != 0:
            free(commits)
            raise OSError(errno, os.strerror(errno))
        self.commits.append((<size_t>commits, group))

    def next_deadline_ms(self):
        """Monotonic milliseconds of the next deadline, or None. For tests: the reactor has its own timer."""
        return next_deadline(self) or None

    def tick(self):
        """Check the deadlines now. For tests: `poll` does it, too."""
        self.poll()

    def now_ms(self):
        return self.core.now_ms

    def set_limits(self, *, connections_max=None, connections_max_per_ip=None, connections_max_per_ip_overrides=None,
                   connections_max_idle_ms=None, fetch_max_bytes=None):
        """Change dynamic configuration."""
        self.acceptor.limit(connections_max, connections_max_per_ip, connections_max_per_ip_overrides)
        if connections_max is not None:
            resume_listeners(self.acceptor)
            core_wake(self.core)
        if connections_max_idle_ms is not None:
            self.idle_ms = connections_max_idle_ms
        if fetch_max_bytes is not None:
            self.fetching.max_bytes = fetch_max_bytes

    def hold(self, owner):
        """Keep the owner of a connection that we opened (`owner.connected`) until it is closed and no event names
        it."""
        self.outgoing.append(owner)

    cdef void let_go(self) noexcept:
        try:
            if not all([owner.connected for owner in self.outgoing]):
                self.outgoing = [owner for owner in self.outgoing if owner.connected]
        except BaseException:
            core_fatal(self.core)

    def name_leader(self, int32_t broker_id, nodes):
        self.fetching.broker_id = broker_id
        self.fetching.nodes = dict(nodes)

    def name_leaders(self, nodes):
        """Set the leaders as answers name them: by (listener, broker id), the entry for their list of nodes
        (KIP-951)."""
        self.fetching.leader_nodes = dict(nodes)

    def ask_elsewhere(self, leader, name):
        self.fetching.elsewhere = leader
        self.fetching.name_elsewhere = name

    def throttle_replication(self, quota not None):
        self.fetching.replication = quota

    def know_racks(self, names, own):
        """Send consumers that name a rack to replicas there. `names`: of all brokers, by number from 1; `own`: ours, or None."""
        self.fetching.know_racks(names, own)

    def expect_followers(self):
        """Followers of a partition that is led from now on are to fetch it soon."""
        expect_followers(self.fetching)

    def trim_soon(self):
        """Return free heap memory to the system when convenient, at most once in TRIM_PAUSE_MS."""
        self.core.freed_bytes += TRIM_BYTES

    def stats(self):
        """Return counters since the start, and gauges, by name; `requests` by API key."""
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
        """For tests: if `held`, start no cold read until this is called with False."""
        cold_hold(&self.core.cold, held)

    def hold_unpacking(self, bint held):
        """For tests: see Unpacker.hold."""
        self.unpacker.hold(held)

    def peer_lost(self, int peer):
        """A worker has died: give up what it has not taken, which fails. No effect if it has restarted by now: its new
        life is noticed separately."""
        if self.has_mail and self.open:
            note_lost(self)
            if self.mailboxes.lose(peer):
                forwarding_peer_lost(self.forwarding, peer)
            core_wake(self.core)

    def connections(self):
        """Return (id, listener, peer host, peer port, idle ms, unanswered requests, kept input bytes) of each."""
        cdef Conn* conn = self.core.oldest
        rows = []
        while conn is not NULL:
            rows.append((conn.id, <object>conn.listener, host_of(PyBytes_FromStringAndSize(<char*>conn.peer, 16)),
                         conn.peer_port, self.core.monotonic_ms - conn.active_ms, conn.slot_count, conn.input_capacity))
            conn = conn.newer
        return rows

    def close(self):
        """Close every connection and the reactor's own fds (stop watching `fileno()` first). Listeners' fds stay their
        owner's. A call from a handler, during a poll, takes effect at the end of that poll."""
        if not self.open:
            return
        self.open = False
        self.acceptor.close()
        for owner in list(self.outgoing):
            owner.detach("the broker stops")
        while self.core.oldest is not NULL:
            conn_close(self.core.oldest, NULL)
        if not self.core.polling:
            self.finish()

    cdef void finish(self) noexcept:
        self.core.polling = True                        # nothing may be woken any more
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

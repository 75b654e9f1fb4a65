"""Client quotas in the data plane: produce and fetch byte rates, request time, and the resulting pauses.

    Core.quotas ── Quotas: the table that all workers share, and its resolver (server/client_quotas)
    Conn.quota ─── ConnQuota: the charge of each kind, for the client id of the last request
    Conn.pause ─── Pause: the timer of a muted connection

While no quota is set, `Core.quotas` is NULL, and a request costs one comparison. Otherwise the first request of a
connection asks Python for the bucket and the limit of its principal and client id. The result is used until a quota or
the client id changes.

**Produce** is charged its size when it is answered, also with acks=0. **Fetch** is charged the size of its answer. An
answer that would exceed the limit is not charged: it is sent without partitions, and its session stays unchanged, so
that the next answer has the data. `max.bytes` is limited to what a window allows. A batch above that could never pass:
it is sent once the window is less than half full, and its client then pauses until its rate is within the limit again.

**Request time** (request_percentage) is the CPU time of the worker's thread, as a percentage of one second. While such
a quota is set, each turn of a connection is timed: reading, serving, sending, and the handlers in Python. So is later
work for it: a Fetch that waited, and handlers that run in steps. Time is charged when an answer is made, which then
carries the pause, and at the end of the turn. Not counted: the work of another worker for a request, requests of
brokers, logins, and Produces with acks=0. As in Kafka, its pause is never longer than one window.

A **muted** connection is not read, and its kept bytes are not served, until its timer ends the pause. Earlier requests
are answered, and the answer with the length of the pause is sent at once (KIP-219). A disconnect of the peer is noticed
after the pause."""

from cpython.object cimport PyObject
from libc.stdint cimport INT32_MAX, int16_t, int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free

from kafkad._native.serving.connection cimport (
    Charge, Conn, Connection, Core, Slot, Timer, conn_handle, conn_run, conn_touch, core_failed, core_wake)
from kafkad._native.serving.timers cimport timer_start, timer_stop
from kafkad._native.shared.quota_table cimport QuotaTable, table_claim, table_holds, table_record, table_total
from kafkad._native.wire.primitives cimport KAFKAD_CHECK, put_i32

cdef extern from * nogil:
    """
    #include <time.h>
    static inline int64_t kafkad_thread_ns(void) {
        struct timespec now;
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
        return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
    }
    """
    int64_t kafkad_thread_ns()

cdef enum:
    SHARED_ROW_MS = 1000            # how often a client in the shared row looks for a row of its own
    SASL_HANDSHAKE = 17
    WRITE_TXN_MARKERS = 27
    SASL_AUTHENTICATE = 36

ANONYMOUS = "User:ANONYMOUS"

cdef struct ConnQuota:
    uint64_t version                # version of the quotas that these were resolved with
    uint64_t client                 # hash of the client id; a collision of a client's own ids gains it nothing
    bint exempt                     # nobody pays for the time of the current request
    int known                       # bits: kinds that were resolved
    Charge charges[QUOTA_KINDS]

cdef struct Pause:
    Timer timer                     # must be the first field
    Conn* conn


# -- who pays ----------------------------------------------------------------------------------------------

cdef inline uint64_t hash_of(const uint8_t* client, int16_t size) noexcept nogil:
    """Return an FNV-1a hash. A null client id counts as the empty one, as in Kafka."""
    cdef uint64_t value = <uint64_t>0xcbf29ce484222325
    cdef int16_t i
    for i in range(size):
        value = (value ^ client[i]) * <uint64_t>0x100000001b3
    return value


cdef void quota_of(Conn* conn, int kind, const uint8_t* client, int16_t client_size, Charge* charge) noexcept nogil:
    cdef Quotas* quotas = <Quotas*>conn.core.quotas
    cdef ConnQuota* own
    cdef uint64_t hashed
    charge.limit = 0
    if not quotas.kinds & (1 << kind):
        return
    hashed = hash_of(client, client_size)
    own = <ConnQuota*>conn.quota
    if own is NULL:
        own = <ConnQuota*>calloc(1, sizeof(ConnQuota))
        KAFKAD_CHECK(own is not NULL)
        conn.quota = own
    if own.version != quotas.version or own.client != hashed:
        own.known = 0
        own.version = quotas.version
        own.client = hashed
    if not own.known & (1 << kind):
        own.charges[kind].limit = 0
        with gil:
            resolve(conn, quotas, kind, client, client_size, &own.charges[kind])
        own.known |= 1 << kind
    if own.charges[kind].limit:
        own_row(conn.core, <QuotaTable>quotas.table, &own.charges[kind])
    charge[0] = own.charges[kind]


cdef void resolve(Conn* conn, Quotas* quotas, int kind, const uint8_t* client, int16_t client_size,
                  Charge* charge) noexcept:
    cdef Connection handle
    cdef bytes client_id
    try:
        handle = conn_handle(conn)
        client_id = (<const char*>client)[:max(client_size, 0)]
        found = (<object>quotas.resolve)(kind, handle.principal or ANONYMOUS, client_id.decode("utf-8", "replace"))
        if found is not None:
            charge.key, charge.limit = found
            charge.row = table_claim(<QuotaTable>quotas.table, charge.key, conn.core.monotonic_ms)
            charge.claimed_ms = conn.core.monotonic_ms
    except BaseException:
        core_failed(conn.core, "looking up the quota of a client")


cdef int64_t quota_take(Core* core, Charge* charge, double amount) noexcept nogil:
    cdef Quotas* quotas = <Quotas*>core.quotas
    if quotas is NULL:                                  # the last quota was removed meanwhile
        return 0
    own_row(core, <QuotaTable>quotas.table, charge)
    return table_record(<QuotaTable>quotas.table, charge.row, amount, charge.limit, core.monotonic_ms)


cdef inline void own_row(Core* core, QuotaTable table, Charge* charge) noexcept nogil:
    if not table_holds(table, charge.row, charge.key) or (
            charge.row == <int32_t>table.row_count - 1 and core.monotonic_ms - charge.claimed_ms >= SHARED_ROW_MS):
        charge.row = table_claim(table, charge.key, core.monotonic_ms)
        charge.claimed_ms = core.monotonic_ms


# -- Produce -----------------------------------------------------------------------------------------------

cdef void quota_produced(Slot* slot) noexcept nogil:
    cdef int64_t pause_ms = 0
    if slot.charge.limit:
        pause_ms = min(quota_take(slot.conn.core, &slot.charge, slot.charge.size), <int64_t>INT32_MAX)
    pause_ms = max(pause_ms, quota_overtime(slot.conn))
    if pause_ms == 0:
        return
    if slot.api_version >= 1:                           # the last field; in flexible versions an empty list of tags follows
        put_i32(slot.data + slot.size - (5 if slot.api_version >= 9 else 4), <int32_t>pause_ms)
    quota_mute(slot.conn, pause_ms)


cdef void quota_unanswered(Conn* conn, Charge* charge) noexcept nogil:
    cdef int64_t pause_ms
    quota_exempt(conn)
    if charge.limit:
        pause_ms = quota_take(conn.core, charge, charge.size)
        if pause_ms:
            quota_mute(conn, pause_ms)


# -- Fetch -------------------------------------------------------------------------------------------------

cdef int64_t quota_answer_max(Core* core, const Charge* charge) noexcept nogil:
    cdef Quotas* quotas = <Quotas*>core.quotas
    return INT32_MAX if quotas is NULL else <int64_t>min(charge.limit * quotas.full_s, <double>INT32_MAX)


cdef int64_t quota_fetched(Conn* conn, Charge* charge, int64_t size, bint* empty) noexcept nogil:
    cdef Core* core = conn.core
    cdef int64_t window = quota_answer_max(core, charge)
    cdef int64_t elapsed_ms
    cdef int64_t pause_ms = min(quota_take(core, charge, <double>size), <int64_t>INT32_MAX)
    empty[0] = False
    if pause_ms == 0:
        return 0
    quota_take(core, charge, -<double>size)
    empty[0] = True
    if size > window and 2 * table_total(
            <QuotaTable>(<Quotas*>core.quotas).table, charge.row, core.monotonic_ms, &elapsed_ms) < window:
        quota_take(core, charge, <double>size)          # a batch that is too large for any window
        empty[0] = False
    quota_mute(conn, pause_ms)
    return pause_ms


# -- request time ------------------------------------------------------------------------------------------

cdef inline ConnQuota* timed_quota(const Quotas* quotas, Conn* conn) noexcept nogil:
    """Return the ConnQuota that pays for the current request's time, or NULL."""
    cdef ConnQuota* own = <ConnQuota*>conn.quota
    if own is NULL or conn.closed or own.exempt or own.version != quotas.version or (
            not own.known & (1 << QUOTA_REQUEST) or own.charges[<int>QUOTA_REQUEST].limit == 0):
        return NULL
    return own


cdef void settle(Core* core, Quotas* quotas) noexcept nogil:
    """Charge the time since the last call."""
    cdef ConnQuota* own = timed_quota(quotas, quotas.timed)
    cdef int64_t now_ns = kafkad_thread_ns()
    if own is not NULL:
        quota_take(core, &own.charges[<int>QUOTA_REQUEST], <double>(now_ns - quotas.since_ns) * 100.0 / 1e9)
    quotas.since_ns = now_ns


cdef bint quota_turn_begin(Conn* conn) noexcept nogil:
    cdef Quotas* quotas = <Quotas*>conn.core.quotas
    if quotas is NULL or not quotas.kinds & (1 << QUOTA_REQUEST) or quotas.timed is not NULL:
        return False
    quotas.timed = conn
    quotas.since_ns = kafkad_thread_ns()
    return True


cdef void quota_turn_end(Core* core) noexcept nogil:
    cdef Quotas* quotas = <Quotas*>core.quotas
    if quotas is NULL or quotas.timed is NULL:          # the last quota was removed meanwhile
        return
    settle(core, quotas)
    quotas.timed = NULL


cdef void quota_request(Conn* conn, int16_t key, const uint8_t* client, int16_t client_size) noexcept nogil:
    cdef Quotas* quotas = <Quotas*>conn.core.quotas
    cdef Charge charge
    cdef bint exempt = key in (SASL_HANDSHAKE, WRITE_TXN_MARKERS, SASL_AUTHENTICATE)
    cdef ConnQuota* own = <ConnQuota*>conn.quota
    if not quotas.kinds & (1 << QUOTA_REQUEST):
        return
    if quotas.timed is conn and own is not NULL and own.exempt != exempt:
        settle(conn.core, quotas)                       # charge the time before this request
    quota_of(conn, QUOTA_REQUEST, client, client_size, &charge)
    (<ConnQuota*>conn.quota).exempt = exempt


cdef void quota_exempt(Conn* conn) noexcept nogil:
    if conn.quota is not NULL:
        (<ConnQuota*>conn.quota).exempt = True


cdef int64_t quota_overtime(Conn* conn) noexcept nogil:
    cdef Quotas* quotas = <Quotas*>conn.core.quotas
    cdef ConnQuota* own
    if quotas is NULL or not quotas.kinds & (1 << QUOTA_REQUEST):
        return 0
    if quotas.timed is conn:
        settle(conn.core, quotas)
    own = timed_quota(quotas, conn)
    if own is NULL:
        return 0
    return min(quota_take(conn.core, &own.charges[<int>QUOTA_REQUEST], 0), (<QuotaTable>quotas.table).window_ms)


def overtime_ms(connection):
    """Return for how many ms a connection must pause because of the time of its client's requests; 0: it need not."""
    return quota_overtime((<Connection>connection).conn) if is_timed(connection) else 0


def is_timed(connection):
    """Return whether it is a connection of this worker, and there is a quota of request time, for any client."""
    cdef Conn* conn = (<Connection>connection).conn if isinstance(connection, Connection) else NULL
    if conn is NULL or conn.core.quotas is NULL:
        return False
    return ((<Quotas*>conn.core.quotas).kinds & (1 << QUOTA_REQUEST)) != 0


def begin_work(Connection connection not None):
    """Begin work for a connection outside of its turn. True: `end_work` must follow."""
    return connection.conn is not NULL and quota_turn_begin(connection.conn)


def end_work(Connection connection not None):
    """End the work of `begin_work`. The connection may have been closed."""
    cdef Conn* conn = connection.conn
    if conn is not NULL:
        quota_turn_end(conn.core)


# -- pauses ------------------------------------------------------------------------------------------------

cdef void quota_mute(Conn* conn, int64_t pause_ms) noexcept nogil:
    cdef Core* core = conn.core
    cdef Pause* pause = <Pause*>conn.pause
    cdef int64_t until_ms = core.monotonic_ms + pause_ms
    if conn.closed:
        return
    if pause is NULL:
        pause = <Pause*>calloc(1, sizeof(Pause))
        KAFKAD_CHECK(pause is not NULL)
        pause.timer.place = -1
        pause.conn = conn
        conn.pause = pause
    core.stats.pauses += 1
    core.stats.paused_ms += pause_ms
    if conn.muted:
        if pause.timer.deadline_ms >= until_ms:
            return
        timer_stop(core, &pause.timer)
    conn.muted = True
    timer_start(core, &pause.timer, until_ms, pause_ended)


def pause(Connection connection not None, int64_t pause_ms):
    """Do not read the connection for this time; its answers are sent. A closed connection stays closed."""
    if connection.conn is not NULL and pause_ms > 0:
        quota_mute(connection.conn, pause_ms)
        if not connection.conn.core.polling:
            core_wake(connection.conn.core)             # its timer may be the earliest


cdef void pause_ended(Core* core, Timer* timer) noexcept nogil:
    cdef Conn* conn = (<Pause*>timer).conn
    conn.muted = False
    conn_touch(conn)
    conn_run(conn)


cdef void quota_left(Conn* conn) noexcept nogil:
    cdef Quotas* quotas = <Quotas*>conn.core.quotas
    if quotas is not NULL and quotas.timed is conn:
        settle(conn.core, quotas)
        quotas.timed = NULL
    if conn.pause is not NULL:
        timer_stop(conn.core, &(<Pause*>conn.pause).timer)
        free(conn.pause)
        conn.pause = NULL
    free(conn.quota)
    conn.quota = NULL


# -- a worker's --------------------------------------------------------------------------------------------

cdef class ClientQuotaCounting:
    """Sets `Core.quotas` of a reactor."""

    def __cinit__(self, QuotaTable table not None, resolve not None):
        if table.me < 0:
            raise ValueError("a worker enters its quota table before it makes a reactor")
        self.table = table
        self.resolver = resolve
        self.quotas.table = <PyObject*>table
        self.quotas.full_s = <double>((table.samples - 1) * table.window_ms) / 1000.0
        self.quotas.resolve = <PyObject*>resolve

    cdef void change(self, Core* core, int kinds) noexcept:
        """Quotas have changed. `kinds`: bits of the kinds that have quotas now."""
        self.quotas.kinds = kinds
        if not kinds & (1 << QUOTA_REQUEST):
            self.quotas.timed = NULL
        self.quotas.version += 1
        core.quotas = &self.quotas if kinds else NULL

"""Fetch (key 1) in C. See fetch.pyx."""

from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t

from kafkad._native.log.aborted cimport Aborted
from kafkad._native.log.cold_reads cimport ColdJob
from kafkad._native.serving.connection cimport Conn, Core, Slot, Timer
from kafkad._native.serving.fetch_session cimport Fetched, Session, SessionCache
from kafkad._native.log.partition_reads cimport ReadInfo
from kafkad._native.serving.partition_table cimport Entry, PartitionTable
from kafkad._native.serving.unpacking cimport Unpacker
from kafkad._native.wire.primitives cimport Cursor

cdef enum Context:                  # of a request, after Kafka's FetchContext
    SESSIONLESS = 0
    FULL = 1                        # asks for a session
    INCREMENTAL = 2

cdef struct Result:                 # what one partition gives
    Fetched* fetched
    int code
    bint unknown                    # not in the table: an error, but none to answer at once for
    int32_t diverging_epoch         # where the client's log leaves ours: the epoch and its end; -1 if it does not
    int64_t diverging_end
    int32_t leader_id               # for an error that names the leader
    int32_t leader_epoch
    ReadInfo read
    void* copy                      # bytes that Python read, or NULL
    Aborted aborted                 # transactions whose records it may hold; `entries` NULL when there are none

cdef struct FetchRequest:
    int16_t version
    int context
    int32_t replica_id
    int32_t wait_ms_max
    int32_t bytes_min
    int32_t bytes_max
    int8_t isolation
    int32_t session_id
    int32_t session_epoch
    Session* session                # retained
    uint32_t cold_rounds            # how often it had to wait for the disk
    int64_t began_ms                # of a request that is converted: since when it waits, 0: not yet
    uint32_t passes                 # how often it went on behind what became nothing

cdef struct WaitingFetch:
    Timer timer                     # first
    FetchRequest request
    Slot* slot
    int64_t available               # bytes counted over all partitions, each up to its own limit
    int64_t held                    # bytes of its session, which no cache counts: they count as buffered
    ColdJob* job                    # what it waits for is on the disk, not in the future
    bint due                        # to be answered at the end of this turn
    WaitingFetch* due_next

cdef class Fetching:
    cdef Core* core
    cdef PartitionTable table
    cdef SessionCache cache
    cdef public int32_t max_bytes   # fetch.max.bytes
    cdef Result* results            # scratch of the request at hand
    cdef uint32_t result_capacity
    cdef int64_t freed              # bytes of sessions that are gone, since the heap was trimmed
    cdef int32_t broker_id          # -1: no leader is named to clients
    cdef dict nodes                 # by listener: this broker as an answer has it (NodeEndpoints)
    cdef int64_t elements           # topics and partitions of the request at hand
    cdef WaitingFetch* due
    cdef Unpacker unpacker
    cdef uint32_t turn              # which partition of an old version's answer comes first
    cdef ColdJob* cold_job          # asked for by the last `read_all`: bytes that it needs to look further
    cdef void forget(self) noexcept

# NULL, or why the connection must be closed. `body` stands behind the client id.
cdef const char* fetch_frame(Fetching self, Conn* conn, int16_t version, int32_t correlation_id,
                             Cursor* body) noexcept nogil
cdef void fetch_advanced(Fetching self, Entry* entry, uint32_t why) noexcept nogil    # marks who is to be answered,
cdef void fetch_drop_orphans(Fetching self) noexcept nogil
cdef void fetch_session_left(Core* core, int32_t id) noexcept nogil
cdef void fetch_settle(Fetching self) noexcept nogil                                  # and answers them

# Of an old version (old_fetch.pyx): what follows the conversion. `answer_results` writes the answer from `results`;
# `go_on` reads anew, and takes over the session.
cdef void requires(Fetching self, uint32_t count) noexcept nogil       # room in `results`
cdef void answer_results(Fetching self, FetchRequest* request, Slot* slot, uint32_t count) noexcept nogil
cdef void go_on(Fetching self, FetchRequest* request, Slot* slot) noexcept nogil
cdef void drop_data(Result* result) noexcept nogil

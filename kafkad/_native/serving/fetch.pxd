"""Fetch (key 1) in C. See fetch.pyx."""

from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t

from kafkad._native.log.cold_reads cimport ColdJob
from kafkad._native.serving.connection cimport Conn, Core, Slot, Timer
from kafkad._native.serving.fetch_session cimport Fetched, Session, SessionCache
from kafkad._native.log.partition cimport ReadInfo
from kafkad._native.serving.partition_table cimport Entry, PartitionTable
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
    ReadInfo read
    void* copy                      # bytes that Python read, or NULL
    void* aborted                   # bytes: the aborted transactions as the answer has them, or NULL
    uint32_t aborted_count

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
    cdef int64_t elements           # topics and partitions of the request at hand
    cdef WaitingFetch* due
    cdef ColdJob* cold_job          # asked for by the last `read_all`: bytes that it needs to look further
    cdef void forget(self) noexcept

# NULL, or why the connection must be closed. `body` stands behind the client id.
cdef const char* fetch_frame(Fetching self, Conn* conn, int16_t version, int32_t correlation_id,
                             Cursor* body) noexcept nogil
cdef void fetch_advanced(Fetching self, Entry* entry, uint32_t why) noexcept nogil    # marks who is to be answered,
cdef void fetch_settle(Fetching self) noexcept nogil                                  # and answers them

"""The state of a Fetch: its request, the result of each partition, how it waits. See fetch_state.pyx."""

from libc.stdint cimport int16_t, int32_t, int64_t, uint32_t, uint64_t, int8_t
from libc.stdlib cimport free

from kafkad._native.serving.connection cimport Charge, Conn, Core, Slot, Timer
from kafkad._native.serving.follower_mail cimport FollowerMail
from kafkad._native.serving.fetch_session cimport Fetched, Session, cache_orphan, SessionCache
from kafkad._native.log.aborted cimport Aborted
from kafkad._native.log.cold_reads cimport ColdJob
from kafkad._native.log.partition_reads cimport ReadInfo
from kafkad._native.serving.partition_table cimport Entry, PartitionTable
from kafkad._native.serving.replication_quota cimport ReplicationQuota
from kafkad._native.serving.unpacking cimport Unpacker

cdef enum Context:                  # of a request, as Kafka's FetchContext
    SESSIONLESS = 0
    FULL = 1                        # asks for a session
    INCREMENTAL = 2

cdef struct Result:                 # the result of one partition
    Fetched* fetched
    int code
    bint unknown                    # not in the table: an error, but not one to answer at once
    int32_t diverging_epoch         # where the client's log diverges from ours: the epoch and its end; -1: it does not
    int64_t diverging_end
    int32_t preferred               # the broker that the client is sent to (KIP-392); -1: it reads here
    int32_t leader_id               # for an error that names the leader
    int32_t leader_epoch
    ReadInfo read
    void* copy                      # bytes that Python read, or NULL
    Aborted aborted                 # transactions whose records it may hold; NULL `entries`: none

cdef struct FetchRequest:
    int16_t version
    int context
    int32_t replica_id              # of a follower; -1: a consumer
    int64_t replica_epoch           # its broker's epoch; -1: not said
    bint counted                    # its offsets were noted: only the first read of a request does
    uint32_t rack                   # its client's, by number: a replica there may serve it; 0: none but the leader
    int8_t below                    # reads end at: 0 HW, 1 LSO, 2 LEO (Partition.read); or ANY_REPLICA
    int32_t wait_ms_max
    int32_t bytes_min
    int32_t bytes_max
    int8_t isolation
    int32_t session_id
    int32_t session_epoch
    Session* session                # retained
    uint64_t stamp                  # of the subject's rights; 0: there is no authorizer
    bint denied                     # deny all partitions: the client reads as a replica but is no broker
    uint32_t cold_rounds            # how often it waited for the disk
    int64_t began_ms                # of a request that is converted: since when it waits; 0: not yet
    Charge charge                   # against its client's quota
    int32_t throttle_ms             # throttle_time_ms of its answer
    uint32_t passes                 # how often it continued after data that became nothing

cdef struct WaitingFetch:
    Timer timer                     # must be the first field
    FetchRequest request
    Slot* slot
    int64_t available               # bytes counted over all partitions, each up to its own limit
    int64_t held                    # memory of its session, if not in the cache; counts as buffered
    ColdJob* job                    # the cold read that it waits for; NULL: it waits for new data
    bint due                        # to be answered at the end of this turn
    WaitingFetch* due_next

cdef struct Rack:                   # of brokers; its number is its place in the list, from 1
    size_t size
    char* name

cdef class Fetching:
    cdef Core* core
    cdef PartitionTable table
    cdef SessionCache cache
    cdef public int32_t max_bytes   # fetch.max.bytes
    cdef Result* results            # results of the current request
    cdef uint32_t result_capacity
    cdef int64_t freed              # bytes of sessions that are gone, since the heap was trimmed
    cdef int32_t broker_id          # -1: no leader is named to clients
    cdef dict nodes                 # by listener: this broker as an answer has it (NodeEndpoints)
    cdef dict leader_nodes          # by listener and broker id: others as an entry there
    cdef object elsewhere           # who leads a partition that has no replica here (reactor.pyi); None: all are here
    cdef object name_elsewhere      # the name of a topic that has no replica here, by its id
    cdef uint32_t elsewhere_left    # how often the request at hand may still ask it
    cdef FollowerMail followers     # of several workers
    cdef Rack* racks                # of a RackAwareReplicaSelector (near_replicas.pyx); NULL: clients read from leaders
    cdef uint32_t rack_count
    cdef uint32_t own_rack
    cdef ReplicationQuota replication   # None: nothing is throttled
    cdef int64_t elements           # topics and partitions of the request at hand
    cdef int64_t expecting_ms       # until when Fetches of followers wait for a short time only: we have begun to lead
    cdef WaitingFetch* due
    cdef Unpacker unpacker
    cdef uint32_t turn              # which partition of an old version's answer comes first
    cdef ColdJob* cold_job          # asked for by the last `read_all`: bytes that it needs to look further
    cdef void drop_racks(self) noexcept
    cdef void forget(self) noexcept

# We lead a partition from now on; how long this Fetch waits, which is short for a follower's then.
cdef void expect_followers(Fetching self) noexcept nogil
cdef int32_t patience_ms(Fetching self, const FetchRequest* request) noexcept nogil

# Looks a partition of a session up in the table. NULL: it is not there.
cdef Entry* find_entry(Fetching self, Fetched* fetched) noexcept nogil

# `results`: makes room for `count`, and releases what they own.
cdef void requires(Fetching self, uint32_t count) noexcept nogil
cdef void drop_data(Result* result) noexcept nogil
cdef void drop_results(Fetching self, uint32_t count) noexcept nogil
cdef void drop_copy(Result* result) noexcept nogil
cdef void trim_results(Fetching self) noexcept nogil


cdef inline void count_sessions(Fetching self) noexcept nogil:
    self.core.stats.sessions = self.cache.count
    self.core.stats.session_partitions = self.cache.partitions
    self.core.stats.session_evictions = self.cache.evictions


cdef inline void hold_session(Fetching self, Conn* conn, Session* session) noexcept nogil:
    """Make this the session of the connection, which leaves its previous one."""
    if conn.fetch_session != session.id:
        if conn.fetch_session:
            cache_orphan(&self.cache, conn.fetch_session, self.core.monotonic_ms)
        conn.fetch_session = session.id


cdef inline void drop_aborted(Result* result) noexcept nogil:
    free(result.aborted.entries)
    result.aborted.entries = NULL


cdef inline Entry* entry_of(Fetching self, Fetched* fetched) noexcept nogil:
    """As `find_entry`, which is called only after a change of the table."""
    return fetched.entry if fetched.generation == self.table.table.generation else find_entry(self, fetched)

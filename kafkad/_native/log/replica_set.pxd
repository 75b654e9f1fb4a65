"""What a leader knows of the other replicas of a partition: see replica_set.pyx."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

cdef struct Replica:                # one follower; times are monotonic milliseconds
    int32_t broker_id
    uint8_t in_isr                  # as committed
    uint8_t in_maximal              # or once an AlterPartition in flight is committed: it binds HW
    uint8_t eligible                # for the ISR, as the metadata has its broker: not fenced, not shutting down
    uint8_t asked                   # whether it may join was asked of the log, and nothing has changed since
    uint32_t rack                   # the number of its rack, where consumers there may read from it; 0: they may not
    int64_t known_epoch             # its broker epoch in the metadata; -1: it is not registered
    int64_t broker_epoch            # of its last Fetch; -1: a version without one; NOT_FETCHED
    int64_t end_offset              # its LEO, which is its fetch offset; -1: not known
    int64_t end_segment             # where that offset stands in our log; -1: not known
    int64_t end_position
    int64_t log_start
    int64_t fetched_ms              # time of its last Fetch, and our LEO at that time
    int64_t fetched_leader_end
    int64_t caught_up_ms            # when it last had everything that we had

cdef struct ReplicaSet:
    int32_t count
    int32_t isr_count               # committed, with the leader
    int64_t lag_ms_max              # replica.lag.time.max.ms
    Replica replicas[1]

cdef struct Mark:                   # an offset and its position (-1: not known)
    int64_t offset
    int64_t segment
    int64_t position

cdef enum:
    NOT_FETCHED = -2

cdef enum Fetching:                 # results of `replica_fetched`
    FETCH_STALE = 0                 # the broker has a newer epoch: nothing was noted
    FETCH_NOTED = 1
    FETCH_JOINS = 2                 # noted, and it may join the ISR: ask the log

cdef ReplicaSet* replicas_new(int32_t count) noexcept nogil

cdef inline Replica* replica_of(ReplicaSet* self, int32_t broker_id) noexcept nogil:
    cdef int32_t i
    if self is not NULL:
        for i in range(self.count):
            if self.replicas[i].broker_id == broker_id:
                return &self.replicas[i]
    return NULL

# Notes a Fetch of a follower. `at`: its fetch offset; `leader_end`: our LEO before anything was read for it.
cdef int replica_fetched(Replica* self, int64_t broker_epoch, const Mark* at, int64_t log_start, int64_t time_ms,
                         int64_t leader_end) noexcept nogil

# Whether it has everything that is committed: it may join the ISR if it has reached HW and the start of the leader's
# epoch.
cdef bint replica_joins(const Replica* self, int64_t high_watermark, int64_t epoch_start) noexcept nogil

cdef bint replica_is_caught_up(const Replica* self, int64_t leader_end, int64_t now_ms, int64_t lag_ms_max) noexcept nogil

# Lowers `mark`, the leader's own end, to the lowest end of the replicas that HW waits for.
cdef void replicas_bound(const ReplicaSet* self, int64_t now_ms, int64_t leader_end, Mark* mark) noexcept nogil

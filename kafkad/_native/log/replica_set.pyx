"""What a leader knows of the other replicas of a partition, and how far the high watermark may move.

A follower's Fetch carries how far it has the log (its fetch offset is its LEO), the epoch in which its broker is
registered, and where its log starts. HW is the lowest end of the replicas that it waits for (Kafka:
Partition.maybeIncrementLeaderHW):

    in the maximal ISR       the ISR with additions in flight, and with removals that are not committed yet
    caught up and eligible   but not in the ISR: otherwise it could never join a partition with a constant write load

Nothing here reads a clock or knows the rules of the ISR (replication/isr.py). These are numbers, and belong to the
owner's loop.

Beware:
- `caught_up_ms` is the time of the *previous* Fetch: a follower that now has what we had at that time was caught up
  then. Measured at the current Fetch, a follower would never be caught up under constant load (Kafka:
  Replica.updateFetchStateOrThrow).
- A new leader knows no ends (-1), so HW cannot move before every member of the ISR has fetched."""

from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport calloc

from kafkad._native.wire.primitives cimport KAFKAD_CHECK


cdef ReplicaSet* replicas_new(int32_t count) noexcept nogil:
    cdef ReplicaSet* self = <ReplicaSet*>calloc(1, sizeof(ReplicaSet) + count * sizeof(Replica))
    KAFKAD_CHECK(self is not NULL)
    self.count = count
    return self


cdef int replica_fetched(Replica* self, int64_t broker_epoch, const Mark* at, int64_t log_start, int64_t time_ms,
                         int64_t leader_end) noexcept nogil:
    if broker_epoch != -1 and broker_epoch < self.known_epoch:
        return FETCH_STALE                              # from an earlier registration of that broker (KIP-903)
    if at.offset >= leader_end:
        self.caught_up_ms = max(self.caught_up_ms, time_ms)
    elif at.offset >= self.fetched_leader_end:
        self.caught_up_ms = max(self.caught_up_ms, self.fetched_ms)
    self.end_offset = at.offset
    self.end_segment = at.segment
    self.end_position = at.position
    self.log_start = log_start
    self.broker_epoch = broker_epoch
    self.fetched_leader_end = max(leader_end, self.fetched_leader_end)
    self.fetched_ms = time_ms
    return FETCH_NOTED


cdef bint replica_joins(const Replica* self, int64_t high_watermark, int64_t epoch_start) noexcept nogil:
    return (not self.in_isr and not self.asked and self.eligible
            and self.end_offset >= high_watermark and self.end_offset >= epoch_start
            and (self.broker_epoch == -1 or self.broker_epoch == self.known_epoch))


cdef bint replica_is_caught_up(const Replica* self, int64_t leader_end, int64_t now_ms, int64_t lag_ms_max) noexcept nogil:
    return self.end_offset == leader_end or now_ms - self.caught_up_ms <= lag_ms_max


cdef void replicas_bound(const ReplicaSet* self, int64_t now_ms, int64_t leader_end, Mark* mark) noexcept nogil:
    cdef const Replica* replica
    cdef int32_t i
    for i in range(self.count):
        replica = &self.replicas[i]
        if replica.end_offset >= mark.offset:
            continue
        if replica.in_maximal or (
                replica.eligible and (replica.broker_epoch == -1 or replica.broker_epoch == replica.known_epoch)
                and replica_is_caught_up(replica, leader_end, now_ms, self.lag_ms_max)):
            mark.offset = replica.end_offset
            mark.segment = replica.end_segment
            mark.position = replica.end_position

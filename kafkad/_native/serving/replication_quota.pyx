"""Throttles of replication (KIP-73): the bytes per second that a broker serves to followers, and fetches as a follower.

They apply to the partitions that a topic lists (`Partition.throttled`, from leader.replication.throttled.replicas and
the follower's key). All bytes of these partitions count, but only replicas out of the ISR are held back, because the
ISR must not shrink. All workers add to one row per side in a shared table, with the windows of
replication.quota.window.num and .size.seconds. The rate is Kafka's SimpleRate, which does not count windows that
have not passed yet.

Without a limit nothing is counted."""

from libc.stdint cimport int64_t

from kafkad._native.shared.quota_table cimport QuotaTable, table_add, table_sum

LEADER = LEADER_SIDE
FOLLOWER = FOLLOWER_SIDE


cdef class ReplicationQuota:
    def __init__(self, QuotaTable table not None):
        self.table = table
        self.limits[LEADER_SIDE] = -1
        self.limits[FOLLOWER_SIDE] = -1

    def limit(self, int side, rate):
        self.limits[side & 1] = -1 if rate is None else rate

    cdef bint exceeded(self, int side, int64_t now_ms) noexcept nogil:
        cdef int64_t oldest_ms
        cdef double total
        if self.limits[side] < 0:
            return False
        total = table_sum(self.table, side, now_ms, &oldest_ms)
        return total * 1000.0 > self.limits[side] * max(now_ms - oldest_ms, self.table.window_ms)

    cdef void count(self, int side, int64_t size, int64_t now_ms) noexcept nogil:
        if self.limits[side] >= 0:
            table_add(self.table, side, <double>size, now_ms)

    # -- for tests

    def is_exceeded(self, int side, int64_t now_ms):
        return self.exceeded(side & 1, now_ms)

    def add(self, int side, int64_t size, int64_t now_ms):
        self.count(side & 1, size, now_ms)

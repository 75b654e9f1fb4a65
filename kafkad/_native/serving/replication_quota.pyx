"""Throttles of replication (KIP-73): what a broker serves to followers, and what it fetches as one, a second.

Only partitions count whose topic says so (`Partition.throttled`, from leader.replication.throttled.replicas and the
follower's), and only replicas that are not in sync are held back, since the ISR must not suffer. All bytes of such
partitions count. All workers add to one row for each side, in a table that they share, with the windows of
replication.quota.window.num and .size.seconds; the rate is Kafka's SimpleRate: it does not assume windows that were not.

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

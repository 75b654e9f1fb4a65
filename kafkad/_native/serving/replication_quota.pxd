"""Throttles of replication: see replication_quota.pyx."""

from libc.stdint cimport int64_t

from kafkad._native.shared.quota_table cimport QuotaTable

cdef enum:                          # sides: rows of the table, and bits of Partition.throttled (1 << side)
    LEADER_SIDE = 0
    FOLLOWER_SIDE = 1

cdef class ReplicationQuota:
    cdef QuotaTable table
    cdef double limits[2]           # bytes per second; below 0: no limit

    cdef bint exceeded(self, int side, int64_t now_ms) noexcept nogil
    cdef void count(self, int side, int64_t size, int64_t now_ms) noexcept nogil

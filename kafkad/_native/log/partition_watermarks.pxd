"""How the watermarks move: see partition_watermarks.pyx."""

from libc.stdint cimport int32_t, int64_t

from kafkad._native.log.partition_reads cimport PartitionReads
from kafkad._native.log.replica_set cimport Mark, ReplicaSet
from kafkad._native.log.transactions cimport OpenTransactions

cdef class PartitionWatermarks(PartitionReads):
    cdef OpenTransactions transactions      # those that hold LSO back
    cdef int64_t flush_interval             # flush.messages; the ack waits when so many would be unflushed
    cdef public bint follows_end            # HW follows LEO by itself (the only replica); else a replication layer moves it
    cdef ReplicaSet* replicas               # of a leader with followers; NULL of others
    cdef public bint awaits_starts          # call log.on_start_told() at a follower's Fetch: DeleteRecords waits there
    cdef public unsigned char throttled     # bits: as a leader's (1), as a follower's (2), with the topic's configuration
    cdef int32_t insync_min                 # min.insync.replicas
    cdef int32_t previous_epoch             # the leader epoch before ours, which ended at `epoch_start`; -1: not known

    cdef void move_stable(self) noexcept nogil
    cdef void settle_durable(self)
    cdef int raise_replicated(self) noexcept nogil
    cdef void note_starts(self) noexcept nogil
    cdef int replica_told(self, int32_t broker_id, int64_t broker_epoch, const Mark* at, int64_t log_start, int64_t time_ms,
                          int64_t leader_end) noexcept nogil
    cdef bint put_high_watermark(self, int64_t offset, int64_t segment, int64_t position) noexcept

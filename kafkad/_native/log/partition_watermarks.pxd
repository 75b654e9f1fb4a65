"""How the watermarks move: see partition_watermarks.pyx."""

from libc.stdint cimport int64_t

from kafkad._native.log.partition_reads cimport PartitionReads
from kafkad._native.log.transactions cimport OpenTransactions

cdef class PartitionWatermarks(PartitionReads):
    cdef OpenTransactions transactions      # those that hold LSO back
    cdef int64_t flush_interval             # flush.messages; the ack waits when so many would be unflushed
    cdef public bint follows_end            # HW follows LEO by itself (the only replica); else a replication layer moves it

    cdef void move_stable(self) noexcept nogil
    cdef void settle_durable(self)
    cdef bint put_high_watermark(self, int64_t offset, int64_t segment, int64_t position) noexcept

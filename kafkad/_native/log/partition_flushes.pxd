"""What the disk holds of a partition: see partition_flushes.pyx."""

from kafkad._native.log.group_commit cimport GroupCommit, Sync
from kafkad._native.log.segments cimport Segment
from kafkad._native.log.partition_watermarks cimport PartitionWatermarks

cdef class PartitionFlushes(PartitionWatermarks):
    cdef GroupCommit group_commit           # flushes the plain case; None: log.flusher does all flushes
    cdef Sync* sync                         # this partition's place in it, made at the first flush
    cdef bint flush_asked                   # a flush is requested or running
    cdef bint flush_again                   # another flush is wanted after it
    cdef public bint flush_by_log           # log.flusher must do the next flush, because small files must be flushed too
    cdef public bint notify_flush           # call log.on_flushed() when a flush ends, because the log waits for it

    cdef void ask_flush(self) noexcept nogil
    cdef bint commit(self) noexcept nogil
    cdef void trim(self, Segment* segment) noexcept nogil
    cdef void committed(self, Sync* sync) noexcept

"""What the disk holds of a partition: see partition_flushes.pyx."""

from kafkad._native.log.group_commit cimport GroupCommit, Sync
from kafkad._native.log.segments cimport Segment
from kafkad._native.log.partition_watermarks cimport PartitionWatermarks

cdef class PartitionFlushes(PartitionWatermarks):
    cdef GroupCommit group_commit           # who flushes the plain case; None: log.flusher does all
    cdef Sync* sync                         # our place there, made at the first flush
    cdef bint flush_asked                   # a flush is on its way, or under way
    cdef bint flush_again                   # and another is wanted after it
    cdef public bint flush_by_log           # the next flush is log.flusher's: it must take small files along
    cdef public bint notify_flush           # call log.on_flushed() when a flush has ended: somebody waits there

    cdef void ask_flush(self) noexcept nogil
    cdef bint commit(self) noexcept nogil
    cdef void trim(self, Segment* segment) noexcept nogil
    cdef void committed(self, Sync* sync) noexcept

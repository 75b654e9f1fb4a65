"""What every partition has: see partition_state.pyx.

One writer (the owner worker), any reader. The row is watermarks.pxd's. The other workers hold a reader partition
(partition_reader.pyx), whose `row` is its private copy of the shared one."""

from libc.stdint cimport uint32_t

from kafkad._native.log.segments cimport Segment
from kafkad._native.shared.watermarks cimport Row, RowSlot
from kafkad._native.log.batch_search cimport Lookup
from kafkad._native.log.producer_table cimport ProducerMap, ProducerTable

cdef enum Advance:                  # why `advanced` is called
    ADVANCED_HIGH_WATERMARK = 1     # HW (and so LSO) moved: acks and consumers
    ADVANCED_END = 2                # LEO moved: followers
    PARTITION_GONE = 4              # deleted, offline or no longer led: answer every waiter
    ADVANCED_DURABLE = 8            # what our own disk holds moved: acks=1
    EPOCH_RAISED = 16               # we lead on under another epoch: fetches that wait carry the one before

ctypedef void (*AdvanceFunction)(void* context, void* partition, int why) noexcept nogil

cdef class PartitionState:
    cdef Row* row                           # a reader's: its copy of `shared`
    cdef Row* shared
    cdef readonly int owner                 # the worker that appends; -1: this one
    cdef object __weakref__
    cdef public object log                  # log.Log: the slow path
    cdef readonly str topic
    cdef readonly int index
    cdef readonly bint open                 # led here and online; else append and read give an error code
    # the reactor's: called on every advance, from whichever call made it
    cdef AdvanceFunction advanced
    cdef void* advanced_context
    cdef readonly RowSlot slot
    cdef readonly ProducerTable producers
    cdef ProducerMap* producer_map
    cdef char* directory                    # every file is opened by its full path, so that idle ones need no fd
    cdef Segment* segments
    cdef int segment_count
    cdef int segment_capacity
    cdef uint32_t exchanges                 # of the row's generations, so many were exchanges of segments: they cut nothing
    cdef Lookup lookup                      # where batches stand
    cdef int closed_code                    # what to answer while not `open`
    cdef public bint notify_log             # call log.on_advance() when HW moves: somebody waits there
    cdef readonly int failure               # the errno that took this partition offline

    cdef Segment* active(self) noexcept nogil
    cdef void row_begin(self) noexcept nogil
    cdef void row_end(self) noexcept nogil
    cdef void tell(self, int why) noexcept nogil
    cdef int refused(self, int failure, const char* doing) noexcept nogil
    cdef int raise_refused(self, int failure, const char* doing) except -1

# Asks the owner of `partition` to ring worker `me` at the next advance. Look at the row (`look`) after this, not before.
cdef void partition_listen(PartitionState partition, int me) noexcept nogil

# The disk failed: the partition goes offline, and its log is called.
cdef void fail_log(PartitionState partition, int error, const char* doing) noexcept

# A callback of the log's raised: logged, or the end of the process where it says that we are wrong.
cdef void unexpected(PartitionState partition, object error) noexcept

"""The state that every partition has: see partition_state.pyx.

One writer (the owner worker), any number of readers. watermarks.pxd describes the row. The other workers hold a reader
partition (partition_reader.pyx), whose `row` is its private copy of the shared row."""

from libc.stdint cimport int64_t, uint32_t

from kafkad._native.log.segments cimport Segment
from kafkad._native.shared.watermarks cimport Row, RowSlot
from kafkad._native.log.batch_search cimport Lookup
from kafkad._native.log.producer_table cimport ProducerMap, ProducerTable

cdef enum Advance:                  # why `advanced` is called
    ADVANCED_HIGH_WATERMARK = 1     # HW (and so LSO) moved: acks and consumers
    ADVANCED_END = 2                # LEO moved: wakes followers
    PARTITION_GONE = 4              # deleted, offline or no longer led: answer every waiter with an error
    ADVANCED_DURABLE = 8            # the durable offset moved: acks=1
    ADVANCED_START = 32             # the log start moved: wakes followers
    EPOCH_RAISED = 16               # this broker still leads, in a new epoch: waiting fetches carry the old one

ctypedef void (*AdvanceFunction)(void* context, void* partition, int why) noexcept nogil

cdef class PartitionState:
    cdef Row* row                           # in a reader partition: its copy of `shared`
    cdef Row* shared
    cdef readonly int owner                 # the worker that appends; -1: this worker
    cdef object __weakref__
    cdef public object log                  # log.Log, which does what is rare
    cdef readonly str topic
    cdef readonly int index
    cdef readonly bint open                 # led here and online; otherwise append and read return an error code
    cdef int64_t opened_ms                  # batches that came before may have been refused; monotonic
    cdef int64_t begun_ms                   # so, and of producers that are not known; also of an empty log
    cdef int64_t begun_count                # how often `begun_ms` was set
    cdef bint is_new                        # led since it was created, and `begun_ms` was not set since
    # set by the reactor: called on every advance, whichever call caused it
    cdef AdvanceFunction advanced
    cdef void* advanced_context
    cdef readonly RowSlot slot
    cdef readonly ProducerTable producers
    cdef ProducerMap* producer_map
    cdef char* directory                    # files are opened by full path, so idle ones need no fd
    cdef Segment* segments
    cdef int segment_count
    cdef int segment_capacity
    cdef uint32_t exchanges                 # how many of the row's generations were exchanges, which cut nothing
    cdef Lookup lookup                      # where batches stand (batch_search.pxd)
    cdef int closed_code                    # the error code to return while not `open`
    cdef public bint notify_log             # call log.on_advance() when HW moves, because the log waits for it
    cdef readonly int failure               # the errno that took this partition offline
    cdef bint halted                        # only until files and memory agree again

    cdef Segment* active(self) noexcept nogil
    cdef void row_begin(self) noexcept nogil
    cdef void row_end(self) noexcept nogil
    cdef void tell(self, int why) noexcept nogil
    cdef int refused(self, int failure, const char* doing) noexcept nogil
    cdef int raise_refused(self, int failure, const char* doing) except -1

# Asks the owner of `partition` to wake worker `me` at the next advance. Call this first and read the row (`look`)
# after.
cdef void partition_listen(PartitionState partition, int me) noexcept nogil

# The disk failed: takes the partition offline and calls its log.
cdef void fail_log(PartitionState partition, int error, const char* doing) noexcept

# A callback of the log raised: logs the error, or ends the process if it is an AssertionError.
cdef void unexpected(PartitionState partition, object error) noexcept

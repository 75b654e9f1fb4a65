"""A partition that another worker owns, as this worker reads it: see partition_reader.pyx."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

from kafkad._native.log.partition cimport Partition
from kafkad._native.log.segments cimport Segment
from kafkad._native.shared.watermarks cimport Row, RowSlot

cdef struct Found:                  # a segment found in the directory
    int64_t base_offset
    int64_t size

cdef class ReaderPartition(Partition):
    cdef RowSlot copied             # owns the memory of `row`
    cdef uint8_t expected_id[16]
    cdef bint known                 # `row`, `state` and the segments belong to one moment of the shared row
    cdef int state                  # 0, or the error code for reads
    cdef int refusal                # -errno of the last failed system call
    cdef int64_t read_max           # bytes, of the current read
    cdef int64_t looked_high        # watermarks as of the last `look`
    cdef int64_t looked_stable
    cdef int64_t looked_end
    cdef int64_t looked_durable
    cdef int64_t looked_start
    cdef int32_t looked_epoch
    cdef uint8_t looked_role
    cdef int64_t moved_ms           # when the row was copied last
    cdef Found* found               # used by `list_directory` only
    cdef int found_count
    cdef int found_capacity
    cdef readonly int64_t listings  # number of directory listings so far

    cdef uint32_t stuck             # the sequence of a change that did not end while this reader waited for it
    cdef bint read_row(self, Row* fresh) noexcept nogil
    cdef int refresh(self, bint again) noexcept nogil
    cdef int settle(self, const Row* fresh) noexcept nogil
    cdef bint peek(self) noexcept nogil
    cdef bint is_ours(self, const Row* row) noexcept nogil
    cdef int list_directory(self, const Row* before) noexcept nogil
    cdef int adopt_found(self, const Row* row) noexcept nogil
    cdef void forget_segments(self) noexcept nogil
    cdef int index_floor(self, Segment* segment, int64_t relative, int64_t* position, int64_t* last,
                         int64_t* following) noexcept nogil

"""Where a batch stands, and what a Fetch may read: see partition_reads.pyx."""

from libc.stdint cimport int32_t, int64_t

from kafkad._native.log.segments cimport LogFile, Segment
from kafkad._native.log.partition_state cimport PartitionState

cdef struct ReadInfo:
    int64_t high_watermark
    int64_t last_stable_offset
    int64_t log_start_offset
    LogFile* file                   # retained for the caller if size > 0
    int64_t position
    int64_t size                    # bytes to send; 0 at the end of the readable data
    int64_t available               # bytes that count for min_bytes, with the part of a last batch that is not sent;
                                    # OLDER_SEGMENT if later segments hold more: such a Fetch never waits

cdef extern from *:
    """
    #define KAFKAD_OLDER_SEGMENT ((int64_t)1 << 40)
    """
    const int64_t OLDER_SEGMENT "KAFKAD_OLDER_SEGMENT"      # more than any min_bytes

cdef enum:
    ANY_REPLICA = 4                     # of `isolation`: a follower serves it, too (KIP-392)

cdef class PartitionReads(PartitionState):
    cdef public bint read_to_end            # data above HW may be on its way to a follower: the file is not cut in place

    cdef int locate(self, Segment* segment, int64_t target, int64_t limit, int64_t* position,
                    int64_t* batch_size) noexcept nogil
    cdef tuple boundary_of(self, int64_t offset)
    cdef bint follows(self) noexcept nogil

    # Where to read from `offset`: batches from the one that holds it, up to max_bytes (or the whole first
    # batch when `at_least_one`; the first alone when max_bytes would cut the second), below HW (isolation 0) or LSO
    # (isolation 1). With ANY_REPLICA a follower answers, as far as it knows HW. 0, NEED_PYTHON, OFFSET_OUT_OF_RANGE, NOT_LEADER_OR_FOLLOWER, KAFKA_STORAGE_ERROR, or FENCED/UNKNOWN_
    # LEADER_EPOCH when `leader_epoch` >= 0 differs; COLD where `lookup.cold` is set.
    cdef int read(self, int64_t offset, int64_t max_bytes, bint at_least_one, int isolation, int32_t leader_epoch,
                  ReadInfo* info) noexcept nogil

    # Whether the files still have the names by which the segments are known. A reader asks after it opened a file.
    cdef bint has_names(self) noexcept nogil

    # In a reader: copies the shared row if it changed. Returns 0, or the error code for reads.
    cdef int freshen(self) noexcept nogil
    # In a reader: copies the shared row. Returns why waiters may be answered now (Advance), or 0 if nothing moved.
    cdef int look(self) noexcept nogil

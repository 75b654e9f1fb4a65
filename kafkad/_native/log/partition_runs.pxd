"""Appending runs of batches from the leader to a followed log: see partition_runs.pyx."""

from libc.stdint cimport int32_t, int64_t, uint8_t

from kafkad._native.log.epochs cimport Epochs
from kafkad._native.log.partition_appends cimport PartitionAppends
from kafkad._native.log.segments cimport Segment

cdef enum:                          # results of append_run, beside 0, NEED_PYTHON and Kafka's error codes
    RUN_NEWER = -2000               # the batch is of a later epoch than the Fetch: drop the rest of the answer
    RUN_OVERLAPS = -2001            # the batch begins below LEO and ends beyond it

cdef struct RunInfo:
    int32_t fetch_epoch             # input: the leader epoch in the Fetch
    int64_t high_watermark          # input: the leader's; -1: not known
    int64_t taken                   # bytes of whole batches that were appended, or were in the log already
    int64_t needed                  # size of the next batch, which is incomplete; 0: its header is incomplete, too
    int64_t base_offset             # of the batch at which it stopped
    int64_t last_offset
    int32_t epoch

cdef class PartitionRuns(PartitionAppends):
    cdef public Epochs epochs       # the log's; None in a reader

    # Appends the whole batches at the front of `data`: the part that has arrived of the `records` of one partition in a
    # Fetch answer. Returns 0 if no whole batch is left. Otherwise it stopped at the batch after `info.taken` and
    # returns NEED_PYTHON (`wants` gives the reason), RUN_NEWER, RUN_OVERLAPS, CORRUPT_MESSAGE or KAFKA_STORAGE_ERROR.
    # `info.taken` is always set.
    cdef int append_run(self, const uint8_t* data, int64_t size, int64_t now_ms, RunInfo* info) noexcept nogil

    # Moves HW to the leader's, at most to LEO, never back. Returns whether the log must raise its start to `log_start`.
    cdef bint follow_marks(self, int64_t high_watermark, int64_t log_start) noexcept nogil

    cdef int one_run(self, const uint8_t* data, int64_t size, int64_t now_ms, RunInfo* info, bint* more) noexcept nogil
    cdef int append_gathered(self, Segment* segment, const uint8_t* data, int64_t size, int64_t now_ms,
                             RunInfo* info) noexcept nogil
    cdef bint place_high_watermark(self, int64_t leader, int64_t* offset, int64_t* at, int64_t* position) noexcept nogil

"""Runs of a leader's batches on their way into a followed log: see partition_runs.pyx."""

from libc.stdint cimport int32_t, int64_t, uint8_t

from kafkad._native.log.epochs cimport Epochs
from kafkad._native.log.partition_appends cimport PartitionAppends
from kafkad._native.log.segments cimport Segment

cdef enum:                          # of append_run, beside 0, NEED_PYTHON and Kafka's error codes
    RUN_NEWER = -2000               # the batch is of a later epoch than the Fetch: the rest of the answer is of no use
    RUN_OVERLAPS = -2001            # the batch begins below LEO and ends beyond it

cdef struct RunInfo:
    int32_t fetch_epoch             # in: the epoch that the Fetch named
    int64_t high_watermark          # in: the leader's; -1: not known
    int64_t taken                   # bytes of whole batches that were appended, or are there already
    int64_t needed                  # the size of the batch behind them, which is not whole; 0: nor is its header
    int64_t base_offset             # of the batch that it stopped at
    int64_t last_offset
    int32_t epoch

cdef class PartitionRuns(PartitionAppends):
    cdef public Epochs epochs       # the log's; None: a reader's

    # Appends the whole batches at the front of `data`, the `records` of one partition in a Fetch answer as far as they
    # have come. 0: no whole batch is left. Else it stopped at the batch behind `info.taken`: NEED_PYTHON (`wants` says
    # why), RUN_NEWER, RUN_OVERLAPS, CORRUPT_MESSAGE or KAFKA_STORAGE_ERROR. `info.taken` is set in any case.
    cdef int append_run(self, const uint8_t* data, int64_t size, int64_t now_ms, RunInfo* info) noexcept nogil

    # HW follows the leader's, up to LEO and never back. Whether the log start must be raised to `log_start`, which the
    # log does.
    cdef bint follow_marks(self, int64_t high_watermark, int64_t log_start) noexcept nogil

    cdef int one_run(self, const uint8_t* data, int64_t size, int64_t now_ms, RunInfo* info, bint* more) noexcept nogil
    cdef int append_gathered(self, Segment* segment, const uint8_t* data, int64_t size, int64_t now_ms,
                             RunInfo* info) noexcept nogil
    cdef bint place_high_watermark(self, int64_t leader, int64_t* offset, int64_t* at, int64_t* position) noexcept nogil

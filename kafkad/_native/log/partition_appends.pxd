"""One batch's way into the log: see partition_appends.pyx."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

from kafkad._native.log.segments cimport Segment
from kafkad._native.log.partition_flushes cimport PartitionFlushes
from kafkad._native.log.guards cimport Guards
from kafkad._native.wire.batch cimport Rules

cpdef enum:                         # why an append answered NEED_PYTHON
    WANTS_NOTHING = 0
    WANTS_ROLL = 1
    WANTS_SLOW_PATH = 2
    WANTS_PRODUCERS = 3             # a retry, perhaps, of a batch that the snapshot did not hold
    WANTS_EPOCH = 4                 # a leader's batch is the first of its epoch
    WANTS_OLD_FORMAT = 5            # a leader's batch has a magic below 2

cdef struct AppendInfo:
    int64_t base_offset             # of this batch, or where its first copy went (duplicate)
    int64_t end_offset              # answer when the high watermark has reached it
    int64_t append_time_ms          # -1 unless message.timestamp.type=LogAppendTime
    int64_t log_start_offset
    int32_t bad_record              # as in BatchInfo
    const char* message
    int transaction_version         # in, with a marker: transaction.version of the coordinator that wrote it
    int admission                   # in: what the request says of transactions, see guards.pxd
    uint32_t guard                  # in: what the append came with, 0 for none; out, with NEED_TRANSACTION: what to ask with

cdef class PartitionAppends(PartitionFlushes):
    cdef Rules rules
    cdef int32_t index_interval_bytes
    cdef int64_t segment_bytes
    cdef int64_t segment_age_max_ms         # segment.ms less this partition's jitter
    cdef int64_t index_size_max
    cdef public int64_t filling_at          # the size of the active segment at which log.on_filling() is called, once
    cdef Guards guards                      # those that are about to begin
    cdef readonly uint32_t guard            # of the last try_append or ask_guard that answered NEED_TRANSACTION
    cdef readonly int wants                 # why the last append said NEED_PYTHON: WANTS_ROLL or WANTS_SLOW_PATH
    cdef int written                        # of a batch that was written ahead: see try_append
    cdef int unpacking                      # connections of other workers that have a batch for it unpacked (produce_forwarding.pyx)

    # One client batch (the `records` field of one partition in a Produce). The bytes are patched in place and
    # written by one pwritev. 0 when appended or recognised as a duplicate; NEED_PYTHON when `log.append_client`
    # must decide (roll, compression, …); NEED_TRANSACTION when the transaction's coordinator must, and `info.guard` is
    # what to come with afterwards; else a Kafka error code. `info.admission` and `info.guard` are the caller's to set.
    cdef int append(self, uint8_t* records, size_t size, int64_t now_ms, AppendInfo* info) noexcept nogil

    cdef int admit(self, const uint8_t* records, int64_t now_ms, bint last, AppendInfo* info) noexcept nogil
    cdef int append_checked(self, uint8_t* records, size_t size, int origin, int32_t epoch, int64_t now_ms,
                            AppendInfo* info) noexcept nogil
    cdef bint must_roll(self, Segment* segment, int64_t size, int64_t max_timestamp, int64_t last_offset,
                        int64_t now_ms) noexcept nogil
    cdef int open_for_append(self, Segment* segment) noexcept nogil
    cdef int note_abort(self, Segment* segment, int64_t producer_id, int64_t last_offset, int64_t* before) noexcept nogil

# A batch stands in the active segment from `segment.size` on: its index entry, its place in memory. `expected`: LEO before.
cdef void batch_stands(PartitionAppends self, Segment* segment, const uint8_t* batch, int64_t size, int64_t base_offset,
                       int64_t last_offset, int64_t expected) noexcept nogil

# After it, of a batch with a producer: what it says of that one. `marker` as of parse_marker; there is room.
cdef void producer_stands(PartitionAppends self, Segment* segment, const uint8_t* batch, int64_t size, int64_t base_offset,
                          int64_t last_offset, int marker, int32_t coordinator_epoch) noexcept nogil

# The active segment has reached `filling_at`.
cdef void call_filling(PartitionAppends partition, int64_t now_ms) noexcept

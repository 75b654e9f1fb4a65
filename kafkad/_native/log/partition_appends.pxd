"""Appending one batch to the log: see partition_appends.pyx."""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t

from kafkad._native.log.segments cimport Segment
from kafkad._native.log.partition_flushes cimport PartitionFlushes
from kafkad._native.log.guards cimport Guards
from kafkad._native.wire.batch cimport Rules

cpdef enum:                         # why an append returned NEED_PYTHON
    WANTS_NOTHING = 0
    WANTS_ROLL = 1
    WANTS_SLOW_PATH = 2
    WANTS_PRODUCERS = 3             # perhaps a retry of a batch that the snapshot did not hold
    WANTS_EPOCH = 4                 # the batch from a leader is the first of its epoch
    WANTS_OLD_FORMAT = 5            # the batch from a leader has a magic below 2

cdef struct AppendInfo:
    int64_t base_offset             # of this batch; of a duplicate, where the first copy was appended
    int64_t end_offset              # answer when the high watermark has reached this offset
    int64_t append_time_ms          # -1 unless message.timestamp.type=LogAppendTime
    int64_t log_start_offset
    int32_t bad_record              # as in BatchInfo
    const char* message
    int transaction_version         # input, with a marker: transaction.version of the coordinator that wrote it
    int admission                   # input: the request's relation to transactions, see guards.pxd
    uint32_t guard                  # input: the append's guard, or 0; output of NEED_TRANSACTION: a new guard

cdef struct Beginning:              # the first batch of a producer that is not known, refused
    int64_t producer_id
    int32_t base_sequence
    int16_t epoch

cdef class PartitionAppends(PartitionFlushes):
    cdef Rules rules
    cdef int32_t index_interval_bytes
    cdef int64_t segment_bytes
    cdef int64_t segment_age_max_ms         # segment.ms minus this partition's jitter
    cdef int64_t index_size_max
    cdef public int64_t filling_at          # size of the active segment at which log.on_filling() is called, once
    cdef Guards guards                      # of transactions that are about to begin
    cdef readonly uint32_t guard            # of the last try_append or ask_guard that returned NEED_TRANSACTION
    cdef readonly int wants                 # why the last append returned NEED_PYTHON: WANTS_ROLL or WANTS_SLOW_PATH
    cdef int written                        # state of a batch that was written ahead: see try_append
    cdef Beginning* beginnings              # a ring of BEGINNINGS_MAX, the latest replace the oldest; NULL: none yet
    cdef int beginning_count                # how many were noted
    cdef int64_t beginnings_since           # `begun_count` at that time: if it has moved, batches were refused since
    cdef int unpacking                      # connections of other workers that have a batch in decompression

    # Appends one client batch (the `records` field of one partition in a Produce). The bytes are patched in place and
    # written by one pwritev. Returns 0 if appended or recognised as a duplicate; NEED_PYTHON if `log.append_client`
    # must decide (roll, compression, ...); NEED_TRANSACTION if the transaction coordinator must be asked, with
    # `info.guard` to pass with the second try; otherwise a Kafka error code. The caller sets `info.admission` and
    # `info.guard`.
    cdef int append(self, uint8_t* records, size_t size, int64_t now_ms, AppendInfo* info) noexcept nogil

    # Appends a v2 batch that was made of a client's message set, after `append` returned NEED_PYTHON for the set.
    cdef int append_made(self, uint8_t* batch, size_t size, int64_t now_ms, AppendInfo* info) noexcept nogil

    # Whether a batch of a producer that is not known, and does not begin at sequence 0, comes for the second time.
    cdef bint begins_again(self, int64_t producer_id, int16_t epoch, int32_t base_sequence) noexcept nogil

    cdef int admit(self, const uint8_t* records, int64_t now_ms, bint last, AppendInfo* info) noexcept nogil
    cdef int append_checked(self, uint8_t* records, size_t size, int origin, int32_t epoch, int64_t now_ms,
                            AppendInfo* info) noexcept nogil
    cdef bint must_roll(self, Segment* segment, int64_t size, int64_t max_timestamp, int64_t last_offset,
                        int64_t now_ms) noexcept nogil
    cdef int open_for_append(self, Segment* segment) noexcept nogil
    cdef int note_abort(self, Segment* segment, int64_t producer_id, int64_t last_offset, int64_t* before) noexcept nogil

# A batch was written to the active segment at `segment.size`: adds its index entry and remembers its position.
# `expected`: LEO before the batch.
cdef void batch_stands(PartitionAppends self, Segment* segment, const uint8_t* batch, int64_t size, int64_t base_offset,
                       int64_t last_offset, int64_t expected) noexcept nogil

# Call after `batch_stands` for a batch with a producer: updates the producer's entry. `marker` is as from parse_marker;
# room was reserved.
cdef void producer_stands(PartitionAppends self, Segment* segment, const uint8_t* batch, int64_t size, int64_t base_offset,
                          int64_t last_offset, int marker, int32_t coordinator_epoch) noexcept nogil

# The active segment has reached `filling_at`: calls the log.
cdef void call_filling(PartitionAppends partition, int64_t now_ms) noexcept

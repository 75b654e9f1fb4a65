"""A partition's hot state: the shared row of watermarks, the open segments, the producer table.

One writer (the owner worker), any reader. Python's `log.Log` holds one of these and decides what is rare (roll,
retention, recovery, truncation); the reactor appends and reads through the cdef methods without the GIL.

The row is 256 bytes in shared memory, written under a sequence lock by its owner only:

    sequence u32 (odd while written) | partition i32 | topic_id 16 bytes | generation u32 | leader_epoch i32 | …
"""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t

from kafkad._native.batch cimport BatchInfo, Rules

cdef struct Row:
    uint32_t sequence
    int32_t partition
    uint8_t topic_id[16]
    uint32_t generation             # raised by swap, re-creation and truncation: readers drop their segment lists
    int32_t leader_epoch            # -1: not led here
    int64_t log_end_offset
    int64_t high_watermark
    int64_t last_stable_offset
    int64_t log_start_offset
    int64_t local_log_start_offset
    int64_t flushed_offset
    int64_t highest_tiered_offset
    int64_t end_segment             # base offset and position of LEO, HW and LSO
    int64_t end_position
    int64_t high_watermark_segment
    int64_t high_watermark_position
    int64_t stable_segment
    int64_t stable_position
    uint64_t waiters                # one bit a worker that wants its doorbell rung on advance
    uint8_t spare[96]

cdef struct LogFile:                # an open .log; a response that is being sent holds a reference
    int fd
    int references

cdef void log_file_retain(LogFile* file) noexcept nogil
cdef void log_file_release(LogFile* file) noexcept nogil     # the last one closes the fd

cdef struct AppendInfo:
    int64_t base_offset             # of this batch, or where its first copy went (duplicate)
    int64_t end_offset              # answer when the high watermark has reached it
    int64_t append_time_ms          # -1 unless message.timestamp.type=LogAppendTime
    int64_t log_start_offset
    int32_t bad_record              # as in BatchInfo
    const char* message

cdef struct ReadInfo:
    int64_t high_watermark
    int64_t last_stable_offset
    int64_t log_start_offset
    LogFile* file                   # retained for the caller when size > 0
    int64_t position
    int64_t size                    # bytes to send; 0 at the end of what may be read

cdef enum Advance:                  # why `advanced` is called
    ADVANCED_HIGH_WATERMARK = 1     # HW (and so LSO) moved: acks and consumers
    ADVANCED_END = 2                # LEO moved: followers
    PARTITION_GONE = 4              # deleted, offline or no longer led: answer every waiter

ctypedef void (*AdvanceFunction)(void* context, void* partition, int why) noexcept nogil

cdef class Partition:
    cdef Row* row
    cdef object __weakref__
    cdef public object log                  # log.Log: the slow path
    cdef readonly str topic
    cdef readonly int index
    cdef readonly bint open                 # led here and online; else append and read give an error code
    # the reactor's: called on every advance, from whichever call made it; lists of its waiters
    cdef AdvanceFunction advanced
    cdef void* advanced_context
    cdef void* waiting_produces
    cdef void* waiting_fetches

    # One client batch (the `records` field of one partition in a Produce). The bytes are patched in place and
    # written by one pwritev. 0 when appended or recognised as a duplicate; NEED_PYTHON when `log.append_client`
    # must decide (roll, compression, …); else a Kafka error code.
    cdef int append(self, uint8_t* records, size_t size, int64_t now_ms, AppendInfo* info) noexcept nogil

    # Where to read from `offset`: whole batches from the one that holds it, up to max_bytes (or the whole first
    # batch when `at_least_one`), below HW (isolation 0) or LSO (isolation 1). 0, NEED_PYTHON, OFFSET_OUT_OF_RANGE,
    # NOT_LEADER_OR_FOLLOWER, KAFKA_STORAGE_ERROR, or FENCED/UNKNOWN_LEADER_EPOCH when `leader_epoch` >= 0 differs.
    cdef int read(self, int64_t offset, int64_t max_bytes, bint at_least_one, int isolation, int32_t leader_epoch,
                  ReadInfo* info) noexcept nogil

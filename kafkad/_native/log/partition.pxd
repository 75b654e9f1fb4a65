"""A partition's hot state: the shared row of watermarks, the open segments, the producer table.

One writer (the owner worker), any reader. Python's `log.Log` holds one of these and decides what is rare (roll,
retention, recovery, truncation); the reactor appends and reads through the cdef methods without the GIL.

The row is watermarks.pxd's. The other workers hold a reader partition (partition_reader.pyx), whose `row` is its private copy of the shared one.
"""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t

from kafkad._native.wire.batch cimport BatchInfo, Rules
from kafkad._native.log.group_commit cimport GroupCommit, Sync
from kafkad._native.log.batch_search cimport Lookup
from kafkad._native.log.guards cimport Guards
from kafkad._native.log.producer_table cimport ProducerMap, ProducerTable
from kafkad._native.log.segments cimport LogFile, Segment, log_file_release, log_file_retain
from kafkad._native.log.transactions cimport OpenTransactions
from kafkad._native.shared.watermarks cimport Row, RowSlot

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

cdef struct ReadInfo:
    int64_t high_watermark
    int64_t last_stable_offset
    int64_t log_start_offset
    LogFile* file                   # retained for the caller when size > 0
    int64_t position
    int64_t size                    # bytes to send; 0 at the end of what may be read
    int64_t available               # bytes that count for min_bytes: with the part of a last batch that is not sent;
                                    # OLDER_SEGMENT where later segments hold more: such a Fetch never waits

cdef extern from *:
    """
    #define KAFKAD_OLDER_SEGMENT ((int64_t)1 << 40)
    """
    const int64_t OLDER_SEGMENT "KAFKAD_OLDER_SEGMENT"      # more than any min_bytes

cdef enum Advance:                  # why `advanced` is called
    ADVANCED_HIGH_WATERMARK = 1     # HW (and so LSO) moved: acks and consumers
    ADVANCED_END = 2                # LEO moved: followers
    PARTITION_GONE = 4              # deleted, offline or no longer led: answer every waiter

ctypedef void (*AdvanceFunction)(void* context, void* partition, int why) noexcept nogil

# Asks the owner of `partition` to ring worker `me` at the next advance. Look at the row (`look`) after this, not before.
cdef void partition_listen(Partition partition, int me) noexcept nogil

cdef class Partition:
    cdef Row* row                           # a reader's: its copy of `shared`
    cdef Row* shared
    cdef readonly int owner                 # the worker that appends; -1: this one
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

    # -- ours ----------------------------------------------------------------------------------------------
    cdef readonly RowSlot slot
    cdef readonly ProducerTable producers
    cdef ProducerMap* producer_map
    cdef char* directory                    # every file is opened by its full path, so that idle ones need no fd
    cdef Segment* segments
    cdef int segment_count
    cdef int segment_capacity
    cdef uint32_t exchanges                 # of the row's generations, so many were exchanges of segments: they cut nothing
    cdef Lookup lookup                      # where batches stand
    cdef Rules rules
    cdef int closed_code                    # what to answer while not `open`
    cdef int32_t index_interval_bytes
    cdef int64_t segment_bytes
    cdef int64_t segment_age_max_ms         # segment.ms less this partition's jitter
    cdef int64_t index_size_max
    cdef int64_t flush_interval             # flush.messages; the ack waits when so many would be unflushed
    cdef public bint follows_end            # HW follows LEO by itself (the only replica); else a replication layer moves it
    cdef public bint notify_log             # call log.on_advance() when HW moves: somebody waits there
    cdef GroupCommit group_commit           # who flushes the plain case; None: log.flusher does all
    cdef Sync* sync                         # our place there, made at the first flush
    cdef bint flush_asked                   # a flush is on its way, or under way
    cdef bint flush_again                   # and another is wanted after it
    cdef public bint flush_by_log           # the next flush is log.flusher's: it must take small files along
    cdef public bint notify_flush           # call log.on_flushed() when a flush has ended: somebody waits there
    cdef public int64_t filling_at          # the size of the active segment at which log.on_filling() is called, once
    cdef OpenTransactions transactions      # those that hold LSO back
    cdef Guards guards                      # those that are about to begin
    cdef readonly uint32_t guard            # of the last try_append or ask_guard that answered NEED_TRANSACTION
    cdef readonly int wants                 # why the last append said NEED_PYTHON: WANTS_ROLL or WANTS_SLOW_PATH
    cdef int written                        # of a batch that was written ahead: see try_append
    cdef int unpacking                      # connections of other workers that have a batch for it unpacked (produce_forwarding.pyx)
    cdef readonly int failure               # the errno that took this partition offline

    cdef int admit(self, const uint8_t* records, int64_t now_ms, bint last, AppendInfo* info) noexcept nogil
    cdef int append_checked(self, uint8_t* records, size_t size, int origin, int32_t epoch, int64_t now_ms,
                            AppendInfo* info) noexcept nogil
    cdef Segment* active(self) noexcept nogil
    cdef int open_for_append(self, Segment* segment) noexcept nogil
    cdef bint must_roll(self, Segment* segment, int64_t size, int64_t max_timestamp, int64_t last_offset,
                        int64_t now_ms) noexcept nogil
    cdef int locate(self, Segment* segment, int64_t target, int64_t limit, int64_t* position,
                    int64_t* batch_size) noexcept nogil
    cdef void row_begin(self) noexcept nogil
    cdef void row_end(self) noexcept nogil
    cdef void move_stable(self) noexcept nogil
    cdef void tell(self, int why) noexcept nogil
    cdef void ask_flush(self) noexcept nogil
    cdef bint commit(self) noexcept nogil
    cdef void trim(self, Segment* segment) noexcept nogil
    cdef void committed(self, Sync* sync) noexcept
    cdef int refused(self, int failure, const char* doing) noexcept nogil
    cdef int raise_refused(self, int failure, const char* doing) except -1
    cdef int note_abort(self, Segment* segment, int64_t producer_id, int64_t last_offset, int64_t* before) noexcept nogil
    cdef tuple boundary_of(self, int64_t offset)
    cdef int release_file(self, Segment* segment) except -1
    cdef bint put_high_watermark(self, int64_t offset, int64_t segment, int64_t position) noexcept

    # -- the reactor's -------------------------------------------------------------------------------------

    # One client batch (the `records` field of one partition in a Produce). The bytes are patched in place and
    # written by one pwritev. 0 when appended or recognised as a duplicate; NEED_PYTHON when `log.append_client`
    # must decide (roll, compression, …); NEED_TRANSACTION when the transaction's coordinator must, and `info.guard` is
    # what to come with afterwards; else a Kafka error code. `info.admission` and `info.guard` are the caller's to set.
    cdef int append(self, uint8_t* records, size_t size, int64_t now_ms, AppendInfo* info) noexcept nogil

    # Where to read from `offset`: batches from the one that holds it, up to max_bytes (or the whole first
    # batch when `at_least_one`; the first alone when max_bytes would cut the second), below HW (isolation 0) or LSO
    # (isolation 1). 0, NEED_PYTHON, OFFSET_OUT_OF_RANGE, NOT_LEADER_OR_FOLLOWER, KAFKA_STORAGE_ERROR, or FENCED/UNKNOWN_
    # LEADER_EPOCH when `leader_epoch` >= 0 differs; COLD where `lookup.cold` is set.
    cdef int read(self, int64_t offset, int64_t max_bytes, bint at_least_one, int isolation, int32_t leader_epoch,
                  ReadInfo* info) noexcept nogil

    # Whether the files have the names that the segments are known by. A reader asks after it has opened one.
    cdef bint has_names(self) noexcept nogil

    # A reader's: copies the shared row anew. Why waiters may be answered now (Advance), 0 when nothing moved.
    cdef int look(self) noexcept nogil

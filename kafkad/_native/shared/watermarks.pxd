"""The shared table of partition rows: see watermarks.pyx.

The row is 256 bytes in shared memory, written under a sequence lock by its owner only:

    0    sequence u32 (odd while written) | partition i32 | topic_id 16 bytes | generation u32 | leader_epoch i32 | …
    192  waiters, the one word that readers write, on a cache line with what changes rarely
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

cdef struct Row:
    uint32_t sequence
    int32_t partition
    uint8_t topic_id[16]
    uint32_t generation             # raised by swap, re-creation and truncation: readers drop their segment lists
    int32_t leader_epoch            # the partition's, whoever leads it; -1: it has no role here yet, or no more
    int64_t log_end_offset
    int64_t high_watermark
    int64_t last_stable_offset
    int64_t log_start_offset
    int64_t local_log_start_offset  # base offset of the first segment: readers forget what lies below
    int64_t flushed_offset
    int64_t highest_tiered_offset
    int64_t end_segment             # base offset and position of LEO, HW and LSO
    int64_t end_position
    int64_t high_watermark_segment
    int64_t high_watermark_position
    int64_t stable_segment
    int64_t stable_position
    int64_t aborted_end             # behind the newest abort marker: from here on nothing was aborted; 0: nothing ever
    int32_t led_since               # the term: the leader epoch in which we began to lead without a break; -1: we follow
    uint32_t state                  # the table's: RowState, and of a row that is taken by whom
    int64_t durable_offset          # LEO, as far as our own flush policy lets it: what acks=1 waits for
    int64_t epoch_start             # where the current epoch of a leader begins
    int32_t partition_epoch
    uint32_t epochs_changed         # counts changes of the leader epochs that are no new role: truncations, appended epochs
    uint8_t role                    # Role
    uint8_t isr_count               # as committed: what min.insync.replicas is held against before an append
    uint8_t isr_count_max           # with those that an AlterPartition in flight may add: after HW has passed it
    uint8_t isr_count_min           # min.insync.replicas, at most as many as there are replicas
    int32_t last_epoch              # the latest leader epoch that the log has; -1: none
    int32_t leader_id               # -1: nobody leads
    uint32_t spare
    uint64_t waiters                # one bit a worker that wants its doorbell rung on advance
    int64_t replicas_start          # at a leader: where all logs of the ISR's followers have started; one word, read as it is
    uint8_t more_spare[48]          # to 256 bytes

cdef enum:
    ROW_WORDS = 24                  # what readers copy: up to `waiters`
    STATE_WORD = 18                 # which of them has `state`

cdef enum Role:                     # of the broker, for this partition
    ROLE_NONE = 0                   # not known yet, nobody leads, or it serves nothing any more
    ROLE_FOLLOWER = 1
    ROLE_LEADER = 2

cdef enum RowState:
    ROW_NEW = 0                     # never used
    ROW_TAKEN = 1                   # | worker << 2 | pid << 8
    ROW_FREE = 2

cdef extern from * nogil:
    """
    #define kafkad_store(p, v) __atomic_store_n((p), (v), __ATOMIC_RELEASE)
    #define kafkad_load(p) __atomic_load_n((p), __ATOMIC_ACQUIRE)
    #define kafkad_fence() __atomic_thread_fence(__ATOMIC_SEQ_CST)
    """
    void kafkad_store(uint32_t* p, uint32_t value)
    uint32_t kafkad_load(const uint32_t* p)
    void kafkad_fence()


# Around every change, by the row's owner alone. What a dead owner left odd is even again after the next pair.
cdef inline void row_begin(Row* row) noexcept nogil:
    kafkad_store(&row.sequence, row.sequence | 1)
    kafkad_fence()


cdef inline void row_end(Row* row) noexcept nogil:
    kafkad_store(&row.sequence, (row.sequence | 1) + 1)


# Copies the row while nobody writes it. False when it is being written all the time, or a dead writer left it odd.
cdef bint row_read(const Row* shared, Row* copy) noexcept nogil

# Copies the row although it may be in the middle of a change. Each value is right, but they may belong to several moments of
# one term. False when the term ends meanwhile.
cdef bint row_peek(const Row* shared, Row* copy) noexcept nogil

cdef class WatermarkTable:
    cdef uint8_t* base              # the rows, and the count of those that were ever given
    cdef uint64_t* count
    cdef readonly size_t capacity
    cdef readonly int fd
    cdef readonly bint shared       # several processes allocate
    cdef object free_rows           # array: given back in this process
    cdef dict found                 # (topic id, index) -> number, of all rows when this process first asked
    cdef object found_by            # its pid
    cdef int me                     # the worker that this process is
    cdef Row* at(self, size_t number) noexcept
    cdef RowSlot slot(self, size_t number)
    cdef RowSlot cleared(self, size_t number)
    cdef uint32_t taken(self) except 0      # the state of a row that this process takes

cdef class RowSlot:
    cdef WatermarkTable table       # None: the row is private to this process
    cdef readonly size_t number
    cdef uint8_t* at                # 256 bytes, a partition.Row
    cdef bint owned                 # `at` is heap memory of this slot's
    cdef readonly bint viewed       # another worker's row: never written, zeroed or given back here

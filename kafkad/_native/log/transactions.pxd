"""A partition's transactions that hold back its last stable offset: see transactions.pyx."""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t

from kafkad._native.log.producer_table cimport ProducerMap

cdef enum:
    MARKER_SIZE = 78                # bytes of a control batch with one end-of-transaction marker

cdef struct Transaction:
    int64_t first_offset
    int64_t stable_offset           # what LSO is while this one is the oldest: `first_offset`, or the log start above it
    int64_t segment                 # where `stable_offset` stands
    int64_t position
    int64_t marker_offset           # of the marker that ended it; -1: it is open

cdef struct OpenTransactions:       # in the order of first offsets; zeros to begin with
    Transaction* places             # NULL until the first transaction
    int32_t head                    # those before it have been popped
    int32_t end
    int32_t capacity

# Makes room for one more, so that `transactions_begin` cannot fail after the write. 0, or -ENOMEM.
cdef int transactions_reserve(OpenTransactions* open, int64_t high_watermark) noexcept nogil

# A transaction began at the end of the log. There is room.
cdef void transactions_begin(OpenTransactions* open, int64_t first_offset, int64_t segment, int64_t position) noexcept nogil

# The marker of the one that began at `first_offset` was appended. It holds LSO until HW has passed the marker.
cdef void transactions_end(OpenTransactions* open, int64_t first_offset, int64_t marker_offset) noexcept nogil

# The oldest one that holds LSO at this high watermark, NULL when none does.
cdef Transaction* transactions_oldest(OpenTransactions* open, int64_t high_watermark) noexcept nogil

# What LSO will be, as the index of aborted transactions has it, when the one that began at `first_offset` ends with the
# marker at `marker_offset`: the first offset of the oldest other one that is open, or the offset behind the marker.
cdef int64_t transactions_stable_after(const OpenTransactions* open, int64_t first_offset, int64_t marker_offset) noexcept nogil

# LSO is not below `offset`, which stands at this place.
cdef void transactions_raise(OpenTransactions* open, int64_t offset, int64_t segment, int64_t position) noexcept nogil

# What began and, of those that have ended, what was ended below `end_offset`, the log's end: the open ones anew from the
# table. Their `position` is -1: the caller says where they stand. 0, or -ENOMEM.
cdef int transactions_rebuild(OpenTransactions* open, const ProducerMap* producers, int64_t end_offset) noexcept nogil

cdef void transactions_free(OpenTransactions* open) noexcept nogil

# Whether a marker may end the transaction of its producer: 0, or Kafka's error code. `version` is the
# transaction.version that the coordinator wrote it under.
cdef int marker_check(const ProducerMap* producers, int64_t producer_id, int16_t epoch, int32_t coordinator_epoch,
                      int version) noexcept nogil

# Writes MARKER_SIZE bytes: a control batch with one marker. Base offset and leader epoch are left to the append.
cdef void marker_write(uint8_t* out, int64_t producer_id, int16_t epoch, int32_t coordinator_epoch, bint commit,
                       int64_t now_ms) noexcept nogil

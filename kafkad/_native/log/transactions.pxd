"""The transactions that hold back a partition's last stable offset: see transactions.pyx."""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t

from kafkad._native.log.producer_table cimport ProducerMap

cdef enum:
    MARKER_SIZE = 78                # bytes of a control batch with one end-of-transaction marker

cdef struct Transaction:
    int64_t first_offset
    int64_t stable_offset           # LSO while this is the oldest transaction: `first_offset`, or the log start if higher
    int64_t segment                 # position of `stable_offset`
    int64_t position
    int64_t marker_offset           # of the marker that ended it; -1: it is open

cdef struct OpenTransactions:       # ordered by first offset; zeros to begin with
    Transaction* places             # NULL until the first transaction
    int32_t head                    # entries before it are removed
    int32_t end
    int32_t capacity

# Makes room for one more, so that `transactions_begin` cannot fail after the write. 0, or -ENOMEM.
cdef int transactions_reserve(OpenTransactions* open, int64_t high_watermark) noexcept nogil

# A transaction began at the end of the log. There is room.
cdef void transactions_begin(OpenTransactions* open, int64_t first_offset, int64_t segment, int64_t position) noexcept nogil

# The marker of the transaction that began at `first_offset` was appended. LSO is held until HW has passed the marker.
cdef void transactions_end(OpenTransactions* open, int64_t first_offset, int64_t marker_offset) noexcept nogil

# The oldest transaction that holds LSO at this high watermark, or NULL.
cdef Transaction* transactions_oldest(OpenTransactions* open, int64_t high_watermark) noexcept nogil

# What LSO will be, for the index of aborted transactions, when the transaction that began at `first_offset` ends with
# the marker at `marker_offset`: the first offset of the oldest other open transaction, or the offset after the marker.
cdef int64_t transactions_stable_after(const OpenTransactions* open, int64_t first_offset, int64_t marker_offset) noexcept nogil

# Raises LSO to at least `offset`, which stands at this position.
cdef void transactions_raise(OpenTransactions* open, int64_t offset, int64_t segment, int64_t position) noexcept nogil

# Rebuilds the list for a log that ends at `end_offset`: the open transactions from the table, and the ended ones that
# are below the end. The `position` of rebuilt ones is -1: the caller sets it. 0, or -ENOMEM.
cdef int transactions_rebuild(OpenTransactions* open, const ProducerMap* producers, int64_t end_offset) noexcept nogil

cdef void transactions_free(OpenTransactions* open) noexcept nogil

# Whether a marker may end the transaction of its producer: 0, or Kafka's error code. `version`: the transaction.version
# under which the coordinator wrote it.
cdef int marker_check(const ProducerMap* producers, int64_t producer_id, int16_t epoch, int32_t coordinator_epoch,
                      int version) noexcept nogil

# Writes MARKER_SIZE bytes: a control batch with one marker. The append sets base offset and leader epoch.
cdef void marker_write(uint8_t* out, int64_t producer_id, int16_t epoch, int32_t coordinator_epoch, bint commit,
                       int64_t now_ms) noexcept nogil

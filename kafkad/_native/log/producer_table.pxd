"""The idempotent producers of one partition: see producer_table.pyx."""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t

cdef enum:
    BATCHES_KEPT = 5            # Kafka's NUM_BATCHES_TO_RETAIN: as many as a client may have in flight

cdef struct ProducerBatch:
    int32_t last_sequence
    int32_t offset_delta        # last offset - first offset, and last sequence - first sequence
    int64_t last_offset
    int64_t timestamp

cdef struct Producer:
    int64_t producer_id         # -1: a free slot
    int16_t epoch
    int16_t batch_count
    int32_t coordinator_epoch
    int64_t last_timestamp
    int64_t transaction_start   # first offset of the open transaction, -1 when none
    bint last_only              # read from a snapshot, which has the last batch only; the log has the others
    ProducerBatch batches[BATCHES_KEPT]     # oldest first

cdef struct ProducerMap:
    Producer* places            # open addressing, linear probing, a power of two; NULL while empty
    int32_t count
    int32_t capacity

cdef Producer* producer_find(const ProducerMap* map, int64_t producer_id) noexcept nogil

cdef enum:
    ASK_LOG = -2                # a verdict: out of order as far as known, but `last_only` is set: check the log
    MAY_SKIP = -3               # a verdict: a producer that is not known does not begin at sequence 0
    HAS_ENDED = -4              # a verdict: the sequence is that of a batch of an ended transaction

# Checks the next batch of a producer. 0: in sequence, or not checked; -1: a retry, and `duplicate` is the first copy;
# ASK_LOG; MAY_SKIP, which Kafka accepts; HAS_ENDED, which Kafka takes for a retry; otherwise Kafka's error code.
# `sequenced`: False for batches not from a client, whose sequence is not checked. A batch that is not `transactional` is
# refused while its producer has an open transaction.
cdef int producer_check(const ProducerMap* map, int64_t producer_id, int16_t epoch, int32_t base_sequence,
                        int32_t offset_delta, bint sequenced, bint transactional, ProducerBatch* duplicate) noexcept nogil

# Makes room for one more producer, so that `producer_record` cannot fail after the write. 0, or -ENOMEM.
cdef int producer_reserve(ProducerMap* map) noexcept nogil

# A data batch was appended: records it.
cdef void producer_record(ProducerMap* map, int64_t producer_id, int16_t epoch, int32_t base_sequence, int64_t base_offset,
                          int64_t last_offset, int64_t timestamp, bint transactional) noexcept nogil

# An end-of-transaction marker was appended. Returns the first offset of the transaction that it ends, or -1.
cdef int64_t producer_end(ProducerMap* map, int64_t producer_id, int16_t epoch, int32_t coordinator_epoch,
                          int64_t timestamp) noexcept nogil

# The lowest first offset of an open transaction, or -1.
cdef int64_t producer_first_unstable(const ProducerMap* map) noexcept nogil

cdef void producers_clear(ProducerMap* map) noexcept nogil

# Parses an end-of-transaction marker in a control batch. 0: abort, 1: commit, -1: another control record, or malformed.
cdef int parse_marker(const uint8_t* batch, int64_t size, int32_t* coordinator_epoch) noexcept nogil

cdef class ProducerTable:
    cdef ProducerMap map

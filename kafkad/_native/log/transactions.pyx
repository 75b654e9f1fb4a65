"""The transactions that hold back a partition's last stable offset (LSO), and the markers that end them.

A transaction holds LSO at its first offset, from its first batch until the high watermark has passed its marker, like
Kafka's ongoing and unreplicated transactions. A marker that is only in the page cache may be lost; readers of committed
data would then have seen records that are aborted later.

New transactions begin at the end of the log, so a list ordered by first offset grows at its tail and shrinks at its
head. A marker finds its transaction by bisection, because the producer table knows where it began. A transaction that
ended after an older open one stays in the list until the list is full; then all that HW has passed are removed at
once."""

from libc.errno cimport ENOMEM
from libc.stdint cimport INT16_MAX, int16_t, int32_t, int64_t, uint8_t
from libc.stdlib cimport free, malloc, qsort
from libc.string cimport memset

from kafkad._native.log.producer_table cimport Producer, ProducerMap, producer_find
from kafkad._native.wire.batch cimport CONTROL, LENGTH_OVERHEAD, TRANSACTIONAL
from kafkad._native.wire.crc32c cimport crc32c
from kafkad._native.wire.primitives cimport KAFKAD_CHECK, put_i16, put_i32, put_i64
from kafkad._native.wire.errors cimport INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED
from kafkad._native.wire.batch_layout cimport (
    ATTRIBUTES_AT, BASE_SEQUENCE_AT, BASE_TIMESTAMP_AT, CRC_AT, LENGTH_AT, MAGIC_AT, MAX_TIMESTAMP_AT,
    PRODUCER_EPOCH_AT, PRODUCER_ID_AT, RECORDS_COUNT_AT,
)

cdef enum:
    CAPACITY_MIN = 8
    MAGIC = 2
    RECORD_AT = 61


cdef inline bint is_over(const Transaction* transaction, int64_t high_watermark) noexcept nogil:
    return 0 <= transaction.marker_offset < high_watermark


cdef int transactions_reserve(OpenTransactions* open, int64_t high_watermark) noexcept nogil:
    cdef int32_t i, kept = 0, capacity
    cdef Transaction* places
    if open.end < open.capacity:
        return 0
    for i in range(open.head, open.end):
        if not is_over(&open.places[i], high_watermark):
            open.places[kept] = open.places[i]
            kept += 1
    open.head = 0
    open.end = kept
    if kept * 2 <= open.capacity and kept < open.capacity:
        return 0
    capacity = open.capacity * 2 if open.capacity else CAPACITY_MIN
    places = <Transaction*>malloc(<size_t>capacity * sizeof(Transaction))
    if places == NULL:
        return 0 if kept < open.capacity else -ENOMEM
    for i in range(kept):
        places[i] = open.places[i]
    free(open.places)
    open.places = places
    open.capacity = capacity
    return 0


cdef void transactions_begin(OpenTransactions* open, int64_t first_offset, int64_t segment, int64_t position) noexcept nogil:
    cdef int32_t at = open.end
    cdef Transaction* transaction
    KAFKAD_CHECK(open.end < open.capacity)
    while at > open.head and open.places[at - 1].first_offset > first_offset:   # out of order: a snapshot was wrong
        open.places[at] = open.places[at - 1]
        at -= 1
    transaction = &open.places[at]
    transaction.first_offset = first_offset
    transaction.stable_offset = first_offset
    transaction.segment = segment
    transaction.position = position
    transaction.marker_offset = -1
    open.end += 1


cdef void transactions_end(OpenTransactions* open, int64_t first_offset, int64_t marker_offset) noexcept nogil:
    cdef int32_t low = open.head, high = open.end, middle
    while low < high:
        middle = low + (high - low) // 2
        if open.places[middle].first_offset < first_offset:
            low = middle + 1
        else:
            high = middle
    if low < open.end and open.places[low].first_offset == first_offset:
        open.places[low].marker_offset = marker_offset


cdef Transaction* transactions_oldest(OpenTransactions* open, int64_t high_watermark) noexcept nogil:
    while open.head < open.end:
        if not is_over(&open.places[open.head], high_watermark):
            return &open.places[open.head]
        open.head += 1
    open.head = 0
    open.end = 0
    return NULL


cdef int64_t transactions_stable_after(const OpenTransactions* open, int64_t first_offset, int64_t marker_offset) noexcept nogil:
    cdef int32_t i
    for i in range(open.head, open.end):
        if open.places[i].marker_offset < 0 and open.places[i].first_offset != first_offset:
            return open.places[i].first_offset
    return marker_offset + 1


cdef void transactions_raise(OpenTransactions* open, int64_t offset, int64_t segment, int64_t position) noexcept nogil:
    cdef int32_t i
    for i in range(open.head, open.end):
        if open.places[i].first_offset >= offset:
            break
        if open.places[i].stable_offset < offset:
            open.places[i].stable_offset = offset
            open.places[i].segment = segment
            open.places[i].position = position


cdef int by_first_offset(const void* one, const void* other) noexcept nogil:
    cdef int64_t a = (<const Transaction*>one).first_offset
    cdef int64_t b = (<const Transaction*>other).first_offset
    return (a > b) - (a < b)


cdef int transactions_rebuild(OpenTransactions* open, const ProducerMap* producers, int64_t end_offset) noexcept nogil:
    cdef OpenTransactions fresh
    cdef Transaction* place
    cdef int32_t i, wanted = open.end - open.head
    memset(&fresh, 0, sizeof(fresh))
    for i in range(producers.capacity):
        if producers.places[i].producer_id != -1 and 0 <= producers.places[i].transaction_start < end_offset:
            wanted += 1
    if wanted:
        fresh.capacity = max(wanted, <int32_t>CAPACITY_MIN)
        fresh.places = <Transaction*>malloc(<size_t>fresh.capacity * sizeof(Transaction))
        if fresh.places == NULL:
            return -ENOMEM
    for i in range(open.head, open.end):
        if 0 <= open.places[i].marker_offset < end_offset:
            fresh.places[fresh.end] = open.places[i]
            fresh.end += 1
    for i in range(producers.capacity):
        if producers.places[i].producer_id != -1 and 0 <= producers.places[i].transaction_start < end_offset:
            place = &fresh.places[fresh.end]
            place.first_offset = producers.places[i].transaction_start
            place.stable_offset = place.first_offset
            place.segment = -1
            place.position = -1
            place.marker_offset = -1
            fresh.end += 1
    if fresh.end:
        qsort(fresh.places, fresh.end, sizeof(Transaction), by_first_offset)
    free(open.places)
    open[0] = fresh
    return 0


cdef void transactions_free(OpenTransactions* open) noexcept nogil:
    free(open.places)
    memset(open, 0, sizeof(OpenTransactions))


# -- markers -----------------------------------------------------------------------------------------------

cdef int marker_check(const ProducerMap* producers, int64_t producer_id, int16_t epoch, int32_t coordinator_epoch,
                      int version) noexcept nogil:
    # Under transaction.version 2 the coordinator raises the epoch before it writes the marker. So an equal epoch is
    # that of a repeated marker of an ended transaction, or of a marker at the highest epoch (KAFKA-19999).
    cdef const Producer* producer = producer_find(producers, producer_id)
    if producer == NULL:
        if epoch < -1:
            return INVALID_PRODUCER_EPOCH
        return TRANSACTION_COORDINATOR_FENCED if coordinator_epoch < -1 else 0
    if epoch < producer.epoch:
        return INVALID_PRODUCER_EPOCH
    if version >= 2 and epoch == producer.epoch and producer.transaction_start >= 0 and epoch != INT16_MAX:
        return INVALID_PRODUCER_EPOCH
    return TRANSACTION_COORDINATOR_FENCED if coordinator_epoch < producer.coordinator_epoch else 0


cdef void marker_write(uint8_t* out, int64_t producer_id, int16_t epoch, int32_t coordinator_epoch, bint commit,
                       int64_t now_ms) noexcept nogil:
    cdef uint8_t* record = out + RECORD_AT
    memset(out, 0, MARKER_SIZE)
    put_i32(out + LENGTH_AT, MARKER_SIZE - LENGTH_OVERHEAD)
    out[MAGIC_AT] = MAGIC
    put_i16(out + ATTRIBUTES_AT, TRANSACTIONAL | CONTROL)
    put_i64(out + BASE_TIMESTAMP_AT, now_ms)
    put_i64(out + MAX_TIMESTAMP_AT, now_ms)
    put_i64(out + PRODUCER_ID_AT, producer_id)
    put_i16(out + PRODUCER_EPOCH_AT, epoch)
    put_i32(out + BASE_SEQUENCE_AT, -1)
    put_i32(out + RECORDS_COUNT_AT, 1)
    record[0] = 16 << 1                 # its length; attributes, timestamp delta and offset delta are 0
    record[4] = 4 << 1                  # the key: version 0 and the marker's type
    put_i16(record + 7, 1 if commit else 0)
    record[9] = 6 << 1                  # the value: version 0 and the coordinator's epoch
    put_i32(record + 12, coordinator_epoch)
    put_i32(out + CRC_AT, <int32_t>crc32c(out + ATTRIBUTES_AT, MARKER_SIZE - ATTRIBUTES_AT))

"""The idempotent producers of one partition, in C: which batch may follow.

Every producer id keeps its last five batches. So a retry is recognised (same epoch, same sequence range) and answered
with the first copy's offsets, and a gap is refused. A transactional batch with the sequence of one of an ended
transaction is not one of its retries, which a client sends before it ends the transaction: librdkafka uses the sequence
of a batch again that it has sent and then dropped. The rules are those of Kafka's ProducerAppendInfo: an old epoch is
INVALID_PRODUCER_EPOCH; a new epoch must begin at sequence 0; an unknown producer may begin anywhere (MAY_SKIP),
because its records may have been deleted; 0 follows 2^31 - 1. `kafkad.log.producer_state` handles time and files."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.errno cimport ENOMEM
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memmove, memset

from kafkad._native.wire.primitives cimport (
    KAFKAD_CHECK, Cursor, cursor_init, put_i16, put_i32, put_i64, read_i8, read_i16, read_i32, read_varint, read_varlong)
from kafkad._native.wire.errors cimport INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE, OUT_OF_ORDER_SEQUENCE_NUMBER

cdef enum:
    SEQUENCE_MAX = 0x7FFFFFFF
    CAPACITY_MIN = 4
    ENTRY_SIZE = 46                     # of a snapshot


cdef inline uint64_t spread(int64_t producer_id) noexcept nogil:
    cdef uint64_t h = <uint64_t>producer_id * 0x9E3779B97F4A7C15ULL
    return h ^ (h >> 32)


cdef inline int32_t first_sequence(const ProducerBatch* batch) noexcept nogil:
    # Sequences wrap from 2^31 - 1 to 0.
    cdef int64_t first = <int64_t>batch.last_sequence - batch.offset_delta
    return <int32_t>(first if first >= 0 else first + SEQUENCE_MAX + 1)


cdef inline int32_t sequence_after(int32_t base_sequence, int32_t delta) noexcept nogil:
    cdef int64_t last = <int64_t>base_sequence + delta
    return <int32_t>(last if last <= SEQUENCE_MAX else last - SEQUENCE_MAX - 1)


cdef Producer* producer_find(const ProducerMap* map, int64_t producer_id) noexcept nogil:
    cdef int32_t mask, at
    if map.count == 0:
        return NULL
    mask = map.capacity - 1
    at = <int32_t>(spread(producer_id) & <uint64_t>mask)
    while map.places[at].producer_id != -1:
        if map.places[at].producer_id == producer_id:
            return &map.places[at]
        at = (at + 1) & mask
    return NULL


cdef int producer_check(const ProducerMap* map, int64_t producer_id, int16_t epoch, int32_t base_sequence,
                        int32_t offset_delta, bint sequenced, bint transactional, ProducerBatch* duplicate) noexcept nogil:
    cdef Producer* producer = producer_find(map, producer_id)
    cdef int32_t last_sequence, i
    cdef int fit
    if producer == NULL:
        if epoch < -1:                                          # Kafka compares with -1, the epoch of no producer
            return INVALID_PRODUCER_EPOCH
        return MAY_SKIP if sequenced and base_sequence > 0 else 0
    if sequenced and epoch == producer.epoch:
        last_sequence = sequence_after(base_sequence, offset_delta)
        for i in range(producer.batch_count):
            if (producer.batches[i].last_sequence == last_sequence
                    and first_sequence(&producer.batches[i]) == base_sequence):
                duplicate[0] = producer.batches[i]
                if transactional and (producer.transaction_start < 0
                                      or producer.batches[i].last_offset < producer.transaction_start):
                    return HAS_ENDED                            # a retry comes before its transaction ends
                return -1
    if epoch < producer.epoch:
        return INVALID_PRODUCER_EPOCH
    fit = INVALID_TXN_STATE if producer.transaction_start >= 0 and not transactional else 0
    if not sequenced:
        return fit
    if epoch != producer.epoch:
        return OUT_OF_ORDER_SEQUENCE_NUMBER if base_sequence != 0 and producer.epoch != -1 else fit
    last_sequence = producer.batches[producer.batch_count - 1].last_sequence if producer.batch_count else -1
    if base_sequence == sequence_after(last_sequence, 1):
        return fit
    return ASK_LOG if producer.last_only else OUT_OF_ORDER_SEQUENCE_NUMBER


cdef Producer* take_place(ProducerMap* map, int64_t producer_id) noexcept nogil:
    # Returns the slot for a producer that is not in the table; there is room.
    cdef int32_t mask = map.capacity - 1
    cdef int32_t at = <int32_t>(spread(producer_id) & <uint64_t>mask)
    KAFKAD_CHECK(map.count < map.capacity)
    while map.places[at].producer_id != -1:
        at = (at + 1) & mask
    map.count += 1
    memset(&map.places[at], 0, sizeof(Producer))
    map.places[at].producer_id = producer_id
    map.places[at].epoch = -1
    map.places[at].coordinator_epoch = -1
    map.places[at].last_timestamp = -1
    map.places[at].transaction_start = -1
    return &map.places[at]


cdef int resize(ProducerMap* map, int32_t capacity) noexcept nogil:
    cdef ProducerMap larger
    cdef int32_t i
    larger.places = <Producer*>malloc(<size_t>capacity * sizeof(Producer))
    if larger.places == NULL:
        return -ENOMEM
    larger.capacity = capacity
    larger.count = 0
    for i in range(capacity):
        larger.places[i].producer_id = -1
    for i in range(map.capacity):
        if map.places[i].producer_id != -1:
            take_place(&larger, map.places[i].producer_id)[0] = map.places[i]
    free(map.places)
    map[0] = larger
    return 0


cdef int producer_reserve(ProducerMap* map) noexcept nogil:
    # At most three quarters full, so that a search always ends.
    if map.capacity == 0:
        return resize(map, CAPACITY_MIN)
    if (map.count + 1) * 4 > map.capacity * 3:
        return resize(map, map.capacity * 2)
    return 0


cdef inline void set_epoch(Producer* producer, int16_t epoch) noexcept nogil:
    if producer.epoch != epoch:
        producer.batch_count = 0
        producer.epoch = epoch
        producer.last_only = False


cdef inline void keep_batch(Producer* producer, const ProducerBatch* batch) noexcept nogil:
    if producer.batch_count == BATCHES_KEPT:
        memmove(&producer.batches[0], &producer.batches[1], (BATCHES_KEPT - 1) * sizeof(ProducerBatch))
        producer.batch_count -= 1
    producer.batches[producer.batch_count] = batch[0]
    producer.batch_count += 1


cdef void producer_record(ProducerMap* map, int64_t producer_id, int16_t epoch, int32_t base_sequence, int64_t base_offset,
                          int64_t last_offset, int64_t timestamp, bint transactional) noexcept nogil:
    cdef Producer* producer = producer_find(map, producer_id)
    cdef ProducerBatch batch
    if producer == NULL:
        producer = take_place(map, producer_id)
    batch.offset_delta = <int32_t>(last_offset - base_offset)
    batch.last_sequence = sequence_after(base_sequence, batch.offset_delta) if base_sequence >= 0 else -1
    batch.last_offset = last_offset
    batch.timestamp = timestamp
    set_epoch(producer, epoch)
    keep_batch(producer, &batch)
    producer.last_timestamp = timestamp
    if transactional and producer.transaction_start < 0:
        producer.transaction_start = base_offset


cdef int64_t producer_end(ProducerMap* map, int64_t producer_id, int16_t epoch, int32_t coordinator_epoch,
                          int64_t timestamp) noexcept nogil:
    cdef Producer* producer = producer_find(map, producer_id)
    cdef int64_t start
    if producer == NULL:
        producer = take_place(map, producer_id)
    start = producer.transaction_start
    set_epoch(producer, epoch)
    producer.coordinator_epoch = coordinator_epoch
    producer.last_timestamp = timestamp
    producer.transaction_start = -1
    return start


cdef int64_t producer_first_unstable(const ProducerMap* map) noexcept nogil:
    cdef int64_t first = -1
    cdef int32_t i
    if map.count == 0:
        return -1
    for i in range(map.capacity):
        if map.places[i].producer_id != -1 and map.places[i].transaction_start >= 0:
            if first < 0 or map.places[i].transaction_start < first:
                first = map.places[i].transaction_start
    return first


cdef void producers_clear(ProducerMap* map) noexcept nogil:
    free(map.places)
    memset(map, 0, sizeof(ProducerMap))


cdef int parse_marker(const uint8_t* batch, int64_t size, int32_t* coordinator_epoch) noexcept nogil:
    cdef Cursor c
    cdef int16_t kind
    if size <= 61:
        return -1
    cursor_init(&c, batch + 61, size - 61)
    read_varint(&c)                         # length
    read_i8(&c)                             # attributes
    read_varlong(&c)                        # timestamp delta
    read_varint(&c)                         # offset delta
    if read_varint(&c) < 4:                 # key: version, type
        return -1
    read_i16(&c)
    kind = read_i16(&c)
    if c.failed or (kind != 0 and kind != 1) or read_varint(&c) < 6:
        return -1
    read_i16(&c)
    coordinator_epoch[0] = read_i32(&c)
    return -1 if c.failed else kind


cdef inline ProducerBatch last_batch(const Producer* p) noexcept nogil:
    """Return the last batch as a snapshot stores it: -1 if the producer has appended nothing."""
    cdef ProducerBatch none
    if p.batch_count:
        return p.batches[p.batch_count - 1]
    none.last_sequence = -1
    none.offset_delta = 0
    none.last_offset = -1
    none.timestamp = -1
    return none


cdef class ProducerTable:
    """The producers of one partition. Rows are tuples (producer_id, epoch, last_sequence, last_offset, offset_delta,
    timestamp, coordinator_epoch, transaction_start), as a snapshot keeps them; -1 stands for none."""

    def __dealloc__(self):
        producers_clear(&self.map)

    def __len__(self) -> int:
        return self.map.count

    def load(self, int64_t producer_id, int16_t epoch, int32_t last_sequence, int64_t last_offset, int32_t offset_delta,
             int64_t timestamp, int32_t coordinator_epoch, int64_t transaction_start) -> None:
        """Add one entry of a snapshot. An entry with the same producer id is replaced."""
        cdef Producer* producer
        cdef ProducerBatch batch
        if producer_id < 0:
            return
        if producer_reserve(&self.map) != 0:
            raise MemoryError()
        producer = producer_find(&self.map, producer_id)
        if producer == NULL:
            producer = take_place(&self.map, producer_id)
        producer.epoch = epoch
        producer.coordinator_epoch = coordinator_epoch
        producer.last_timestamp = timestamp
        producer.transaction_start = transaction_start if transaction_start >= 0 else -1
        producer.batch_count = 0
        producer.last_only = True
        if last_offset >= 0:
            batch.last_sequence = last_sequence
            batch.last_offset = last_offset
            batch.offset_delta = offset_delta
            batch.timestamp = timestamp
            keep_batch(producer, &batch)

    def rows(self) -> list:
        cdef list out = []
        cdef Producer* p
        cdef ProducerBatch last
        cdef int32_t i
        for i in range(self.map.capacity):
            p = &self.map.places[i]
            if p.producer_id == -1:
                continue
            last = last_batch(p)
            out.append((p.producer_id, p.epoch, last.last_sequence, last.last_offset, last.offset_delta,
                        p.last_timestamp, p.coordinator_epoch, p.transaction_start))
        return out

    def entries(self) -> bytes:
        """`rows` in the format of a producer snapshot: a count, then 46 bytes each."""
        cdef bytes out = PyBytes_FromStringAndSize(NULL, 4 + <Py_ssize_t>self.map.count * ENTRY_SIZE)
        cdef uint8_t* at = <uint8_t*>PyBytes_AS_STRING(out)
        cdef Producer* p
        cdef ProducerBatch last
        cdef int32_t i, count = 0
        put_i32(at, self.map.count)
        at += 4
        for i in range(self.map.capacity):
            p = &self.map.places[i]
            if p.producer_id == -1:
                continue
            last = last_batch(p)
            put_i64(at, p.producer_id)
            put_i16(at + 8, p.epoch)
            put_i32(at + 10, last.last_sequence)
            put_i64(at + 14, last.last_offset)
            put_i32(at + 22, last.offset_delta)
            put_i64(at + 26, p.last_timestamp)
            put_i32(at + 34, p.coordinator_epoch)
            put_i64(at + 38, p.transaction_start)
            at += ENTRY_SIZE
            count += 1
        KAFKAD_CHECK(count == self.map.count)
        return out

    def recall(self, ProducerTable replayed not None) -> None:
        """Complete entries from a snapshot with the batches that `replayed` found in the log. Nothing is `last_only`
        afterwards. The log may lack the last batch: cleaned when there was a later one, and cut since."""
        cdef Producer* p
        cdef Producer* found
        cdef int32_t i
        for i in range(self.map.capacity):
            p = &self.map.places[i]
            if p.producer_id == -1 or not p.last_only:
                continue
            p.last_only = False
            found = producer_find(&replayed.map, p.producer_id)
            if found != NULL and found.epoch == p.epoch and found.batch_count >= p.batch_count and (
                    p.batch_count == 0 or last_batch(found).last_offset == last_batch(p).last_offset):
                p.batches = found.batches
                p.batch_count = found.batch_count

    def clear(self) -> None:
        producers_clear(&self.map)

    def take(self, ProducerTable other not None) -> None:
        """Have the producers of `other`, which has ours afterwards."""
        cdef ProducerMap swap = self.map
        self.map = other.map
        other.map = swap

    def remove_expired(self, int64_t now_ms, int64_t expiration_ms) -> int:
        """Forget producers without an open transaction whose last record is that old. Return how many."""
        cdef ProducerTable kept = ProducerTable()
        cdef ProducerMap swap
        cdef Producer* p
        cdef int32_t i, gone = 0
        for i in range(self.map.capacity):
            p = &self.map.places[i]
            if p.producer_id != -1 and p.transaction_start < 0 and now_ms - p.last_timestamp >= expiration_ms:
                gone += 1
        if gone == 0:
            return 0
        for i in range(self.map.capacity):
            p = &self.map.places[i]
            if p.producer_id == -1 or (p.transaction_start < 0 and now_ms - p.last_timestamp >= expiration_ms):
                continue
            if producer_reserve(&kept.map) != 0:
                raise MemoryError()
            take_place(&kept.map, p.producer_id)[0] = p[0]
        swap = self.map
        self.map = kept.map
        kept.map = swap
        return gone

    def check(self, int64_t producer_id, int16_t epoch, int32_t base_sequence, int32_t offset_delta,
              bint sequenced=True, bint transactional=False) -> tuple:
        """(code, first offset or -1, last offset or -1), as `producer_check` returns it. For tests and tools."""
        cdef ProducerBatch duplicate
        cdef int code = producer_check(
            &self.map, producer_id, epoch, base_sequence, offset_delta, sequenced, transactional, &duplicate)
        if code == -1:
            return (-1, duplicate.last_offset - duplicate.offset_delta, duplicate.last_offset)
        if code == ASK_LOG:
            code = OUT_OF_ORDER_SEQUENCE_NUMBER
        return (0 if code == MAY_SKIP else OUT_OF_ORDER_SEQUENCE_NUMBER if code == HAS_ENDED else code, -1, -1)

    def record(self, int64_t producer_id, int16_t epoch, int32_t base_sequence, int64_t base_offset, int64_t last_offset,
               int64_t timestamp, bint transactional=False) -> None:
        if producer_reserve(&self.map) != 0:
            raise MemoryError()
        producer_record(&self.map, producer_id, epoch, base_sequence, base_offset, last_offset, timestamp, transactional)

    def end_transaction(self, int64_t producer_id, int16_t epoch, int32_t coordinator_epoch, int64_t timestamp) -> int:
        if producer_reserve(&self.map) != 0:
            raise MemoryError()
        return producer_end(&self.map, producer_id, epoch, coordinator_epoch, timestamp)

    def first_unstable(self) -> int:
        return producer_first_unstable(&self.map)

"""Appends that wait for a coordinator to begin or verify a transaction, in C.

The first batch of a transaction in a partition may be appended only if the transaction coordinator knows that the
partition is part of the transaction. Otherwise nobody would ever end it there (KIP-890). So the first try gets a guard,
a number, and the coordinator is asked; the second try brings the guard. If the transaction ends between the two tries,
its marker removes the guard, and the second try is refused, as with Kafka's VerificationGuard. One worker appends to a
partition, so comparing a number is enough. If the partition had another leader between the two tries, the client gets
NOT_LEADER_OR_FOLLOWER and sends the batch again: the transaction may go on.

While batches wait for the coordinator, a later batch must not overtake the first: the first would be out of sequence
for ever. `lowest_sequence` is the lowest sequence that came."""

from libc.stdint cimport INT64_MAX, int16_t, int32_t, int64_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset

from kafkad._native.log.producer_table cimport Producer, ProducerMap, producer_find
from kafkad._native.wire.errors cimport (
    INVALID_PRODUCER_EPOCH, INVALID_REQUEST, INVALID_TXN_STATE, NOT_LEADER_OR_FOLLOWER, OUT_OF_ORDER_SEQUENCE_NUMBER,
)

cdef enum:
    CAPACITY_MIN = 8
    GUARDS_MAX = 10_000             # per partition


cdef inline int32_t home_of(const Guards* guards, int64_t producer_id) noexcept nogil:
    cdef uint64_t h = <uint64_t>producer_id * 0x9E3779B97F4A7C15ULL
    return <int32_t>((h ^ (h >> 32)) & <uint64_t>(guards.capacity - 1))


cdef Guard* find(const Guards* guards, int64_t producer_id) noexcept nogil:
    cdef int32_t at
    if guards.count == 0:
        return NULL
    at = home_of(guards, producer_id)
    while guards.places[at].producer_id != -1:
        if guards.places[at].producer_id == producer_id:
            return &guards.places[at]
        at = (at + 1) & (guards.capacity - 1)
    return NULL


cdef Guard* place(Guards* guards, int64_t producer_id) noexcept nogil:
    # Takes a free slot; there is room.
    cdef int32_t at = home_of(guards, producer_id)
    while guards.places[at].producer_id != -1:
        at = (at + 1) & (guards.capacity - 1)
    guards.places[at].producer_id = producer_id
    guards.count += 1
    return &guards.places[at]


cdef bint rebuild(Guards* guards, int32_t capacity, int64_t before_ms) noexcept nogil:
    # Copies the table without older guards. False: no memory, and nothing has changed.
    cdef Guards fresh = guards[0]
    cdef int32_t i
    fresh.places = <Guard*>malloc(<size_t>capacity * sizeof(Guard))
    if fresh.places == NULL:
        return False
    fresh.capacity = capacity
    fresh.count = 0
    for i in range(capacity):
        fresh.places[i].producer_id = -1
    for i in range(guards.capacity):
        if guards.places[i].producer_id != -1 and guards.places[i].since_ms >= before_ms:
            place(&fresh, guards.places[i].producer_id)[0] = guards.places[i]
    free(guards.places)
    guards[0] = fresh
    return True


cdef Guard* make(Guards* guards, int64_t producer_id) noexcept nogil:
    cdef Guard* guard
    if guards.count >= GUARDS_MAX:
        return NULL
    if (guards.count + 1) * 4 > guards.capacity * 3 and not rebuild(
            guards, guards.capacity * 2 if guards.capacity else CAPACITY_MIN, -INT64_MAX):
        return NULL
    guard = place(guards, producer_id)
    guards.last += 1
    if guards.last == 0:
        guards.last = 1
    guard.number = guards.last
    return guard


cdef void remove(Guards* guards, Guard* guard) noexcept nogil:
    # Move up the entries behind it, so that a search still ends at the first free slot.
    cdef int32_t mask = guards.capacity - 1
    cdef int32_t hole = <int32_t>(guard - guards.places), at = hole, home
    while True:
        at = (at + 1) & mask
        if guards.places[at].producer_id == -1:
            break
        home = home_of(guards, guards.places[at].producer_id)
        if ((at - home) & mask) >= ((at - hole) & mask):
            guards.places[hole] = guards.places[at]
            hole = at
    guards.places[hole].producer_id = -1
    guards.count -= 1


cdef int guards_admit(Guards* guards, const ProducerMap* producers, int request, int64_t producer_id, int16_t epoch,
                      int32_t base_sequence, int64_t now_ms, bint last, uint32_t* guard) noexcept nogil:
    cdef const Producer* producer = producer_find(producers, producer_id)
    cdef Guard* known
    if request == PLAIN:
        return INVALID_REQUEST
    if producer != NULL and producer.epoch == epoch and producer.transaction_start >= 0:
        return 0
    if producer != NULL and epoch < producer.epoch:
        return INVALID_PRODUCER_EPOCH
    if request == UNVERIFIED:
        return 0
    known = find(guards, producer_id)
    if guard[0] != 0:
        if guard[0] <= guards.forgotten:
            return NOT_LEADER_OR_FOLLOWER
        if known == NULL or known.number != guard[0]:
            return INVALID_TXN_STATE
        if known.implicit and base_sequence > 0 and producer == NULL:
            return OUT_OF_ORDER_SEQUENCE_NUMBER
        return OUT_OF_ORDER_SEQUENCE_NUMBER if base_sequence > known.lowest_sequence else 0
    if last:
        return INVALID_TXN_STATE
    if known == NULL:
        known = make(guards, producer_id)
        if known == NULL:
            return INVALID_TXN_STATE
        known.since_ms = now_ms
        known.epoch = epoch
        known.lowest_sequence = base_sequence
        known.implicit = request == IMPLICIT
    elif epoch > known.epoch:
        known.epoch = epoch
        known.lowest_sequence = base_sequence
    elif epoch == known.epoch and base_sequence < known.lowest_sequence:
        known.lowest_sequence = base_sequence
    guard[0] = known.number
    return NEED_TRANSACTION


cdef void guards_appended(Guards* guards, int64_t producer_id, int16_t epoch, bint marker) noexcept nogil:
    # Under TV2 the epoch rises with each transaction: the marker of the one before keeps the guard of the next.
    cdef Guard* guard = find(guards, producer_id)
    if guard != NULL and not (marker and guard.implicit and guard.epoch == epoch):
        remove(guards, guard)


cdef void guards_expire(Guards* guards, int64_t before_ms) noexcept nogil:
    if guards.count:
        rebuild(guards, guards.capacity, before_ms)


cdef void guards_free(Guards* guards) noexcept nogil:
    cdef uint32_t last = guards.last            # a number is never given twice
    free(guards.places)
    memset(guards, 0, sizeof(Guards))
    guards.last = guards.forgotten = last

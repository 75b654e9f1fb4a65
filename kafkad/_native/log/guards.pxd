"""Appends that wait for a coordinator to begin or verify a transaction: see guards.pyx."""

from libc.stdint cimport int16_t, int32_t, int64_t, uint32_t

from kafkad._native.log.producer_table cimport ProducerMap

cdef enum:
    NEED_TRANSACTION = -1001        # a verdict: ask the transaction coordinator, and try again with the guard

cdef enum Admission:                # how the request of an append relates to transactions
    PLAIN = 0                       # not at all
    ADDED = 1                       # the client adds partitions to the transaction (TV0, TV1): the coordinator verifies it
    IMPLICIT = 2                    # the first batch adds the partition (TV2): the coordinator adds it
    UNVERIFIED = 3                  # as ADDED, with transaction.partition.verification.enable off

cdef struct Guard:
    int64_t producer_id             # -1: a free slot
    int64_t since_ms
    uint32_t number                 # never 0
    int32_t lowest_sequence         # lowest sequence that came: no later one is appended before it
    int16_t epoch
    bint implicit

cdef struct Guards:                 # zeros to begin with
    Guard* places                   # open addressing, a power of two; NULL until the first guard
    int32_t count
    int32_t capacity
    uint32_t last                   # the last number given
    uint32_t forgotten              # the last number of an earlier term

# What an append of this transactional batch needs. 0: nothing. NEED_TRANSACTION: come again with `guard`. Otherwise
# Kafka's error code. `guard` in: the guard that the append brought, 0: none. `last`: the append is about to be done, so
# no question is asked any more.
cdef int guards_admit(Guards* guards, const ProducerMap* producers, int request, int64_t producer_id, int16_t epoch,
                      int32_t base_sequence, int64_t now_ms, bint last, uint32_t* guard) noexcept nogil

# A transactional batch of the producer was appended, or its marker.
cdef void guards_appended(Guards* guards, int64_t producer_id, int16_t epoch, bint marker) noexcept nogil

# Forgets guards that were given before `before_ms` and never used.
cdef void guards_expire(Guards* guards, int64_t before_ms) noexcept nogil

# Forgets all: the term ends.
cdef void guards_free(Guards* guards) noexcept nogil

"""Who asked a coordinator to begin a transaction in a partition: see guards.pyx."""

from libc.stdint cimport int16_t, int32_t, int64_t, uint32_t

from kafkad._native.log.producer_table cimport ProducerMap

cdef enum:
    NEED_TRANSACTION = -1001        # a verdict: ask the transaction's coordinator, and come again with the guard

cdef enum Admission:                # what the request that an append came in says of transactions
    PLAIN = 0                       # nothing
    ADDED = 1                       # the client adds its partitions by itself (TV0, TV1): the coordinator is asked whether
    IMPLICIT = 2                    # the first batch adds the partition (TV2): the coordinator is asked to add it
    UNVERIFIED = 3                  # as ADDED, and transaction.partition.verification.enable is off

cdef struct Guard:
    int64_t producer_id             # -1: a free place
    int64_t since_ms
    uint32_t number                 # never 0
    int32_t lowest_sequence         # that was asked for: no later one is appended before it
    int16_t epoch
    bint implicit

cdef struct Guards:                 # zeros to begin with
    Guard* places                   # open addressing, a power of two; NULL until the first
    int32_t count
    int32_t capacity
    uint32_t last                   # the number that was given last

# What an append of this transactional batch needs: 0, nothing; NEED_TRANSACTION, and `guard` is what to come with; else
# Kafka's error code. `guard` is what the append came with, 0 for none. `last`: the append is about to be done, and
# nothing is asked any more.
cdef int guards_admit(Guards* guards, const ProducerMap* producers, int request, int64_t producer_id, int16_t epoch,
                      int32_t base_sequence, int64_t now_ms, bint last, uint32_t* guard) noexcept nogil

# A transactional batch of the producer was appended, or its marker.
cdef void guards_appended(Guards* guards, int64_t producer_id, int16_t epoch, bint marker) noexcept nogil

# Forgets those that nobody came back with since `before_ms`.
cdef void guards_expire(Guards* guards, int64_t before_ms) noexcept nogil

cdef void guards_free(Guards* guards) noexcept nogil

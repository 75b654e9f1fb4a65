"""Partitions by (topic name, index) and (topic id, index), for lookups without the GIL. See partition_table.pyx."""

from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from kafkad._native.log.partition cimport Partition

cdef struct TopicKey:               # a topic's name and id; shared by the table, fetch sessions and waiting requests
    int32_t references
    bint has_name
    bint has_id
    uint8_t id[16]
    uint64_t name_hash
    uint64_t id_hash
    uint32_t name_size
    char name[1]                    # name_size bytes

cdef struct Watch:                  # a link in an entry's list of waiters; first member of what waits
    Watch* previous
    Watch* next
    Entry* entry                    # NULL: not linked

cdef struct Entry:                  # one partition of this worker
    PyObject* partition             # Partition, with a reference
    Table* table
    TopicKey* key
    int32_t index
    bint internal                   # clients may not produce to it
    bint removed
    Watch* produces                 # ordered by offset
    Watch* last_produce
    Watch* fetches
    bint remote                     # owned by another worker: its partition is a reader
    bint moving                     # its leadership: Produces wait for the new leader (produce_leaving.pyx)
    uint32_t advanced               # why it is in the pending list; 0: it is not
    uint64_t named                  # number of the last Produce that named it among others
    Entry* pending_next

cdef struct Topic:
    TopicKey* key
    Topic* name_next
    Topic* id_next
    bint internal
    int32_t capacity
    int32_t count
    Entry** entries                 # by partition index; NULL: not here
    uint64_t named                  # as in an entry

ctypedef void (*WakeFunction)(void* context) noexcept nogil
ctypedef void (*RingFunction)(void* context, uint32_t row, uint64_t workers) noexcept nogil

cdef struct Table:
    uint64_t seed
    uint32_t buckets                # a power of two
    uint32_t topics
    Topic** by_name
    Topic** by_id
    uint64_t generation             # raised by every change: cached Entry pointers must be looked up again
    Entry* pending                  # advanced since the reactor last looked
    Entry* graveyard                # removed; freed when nothing can hold a pointer any more
    WakeFunction wake
    void* wake_context
    Entry** by_row                  # by number of the shared row; NULL: not here
    size_t row_capacity
    RingFunction ring               # with several workers: notifies those in the bit set that the row advanced
    void* ring_context
    int me                          # this worker's bit

cdef uint64_t hash_bytes(uint64_t seed, const void* data, size_t size) noexcept nogil

cdef TopicKey* key_new(Table* table, const char* name, size_t name_size, const uint8_t* id) noexcept nogil
cdef inline TopicKey* key_retain(TopicKey* key) noexcept nogil:
    key.references += 1
    return key
cdef void key_release(TopicKey* key) noexcept nogil

cdef Topic* topic_by_name(Table* table, const char* name, size_t size) noexcept nogil
cdef Topic* topic_by_key(Table* table, const TopicKey* key) noexcept nogil      # by its name
cdef Topic* topic_by_id(Table* table, const uint8_t* id) noexcept nogil
cdef bint same_name(const TopicKey* one, const TopicKey* other) noexcept nogil

cdef inline Entry* topic_entry(Topic* topic, int32_t index) noexcept nogil:
    if topic is NULL or index < 0 or index >= topic.capacity:
        return NULL
    return topic.entries[index]

cdef inline Entry* entry_by_row(Table* table, size_t row) noexcept nogil:
    return table.by_row[row] if row < table.row_capacity else NULL

# Partition.advanced: the waiters of this entry may be answered now, in the next turn.
cdef void table_advanced(void* context, void* partition, int why) noexcept nogil

# The owner of a row reports that it advanced.
cdef void table_remote_advanced(Table* table, size_t row) noexcept nogil

# Makes the owner of a remote entry with waiters notify this worker, and checks for advances before that took effect.
cdef void table_listen(Entry* entry) noexcept nogil

# A worker died: wakes the waiters of its entries, because notifications may be lost.
cdef void table_owner_lost(Table* table, int owner) noexcept nogil

cdef void watch_produce(Entry* entry, Watch* watch) noexcept nogil
cdef void watch_fetch(Entry* entry, Watch* watch) noexcept nogil
cdef void unwatch(Watch* watch, bint is_produce) noexcept nogil

cdef class PartitionTable:
    cdef Table table
    cdef dict partitions            # (name, index) -> Partition
    cdef object ringing             # `ring` in Python
    cdef void detach(self, Entry* entry) noexcept
    cdef void bury_entry(self, Entry* entry) noexcept
    cdef void bury(self) noexcept   # free removed entries; between turns only

"""Fetch sessions (KIP-227) as C. See fetch_session.pyx."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from kafkad._native.serving.partition_table cimport Entry, Table, TopicKey, Watch

cdef struct Fetched:                # one partition of a session
    Watch watch                     # must be the first field; linked while a Fetch of the session waits
    Session* session
    TopicKey* key                   # retained
    int32_t index
    int32_t leader_epoch            # the client's; -1: do not check
    int32_t last_epoch              # of the last batch that the client has; -1: do not compare logs
    int32_t bytes_max
    int64_t offset
    int64_t high_watermark          # as last sent to the client
    int64_t log_start_offset
    int64_t replica_start           # a follower's log start; -1 for consumers
    Entry* entry                    # valid while `generation` is the table's
    uint64_t generation
    int64_t available               # bytes of it that a waiting Fetch has counted
    uint64_t right                  # twice the stamp of the subject it was decided for, plus 1 if reading is allowed
    Fetched* previous               # in the order of the next answer
    Fetched* next
    Fetched* bucket_next
    uint64_t hash

cdef struct Session:
    int32_t id                      # 0: was never in the cache
    bint cached
    int32_t epoch                   # of the next request
    bint uses_ids
    bint privileged
    int32_t references              # the cache's, and one per request
    int64_t created_ms
    int64_t used_ms
    int64_t orphaned_ms             # since when no connection has it; 0: one has it
    void* waiting                   # the Fetch that waits on it
    Fetched* first
    Fetched* last
    uint32_t count
    int64_t bytes                   # of memory, approximately
    int64_t* freed                  # counts them when they are freed
    uint32_t cached_count           # as the cache counted it
    uint32_t bucket_count           # a power of two
    Fetched** buckets
    Fetched* small_buckets[4]
    Session* bucket_next            # in the cache's table
    Session* older
    Session* newer

cdef struct SessionCache:
    Table* table
    uint32_t slots                  # max.incremental.fetch.session.cache.slots
    uint32_t count
    int64_t eviction_ms             # min.incremental.fetch.session.eviction.ms
    int64_t partitions              # of all cached sessions
    int64_t partitions_max
    int64_t evictions
    uint32_t orphans                # number of sessions without a connection
    int64_t orphan_ms               # how long such sessions stay
    int64_t look_ms                 # when to check them next
    uint32_t bucket_count
    Session** buckets
    Session* oldest                 # least recently used
    Session* newest
    uint64_t random

cdef void cache_init(SessionCache* cache, Table* table, uint32_t slots, int64_t eviction_ms,
                     int64_t partitions_max, int64_t orphan_ms) noexcept
cdef void cache_free(SessionCache* cache) noexcept
cdef Session* cache_find(SessionCache* cache, int32_t id) noexcept nogil
cdef bint cache_add(SessionCache* cache, Session* session, int64_t now_ms) noexcept nogil
cdef void cache_remove(SessionCache* cache, Session* session) noexcept nogil
cdef void cache_touch(SessionCache* cache, Session* session, int64_t now_ms) noexcept nogil
cdef void cache_orphan(SessionCache* cache, int32_t id, int64_t now_ms) noexcept nogil      # its connection has left it
cdef void cache_drop_orphans(SessionCache* cache, int64_t now_ms) noexcept nogil

cdef Session* session_new(bint uses_ids, int64_t* freed) noexcept nogil
cdef void session_release(Session* session) noexcept nogil
cdef Fetched* session_find(Session* session, TopicKey* key, int32_t index) noexcept nogil
cdef Fetched* session_add(Session* session, TopicKey* key, int32_t index) noexcept nogil   # or return the existing one
cdef void session_forget(Session* session, Fetched* fetched) noexcept nogil
cdef void session_move_last(Session* session, Fetched* fetched) noexcept nogil

cdef inline int32_t next_epoch(int32_t epoch) noexcept nogil:
    return 1 if epoch == 0x7FFFFFFF else epoch + 1

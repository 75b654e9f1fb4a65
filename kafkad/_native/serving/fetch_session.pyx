"""Fetch sessions (KIP-227): the partitions a consumer fetches, so that requests and answers carry only what changed.

A session is the ordered set of a consumer's partitions, each with its offset and limits, and the values last sent to
the client. A set is a small chained hash table with a list through it. The list's order is the order of the answer, and
a partition that returned data moves to the end, so none starves. A Fetch without a session uses the same struct during
the request.

The cache holds `slots` sessions. When it is full, a new session may replace one that was not used for `eviction_ms`,
otherwise the smallest that is older than that and has fewer partitions (FetchSessionCacheShard). Unlike Kafka, it also
counts the partitions of all sessions: beyond `partitions_max` a client gets no session, which is always a legal answer.

A session whose connection was closed, or has begun another session, is dropped after `orphan_ms`, unless a request
continues it. Clients begin a new session on a new connection; Kafka keeps the old one until its slot is needed.

Beware: a session that left the cache lives on while a request holds it."""

from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp, memset

from kafkad._native.serving.partition_table cimport Table, TopicKey, key_release, key_retain, same_name, unwatch
from kafkad._native.wire.primitives cimport KAFKAD_CHECK

import os

cdef enum:
    FREED_AT_A_TIME = 10_000       # partitions of sessions


# -- the partitions of a session ---------------------------------------------------------------------------

cdef Session* session_new(bint uses_ids, int64_t* freed) noexcept nogil:
    cdef Session* session = <Session*>malloc(sizeof(Session))
    KAFKAD_CHECK(session is not NULL)
    memset(session, 0, sizeof(Session))
    session.uses_ids = uses_ids
    session.references = 1
    session.freed = freed
    session.bucket_count = 4
    session.buckets = session.small_buckets
    return session


cdef void session_release(Session* session) noexcept nogil:
    cdef Fetched* fetched
    session.references -= 1
    if session.references:
        return
    KAFKAD_CHECK(session.waiting is NULL)
    session.freed[0] += session.bytes
    while session.first is not NULL:
        fetched = session.first
        session.first = fetched.next
        key_release(fetched.key)
        free(fetched)
    if session.buckets is not session.small_buckets:
        free(session.buckets)
    free(session)


cdef inline uint64_t fetched_hash(Session* session, TopicKey* key, int32_t index) noexcept nogil:
    cdef uint64_t hash = key.id_hash if session.uses_ids else key.name_hash
    hash = (hash ^ <uint64_t><uint32_t>index) * <uint64_t>0x9E3779B97F4A7C15
    return hash ^ (hash >> 32)


cdef inline bint same_topic(Session* session, TopicKey* one, TopicKey* other) noexcept nogil:
    if one is other:
        return True
    if session.uses_ids:
        return memcmp(one.id, other.id, 16) == 0
    return same_name(one, other)


cdef Fetched* session_find(Session* session, TopicKey* key, int32_t index) noexcept nogil:
    cdef uint64_t hash = fetched_hash(session, key, index)
    cdef Fetched* fetched = session.buckets[hash & (session.bucket_count - 1)]
    while fetched is not NULL:
        if fetched.hash == hash and fetched.index == index and same_topic(session, fetched.key, key):
            return fetched
        fetched = fetched.bucket_next
    return NULL


cdef void session_grow(Session* session) noexcept nogil:
    cdef uint32_t count = session.bucket_count * 4
    cdef Fetched** buckets = <Fetched**>calloc(count, sizeof(Fetched*))
    cdef Fetched* fetched = session.first
    KAFKAD_CHECK(buckets is not NULL)
    while fetched is not NULL:
        fetched.bucket_next = buckets[fetched.hash & (count - 1)]
        buckets[fetched.hash & (count - 1)] = fetched
        fetched = fetched.next
    if session.buckets is not session.small_buckets:
        free(session.buckets)
    session.buckets = buckets
    session.bucket_count = count


cdef inline void list_append(Session* session, Fetched* fetched) noexcept nogil:
    fetched.next = NULL
    fetched.previous = session.last
    if session.last is NULL:
        session.first = fetched
    else:
        session.last.next = fetched
    session.last = fetched


cdef inline void list_remove(Session* session, Fetched* fetched) noexcept nogil:
    if fetched.previous is NULL:
        session.first = fetched.next
    else:
        fetched.previous.next = fetched.next
    if fetched.next is NULL:
        session.last = fetched.previous
    else:
        fetched.next.previous = fetched.previous


cdef inline int64_t fetched_bytes(Session* session, Fetched* fetched) noexcept nogil:
    """Return its memory, with its bucket, and with its topic's key unless the neighbour has the same key."""
    cdef int64_t size = sizeof(Fetched) + 32
    if session.last is NULL or session.last.key is not fetched.key:
        size += sizeof(TopicKey) + 16 + fetched.key.name_size
    return size


cdef Fetched* session_add(Session* session, TopicKey* key, int32_t index) noexcept nogil:
    cdef Fetched* fetched = session_find(session, key, index)
    if fetched is not NULL:
        return fetched
    if session.count >= session.bucket_count:
        session_grow(session)
    fetched = <Fetched*>calloc(1, sizeof(Fetched))
    KAFKAD_CHECK(fetched is not NULL)
    fetched.session = session
    fetched.key = key_retain(key)
    fetched.index = index
    fetched.high_watermark = -1
    fetched.log_start_offset = -1
    fetched.generation = <uint64_t>-1
    fetched.hash = fetched_hash(session, key, index)
    fetched.bucket_next = session.buckets[fetched.hash & (session.bucket_count - 1)]
    session.buckets[fetched.hash & (session.bucket_count - 1)] = fetched
    session.bytes += fetched_bytes(session, fetched)
    list_append(session, fetched)
    session.count += 1
    return fetched


cdef void session_forget(Session* session, Fetched* fetched) noexcept nogil:
    cdef Fetched** link = &session.buckets[fetched.hash & (session.bucket_count - 1)]
    while link[0] is not fetched:
        link = &link[0].bucket_next
    link[0] = fetched.bucket_next
    unwatch(&fetched.watch, False)
    list_remove(session, fetched)
    session.count -= 1
    session.bytes = max(session.bytes - fetched_bytes(session, fetched), <int64_t>0)
    key_release(fetched.key)
    free(fetched)


cdef void session_move_last(Session* session, Fetched* fetched) noexcept nogil:
    if session.last is not fetched:
        list_remove(session, fetched)
        list_append(session, fetched)


# -- the cache ---------------------------------------------------------------------------------------------

cdef void cache_init(SessionCache* cache, Table* table, uint32_t slots, int64_t eviction_ms,
                     int64_t partitions_max, int64_t orphan_ms) noexcept:
    memset(cache, 0, sizeof(SessionCache))
    cache.table = table
    cache.slots = slots
    cache.eviction_ms = eviction_ms
    cache.partitions_max = partitions_max
    cache.orphan_ms = orphan_ms
    cache.bucket_count = 16
    while cache.bucket_count < slots and cache.bucket_count < 1 << 16:
        cache.bucket_count *= 2
    cache.buckets = <Session**>calloc(cache.bucket_count, sizeof(Session*))
    KAFKAD_CHECK(cache.buckets is not NULL)
    cache.random = int.from_bytes(os.urandom(8), "little") | 1


cdef void cache_free(SessionCache* cache) noexcept:
    while cache.oldest is not NULL:
        cache_remove(cache, cache.oldest)
    free(cache.buckets)
    cache.buckets = NULL


cdef Session* cache_find(SessionCache* cache, int32_t id) noexcept nogil:
    cdef Session* session = cache.buckets[<uint32_t>id & (cache.bucket_count - 1)]
    while session is not NULL and session.id != id:
        session = session.bucket_next
    return session


cdef int32_t fresh_id(SessionCache* cache) noexcept nogil:
    cdef int32_t id = 0
    while id == 0 or cache_find(cache, id) is not NULL:
        cache.random ^= cache.random << 13          # xorshift64
        cache.random ^= cache.random >> 7
        cache.random ^= cache.random << 17
        id = <int32_t>(cache.random >> 33)
    return id


cdef inline void used_remove(SessionCache* cache, Session* session) noexcept nogil:
    if session.older is NULL:
        cache.oldest = session.newer
    else:
        session.older.newer = session.newer
    if session.newer is NULL:
        cache.newest = session.older
    else:
        session.newer.older = session.older


cdef inline void used_append(SessionCache* cache, Session* session) noexcept nogil:
    session.newer = NULL
    session.older = cache.newest
    if cache.newest is NULL:
        cache.oldest = session
    else:
        cache.newest.newer = session
    cache.newest = session


cdef inline bint less_worth(Session* one, Session* other) noexcept nogil:
    if one.privileged != other.privileged:
        return one.privileged < other.privileged
    if one.count != other.count:
        return one.count < other.count
    return one.id < other.id


cdef bint make_room(SessionCache* cache, Session* session, int64_t now_ms) noexcept nogil:
    cdef Session* victim = cache.oldest
    cdef Session* least = NULL
    if victim is NULL:
        return False
    if now_ms - victim.used_ms > cache.eviction_ms:
        least = victim
    else:
        while victim is not NULL:                   # the least by (privileged, size, id) of those that may be evicted
            if now_ms - victim.created_ms > cache.eviction_ms or (session.privileged and not victim.privileged):
                if least is NULL or less_worth(victim, least):
                    least = victim
            victim = victim.newer
        if least is NULL or session.privileged < least.privileged or (
                session.privileged == least.privileged and session.count <= least.count):
            return False
    cache.evictions += 1
    cache_remove(cache, least)
    return True


cdef bint cache_add(SessionCache* cache, Session* session, int64_t now_ms) noexcept nogil:
    """Give the session an id and a slot, if one is available. The next request has epoch 1."""
    if cache.partitions + session.count > cache.partitions_max or cache.slots == 0:
        return False
    if cache.count >= cache.slots and not make_room(cache, session, now_ms):
        return False
    session.id = fresh_id(cache)
    session.cached = True
    session.epoch = 1
    session.created_ms = now_ms
    session.references += 1
    session.bucket_next = cache.buckets[<uint32_t>session.id & (cache.bucket_count - 1)]
    cache.buckets[<uint32_t>session.id & (cache.bucket_count - 1)] = session
    cache.count += 1
    session.used_ms = now_ms
    used_append(cache, session)
    session.cached_count = session.count
    cache.partitions += session.count
    return True


cdef void cache_remove(SessionCache* cache, Session* session) noexcept nogil:
    cdef Session** link = &cache.buckets[<uint32_t>session.id & (cache.bucket_count - 1)]
    while link[0] is not session:
        link = &link[0].bucket_next
    link[0] = session.bucket_next
    used_remove(cache, session)
    cache.count -= 1
    cache.partitions -= session.cached_count
    adopt(cache, session)
    session.cached = False
    session_release(session)


cdef void cache_touch(SessionCache* cache, Session* session, int64_t now_ms) noexcept nogil:
    cache.partitions += <int64_t>session.count - <int64_t>session.cached_count
    session.cached_count = session.count
    session.used_ms = now_ms
    adopt(cache, session)
    used_remove(cache, session)
    used_append(cache, session)


cdef inline void adopt(SessionCache* cache, Session* session) noexcept nogil:
    if session.orphaned_ms:
        session.orphaned_ms = 0
        cache.orphans -= 1


cdef void cache_orphan(SessionCache* cache, int32_t id, int64_t now_ms) noexcept nogil:
    cdef Session* session = cache_find(cache, id)
    if session is NULL or session.orphaned_ms:
        return
    session.orphaned_ms = max(now_ms, <int64_t>1)
    cache.orphans += 1
    if cache.orphans == 1:
        cache.look_ms = now_ms + cache.orphan_ms


cdef void cache_drop_orphans(SessionCache* cache, int64_t now_ms) noexcept nogil:
    """Drop those that are due. Freeing a session takes time, so each call is limited."""
    cdef Session* session = cache.oldest
    cdef Session* newer
    cdef uint32_t freed = 0
    if cache.orphans == 0 or now_ms < cache.look_ms:
        return
    cache.look_ms = now_ms + cache.orphan_ms
    while session is not NULL:
        newer = session.newer
        if session.orphaned_ms:
            if freed >= FREED_AT_A_TIME:
                cache.look_ms = now_ms + 1
                return
            if now_ms - session.orphaned_ms >= cache.orphan_ms:
                freed += session.count + 1
                cache_remove(cache, session)
            else:
                cache.look_ms = min(cache.look_ms, session.orphaned_ms + cache.orphan_ms)
        session = newer

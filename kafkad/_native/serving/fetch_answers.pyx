"""The answer of a Fetch: header bytes, and regions of log files between them.

An incremental answer has only partitions that changed since the previous one (KIP-227). An error that means "not the
leader" names the leader, and the answer ends with its address (KIP-951)."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcpy

from kafkad._native.serving.connection cimport Slot, slot_extend, slot_finish, slot_region
from kafkad._native.serving.fetch_session cimport Fetched, Session, cache_add, next_epoch, session_move_last
from kafkad._native.log.aborted cimport ABORTED_SIZE, TOLD_AT, TOLD_SIZE, Aborted
from kafkad._native.serving.leader_hints cimport LEADER_TAG_SIZE, is_of_leader, leader_of, nodes_named, put_leader
from kafkad._native.serving.partition_table cimport Entry, TopicKey
from kafkad._native.wire.down_conversion cimport Messages
from kafkad._native.wire.primitives cimport put_i16, put_i32, put_i64, put_uvarint
from kafkad._native.wire.errors cimport INVALID_FETCH_SESSION_EPOCH
from kafkad._native.serving.fetch_state cimport (
    FULL, INCREMENTAL, SESSIONLESS, FetchRequest, Fetching, Result, count_sessions, drop_aborted, drop_copy,
    drop_results, entry_of, hold_session, trim_results)

cdef enum:
    DIVERGING_EPOCH_TAG = 0
    CURRENT_LEADER_TAG = 1
    PARTITION_SIZE_MAX = 48             # of a partition's answer without aborted transactions, records and tags


cdef inline const void* bytes_of(object copy) noexcept:
    if isinstance(copy, Messages):
        return (<Messages>copy).data
    return PyBytes_AS_STRING(copy)


cdef void answer_results(Fetching self, FetchRequest* request, Slot* slot, uint32_t count) noexcept nogil:
    """Write the answer from `results`, and send it."""
    cdef Session* session = request.session
    cdef int16_t version = request.version
    cdef bint flexible = version >= 12
    cdef uint32_t kept = 0, topics = 0, i, j
    cdef bint names = False
    cdef Result* result
    cdef TopicKey* key = NULL
    cdef Entry* entry
    if request.context == INCREMENTAL:
        if session.epoch != next_epoch(request.session_epoch):
            drop_results(self, count)
            answer_error(slot, INVALID_FETCH_SESSION_EPOCH, session.id)
            return
        for i in range(count):
            result = &self.results[i]
            if changed(result):
                if result.read.size:
                    session_move_last(session, result.fetched)
                if kept != i:
                    self.results[kept] = result[0]
                kept += 1
        count = kept
    elif request.context == FULL:
        for i in range(count):
            changed(&self.results[i])
        if cache_add(&self.cache, session, self.core.monotonic_ms):
            hold_session(self, slot.conn, session)
        count_sessions(self)
    for i in range(count):                              # neighbours with the same topic share one element
        if i == 0 or self.results[i].fetched.key is not key:
            key = self.results[i].fetched.key
            topics += 1
        if names_leader(version, &self.results[i]):
            entry = entry_of(self, self.results[i].fetched)
            if entry is NULL:                           # led elsewhere: `read_all` has asked
                names = self.results[i].leader_id >= 0 or names
            else:
                names = leader_of(self, entry, &self.results[i].leader_id, &self.results[i].leader_epoch) or names
    put_head(slot, version, 0, session.id if request.context != SESSIONLESS else 0, topics, request.throttle_ms)
    i = 0
    while i < count:
        key = self.results[i].fetched.key
        j = i
        while j < count and self.results[j].fetched.key is key:
            j += 1
        put_topic(slot, version, key)
        put_count(slot, flexible, j - i)
        while i < j:
            put_partition(slot, version, request.isolation, &self.results[i])
            i += 1
        if flexible:
            slot_extend(slot, 1)[0] = 0
    if names:
        put_nodes(self, slot, count)
    elif flexible:
        slot_extend(slot, 1)[0] = 0
    trim_results(self)
    slot_finish(slot)


cdef void answer_error(Slot* slot, int16_t code, int32_t session_id) noexcept nogil:
    put_head(slot, slot.api_version, code, session_id, 0, 0)
    if slot.api_version >= 12:
        slot_extend(slot, 1)[0] = 0
    slot_finish(slot)


cdef void answer_throttled(Fetching self, FetchRequest* request, Slot* slot, uint32_t count) noexcept nogil:
    """Answer without partitions. The session is unchanged, so the next answer has the changes
    (FetchContext.getThrottledResponse)."""
    cdef Session* session = request.session
    cdef int16_t code = 0
    drop_results(self, count)
    if request.context == INCREMENTAL and session.epoch != next_epoch(request.session_epoch):
        code = INVALID_FETCH_SESSION_EPOCH
    put_head(slot, request.version, code, session.id if request.context == INCREMENTAL else 0, 0, request.throttle_ms)
    if request.version >= 12:
        slot_extend(slot, 1)[0] = 0
    slot_finish(slot)


cdef inline bint changed(Result* result) noexcept nogil:
    """Return whether an incremental answer has this partition, and note the values that it has (CachedPartition)."""
    cdef Fetched* fetched = result.fetched
    cdef bint tell = result.read.size > 0 or result.code != 0 or result.diverging_epoch >= 0 or result.preferred >= 0
    if fetched.high_watermark != result.read.high_watermark:
        fetched.high_watermark = result.read.high_watermark
        tell = True
    if fetched.log_start_offset != result.read.log_start_offset:
        fetched.log_start_offset = result.read.log_start_offset
        tell = True
    if result.code:
        fetched.high_watermark = -1                     # answered again when the error is over
    return tell


cdef void put_head(Slot* slot, int16_t version, int16_t code, int32_t session_id, uint32_t topics,
                   int32_t throttle_ms) noexcept nogil:
    cdef uint8_t* at
    if version >= 12:
        slot_extend(slot, 1)[0] = 0                     # tags of the header
    if version >= 1:
        put_i32(slot_extend(slot, 4), throttle_ms)
    if version >= 7:
        at = slot_extend(slot, 6)
        put_i16(at, code)
        put_i32(at + 2, session_id)
    put_count(slot, version >= 12, topics)


cdef void put_count(Slot* slot, bint flexible, uint32_t count) noexcept nogil:
    cdef uint8_t* at
    if flexible:
        at = slot_extend(slot, 5)
        slot.size -= <uint32_t>(5 - put_uvarint(at, count + 1))
    else:
        put_i32(slot_extend(slot, 4), <int32_t>count)


cdef void put_topic(Slot* slot, int16_t version, TopicKey* key) noexcept nogil:
    cdef uint8_t* at
    if version >= 13:
        memcpy(slot_extend(slot, 16), key.id, 16)
        return
    if version >= 12:
        at = slot_extend(slot, 5)
        slot.size -= <uint32_t>(5 - put_uvarint(at, key.name_size + 1))
    else:
        put_i16(slot_extend(slot, 2), <int16_t>key.name_size)
    memcpy(slot_extend(slot, key.name_size), key.name, key.name_size)


cdef void put_partition(Slot* slot, int16_t version, int isolation, Result* result) noexcept nogil:
    cdef bint flexible = version >= 12
    cdef uint8_t* start = slot_extend(slot, PARTITION_SIZE_MAX)
    cdef uint8_t* at = start
    cdef size_t size
    cdef int32_t aborted
    put_i32(at, result.fetched.index)
    put_i16(at + 4, <int16_t>result.code)
    put_i64(at + 6, result.read.high_watermark)
    at += 14
    if version >= 4:
        put_i64(at, result.read.last_stable_offset)
        at += 8
    if version >= 5:
        put_i64(at, result.read.log_start_offset)
        at += 8
    # Aborted transactions: empty for an unknown partition; null if not asked for, or if nothing was read.
    if result.unknown:
        aborted = 0
    elif result.code or result.diverging_epoch >= 0 or not isolation:
        aborted = -1
    else:
        aborted = <int32_t>result.aborted.count
    if flexible:
        at += put_uvarint(at, <uint32_t>(aborted + 1))
    elif version >= 4:
        put_i32(at, aborted)
        at += 4
    if result.aborted.entries is not NULL:
        slot.size -= <uint32_t>(PARTITION_SIZE_MAX - (at - start))
        put_aborted(slot, &result.aborted, flexible)
        drop_aborted(result)
        start = slot_extend(slot, PARTITION_SIZE_MAX)
        at = start
    if version >= 11:
        put_i32(at, result.preferred)                   # preferred_read_replica
        at += 4
    if flexible:
        at += put_uvarint(at, <uint32_t>result.read.size + 1)
    else:
        put_i32(at, <int32_t>result.read.size)
        at += 4
    slot.size -= <uint32_t>(PARTITION_SIZE_MAX - (at - start))
    if result.copy is not NULL:
        with gil:
            memcpy(slot_extend(slot, <size_t>result.read.size), bytes_of(<object><PyObject*>result.copy),
                   <size_t>result.read.size)
        drop_copy(result)
    elif result.read.size:
        slot_region(slot, result.read.file, result.read.position, result.read.size)
    if names_leader(version, result):
        put_leader(slot_extend(slot, LEADER_TAG_SIZE), CURRENT_LEADER_TAG, result.leader_id, result.leader_epoch)
    elif result.diverging_epoch >= 0:
        at = slot_extend(slot, 16)                      # one tag: number 0, 13 bytes, no tags of its own
        at[0] = 1
        at[1] = DIVERGING_EPOCH_TAG
        at[2] = 13
        put_i32(at + 3, result.diverging_epoch)
        put_i64(at + 7, result.diverging_end)
        at[15] = 0
    elif flexible:
        slot_extend(slot, 1)[0] = 0


cdef void put_aborted(Slot* slot, const Aborted* aborted, bint flexible) noexcept nogil:
    cdef size_t size = TOLD_SIZE + (1 if flexible else 0)
    cdef uint8_t* at = slot_extend(slot, <size_t>aborted.count * size)
    cdef int64_t i
    for i in range(aborted.count):
        memcpy(at, aborted.entries + i * ABORTED_SIZE + TOLD_AT, TOLD_SIZE)
        if flexible:
            at[TOLD_SIZE] = 0                           # no tagged fields
        at += size


cdef inline bint names_leader(int16_t version, const Result* result) noexcept nogil:
    """Whether the answer names the leader, because the client has a wrong or an old one (KIP-951)."""
    return version >= 16 and is_of_leader(result.code) and not result.unknown


cdef void put_nodes(Fetching self, Slot* slot, uint32_t count) noexcept nogil:
    cdef size_t size
    cdef uint32_t i
    with gil:
        named = set()
        for i in range(count):
            if names_leader(slot.api_version, &self.results[i]):
                named.add(self.results[i].leader_id)
        node = nodes_named(self, slot, named)
        if node is None:
            slot_extend(slot, 1)[0] = 0
        else:
            size = <size_t>PyBytes_GET_SIZE(node)
            memcpy(slot_extend(slot, size), PyBytes_AS_STRING(node), size)

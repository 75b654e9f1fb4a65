"""Fetch (key 1), v0 to v18, from the frame to the answer.

v0-3 messages of magic 0 and 1 (old_fetch.pyx). v1 throttle time. v3 max bytes. v4 isolation level. v5 log start offset.
v7 sessions (KIP-227). v9 leader epoch (KIP-320). v11 rack (near_replicas.pyx). v12 flexible, last fetched epoch (KIP-595).
v13 topic ids. v15 the replica state is a tag. v16 the answer names the current leader. v17 directory id and v18 high
watermark: sent by followers, not used here.

    session   each request has one: cached, new, or for this request only (fetch_session.pyx)
    read      the partitions in order, up to the byte limits; the first that has data gives at least one batch (KIP-74)
    wait      if there are too few bytes, the request waits on the entries of its partitions. When one advances, its bytes
              are counted again. At min_bytes, an error or the deadline the request is read again (DelayedFetch)
    answer    header bytes and regions of log files (fetch_answers.pyx); its size is charged to the client's quota

If another request of the session still waits, it is answered first: its session epoch is over.

A follower's Fetch reads up to the end of the log. Its offsets tell the leader how far the follower is
(`read_for_replica`). Consumers with v11 and later may read from followers, up to the high watermark known there (KIP-392)."""

from libc.stdint cimport INT32_MAX, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memset

from kafkad._native.wire.batch cimport NEED_PYTHON
from kafkad._native.serving.connection cimport Conn, Core, Slot, Timer, slot_open, slot_pend
from kafkad._native.serving.fetch_session cimport (
    Fetched, Session, cache_drop_orphans, cache_find, cache_orphan, cache_remove, cache_touch, next_epoch,
    session_add, session_find, session_forget, session_new, session_release)
from kafkad._native.serving.follower_mail cimport follower_flush
from kafkad._native.log.cold_reads cimport ColdJob
from kafkad._native.log.partition cimport Partition
from kafkad._native.log.partition_reads cimport ANY_REPLICA, OLDER_SEGMENT, ReadInfo
from kafkad._native.log.partition_state cimport ADVANCED_END, EPOCH_RAISED, PARTITION_GONE
from kafkad._native.log.segments cimport log_file_release
from kafkad._native.serving.leader_hints cimport begin_elsewhere, is_topic_elsewhere, key_elsewhere, led_elsewhere
from kafkad._native.serving.partition_table cimport (
    Entry, Topic, TopicKey, Watch, key_new, key_release, key_retain, table_advanced, table_listen, topic_by_id, topic_by_name,
    unwatch, watch_fetch)
from kafkad._native.shared.watermarks cimport Row
from kafkad._native.serving.near_replicas cimport find_near, rack_number
from kafkad._native.serving.old_fetch cimport CONVERTED_BELOW, answer_converted
from kafkad._native.serving.quota cimport (
    QUOTA_FETCH, quota_answer_max, quota_exempt, quota_fetched, quota_mute, quota_of, quota_overtime, quota_take, quota_turn_begin,
    quota_turn_end)
from kafkad._native.serving.timers cimport timer_start, timer_stop
from kafkad._native.serving.topic_rights cimport RIGHT_READ, may_replicate, may_topic, rights_of
from kafkad._native.serving.unpacking cimport unpack_now_ns
from kafkad._native.wire.primitives cimport (
    Cursor, KAFKAD_CHECK, get_i32, get_i64, read_i8, read_i16, read_i32, read_count, read_i64, read_raw, read_uvarint,
    remaining, skip_tags)
from kafkad._native.wire.errors cimport (
    FETCH_SESSION_ID_NOT_FOUND, FETCH_SESSION_TOPIC_ID_ERROR, INVALID_FETCH_SESSION_EPOCH, KAFKA_STORAGE_ERROR,
    NOT_LEADER_OR_FOLLOWER, OFFSET_OUT_OF_RANGE, TOPIC_AUTHORIZATION_FAILED, UNKNOWN_SERVER_ERROR, UNKNOWN_TOPIC_ID,
    UNKNOWN_TOPIC_OR_PARTITION)
from kafkad._native.serving.fetch_reads cimport (
    compare_logs, count_throttled, find_aborted, is_held_back, read_for_replica, read_python, read_warm)
from kafkad._native.serving.fetch_answers cimport answer_error, answer_results, answer_throttled
from kafkad._native.serving.fetch_state cimport (
    FULL, INCREMENTAL, SESSIONLESS, FetchRequest, Fetching, Result, WaitingFetch, count_sessions, drop_data,
    drop_results, entry_of, hold_session, patience_ms, requires)

cdef enum:
    INITIAL_EPOCH = 0                   # FetchMetadata: ask for a session
    FINAL_EPOCH = -1                    # close it, ask for none
    REPLICA_STATE_TAG = 1
    REQUEST_SIZE_MAX = 8 * 1024 * 1024
    # Limit for the topics and partitions of a request, with those to forget, and for the partitions of a session. A
    # partition costs 0.3 us and 200 bytes of memory (up to nine times its bytes in the request), so one request delays
    # others by at most about 25 ms.
    ELEMENTS_MAX = 64 * 1024
    DECIDING_NS = 4_000_000             # per turn, for asking the authorizer about one request
    HEAD_SIZE = 20                      # estimates: of an answer's head, and of a partition in it, without records
    PARTITION_SIZE = 60
    ANSWER_BYTES_MAX = 1 << 30          # of records: the whole answer must fit a frame

cdef const char* MALFORMED = "a Fetch does not parse"
cdef const char* TOO_MANY = "a Fetch names more than 65536 topics and partitions"


# -- parsing -----------------------------------------------------------------------------------------------

cdef TopicKey* read_topic(Fetching self, Cursor* body, int16_t version, bint wanted) noexcept nogil:
    """Parse a topic's name or id. Return its key (a new reference) if `wanted`, otherwise NULL."""
    cdef int32_t size
    cdef const uint8_t* data
    cdef Topic* topic
    if version >= 13:
        data = read_raw(body, 16)
        if not wanted:
            return NULL
        topic = topic_by_id(&self.table.table, data)
        return key_retain(topic.key) if topic is not NULL else key_new(&self.table.table, NULL, 0, data)
    size = <int32_t>read_uvarint(body) - 1 if version >= 12 else read_i16(body)
    if size < 0:
        body.failed = True
        return NULL
    data = read_raw(body, <size_t>size)
    if not wanted:
        return NULL
    topic = topic_by_name(&self.table.table, <char*>data, <size_t>size)
    return key_retain(topic.key) if topic is not NULL else key_new(&self.table.table, <char*>data, <size_t>size, NULL)


cdef void walk_topics(Fetching self, Cursor* body, int16_t version, Session* session, bint forget) noexcept nogil:
    """Parse topics and, with `forget`, topics to forget. Update `session` unless it is NULL."""
    cdef bint flexible = version >= 12
    cdef size_t smallest = 33 if version >= 12 else 28 if version >= 9 else 24 if version >= 5 else 16
    cdef size_t topic_smallest = 18 if version >= 13 else 3 if version >= 12 else 6
    cdef int64_t topics = read_count(body, flexible, topic_smallest)
    cdef int64_t parts
    cdef TopicKey* key
    cdef Fetched* fetched
    cdef int32_t index, leader_epoch, last_epoch, bytes_max
    cdef int64_t offset, log_start = -1
    self.elements += topics
    while topics and not body.failed:
        topics -= 1
        key = read_topic(self, body, version, session is not NULL)
        parts = read_count(body, flexible, smallest)
        self.elements += parts
        if self.elements > ELEMENTS_MAX:
            body.failed = True
        while parts and not body.failed:
            parts -= 1
            index = read_i32(body)
            leader_epoch = read_i32(body) if version >= 9 else -1
            offset = read_i64(body)
            last_epoch = read_i32(body) if version >= 12 else -1
            if version >= 5:
                log_start = read_i64(body)
            bytes_max = read_i32(body)
            if flexible:
                skip_tags(body)
            if session is not NULL:
                fetched = session_add(session, key, index)
                fetched.leader_epoch = leader_epoch
                fetched.last_epoch = last_epoch
                fetched.offset = offset
                fetched.replica_start = log_start
                fetched.bytes_max = max(bytes_max, 0)
        if flexible:
            skip_tags(body)
        if key is not NULL:
            key_release(key)
    if version < 7 or not forget:
        return
    topics = read_count(body, flexible, topic_smallest)
    self.elements += topics
    while topics and not body.failed:
        topics -= 1
        key = read_topic(self, body, version, session is not NULL)
        parts = read_count(body, flexible, 4)
        self.elements += parts
        if self.elements > ELEMENTS_MAX:
            body.failed = True
        while parts and not body.failed:
            parts -= 1
            index = read_i32(body)
            if session is not NULL:
                fetched = session_find(session, key, index)
                if fetched is not NULL:
                    session_forget(session, fetched)
        if flexible:
            skip_tags(body)
        if key is not NULL:
            key_release(key)


cdef bint parse(Fetching self, Cursor* body, FetchRequest* request, Cursor* topics) noexcept nogil:
    """Parse the whole body. `topics` is set to where the topics begin."""
    cdef int16_t version = request.version
    cdef uint32_t tags, tag, size
    cdef const uint8_t* data
    cdef int64_t rack
    if version >= 12:
        skip_tags(body)                                 # of the header
    request.replica_id = read_i32(body) if version <= 14 else -1
    request.replica_epoch = -1
    request.wait_ms_max = read_i32(body)
    request.bytes_min = read_i32(body)
    request.bytes_max = read_i32(body) if version >= 3 else INT32_MAX
    request.isolation = read_i8(body) if version >= 4 else 0
    request.session_id = read_i32(body) if version >= 7 else 0
    request.session_epoch = read_i32(body) if version >= 7 else FINAL_EPOCH
    topics[0] = body[0]
    self.elements = 0
    walk_topics(self, body, version, NULL, True)
    if version >= 11:
        rack = <int64_t>read_uvarint(body) - 1 if version >= 12 else read_i16(body)
        if rack < 0:
            return False
        data = read_raw(body, <size_t>rack)
        if self.racks is not NULL and data is not NULL:
            request.rack = rack_number(self, data, <size_t>rack)
    if version >= 12:
        tags = read_uvarint(body)
        while tags and not body.failed:
            tags -= 1
            tag = read_uvarint(body)
            size = read_uvarint(body)
            data = read_raw(body, size)
            if version >= 15 and tag == REPLICA_STATE_TAG and data is not NULL and size >= 12:
                request.replica_id = get_i32(data)
                request.replica_epoch = get_i64(data + 4)
    return not body.failed                              # bytes behind the body are ignored, as Kafka ignores them


# -- reading -----------------------------------------------------------------------------------------------

cdef inline bint is_start_news(const FetchRequest* request, const Fetched* fetched, const Row* row) noexcept nogil:
    """Whether a follower's log begins before ours, and its session has not told it yet. DeleteRecords waits for that."""
    return (request.replica_id >= 0 and request.context == INCREMENTAL and row.log_start_offset > fetched.replica_start
            and row.log_start_offset != fetched.log_start_offset)


cdef bint is_elsewhere(Fetching self, const FetchRequest* request, Fetched* fetched, Result* result) noexcept nogil:
    cdef TopicKey* key = fetched.key
    if is_undecided(request, fetched):
        return False
    if fetched.session.uses_ids:
        return led_elsewhere(self, key.id, -1, fetched.index, &result.leader_id, &result.leader_epoch)
    return key.has_name and led_elsewhere(self, key.name, <int32_t>key.name_size, fetched.index, &result.leader_id,
                                          &result.leader_epoch)


cdef int unknown_code(Fetching self, Fetched* fetched) noexcept nogil:
    if (fetched.session.uses_ids and topic_by_id(&self.table.table, fetched.key.id) is NULL
            and not is_topic_elsewhere(self, fetched.key.id)):
        return UNKNOWN_TOPIC_ID
    return UNKNOWN_TOPIC_OR_PARTITION


cdef uint32_t read_all(Fetching self, FetchRequest* request, Slot** slot, int64_t* bytes_read, bint* failed,
                       uint32_t* known) noexcept nogil:
    """Read every partition of the session in order into `results`; return their number. Python may run, and close the
    connection or set `slot[0]` to NULL."""
    cdef Session* session = request.session
    cdef Fetched* fetched
    cdef Result* result
    cdef Entry* entry
    cdef uint32_t count = 0
    cdef int64_t left = min(min(request.bytes_max, self.max_bytes), ANSWER_BYTES_MAX)
    cdef int64_t limit
    cdef bint at_least_one = True
    bytes_read[0] = 0
    failed[0] = False
    known[0] = 0
    self.cold_job = NULL
    requires(self, session.count)
    begin_elsewhere(self)
    left = max(left, 0)
    fetched = session.first
    while fetched is not NULL:
        result = &self.results[count]
        count += 1
        result.fetched = fetched
        result.copy = NULL
        result.aborted.entries = NULL
        result.aborted.count = 0
        result.unknown = False
        result.diverging_epoch = -1
        result.preferred = -1
        result.read.size = 0
        result.read.available = 0
        result.read.file = NULL
        entry = entry_of(self, fetched)
        if entry is not NULL and is_undecided(request, fetched):
            decide_late(self, request, slot[0], fetched)
            entry = entry_of(self, fetched)
        if request.stamp and is_denied(request, fetched):
            result.code = TOPIC_AUTHORIZATION_FAILED
            result.unknown = True
        elif entry is NULL and is_elsewhere(self, request, fetched, result):
            result.code = NOT_LEADER_OR_FOLLOWER
        elif entry is NULL:
            result.code = unknown_code(self, fetched)
            result.unknown = True
        elif request.replica_id >= 0:
            limit = min(left, <int64_t>fetched.bytes_max)
            read_for_replica(self, request, entry, <Partition>entry.partition, fetched, limit, at_least_one, result)
            failed[0] = failed[0] or result.diverging_epoch >= 0 or (
                is_start_news(request, fetched, (<Partition>entry.partition).row))
        elif request.rack and find_near(request.rack, entry, <Partition>entry.partition, result):
            result.code = 0
            failed[0] = True                            # answered at once
        else:
            limit = min(left, <int64_t>fetched.bytes_max)
            result.code = read_warm(self, request, entry, fetched, limit, at_least_one, &result.read)
            if result.code == NEED_PYTHON:
                read_python(self, entry, fetched, limit, at_least_one, request.isolation, result)
            if fetched.last_epoch >= 0 and self.cold_job is NULL and (result.code == 0 or result.code == OFFSET_OUT_OF_RANGE):
                compare_logs(self.core, entry, result)
                failed[0] = failed[0] or result.diverging_epoch >= 0
            if request.isolation and result.code == 0 and result.read.size and (
                    (<Partition>entry.partition).row.aborted_end > fetched.offset):
                result.code = find_aborted(<Partition>entry.partition, fetched, result)
                if result.code:
                    drop_data(result)
        if not result.unknown:
            known[0] += 1
        if result.code:
            failed[0] = failed[0] or not result.unknown
            result.read.high_watermark = -1
            result.read.last_stable_offset = -1
            result.read.log_start_offset = -1
            result.read.size = 0
            result.read.available = 0
            if result.code == KAFKA_STORAGE_ERROR and request.version <= 5:
                result.code = NOT_LEADER_OR_FOLLOWER    # older clients do not know the other
        elif result.read.size:
            at_least_one = request.version < 3          # older versions have no limit for the whole answer
            bytes_read[0] += result.read.available
            left = max(left - result.read.size, 0)
        fetched = fetched.next
    if request.replica_id >= 0 and not request.counted:
        request.counted = True
        if self.followers is not None:
            follower_flush(self.followers)
    return count


# -- sessions, the answer -----------------------------------------------------------------------------------

cdef bint is_over_quota(Fetching self, FetchRequest* request, Slot* slot, uint32_t count) noexcept nogil:
    """Charge the answer to the quota. Return True if it must not be sent. Bytes other than records are estimated."""
    cdef int64_t size = HEAD_SIZE
    cdef int64_t overtime_ms = 0
    cdef bint empty = False
    cdef uint32_t i
    if request.replica_id < 0:
        overtime_ms = quota_overtime(slot.conn)
    if overtime_ms == 0 and request.charge.limit == 0:
        return False
    if request.charge.limit:
        for i in range(count):
            if request.context != INCREMENTAL or self.results[i].code or self.results[i].read.size:
                size += PARTITION_SIZE + self.results[i].read.size
        request.throttle_ms = <int32_t>quota_fetched(slot.conn, &request.charge, size, &empty)
    if overtime_ms:
        if request.charge.limit and not empty:
            quota_take(self.core, &request.charge, -<double>size)
        request.throttle_ms = max(request.throttle_ms, <int32_t>overtime_ms)
        quota_mute(slot.conn, overtime_ms)
        empty = True
    return empty


cdef inline void answer(Fetching self, FetchRequest* request, Slot* slot, uint32_t count) noexcept nogil:
    if request.replica_id >= 0 and self.replication is not None:
        count_throttled(self, count)
    if self.core.quotas is not NULL and request.passes == 0 and is_over_quota(self, request, slot, count):
        answer_throttled(self, request, slot, count)
    elif request.version < CONVERTED_BELOW:
        answer_converted(self, request, slot, count)
    else:
        answer_results(self, request, slot, count)


cdef void fetch_session_left(Core* core, int32_t id) noexcept nogil:
    """The connection of a session is closed."""
    cache_orphan(&(<Fetching>core.fetching).cache, id, core.monotonic_ms)


cdef void fetch_drop_orphans(Fetching self) noexcept nogil:
    cache_drop_orphans(&self.cache, self.core.monotonic_ms)
    count_sessions(self)


# -- one request -------------------------------------------------------------------------------------------

cdef int open_session(Fetching self, FetchRequest* request, Cursor* topics) noexcept nogil:
    """Set `request.session` and return 0, or return a session error (FetchManager.newContext)."""
    cdef Session* session = NULL
    cdef Cursor updates = topics[0]
    cdef bint full = request.session_epoch == INITIAL_EPOCH or request.session_epoch == FINAL_EPOCH
    if request.session_id != 0:
        session = cache_find(&self.cache, request.session_id)
    if full:
        if session is not NULL:
            cache_remove(&self.cache, session)
            count_sessions(self)
        request.context = SESSIONLESS if request.session_epoch == FINAL_EPOCH else FULL
        request.session = session_new(request.version >= 13, &self.freed)
        request.session.privileged = request.replica_id >= 0
        walk_topics(self, topics, request.version, request.session, False)
        return 0
    if session is NULL:
        return FETCH_SESSION_ID_NOT_FOUND
    if session.epoch != request.session_epoch:
        return INVALID_FETCH_SESSION_EPOCH
    if session.uses_ids != (request.version >= 13):
        return FETCH_SESSION_TOPIC_ID_ERROR
    session.references += 1
    request.session = session
    session.epoch = next_epoch(session.epoch)
    if session.waiting is not NULL:
        supersede(self, <WaitingFetch*>session.waiting)
    walk_topics(self, &updates, request.version, session, True)
    if session.count == 0 or session.count > ELEMENTS_MAX or (
            self.cache.partitions - session.cached_count + session.count > self.cache.partitions_max):
        cache_remove(&self.cache, session)
        count_sessions(self)
        request.context = SESSIONLESS
        request.session = NULL
        if session.count:
            session_release(session)
            return FETCH_SESSION_ID_NOT_FOUND
        session_release(session)                        # empty: read the partitions that the request names
        request.session = session_new(request.version >= 13, &self.freed)
        request.session.privileged = request.replica_id >= 0
        walk_topics(self, topics, request.version, request.session, False)
    else:
        cache_touch(&self.cache, session, self.core.monotonic_ms)
        count_sessions(self)
        request.context = INCREMENTAL
    return 0


cdef const char* fetch_frame(Fetching self, Conn* conn, int16_t version, int32_t correlation_id,
                             const uint8_t* client, int16_t client_size, Cursor* body) noexcept nogil:
    cdef FetchRequest request
    cdef Cursor topics
    cdef Slot* slot
    cdef int code
    if remaining(body) > REQUEST_SIZE_MAX:
        return "a Fetch is above 8 MiB"
    memset(&request, 0, sizeof(FetchRequest))
    request.version = version
    if not parse(self, body, &request, &topics):
        return TOO_MANY if self.elements > ELEMENTS_MAX else MALFORMED
    self.core.elements += self.elements
    self.elements = 0
    slot = slot_open(conn, 1, version, correlation_id)
    if request.isolation != 0 and request.isolation != 1:
        answer_error(slot, UNKNOWN_SERVER_ERROR, 0)     # as Kafka: IsolationLevel.forId fails after parsing
        return NULL
    request.below = 2 if request.replica_id >= 0 else request.isolation | ANY_REPLICA if version >= 11 else request.isolation
    request.bytes_max = min(request.bytes_max, self.max_bytes)
    if self.core.quotas is not NULL and request.replica_id >= 0:
        quota_exempt(conn)
    elif self.core.quotas is not NULL:
        quota_of(conn, QUOTA_FETCH, client, client_size, &request.charge)
        if request.charge.limit:
            request.bytes_max = <int32_t>min(<int64_t>request.bytes_max, quota_answer_max(self.core, &request.charge))
    request.bytes_min = min(request.bytes_min, request.bytes_max)
    code = open_session(self, &request, &topics)
    if code:
        answer_error(slot, <int16_t>code, 0)
        return NULL
    if request.context == INCREMENTAL:
        hold_session(self, conn, request.session)
    self.core.elements += request.session.count
    if self.core.authorizing and not decide(self, conn, &request):
        wait_for_rights(self, slot, &request)
    else:
        go_on(self, &request, slot)
    return NULL


cdef inline bint is_denied(const FetchRequest* request, const Fetched* fetched) noexcept nogil:
    return request.denied or fetched.right == 2 * request.stamp


cdef inline bint is_undecided(const FetchRequest* request, const Fetched* fetched) noexcept nogil:
    """Whether a consumer's right to a topic has not been asked for: no topic of its id was known. It must not be read."""
    return request.stamp != 0 and request.replica_id < 0 and fetched.right >> 1 != request.stamp


cdef bint decide(Fetching self, Conn* conn, FetchRequest* request) noexcept nogil:
    """Decide which partitions of the session the client may read. Return False if the turn is over before that.

    A topic id that the cluster does not know is not checked: its error comes first."""
    cdef Fetched* fetched = request.session.first
    cdef TopicKey* key = NULL
    cdef uint64_t asked = self.core.acl_asks
    cdef int64_t end_ns = 0
    cdef bint allowed
    request.stamp = rights_of(self.core, conn)
    if request.replica_id >= 0:
        request.denied = not may_replicate(self.core, conn)
        return True
    begin_elsewhere(self)
    while fetched is not NULL:
        if fetched.right >> 1 != request.stamp and not fetched.key.has_name:
            learn_name(self, fetched, key)
        key = fetched.key
        if fetched.right >> 1 != request.stamp and key.has_name:
            if asked != self.core.acl_asks:
                asked = self.core.acl_asks
                if end_ns == 0:
                    end_ns = unpack_now_ns() + DECIDING_NS
                elif unpack_now_ns() >= end_ns:
                    return False
            allowed = may_topic(self.core, conn, fetched.key, NULL, 0, RIGHT_READ)
            if conn.closed:
                return True
            fetched.right = 2 * request.stamp + allowed
        fetched = fetched.next
    return True


cdef void learn_name(Fetching self, Fetched* fetched, TopicKey* neighbour) noexcept nogil:
    """Give a topic that was unknown its key with a name, if it is in the table or in the cluster by now."""
    cdef TopicKey* key
    entry_of(self, fetched)
    if fetched.key.has_name:
        return
    if neighbour is not NULL and neighbour.has_name and memcmp(neighbour.id, fetched.key.id, 16) == 0:
        key = key_retain(neighbour)                     # the answer has one element for both
    else:
        key = key_elsewhere(self, fetched.key.id)
    if key is not NULL:
        key_release(fetched.key)
        fetched.key = key


cdef void decide_late(Fetching self, const FetchRequest* request, Slot* slot, Fetched* fetched) noexcept nogil:
    """Decide about a topic that has come since the request was decided. Without a client it is denied."""
    cdef bint allowed = slot is not NULL and not slot.conn.closed and (
        may_topic(self.core, slot.conn, fetched.key, NULL, 0, RIGHT_READ))
    fetched.right = 2 * request.stamp + allowed


cdef void go_on(Fetching self, FetchRequest* request, Slot* slot) noexcept nogil:
    cdef int64_t bytes_read
    cdef bint failed
    cdef uint32_t known
    cdef uint32_t count = read_all(self, request, &slot, &bytes_read, &failed, &known)
    if slot.conn.closed:                                # by Python, meanwhile
        drop_results(self, count)
        session_release(request.session)
    elif has_answer(self, request, bytes_read, failed, known):
        answer(self, request, slot, count)
        session_release(request.session)
    else:
        wait_for_data(self, slot, request, count, bytes_read)


cdef inline bint has_answer(Fetching self, const FetchRequest* request, int64_t bytes_read, bint failed,
                            uint32_t known) noexcept nogil:
    return failed or bytes_read >= request.bytes_min and (bytes_read or self.cold_job is NULL) or (
        self.cold_job is NULL and (request.wait_ms_max <= 0 or known == 0 or not may_wait(self, request)))


cdef inline bint may_wait(Fetching self, const FetchRequest* request) noexcept nogil:
    """Waiting requests may hold half of the memory for frames. Beyond that they are answered early, which is allowed."""
    return request.session.cached or (
        self.core.stats.buffered_bytes + request.session.bytes <= self.core.buffered_bytes_max // 2)


# -- waiting -----------------------------------------------------------------------------------------------

cdef WaitingFetch* waiting_new(Fetching self, Slot* slot, FetchRequest* request) noexcept nogil:
    cdef WaitingFetch* fetch = <WaitingFetch*>malloc(sizeof(WaitingFetch))
    KAFKAD_CHECK(fetch is not NULL)
    memset(fetch, 0, sizeof(WaitingFetch))
    fetch.request = request[0]
    fetch.slot = slot
    if not request.session.cached:
        fetch.held = request.session.bytes
        self.core.stats.buffered_bytes += fetch.held
    request.session.waiting = fetch
    return fetch


cdef void wait_for_data(Fetching self, Slot* slot, FetchRequest* request, uint32_t count,
                        int64_t bytes_read) noexcept nogil:
    cdef WaitingFetch* fetch = waiting_new(self, slot, request)
    cdef Fetched* fetched
    cdef Entry* entry
    cdef uint32_t i
    fetch.available = bytes_read
    for i in range(count):
        self.results[i].fetched.available = self.results[i].read.available
    drop_results(self, count)
    fetched = request.session.first
    while fetched is not NULL:
        entry = entry_of(self, fetched)
        if entry is not NULL and not (request.stamp and is_denied(request, fetched)):
            watch_fetch(entry, &fetched.watch)
            if entry.remote:
                table_listen(entry)
            elif request.replica_id >= 0 and (<Partition>entry.partition).row.log_end_offset > fetched.offset:
                # Our high watermark rose by what this Fetch says, and a callback has appended: after the read above.
                table_advanced(<void*>entry, <void*>entry.partition, ADVANCED_END)
        fetched = fetched.next
    self.core.stats.fetch_waits += 1
    fetch.job = self.cold_job
    if fetch.job is not NULL:                           # it ends by itself: no timer
        fetch.job.waiter = fetch
        fetch.job.done = fetch_warm
        fetch.request.cold_rounds += 1
        fetch.timer.place = -1
    else:
        timer_start(self.core, &fetch.timer, self.core.monotonic_ms + patience_ms(self, request), fetch_expired)
    slot_pend(slot, fetch, fetch_cancelled, False)


cdef void stop_waiting(Core* core, WaitingFetch* fetch) noexcept nogil:
    cdef Fetched* fetched = fetch.request.session.first
    timer_stop(core, &fetch.timer)
    core.stats.buffered_bytes -= fetch.held
    fetch.held = 0
    if fetch.job is not NULL:
        fetch.job.waiter = NULL
        fetch.job = NULL
    while fetched is not NULL:
        unwatch(&fetched.watch, False)
        fetched = fetched.next
    fetch.request.session.waiting = NULL


cdef void complete(Fetching self, WaitingFetch* fetch) noexcept nogil:
    """Read again and answer."""
    cdef bint timed
    stop_waiting(self.core, fetch)
    fetch.slot.cancel = fetch_abandoned                 # while Python may run
    timed = self.core.quotas is not NULL and quota_turn_begin(fetch.slot.conn)
    settle_fetch(self, fetch, False)
    if timed:
        quota_turn_end(self.core)


cdef void settle_fetch(Fetching self, WaitingFetch* fetch, bint patient) noexcept nogil:
    """Answer, or wait again: for the disk or, if `patient`, for data. `fetch` is freed."""
    cdef int64_t bytes_read
    cdef bint failed
    cdef uint32_t known, count
    count = read_all(self, &fetch.request, &fetch.slot, &bytes_read, &failed, &known)
    if fetch.slot is NULL:
        drop_results(self, count)
    elif (patient and not has_answer(self, &fetch.request, bytes_read, failed, known)) or (
            self.cold_job is not NULL and bytes_read == 0 and not failed):
        wait_for_data(self, fetch.slot, &fetch.request, count, bytes_read)
        free(fetch)
        return
    else:
        answer(self, &fetch.request, fetch.slot, count)
    session_release(fetch.request.session)
    free(fetch)


cdef void wait_for_rights(Fetching self, Slot* slot, FetchRequest* request) noexcept nogil:
    """Continue with the rights of this request in a later turn, after other connections."""
    cdef WaitingFetch* fetch = waiting_new(self, slot, request)
    timer_start(self.core, &fetch.timer, self.core.monotonic_ms + 1, fetch_undecided)
    slot_pend(slot, fetch, fetch_cancelled, False)


cdef void fetch_undecided(Core* core, Timer* timer) noexcept nogil:
    decide_more(<Fetching>core.fetching, <WaitingFetch*>timer)


cdef void decide_more(Fetching self, WaitingFetch* fetch) noexcept nogil:
    cdef bint decided
    stop_waiting(self.core, fetch)
    fetch.slot.cancel = fetch_abandoned
    decided = decide(self, fetch.slot.conn, &fetch.request)
    if decided or fetch.slot is NULL:
        settle_fetch(self, fetch, True)
    else:
        wait_for_rights(self, fetch.slot, &fetch.request)
        free(fetch)


cdef void fetch_abandoned(Slot* slot) noexcept nogil:
    """The connection is closed while its answer is being written."""
    (<WaitingFetch*>slot.waiting).slot = NULL


cdef void supersede(Fetching self, WaitingFetch* fetch) noexcept nogil:
    """Answer a waiting request with an error, because a later request of its session has come."""
    drop_due(self, fetch)
    stop_waiting(self.core, fetch)
    answer_error(fetch.slot, INVALID_FETCH_SESSION_EPOCH, fetch.request.session.id)
    session_release(fetch.request.session)
    free(fetch)


cdef void drop_due(Fetching self, WaitingFetch* fetch) noexcept nogil:
    cdef WaitingFetch** link = &self.due
    if fetch.due:
        while link[0] is not fetch:
            link = &link[0].due_next
        link[0] = fetch.due_next
        fetch.due = False


cdef void fetch_warm(void* waiter, ColdJob* job) noexcept nogil:
    cdef WaitingFetch* fetch = <WaitingFetch*>waiter
    fetch.job = NULL
    drop_due(<Fetching>fetch.slot.conn.core.fetching, fetch)
    complete(<Fetching>fetch.slot.conn.core.fetching, fetch)


cdef void fetch_expired(Core* core, Timer* timer) noexcept nogil:
    core.stats.fetch_timeouts += 1
    complete(<Fetching>core.fetching, <WaitingFetch*>timer)


cdef void fetch_cancelled(Slot* slot) noexcept nogil:
    cdef WaitingFetch* fetch = <WaitingFetch*>slot.waiting
    drop_due(<Fetching>slot.conn.core.fetching, fetch)
    stop_waiting(slot.conn.core, fetch)
    session_release(fetch.request.session)
    free(fetch)


cdef void fetch_advanced(Fetching self, Entry* entry, uint32_t why) noexcept nogil:
    cdef Watch* watch = entry.fetches
    cdef Fetched* fetched
    cdef WaitingFetch* fetch
    cdef ReadInfo read
    cdef int code
    cdef bint some_wait = False
    while watch is not NULL:
        fetched = <Fetched*>watch
        fetch = <WaitingFetch*>fetched.session.waiting
        watch = watch.next
        if fetch.due:
            continue
        if fetch.job is not NULL and not (why & (PARTITION_GONE | EPOCH_RAISED)):
            some_wait = True                            # for the disk, which answers by itself
            continue
        if not (why & (PARTITION_GONE | EPOCH_RAISED)) and not (
                is_start_news(&fetch.request, fetched, (<Partition>entry.partition).row)):
            read.size = 0
            self.cold_job = NULL
            code = read_warm(self, &fetch.request, entry, fetched, fetched.bytes_max, True, &read)
            if code == 0 and self.cold_job is NULL:
                if read.size:
                    log_file_release(read.file)
                if fetch.request.replica_id >= 0 and is_held_back(self, &fetch.request, <Partition>entry.partition):
                    read.available = 0
                if read.available < OLDER_SEGMENT:
                    read.available = min(read.available, <int64_t>fetched.bytes_max)
                fetch.available += read.available - fetched.available
                fetched.available = read.available
                if fetch.available < fetch.request.bytes_min:
                    some_wait = True
                    continue
        fetch.due = True
        fetch.due_next = self.due
        self.due = fetch
    if some_wait and entry.remote and not entry.removed:
        table_listen(entry)


cdef void fetch_settle(Fetching self) noexcept nogil:
    cdef WaitingFetch* fetch
    while self.due is not NULL:
        fetch = self.due
        self.due = fetch.due_next
        fetch.due = False
        complete(self, fetch)

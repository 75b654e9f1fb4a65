"""Produce (key 0), v0 to v13, from the frame to the answer.

v0-2 message sets of magic 0 and 1 (old_produce.pyx). v1 throttle time. v2 log append time. v3 transactional id. v5 log start offset. v7 zstd allowed. v8 record errors. v9 flexible. v10 leader hints (never set
here: there is one broker). v13 topic ids.

The whole body is parsed before anything is appended, so a frame that does not parse changes nothing. Then each partition's
records go to `Partition.append`, or to its log in Python when that says so, each leaving an `Outcome`, and the answer is
written from the outcomes. It is sent when every high watermark has reached the end of what was appended (which also waits
for a flush that must come first): until then the request waits on the entries (`Watch`), and a timeout only patches error
codes in the answer.

Records for a partition that another worker owns go there as a message (`forward` of produce_forwarding.pyx); the bytes stay where
the socket put them. The request is held (`HeldProduce`) until the last outcome has come, and is then answered in the same way.

A batch that is compressed, or must be rebuilt, is unpacked on the loop within this round's budget of bytes, steps and time.
Beyond it the request is held, too: a thread unpacks the rest (unpacking.pyx), and then the loop appends the batch, under the
partition's state at that time. Until then nothing else of that connection is served, so its batches keep their order. Other
connections go on, also with the same partition. The owner of a forwarded batch does the same (produce_forwarding.pyx).

A request of many partitions is appended in slices, one a turn of its connection, and is held in the same way until the last
one. The next slice begins when all outcomes of the one before have come, so an owner or a thread has one slice at a time.

The first batch of a transaction in a partition waits until the transaction's coordinator was asked (produce_gate.pyx). It is
then appended in another round of slices (`resume`), which passes over all parts that need no other try.

Not yet: quotas, authorization.

Over 900 lines: one request from its frame to its answer."""

from cpython.memoryview cimport PyMemoryView_FromMemory
from cpython.object cimport PyObject
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcmp, memcpy, memset

cdef extern from "string.h" nogil:
    size_t strlen(const char* text)
    size_t strnlen(const char* text, size_t size)

from kafkad._native.wire.batch cimport (
    COMPRESSION_MASK, HEADER_SIZE, NEED_PYTHON, TRANSACTIONAL, bad_records,
)
from kafkad._native.serving.buffers cimport buffer_release, buffer_retain
from kafkad._native.serving.connection cimport (
    Conn, Core, Slot, Timer, conn_end, conn_run, slot_drop, slot_extend, slot_finish, slot_open, slot_pend,
)
from kafkad._native.serving.old_produce cimport NOTHING_TO_APPEND, SETS_BELOW, judge_set, note_nothing
from kafkad._native.serving.outcomes cimport free_text, note_refusal, note_result
from kafkad._native.log.guards cimport NEED_TRANSACTION, PLAIN
from kafkad._native.log.partition cimport Partition
from kafkad._native.log.partition_state cimport PARTITION_GONE
from kafkad._native.serving.partition_table cimport (
    Entry, PartitionTable, Topic, Watch, table_listen, topic_by_id, topic_by_name, topic_entry, unwatch,
    watch_produce,
)
from kafkad._native.serving.produce_gate cimport (
    asking_enter, asking_leave, gate_admission, gate_ask, gate_give_up, gate_try_again, has_two_producers,
)
from kafkad._native.serving.produce_merge cimport merge_parts
from kafkad._native.serving.timers cimport timer_start, timer_stop
from kafkad._native.serving.unpacking cimport Job, unpack_now_ns, unpack_turn
from kafkad._native.wire.primitives cimport (
    Cursor, KAFKAD_CHECK, get_i16, put_i16, put_i32, put_i64, put_uvarint, read_count, read_i16, read_i32, read_raw,
    read_uvarint, skip_tags,
)
from kafkad._native.wire.errors cimport (
    CORRUPT_MESSAGE, INVALID_PRODUCER_ID_MAPPING, INVALID_RECORD, INVALID_REQUEST, INVALID_REQUIRED_ACKS,
    INVALID_TOPIC_EXCEPTION, KAFKA_STORAGE_ERROR, MESSAGE_TOO_LARGE, NOT_LEADER_OR_FOLLOWER, RECORD_LIST_TOO_LARGE, REQUEST_TIMED_OUT,
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED, UNKNOWN_SERVER_ERROR, UNKNOWN_TOPIC_ID, UNKNOWN_TOPIC_OR_PARTITION,
    UNSUPPORTED_COMPRESSION_TYPE,
)
from kafkad._native.wire.batch_layout cimport ATTRIBUTES_AT, MAGIC_AT

cdef enum:
    PARTS_MAX = 1 << 18                 # partitions, and topics, of one request
    SCRATCH_KEPT = 16384                # partitions that there is always room for, and topics
    ZSTD = 4
    RECORD_ERRORS_MAX = 20_000          # that one answer names; of what is beyond, each partition names its first
    # An owner has so long however short the request's timeout is: that one is for replication, and an append of our own
    # is not bound by it either.
    OWNER_MS_MIN = 1000
    WAIT_MS_MAX = 30_000                # for the coordinator of a transaction, however long the request's timeout is
    # One turn appends so much of one request, by bytes and by time; time is looked at after each LOOK_BYTES. A partition
    # counts as PART_BYTES more than its records have.
    SLICE_BYTES = 8 * 1024 * 1024
    SLICE_NS = 4_000_000
    LOOK_BYTES = 512 * 1024
    PART_BYTES = 16 * 1024
    PART_SENT = 256 + 32                # a mailbox.Mail and a forwarding.Flight

cdef const char* NO_ID = b"\0" * 16

# -- parsing -----------------------------------------------------------------------------------------------

cdef const char* MALFORMED = "a Produce does not parse"


cdef bint parse_topics(Producing self, Cursor* body, int16_t version, uint32_t* topic_count,
                       uint32_t* part_count) noexcept nogil:
    cdef bint flexible = version >= 9
    cdef int64_t topics = read_count(body, flexible, 18 if version >= 13 else 3 if flexible else 6)
    cdef int64_t parts, size, i, j
    cdef uint32_t used = 0
    cdef TopicParts* topic
    cdef Part* part
    if body.failed or topics > PARTS_MAX:
        return False
    if topics > self.topic_capacity:
        self.topics = <TopicParts*>realloc(self.topics, <size_t>topics * sizeof(TopicParts))
        KAFKAD_CHECK(self.topics is not NULL)
        self.topic_capacity = <uint32_t>topics
    for i in range(topics):
        topic = &self.topics[i]
        if version >= 13:
            topic.name_size = -1
            topic.name = read_raw(body, 16)
        else:
            topic.name_size = <int32_t>read_uvarint(body) - 1 if flexible else read_i16(body)
            if topic.name_size < 0:
                return False
            topic.name = read_raw(body, <size_t>topic.name_size)
        parts = read_count(body, flexible, 6 if flexible else 8)
        if body.failed or used + parts > PARTS_MAX:
            return False
        topic.first = used
        topic.count = <uint32_t>parts
        if used + parts > self.part_capacity:
            self.part_capacity = <uint32_t>max(used + parts, <int64_t>self.part_capacity * 2)
            self.parts = <Part*>realloc(self.parts, self.part_capacity * sizeof(Part))
            self.outcomes = <Outcome*>realloc(self.outcomes, self.part_capacity * sizeof(Outcome))
            KAFKAD_CHECK(self.parts is not NULL and self.outcomes is not NULL)
        for j in range(parts):
            part = &self.parts[used]
            used += 1
            part.index = read_i32(body)
            size = <int64_t>read_uvarint(body) - 1 if flexible else read_i32(body)
            if size < -1:
                return False
            part.size = <int32_t>size
            part.records = <uint8_t*>read_raw(body, <size_t>max(size, 0))
            if flexible:
                skip_tags(body)
            if body.failed:
                return False
        if flexible:
            skip_tags(body)
    if flexible:
        skip_tags(body)
    topic_count[0] = <uint32_t>topics
    part_count[0] = used
    return not body.failed                              # bytes behind the body are ignored, as Kafka ignores them


# -- one partition -----------------------------------------------------------------------------------------

cdef inline int check_records(const Part* part, int16_t version) noexcept nogil:
    """What depends on the request's version rather than on the partition (ProduceRequest.validateRecords)."""
    if part.size < HEADER_SIZE or part.records[MAGIC_AT] != 2:
        return judge_set(part.records, part.size) if version < SETS_BELOW else INVALID_RECORD
    if version < 7 and (get_i16(part.records + ATTRIBUTES_AT) & COMPRESSION_MASK) == ZSTD:
        return UNSUPPORTED_COMPRESSION_TYPE
    return 0


cdef inline int may_append(const Entry* entry, const Part* part, int16_t version, bint admin) noexcept nogil:
    if entry.internal and not admin:
        return INVALID_TOPIC_EXCEPTION
    return check_records(part, version)


cdef void append_python(Producing self, Entry* entry, const Part* part, Outcome* outcome) noexcept nogil:
    self.core.stats.python_appends += 1
    with gil:
        append_client(self, entry, part, outcome)


cdef void append_client(Producing self, Entry* entry, const Part* part, Outcome* outcome) noexcept:
    """The slow path. OUTCOME_TO_COME: this round has no time for all of it, and `self.pending` does the rest."""
    cdef Partition partition = <Partition>entry.partition
    cdef int64_t began_ns
    cdef bint kept = False
    outcome.code = UNKNOWN_SERVER_ERROR
    try:
        view = PyMemoryView_FromMemory(<char*>part.records, part.size, 0x200)  # PyBUF_WRITE
        try:
            result = work = partition.log.begin_append(view, self.core.now_ms, outcome.info.admission, outcome.info.guard)
            if hasattr(work, "step"):
                began_ns = unpack_now_ns()
                if self.unpack_ns > 0 and unpack_turn(work, self.unpack_ns):
                    result = work.finish(self.core.now_ms)
                    work.close()
                else:
                    # A peer may die, and its successor use the memory for other bytes.
                    if self.from_peer and work.large:
                        work.copy_first()
                    elif self.from_peer:
                        work.close()
                        work = partition.log.begin_append(
                            bytearray(view), self.core.now_ms, outcome.info.admission, outcome.info.guard)
                    kept = work.large or not self.from_peer
                    self.pending = work
                    outcome.code = OUTCOME_TO_COME
                self.unpack_ns -= unpack_now_ns() - began_ns
        finally:
            if not kept:
                view.release()                          # the bytes are the socket's: nobody may keep them
        if outcome.code != OUTCOME_TO_COME:
            note_result(outcome, result)
    except BaseException as error:
        note_refusal(self.core, partition, outcome, error)


cdef object take_pending(Producing self):
    work = self.pending
    self.pending = None
    return work


cdef void close_work(Core* core, object work) noexcept:
    """The heap is trimmed after a large batch: its copy may lie in an arena of a thread."""
    work.close()
    if work.large:
        core.freed_bytes += <int64_t>work.size


cdef void finish_append(Producing self, object work, object error, Outcome* outcome) noexcept:
    cdef Partition partition = work.partition
    outcome.text = NULL
    outcome.bad = NULL
    outcome.info.message = NULL
    outcome.info.bad_record = -1
    outcome.info.log_start_offset = partition.row.log_start_offset
    if error is None:
        try:
            note_result(outcome, work.finish(self.core.now_ms))
        except BaseException as refusal:
            note_refusal(self.core, partition, outcome, refusal)
    else:
        note_refusal(self.core, partition, outcome, error)
    close_work(self.core, work)
    if outcome.code and hides_log_start(outcome.code):
        outcome.info.log_start_offset = -1


cdef inline void append_own(Producing self, Entry* entry, const Part* part, Outcome* outcome) noexcept nogil:
    outcome.text = NULL
    outcome.bad = NULL
    outcome.code = (<Partition>entry.partition).append(part.records, <size_t>part.size, self.core.now_ms, &outcome.info)
    if outcome.code == NEED_PYTHON:
        append_python(self, entry, part, outcome)
    elif outcome.code and outcome.info.bad_record >= 0:
        outcome.bad = bad_records(
            part.records, <size_t>part.size, &(<Partition>entry.partition).rules, self.core.now_ms)
    if outcome.code > 0 and hides_log_start(outcome.code):
        outcome.info.log_start_offset = -1


cdef bint hides_log_start(int code) noexcept nogil:
    """Errors that Kafka answers without the log start offset; the others have it (ReplicaManager.appendRecordsToLeader)."""
    return (code == CORRUPT_MESSAGE or code == UNKNOWN_TOPIC_OR_PARTITION or code == NOT_LEADER_OR_FOLLOWER
            or code == MESSAGE_TOO_LARGE or code == RECORD_LIST_TOO_LARGE or code == KAFKA_STORAGE_ERROR)


# The owner's part of an append for another worker (produce_forwarding.pyx).

cdef int check_part(const Entry* entry, const Part* part, int16_t version, bint admin) noexcept nogil:
    return may_append(entry, part, version, admin)


cdef void append_part(Producing self, Entry* entry, const Part* part, Outcome* outcome) noexcept nogil:
    self.from_peer = True
    append_own(self, entry, part, outcome)
    self.from_peer = False


cdef void drop_text(Outcome* outcome) noexcept nogil:
    free_text(outcome)


cdef inline uint8_t* put_text(uint8_t* at, bint flexible, const char* text, size_t size) noexcept nogil:
    """A nullable string; NULL is null."""
    if text is NULL:
        if flexible:
            at[0] = 0
            return at + 1
        put_i16(at, -1)
        return at + 2
    if flexible:
        at += put_uvarint(at, <uint32_t>size + 1)
    else:
        put_i16(at, <int16_t>size)
        at += 2
    memcpy(at, text, size)
    return at + size


cdef const char* KEY_MISSING = "Compacted topic cannot accept message without key"
cdef const char* TIMESTAMP_BAD = "Timestamp is out of the range that the topic allows"


cdef void put_record_errors(Slot* slot, bint flexible, const Outcome* outcome, uint32_t* room) noexcept nogil:
    """Each bad record with its index and why, as far as there is room in this answer."""
    cdef uint32_t count = 0 if outcome.bad is NULL else outcome.bad[0]
    cdef uint32_t i
    cdef const char* text
    cdef size_t size
    cdef uint8_t* at
    cdef uint8_t* start
    if count == 0 or count > room[0]:
        return
    room[0] -= count
    start = at = slot_extend(slot, 5)
    if flexible:
        at += put_uvarint(at, count + 1)
    else:
        put_i32(at, <int32_t>count)
        at += 4
    slot.size -= <uint32_t>(5 - (at - start))
    for i in range(1, count + 1):
        text = TIMESTAMP_BAD if outcome.bad[i] & 1 else KEY_MISSING
        size = strlen(text)
        start = slot_extend(slot, size + 10)
        put_i32(start, <int32_t>(outcome.bad[i] >> 1))
        at = put_text(start + 4, flexible, text, size)
        if flexible:
            at[0] = 0
            at += 1
        slot.size -= <uint32_t>(size + 10 - (at - start))


cdef uint32_t answer_part(Slot* slot, int16_t version, int32_t index, const Outcome* outcome, uint32_t* room) noexcept nogil:
    """Writes one partition's answer; tells where its error code stands. `room`: for so many bad records."""
    cdef bint flexible = version >= 9
    cdef bint failed = outcome.code != 0
    cdef const char* text = NULL
    cdef size_t text_size = 0
    cdef uint8_t* at
    cdef uint8_t* start
    cdef int count
    cdef uint32_t code_at = slot.size + 4
    if failed and version >= 8:
        if outcome.info.message is not NULL:
            text = outcome.info.message
            text_size = strnlen(text, MESSAGE_SIZE_MAX)
    start = slot_extend(slot, 64 + 2 * text_size)
    at = start
    put_i32(at, index)
    put_i16(at + 4, <int16_t>outcome.code)
    put_i64(at + 6, -1 if failed else outcome.info.base_offset)
    at += 14
    if version >= 2:
        put_i64(at, -1 if failed else outcome.info.append_time_ms)
        at += 8
    if version >= 5:
        put_i64(at, outcome.info.log_start_offset)
        at += 8
    if version >= 8 and failed and outcome.bad is not NULL and outcome.bad[0] <= room[0]:
        slot.size -= <uint32_t>(64 + 2 * text_size - (at - start))
        put_record_errors(slot, flexible, outcome, room)
        start = at = slot_extend(slot, 64 + 2 * text_size)
        at = put_text(at, flexible, text, text_size)
    elif version >= 8:
        count = 1 if failed and outcome.info.bad_record >= 0 else 0
        if flexible:
            at += put_uvarint(at, <uint32_t>count + 1)
        else:
            put_i32(at, count)
            at += 4
        if count:
            put_i32(at, outcome.info.bad_record)
            at = put_text(at + 4, flexible, text, text_size)
            if flexible:
                at[0] = 0
                at += 1
        at = put_text(at, flexible, text, text_size)
    if flexible:
        at[0] = 0
        at += 1
    slot.size -= <uint32_t>(64 + 2 * text_size - (at - start))
    return code_at


# -- one request -------------------------------------------------------------------------------------------

cdef inline Topic* find_topic(Producing self, const TopicParts* parts) noexcept nogil:
    if parts.name_size < 0:
        return topic_by_id(&self.table.table, parts.name)
    return topic_by_name(&self.table.table, <char*>parts.name, <size_t>parts.name_size)


cdef bint fails_validation(const void* some_part, int16_t version) noexcept nogil:
    """ProduceRequest.validateRecords, which passes over a partition without records."""
    cdef const Part* part = <const Part*>some_part
    cdef int code = 0 if part.size < 0 else check_records(part, version)
    return code == INVALID_RECORD or code == UNSUPPORTED_COMPRESSION_TYPE


cdef bint is_irregular(Producing self, const Request* request) noexcept nogil:
    """Whether it may name a topic or partition twice, or has a topic without partitions. Topics and partitions of the
    table are marked with the number of the request; unknown ones are left to `merge_parts`."""
    cdef TopicParts* parts
    cdef Topic* topic
    cdef Entry* entry
    cdef uint32_t unknown = 0, i, j
    self.number += 1
    for i in range(request.topic_count):
        parts = &self.topics[i]
        if parts.count == 0:
            return True
        topic = find_topic(self, parts)
        if topic is NULL:
            unknown += parts.count
        elif topic.named == self.number:
            return True
        else:
            topic.named = self.number
            for j in range(parts.first, parts.first + parts.count):
                entry = topic_entry(topic, self.parts[j].index)
                if entry is NULL:
                    unknown += 1
                elif entry.named == self.number:
                    return True
                else:
                    entry.named = self.number
    return unknown > 1


cdef bint has_transactional(const Request* request) noexcept nogil:
    """RequestUtils.hasTransactionalRecords."""
    cdef const Part* part
    cdef uint32_t i
    for i in range(request.part_count):
        part = &request.parts[i]
        if part.size >= HEADER_SIZE and get_i16(part.records + ATTRIBUTES_AT) & TRANSACTIONAL and (
                part.records[MAGIC_AT] == 2):
            return True
    return False


cdef const char* produce_frame(Producing self, Conn* conn, int16_t version, int32_t correlation_id,
                               const uint8_t* client, int16_t client_size, Cursor* body) noexcept nogil:
    cdef const char* trouble = produce_request(self, conn, version, correlation_id, client, client_size, body)
    if self.part_capacity > SCRATCH_KEPT or self.topic_capacity > SCRATCH_KEPT or self.wait_capacity > SCRATCH_KEPT:
        drop_scratch(self)
    return trouble


cdef void drop_scratch(Producing self) noexcept nogil:
    """A request of very many partitions leaves no memory behind."""
    free(self.parts)
    free(self.outcomes)
    free(self.topics)
    free(self.waits)
    self.parts = NULL
    self.outcomes = NULL
    self.topics = NULL
    self.waits = NULL
    self.part_capacity = 0
    self.topic_capacity = 0
    self.wait_capacity = 0


cdef bint append_some(Producing self, Conn* conn, Request* request, HeldProduce** held_at) noexcept nogil:
    """Append from `request.next_*` on, or `again` only the parts that are AGAIN. False: this turn has done its share, or the
    connection was closed.

    Whoever must wait makes `held_at[0]`, or finds it there."""
    cdef HeldProduce* held = held_at[0]
    cdef bint again = held is not NULL and held.again
    cdef uint32_t number = request.next_number
    cdef uint32_t i, j
    cdef int64_t bytes = 0, unseen = 0, began_ns = 0
    cdef TopicParts* parts
    cdef Part* part
    cdef Topic* topic
    cdef Entry* entry
    cdef uint64_t generation
    cdef Outcome* outcome
    for i in range(request.next_topic, request.topic_count):
        parts = &request.topics[i]
        topic = same_topic(held, i, find_topic(self, parts))
        generation = self.table.table.generation
        for j in range(request.next_part, parts.count):
            if unseen >= LOOK_BYTES:
                if began_ns == 0:
                    began_ns = unpack_now_ns()
                if bytes >= SLICE_BYTES or unpack_now_ns() - began_ns >= SLICE_NS:
                    request.next_topic = i
                    request.next_part = j
                    request.next_number = number
                    return False
                unseen = 0
            part = &request.parts[number]
            outcome = &request.outcomes[number]
            number += 1
            if again:
                if outcome.code != OUTCOME_AGAIN:
                    continue
                held.to_ask -= 1
                held.outcomes_left -= 1
            bytes += part.size + PART_BYTES
            unseen += part.size + PART_BYTES
            if generation != self.table.table.generation:   # Python ran, and changed the table
                generation = self.table.table.generation
                topic = same_topic(held, i, find_topic(self, parts))
            entry = topic_entry(topic, part.index)
            outcome.entry = entry
            outcome.waits = False
            if request.refused_whole:
                outcome.code = request.refused_whole
            elif entry is NULL:
                outcome.code = UNKNOWN_TOPIC_ID if topic is NULL and request.version >= 13 else UNKNOWN_TOPIC_OR_PARTITION
            elif request.refusal:
                outcome.code = request.refusal
            else:
                outcome.code = may_append(entry, part, request.version, request.admin)
                outcome.info.admission = request.admission
                if not again:
                    outcome.info.guard = 0
                if outcome.code == 0 and not entry.remote:
                    if outcome.info.guard and outcome.guard_owner != -1:
                        outcome.info.guard = 0          # another worker's: this one has led it since, and knows none
                    append_own(self, entry, part, outcome)
                    if outcome.code == 0:
                        outcome.waits = request.acks != 0 and (entry.removed or (
                            (<Partition>entry.partition).row.high_watermark < outcome.info.end_offset))
                    elif outcome.code == OUTCOME_TO_COME or outcome.code == NEED_TRANSACTION:
                        held = held_for(self, conn, request, held_at)
                        put_off(self, conn, held, i, number - 1, outcome)
                    if conn.closed:                     # Python ran, and closed it
                        request.next_number = number
                        return False
                    continue
                if outcome.code == 0:
                    if self.forward is not NULL:
                        held = held_for(self, conn, request, held_at)
                    outcome.code = NOT_LEADER_OR_FOLLOWER if held is NULL else (
                        self.forward(self.forward_context, held, number - 1, entry, part, request, outcome))
                elif outcome.code == NOTHING_TO_APPEND:
                    note_nothing(outcome)
                    continue
            outcome.text = NULL
            outcome.bad = NULL
            outcome.info.message = request.refused_message
            outcome.info.bad_record = -1
            outcome.info.log_start_offset = -1
            if outcome.code == 0:
                outcome.code = OUTCOME_TO_COME
                held.outcomes_left += 1
        request.next_part = 0
    request.next_number = number
    return True


cdef HeldProduce* held_for(Producing self, Conn* conn, Request* request, HeldProduce** held_at) noexcept nogil:
    if held_at[0] is NULL:
        held_at[0] = held_new(self, request, conn)
    return held_at[0]


cdef void put_off(Producing self, Conn* conn, HeldProduce* held, uint32_t topic, uint32_t number,
                  Outcome* outcome) noexcept nogil:
    """An append that a thread has to go on with, or a coordinator must be asked for."""
    if outcome.code == OUTCOME_TO_COME:
        with gil:
            unpack_later(self, conn, held, topic, number, outcome)
    elif not conn.closed:
        outcome.guard_owner = -1
        must_ask(held, outcome)
        held.outcomes_left += 1


cdef inline Topic* same_topic(HeldProduce* held, uint32_t number, Topic* topic) noexcept nogil:
    """`topic`, if a sliced request may still append to it: not when it was deleted and made again since a slice before."""
    if held is NULL or not held.slicing or topic is NULL:
        return topic
    return slice_topic(held, number, topic)


cdef bint has_failed(const Request* request) noexcept nogil:
    cdef uint32_t i
    for i in range(request.part_count):
        if request.outcomes[i].code:
            return True
    return False


cdef const char* produce_request(Producing self, Conn* conn, int16_t version, int32_t correlation_id,
                                 const uint8_t* client, int16_t client_size, Cursor* body) noexcept nogil:
    cdef bint flexible = version >= 9
    cdef Request request
    cdef int64_t transactional_size
    cdef bint whole, failed
    cdef Slot* slot
    cdef HeldProduce* held = NULL

    if flexible:
        skip_tags(body)                                 # of the header
        transactional_size = <int64_t>read_uvarint(body) - 1
    elif version < SETS_BELOW:
        transactional_size = -1
    else:
        transactional_size = read_i16(body)
    if transactional_size < -1:
        return MALFORMED
    request.transactional_size = <int32_t>transactional_size
    request.transactional_id = read_raw(body, <size_t>max(transactional_size, 0))
    request.version = version
    request.acks = read_i16(body)
    request.deadline_ms = self.core.monotonic_ms + max(read_i32(body), 0)
    if body.failed or not parse_topics(self, body, version, &request.topic_count, &request.part_count):
        return MALFORMED
    self.core.elements += request.part_count
    request.topics = self.topics
    request.parts = self.parts
    request.outcomes = self.outcomes
    if (request.part_count != 1 or request.topic_count != 1) and is_irregular(self, &request):
        merge_parts(self.table.table.seed, version, self.topics, &request.topic_count, self.parts, &request.part_count,
                    fails_validation)

    request.admin = client_size == 14 and memcmp(client, b"__admin_client", 14) == 0
    request.refusal = INVALID_REQUIRED_ACKS if request.acks < -1 or request.acks > 1 else 0
    request.refused_whole = 0
    request.refused_message = NULL
    request.admission = PLAIN
    if transactional_size < 0:
        if has_transactional(&request):
            request.refused_whole = TRANSACTIONAL_ID_AUTHORIZATION_FAILED   # also if unknown: it is looked at first
    elif not self.serves_transactions:
        request.refusal = INVALID_REQUEST
    else:
        request.admission = gate_admission(version, self.verifies)
        if request.part_count > 1 and has_two_producers(&request):
            request.refused_whole = INVALID_PRODUCER_ID_MAPPING
            request.refused_message = b"Transactional records contained more than one producer ID"
    request.next_topic = 0
    request.next_part = 0
    request.next_number = 0
    whole = append_some(self, conn, &request, &held)
    if conn.closed:                                     # Python ran, and closed it
        drop_texts(request.outcomes, request.next_number)
        if held is not NULL and held.outcomes_left == 0:
            held_free(held)
        return NULL
    if not whole:
        if held is NULL:
            held = held_new(self, &request, conn)
        slicing_begin(held, conn, &request)
    if held is not NULL:
        if held.outcomes_left:
            held_pend(held, &request, slot_open(conn, 0, version, correlation_id))
            if held.to_ask:
                asking_enter(held)
                go_on(self, held)
            return NULL
        held_free(held)
    if request.acks == 0:
        failed = has_failed(&request)
        drop_texts(request.outcomes, request.part_count)
        if failed:
            conn_end(conn, "a Produce with acks=0 failed")
        return NULL
    slot = slot_open(conn, 0, version, correlation_id)
    answer(self, &request, slot)
    return NULL


cdef void drop_texts(Outcome* outcomes, uint32_t count) noexcept nogil:
    cdef uint32_t i
    for i in range(count):
        free_text(&outcomes[i])


cdef void answer(Producing self, const Request* request, Slot* slot) noexcept nogil:
    """Writes the answer from the outcomes, and sends it or waits for high watermarks."""
    cdef int16_t version = request.version
    cdef bint flexible = version >= 9
    cdef uint32_t number = 0, wait_count = 0, i, j, code_at
    cdef uint32_t room = RECORD_ERRORS_MAX
    cdef const TopicParts* parts
    cdef Outcome* outcome
    cdef Wait* wait
    cdef uint8_t* at
    if flexible:
        slot_extend(slot, 1)[0] = 0
        at = slot_extend(slot, 5)
        slot.size -= <uint32_t>(5 - put_uvarint(at, request.topic_count + 1))
    else:
        put_i32(slot_extend(slot, 4), <int32_t>request.topic_count)
    for i in range(request.topic_count):
        parts = &request.topics[i]
        if parts.name_size < 0:
            memcpy(slot_extend(slot, 16), parts.name, 16)
        else:
            at = slot_extend(slot, <size_t>parts.name_size + 5)
            slot.size -= <uint32_t>(
                <size_t>parts.name_size + 5 - <size_t>(put_text(at, flexible, <char*>parts.name, <size_t>parts.name_size) - at))
        if flexible:
            at = slot_extend(slot, 5)
            slot.size -= <uint32_t>(5 - put_uvarint(at, parts.count + 1))
        else:
            put_i32(slot_extend(slot, 4), <int32_t>parts.count)
        for j in range(parts.count):
            outcome = &request.outcomes[number]
            code_at = answer_part(slot, version, request.parts[number].index, outcome, &room)
            number += 1
            free_text(outcome)
            if not outcome.waits:
                continue
            if outcome.entry is NULL or outcome.entry.removed:  # since it was appended
                put_i16(slot.data + code_at, UNKNOWN_TOPIC_OR_PARTITION)
                continue
            if wait_count == self.wait_capacity:
                self.wait_capacity = max(<uint32_t>16, self.wait_capacity * 2)
                self.waits = <Wait*>realloc(self.waits, self.wait_capacity * sizeof(Wait))
                KAFKAD_CHECK(self.waits is not NULL)
            wait = &self.waits[wait_count]
            wait_count += 1
            wait.watch.entry = outcome.entry
            wait.end_offset = outcome.info.end_offset
            wait.code_at = code_at
        if flexible:
            slot_extend(slot, 1)[0] = 0
    if version >= 1:
        put_i32(slot_extend(slot, 4), 0)                # throttle_time_ms
    if flexible:
        slot_extend(slot, 1)[0] = 0
    if wait_count == 0:
        slot_finish(slot)
    else:
        wait_for_watermarks(self, slot, wait_count, request.deadline_ms)


# -- waiting for other workers' outcomes -----------------------------------------------------------------------

cdef HeldProduce* held_new(Producing self, const Request* request, const Conn* conn) noexcept nogil:
    """Keeps the frame, and has room for what is known of its request."""
    cdef size_t topics = request.topic_count * sizeof(TopicParts)
    cdef size_t parts = request.part_count * sizeof(Part)
    cdef size_t outcomes = request.part_count * sizeof(Outcome)
    cdef size_t ids = request.topic_count * 16
    cdef HeldProduce* held = <HeldProduce*>malloc(sizeof(HeldProduce) + topics + parts + outcomes + ids)
    cdef uint8_t* at = <uint8_t*>(held + 1)
    KAFKAD_CHECK(held is not NULL and self.core.serving is not NULL)
    held.timer.place = -1
    held.producing = <PyObject*>self
    held.slot = NULL
    held.frame = self.core.serving
    buffer_retain(held.frame)
    held.conn_id = conn.id
    held.outcomes_left = 0
    held.slicing = False
    held.unpacking = 0
    held.to_ask = 0
    held.queued = False
    held.waited = False
    held.resumes = False
    held.again = False
    held.admitted = False
    held.asked = NULL
    held.size = <int64_t>(sizeof(HeldProduce) + topics + parts + outcomes + ids + request.part_count * PART_SENT)
    self.core.stats.buffered_bytes += held.size
    held.request.topics = <TopicParts*>at
    held.request.parts = <Part*>(at + topics)
    held.request.outcomes = <Outcome*>(at + topics + parts)
    held.topic_ids = at + topics + parts + outcomes
    return held


cdef void held_free(HeldProduce* held) noexcept nogil:
    cdef Core* core = (<Producing>held.producing).core
    core.stats.buffered_bytes -= held.size
    buffer_release(core, held.frame)
    free(held)


cdef void held_pend(HeldProduce* held, const Request* request, Slot* slot) noexcept nogil:
    cdef Core* core = slot.conn.core
    cdef Request* kept = &held.request
    cdef TopicParts* topics = kept.topics
    cdef Part* parts = kept.parts
    cdef Outcome* outcomes = kept.outcomes
    cdef uint32_t number = 0, i, j
    memcpy(topics, request.topics, request.topic_count * sizeof(TopicParts))
    memcpy(parts, request.parts, request.part_count * sizeof(Part))
    memcpy(outcomes, request.outcomes, request.part_count * sizeof(Outcome))
    kept[0] = request[0]
    kept.topics = topics
    kept.parts = parts
    kept.outcomes = outcomes
    memset(held.topic_ids, 0, request.topic_count * 16)
    for i in range(request.topic_count):
        for j in range(number, number + kept.topics[i].count):
            if kept.outcomes[j].entry is not NULL:
                memcpy(&held.topic_ids[16 * i], kept.outcomes[j].entry.key.id, 16)
                break
        number += kept.topics[i].count
    held.slot = slot
    timer_start(core, &held.timer, max(kept.deadline_ms, core.monotonic_ms + OWNER_MS_MIN), held_expired)
    slot_pend(slot, held, held_cancelled, True)


cdef void produce_outcome(HeldProduce* held, uint32_t number, const Outcome* outcome) noexcept nogil:
    if held.slot is not NULL:
        held.request.outcomes[number] = outcome[0]
        if outcome.code == NEED_TRANSACTION:
            must_ask(held, &held.request.outcomes[number])
            asking_enter(held)
        else:
            held.outcomes_left -= 1
        go_on(<Producing>held.producing, held)
    else:
        free(outcome.text)
        free(outcome.bad)
        held.outcomes_left -= 1
        if held.outcomes_left == 0:
            held_free(held)


cdef inline void must_ask(HeldProduce* held, Outcome* outcome) noexcept nogil:
    outcome.code = OUTCOME_TO_ASK
    held.to_ask += 1


cdef void go_on(Producing self, HeldProduce* held) noexcept nogil:
    """After an outcome: the next slice, the question to the coordinator, or the answer. It may free `held`."""
    cdef Conn* conn = held.slot.conn
    if held.slicing:
        if slice_due(conn):
            conn_run(conn)
    elif held.to_ask and held.to_ask == held.outcomes_left and held.asked is NULL and not held.resumes:
        if <HeldProduce*>conn.asking is not held:
            held.waited = True
        elif held.waited:
            held.waited = False
            gate_try_again(held)
            resume(held)
        else:
            timer_stop(self.core, &held.timer)
            timer_start(self.core, &held.timer, min(max(held.request.deadline_ms, self.core.monotonic_ms + OWNER_MS_MIN),
                                                    self.core.monotonic_ms + WAIT_MS_MAX), held_expired)
            held.outcomes_left += 1                     # it stays, whatever happens to its connection
            with gil:
                gate_ask(held, &self.table.table, self.gate, gate_answered)
            held.outcomes_left -= 1
            if held.slot is not NULL and held.admitted:
                resume(held)
    if held.outcomes_left == 0:
        if held.slot is not NULL:
            held_answer(self, held)
        held_free(held)


cdef void gate_answered(HeldProduce* held) noexcept nogil:
    if held.admitted:
        resume(held)
    else:
        go_on(<Producing>held.producing, held)


cdef void resume(HeldProduce* held) noexcept nogil:
    """Append the parts that are AGAIN, from the connection's next turn on; or when that has appended what it is at."""
    cdef Conn* conn = held.slot.conn
    held.resumes = conn.slicing is not NULL
    if held.resumes:
        return
    held.again = True
    held.request.next_topic = 0
    held.request.next_part = 0
    held.request.next_number = 0
    held.slicing = True
    held.outcomes_left += 1
    conn.slicing = held
    conn.unpacking += 1
    conn_run(conn)


cdef void asking_next(Producing self, Conn* conn) noexcept nogil:
    """A request of the connection has been answered, or has come to its end: those that waited for that go on."""
    cdef HeldProduce* held = <HeldProduce*>conn.asking
    if conn.closed or held is NULL:
        return
    if conn.slicing is NULL:
        while held is not NULL:
            if held.resumes:
                resume(held)
                break
            held = held.next_asking
    held = <HeldProduce*>conn.asking
    if held.waited:
        go_on(self, held)


cdef void produce_forget(HeldProduce* held) noexcept nogil:
    KAFKAD_CHECK(held.slot is NULL)                     # all connections are closed
    held.outcomes_left -= 1
    if held.outcomes_left == 0:
        free(held)


cdef void held_expired(Core* core, Timer* timer) noexcept nogil:
    """An owner does not answer. It may append later, or not, so the frame is kept for it."""
    cdef HeldProduce* held = <HeldProduce*>timer
    cdef Conn* conn = held.slot.conn
    cdef uint32_t i
    if held.unpacking or (held.slicing and slice_due(conn)):   # our own appends have no timeout, and the answer waits for them
        timer_start(core, timer, core.monotonic_ms + OWNER_MS_MIN, held_expired)
        return
    if held.slicing:                                    # an owner has the last slice
        slicing_end(held, conn)
    core.stats.produce_timeouts += 1
    for i in range(held.request.part_count):
        if held.request.outcomes[i].code == OUTCOME_TO_COME:
            held.request.outcomes[i].code = REQUEST_TIMED_OUT
    if held.to_ask:
        gate_give_up(held)
    held_answer(<Producing>held.producing, held)
    if held.outcomes_left == 0:
        held_free(held)


cdef void held_cancelled(Slot* slot) noexcept nogil:
    """The connection is closed. The frame is kept until owners and threads are done with it."""
    cdef HeldProduce* held = <HeldProduce*>slot.waiting
    timer_stop(slot.conn.core, &held.timer)
    held.slot = NULL
    if held.unpacking:
        with gil:
            for job in (<Producing>held.producing).unpacking.pop(<size_t>held, ()):
                if job is not None:
                    (<Job>job).cancelled = True
    slot.conn.asking = NULL                             # all of them are cancelled
    if held.to_ask:
        gate_give_up(held)
    drop_texts(held.request.outcomes, held.request.part_count)
    if held.slicing:
        slicing_end(held, slot.conn)
    if held.outcomes_left == 0:
        held_free(held)


cdef void held_answer(Producing self, HeldProduce* held) noexcept nogil:
    """All outcomes have come. Entries are looked up again: some may have been removed since the append."""
    cdef Request* request = &held.request
    cdef Slot* slot = held.slot
    cdef Conn* conn = slot.conn
    cdef Outcome* outcome
    cdef Topic* topic
    cdef uint32_t number = 0, i, j
    cdef bint failed = False
    timer_stop(self.core, &held.timer)
    asking_leave(held)
    held.slot = NULL
    slot.waiting = NULL
    slot.cancel = NULL
    for i in range(request.topic_count):
        topic = NULL
        for j in range(request.topics[i].count):
            outcome = &request.outcomes[number]
            if outcome.code:
                failed = True
            elif outcome.waits and request.acks != 0:
                if topic is NULL:
                    topic = find_topic(self, &request.topics[i])
                    if topic is not NULL and memcmp(topic.key.id, &held.topic_ids[16 * i], 16) != 0:
                        topic = NULL                    # deleted, and made again with other offsets
                outcome.entry = topic_entry(topic, request.parts[number].index)
                outcome.waits = outcome.entry is NULL or (
                    (<Partition>outcome.entry.partition).row.high_watermark < outcome.info.end_offset)
            number += 1
    if request.acks != 0:
        answer(self, request, slot)
    else:
        drop_texts(request.outcomes, request.part_count)
        slot_drop(slot)                                 # also if the connection is ending already
        if failed:
            conn_end(conn, "a Produce with acks=0 failed")
    asking_next(self, conn)


# -- slices ------------------------------------------------------------------------------------------------

cdef void slicing_begin(HeldProduce* held, Conn* conn, Request* request) noexcept nogil:
    """The partitions from `request.next_number` on wait for the connection's next turns; behind them nothing of it runs."""
    cdef uint32_t number
    for number in range(request.next_number, request.part_count):
        memset(&request.outcomes[number], 0, sizeof(Outcome))
        request.outcomes[number].code = OUTCOME_TO_COME
        request.outcomes[number].info.bad_record = -1
        request.outcomes[number].info.log_start_offset = -1
    held.slicing = True
    held.outcomes_left += 1
    conn.slicing = held
    conn.unpacking += 1


cdef void slicing_end(HeldProduce* held, Conn* conn) noexcept nogil:
    held.slicing = False
    held.outcomes_left -= 1
    conn.slicing = NULL
    conn.unpacking -= 1


cdef Topic* slice_topic(HeldProduce* held, uint32_t number, Topic* topic) noexcept nogil:
    cdef uint8_t* kept = &held.topic_ids[16 * number]
    if memcmp(kept, NO_ID, 16) == 0:
        memcpy(kept, topic.key.id, 16)                  # its first partition
    return topic if memcmp(kept, topic.key.id, 16) == 0 else NULL


cdef bint slice_due(const Conn* conn) noexcept nogil:
    cdef const HeldProduce* held = <const HeldProduce*>conn.slicing
    return held is not NULL and held.outcomes_left - held.to_ask == 1


cdef void produce_slice(Producing self, Conn* conn) noexcept nogil:
    cdef HeldProduce* held = <HeldProduce*>conn.slicing
    cdef bint whole
    if not slice_due(conn):                             # one slice at a time is with other workers and threads
        return
    self.core.stats.produce_slices += 1
    held.outcomes_left += 1                             # it stays, whatever happens to its connection
    whole = append_some(self, conn, &held.request, &held)
    held.outcomes_left -= 1
    if conn.closed:                                     # Python ran, and closed it
        drop_texts(held.request.outcomes, held.request.part_count)
        if held.outcomes_left == 0:
            held_free(held)
        return
    if held.to_ask:
        asking_enter(held)
    if whole:
        slicing_end(held, conn)
        if held.admitted and held.to_ask == 0:
            asking_leave(held)                          # all is on its way: who comes next stays behind it
        go_on(self, held)
        asking_next(self, conn)


# -- waiting for batches to be unpacked ------------------------------------------------------------------------

cdef class UnpackedPart:
    """Called on the loop when a thread has unpacked a partition's batch."""

    cdef Producing producing
    cdef HeldProduce* held
    cdef uint32_t topic
    cdef uint32_t number

    def __call__(self, work, error):
        unpacked(self.producing, self.held, self.topic, self.number, work, error)


cdef bint unpack_later(Producing self, Conn* conn, HeldProduce* held, uint32_t topic, uint32_t number,
                       Outcome* outcome) noexcept:
    """The rest of an append goes to the threads; `conn` serves nothing more until it is done. False: it failed (no
    memory), and `outcome` has the error."""
    cdef UnpackedPart deliver
    cdef list jobs
    work = take_pending(self)
    try:
        deliver = UnpackedPart.__new__(UnpackedPart)
        deliver.producing = self
        deliver.held = held
        deliver.topic = topic
        deliver.number = number
        jobs = self.unpacking.setdefault(<size_t>held, [])
        jobs.append(None)                               # its place: nothing may fail behind `submit`
        jobs[len(jobs) - 1] = self.unpacker.submit(conn.id, work, deliver)
    except BaseException as error:
        if held.unpacking == 0:
            self.unpacking.pop(<size_t>held, None)
        note_refusal(self.core, work.partition, outcome, error)
        return False
    held.outcomes_left += 1
    held.unpacking += 1
    conn.unpacking += 1
    return True


cdef void unpacked(Producing self, HeldProduce* held, uint32_t topic, uint32_t number, object work, object error) noexcept:
    """Append what a thread has unpacked. `work` is None when the reactor closes."""
    cdef Conn* conn
    cdef Topic* parts_topic
    cdef Entry* entry
    cdef Outcome outcome
    memset(&outcome, 0, sizeof(Outcome))
    outcome.info.bad_record = -1
    outcome.info.log_start_offset = -1
    held.unpacking -= 1
    if held.unpacking == 0:
        self.unpacking.pop(<size_t>held, None)
    KAFKAD_CHECK(work is not None or held.slot is NULL) # connections are closed before the threads end
    if held.slot is NULL:                               # the connection is closed
        if work is not None:
            close_work(self.core, work)
        outcome.code = NOT_LEADER_OR_FOLLOWER
        produce_outcome(held, number, &outcome)
        return
    conn = held.slot.conn
    parts_topic = find_topic(self, &held.request.topics[topic])
    entry = topic_entry(parts_topic, held.request.parts[number].index)
    if entry is NULL:
        outcome.code = (UNKNOWN_TOPIC_ID if parts_topic is NULL and held.request.version >= 13
                        else UNKNOWN_TOPIC_OR_PARTITION)
        close_work(self.core, work)
    elif entry.remote or <Partition>entry.partition is not work.partition:
        outcome.code = NOT_LEADER_OR_FOLLOWER
        close_work(self.core, work)
    else:
        finish_append(self, work, error, &outcome)
        outcome.waits = outcome.code == 0
    conn.unpacking -= 1
    if conn.unpacking == 0:
        conn_run(conn)
    produce_outcome(held, number, &outcome)


# -- waiting for high watermarks -----------------------------------------------------------------------------------------------

cdef void wait_for_watermarks(Producing self, Slot* slot, uint32_t count, int64_t deadline_ms) noexcept nogil:
    cdef WaitingProduce* produce = <WaitingProduce*>malloc(sizeof(WaitingProduce) + (count - 1) * sizeof(Wait))
    cdef Wait* wait
    cdef uint32_t i
    KAFKAD_CHECK(produce is not NULL)
    produce.slot = slot
    produce.waits_left = count
    produce.wait_count = count
    memcpy(produce.waits, self.waits, count * sizeof(Wait))
    for i in range(count):
        wait = &produce.waits[i]
        wait.produce = produce
        watch_in_order(wait)
        if wait.watch.entry.remote:
            table_listen(wait.watch.entry)
    self.core.stats.produce_waits += 1
    timer_start(self.core, &produce.timer, deadline_ms, produce_expired)
    slot_pend(slot, produce, produce_cancelled, not slot.overtakable)


cdef void watch_in_order(Wait* wait) noexcept nogil:
    """The entry's list is in the order of offsets. A request that was held comes later than some behind it."""
    cdef Entry* entry = wait.watch.entry
    cdef Watch* after = entry.last_produce
    if after is NULL or (<Wait*>after).end_offset <= wait.end_offset:
        watch_produce(entry, &wait.watch)
        return
    while after.previous is not NULL and (<Wait*>after.previous).end_offset > wait.end_offset:
        after = after.previous
    wait.watch.next = after
    wait.watch.previous = after.previous
    if after.previous is not NULL:
        after.previous.next = &wait.watch
    else:
        entry.produces = &wait.watch
    after.previous = &wait.watch


cdef void produce_settle(Core* core, WaitingProduce* produce) noexcept nogil:
    cdef Slot* slot = produce.slot
    timer_stop(core, &produce.timer)
    free(produce)
    slot_finish(slot)


cdef void produce_expired(Core* core, Timer* timer) noexcept nogil:
    cdef WaitingProduce* produce = <WaitingProduce*>timer
    cdef Wait* wait
    cdef uint32_t i
    core.stats.produce_timeouts += 1
    for i in range(produce.wait_count):
        wait = &produce.waits[i]
        if wait.watch.entry is not NULL:
            unwatch(&wait.watch, True)
            put_i16(produce.slot.data + wait.code_at, REQUEST_TIMED_OUT)
    produce_settle(core, produce)


cdef void produce_cancelled(Slot* slot) noexcept nogil:
    """The connection is closed."""
    cdef WaitingProduce* produce = <WaitingProduce*>slot.waiting
    cdef uint32_t i
    for i in range(produce.wait_count):
        unwatch(&produce.waits[i].watch, True)
    timer_stop(slot.conn.core, &produce.timer)
    free(produce)


cdef void produce_advanced(Producing self, Entry* entry, uint32_t why) noexcept nogil:
    cdef int64_t high_watermark = (<Partition>entry.partition).row.high_watermark
    cdef Wait* wait
    cdef WaitingProduce* produce
    while entry.produces is not NULL:
        wait = <Wait*>entry.produces
        if wait.end_offset > high_watermark:
            if not (why & PARTITION_GONE):
                break
            put_i16(wait.produce.slot.data + wait.code_at,
                    UNKNOWN_TOPIC_OR_PARTITION if entry.removed else NOT_LEADER_OR_FOLLOWER)
        unwatch(&wait.watch, True)
        produce = wait.produce
        produce.waits_left -= 1
        if produce.waits_left == 0:
            produce_settle(self.core, produce)
    if entry.remote and entry.produces is not NULL:
        table_listen(entry)


cdef class Producing:
    def __cinit__(self, PartitionTable table not None):
        self.table = table
        self.unpacking = {}

    def __dealloc__(self):
        free(self.parts)
        free(self.outcomes)
        free(self.topics)
        free(self.waits)

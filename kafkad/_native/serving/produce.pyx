"""Produce (key 0), v0 to v13, from the frame to the answer.

v0-2 message sets of magic 0 and 1 (old_produce.pyx). v1 throttle time. v2 log append time. v3 transactional id.
v5 log start offset. v7 zstd allowed. v8 record errors. v9 flexible. v10 leader hints (leader_hints.pyx). v13 topic ids.

The whole body is parsed before anything is appended (produce_parsing.pyx), so a frame that does not parse changes nothing.
Then the records of each partition are appended: by `Partition.append`, or in Python if that returns NEED_PYTHON
(produce_slow_path.pyx). Each append leaves an `Outcome`. The answer is written from the outcomes (produce_answers.pyx) and
sent when the acks are met.

A request waits as a `HeldProduce` until its last outcome has come, in four cases:

    forwarding   another worker owns a partition. It gets a message (`forward` of produce_forwarding.pyx); the records
                 stay where the socket put them
    unpacking    a compressed batch, or one that must be rebuilt, exceeds what the loop may unpack in this round (bytes,
                 steps, time). A thread unpacks the rest (unpacking.pyx), then the loop appends it under the partition's
                 state of that moment. The connection serves nothing else meanwhile, so its batches keep their order;
                 other connections continue, also with the same partition
    slices       a request with many partitions is appended one slice per turn of its connection. The next slice begins
                 when all outcomes of the previous one have come, so an owner or a thread has one slice at a time
    asking       the first batch of a transaction in a partition waits for the transaction's coordinator
                 (produce_gate.pyx). Another round of slices (`resume`) then appends the parts that are AGAIN

The size of the request is charged to the client's quota when it is answered (quota.pyx)."""

from cpython.object cimport PyObject
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy, memset

from kafkad._native.wire.batch cimport COMPRESSION_MASK, HEADER_SIZE, NEED_PYTHON, TRANSACTIONAL, bad_records
from kafkad._native.serving.buffers cimport buffer_release, buffer_retain
from kafkad._native.serving.connection cimport Conn, Core, Slot, Timer, conn_end, conn_run, slot_drop, slot_open, slot_pend
from kafkad._native.serving.old_produce cimport NOTHING_TO_APPEND, SETS_BELOW, judge_set, note_nothing
from kafkad._native.serving.outcomes cimport free_text, note_refusal
from kafkad._native.log.guards cimport NEED_TRANSACTION, PLAIN
from kafkad._native.log.partition cimport Partition
from kafkad._native.serving.fetch_state cimport Fetching
from kafkad._native.serving.leader_hints cimport begin_elsewhere, code_elsewhere, is_denied_elsewhere
from kafkad._native.serving.partition_table cimport Entry, Topic, topic_by_id, topic_by_name, topic_entry
from kafkad._native.serving.produce_gate cimport (
    asking_enter, asking_leave, gate_admission, gate_ask, gate_give_up, gate_try_again, has_two_producers)
from kafkad._native.serving.produce_leaving cimport hand_over
from kafkad._native.serving.produce_merge cimport merge_parts
from kafkad._native.serving.produce_parsing cimport SCRATCH_KEPT, drop_scratch, parse_topics
from kafkad._native.serving.quota cimport quota_charge, quota_unanswered
from kafkad._native.serving.timers cimport timer_start, timer_stop
from kafkad._native.serving.topic_rights cimport RIGHT_WRITE, may_topic, may_transact
from kafkad._native.serving.unpacking cimport Job, unpack_now_ns
from kafkad._native.shared.watermarks cimport Row
from kafkad._native.wire.primitives cimport (
    Cursor, KAFKAD_CHECK, get_i16, read_i16, read_i32, read_raw, read_uvarint, remaining, skip_tags)
from kafkad._native.wire.errors cimport (
    INVALID_PRODUCER_ID_MAPPING, INVALID_RECORD, INVALID_REQUEST, INVALID_REQUIRED_ACKS, INVALID_TOPIC_EXCEPTION,
    NOT_ENOUGH_REPLICAS, NOT_LEADER_OR_FOLLOWER, REQUEST_TIMED_OUT, TOPIC_AUTHORIZATION_FAILED,
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED, UNSUPPORTED_COMPRESSION_TYPE)
from kafkad._native.wire.batch_layout cimport ATTRIBUTES_AT, MAGIC_AT
from kafkad._native.serving.produce_answers cimport drop_texts, produce_answer
from kafkad._native.serving.produce_slow_path cimport append_python, close_work, finish_append, hides_log_start, take_pending
from kafkad._native.serving.produce_state cimport (
    OUTCOME_AGAIN, OUTCOME_TO_ASK, OUTCOME_TO_COME, HeldProduce, Outcome, Part, Producing, Request, TopicParts)

cdef enum:
    ZSTD = 4
    # Minimum time for an owner to answer. The request's timeout covers replication only; local appends ignore it, too.
    OWNER_MS_MIN = 1000
    WAIT_MS_MAX = 30_000                # longest wait for the coordinator of a transaction
    # One turn appends at most this much of one request. The clock is read after each LOOK_BYTES. A partition counts as
    # its records plus PART_BYTES.
    SLICE_BYTES = 8 * 1024 * 1024
    SLICE_NS = 4_000_000
    LOOK_BYTES = 512 * 1024
    PART_BYTES = 16 * 1024
    PART_SENT = 256 + 32                # a mailbox.Mail and a forwarding.Flight

cdef const char* MALFORMED = "a Produce does not parse"
cdef const char* NO_ID = b"\0" * 16

# -- one partition -----------------------------------------------------------------------------------------

cdef inline int check_records(const Part* part, int16_t version) noexcept nogil:
    """Return an error code: checks that depend on the request's version, not on the partition
    (ProduceRequest.validateRecords)."""
    if part.size < HEADER_SIZE or part.records[MAGIC_AT] != 2:
        return judge_set(part.records, part.size) if version < SETS_BELOW else INVALID_RECORD
    if version < 7 and (get_i16(part.records + ATTRIBUTES_AT) & COMPRESSION_MASK) == ZSTD:
        return UNSUPPORTED_COMPRESSION_TYPE
    return 0


cdef inline int may_append(const Entry* entry, const Part* part, int16_t version, bint admin) noexcept nogil:
    if entry.internal and not admin:
        return INVALID_TOPIC_EXCEPTION
    return check_records(part, version)


cdef inline bint lacks_replicas(const Entry* entry) noexcept nogil:
    """Whether acks=all is refused: fewer replicas are in sync than min.insync.replicas."""
    cdef const Row* row = (<Partition>entry.partition).row
    return row.isr_count < row.isr_count_min


cdef inline bint is_open(const Row* row, int16_t acks, const Outcome* outcome) noexcept nogil:
    """Whether the acks of an append are not met yet. The row of another worker's partition may be older than the append;
    then the check is repeated when the request waits."""
    return (row.high_watermark if acks < 0 else row.durable_offset) < outcome.info.end_offset or row.led_since != outcome.term


cdef inline void append_own(Producing self, Entry* entry, const Part* part, Outcome* outcome) noexcept nogil:
    outcome.text = NULL
    outcome.bad = NULL
    outcome.term = (<Partition>entry.partition).row.led_since
    outcome.code = (<Partition>entry.partition).append(part.records, <size_t>part.size, self.core.now_ms, &outcome.info)
    if outcome.code == NEED_PYTHON:
        append_python(self, entry, part, outcome)
    elif outcome.code and outcome.info.bad_record >= 0:
        outcome.bad = bad_records(
            part.records, <size_t>part.size, &(<Partition>entry.partition).rules, self.core.now_ms)
    if outcome.code > 0 and hides_log_start(outcome.code):
        outcome.info.log_start_offset = -1


# The owner's steps of an append for another worker (produce_forwarding.pyx).

cdef int check_part(const Entry* entry, const Part* part, int16_t version, bint admin, bint acks_all) noexcept nogil:
    cdef int code = may_append(entry, part, version, admin)
    return NOT_ENOUGH_REPLICAS if code == 0 and acks_all and lacks_replicas(entry) else code


cdef void append_part(Producing self, Entry* entry, const Part* part, Outcome* outcome) noexcept nogil:
    self.from_peer = True
    append_own(self, entry, part, outcome)
    self.from_peer = False


cdef void drop_text(Outcome* outcome) noexcept nogil:
    free_text(outcome)


# -- one request -------------------------------------------------------------------------------------------

cdef inline Topic* find_topic(Producing self, const TopicParts* parts) noexcept nogil:
    if parts.name_size < 0:
        return topic_by_id(&self.table.table, parts.name)
    return topic_by_name(&self.table.table, <char*>parts.name, <size_t>parts.name_size)


cdef bint fails_validation(const void* some_part, int16_t version) noexcept nogil:
    """ProduceRequest.validateRecords, which skips partitions without records."""
    cdef const Part* part = <const Part*>some_part
    cdef int code = 0 if part.size < 0 else check_records(part, version)
    return code == INVALID_RECORD or code == UNSUPPORTED_COMPRESSION_TYPE


cdef bint is_irregular(Producing self, const Request* request) noexcept nogil:
    """Whether the request may name a topic or partition twice, or has a topic without partitions. Known topics and
    partitions are marked with the number of the request; `merge_parts` decides about unknown ones."""
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


cdef bint append_some(Producing self, Conn* conn, Request* request, HeldProduce** held_at) noexcept nogil:
    """Append from `request.next_*` on; if `held.again`, only the parts that are AGAIN. Return False if the turn is over or
    the connection was closed. If the request has to wait, `held_at[0]` is created unless it exists."""
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
    cdef bint denied
    cdef uint64_t asked
    cdef Outcome* outcome
    begin_elsewhere(<Fetching>self.core.fetching)
    for i in range(request.next_topic, request.topic_count):
        parts = &request.topics[i]
        topic = same_topic(held, i, find_topic(self, parts))
        denied = False
        if self.core.authorizing and not again and request.refused_whole == 0:
            asked = self.core.acl_asks
            if topic is NULL and parts.name_size < 0:
                denied = is_denied_elsewhere(<Fetching>self.core.fetching, conn, parts.name, RIGHT_WRITE)
            else:
                denied = not may_topic(self.core, conn, topic.key if topic is not NULL else NULL,
                                       <const char*>parts.name, <size_t>parts.name_size, RIGHT_WRITE)
            if conn.closed:
                request.next_number = number
                return False
            if asked != self.core.acl_asks:             # Python ran: read the clock, and look the topic up again
                unseen = LOOK_BYTES
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
            elif denied:
                outcome.code = TOPIC_AUTHORIZATION_FAILED
            elif entry is NULL:
                outcome.code = code_elsewhere(<Fetching>self.core.fetching, parts.name, parts.name_size, part.index,
                                              topic is NULL and request.version >= 13)
            elif request.refusal:
                outcome.code = request.refusal
            else:
                outcome.code = may_append(entry, part, request.version, request.admin)
                if outcome.code == 0 and request.acks < 0 and not entry.remote and lacks_replicas(entry):
                    outcome.code = NOT_ENOUGH_REPLICAS
                outcome.info.admission = request.admission
                if not again:
                    outcome.info.guard = 0
                if outcome.code == 0 and not entry.remote:
                    if outcome.info.guard and outcome.guard_owner != -1:
                        outcome.info.guard = 0          # from another worker, which owned the partition then
                    append_own(self, entry, part, outcome)
                    if outcome.code == 0:
                        outcome.waits = request.acks != 0 and (entry.removed or is_open(
                            (<Partition>entry.partition).row, request.acks, outcome))
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
    """Let a thread continue an append, or note that the coordinator must be asked first."""
    if outcome.code == OUTCOME_TO_COME:
        with gil:
            unpack_later(self, conn, held, topic, number, outcome)
    elif not conn.closed:
        outcome.guard_owner = -1
        must_ask(held, outcome)
        held.outcomes_left += 1


cdef inline Topic* same_topic(HeldProduce* held, uint32_t number, Topic* topic) noexcept nogil:
    """Return `topic`, or NULL if it was deleted and created again since an earlier slice of the request."""
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

    quota_charge(conn, client, client_size, remaining(body), &request.charge)
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
            request.refused_whole = TRANSACTIONAL_ID_AUTHORIZATION_FAILED   # for unknown topics, too: Kafka checks it first
    elif self.core.authorizing and not may_transact(self.core, conn, request.transactional_id, <size_t>transactional_size):
        request.refused_whole = TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    elif not self.serves_transactions:
        request.refusal = INVALID_REQUEST
    else:
        self.core.stats.transactional += 1
        request.admission = gate_admission(version, self.verifies)
        if request.part_count > 1 and has_two_producers(&request):
            request.refused_whole = INVALID_PRODUCER_ID_MAPPING
            request.refused_message = b"Transactional records contained more than one producer ID"
    if self.hands_over and request.part_count == 1 and hand_over(
            self, conn, &request, correlation_id, topic_entry(find_topic(self, self.topics), self.parts.index)):
        return NULL
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
        if conn.core.quotas is not NULL:
            quota_unanswered(conn, &request.charge)
        if failed:
            conn_end(conn, "a Produce with acks=0 failed")
        return NULL
    slot = slot_open(conn, 0, version, correlation_id)
    produce_answer(self, &request, slot)
    return NULL


# -- waiting for outcomes --------------------------------------------------------------------------------------

cdef HeldProduce* held_new(Producing self, const Request* request, const Conn* conn) noexcept nogil:
    """Keep the frame, with room for a copy of the request's topics, parts and outcomes."""
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
    """After an outcome: begin the next slice, ask the coordinator, or answer. May free `held`."""
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
            held.outcomes_left += 1                     # so it is not freed if the connection closes
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
    """Append the parts that are AGAIN from the connection's next turn on, or after the slices that it is at."""
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
    """A request of the connection has been answered, or has appended its last slice: continue those that waited for it."""
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
    """An owner does not answer in time. It may still append, so the frame is kept."""
    cdef HeldProduce* held = <HeldProduce*>timer
    cdef Conn* conn = held.slot.conn
    cdef uint32_t i
    if held.unpacking or (held.slicing and slice_due(conn)):   # our own appends have no timeout
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
    """The connection is closed. The frame is kept until owners and threads have finished."""
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
    """Answer: all outcomes have come. Entries are looked up again, because some may have been removed since the append."""
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
                        topic = NULL                    # deleted and created again, with other offsets
                outcome.entry = topic_entry(topic, request.parts[number].index)
                outcome.waits = outcome.entry is NULL or is_open(
                    (<Partition>outcome.entry.partition).row, request.acks, outcome)
            number += 1
    if request.acks != 0:
        produce_answer(self, request, slot)
    else:
        drop_texts(request.outcomes, request.part_count)
        if conn.core.quotas is not NULL:
            quota_unanswered(conn, &request.charge)
        slot_drop(slot)                                 # even if the connection is ending already
        if failed:
            conn_end(conn, "a Produce with acks=0 failed")
    asking_next(self, conn)


# -- slices ------------------------------------------------------------------------------------------------

cdef void slicing_begin(HeldProduce* held, Conn* conn, Request* request) noexcept nogil:
    """Leave the partitions from `request.next_number` on to the connection's next turns. Its later requests wait."""
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
    if not slice_due(conn):                             # other workers or threads still have the previous slice
        return
    self.core.stats.produce_slices += 1
    held.outcomes_left += 1                             # so it is not freed if the connection closes
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
            asking_leave(held)                          # everything is on its way: later requests keep their order
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
    """Give the rest of an append to the threads; `conn` serves nothing else until it is done. Return False if that failed
    (no memory); then `outcome` has the error."""
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
        jobs.append(None)                               # reserves the place: nothing may fail after `submit`
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
    """Append a batch that a thread has unpacked. `work` is None if the reactor closes."""
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
        begin_elsewhere(<Fetching>self.core.fetching)
        outcome.code = code_elsewhere(<Fetching>self.core.fetching, held.request.topics[topic].name,
                                      held.request.topics[topic].name_size, held.request.parts[number].index,
                                      parts_topic is NULL and held.request.version >= 13)
        close_work(self.core, work)
    elif entry.remote or <Partition>entry.partition is not work.partition:
        outcome.code = NOT_LEADER_OR_FOLLOWER
        close_work(self.core, work)
    else:
        outcome.term = (<Partition>entry.partition).row.led_since
        finish_append(self, work, error, &outcome)
        outcome.waits = outcome.code == 0
    conn.unpacking -= 1
    if conn.unpacking == 0:
        conn_run(conn)
    produce_outcome(held, number, &outcome)



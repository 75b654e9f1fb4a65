"""The answer of a Produce: written from the outcomes at once, and sent when the acks are met.

acks=all waits for the high watermark, acks=1 for the local flush policy. Until then the request waits on the entries of its
partitions (`Watch`); a timeout only patches error codes in the answer. Hints that name the leader (v10, KIP-951) are
collected and inserted at the end (leader_hints.pyx).

Beware: a wait belongs to one term of leadership (Row.led_since). A broker that resigned and leads again may hold other
records at the awaited offsets, so reaching them proves nothing."""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy

from kafkad._native.serving.connection cimport Core, Slot, Timer, slot_extend, slot_finish, slot_pend
from kafkad._native.serving.fetch_state cimport Fetching
from kafkad._native.serving.leader_hints cimport (
    Hints, hints_add, hints_free, hints_put, is_of_leader, leader_of, led_elsewhere)
from kafkad._native.serving.outcomes cimport free_text
from kafkad._native.log.partition cimport Partition
from kafkad._native.log.partition_state cimport ADVANCED_DURABLE, ADVANCED_END, PARTITION_GONE
from kafkad._native.serving.partition_table cimport (
    Entry, Topic, Watch, table_listen, topic_by_id, topic_by_name, topic_entry, unwatch, watch_produce)
from kafkad._native.serving.quota cimport quota_produced
from kafkad._native.serving.timers cimport timer_start, timer_stop
from kafkad._native.shared.watermarks cimport Row
from kafkad._native.wire.primitives cimport KAFKAD_CHECK, put_i16, put_i32, put_i64, put_uvarint
from kafkad._native.wire.errors cimport (
    NOT_ENOUGH_REPLICAS_AFTER_APPEND, NOT_LEADER_OR_FOLLOWER, REQUEST_TIMED_OUT, UNKNOWN_TOPIC_OR_PARTITION)
from kafkad._native.serving.produce_state cimport (
    MESSAGE_SIZE_MAX, Outcome, Producing, Request, TopicParts, Wait, WaitingProduce)

cdef extern from "string.h" nogil:
    size_t strlen(const char* text)
    size_t strnlen(const char* text, size_t size)

cdef enum:
    TAGS_BEHIND = 28                    # from the error code of an appended partition to its tags (v10 and later)
    RECORD_ERRORS_MAX = 20_000          # bad records that one answer lists; beyond it, each partition lists its first

cdef const char* KEY_MISSING = "Compacted topic cannot accept message without key"
cdef const char* TIMESTAMP_BAD = "Timestamp is out of the range that the topic allows"


cdef void produce_answer(Producing self, const Request* request, Slot* slot) noexcept nogil:
    """Write the answer from the outcomes. Send it, or wait for watermarks."""
    cdef int16_t version = request.version
    cdef bint flexible = version >= 9
    cdef uint32_t number = 0, wait_count = 0, i, j, code_at
    cdef uint32_t room = RECORD_ERRORS_MAX
    cdef const TopicParts* parts
    cdef Outcome* outcome
    cdef Wait* wait
    cdef Hints* hints = NULL
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
            if version >= 10 and is_of_leader(outcome.code):
                hint_leader(self, &hints, parts, request.parts[number - 1].index, slot.size - 1)
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
            wait.term = outcome.term
            wait.committed = request.acks < 0
            wait.code_at = code_at
        if flexible:
            slot_extend(slot, 1)[0] = 0
    if version >= 1:
        put_i32(slot_extend(slot, 4), 0)                # throttle_time_ms
    if flexible:
        slot_extend(slot, 1)[0] = 0
    if request.charge.limit:
        slot.charge = request.charge
    if wait_count == 0:
        produce_finish(slot, hints)
    else:
        wait_for_watermarks(self, slot, wait_count, request.deadline_ms, hints)


cdef Entry* entry_of_part(Producing self, const TopicParts* parts, int32_t index) noexcept nogil:
    """Return the entry, or NULL if it was removed since the append."""
    cdef Topic* topic
    if parts.name_size < 0:
        topic = topic_by_id(&self.table.table, parts.name)
    else:
        topic = topic_by_name(&self.table.table, <const char*>parts.name, <size_t>parts.name_size)
    return topic_entry(topic, index)


cdef void hint_leader(Producing self, Hints** hints, const TopicParts* parts, int32_t index, uint32_t tag_at) noexcept nogil:
    cdef Entry* entry = entry_of_part(self, parts, index)
    cdef int32_t leader_id, leader_epoch
    cdef bint known
    if entry is NULL:
        known = led_elsewhere(<Fetching>self.core.fetching, parts.name, parts.name_size, index, &leader_id, &leader_epoch)
    else:
        known = leader_of(<Fetching>self.core.fetching, entry, &leader_id, &leader_epoch)
    if known or leader_epoch >= 0:
        hints_add(hints, leader_id, leader_epoch, tag_at)


cdef inline void produce_finish(Slot* slot, Hints* hints) noexcept nogil:
    if slot.conn.core.quotas is not NULL:
        quota_produced(slot)
    if hints is not NULL:
        hints_put(hints, <Fetching>slot.conn.core.fetching, slot)
        hints_free(hints)
    slot_finish(slot)


cdef uint32_t answer_part(Slot* slot, int16_t version, int32_t index, const Outcome* outcome, uint32_t* room) noexcept nogil:
    """Write one partition's answer and return the position of its error code. `room`: bad records that may be listed."""
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


cdef void put_record_errors(Slot* slot, bint flexible, const Outcome* outcome, uint32_t* room) noexcept nogil:
    """Write the index and the reason of each bad record, if this answer has room for them."""
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


cdef inline uint8_t* put_text(uint8_t* at, bint flexible, const char* text, size_t size) noexcept nogil:
    """Write a nullable string; NULL is null. Return the end."""
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


cdef void drop_texts(Outcome* outcomes, uint32_t count) noexcept nogil:
    cdef uint32_t i
    for i in range(count):
        free_text(&outcomes[i])

# -- waiting for high watermarks ----------------------------------------------------------------------------

cdef void wait_for_watermarks(Producing self, Slot* slot, uint32_t count, int64_t deadline_ms, Hints* hints) noexcept nogil:
    cdef WaitingProduce* produce = <WaitingProduce*>malloc(sizeof(WaitingProduce) + (count - 1) * sizeof(Wait))
    cdef Wait* wait
    cdef uint32_t i
    KAFKAD_CHECK(produce is not NULL)
    produce.slot = slot
    produce.waits_left = count
    produce.wait_count = count
    produce.hints = hints
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
    """Insert into the entry's list, which is ordered by offset. A held request arrives after some with higher offsets."""
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
    cdef Hints* hints = produce.hints
    timer_stop(core, &produce.timer)
    free(produce)
    produce_finish(slot, hints)


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
    hints_free(produce.hints)
    free(produce)


cdef void produce_advanced(Producing self, Entry* entry, uint32_t why) noexcept nogil:
    cdef const Row* row = (<Partition>entry.partition).row
    cdef bint gone = why & PARTITION_GONE != 0
    cdef Wait* wait = <Wait*>entry.produces
    cdef WaitingProduce* produce
    cdef int32_t leader_id, leader_epoch
    if why == ADVANCED_END:
        return
    while wait is not NULL:
        if wait.end_offset > row.high_watermark and not gone and wait.term == row.led_since:
            if wait.end_offset > row.durable_offset or not why & ADVANCED_DURABLE:
                break                                   # the rest of the list waits, too
            if wait.committed:
                wait = <Wait*>wait.watch.next
                continue
        if wait.term != row.led_since or wait.end_offset > (row.high_watermark if wait.committed else row.durable_offset):
            put_i16(wait.produce.slot.data + wait.code_at,
                    UNKNOWN_TOPIC_OR_PARTITION if entry.removed else NOT_LEADER_OR_FOLLOWER)
            if not entry.removed and wait.produce.slot.api_version >= 10:
                if leader_of(<Fetching>self.core.fetching, entry, &leader_id, &leader_epoch) or leader_epoch >= 0:
                    hints_add(&wait.produce.hints, leader_id, leader_epoch, wait.code_at + TAGS_BEHIND)
        elif wait.committed and row.isr_count_max < row.isr_count_min:
            put_i16(wait.produce.slot.data + wait.code_at, NOT_ENOUGH_REPLICAS_AFTER_APPEND)
        produce = wait.produce
        unwatch(&wait.watch, True)
        produce.waits_left -= 1
        if produce.waits_left == 0:
            produce_settle(self.core, produce)
        wait = <Wait*>entry.produces                    # others may be gone with their connection
    if entry.remote and entry.produces is not NULL:
        table_listen(entry)

"""Produce and transaction coordinators: the first batch of a transaction in a partition (KIP-890).

A log answers such a batch with NEED_TRANSACTION and a guard (_native/log/guards.pyx). Its part of the request then
waits (TO_ASK) while the other parts are appended. When only such parts are left, the coordinator is asked once for all
of them. The parts that it admits are appended again with their guards; the others are answered with its error.

    append ── NEED_TRANSACTION, guard ──► TO_ASK ── gate ──► AGAIN ── append with the guard ──► answer
                                                      └────► refused

All other batches of a transaction are appended without asking, and without Python.

**Order.** Requests behind one that waits are not served. But before another worker, the owner, has returned
NEED_TRANSACTION, later requests may be on their way to it, and get the same answer. So requests queue for their
connection (`Conn.asking`), and only the first asks. Each of the others tries to append again when it becomes the first.
By then the transaction has begun here, or the first batch has failed and the request asks for itself.

**Bounds.** A connection asks for one request at a time, with one exception: a later request may have begun to ask
before an earlier one got its NEED_TRANSACTION. Their partitions differ, otherwise the earlier one would have got it
first. An unanswered question is given up after WAIT_MS_MAX, or the request's timeout. Its parts get a retriable error,
as nothing was appended."""

from cpython.bytes cimport PyBytes_AS_STRING
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport int16_t, int32_t, uint8_t, uint32_t

from kafkad._native.log.guards cimport ADDED, IMPLICIT, UNVERIFIED
from kafkad._native.serving.connection cimport Conn, Core, conn_run
from kafkad._native.serving.outcomes cimport outcome_text
from kafkad._native.serving.partition_table cimport Table, Topic, topic_by_id
from kafkad._native.serving.produce_state cimport (
    AnsweredFunction, HeldProduce, OUTCOME_AGAIN, OUTCOME_TO_ASK, Outcome, Request, TopicParts,
)
from kafkad._native.wire.batch cimport HEADER_SIZE, TRANSACTIONAL
from kafkad._native.wire.batch_layout cimport ATTRIBUTES_AT, MAGIC_AT, PRODUCER_EPOCH_AT, PRODUCER_ID_AT
from kafkad._native.wire.errors cimport NOT_ENOUGH_REPLICAS, UNKNOWN_SERVER_ERROR, UNKNOWN_TOPIC_ID
from kafkad._native.wire.primitives cimport KAFKAD_CHECK, get_i16, get_i64

import logging

log = logging.getLogger("kafkad.produce")

cdef enum:
    IMPLICIT_FROM = 12                  # from this Produce version on, its first batch adds the partition


cdef int gate_admission(int16_t version, bint verifies) noexcept nogil:
    if version >= IMPLICIT_FROM:
        return IMPLICIT
    return ADDED if verifies else UNVERIFIED


cdef bint has_two_producers(const Request* request) noexcept nogil:
    """Check as ReplicaManager.handleProduceAppend does."""
    cdef const uint8_t* records
    cdef const uint8_t* first = NULL
    cdef uint32_t i
    for i in range(request.part_count):
        records = request.parts[i].records
        if (request.parts[i].size < HEADER_SIZE or records[MAGIC_AT] != 2
                or not get_i16(records + ATTRIBUTES_AT) & TRANSACTIONAL or get_i64(records + PRODUCER_ID_AT) < 0):
            continue
        if first is NULL:
            first = records
        elif (get_i64(first + PRODUCER_ID_AT) != get_i64(records + PRODUCER_ID_AT)
                or get_i16(first + PRODUCER_EPOCH_AT) != get_i16(records + PRODUCER_EPOCH_AT)):
            return True
    return False


# -- the queue of a connection -----------------------------------------------------------------------------

cdef void asking_enter(HeldProduce* held) noexcept nogil:
    cdef Conn* conn = held.slot.conn
    cdef HeldProduce* before = <HeldProduce*>conn.asking
    if held.queued:
        return
    held.queued = True
    conn.unpacking += 1
    if before is NULL or is_before(held, before):
        held.next_asking = before
        conn.asking = held
        return
    while before.next_asking is not NULL and not is_before(held, before.next_asking):
        before = before.next_asking
    held.next_asking = before.next_asking
    before.next_asking = held


cdef inline bint is_before(const HeldProduce* held, const HeldProduce* other) noexcept nogil:
    return <int32_t>(held.slot.request_id - other.slot.request_id) < 0


cdef void asking_leave(HeldProduce* held) noexcept nogil:
    cdef Conn* conn
    cdef HeldProduce* before
    if not held.queued:
        return
    conn = held.slot.conn
    before = <HeldProduce*>conn.asking
    held.queued = False
    if before is held:
        conn.asking = held.next_asking
    else:
        while before.next_asking is not held:
            before = before.next_asking
        before.next_asking = held.next_asking
    conn.unpacking -= 1
    if conn.unpacking == 0:
        conn_run(conn)


# -- the question and its answer ---------------------------------------------------------------------------

cdef class Asked:
    """Called with the coordinator's answers: (error code, message or None) for each part that was asked for."""

    cdef HeldProduce* held              # NULL: it no longer waits, or has its answer
    cdef AnsweredFunction answered      # NULL: `gate_ask` is still running

    def __call__(self, answers not None):
        cdef HeldProduce* held = self.held
        if held is NULL:
            return
        self.held = NULL
        held.asked = NULL
        Py_DECREF(self)
        take_answers(held, answers)
        if self.answered is not NULL:
            self.answered(held)


cdef void gate_ask(HeldProduce* held, Table* table, object gate, AnsweredFunction answered) noexcept:
    cdef Core* core = held.slot.conn.core
    cdef Request* request = &held.request
    cdef const uint8_t* records = NULL
    cdef Asked asked
    cdef uint32_t number = 0, i, j
    cdef list partitions = []
    KAFKAD_CHECK(held.asked is NULL and held.to_ask > 0)
    core.stats.transaction_asks += 1
    held.admitted = False
    try:
        for i in range(request.topic_count):
            name = ""
            for j in range(number, number + request.topics[i].count):
                if request.outcomes[j].code != OUTCOME_TO_ASK:
                    continue
                if name == "":
                    name = name_of(table, &request.topics[i])
                if name is None:
                    put_refusal(held, &request.outcomes[j], UNKNOWN_TOPIC_ID)
                    continue
                records = request.parts[j].records
                partitions.append((name, request.parts[j].index))
            number += request.topics[i].count
        if records is NULL:
            return
        asked = Asked.__new__(Asked)
        asked.held = held
        held.asked = <PyObject*>asked
        Py_INCREF(asked)
        gate(request.transactional_id[:request.transactional_size].decode("utf-8", "replace"),
             get_i64(records + PRODUCER_ID_AT), get_i16(records + PRODUCER_EPOCH_AT), request.version, partitions, asked)
        asked.answered = answered
    except BaseException as error:
        refuse(core, held, error)


cdef str name_of(Table* table, const TopicParts* parts):
    """Return the topic's name, or None if it was named by its id and was deleted meanwhile."""
    cdef Topic* topic
    if parts.name_size >= 0:
        return parts.name[:parts.name_size].decode()
    topic = topic_by_id(table, parts.name)
    if topic is NULL or not topic.key.has_name:
        return None
    return (<const char*>topic.key.name)[:topic.key.name_size].decode()


cdef void take_answers(HeldProduce* held, object answers) noexcept:
    cdef Request* request = &held.request
    cdef Outcome* outcome
    cdef uint32_t i
    cdef bytes text
    cdef int code
    try:
        if len(answers) != held.to_ask:
            raise AssertionError(f"{len(answers)} answers for {held.to_ask} partitions")
        answer = iter(answers)
        for i in range(request.part_count):
            outcome = &request.outcomes[i]
            if outcome.code != OUTCOME_TO_ASK:
                continue
            code, message = next(answer)
            if code == 0:
                outcome.code = OUTCOME_AGAIN
                held.admitted = True
            else:
                put_refusal(held, outcome, code)
                if message is not None:
                    text = message.encode("utf-8", "replace")
                    outcome_text(outcome, PyBytes_AS_STRING(text), len(text))
    except BaseException as error:
        refuse(held.slot.conn.core, held, error)


cdef inline void put_refusal(HeldProduce* held, Outcome* outcome, int code) noexcept nogil:
    outcome.code = code
    outcome.info.message = NULL
    outcome.info.bad_record = -1
    outcome.info.log_start_offset = -1
    held.to_ask -= 1
    held.outcomes_left -= 1


cdef void forget_asked(HeldProduce* held) noexcept nogil:
    if held.asked is not NULL:
        with gil:
            asked = <Asked>held.asked
            held.asked = NULL
            asked.held = NULL
            Py_DECREF(asked)


cdef void refuse(Core* core, HeldProduce* held, object error) noexcept:
    """Refuse all parts: the gate failed, or memory is short."""
    cdef uint32_t i
    forget_asked(held)
    if isinstance(error, AssertionError) or not isinstance(error, Exception):
        (<object>core.reactor).fatal(error)
    else:
        log.error("asking for the transaction of a Produce failed", exc_info=error)
    for i in range(held.request.part_count):
        if held.request.outcomes[i].code == OUTCOME_TO_ASK:
            put_refusal(held, &held.request.outcomes[i], UNKNOWN_SERVER_ERROR)


cdef void gate_give_up(HeldProduce* held) noexcept nogil:
    cdef Outcome* outcome
    cdef uint32_t i
    forget_asked(held)
    for i in range(held.request.part_count):
        outcome = &held.request.outcomes[i]
        if outcome.code == OUTCOME_TO_ASK or outcome.code == OUTCOME_AGAIN:
            put_refusal(held, outcome, NOT_ENOUGH_REPLICAS)


cdef void gate_try_again(HeldProduce* held) noexcept nogil:
    cdef uint32_t i
    for i in range(held.request.part_count):
        if held.request.outcomes[i].code == OUTCOME_TO_ASK:
            held.request.outcomes[i].code = OUTCOME_AGAIN
            held.request.outcomes[i].info.guard = 0

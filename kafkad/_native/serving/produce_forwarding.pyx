"""Forwarding Produce: a partition's owner gets a message that says where the records are.

    receiving worker                                        owner
    produce_frame ── APPEND row, arena position ─────────►  checks, appends from the sender's arena (one pwrite)
    produce_outcome ◄───────────── APPENDED code, offsets ─ 
    waits for the high watermark, if acks=-1 must ◄─ ADVANCED row ─ each advance that somebody listens to

The bytes stay where the socket put them. The request holds a reference to its buffer until the last owner has answered,
whatever happens to its connection or its timeout, because the owner may be writing from there. The owner trusts only
the mapping: it checks position, topic id, and the batch with its CRC, so a sender that dies half-way causes no damage.

**Order.** Batches of one connection for one partition are appended in the order in which they were sent: a ring is
first in, first out, and local partitions are appended to at once. Nothing else of that connection runs until all its
Produces are answered. A batch that is decompressed in a thread (produce.pyx) is copied first. Later batches of the same
connection for the same partition queue behind it; those of other connections are appended at once.

**Transactions.** The first batch of a transaction may come back with NEED_TRANSACTION and a guard (produce_gate.pyx).
It is sent again with the guard, which is valid only for the owner that gave it, not for a successor.

**Death.** If an owner dies, its requests in flight are answered with NOT_LEADER_OR_FOLLOWER: they may have been
appended or not, as when any leader dies. Nothing is sent to it until its successor has started. The mailbox drops
answers to an earlier life of this worker, and answers of a dead owner that arrive after its death was noticed are
ignored.

Beware: an outcome may close its connection, which calls Python."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcmp, memcpy, memset

cdef extern from "string.h" nogil:
    size_t strnlen(const char* text, size_t size)

from kafkad._native.serving.connection cimport core_wake
from kafkad._native.serving.follower_mail cimport follower_told
from kafkad._native.shared.mailbox cimport (
    ARENA_SIZE, MAIL_ADVANCED, MAIL_APPEND, MAIL_APPENDED, MAIL_BAD_RECORDS, MAIL_FOLLOWER, TEXT_MAX, Mail, Mailboxes, arena_of,
    in_arena, mail_post,
)
from kafkad._native.log.guards cimport NEED_TRANSACTION
from kafkad._native.serving.outcomes cimport note_refusal, outcome_text
from kafkad._native.log.partition cimport Partition
from kafkad._native.serving.partition_table cimport (
    Entry, PartitionTable, entry_by_row, table_owner_lost, table_remote_advanced,
)
from kafkad._native.serving.produce cimport append_part, check_part, drop_text, produce_forget, produce_outcome
from kafkad._native.serving.produce_slow_path cimport close_work, finish_append, take_pending
from kafkad._native.serving.produce_state cimport HeldProduce, OUTCOME_TO_COME, Outcome, Part, Producing, Request
from kafkad._native.wire.primitives cimport KAFKAD_CHECK
from kafkad._native.wire.errors cimport NOT_LEADER_OR_FOLLOWER, UNKNOWN_SERVER_ERROR

from collections import deque

cdef enum:
    FROM_ADMIN = 1                      # Mail.flags
    ADMISSION_SHIFT = 1                 # the next two bits: guards.Admission
    ADMISSION_MASK = 3
    ACKS_ALL = 8
    BAD_A_MAIL = TEXT_MAX // 4


# -- the receiving worker ----------------------------------------------------------------------------------

cdef uint32_t flight_place(Forwarding self) noexcept nogil:
    cdef uint32_t capacity, i
    if self.free_place < 0:
        capacity = max(<uint32_t>256, self.capacity * 2)
        self.flights = <Flight*>realloc(self.flights, capacity * sizeof(Flight))
        KAFKAD_CHECK(self.flights is not NULL)
        for i in range(self.capacity, capacity):
            self.flights[i].held = NULL
            self.flights[i].bad = NULL
            self.flights[i].owner = <int32_t>i + 1
        self.flights[capacity - 1].owner = -1
        self.free_place = <int32_t>self.capacity
        self.capacity = capacity
    capacity = <uint32_t>self.free_place
    self.free_place = self.flights[capacity].owner
    return capacity


cdef int forward_append(void* context, HeldProduce* held, uint32_t number, Entry* entry, const Part* part,
                        const Request* request, const Outcome* outcome) noexcept nogil:
    """Implement produce.ForwardFunction."""
    return send_append(<Forwarding>context, held, number, <Partition>entry.partition, entry.key.id, part, request, outcome)


cdef int send_append(Forwarding self, HeldProduce* held, uint32_t number, Partition partition, const uint8_t* topic_id,
                     const Part* part, const Request* request, const Outcome* outcome) noexcept nogil:
    cdef Flight* flight
    cdef uint32_t place
    cdef Mail mail
    if self.gone[partition.owner]:
        return NOT_LEADER_OR_FOLLOWER
    if outcome.info.guard and (outcome.guard_owner != partition.owner
                               or outcome.guard_life != self.mailboxes.outboxes[partition.owner].life):
        return NOT_LEADER_OR_FOLLOWER                   # the owner that gave the guard has died; its guards are lost
    if not in_arena(self.mailboxes, self.mailboxes.me, part.records, <size_t>part.size):
        return NOT_LEADER_OR_FOLLOWER                   # the arena is full for now: the client tries again
    place = flight_place(self)
    self.generation += 1
    self.in_flight += 1
    self.forwarded += 1
    self.core.stats.hops += 1
    flight = &self.flights[place]
    flight.held = held
    flight.bad = NULL
    flight.number = number
    flight.generation = self.generation
    flight.row = <uint32_t>partition.slot.number
    flight.owner = partition.owner
    mail.kind = MAIL_APPEND
    mail.row = flight.row
    mail.token = <uint64_t>flight.generation << 32 | place
    memcpy(mail.topic_id, topic_id, 16)
    mail.at = <uint64_t>(part.records - arena_of(self.mailboxes, self.mailboxes.me))
    mail.size = <uint32_t>part.size
    mail.api_version = request.version
    mail.flags = <uint8_t>((FROM_ADMIN if request.admin else 0) | request.admission << ADMISSION_SHIFT
                           | (ACKS_ALL if request.acks < 0 else 0))
    mail.code = partition.index
    mail.bad_record = <int32_t>outcome.info.guard
    mail.base_offset = <int64_t>held.conn_id
    mail.text_size = 0
    mail_post(self.mailboxes, partition.owner, &mail)
    return 0


cdef void land(Forwarding self, uint32_t place, Outcome* outcome) noexcept nogil:
    cdef HeldProduce* held = self.flights[place].held
    outcome.bad = self.flights[place].bad
    self.flights[place].held = NULL
    self.flights[place].bad = NULL
    self.flights[place].owner = self.free_place
    self.free_place = <int32_t>place
    self.in_flight -= 1
    produce_outcome(held, self.flights[place].number, outcome)


cdef inline bint is_in_flight(Forwarding self, int sender, const Mail* mail) noexcept nogil:
    """Return False for an answer of a dead owner, whose requests were answered already."""
    cdef uint32_t place = <uint32_t>mail.token
    return (place < self.capacity and self.flights[place].held is not NULL and self.flights[place].owner == sender
            and self.flights[place].generation == <uint32_t>(mail.token >> 32))


cdef void mail_bad_records(Forwarding self, int sender, const Mail* mail) noexcept nogil:
    cdef Flight* flight
    cdef uint32_t* bad
    cdef uint32_t known
    if not is_in_flight(self, sender, mail):
        return
    flight = &self.flights[<uint32_t>mail.token]
    KAFKAD_CHECK(mail.size <= BAD_A_MAIL)
    known = 0 if flight.bad is NULL else flight.bad[0]
    bad = <uint32_t*>realloc(flight.bad, (known + mail.size + 1) * sizeof(uint32_t))
    if bad is NULL:
        return
    memcpy(&bad[known + 1], mail.text, mail.size * sizeof(uint32_t))
    bad[0] = known + mail.size
    flight.bad = bad


cdef void mail_appended(Forwarding self, int sender, const Mail* mail) noexcept nogil:
    cdef uint32_t place = <uint32_t>mail.token
    cdef Outcome outcome
    if not is_in_flight(self, sender, mail):
        return
    outcome.code = mail.code
    outcome.waits = mail.code == 0 and (<int64_t>mail.at if mail.flags & ACKS_ALL else mail.durable_offset) < mail.end_offset
    outcome.term = mail.term
    outcome.entry = NULL
    outcome.text = NULL
    outcome.info.base_offset = mail.base_offset
    outcome.info.end_offset = mail.end_offset
    outcome.info.append_time_ms = mail.append_time_ms
    outcome.info.log_start_offset = mail.log_start_offset
    outcome.info.bad_record = mail.bad_record
    outcome.info.message = NULL
    if mail.code == NEED_TRANSACTION:
        outcome.info.guard = <uint32_t>mail.bad_record
        outcome.guard_owner = <int16_t>sender
        outcome.guard_life = mail.from_life
    if mail.text_size:
        outcome_text(&outcome, mail.text, mail.text_size)
    land(self, place, &outcome)


cdef void forwarding_peer_lost(Forwarding self, int peer) noexcept nogil:
    cdef Outcome outcome
    cdef uint32_t place
    cdef int life = self.mailboxes.outboxes[peer].life
    self.gone[peer] = life == self.lives[peer]
    self.lives[peer] = life
    memset(&outcome, 0, sizeof(Outcome))
    outcome.code = NOT_LEADER_OR_FOLLOWER
    outcome.info.bad_record = -1
    outcome.info.log_start_offset = -1
    for place in range(self.capacity):
        if self.flights[place].held is not NULL and self.flights[place].owner == peer:
            land(self, place, &outcome)
    table_owner_lost(&self.table.table, peer)


# -- the owner ---------------------------------------------------------------------------------------------

cdef void mail_append(Forwarding self, int sender, const Mail* mail) noexcept nogil:
    cdef Entry* entry = entry_by_row(&self.table.table, mail.row)
    self.appended += 1
    if entry is not NULL and not entry.remote and (<Partition>entry.partition).unpacking:
        with gil:
            if queued_behind(self, sender, mail, <Partition>entry.partition):
                return
    append_now(self, sender, mail)


cdef bint append_now(Forwarding self, int sender, const Mail* mail) noexcept nogil:
    """Return False if a thread must decompress it first."""
    cdef Entry* entry = entry_by_row(&self.table.table, mail.row)
    cdef Outcome outcome
    cdef Part part
    memset(&outcome.info, 0, sizeof(outcome.info))
    outcome.text = NULL
    outcome.bad = NULL
    outcome.term = -1
    outcome.info.bad_record = -1
    outcome.info.log_start_offset = -1
    if entry is NULL or entry.remote or entry.index != mail.code or memcmp(entry.key.id, mail.topic_id, 16) != 0:
        outcome.code = NOT_LEADER_OR_FOLLOWER           # not yet or no longer: the sender's table differs
    elif mail.size > ARENA_SIZE or mail.at > ARENA_SIZE - mail.size:
        outcome.code = UNKNOWN_SERVER_ERROR
    else:
        part.index = entry.index
        part.size = <int32_t>mail.size
        part.records = arena_of(self.mailboxes, sender) + mail.at
        outcome.code = check_part(entry, &part, mail.api_version, mail.flags & FROM_ADMIN, mail.flags & ACKS_ALL)
        outcome.info.admission = mail.flags >> ADMISSION_SHIFT & ADMISSION_MASK
        outcome.info.guard = <uint32_t>mail.bad_record
        if outcome.code == 0:
            append_part(self.producing, entry, &part, &outcome)
            if outcome.code == OUTCOME_TO_COME:
                with gil:
                    if unpack_forwarded(self, sender, mail, &outcome):
                        return False
        if entry.removed:                               # removed by Python during the append
            entry = NULL
    answer_append(self, sender, mail, entry, &outcome)
    return True


cdef void answer_append(Forwarding self, int sender, const Mail* mail, Entry* entry, Outcome* outcome) noexcept nogil:
    cdef Mail answer
    cdef int64_t high_watermark = -1, durable_offset = -1
    cdef uint32_t told = 0
    if outcome.code and outcome.bad is not NULL:
        answer.kind = MAIL_BAD_RECORDS
        answer.row = mail.row
        answer.token = mail.token
        answer.text_size = TEXT_MAX
        while told < outcome.bad[0]:
            answer.size = min(<uint32_t>BAD_A_MAIL, outcome.bad[0] - told)
            memcpy(answer.text, &outcome.bad[told + 1], answer.size * sizeof(uint32_t))
            mail_post(self.mailboxes, sender, &answer)
            told += answer.size
    if entry is not NULL and not entry.remote:
        high_watermark = (<Partition>entry.partition).row.high_watermark
        durable_offset = (<Partition>entry.partition).row.durable_offset
    answer.kind = MAIL_APPENDED
    answer.row = mail.row
    answer.token = mail.token
    memcpy(answer.topic_id, mail.topic_id, 16)
    answer.at = <uint64_t>high_watermark
    answer.size = mail.size
    answer.api_version = mail.api_version
    answer.flags = mail.flags & ACKS_ALL
    answer.term = outcome.term
    answer.durable_offset = durable_offset
    answer.code = outcome.code
    answer.bad_record = <int32_t>outcome.info.guard if outcome.code == NEED_TRANSACTION else outcome.info.bad_record
    answer.base_offset = outcome.info.base_offset
    answer.end_offset = outcome.info.end_offset
    answer.append_time_ms = outcome.info.append_time_ms
    answer.log_start_offset = outcome.info.log_start_offset
    answer.text_size = 0
    if outcome.code and outcome.info.message is not NULL:
        answer.text_size = put_message(answer.text, outcome.info.message)
    drop_text(outcome)
    mail_post(self.mailboxes, sender, &answer)


# A batch in decompression, and the mails behind it.

cdef class ForwardedPart:
    """Called on the loop when a thread has decompressed another worker's batch."""

    cdef Forwarding forwarding
    cdef int sender
    cdef Mail mail
    cdef Partition partition            # it was sent to this one; by now the row may show another
    cdef tuple way

    def __call__(self, work, error):
        forwarded_unpacked(self.forwarding, self, work, error)


cdef inline tuple way_of(int sender, const Mail* mail, Partition partition):
    """Return the key of batches that keep their order: those of one connection for one partition."""
    return (sender, mail.from_life, mail.base_offset, partition)


cdef bint queued_behind(Forwarding self, int sender, const Mail* mail, Partition partition) noexcept:
    """Queue the mail behind a batch of the same connection for the same partition, if there is one."""
    cdef object behind = self.behind.get(way_of(sender, mail, partition))
    if behind is None:
        return False
    behind.append(PyBytes_FromStringAndSize(<const char*>mail, sizeof(Mail)))
    return True


cdef bint unpack_forwarded(Forwarding self, int sender, const Mail* mail, Outcome* outcome) noexcept:
    """Give the rest of the append to the threads. Return False if that failed (no memory); `outcome` has the error."""
    cdef ForwardedPart part
    cdef object work = take_pending(self.producing)
    cdef Partition partition = work.partition
    cdef bint first = False
    try:
        part = ForwardedPart.__new__(ForwardedPart)
        part.forwarding = self
        part.sender = sender
        part.mail = mail[0]
        part.partition = partition
        part.way = way_of(sender, mail, partition)
        if part.way not in self.behind:
            self.behind[part.way] = deque()
            first = True
        self.producing.unpacker.submit((sender, mail.from_life, mail.base_offset), work, part)
    except BaseException as error:
        if first:
            del self.behind[part.way]
        note_refusal(self.core, partition, outcome, error)
        return False
    partition.unpacking += first
    self.core.stats.buffered_bytes += mail.size
    return True


cdef void forwarded_unpacked(Forwarding self, ForwardedPart part, object work, object error) noexcept:
    """Append and answer, on the loop. `work` is None if the reactor closes. A sender that has died gets no answer."""
    cdef const Mail* mail = &part.mail
    cdef Partition partition = part.partition
    cdef Entry* entry
    cdef Outcome outcome
    cdef bytes data
    self.core.stats.buffered_bytes -= mail.size
    if work is None or self.mailboxes.outboxes[part.sender].life != mail.from_life:
        del self.behind[part.way]
        partition.unpacking -= 1
        if work is not None:
            close_work(self.core, work)
        return
    memset(&outcome, 0, sizeof(Outcome))
    outcome.info.bad_record = -1
    outcome.info.log_start_offset = -1
    entry = entry_by_row(&self.table.table, mail.row)
    if entry is NULL or entry.remote or <Partition>entry.partition is not partition:
        outcome.code = NOT_LEADER_OR_FOLLOWER
        entry = NULL
        close_work(self.core, work)
    else:
        outcome.term = partition.row.led_since
        finish_append(self.producing, work, error, &outcome)
        if entry.removed:
            entry = NULL
    answer_append(self, part.sender, mail, entry, &outcome)
    behind = self.behind[part.way]
    while behind:
        data = behind.popleft()
        if not append_now(self, part.sender, <const Mail*>PyBytes_AS_STRING(data)):
            return                                      # the others stay behind this one
    del self.behind[part.way]
    partition.unpacking -= 1


cdef uint16_t put_message(char* into, const char* message) noexcept nogil:
    """Copy as much of the message as there is room for, in whole UTF-8 characters."""
    cdef size_t size = strnlen(message, TEXT_MAX)
    if size == TEXT_MAX:
        while size and message[size] & 0xC0 == 0x80:
            size -= 1
    memcpy(into, message, size)
    return <uint16_t>size


cdef void ring_listeners(void* context, uint32_t row, uint64_t workers) noexcept nogil:
    """Implement partition_table.RingFunction: notify these workers that a row of ours has advanced."""
    tell_advance(<Forwarding>context, row, workers)


cdef void tell_advance(Forwarding self, uint32_t row, uint64_t workers) noexcept nogil:
    cdef Mail mail
    cdef int worker
    mail.kind = MAIL_ADVANCED
    mail.row = row
    mail.text_size = 0
    for worker in range(self.mailboxes.count):
        if workers >> worker & 1 and worker != self.mailboxes.me:
            mail_post(self.mailboxes, worker, &mail)
    if not self.core.polling:                           # moved by Python: the next round rings the doorbells
        core_wake(self.core)


# -- all mail ----------------------------------------------------------------------------------------------

cdef void forward_mail(Forwarding self, int sender, const Mail* mail) noexcept nogil:
    if mail.kind == MAIL_APPEND:
        mail_append(self, sender, mail)
    elif mail.kind == MAIL_APPENDED:
        mail_appended(self, sender, mail)
    elif mail.kind == MAIL_BAD_RECORDS:
        mail_bad_records(self, sender, mail)
    elif mail.kind == MAIL_FOLLOWER:
        follower_told(self.table, mail)
    else:
        KAFKAD_CHECK(mail.kind == MAIL_ADVANCED)
        table_remote_advanced(&self.table.table, mail.row)


cdef class Forwarding:
    """One worker's part in forwarding. Created after `Mailboxes.enter`."""

    def __cinit__(self, PartitionTable table not None, Mailboxes mailboxes not None, Producing producing not None):
        cdef int peer
        if mailboxes.me < 0:
            raise ValueError("this process has not entered its mailbox")
        self.table = table
        self.mailboxes = mailboxes
        self.producing = producing
        self.core = producing.core
        self.behind = {}
        self.free_place = -1
        for peer in range(mailboxes.count):
            self.lives[peer] = mailboxes.outboxes[peer].life
        producing.forward = forward_append
        producing.forward_context = <void*>self
        table.table.me = mailboxes.me
        table.table.ring = ring_listeners
        table.table.ring_context = <void*>self

    def __dealloc__(self):
        if self.table is not None and self.table.table.ring_context is <void*>self:
            self.table.table.ring = NULL
            self.table.table.ring_context = NULL
        free(self.flights)

    cdef void forget(self) noexcept:
        cdef uint32_t place
        for place in range(self.capacity):
            if self.flights[place].held is not NULL:
                free(self.flights[place].bad)
                produce_forget(self.flights[place].held)
                self.flights[place].held = NULL
        self.in_flight = 0
        self.producing.forward = NULL
        self.table.table.ring = NULL

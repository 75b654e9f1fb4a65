"""Followers' fetch positions, on their way to the owners of the partitions.

A follower may be connected to any worker, which serves it from the files and the row of each partition. The owner must
learn what the follower's Fetch says (how far it is, in which epoch its broker is registered), because only the owner
moves HW and the ISR:

    serving worker                                                   owner
    reads its copy of the row, then the data
    FOLLOWER broker, epoch, time | notes of up to 3 partitions ───►  replica_told: state, ISR, HW
    next read sees it             ◄─── ADVANCED row, if it listens

Each state has one writer, and there is no lock. If a worker dies and a mail is lost, the follower's next Fetch replaces
it. The serving worker has checked the replica and its epoch against what it knows. The owner checks again, and drops a
note that no longer fits its partition or leader epoch."""

from libc.stdint cimport int32_t, int64_t
from libc.string cimport memcmp, memcpy

from kafkad._native.log.partition cimport Partition
from kafkad._native.log.replica_set cimport Mark
from kafkad._native.serving.partition_table cimport Entry, PartitionTable, entry_by_row
from kafkad._native.shared.mailbox cimport MAIL_FOLLOWER, Mail, Mailboxes, mail_post
from kafkad._native.shared.watermarks cimport ROLE_LEADER, Row

cdef enum:
    HEADER = 64                         # of a Mail; the notes follow it

if sizeof(Note) != 64 or sizeof(Mail) < HEADER + NOTES_A_MAIL * sizeof(Note):
    raise ImportError("three notes stand in a mail")


cdef inline Note* notes_of(const Mail* mail) noexcept nogil:
    return <Note*>(<char*>mail + HEADER)


cdef void follower_note(FollowerMail self, int32_t replica_id, int64_t broker_epoch, int64_t time_ms, Partition partition,
                        const Mark* at, int64_t log_start, int64_t leader_end) noexcept nogil:
    cdef int owner = partition.owner
    cdef Mail* mail = &self.mails[owner]
    cdef Note* note = &notes_of(mail)[self.counts[owner]]
    cdef const Row* row = partition.row
    mail.kind = MAIL_FOLLOWER
    mail.code = replica_id
    mail.token = <unsigned long long>broker_epoch
    mail.base_offset = time_ms
    note.row = <unsigned int>partition.slot.number
    note.partition = partition.index
    memcpy(note.topic_id, row.topic_id, sizeof(note.topic_id))
    note.offset = at.offset
    note.segment = at.segment
    note.position = at.position
    note.log_start = log_start
    note.leader_end = leader_end
    note.leader_epoch = row.leader_epoch
    self.noted += 1
    self.counts[owner] += 1
    if self.counts[owner] == NOTES_A_MAIL:
        post(self, owner)


cdef void post(FollowerMail self, int owner) noexcept nogil:
    self.mails[owner].size = <unsigned int>self.counts[owner]
    mail_post(self.mailboxes, owner, &self.mails[owner])
    self.counts[owner] = 0
    self.posted += 1


cdef void follower_flush(FollowerMail self) noexcept nogil:
    cdef int owner
    for owner in range(self.mailboxes.count):
        if self.counts[owner]:
            post(self, owner)


cdef void follower_told(PartitionTable table, const Mail* mail) noexcept nogil:
    cdef const Note* note
    cdef const Row* row
    cdef Entry* entry
    cdef Mark at
    cdef unsigned int i
    for i in range(min(mail.size, <unsigned int>NOTES_A_MAIL)):
        note = &notes_of(mail)[i]
        entry = entry_by_row(&table.table, note.row)
        if entry is NULL or entry.remote or entry.index != note.partition:
            continue
        row = (<Partition>entry.partition).row
        if row.role != ROLE_LEADER or row.leader_epoch != note.leader_epoch or (
                memcmp(row.topic_id, note.topic_id, sizeof(note.topic_id)) != 0):
            continue
        at.offset = note.offset
        at.segment = note.segment
        at.position = note.position
        (<Partition>entry.partition).replica_told(
            mail.code, <int64_t>mail.token, &at, note.log_start, mail.base_offset, note.leader_end)


cdef class FollowerMail:
    """Belongs to one worker, for the Fetches that it serves. Created after `Mailboxes.enter`."""

    def __cinit__(self, PartitionTable table not None, Mailboxes mailboxes not None):
        self.table = table
        self.mailboxes = mailboxes

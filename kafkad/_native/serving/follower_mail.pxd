"""What followers have of other workers' partitions, on its way to these. See follower_mail.pyx."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

from kafkad._native.log.partition cimport Partition
from kafkad._native.log.replica_set cimport Mark
from kafkad._native.serving.partition_table cimport PartitionTable
from kafkad._native.shared.mailbox cimport WORKERS_MAX, Mail, Mailboxes

cdef enum:
    NOTES_A_MAIL = 3

cdef struct Note:                   # 64 bytes: one partition of a follower's Fetch; three follow the header of a mail
    uint32_t row
    int32_t partition
    uint8_t topic_id[8]             # its first half: with row, partition and leader epoch it is no other's
    int64_t offset
    int64_t segment
    int64_t position
    int64_t log_start
    int64_t leader_end              # as the serving worker saw it before it read
    int32_t leader_epoch
    uint32_t unused

cdef class FollowerMail:
    cdef PartitionTable table
    cdef Mailboxes mailboxes
    cdef Mail mails[WORKERS_MAX]    # to each owner, of the request at hand
    cdef int counts[WORKERS_MAX]    # of notes in it
    cdef readonly int64_t noted, posted

# Of the request at hand: `replica_id` in `broker_epoch` has `partition`, which is another worker's, up to `at`.
cdef void follower_note(FollowerMail self, int32_t replica_id, int64_t broker_epoch, int64_t time_ms, Partition partition,
                        const Mark* at, int64_t log_start, int64_t leader_end) noexcept nogil
# The request is read: what is noted goes to the owners.
cdef void follower_flush(FollowerMail self) noexcept nogil

# The owner's side.
cdef void follower_told(PartitionTable table, const Mail* mail) noexcept nogil

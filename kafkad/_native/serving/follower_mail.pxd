"""Followers' fetch positions, on their way to the owners of the partitions. See follower_mail.pyx."""

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
    uint8_t topic_id[8]             # its first half: unique together with row, partition and leader epoch
    int64_t offset
    int64_t segment
    int64_t position
    int64_t log_start
    int64_t leader_end              # LEO, as the serving worker saw it before the read
    int32_t leader_epoch
    uint32_t unused

cdef class FollowerMail:
    cdef PartitionTable table
    cdef Mailboxes mailboxes
    cdef Mail mails[WORKERS_MAX]    # one for each owner, for the current request
    cdef int counts[WORKERS_MAX]    # number of notes in each
    cdef readonly int64_t noted, posted

# In the current request, replica `replica_id` of `broker_epoch` has `partition`, owned by another worker, up to `at`.
cdef void follower_note(FollowerMail self, int32_t replica_id, int64_t broker_epoch, int64_t time_ms, Partition partition,
                        const Mark* at, int64_t log_start, int64_t leader_end) noexcept nogil
# The request has been read: sends the notes to the owners.
cdef void follower_flush(FollowerMail self) noexcept nogil

# On the owner: takes the notes.
cdef void follower_told(PartitionTable table, const Mail* mail) noexcept nogil

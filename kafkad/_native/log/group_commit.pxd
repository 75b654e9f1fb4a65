"""The fsyncs of one worker's logs: see group_commit.pyx.

    owner's loop                                   a thread
    append: end_offset = LEO, commit_ask  ──────►  synced_offset = end_offset; fdatasync
    publish: `ended(partition, sync)`     ◄──────  failure; the eventfd

A `Sync` is a partition's place in this. The loop has it while it is SYNC_IDLE, and may then free it; else it belongs to the
queue, a thread or the list of what has ended, and the loop touches no more than the fields that are marked.
"""

from libc.stdint cimport int64_t, uint32_t

from kafkad._native.log.segments cimport LogFile

cdef enum:
    SYNC_IDLE = 0
    SYNC_UNDER_WAY = 1

cdef struct Sync

ctypedef void (*SyncEnded)(void* partition, Sync* sync) noexcept

cdef struct Sync:
    Sync* next
    LogFile* file                   # retained until it has ended
    int64_t end_offset              # LEO: the loop moves it up to the moment at which a thread begins
    int64_t synced_offset           # what it was then
    int64_t end_position            # the size of `file`, as end_offset
    int64_t prepared                # a thread's: the file has blocks up to here; 0 when `file` is another
    int64_t segment                 # base offset of the segment that `file` is
    uint32_t generation             # of the partition when it asked
    int state
    int failure                     # errno of the fdatasync, 0 when it went well
    int given_up                    # the loop's: the directory has failed, nothing is synced there again
    void* partition                 # the loop's: NULL when it has gone meanwhile
    SyncEnded ended

cdef class GroupCommit:
    cdef void* committing           # Committing

cdef Sync* sync_new(void* partition, SyncEnded ended) noexcept nogil        # NULL: no memory
cdef void sync_drop(Sync* sync) noexcept nogil                              # its partition goes
cdef void sync_reach(Sync* sync, int64_t end_offset, int64_t end_position) noexcept nogil     # LEO is there now
cdef void sync_give_up(Sync* sync) noexcept nogil

# A reactor's turn: what was asked until now begins; `goes_on`: what will be asked waits for the next call.
cdef void commit_turn(bint goes_on) noexcept nogil

# Begins as soon as a thread is free, or, in a reactor's turn, with the next `commit_turn`. `sync` is idle, and end_offset, segment and generation are set; it takes a reference to
# `file`. False when it cannot be had: the group was closed, or there are no threads.
cdef bint commit_ask(GroupCommit group, Sync* sync, LogFile* file) noexcept nogil

"""The fsyncs of one worker's logs: see group_commit.pyx.

    owner's loop                                   a thread
    append: end_offset = LEO, commit_ask  ──────►  synced_offset = end_offset; fdatasync
    publish: `ended(partition, sync)`     ◄──────  failure; the eventfd

A `Sync` is a partition's place in the group commit. While it is SYNC_IDLE it belongs to the loop, which may free it.
Otherwise it belongs to the queue, a thread or the list of ended syncs, and the loop touches only the marked fields.
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
    LogFile* file                   # retained until the sync has ended
    int64_t end_offset              # LEO: the loop moves it until a thread begins
    int64_t synced_offset           # its value when the thread began
    int64_t end_position            # the size of `file` at `end_offset`
    int64_t prepared                # a thread's: blocks are allocated up to here; 0 if `file` is another
    int64_t segment                 # base offset of the segment of `file`
    uint32_t generation             # of the partition, when it asked
    int state
    int failure                     # errno of the fdatasync, 0 on success
    int given_up                    # the loop's: the directory has failed, nothing is synced there again
    void* partition                 # the loop's: NULL if the partition is gone
    SyncEnded ended

cdef class GroupCommit:
    cdef void* committing           # Committing

cdef Sync* sync_new(void* partition, SyncEnded ended) noexcept nogil        # NULL: no memory
cdef void sync_drop(Sync* sync) noexcept nogil                              # the partition is going away
cdef void sync_reach(Sync* sync, int64_t end_offset, int64_t end_position) noexcept nogil     # LEO has reached this
cdef void sync_give_up(Sync* sync) noexcept nogil

# A turn of the reactor: begins the syncs asked for so far. `goes_on`: later ones wait for the next call.
cdef void commit_turn(bint goes_on) noexcept nogil

# Begins the sync as soon as a thread is free; in a reactor's turn, at the next `commit_turn`. `sync` is idle, its
# end_offset, segment and generation are set; it takes a reference to `file`. False: the group was closed, or there are
# no threads.
cdef bint commit_ask(GroupCommit group, Sync* sync, LogFile* file) noexcept nogil

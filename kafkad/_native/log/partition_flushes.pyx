"""What the disk holds of a partition: the layer on top of partition_watermarks.pyx.

The group commit (group_commit.pyx) does the plain case: all unflushed data is in the active segment, whose file is
open. If several files must be synced, or small files too, log/flusher.py does it: it calls `files_to_flush` and, at the
end, `flushed`."""

from libc.stdint cimport int64_t, uint32_t

from kafkad._native.log.fileio cimport cut
from kafkad._native.log.group_commit cimport SYNC_IDLE, GroupCommit, Sync, commit_ask, sync_drop, sync_new, sync_reach
from kafkad._native.log.segments cimport Segment, file_ref, segment_open
from kafkad._native.log.partition_state cimport fail_log, unexpected
from kafkad._native.log.partition_watermarks cimport PartitionWatermarks


cdef class PartitionFlushes(PartitionWatermarks):
    def __dealloc__(self):
        sync_drop(self.sync)

    def files_to_flush(self) -> tuple:
        """Return (end offset, generation, [(base offset, FileRef)]) of the segments that end beyond the flushed
        offset."""
        cdef list files = []
        cdef int i, failure
        for i in range(self.segment_count):
            if i + 1 < self.segment_count:
                self.trim(&self.segments[i])
                if self.segments[i + 1].base_offset <= self.row.flushed_offset:
                    continue
            failure = segment_open(&self.segments[i], self.directory, True)
            if failure != 0:
                self.raise_refused(failure, b"opening a segment to flush it")
            files.append((self.segments[i].base_offset, file_ref(&self.segments[i])))
        return (self.row.log_end_offset, self.row.generation - self.exchanges, files)

    def flushed(self, int64_t end_offset, uint32_t generation) -> bool:
        """Record that everything below `end_offset` is on disk, unless the log was cut since `generation`. Return
        whether the flush policy wants another flush at once."""
        self.flush_asked = False
        if generation == self.row.generation - self.exchanges and end_offset > self.row.flushed_offset:
            self.set_flushed(end_offset)
        self.settle_durable()
        if self.row.log_end_offset - self.row.flushed_offset >= self.flush_interval:
            self.flush_asked = True
        return self.flush_asked

    def commit_with(self, GroupCommit group) -> None:
        """Let `group`, whose `publish` is called on our loop, do all flushes that need only one fdatasync."""
        self.group_commit = group

    def flush(self) -> bool:
        """Return whether the group commit will flush all that is in the log when the flush begins. False: the log must
        flush, and call `flushed` at the end in any case."""
        if self.sync is not NULL and self.sync.state != SYNC_IDLE:
            self.flush_again = True
            return True
        self.flush_asked = True
        return self.commit()

    cdef void trim(self, Segment* segment) noexcept nogil:
        # Nothing more is appended: gives back the blocks that the group commit allocated.
        if self.sync is not NULL and self.sync.state == SYNC_IDLE and self.sync.prepared and (
                self.sync.segment == segment.base_offset and segment.file != NULL):
            self.sync.prepared = 0
            cut(segment.file.fd, segment.size)

    cdef void ask_flush(self) noexcept nogil:
        self.flush_asked = True
        if self.sync is not NULL and self.sync.state != SYNC_IDLE:
            return
        if not self.commit():
            with gil:
                call_flush(self)

    cdef bint commit(self) noexcept nogil:
        # The plain case: all unflushed data is in the open active segment, and no other file must be synced.
        cdef Segment* segment = self.active()
        if self.group_commit is None or self.flush_by_log or segment.file == NULL or (
                self.segment_count > 1 and segment.base_offset > self.row.flushed_offset):
            return False
        if self.sync is NULL:
            self.sync = sync_new(<void*>self, sync_ended)
            if self.sync is NULL:
                return False
        if self.sync.segment != segment.base_offset or self.sync.generation != self.row.generation - self.exchanges:
            self.sync.prepared = 0
        self.sync.segment = segment.base_offset
        self.sync.generation = self.row.generation - self.exchanges
        sync_reach(self.sync, self.row.log_end_offset, segment.size)
        return commit_ask(self.group_commit, self.sync, segment.file)

    cdef void committed(self, Sync* sync) noexcept:
        cdef int64_t end_offset = sync.synced_offset
        cdef bint again = self.flush_again
        cdef int i
        if self.failure and not self.halted:
            return
        if sync.failure:
            fail_log(self, sync.failure, b"fdatasync")
            return
        if self.halted:                                 # truncation ends what this flush was for
            return
        for i in range(self.segment_count):             # after a roll, later data is in another file
            if self.segments[i].base_offset > sync.segment:
                end_offset = min(end_offset, self.segments[i].base_offset)
                break
        self.flush_again = False
        if sync.generation != self.row.generation - self.exchanges:
            again = True
        try:
            if not self.flushed(end_offset, sync.generation) and again:
                again = self.flush_by_log or self.row.flushed_offset < self.row.log_end_offset
            else:
                again = self.flush_asked
            if again:
                self.ask_flush()
            if self.notify_flush:
                self.log.on_flushed()
        except Exception as e:
            unexpected(self, e)


cdef void sync_ended(void* partition, Sync* sync) noexcept:
    cdef PartitionFlushes held = <PartitionFlushes>partition      # keep it alive: a callback may drop it
    held.committed(sync)


cdef void call_flush(PartitionFlushes partition) noexcept:
    try:
        partition.log.request_flush()
    except Exception as e:
        unexpected(partition, e)

"""A partition in memory: its segments are added and removed here, and it begins to lead or follow here.

`log.Log` holds one partition and decides what is rare (roll, retention, recovery, truncation). The reactor appends and
reads through the lower layers, which partition_state.pyx lists.

`release_idle` closes files that were not used since the previous sweep."""

import os

from libc.errno cimport ENOMEM
from libc.stdint cimport INT64_MIN, int32_t, int64_t
from libc.stdlib cimport realloc
from libc.string cimport memmove, memset

from kafkad._native.log.fileio cimport cut
from kafkad._native.log.group_commit cimport sync_give_up
from kafkad._native.log.guards cimport guards_free
from kafkad._native.log.batch_search cimport lookup_forget, lookup_free_places, lookup_free_ring, lookup_make_ring
from kafkad._native.log.next_segment cimport NextSegment
from kafkad._native.log.segments cimport (
    UNKNOWN, LogFile, Segment, kafkad_monotonic_ms, log_file_release, segment_close, segment_drop)
from kafkad._native.shared.watermarks cimport ROLE_FOLLOWER, ROLE_LEADER, ROLE_NONE, RowSlot, row_begin, row_end
from kafkad._native.wire.primitives cimport KAFKAD_CHECK
from kafkad._native.wire.errors cimport KAFKA_STORAGE_ERROR, NOT_LEADER_OR_FOLLOWER
from kafkad._native.log.partition_state cimport EPOCH_RAISED, PARTITION_GONE
from kafkad._native.log.partition_runs cimport PartitionRuns


cdef class Partition(PartitionRuns):
    @staticmethod
    def reader(str topic, int index, bytes topic_id, str directory, RowSlot slot, int owner) -> Partition:
        """Return a reader of the partition that worker `owner` appends to. `slot` is a view of its row."""
        from kafkad._native.log.partition_reader import reader_partition

        return reader_partition(topic, index, topic_id, directory, slot, owner)

    def lead(self, int32_t epoch, int32_t leader_id=-1, int32_t partition_epoch=0, int64_t epoch_start=-1,
             int32_t previous_epoch=-1) -> None:
        """Serve appends and reads from now on, under this leader epoch. `leader_id` is this broker, `epoch_start` the
        offset at which the epoch begins in the log (-1: at its end), `previous_epoch` the epoch before it in the
        log."""
        cdef bint higher = epoch > self.row.leader_epoch
        cdef bint led = self.row.role == ROLE_LEADER
        self.row_begin()
        self.row.leader_epoch = epoch
        self.row.partition_epoch = partition_epoch
        self.row.leader_id = leader_id
        if not led:
            self.row.role = ROLE_LEADER
            self.row.led_since = epoch
        if epoch_start >= 0:
            self.row.epoch_start = epoch_start
        elif higher or not led:
            self.row.epoch_start = self.row.log_end_offset
        self.row.last_epoch = epoch
        self.row_end()
        self.previous_epoch = previous_epoch
        self.flush_by_log = True                        # and records where the epoch begins
        if not self.open:
            self.begun_ms = kafkad_monotonic_ms()
            self.opened_ms = self.begun_ms if self.row.log_end_offset > 0 else INT64_MIN
            self.begun_count += 1
            self.is_new = epoch == 0 and self.row.log_end_offset == 0
        self.open = self.failure == 0
        self.settle_durable()
        if led and higher:
            self.tell(EPOCH_RAISED)

    def follow(self, int32_t epoch, int32_t leader_id, int32_t partition_epoch=0) -> None:
        """Another broker leads under this epoch, or nobody (-1): clients are refused, waiting ones too, but consumers of
        Fetch v11 and later. HW moves no more by itself, `advance_high_watermark` does it."""
        self.open = False
        self.closed_code = NOT_LEADER_OR_FOLLOWER
        self.follows_end = False
        self.previous_epoch = -1
        guards_free(&self.guards)
        self.forget_replicas()
        self.row_begin()
        self.row.leader_epoch = epoch
        self.row.partition_epoch = partition_epoch
        self.row.leader_id = leader_id
        self.row.role = ROLE_FOLLOWER if leader_id >= 0 else ROLE_NONE
        self.row.led_since = -1
        self.row_end()
        self.tell(PARTITION_GONE)

    def close_to_clients(self, int code=NOT_LEADER_OR_FOLLOWER, int failure=0) -> None:
        """Answer `code` from now on, and answer all waiters that the partition is gone."""
        self.open = False
        self.closed_code = code
        self.forget_replicas()
        guards_free(&self.guards)                       # a leader in between may have seen the transaction end
        if failure:
            self.failure = failure
            if self.sync is not NULL:
                sync_give_up(self.sync)
        self.row_begin()
        self.row.leader_epoch = -1
        self.row.role = ROLE_NONE                       # `led_since` stays: batches appended in that term are unchanged
        self.row_end()
        self.tell(PARTITION_GONE)

    def halt(self, int failure) -> None:
        """Like `close_to_clients`, because files and memory differ, until `serve_again`. A flush that has begun ends
        as any other."""
        self.close_to_clients(KAFKA_STORAGE_ERROR)
        self.failure = failure
        self.halted = True

    def serve_again(self) -> None:
        """Files and memory agree again; `lead` or `follow` comes next."""
        KAFKAD_CHECK(self.halted and self.segment_count > 0)
        self.halted = False
        self.failure = 0
        self.closed_code = NOT_LEADER_OR_FOLLOWER

    # -- segments --------------------------------------------------------------------------------------------

    def add_segment(self, int64_t base_offset, int64_t size, int64_t created_ms, max_timestamp=None) -> None:
        """Add a segment, whose files exist, after the last. `max_timestamp`: (timestamp, offset) if known."""
        cdef Segment* segment
        cdef Segment* more
        cdef int capacity
        if self.segment_count and base_offset <= self.active().base_offset:
            raise ValueError("segments come in order")
        if self.segment_count == self.segment_capacity:
            capacity = self.segment_capacity * 2 if self.segment_capacity else 1
            more = <Segment*>realloc(self.segments, capacity * sizeof(Segment))
            if more == NULL:
                raise MemoryError()
            self.segments = more
            self.segment_capacity = capacity
        segment = &self.segments[self.segment_count]
        memset(segment, 0, sizeof(Segment))
        segment.base_offset = base_offset
        segment.size = size
        segment.created_ms = created_ms
        segment.max_timestamp = UNKNOWN
        segment.first_timestamp = UNKNOWN
        if max_timestamp is not None:
            segment.max_timestamp, segment.max_timestamp_offset = max_timestamp
        self.segment_count += 1
        self.lookup.recent_count = 0
        put_local_start(self)

    def roll(self, int64_t base_offset, int64_t now_ms, NextSegment ready=None) -> None:
        """Start a new active segment. Its files exist, or are those of `ready`, already renamed. The indexes of the old
        active segment are cut to their size."""
        cdef Segment* old = self.active()
        cdef LogFile* file = old.file
        cdef int failure
        if ready is not None and not lookup_make_ring(&self.lookup):
            self.raise_refused(-ENOMEM, b"opening a segment")
        old.file = NULL                                 # readers and the flusher still use it
        failure = segment_close(old, self.directory)
        old.file = file
        old.touched = True
        if failure != 0:
            self.raise_refused(failure, b"closing an index")
        self.add_segment(base_offset, 0, now_ms)
        if ready is not None:
            ready.give(self.active())
        self.row_begin()
        self.row.end_segment = base_offset
        self.row.end_position = 0
        self.row_end()

    def take_log(self, NextSegment written not None) -> None:
        """Use the .log that `written` has put in place of the active segment's empty one. Readers open it again."""
        cdef Segment* segment = self.active()
        KAFKAD_CHECK(segment.size == 0)
        if segment.file != NULL:
            log_file_release(segment.file)
        segment.file = written.take_log()
        segment.touched = True
        self.row_begin()
        self.row.generation += 1
        self.row_end()

    def cut_active(self) -> None:
        """Cut the .log of the active segment to the segment's own batches. Raises OSError."""
        cdef Segment* segment = self.active()
        cdef int failure = 0 if segment.file == NULL else cut(segment.file.fd, segment.size)
        if failure != 0:
            raise OSError(-failure, os.strerror(-failure))

    def drop_segments(self, int first, int end) -> list:
        """Forget segments `first` to `end` - 1 and return their base offsets. Readers that have one open may finish."""
        cdef int i
        cdef list gone = []
        if not 0 <= first <= end <= self.segment_count:
            raise IndexError((first, end))
        for i in range(first, end):
            gone.append(self.segments[i].base_offset)
            segment_drop(&self.segments[i])
        memmove(&self.segments[first], &self.segments[end], (self.segment_count - end) * sizeof(Segment))
        self.segment_count -= end - first
        if end > first:
            lookup_forget(&self.lookup)
        put_local_start(self)
        return gone

    def release_idle(self) -> int:
        """Close files and indexes of segments that were neither read nor appended to since the last call."""
        cdef int i, closed = 0
        for i in range(self.segment_count):
            if self.segments[i].touched:
                self.segments[i].touched = False
            elif self.segments[i].file != NULL or self.segments[i].offsets.map != NULL or self.segments[i].times.map != NULL:
                self.trim(&self.segments[i])
                if segment_close(&self.segments[i], self.directory) != 0:
                    continue                            # an index could not be cut: the next sweep tries again
                closed += 1
                if i == self.segment_count - 1:
                    lookup_free_ring(&self.lookup)
        if closed:
            lookup_free_places(&self.lookup)
        return closed

    def close_files(self) -> None:
        """Cut the indexes and close all files. Appends and reads open again what they need."""
        cdef int i, failure, first = 0
        for i in range(self.segment_count):
            self.trim(&self.segments[i])
            failure = segment_close(&self.segments[i], self.directory)
            first = first if first != 0 else failure
        self.lookup.recent_count = 0
        if first != 0:
            self.raise_refused(first, b"closing")


cdef void put_local_start(Partition self) noexcept nogil:
    # Called before the files of dropped segments are deleted: readers no longer look for them.
    if self.segment_count and self.row.local_log_start_offset != self.segments[0].base_offset:
        row_begin(self.row)
        self.row.local_log_start_offset = self.segments[0].base_offset
        row_end(self.row)

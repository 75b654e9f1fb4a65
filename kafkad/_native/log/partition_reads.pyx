"""Where a batch stands, and what a Fetch may read: the layer on top of partition_state.pyx.

A read returns a region of a file. A binary search finds the segment, batch_search.pyx finds the batch. The region ends
at the position of HW, LSO or LEO, which the row holds."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.errno cimport EIO
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport free

from kafkad._native.log.aborted cimport ABORTED_SIZE, Aborted, aborted_search
from kafkad._native.wire.batch cimport HEADER_SIZE, LENGTH_OVERHEAD
from kafkad._native.log.fileio cimport Window, read_at, window_at, window_init
from kafkad._native.log.index cimport time_entry_offset, time_index_floor
from kafkad._native.log.batch_search cimport COLD, RecentBatch, lookup_goes_alone, lookup_recent, lookup_search
from kafkad._native.log.segments cimport (
    Segment, log_file_release, log_file_retain, segment_can_use_times, segment_floor, segment_load_max_timestamp,
    segment_open)
from kafkad._native.shared.watermarks cimport Row
from kafkad._native.wire.primitives cimport KAFKAD_CHECK, get_i32, get_i64
from kafkad._native.wire.errors cimport (
    CORRUPT_MESSAGE, FENCED_LEADER_EPOCH, NOT_LEADER_OR_FOLLOWER, OFFSET_OUT_OF_RANGE, UNKNOWN_LEADER_EPOCH)
from kafkad._native.wire.batch_layout cimport LAST_OFFSET_DELTA_AT, LENGTH_AT, MAGIC_AT, MAX_TIMESTAMP_AT
from kafkad._native.log.partition_state cimport PartitionState

cdef extern from "<errno.h>" nogil:
    enum: EBADMSG


cdef class PartitionReads(PartitionState):
    cdef int locate(self, Segment* segment, int64_t target, int64_t limit, int64_t* position,
                    int64_t* batch_size) noexcept nogil:
        # Finds the first batch that ends at or after `target` and begins below `limit`. 1, 0 if none, -errno, COLD.
        cdef RecentBatch recent
        cdef int64_t end
        cdef int failure
        if segment == self.active() and limit == segment.size and (
                lookup_recent(&self.lookup, target, limit, &recent, &end)):
            position[0] = recent.position
            batch_size[0] = end - recent.position
            return 1
        failure = segment_open(segment, self.directory, self.owner < 0)
        if failure != 0:
            return failure
        return lookup_search(&self.lookup, segment, self.directory, target, limit, position, batch_size)

    cdef bint follows(self) noexcept nogil:
        # Online, and another broker leads, or nobody does at the moment.
        return self.failure == 0 and self.closed_code == NOT_LEADER_OR_FOLLOWER and self.row.leader_epoch >= 0

    cdef int read(self, int64_t offset, int64_t max_bytes, bint at_least_one, int isolation, int32_t leader_epoch,
                  ReadInfo* info) noexcept nogil:
        cdef Segment* segment
        cdef Row* row = self.row
        cdef int64_t bound, bound_segment, bound_position, limit, position, batch_size = 0, size
        cdef int at, found
        info.high_watermark = row.high_watermark
        info.last_stable_offset = row.last_stable_offset
        info.log_start_offset = row.log_start_offset
        info.file = NULL
        info.position = 0
        info.size = 0
        info.available = 0
        self.lookup.wanted_size = max_bytes
        if not self.open and not (isolation & ANY_REPLICA and self.follows()):
            if self.closed_code == NOT_LEADER_OR_FOLLOWER and 0 <= leader_epoch != row.leader_epoch >= 0:
                return FENCED_LEADER_EPOCH if leader_epoch < row.leader_epoch else UNKNOWN_LEADER_EPOCH
            return self.closed_code
        if leader_epoch >= 0 and leader_epoch != row.leader_epoch:
            return FENCED_LEADER_EPOCH if leader_epoch < row.leader_epoch else UNKNOWN_LEADER_EPOCH
        if offset < row.log_start_offset or offset > row.log_end_offset:
            return OFFSET_OUT_OF_RANGE
        isolation &= ~ANY_REPLICA
        if isolation == 0:
            bound = row.high_watermark
            bound_segment = row.high_watermark_segment
            bound_position = row.high_watermark_position
        elif isolation == 1:
            bound = row.last_stable_offset
            bound_segment = row.stable_segment
            bound_position = row.stable_position
        else:                               # 2: to the end, for followers and for the owner itself
            bound = row.log_end_offset
            bound_segment = row.end_segment
            bound_position = row.end_position
            self.read_to_end = True
        if offset >= bound:
            return 0
        at = segment_floor(self.segments, self.segment_count, offset)
        KAFKAD_CHECK(at >= 0)
        while at < self.segment_count:
            segment = &self.segments[at]
            if segment.base_offset > bound_segment:
                return 0
            limit = bound_position if segment.base_offset == bound_segment else segment.size
            found = self.locate(segment, offset, limit, &position, &batch_size)
            if found < 0:
                if found == COLD:
                    return COLD
                if found == -EBADMSG:
                    return CORRUPT_MESSAGE
                return self.refused(found, b"reading")
            if found:
                found = segment_open(segment, self.directory, self.owner < 0)
                if found != 0:
                    return self.refused(found, b"opening a segment")
                size = limit - position
                if size > max_bytes:
                    size = max_bytes
                if size < batch_size:       # less than one batch fits: send it whole, or nothing (KIP-74)
                    if not at_least_one:
                        return 0
                    size = batch_size
                # As Kafka's DelayedFetch: a read from a closed segment is answered at once, whatever min_bytes is.
                info.available = size if segment.base_offset == bound_segment else OLDER_SEGMENT
                if size < limit - position and lookup_goes_alone(&self.lookup, segment, position, batch_size, size, limit):
                    size = batch_size
                log_file_retain(segment.file)
                info.file = segment.file
                info.position = position
                info.size = size
                return 0
            at += 1
        return 0

    cdef int freshen(self) noexcept nogil:
        return 0

    cdef int look(self) noexcept nogil:
        return 0

    cdef bint has_names(self) noexcept nogil:
        return True                         # the owner's own exchange is over before it reads

    # -- for Python ------------------------------------------------------------------------------------------

    def position_of(self, int64_t offset) -> tuple:
        """(segment base, position) of the batch that holds `offset`; at the log's end, of the end."""
        cdef int at = segment_floor(self.segments, self.segment_count, offset)
        cdef int64_t position, size
        cdef int found
        if offset >= self.row.log_end_offset or at < 0:
            if at < 0:
                return (self.segments[0].base_offset, 0)
            return (self.row.end_segment, self.row.end_position)
        while at < self.segment_count:
            found = self.locate(&self.segments[at], offset, self.segments[at].size, &position, &size)
            if found < 0:
                if found == -EBADMSG:
                    raise ValueError(f"segment {self.segments[at].base_offset} is corrupt")
                self.raise_refused(found, b"reading")
            if found:
                return (self.segments[at].base_offset, position)
            at += 1
        return (self.row.end_segment, self.row.end_position)

    cdef tuple boundary_of(self, int64_t offset):
        # As position_of, for a watermark: in a corrupt segment the segment's end is used, since reads there fail
        # anyway.
        cdef int at
        try:
            return self.position_of(offset)
        except ValueError:
            at = segment_floor(self.segments, self.segment_count, offset)
            return (self.segments[at].base_offset, self.segments[at].size)

    def segment_max_timestamp(self, int at) -> tuple:
        """(timestamp, offset) of the largest record timestamp in segment number `at`, -1 each if there is none. Raises
        OSError if the time index cannot be opened."""
        cdef Segment* segment
        cdef int failure
        if not 0 <= at < self.segment_count:
            raise IndexError(at)
        segment = &self.segments[at]
        failure = segment_load_max_timestamp(segment, self.directory)
        if failure != 0:
            self.raise_refused(failure, b"opening a time index")
        return (segment.max_timestamp, segment.max_timestamp_offset)

    def batch_by_timestamp(self, int at, int64_t timestamp, int64_t from_offset, int64_t after=-1):
        """(position, size) in segment number `at` of the first batch that ends at or after `from_offset` and may hold a
        record at or after `timestamp`; if `after` is given, only batches beyond that position. None if there is
        none."""
        cdef Segment* segment
        cdef Window window
        cdef const uint8_t* header
        cdef int64_t position = 0, size = 0, wanted, last, batch_timestamp, target
        cdef int32_t slot
        cdef int found
        if not 0 <= at < self.segment_count:
            raise IndexError(at)
        segment = &self.segments[at]
        target = from_offset
        if after < 0 and segment_can_use_times(segment, self.directory):
            slot = time_index_floor(&segment.times, timestamp)
            if slot >= 0:
                last = segment.base_offset + time_entry_offset(&segment.times, slot)
                if target < last < self.row.log_end_offset:
                    target = last
        if after < 0:
            found = self.locate(segment, target, segment.size, &position, &size)
        else:
            position = after
            found = segment_open(segment, self.directory, self.owner < 0)
            found = 1 if found == 0 else found
        if found == 0:
            return None
        if found == 1:
            found = segment_open(segment, self.directory, self.owner < 0)
        if found < 0:
            if found == -EBADMSG:
                raise ValueError(f"segment {segment.base_offset} is corrupt")
            self.raise_refused(found, b"reading")
        window_init(&window, segment.file.fd)
        while position < segment.size:
            wanted = segment.size - position
            if wanted > HEADER_SIZE:
                wanted = HEADER_SIZE
            header = window_at(&window, position, wanted, segment.size) if wanted >= 26 else NULL
            if header == NULL or (header[MAGIC_AT] >= 2 and wanted < HEADER_SIZE):
                raise ValueError(f"segment {segment.base_offset} is corrupt")
            size = <int64_t>get_i32(header + LENGTH_AT) + LENGTH_OVERHEAD
            if size <= MAGIC_AT or size > segment.size - position:
                raise ValueError(f"segment {segment.base_offset} is corrupt")
            last = get_i64(header)
            if header[MAGIC_AT] >= 2:
                last += get_i32(header + LAST_OFFSET_DELTA_AT)
                batch_timestamp = get_i64(header + MAX_TIMESTAMP_AT)
            else:
                batch_timestamp = get_i64(header + 18) if header[MAGIC_AT] == 1 else -1
            if position > after and last >= from_offset and batch_timestamp >= timestamp:
                return (position, size)
            position += size
        return None

    def read_batch(self, int at, int64_t position, int64_t size) -> bytes:
        """`size` bytes at `position` of segment number `at`."""
        cdef bytes data
        cdef int64_t n
        cdef int failure
        if not 0 <= at < self.segment_count or position < 0 or size < 0 or position + size > self.segments[at].size:
            raise IndexError((at, position, size))
        failure = segment_open(&self.segments[at], self.directory, True)
        if failure != 0:
            self.raise_refused(failure, b"opening a segment")
        data = PyBytes_FromStringAndSize(NULL, size)
        n = read_at(self.segments[at].file.fd, <uint8_t*>PyBytes_AS_STRING(data), size, position)
        if n != size:
            self.raise_refused(<int>n if n < 0 else -EIO, b"reading")
        return data

    def aborted_transactions(self, int64_t start, int64_t upper) -> list:
        """(producer id, first offset, marker offset, last stable offset at that time) of each aborted transaction with
        a record in [start, upper). Raises OSError if the disk fails."""
        cdef Aborted found
        cdef const uint8_t* entry
        cdef int64_t i
        cdef int at = max(segment_floor(self.segments, self.segment_count, start), 0)
        cdef int failure = aborted_search(self.directory, self.segments, self.segment_count, at, start, upper,
                                          self.row.aborted_end, &found)
        if failure != 0:
            self.raise_refused(failure, b"reading the index of aborted transactions")
        out = []
        for i in range(found.count):
            entry = found.entries + i * ABORTED_SIZE
            out.append((get_i64(entry + 2), get_i64(entry + 10), get_i64(entry + 18), get_i64(entry + 26)))
        free(found.entries)
        return out

    def try_read(self, int64_t offset, int64_t max_bytes, bint at_least_one=True, int isolation=0,
                 int32_t leader_epoch=-1) -> tuple:
        """Read the bytes: (code, high_watermark, last_stable_offset, log_start_offset, bytes)."""
        cdef ReadInfo info
        cdef bytes data = b""
        cdef int code
        cdef int64_t n
        cdef bint was_open = self.open
        cdef bint read_to_end = self.read_to_end
        if isolation == 2 and not self.failure:
            self.open = True                # the broker reads its own logs also while it does not lead them
        code = self.read(offset, max_bytes, at_least_one, isolation, leader_epoch, &info)
        self.read_to_end = read_to_end      # the bytes are copied right here
        if isolation == 2 and not self.failure:
            self.open = was_open
        if code == 0 and info.size:
            try:
                data = PyBytes_FromStringAndSize(NULL, info.size)
                n = read_at(info.file.fd, <uint8_t*>PyBytes_AS_STRING(data), info.size, info.position)
            finally:
                log_file_release(info.file)
            if n != info.size:
                return (self.refused(<int>n if n < 0 else -EIO, b"reading"), info.high_watermark, info.last_stable_offset,
                        info.log_start_offset, b"")
        return (code, info.high_watermark, info.last_stable_offset, info.log_start_offset, data)

    def read_region(self, int64_t offset, int64_t max_bytes, bint at_least_one=True, int isolation=0) -> tuple:
        """(code, segment position, size) of the region that `read` would send. For tests."""
        cdef ReadInfo info
        cdef int code = self.read(offset, max_bytes, at_least_one, isolation, -1, &info)
        if info.file != NULL:
            log_file_release(info.file)
        return (code, info.position, info.size)

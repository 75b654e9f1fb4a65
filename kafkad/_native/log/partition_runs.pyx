"""Appending runs of batches from the leader to a followed log: the layer on top of partition_appends.pyx.

A follower copies the leader's batches unchanged, with their offsets and epochs. The batches of one partition that stand
in the buffer are written by one pwrite. Each batch leaves the same traces in memory (index entries, producers,
transactions) as `append_checked` leaves:

    gather   check each batch: header, CRC, offset, epoch, room in the segment and in the tables. The run ends before the
             first batch that does not fit. No state has changed so far
    write    one pwrite. A short write is cut off again
    note     the traces of each batch, then the row once: LEO and HW

`epochs` gets a new epoch before the row shows a batch of it, because another worker may look there at once: a follower
that fetches from this broker must find where the epoch begins (KIP-101). The log writes the epoch to its file, so the
first batch of an epoch asks for Python.

An abort marker is appended alone, because its entry in the index of aborted transactions must be written before it."""

from libc.errno cimport EIO, ENOMEM
from libc.stdint cimport INT64_MAX, int16_t, int32_t, int64_t, uint8_t

from kafkad._native.log.aborted cimport aborted_undo
from kafkad._native.log.epochs cimport epochs_latest
from kafkad._native.log.fileio cimport cut, write_at
from kafkad._native.log.group_commit cimport sync_reach
from kafkad._native.log.index cimport OFFSET_ENTRY_SIZE, TIME_ENTRY_SIZE, index_reserve, time_entry_timestamp
from kafkad._native.log.batch_search cimport RecentBatch, lookup_recent
from kafkad._native.log.partition_appends cimport (
    WANTS_EPOCH, WANTS_OLD_FORMAT, WANTS_ROLL, batch_stands, call_filling, producer_stands)
from kafkad._native.log.partition_state cimport ADVANCED_END, ADVANCED_HIGH_WATERMARK, unexpected
from kafkad._native.log.producer_table cimport Producer, parse_marker, producer_find, producer_reserve
from kafkad._native.log.segments cimport PATH_SIZE, Segment, log_file_written, segment_path
from kafkad._native.log.transactions cimport transactions_reserve
from kafkad._native.wire.batch cimport CONTROL, HEADER_SIZE, LENGTH_OVERHEAD, NEED_PYTHON, TRANSACTIONAL
from kafkad._native.wire.batch_layout cimport (
    ATTRIBUTES_AT, CRC_AT, LAST_OFFSET_DELTA_AT, LEADER_EPOCH_AT, LENGTH_AT, MAGIC_AT, MAX_TIMESTAMP_AT, PRODUCER_ID_AT)
from kafkad._native.wire.crc32c cimport crc32c
from kafkad._native.wire.errors cimport CORRUPT_MESSAGE, KAFKA_STORAGE_ERROR
from kafkad._native.wire.primitives cimport KAFKAD_CHECK, get_i16, get_i32, get_i64, get_u32

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer

cdef enum:
    ABORT = 0                       # returned by parse_marker
    LEAST_SIZE = MAGIC_AT + 1       # bytes that include the magic


cdef class PartitionRuns(PartitionAppends):
    cdef int append_run(self, const uint8_t* data, int64_t size, int64_t now_ms, RunInfo* info) noexcept nogil:
        cdef int64_t taken = 0
        cdef int code = 0
        cdef bint more = True
        while more and code == 0:
            code = self.one_run(data + taken, size - taken, now_ms, info, &more)
            taken += info.taken
        info.taken = taken
        return code

    cdef int one_run(self, const uint8_t* data, int64_t size, int64_t now_ms, RunInfo* info, bint* more) noexcept nogil:
        # `more`: another run begins after this one.
        cdef const uint8_t* batch
        cdef Producer* producer
        cdef Segment* segment
        cdef Segment ahead          # the active segment as it will be after the run
        cdef char path[PATH_SIZE]
        cdef int64_t expected = self.row.log_end_offset
        cdef int64_t begin = 0, at = 0, length, base, last, max_timestamp, producer_id, last_time
        cdef int32_t delta, epoch, ignored
        cdef int16_t attributes
        cdef int code = 0, failure, marker
        cdef bint begins, fresh = False, ended = False
        more[0] = False
        info.taken = 0
        info.needed = 0
        if self.failure:
            return KAFKA_STORAGE_ERROR
        KAFKAD_CHECK(self.segment_count > 0 and self.epochs is not None)
        segment = self.active()
        ahead = segment[0]
        last_time = INT64_MAX
        while True:
            info.needed = 0
            if size - at < LEAST_SIZE:
                break
            batch = data + at
            length = <int64_t>get_i32(batch + LENGTH_AT) + LENGTH_OVERHEAD
            base = get_i64(batch)
            info.base_offset = base
            if batch[MAGIC_AT] < 2 and length >= LEAST_SIZE:
                self.wants = WANTS_OLD_FORMAT
                code = NEED_PYTHON
                break
            if length < HEADER_SIZE or batch[MAGIC_AT] != 2 or base < 0:
                code = CORRUPT_MESSAGE
                break
            if length > size - at:
                info.needed = length
                break
            delta = get_i32(batch + LAST_OFFSET_DELTA_AT)
            epoch = get_i32(batch + LEADER_EPOCH_AT)
            if delta < 0 or base > INT64_MAX - 1 - delta:
                code = CORRUPT_MESSAGE
                break
            last = base + delta
            info.last_offset = last
            info.epoch = epoch
            if last < expected:
                if at > begin:
                    more[0] = True      # first append what was gathered: then this one is below LEO
                    break
                at += length
                begin = at
                continue
            if epoch > info.fetch_epoch:
                code = RUN_NEWER
                break
            if get_u32(batch + CRC_AT) != crc32c(batch + ATTRIBUTES_AT, length - ATTRIBUTES_AT):
                code = CORRUPT_MESSAGE
                break
            if base < expected:
                code = RUN_OVERLAPS
                break
            if epoch >= 0 and epoch != epochs_latest(&self.epochs.list):
                self.wants = WANTS_EPOCH
                code = NEED_PYTHON
                break
            attributes = get_i16(batch + ATTRIBUTES_AT)
            max_timestamp = get_i64(batch + MAX_TIMESTAMP_AT)
            producer_id = get_i64(batch + PRODUCER_ID_AT)
            marker = -1
            begins = False
            if producer_id >= 0:
                if attributes & CONTROL:
                    marker = parse_marker(batch, length, &ignored)
                if marker == ABORT and at > begin:
                    more[0] = True
                    break
                # Room is reserved for one more producer and one more transaction; a second one begins another run.
                producer = producer_find(self.producer_map, producer_id)
                begins = producer == NULL or (
                    attributes & (TRANSACTIONAL | CONTROL) == TRANSACTIONAL
                    and (producer.transaction_start < 0 or ended))
                if begins:
                    if fresh:
                        more[0] = True
                        break
                    if producer_reserve(self.producer_map) != 0 or (attributes & TRANSACTIONAL and transactions_reserve(
                            &self.transactions, self.row.high_watermark) != 0):
                        code = self.refused(-ENOMEM, b"noting a producer")
                        break
            if self.must_roll(&ahead, length, max_timestamp, last, now_ms):
                self.wants = WANTS_ROLL
                code = NEED_PYTHON
                break
            if ahead.file == NULL or not ahead.times.writable:
                KAFKAD_CHECK(at == begin)
                failure = self.open_for_append(segment)
                ahead = segment[0]
                if failure != 0:
                    code = self.refused(failure, b"opening the active segment")
                    break
                continue                # the indexes may be full
            if ahead.bytes_since_index > self.index_interval_bytes:
                if (<int64_t>ahead.offsets.entries + 1) * OFFSET_ENTRY_SIZE > ahead.offsets.allocated or (
                        (<int64_t>ahead.times.entries + 1) * TIME_ENTRY_SIZE > ahead.times.allocated):
                    if at > begin:
                        more[0] = True
                        break
                    segment_path(self.directory, segment.base_offset, b"index", path)
                    failure = index_reserve(&segment.offsets, path)
                    if failure == 0:
                        segment_path(self.directory, segment.base_offset, b"timeindex", path)
                        failure = index_reserve(&segment.times, path)
                    if failure != 0:
                        code = self.refused(failure, b"growing an index")
                        break
                    ahead.offsets = segment.offsets
                    ahead.times = segment.times
                ahead.offsets.entries += 1
                if last_time == INT64_MAX:
                    last_time = time_entry_timestamp(&segment.times, segment.times.entries - 1) if segment.times.entries else -1
                if max(max_timestamp, ahead.max_timestamp) > last_time:
                    last_time = max(max_timestamp, ahead.max_timestamp)
                    ahead.times.entries += 1
                ahead.bytes_since_index = 0
            if max_timestamp > ahead.max_timestamp:
                ahead.max_timestamp = max_timestamp
            if ahead.size == 0:
                ahead.first_timestamp = max_timestamp
            ahead.bytes_since_index += length
            ahead.size += length
            expected = last + 1
            at += length
            fresh = fresh or begins
            ended = ended or marker >= 0
            if marker == ABORT:
                more[0] = True
                break
        info.taken = begin
        if at > begin:
            segment.first_timestamp = ahead.first_timestamp if segment.size else segment.first_timestamp
            failure = self.append_gathered(segment, data + begin, at - begin, now_ms, info)
            if failure != 0:
                return failure
            info.taken = at
        return code

    cdef int append_gathered(self, Segment* segment, const uint8_t* data, int64_t size, int64_t now_ms,
                             RunInfo* info) noexcept nogil:
        # Writes whole, checked batches that fit the active segment. 0, or KAFKA_STORAGE_ERROR and no change.
        cdef const uint8_t* batch = data
        cdef const uint8_t* end = data + size
        cdef int64_t length, base = 0, last = 0, aborts_before = -1
        cdef int64_t expected = self.row.log_end_offset
        cdef int64_t high_watermark, mark_segment, mark_position
        cdef int32_t coordinator_epoch = -1
        cdef int failure, marker, why = ADVANCED_END
        cdef bint moves
        if get_i16(data + ATTRIBUTES_AT) & CONTROL and get_i64(data + PRODUCER_ID_AT) >= 0:
            if parse_marker(data, size, &coordinator_epoch) == ABORT:
                last = get_i64(data) + get_i32(data + LAST_OFFSET_DELTA_AT)
                failure = self.note_abort(segment, get_i64(data + PRODUCER_ID_AT), last, &aborts_before)
                if failure != 0:
                    return self.refused(failure, b"noting an aborted transaction")
        failure = write_at(segment.file.fd, data, size, segment.size)
        if failure != 0:
            if cut(segment.file.fd, segment.size) != 0:
                failure = -EIO                # the bytes beyond the end are unknown now
            if aborts_before >= 0 and aborted_undo(self.directory, segment.base_offset, aborts_before) != 0:
                failure = -EIO
            return self.refused(failure, b"appending what a leader sent")
        segment.touched = True
        log_file_written(segment.file, segment.size)
        while batch < end:
            length = <int64_t>get_i32(batch + LENGTH_AT) + LENGTH_OVERHEAD
            base = get_i64(batch)
            last = base + get_i32(batch + LAST_OFFSET_DELTA_AT)
            batch_stands(self, segment, batch, length, base, last, expected)
            if get_i64(batch + PRODUCER_ID_AT) >= 0:
                marker = -1
                if get_i16(batch + ATTRIBUTES_AT) & CONTROL:
                    marker = parse_marker(batch, length, &coordinator_epoch)
                producer_stands(self, segment, batch, length, base, last, marker, coordinator_epoch)
            expected = last + 1
            batch += length
        if segment.size >= self.filling_at:
            with gil:
                call_filling(self, now_ms)
                segment = self.active()

        # The row changes last: `place_high_watermark` must see the old LEO.
        self.row_begin()
        self.row.log_end_offset = last + 1
        self.row.end_segment = segment.base_offset
        self.row.end_position = segment.size
        if aborts_before >= 0:
            self.row.aborted_end = last + 1
        if last + 1 - self.row.flushed_offset < self.flush_interval:
            self.row.durable_offset = last + 1
        self.row_end()
        moves = self.place_high_watermark(info.high_watermark, &high_watermark, &mark_segment, &mark_position)
        if moves:
            self.row_begin()
            self.row.high_watermark = high_watermark
            self.row.high_watermark_segment = mark_segment
            self.row.high_watermark_position = mark_position
            self.move_stable()
            self.row_end()
            why |= ADVANCED_HIGH_WATERMARK
        if self.row.log_end_offset - self.row.flushed_offset >= self.flush_interval:
            if self.sync is not NULL and not self.flush_by_log:
                sync_reach(self.sync, self.row.log_end_offset, segment.size)
            if not self.flush_asked:
                self.ask_flush()
        self.tell(why)
        return 0

    cdef bint place_high_watermark(self, int64_t leader, int64_t* offset, int64_t* at, int64_t* position) noexcept nogil:
        # Returns whether HW moves to the leader's, and finds its position.
        cdef RecentBatch batch
        cdef int64_t end
        offset[0] = min(leader, self.row.log_end_offset)
        if offset[0] <= self.row.high_watermark:
            return False
        if offset[0] == self.row.log_end_offset:
            at[0] = self.row.end_segment
            position[0] = self.row.end_position
            return True
        if lookup_recent(&self.lookup, offset[0], self.active().size, &batch, &end):
            at[0] = self.active().base_offset
            position[0] = batch.position
            return True
        with gil:
            return place_by_search(self, offset[0], at, position)

    cdef bint follow_marks(self, int64_t high_watermark, int64_t log_start) noexcept nogil:
        cdef int64_t offset, at, position
        if self.place_high_watermark(high_watermark, &offset, &at, &position):
            self.row_begin()
            self.row.high_watermark = offset
            self.row.high_watermark_segment = at
            self.row.high_watermark_position = position
            self.move_stable()
            self.row_end()
            self.tell(ADVANCED_HIGH_WATERMARK)
        return self.row.log_start_offset < log_start <= self.row.high_watermark

    # -- for Python ------------------------------------------------------------------------------------------

    def try_append_run(self, data not None, int64_t at, int32_t fetch_epoch, int64_t high_watermark, int64_t now_ms) -> tuple:
        """Call `append_run` on the bytes from `at` on: (code, where it stopped, the size of an incomplete batch there,
        its base offset, its last offset, its epoch)."""
        cdef Py_buffer view
        cdef RunInfo info
        cdef int code
        info.fetch_epoch = fetch_epoch
        info.high_watermark = high_watermark
        info.base_offset = info.last_offset = -1
        info.epoch = -1
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            KAFKAD_CHECK(0 <= at <= view.len)
            code = self.append_run(<const uint8_t*>view.buf + at, view.len - at, now_ms, &info)
        finally:
            PyBuffer_Release(&view)
        return (code, at + info.taken, info.needed, info.base_offset, info.last_offset, info.epoch)

    def note_epochs(self) -> None:
        """Publish in the row that the epochs changed, in memory and in their file."""
        self.row_begin()
        self.row.last_epoch = epochs_latest(&self.epochs.list)
        self.row.epochs_changed += 1
        self.row_end()

    def take_marks(self, int64_t high_watermark, int64_t log_start) -> bool:
        """`follow_marks`."""
        return self.follow_marks(high_watermark, log_start)


cdef bint place_by_search(PartitionRuns self, int64_t offset, int64_t* at, int64_t* position) noexcept:
    try:
        at[0], position[0] = self.boundary_of(offset)
    except Exception as e:              # a disk error: HW stays where it is
        if not isinstance(e, OSError):
            unexpected(self, e)
        return False
    return True

"""Appending one batch to the log, in C: the layer on top of partition_flushes.pyx.

An append validates the batch, checks its producer, asks Python to roll the segment if necessary, patches base offset
and leader epoch into the bytes, writes them with one pwrite, adds an index entry every index.interval.bytes, updates
the row and wakes the waiters. No state changes before the write has succeeded. A short write is cut off again."""

import os

from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.errno cimport EFBIG, EIO, EMFILE, ENFILE, ENOMEM, ENOSPC, EROFS
from libc.stdint cimport INT32_MAX, INT64_MAX, INT64_MIN, int16_t, int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from kafkad._native.log.aborted cimport aborted_append, aborted_undo
from kafkad._native.wire.batch cimport (
    CONTROL, HEADER_SIZE, LENGTH_OVERHEAD, NEED_PYTHON, TIMESTAMP_LOG_APPEND, TRANSACTIONAL, BatchInfo, check_outline,
    parse_header, settle_timestamps, validate)
from kafkad._native.log.fileio cimport cut, write_at
from kafkad._native.log.group_commit cimport sync_reach
from kafkad._native.log.guards cimport PLAIN, guards_admit, guards_appended, guards_expire, guards_free
from kafkad._native.log.index cimport (
    index_has_room, index_reserve, offset_index_append, time_entry_timestamp, time_index_append)
from kafkad._native.log.batch_search cimport lookup_make_ring, lookup_remember
from kafkad._native.log.producer_table cimport (
    ASK_LOG, HAS_ENDED, MAY_SKIP, Producer, ProducerBatch, parse_marker, producer_check, producer_end, producer_find,
    producer_record, producer_reserve)
from kafkad._native.log.segments cimport (
    PATH_SIZE, Segment, kafkad_monotonic_ms, log_file_written, segment_first_timestamp, segment_open_for_append,
    segment_path)
from kafkad._native.log.transactions cimport (
    MARKER_SIZE, marker_check, marker_write, transactions_begin, transactions_end, transactions_reserve,
    transactions_stable_after)
from kafkad._native.wire.primitives cimport KAFKAD_CHECK, get_i16, get_i32, get_i64, put_i32, put_i64
from kafkad._native.wire.errors cimport (
    INVALID_REQUEST, INVALID_TXN_STATE, KAFKA_STORAGE_ERROR, NOT_ENOUGH_REPLICAS, NOT_LEADER_OR_FOLLOWER,
    OUT_OF_ORDER_SEQUENCE_NUMBER, RECORD_LIST_TOO_LARGE, TRANSACTION_COORDINATOR_FENCED, UNKNOWN_SERVER_ERROR)
from kafkad._native.wire.batch_layout cimport (
    ATTRIBUTES_AT, BASE_SEQUENCE_AT, LAST_OFFSET_DELTA_AT, LEADER_EPOCH_AT, LENGTH_AT, MAGIC_AT, MAX_TIMESTAMP_AT,
    PRODUCER_EPOCH_AT, PRODUCER_ID_AT)
from kafkad._native.log.partition_state cimport ADVANCED_HIGH_WATERMARK, ADVANCED_END, unexpected
from kafkad._native.log.partition_flushes cimport PartitionFlushes

cdef extern from "<errno.h>" nogil:
    enum: EDQUOT

cpdef enum:                         # state of a batch that was written ahead
    NOT_WRITTEN = 0                 # it was not written ahead
    NOT_IN_PLACE = 1                # it is in a file that is to become the active segment's
    IN_PLACE = 2                    # that file has become the active segment's

cdef enum:
    LARGE_BATCH = 2 * 1024 * 1024   # a larger batch is checked in a thread; see log/pending_append.py
    NEW_LEADER_MS = 2000            # for so long, a batch may have overtaken others that came before this leader led
    BEGINNING_MS = 30000            # so long a client waits for an answer (request.timeout.ms), and a quota may hold a batch
    BEGINNINGS_MAX = 64             # producers that begin in the middle at the same time; others wait for BEGINNING_MS

cdef enum:                          # origins of a batch for append_checked
    CLIENT = 0
    COORDINATOR = 1
    RAFT = 2
    REPLICA = 3

cdef const char* refusal_of(int failure) noexcept nogil:
    """Return the error message for the client. The texts are constants, so an answer may point to them."""
    if failure == -ENOSPC:
        return b"the log could not be written: no space left on device (ENOSPC)"
    if failure == -EDQUOT:
        return b"the log could not be written: disk quota exceeded (EDQUOT)"
    if failure == -EMFILE or failure == -ENFILE:
        return b"the log could not be written: too many open files (EMFILE)"
    if failure == -ENOMEM:
        return b"the log could not be written: out of memory (ENOMEM)"
    if failure == -EFBIG:
        return b"the log could not be written: file too large (EFBIG)"
    if failure == -EROFS:
        return b"the log could not be written: read-only file system (EROFS)"
    if failure == -EIO:
        return b"the log could not be written: input/output error (EIO)"
    return b"the log could not be written: see the broker's log"


cdef const char* refusal_of_producer(int code) noexcept nogil:
    if code == INVALID_TXN_STATE:
        return b"a transaction of this producer is open: its records must be transactional until it ends"
    if code == TRANSACTION_COORDINATOR_FENCED:
        return b"a later transaction coordinator has written to this partition"
    return b"the producer's epoch or sequence is not the expected one"


# -- the traces of a batch that was written -------------------------------------------------------------------

cdef void batch_stands(PartitionAppends self, Segment* segment, const uint8_t* batch, int64_t size, int64_t base_offset,
                       int64_t last_offset, int64_t expected) noexcept nogil:
    cdef int64_t max_timestamp = get_i64(batch + MAX_TIMESTAMP_AT)
    if max_timestamp > segment.max_timestamp:
        segment.max_timestamp = max_timestamp
        segment.max_timestamp_offset = last_offset
    if segment.size == 0:
        segment.first_timestamp = max_timestamp
    if segment.bytes_since_index > self.index_interval_bytes:
        offset_index_append(&segment.offsets, <int32_t>(last_offset - segment.base_offset), <int32_t>segment.size)
        if segment.times.entries == 0 or (
                segment.max_timestamp > time_entry_timestamp(&segment.times, segment.times.entries - 1)):
            if segment.max_timestamp > -1:
                time_index_append(&segment.times, segment.max_timestamp,
                                  <int32_t>(segment.max_timestamp_offset - segment.base_offset))
        segment.bytes_since_index = 0
    segment.bytes_since_index += size
    if base_offset != expected:
        self.lookup.recent_count = 0            # a gap: two entries of the ring no longer enclose exactly one batch
    lookup_remember(&self.lookup, base_offset, segment.size)
    segment.size += size


cdef void producer_stands(PartitionAppends self, Segment* segment, const uint8_t* batch, int64_t size, int64_t base_offset,
                          int64_t last_offset, int marker, int32_t coordinator_epoch) noexcept nogil:
    cdef int64_t producer_id = get_i64(batch + PRODUCER_ID_AT)
    cdef int16_t producer_epoch = get_i16(batch + PRODUCER_EPOCH_AT)
    cdef int64_t max_timestamp = get_i64(batch + MAX_TIMESTAMP_AT)
    cdef int16_t attributes = get_i16(batch + ATTRIBUTES_AT)
    cdef int64_t transaction
    if marker >= 0:
        transaction = producer_end(self.producer_map, producer_id, producer_epoch, coordinator_epoch, max_timestamp)
        if transaction >= 0:
            transactions_end(&self.transactions, transaction, last_offset)
        guards_appended(&self.guards, producer_id, producer_epoch, True)
    elif not attributes & CONTROL:
        producer_record(self.producer_map, producer_id, producer_epoch, get_i32(batch + BASE_SEQUENCE_AT), base_offset,
                        last_offset, max_timestamp, attributes & TRANSACTIONAL != 0)
        if attributes & TRANSACTIONAL:
            guards_appended(&self.guards, producer_id, producer_epoch, False)
            if producer_find(self.producer_map, producer_id).transaction_start == base_offset:
                transactions_begin(&self.transactions, base_offset, segment.base_offset, segment.size - size)


cdef class PartitionAppends(PartitionFlushes):
    def __cinit__(self):
        self.filling_at = INT64_MAX
        self.segment_bytes = 1 << 30
        self.segment_age_max_ms = INT64_MAX
        self.index_interval_bytes = 4096
        self.index_size_max = 10 << 20
        self.rules.max_message_bytes = 1048588
        self.rules.compression_type = -1
        self.rules.before_max_ms = INT64_MAX
        self.rules.after_max_ms = INT64_MAX
        self.rules.transactions = True                  # `admit` checks them

    def __dealloc__(self):
        guards_free(&self.guards)
        free(self.beginnings)

    def configure(self, *, int32_t max_message_bytes, int compression_type, bint log_append_time, int64_t before_max_ms,
                  int64_t after_max_ms, bint compacted, int64_t segment_bytes, int64_t segment_age_max_ms,
                  int32_t index_interval_bytes, int64_t index_size_max, int64_t flush_interval,
                  int32_t insync_min=1) -> None:
        self.rules.max_message_bytes = max_message_bytes
        self.rules.compression_type = compression_type
        self.rules.log_append_time = log_append_time
        self.rules.before_max_ms = before_max_ms
        self.rules.after_max_ms = after_max_ms
        self.rules.compacted = compacted
        self.segment_bytes = segment_bytes
        self.segment_age_max_ms = segment_age_max_ms
        self.index_interval_bytes = index_interval_bytes
        self.index_size_max = index_size_max
        self.flush_interval = flush_interval
        if insync_min != self.insync_min:
            self.insync_min = insync_min
            if self.replicas is not NULL:
                self.count_isr(self.row.isr_count, self.row.isr_count_max)

    def expect_forgotten(self) -> None:
        """Producers were forgotten because of their age: from now on, one that is not known may begin in the middle."""
        self.begun_ms = INT64_MIN

    def expect_order(self) -> None:
        """Answer OUT_OF_ORDER_SEQUENCE_NUMBER to a gap from now on, although this leader is new. For tests."""
        self.opened_ms = INT64_MIN
        self.begun_ms = INT64_MIN

    cdef bint must_roll(self, Segment* segment, int64_t size, int64_t max_timestamp, int64_t last_offset,
                        int64_t now_ms) noexcept nogil:
        # As Kafka's LogSegment.shouldRoll.
        cdef int64_t first
        if last_offset - segment.base_offset > INT32_MAX:
            return True
        if segment.size == 0:
            return False
        if segment.size > self.segment_bytes - size:
            return True
        if segment.offsets.writable and segment.offsets.entries >= segment.offsets.entries_max:
            return True
        if segment.times.writable and segment.times.entries >= segment.times.entries_max - 1:
            return True
        if self.segment_age_max_ms == INT64_MAX:
            return False
        first = segment_first_timestamp(segment, self.directory)
        return (max_timestamp - first if first >= 0 else now_ms - segment.created_ms) > self.segment_age_max_ms

    cdef int open_for_append(self, Segment* segment) noexcept nogil:
        if not lookup_make_ring(&self.lookup):
            return -ENOMEM
        return segment_open_for_append(segment, self.directory, self.index_size_max)

    cdef int append(self, uint8_t* records, size_t size, int64_t now_ms, AppendInfo* info) noexcept nogil:
        cdef BatchInfo batch
        cdef uint8_t head[HEADER_SIZE]
        cdef int code
        info.base_offset = -1
        info.end_offset = -1
        info.append_time_ms = -1
        info.log_start_offset = self.row.log_start_offset
        info.bad_record = -1
        info.message = NULL
        if not self.open:
            return self.closed_code
        if info.admission != PLAIN and size >= HEADER_SIZE and records[MAGIC_AT] == 2 and (
                get_i16(records + ATTRIBUTES_AT) & TRANSACTIONAL):
            code = self.admit(records, now_ms, False, info)     # before the thread's work, which would be done twice
            if code != 0:
                return code
        batch.bad_record = -1
        batch.message = NULL
        if size >= HEADER_SIZE:
            memcpy(head, records, HEADER_SIZE)
        if size <= LARGE_BATCH:
            code = validate(records, size, &self.rules, now_ms, &batch)
        else:
            code = check_outline(records, size, &self.rules, &batch)
            if code == 0:
                code = NEED_PYTHON                  # a thread checks the rest
        if code != 0:
            self.wants = WANTS_SLOW_PATH
            info.bad_record = batch.bad_record
            info.message = batch.message
            return code
        code = self.append_checked(records, size, CLIENT, self.row.leader_epoch, now_ms, info)
        if code != 0:
            # After a roll the bytes come again. They must be as the client sent them: one that has set the mark of
            # LogAppendTime is refused.
            memcpy(records, head, HEADER_SIZE)
        return code

    cdef int append_made(self, uint8_t* batch, size_t size, int64_t now_ms, AppendInfo* info) noexcept nogil:
        return self.append_checked(batch, size, CLIENT, self.row.leader_epoch, now_ms, info)

    cdef int admit(self, const uint8_t* records, int64_t now_ms, bint last, AppendInfo* info) noexcept nogil:
        # Whether the coordinator knows the transaction of this batch. A retry is answered without asking.
        cdef ProducerBatch duplicate
        cdef int64_t producer_id = get_i64(records + PRODUCER_ID_AT)
        cdef int16_t epoch = get_i16(records + PRODUCER_EPOCH_AT)
        cdef int32_t base_sequence = get_i32(records + BASE_SEQUENCE_AT)
        cdef int code
        if not last:
            code = -1 if producer_id < 0 or base_sequence < 0 else producer_check(
                self.producer_map, producer_id, epoch, base_sequence, get_i32(records + LAST_OFFSET_DELTA_AT), True, True,
                &duplicate)
            if code == -1 or code == HAS_ENDED:
                return 0                                # the check of the batch will find it
        code = guards_admit(&self.guards, self.producer_map, info.admission, producer_id, epoch, base_sequence, now_ms, last,
                            &info.guard)
        if code == INVALID_REQUEST:
            info.message = b"Transactions are not supported"
        elif code == INVALID_TXN_STATE:
            info.message = b"the record is not part of an ongoing transaction"
        elif code > 0:
            info.message = refusal_of_producer(code)
        return code

    cdef bint begins_again(self, int64_t producer_id, int16_t epoch, int32_t base_sequence) noexcept nogil:
        # After a refusal a client sends its batches again from the lowest sequence on that was not acknowledged. So if the
        # batch that was refused here is the first one to come again, there is none before it: the producer has written to
        # an earlier topic of this name, for example. But another leader may still hold one for a moment.
        cdef Beginning* beginning
        cdef int i
        if self.beginnings is NULL:
            self.beginnings = <Beginning*>calloc(BEGINNINGS_MAX, sizeof(Beginning))
            if self.beginnings is NULL:
                return False
        if self.beginnings_since != self.begun_count:
            self.beginnings_since = self.begun_count
            self.beginning_count = 0
        for i in range(min(self.beginning_count, BEGINNINGS_MAX)):
            beginning = &self.beginnings[i]
            if beginning.producer_id == producer_id and beginning.epoch == epoch:
                if base_sequence < beginning.base_sequence:
                    beginning.base_sequence = base_sequence
                    return False
                return base_sequence == beginning.base_sequence and (
                    self.is_new or kafkad_monotonic_ms() - NEW_LEADER_MS >= self.begun_ms)
        beginning = &self.beginnings[self.beginning_count % BEGINNINGS_MAX]
        beginning.producer_id, beginning.epoch, beginning.base_sequence = producer_id, epoch, base_sequence
        # Below 2 * BEGINNINGS_MAX, so that it does not overflow.
        self.beginning_count += 1 if self.beginning_count < 2 * BEGINNINGS_MAX - 1 else 1 - BEGINNINGS_MAX
        return False

    cdef int append_checked(self, uint8_t* records, size_t size, int origin, int32_t epoch, int64_t now_ms,
                            AppendInfo* info) noexcept nogil:
        # Appends one valid v2 batch. All checks come before the write; nothing after the write can fail.
        cdef Segment* segment
        cdef ProducerBatch duplicate
        cdef char path[PATH_SIZE]
        cdef int16_t attributes = get_i16(records + ATTRIBUTES_AT)
        cdef int64_t max_timestamp = get_i64(records + MAX_TIMESTAMP_AT)
        cdef int64_t producer_id = get_i64(records + PRODUCER_ID_AT)
        cdef int16_t producer_epoch = get_i16(records + PRODUCER_EPOCH_AT)
        cdef int32_t base_sequence = get_i32(records + BASE_SEQUENCE_AT)
        cdef int32_t delta = get_i32(records + LAST_OFFSET_DELTA_AT)
        cdef int64_t base_offset = self.row.log_end_offset
        cdef int64_t last_offset, aborts_before = -1
        cdef int32_t coordinator_epoch = -1
        cdef int code, failure, marker = -1, why

        if <int64_t>size > self.segment_bytes:
            info.message = b"the batch is larger than segment.bytes"
            return RECORD_LIST_TOO_LARGE
        if origin == REPLICA:
            base_offset = get_i64(records)
            KAFKAD_CHECK(base_offset >= self.row.log_end_offset)
        last_offset = base_offset + delta
        info.log_start_offset = self.row.log_start_offset
        if attributes & CONTROL and producer_id >= 0:
            marker = parse_marker(records, size, &coordinator_epoch)
        if producer_id >= 0:
            if marker < 0:
                code = producer_check(self.producer_map, producer_id, producer_epoch, base_sequence, delta,
                                      origin == CLIENT, attributes & TRANSACTIONAL != 0, &duplicate)
            else:
                code = marker_check(self.producer_map, producer_id, producer_epoch, coordinator_epoch,
                                    info.transaction_version)
            if code == -1:
                info.base_offset = duplicate.last_offset - duplicate.offset_delta
                info.end_offset = duplicate.last_offset + 1
                info.append_time_ms = duplicate.timestamp
                return 0
            if code == ASK_LOG:
                self.wants = WANTS_PRODUCERS
                return NEED_PYTHON
            if code == HAS_ENDED:
                code = OUT_OF_ORDER_SEQUENCE_NUMBER
            elif code == OUT_OF_ORDER_SEQUENCE_NUMBER and origin == CLIENT and (
                    kafkad_monotonic_ms() - NEW_LEADER_MS < self.opened_ms):
                # The batches before this one may have come before this broker led, and been refused. After this answer
                # librdkafka sends all in order again; OUT_OF_ORDER_SEQUENCE_NUMBER would make it repeat records that
                # are in the log, under a new producer epoch.
                info.message = b"batches before this one may have been refused: they have to come first"
                return NOT_LEADER_OR_FOLLOWER
            if code == MAY_SKIP:
                # If the batches before this one were refused, and this one were accepted, those would be refused for good,
                # as out of order. librdkafka takes the answer to a later batch as one to all before it, and the
                # application would believe that they were written.
                if kafkad_monotonic_ms() - BEGINNING_MS < self.begun_ms and not self.begins_again(
                        producer_id, producer_epoch, base_sequence):
                    info.message = b"batches before this one may have been refused: this producer has to begin at sequence 0"
                    return NOT_LEADER_OR_FOLLOWER
                code = 0
            if code != 0 and origin != REPLICA:
                info.message = refusal_of_producer(code)
                return code
            if attributes & TRANSACTIONAL and marker < 0 and (
                    origin == CLIENT or (origin == COORDINATOR and info.admission != PLAIN)):
                code = self.admit(records, now_ms, True, info)
                if code != 0:
                    return code
            if producer_reserve(self.producer_map) != 0 or (attributes & TRANSACTIONAL and transactions_reserve(
                    &self.transactions, self.row.high_watermark) != 0):
                return self.refused(-ENOMEM, b"noting a producer")

        segment = self.active()
        if self.written == NOT_IN_PLACE or self.must_roll(segment, size, max_timestamp, last_offset, now_ms):
            self.wants = WANTS_ROLL
            return NEED_PYTHON
        if segment.file == NULL or not segment.times.writable:
            failure = self.open_for_append(segment)
            if failure != 0:
                info.message = refusal_of(failure)
                return self.refused(failure, b"opening the active segment")
            if self.must_roll(segment, size, max_timestamp, last_offset, now_ms):
                self.wants = WANTS_ROLL
                return NEED_PYTHON
        segment.touched = True
        if segment.bytes_since_index > self.index_interval_bytes and not (
                index_has_room(&segment.offsets) and index_has_room(&segment.times)):
            segment_path(self.directory, segment.base_offset, b"index", path)
            failure = index_reserve(&segment.offsets, path)
            if failure == 0:
                segment_path(self.directory, segment.base_offset, b"timeindex", path)
                failure = index_reserve(&segment.times, path)
            if failure != 0:
                info.message = refusal_of(failure)
                return self.refused(failure, b"growing an index")

        if marker == 0:                             # before the marker: nothing after the write can fail
            failure = self.note_abort(segment, producer_id, last_offset, &aborts_before)
            if failure != 0:
                info.message = refusal_of(failure)
                return self.refused(failure, b"noting an aborted transaction")
        if origin != REPLICA:
            put_i64(records, base_offset)
            put_i32(records + LEADER_EPOCH_AT, epoch)
        if self.written == NOT_WRITTEN:
            failure = write_at(segment.file.fd, records, size, segment.size)
        else:
            failure = 0
        if failure != 0:
            if cut(segment.file.fd, segment.size) != 0:
                failure = -EIO                # the bytes beyond the end are unknown now
            if aborts_before >= 0 and aborted_undo(self.directory, segment.base_offset, aborts_before) != 0:
                failure = -EIO
            info.message = refusal_of(failure)
            return self.refused(failure, b"appending")

        log_file_written(segment.file, segment.size)
        batch_stands(self, segment, records, size, base_offset, last_offset, self.row.log_end_offset)
        if segment.size >= self.filling_at:
            with gil:
                call_filling(self, now_ms)

        if producer_id >= 0:
            producer_stands(self, segment, records, size, base_offset, last_offset, marker, coordinator_epoch)

        why = ADVANCED_END
        self.row_begin()
        self.row.log_end_offset = last_offset + 1
        self.row.end_segment = segment.base_offset
        self.row.end_position = segment.size
        if aborts_before >= 0:
            self.row.aborted_end = last_offset + 1
        if self.row.log_end_offset - self.row.flushed_offset < self.flush_interval:
            self.row.durable_offset = self.row.log_end_offset
            if self.follows_end:
                self.row.high_watermark = self.row.log_end_offset
                self.row.high_watermark_segment = segment.base_offset
                self.row.high_watermark_position = segment.size
                self.move_stable()
                why |= ADVANCED_HIGH_WATERMARK
        self.row_end()
        if not self.follows_end and self.replicas is not NULL and self.raise_replicated():
            why |= ADVANCED_HIGH_WATERMARK

        info.base_offset = base_offset
        info.end_offset = last_offset + 1
        info.append_time_ms = max_timestamp if attributes & TIMESTAMP_LOG_APPEND else -1
        if self.row.log_end_offset - self.row.flushed_offset >= self.flush_interval:
            if self.sync is not NULL and not self.flush_by_log:
                sync_reach(self.sync, self.row.log_end_offset, segment.size)
            if not self.flush_asked:
                self.ask_flush()
        self.tell(why)
        return 0

    cdef int note_abort(self, Segment* segment, int64_t producer_id, int64_t last_offset, int64_t* before) noexcept nogil:
        # Adds the index entry of the transaction that an abort marker at `last_offset` ends; none if it has no records.
        cdef Producer* producer = producer_find(self.producer_map, producer_id)
        cdef int64_t first
        if producer == NULL or producer.transaction_start < 0:
            return 0
        first = producer.transaction_start
        segment.no_aborts = False
        return aborted_append(self.directory, segment.base_offset, producer_id, first, last_offset,
                              transactions_stable_after(&self.transactions, first, last_offset), before)

    # -- for Python ------------------------------------------------------------------------------------------

    def try_append(self, records not None, int64_t now_ms, bint checked=False, int written=0, int admission=0,
                   uint32_t guard=0) -> tuple:
        """Append a writable buffer, as `append` does. Return (code, base_offset, end_offset, append_time_ms,
        log_start_offset, bad_record, message). `checked`: the records come from the slow path and are valid.
        `admission`, `guard`: as in AppendInfo; after NEED_TRANSACTION `self.guard` is the guard to ask with.

        `written`: with NOT_IN_PLACE, run all checks and then ask for a roll. With IN_PLACE, the active segment's file
        already holds the records and nothing else."""
        cdef Py_buffer view
        cdef AppendInfo info
        cdef int code
        PyObject_GetBuffer(records, &view, PyBUF_WRITABLE)
        info.admission = admission
        info.guard = guard
        try:
            if checked:
                KAFKAD_CHECK(view.len >= HEADER_SIZE)
                info.append_time_ms = -1
                info.base_offset = -1
                info.end_offset = -1
                info.bad_record = -1
                info.message = NULL
                info.log_start_offset = self.row.log_start_offset
                if self.open:
                    self.written = written
                    code = self.append_checked(<uint8_t*>view.buf, view.len, CLIENT, self.row.leader_epoch, now_ms, &info)
                    self.written = NOT_WRITTEN
                else:
                    code = self.closed_code
            else:
                code = self.append(<uint8_t*>view.buf, view.len, now_ms, &info)
        finally:
            PyBuffer_Release(&view)
        self.guard = info.guard
        return (code, info.base_offset, info.end_offset, info.append_time_ms, info.log_start_offset, info.bad_record,
                None if info.message == NULL else info.message.decode())

    def append_trusted(self, batch not None, int64_t now_ms, int origin, int32_t epoch, int admission=0,
                       uint32_t guard=0) -> tuple:
        """Append one batch that the broker made: (code, base_offset, message). Works also while not open to clients.
        `admission`: a group's commit in a transaction is checked as a client's batch is."""
        cdef Py_buffer view
        cdef AppendInfo info
        cdef int code
        PyObject_GetBuffer(batch, &view, PyBUF_WRITABLE)
        try:
            if view.len < HEADER_SIZE or get_i32(<uint8_t*>view.buf + LENGTH_AT) + LENGTH_OVERHEAD != view.len:
                raise ValueError("append takes exactly one batch")
            if self.failure:
                return (KAFKA_STORAGE_ERROR, -1, os.strerror(self.failure))
            if origin == COORDINATOR and self.row.isr_count < self.row.isr_count_min:
                return (NOT_ENOUGH_REPLICAS, -1, None)
            if epoch != self.row.leader_epoch:
                self.flush_by_log = True                # the log is about to record where this epoch begins
            info.base_offset = -1
            info.message = NULL
            info.transaction_version = 0
            info.admission = admission
            info.guard = guard
            code = self.append_checked(<uint8_t*>view.buf, view.len, origin, epoch, now_ms, &info)
        finally:
            PyBuffer_Release(&view)
        return (code, info.base_offset, None if info.message == NULL else info.message.decode())

    def ask_guard(self, int admission, int64_t producer_id, int16_t epoch, int32_t base_sequence, int64_t now_ms) -> int:
        """Check what a transactional batch needs before it is appended: 0, nothing; NEED_TRANSACTION, the guard in
        `self.guard`; otherwise Kafka's error code."""
        cdef uint32_t guard = 0
        cdef int code
        if not self.open:
            return self.closed_code
        code = guards_admit(&self.guards, self.producer_map, admission, producer_id, epoch, base_sequence, now_ms, False,
                            &guard)
        self.guard = guard
        return code

    def expire_guards(self, int64_t before_ms) -> None:
        """Forget guards that were given before `before_ms` and never used."""
        guards_expire(&self.guards, before_ms)

    def append_marker(self, int64_t producer_id, int16_t producer_epoch, int32_t coordinator_epoch, bint commit,
                      int version, int64_t now_ms) -> tuple:
        """Append the marker that ends a transaction, for a coordinator of this epoch and transaction.version:
        (code, offset, message)."""
        cdef uint8_t batch[MARKER_SIZE]
        cdef BatchInfo header
        cdef AppendInfo info
        cdef int code
        if not self.open:
            return (self.closed_code, -1, None)
        if self.row.isr_count < self.row.isr_count_min:
            return (NOT_ENOUGH_REPLICAS, -1, None)
        if producer_id < 0 or producer_epoch == -1 or version == -1:        # as Kafka answers it
            return (UNKNOWN_SERVER_ERROR, -1, "a marker has a producer id, its epoch and a transaction.version")
        marker_write(batch, producer_id, producer_epoch, coordinator_epoch, commit, now_ms)
        if self.rules.log_append_time:
            KAFKAD_CHECK(parse_header(batch, MARKER_SIZE, &header) == 0)
            settle_timestamps(batch, &self.rules, now_ms, &header)
        info.base_offset = -1
        info.message = NULL
        info.transaction_version = version
        code = self.append_checked(batch, MARKER_SIZE, COORDINATOR, self.row.leader_epoch, now_ms, &info)
        return (code, info.base_offset, None if info.message == NULL else info.message.decode())


cdef void call_filling(PartitionAppends partition, int64_t now_ms) noexcept:
    partition.filling_at = INT64_MAX
    try:
        partition.log.on_filling(now_ms)
    except Exception as e:
        unexpected(partition, e)

"""A partition's hot state: appends and reads in C, on the files themselves.

An append is: validate, look at the producer, ask whether the segment must be rolled (then Python does), patch base
offset and leader epoch into the bytes, one pwrite, an index entry every index.interval.bytes, the row, and a call to
whoever waits. Nothing is changed before the write has succeeded; a short write is cut off again.

A read answers a region of a file: the segment by binary search, the batch by batch_search.pyx. The end of the region is the
position of HW, LSO or LEO, which stand in the row.

Files are opened by path when first needed (segments.pyx); `release_idle` closes what nobody read since the last sweep. An
idle partition has no fd and no mapping.

Beware: all of this belongs to one thread, the owner's loop. Only a FileRef may travel to a flusher thread.

Over 900 lines: appends, reads and flushes of one class share its state."""

import os

cimport cython
from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.errno cimport EFBIG, EIO, EMFILE, ENFILE, ENOMEM, ENOSPC, EROFS
from libc.stdint cimport INT32_MAX, INT64_MAX, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcmp, memcpy, memmove, memset, strdup

from kafkad._native.log.aborted cimport ABORTED_SIZE, Aborted, aborted_append, aborted_end, aborted_search, aborted_undo
from kafkad._native.wire.batch cimport (
    CONTROL, HEADER_SIZE, LENGTH_OVERHEAD, NEED_PYTHON, TIMESTAMP_LOG_APPEND, TRANSACTIONAL, BatchInfo, check_outline,
    validate)
from kafkad._native.log.fileio cimport Window, cut, is_fatal, read_at, window_at, window_init, write_at
from kafkad._native.log.group_commit cimport (
    SYNC_IDLE, GroupCommit, Sync, commit_ask, sync_drop, sync_give_up, sync_new, sync_reach)
from kafkad._native.log.guards cimport (
    PLAIN, NEED_TRANSACTION, guards_admit, guards_appended, guards_expire, guards_free)
from kafkad._native.log.index cimport (
    index_has_room, index_reserve, offset_index_append, time_entry_offset, time_entry_timestamp, time_index_append,
    time_index_floor)
from kafkad._native.log.batch_search cimport (
    COLD, RecentBatch, lookup_forget, lookup_free_places, lookup_free_ring, lookup_goes_alone, lookup_make_ring,
    lookup_recent, lookup_remember, lookup_search)
from kafkad._native.log.next_segment cimport NextSegment
from kafkad._native.log.producer_table cimport (
    ASK_LOG, Producer, ProducerBatch, parse_marker, producer_check, producer_end, producer_find, producer_record,
    producer_reserve)
from kafkad._native.log.segments cimport (
    PATH_SIZE, UNKNOWN, LogFile, Segment, file_ref, log_file_release, log_file_retain, log_file_written,
    segment_close, segment_drop, segment_end_offset, segment_first_timestamp, segment_floor, segment_load_max_timestamp, segment_open,
    segment_open_for_append, segment_open_times, segment_path)
from kafkad._native.log.transactions cimport (
    MARKER_SIZE, Transaction, marker_check, marker_write, transactions_begin, transactions_end, transactions_free,
    transactions_oldest, transactions_raise, transactions_rebuild, transactions_reserve, transactions_stable_after)
from kafkad._native.shared.watermarks cimport ROW_WORDS, Row, RowSlot, kafkad_fence, row_begin, row_end
from kafkad._native.wire.primitives cimport KAFKAD_CHECK, get_i16, get_i32, get_i64, put_i32, put_i64
from kafkad._native.wire.errors cimport (
    CORRUPT_MESSAGE, FENCED_LEADER_EPOCH, INVALID_REQUEST, INVALID_TXN_STATE, KAFKA_STORAGE_ERROR,
    NOT_LEADER_OR_FOLLOWER, OFFSET_OUT_OF_RANGE, RECORD_LIST_TOO_LARGE, TRANSACTION_COORDINATOR_FENCED,
    UNKNOWN_LEADER_EPOCH, UNKNOWN_SERVER_ERROR,
)
from kafkad._native.wire.batch_layout cimport (
    ATTRIBUTES_AT, BASE_SEQUENCE_AT, LAST_OFFSET_DELTA_AT, LEADER_EPOCH_AT, LENGTH_AT, MAGIC_AT, MAX_TIMESTAMP_AT,
    PRODUCER_EPOCH_AT, PRODUCER_ID_AT,
)

from kafkad._native.shared.watermarks import private_row

cdef extern from "<errno.h>" nogil:
    enum: EBADMSG, EDQUOT

cdef extern from * nogil:
    """
    #define kafkad_or(p, bits) __atomic_fetch_or((p), (bits), __ATOMIC_SEQ_CST)
    """
    void kafkad_or(uint64_t* p, uint64_t bits)

cpdef enum:                         # of a batch that was written ahead
    NOT_WRITTEN = 0                 # (it was not)
    NOT_IN_PLACE = 1                # it is in a file that is to become the active segment's
    IN_PLACE = 2                    # that has become so

cdef enum:
    LARGE_BATCH = 2 * 1024 * 1024   # above it a batch is checked in a thread; see log/pending_append.py

cdef enum:                          # of append_checked
    CLIENT = 0
    COORDINATOR = 1
    RAFT = 2
    REPLICA = 3

WANTS_NOTHING = 0
WANTS_ROLL = 1
WANTS_SLOW_PATH = 2
WANTS_PRODUCERS = 3                 # a retry, perhaps, of a batch that the snapshot did not hold



cdef const char* refusal_of(int failure) noexcept nogil:
    """What the client reads. Constant texts: an answer may hold on to them."""
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


cdef void partition_listen(Partition partition, int me) noexcept nogil:
    kafkad_or(&partition.shared.waiters, <uint64_t>1 << me)
    kafkad_fence()


cdef class Partition:
    def __cinit__(self, str topic, int index, bytes topic_id, str directory, RowSlot slot=None, ProducerTable producers=None):
        cdef bytes path = os.fsencode(directory)
        self.topic = topic
        self.index = index
        self.slot = private_row() if slot is None else slot
        self.producers = ProducerTable() if producers is None else producers
        self.producer_map = &self.producers.map
        self.row = <Row*>self.slot.at
        self.shared = self.row
        self.owner = -1
        self.directory = strdup(path)
        if self.directory == NULL:
            raise MemoryError()
        self.closed_code = NOT_LEADER_OR_FOLLOWER
        self.follows_end = True
        self.flush_interval = INT64_MAX
        self.filling_at = INT64_MAX
        self.segment_bytes = 1 << 30
        self.segment_age_max_ms = INT64_MAX
        self.index_interval_bytes = 4096
        self.index_size_max = 10 << 20
        self.rules.max_message_bytes = 1048588
        self.rules.compression_type = -1
        self.rules.before_max_ms = INT64_MAX
        self.rules.after_max_ms = INT64_MAX
        self.rules.transactions = True                  # `admit` judges them
        self.row_begin()
        self.row.partition = index
        if topic_id is not None:
            if len(topic_id) != 16:
                raise ValueError("a topic id is 16 bytes")
            memcpy(self.row.topic_id, PyBytes_AS_STRING(topic_id), 16)
        self.row.leader_epoch = -1
        self.row.highest_tiered_offset = -1
        self.row_end()

    @staticmethod
    def reader(str topic, int index, bytes topic_id, str directory, RowSlot slot, int owner) -> Partition:
        """The partition that worker `owner` appends to, as another worker reads it: `slot` is a view of its row."""
        from kafkad._native.log.partition_reader import reader_partition

        return reader_partition(topic, index, topic_id, directory, slot, owner)

    def adopt_row(self, RowSlot slot not None) -> None:
        """After loading with a private row: goes over to the row that a dead owner left (or to an empty one). All at
        once, as readers see it; HW, LSO and log start of that row do not go back, and it stays led as it was."""
        cdef Row* shared = <Row*>slot.at
        cdef int64_t stable, segment, position
        if shared.partition == self.index and memcmp(shared.topic_id, self.row.topic_id, 16) == 0:
            self.set_log_start(min(shared.log_start_offset, self.row.log_end_offset))
            self.advance_high_watermark(shared.high_watermark)
            stable = min(shared.last_stable_offset, self.row.high_watermark)
            if self.row.last_stable_offset < stable:
                segment, position = self.boundary_of(stable)
                transactions_raise(&self.transactions, stable, segment, position)
                self.row_begin()
                self.move_stable()
                self.row_end()
            if self.row.leader_epoch < 0:
                self.row.leader_epoch = shared.leader_epoch
            self.row.flushed_offset = max(self.row.flushed_offset, min(shared.flushed_offset, self.row.log_end_offset))
        row_begin(shared)
        self.row.sequence = shared.sequence
        self.row.generation = max(self.row.generation, shared.generation) + 1
        self.row.state = shared.state
        memcpy(shared, self.row, ROW_WORDS * sizeof(int64_t))
        row_end(shared)
        self.row = shared
        self.shared = shared
        self.slot = slot

    def __dealloc__(self):
        cdef int i
        for i in range(self.segment_count):     # no file changes here: another owner may have it by now
            segment_drop(&self.segments[i])
        sync_drop(self.sync)
        transactions_free(&self.transactions)
        guards_free(&self.guards)
        free(self.segments)
        lookup_free_ring(&self.lookup)
        lookup_free_places(&self.lookup)
        free(self.directory)

    # -- the row -------------------------------------------------------------------------------------------

    cdef void row_begin(self) noexcept nogil:
        row_begin(self.row)

    cdef void row_end(self) noexcept nogil:
        row_end(self.row)

    cdef void move_stable(self) noexcept nogil:
        # LSO is HW, or the start of the oldest transaction that is open, or whose marker HW has not passed yet.
        cdef Transaction* oldest = NULL
        if self.transactions.head < self.transactions.end:
            oldest = transactions_oldest(&self.transactions, self.row.high_watermark)
        if oldest == NULL or oldest.stable_offset >= self.row.high_watermark:
            self.row.last_stable_offset = self.row.high_watermark
            self.row.stable_segment = self.row.high_watermark_segment
            self.row.stable_position = self.row.high_watermark_position
        else:
            self.row.last_stable_offset = oldest.stable_offset
            self.row.stable_segment = oldest.segment
            self.row.stable_position = oldest.position

    cdef void tell(self, int why) noexcept nogil:
        if self.advanced != NULL:
            self.advanced(self.advanced_context, <void*>self, why)
        if self.notify_log:
            with gil:
                call_log(self)

    cdef int refused(self, int failure, const char* doing) noexcept nogil:
        # A broken disk takes the directory offline, through Python. A shortage (a full disk, no descriptor, no memory)
        # costs this request, and a line in the log now and then.
        with gil:
            if is_fatal(failure):
                fail_log(self, -failure, doing)
            else:
                call_short(self, -failure, doing)
        return KAFKA_STORAGE_ERROR

    # -- files ---------------------------------------------------------------------------------------------

    cdef Segment* active(self) noexcept nogil:
        return &self.segments[self.segment_count - 1]

    cdef int open_for_append(self, Segment* segment) noexcept nogil:
        if not lookup_make_ring(&self.lookup):
            return -ENOMEM
        return segment_open_for_append(segment, self.directory, self.index_size_max)

    # -- append --------------------------------------------------------------------------------------------

    cdef bint must_roll(self, Segment* segment, int64_t size, int64_t max_timestamp, int64_t last_offset,
                        int64_t now_ms) noexcept nogil:
        # Kafka's LogSegment.shouldRoll.
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

    cdef int append(self, uint8_t* records, size_t size, int64_t now_ms, AppendInfo* info) noexcept nogil:
        cdef BatchInfo batch
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
            code = self.admit(records, now_ms, False, info)     # before the work, which would be done twice
            if code != 0:
                return code
        batch.bad_record = -1
        batch.message = NULL
        if size <= LARGE_BATCH:
            code = validate(records, size, &self.rules, now_ms, &batch)
        else:
            code = check_outline(records, size, &self.rules, &batch)
            if code == 0:
                code = NEED_PYTHON                  # a thread looks at the rest
        if code != 0:
            self.wants = 2
            info.bad_record = batch.bad_record
            info.message = batch.message
            return code
        return self.append_checked(records, size, CLIENT, self.row.leader_epoch, now_ms, info)

    cdef int admit(self, const uint8_t* records, int64_t now_ms, bint last, AppendInfo* info) noexcept nogil:
        # Whether the coordinator knows of the transaction that this batch belongs to. A retry is answered without it.
        cdef ProducerBatch duplicate
        cdef int64_t producer_id = get_i64(records + PRODUCER_ID_AT)
        cdef int16_t epoch = get_i16(records + PRODUCER_EPOCH_AT)
        cdef int32_t base_sequence = get_i32(records + BASE_SEQUENCE_AT)
        cdef int code
        if not last and (producer_id < 0 or base_sequence < 0 or producer_check(
                self.producer_map, producer_id, epoch, base_sequence, get_i32(records + LAST_OFFSET_DELTA_AT), True, True,
                &duplicate) == -1):
            return 0                                    # what checks the batch will see it
        code = guards_admit(&self.guards, self.producer_map, info.admission, producer_id, epoch, base_sequence, now_ms, last,
                            &info.guard)
        if code == INVALID_REQUEST:
            info.message = b"Transactions are not supported"
        elif code == INVALID_TXN_STATE:
            info.message = b"the record is not part of an ongoing transaction"
        elif code > 0:
            info.message = refusal_of_producer(code)
        return code

    cdef int append_checked(self, uint8_t* records, size_t size, int origin, int32_t epoch, int64_t now_ms,
                            AppendInfo* info) noexcept nogil:
        # One valid v2 batch. Everything that can refuse comes before the write, everything after it cannot fail.
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
        cdef int64_t last_offset, transaction, latest, latest_offset, aborts_before = -1
        cdef int32_t coordinator_epoch = -1
        cdef int code, failure, marker = -1, why
        cdef bint index_it

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
                self.wants = 3
                return NEED_PYTHON
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
            self.wants = 1
            return NEED_PYTHON
        if segment.file == NULL or not segment.times.writable:
            failure = self.open_for_append(segment)
            if failure != 0:
                info.message = refusal_of(failure)
                return self.refused(failure, b"opening the active segment")
            if self.must_roll(segment, size, max_timestamp, last_offset, now_ms):
                self.wants = 1
                return NEED_PYTHON
        segment.touched = True
        index_it = segment.bytes_since_index > self.index_interval_bytes
        latest = segment.max_timestamp
        latest_offset = segment.max_timestamp_offset
        if max_timestamp > latest:
            latest = max_timestamp
            latest_offset = last_offset
        if index_it and not (index_has_room(&segment.offsets) and index_has_room(&segment.times)):
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
                failure = -5                # EIO: what stands beyond the end is not known any more
            if aborts_before >= 0 and aborted_undo(self.directory, segment.base_offset, aborts_before) != 0:
                failure = -5
            info.message = refusal_of(failure)
            return self.refused(failure, b"appending")

        log_file_written(segment.file, segment.size, now_ms)
        segment.max_timestamp = latest
        segment.max_timestamp_offset = latest_offset
        if segment.size == 0:
            segment.first_timestamp = max_timestamp
        if index_it:
            offset_index_append(&segment.offsets, <int32_t>(last_offset - segment.base_offset), <int32_t>segment.size)
            if segment.times.entries == 0 or latest > time_entry_timestamp(&segment.times, segment.times.entries - 1):
                if latest > -1:
                    time_index_append(&segment.times, latest, <int32_t>(latest_offset - segment.base_offset))
            segment.bytes_since_index = 0
        segment.bytes_since_index += size
        if base_offset != self.row.log_end_offset:
            self.lookup.recent_count = 0           # a hole: what is between two entries of the ring is no longer one batch
        lookup_remember(&self.lookup, base_offset, segment.size)
        segment.size += size
        if segment.size >= self.filling_at:
            with gil:
                call_filling(self, now_ms)

        if producer_id >= 0:
            if marker >= 0:
                transaction = producer_end(self.producer_map, producer_id, producer_epoch, coordinator_epoch, max_timestamp)
                if transaction >= 0:
                    transactions_end(&self.transactions, transaction, last_offset)
                guards_appended(&self.guards, producer_id, producer_epoch, True)
            elif not attributes & CONTROL:
                producer_record(self.producer_map, producer_id, producer_epoch, base_sequence, base_offset, last_offset,
                                max_timestamp, attributes & TRANSACTIONAL != 0)
                if attributes & TRANSACTIONAL:
                    guards_appended(&self.guards, producer_id, producer_epoch, False)
                    if producer_find(self.producer_map, producer_id).transaction_start == base_offset:
                        transactions_begin(&self.transactions, base_offset, segment.base_offset, segment.size - size)

        why = ADVANCED_END
        self.row_begin()
        self.row.log_end_offset = last_offset + 1
        self.row.end_segment = segment.base_offset
        self.row.end_position = segment.size
        if aborts_before >= 0:
            self.row.aborted_end = last_offset + 1
        if self.follows_end and self.row.log_end_offset - self.row.flushed_offset < self.flush_interval:
            self.row.high_watermark = self.row.log_end_offset
            self.row.high_watermark_segment = segment.base_offset
            self.row.high_watermark_position = segment.size
            self.move_stable()
            why |= ADVANCED_HIGH_WATERMARK
        self.row_end()

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
        # The index entry of the transaction that an abort marker at `last_offset` will end. One without records has none.
        cdef Producer* producer = producer_find(self.producer_map, producer_id)
        cdef int64_t first
        if producer == NULL or producer.transaction_start < 0:
            return 0
        first = producer.transaction_start
        segment.no_aborts = False
        return aborted_append(self.directory, segment.base_offset, producer_id, first, last_offset,
                              transactions_stable_after(&self.transactions, first, last_offset), before)

    # -- read ----------------------------------------------------------------------------------------------

    cdef int locate(self, Segment* segment, int64_t target, int64_t limit, int64_t* position,
                    int64_t* batch_size) noexcept nogil:
        # The first batch that ends at or after `target` and begins below `limit`. 1, 0 when there is none, -errno, COLD.
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
        if not self.open:
            return self.closed_code
        if leader_epoch >= 0 and leader_epoch != row.leader_epoch:
            return FENCED_LEADER_EPOCH if leader_epoch < row.leader_epoch else UNKNOWN_LEADER_EPOCH
        if offset < row.log_start_offset or offset > row.log_end_offset:
            return OFFSET_OUT_OF_RANGE
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
                if size < batch_size:       # not one whole batch: all of it, or nothing (KIP-74)
                    if not at_least_one:
                        return 0
                    size = batch_size
                # As Kafka's DelayedFetch: what is read of a closed segment is answered at once, whatever min_bytes says.
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

    cdef int look(self) noexcept nogil:
        return 0

    cdef bint has_names(self) noexcept nogil:
        return True                         # an owner's own exchange is over before it reads

    # -- what Python asks for ------------------------------------------------------------------------------

    @property
    def topic_id(self) -> bytes:
        return PyBytes_FromStringAndSize(<char*>self.row.topic_id, 16)

    @property
    def end_offset(self) -> int:
        return self.row.log_end_offset

    @property
    def high_watermark(self) -> int:
        return self.row.high_watermark

    @property
    def last_stable_offset(self) -> int:
        return self.row.last_stable_offset

    @property
    def log_start_offset(self) -> int:
        return self.row.log_start_offset

    @property
    def open_transactions(self) -> int:
        """For how many there is room in the list of those that hold LSO. For tests."""
        return self.transactions.capacity

    @property
    def aborted_end(self) -> int:
        """The offset behind the newest abort marker, 0 when nothing was ever aborted."""
        return self.row.aborted_end

    @property
    def flushed_offset(self) -> int:
        return self.row.flushed_offset

    @property
    def leader_epoch(self) -> int:
        return self.row.leader_epoch

    @property
    def generation(self) -> int:
        return self.row.generation

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        cdef int64_t total = 0
        cdef int i
        for i in range(self.segment_count):
            total += self.segments[i].size
        return total

    @property
    def count(self) -> int:
        return self.segment_count

    def __repr__(self) -> str:
        return f"<Partition {self.topic}-{self.index} {self.row.log_start_offset}..{self.row.log_end_offset}>"

    def configure(self, *, int32_t max_message_bytes, int compression_type, bint log_append_time, int64_t before_max_ms,
                  int64_t after_max_ms, bint compacted, int64_t segment_bytes, int64_t segment_age_max_ms,
                  int32_t index_interval_bytes, int64_t index_size_max, int64_t flush_interval) -> None:
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

    def set_directory(self, str directory) -> None:
        """The directory was renamed; open files stay good."""
        cdef char* copy = strdup(<bytes>os.fsencode(directory))
        if copy == NULL:
            raise MemoryError()
        free(self.directory)
        self.directory = copy

    def set_topic_id(self, bytes topic_id) -> None:
        if len(topic_id) != 16:
            raise ValueError("a topic id is 16 bytes")
        self.row_begin()
        memcpy(self.row.topic_id, PyBytes_AS_STRING(topic_id), 16)
        self.row_end()

    def lead(self, int32_t epoch) -> None:
        """Appends and reads are served from now on, under this leader epoch."""
        self.row_begin()
        self.row.leader_epoch = epoch
        self.row_end()
        self.flush_by_log = True                        # and notes where the epoch begins
        self.open = self.failure == 0
        if self.follows_end:
            self.settle_high_watermark()

    def close_to_clients(self, int code=NOT_LEADER_OR_FOLLOWER, int failure=0) -> None:
        """Answers `code` from now on, and whoever waits is told that the partition is gone."""
        self.open = False
        self.closed_code = code
        guards_free(&self.guards)                       # who led meanwhile may have seen the transaction end
        if failure:
            self.failure = failure
            if self.sync is not NULL:
                sync_give_up(self.sync)
        self.row_begin()
        self.row.leader_epoch = -1
        self.row_end()
        self.tell(PARTITION_GONE)

    # -- segments ------------------------------------------------------------------------------------------

    def add_segment(self, int64_t base_offset, int64_t size, int64_t created_ms, max_timestamp=None) -> None:
        """A segment whose files exist, after the last. `max_timestamp`: (timestamp, offset) where it is known."""
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

    def segment_rows(self) -> list:
        """(base_offset, size, created_ms) of each, oldest first."""
        cdef int i
        return [(self.segments[i].base_offset, self.segments[i].size, self.segments[i].created_ms)
                for i in range(self.segment_count)]

    @property
    def first_base_offset(self) -> int:
        return self.segments[0].base_offset if self.segment_count else self.row.log_end_offset

    @property
    def active_base_offset(self) -> int:
        return self.active().base_offset if self.segment_count else self.row.log_end_offset

    @property
    def active_size(self) -> int:
        return self.active().size if self.segment_count else 0

    def segment_max_timestamp(self, int at) -> tuple:
        """(timestamp, offset) of the largest record timestamp in segment number `at`; -1 where there is none. OSError when
        the time index cannot be opened."""
        cdef Segment* segment
        cdef int failure
        if not 0 <= at < self.segment_count:
            raise IndexError(at)
        segment = &self.segments[at]
        failure = segment_load_max_timestamp(segment, self.directory)
        if failure != 0:
            self.raise_refused(failure, b"opening a time index")
        return (segment.max_timestamp, segment.max_timestamp_offset)

    def roll(self, int64_t base_offset, int64_t now_ms, NextSegment ready=None) -> None:
        """The files of a new active segment exist (or are those of `ready`, which have their names); the old one's indexes
        are cut to their size."""
        cdef Segment* old = self.active()
        cdef LogFile* file = old.file
        cdef int failure
        if ready is not None and not lookup_make_ring(&self.lookup):
            self.raise_refused(-ENOMEM, b"opening a segment")
        old.file = NULL                                 # readers and the flusher still want it
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
        """The active segment is empty, and `written` has put its .log in that one's place. Readers open it anew."""
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
        """Nothing but the active segment's own batches stays in its .log. Raises OSError."""
        cdef Segment* segment = self.active()
        cdef int failure = 0 if segment.file == NULL else cut(segment.file.fd, segment.size)
        if failure != 0:
            raise OSError(-failure, os.strerror(-failure))

    def index_entries(self) -> tuple:
        """How many there are in the two indexes of the active segment."""
        return (self.active().offsets.entries, self.active().times.entries)

    def drop_segments(self, int first, int end) -> list:
        """Forgets segments number `first` up to `end`; their base offsets. A reader that has one open may finish."""
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
        """Closes files and indexes of segments that were neither read nor appended to since the last call."""
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
        """Cuts the indexes and closes everything; appends and reads open again what they need."""
        cdef int i, failure, first = 0
        for i in range(self.segment_count):
            self.trim(&self.segments[i])
            failure = segment_close(&self.segments[i], self.directory)
            first = first if first != 0 else failure
        self.lookup.recent_count = 0
        if first != 0:
            self.raise_refused(first, b"closing")

    cdef int raise_refused(self, int failure, const char* doing) except -1:
        self.refused(failure, doing)
        raise OSError(-failure, f"{doing.decode()}: {os.strerror(-failure)}", os.fsdecode(<bytes>self.directory))

    # -- offsets -------------------------------------------------------------------------------------------

    def find_end(self) -> int:
        """Walks the active segment from its last index entry; the offset after its last batch becomes LEO. Bytes
        beyond the last whole batch make it raise ValueError."""
        cdef Segment* segment = self.active()
        cdef int64_t next_offset = segment.base_offset, bad = 0
        cdef int failure
        if segment.size:
            failure = segment_open(segment, self.directory, True)
            if failure != 0:
                self.raise_refused(failure, b"opening the active segment")
            next_offset = segment_end_offset(segment, self.directory, &bad)
            if next_offset < 0:
                raise ValueError(f"no batch at position {bad} of segment {segment.base_offset}")
            # idle until used
            self.release_file(segment)
        self.set_end(next_offset)
        return next_offset

    cdef int release_file(self, Segment* segment) except -1:
        if segment.file != NULL and not segment.times.writable:
            segment_close(segment, self.directory)
        return 0

    def set_end(self, int64_t end_offset) -> None:
        self.row_begin()
        self.row.log_end_offset = end_offset
        self.row.end_segment = self.active().base_offset
        self.row.end_position = self.active().size
        self.row_end()

    def set_flushed(self, int64_t offset) -> None:
        """What the disk is known to hold; of a log that was just loaded, all of it up to the recovery point."""
        self.row_begin()
        self.row.flushed_offset = offset
        self.row_end()

    def set_log_start(self, int64_t offset) -> None:
        """Never back."""
        cdef int64_t segment, position, before = self.row.last_stable_offset
        if offset > self.row.log_start_offset:
            if self.transactions.head < self.transactions.end:
                segment, position = self.boundary_of(offset)
                transactions_raise(&self.transactions, offset, segment, position)
            self.row_begin()
            self.row.log_start_offset = offset
            self.move_stable()
            self.row_end()
            if self.row.last_stable_offset > before:
                self.tell(ADVANCED_HIGH_WATERMARK)

    def position_of(self, int64_t offset) -> tuple:
        """(segment base, position) of the batch that holds `offset`, or of the log's end."""
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
        # As position_of, for a mark: where a segment is corrupt its end will do, reads there fail by themselves.
        cdef int at
        try:
            return self.position_of(offset)
        except ValueError:
            at = segment_floor(self.segments, self.segment_count, offset)
            return (self.segments[at].base_offset, self.segments[at].size)

    def batch_by_timestamp(self, int at, int64_t timestamp, int64_t from_offset, int64_t after=-1):
        """(position, size) in segment number `at` of the first batch that ends at or after `from_offset` and may hold a
        record at or after `timestamp`; beyond the one at position `after` if that is given. None when there is none."""
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
        if after < 0 and segment_open_times(segment, self.directory) == 0 and segment.times.entries:
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
            self.raise_refused(<int>n if n < 0 else -5, b"reading")
        return data

    def advance_high_watermark(self, int64_t offset) -> bool:
        """Moves HW forward, at most to LEO; whether it moved. For a replication or quorum layer, and for loading."""
        cdef int64_t segment, position
        if offset > self.row.log_end_offset:
            offset = self.row.log_end_offset
        if offset <= self.row.high_watermark and self.row.high_watermark != 0:
            return False
        segment, position = self.boundary_of(offset)
        return self.put_high_watermark(offset, segment, position)

    cdef bint put_high_watermark(self, int64_t offset, int64_t segment, int64_t position) noexcept:
        cdef bint moved = offset > self.row.high_watermark
        self.row_begin()
        self.row.high_watermark = offset
        self.row.high_watermark_segment = segment
        self.row.high_watermark_position = position
        self.move_stable()
        self.row_end()
        if moved:
            self.tell(ADVANCED_HIGH_WATERMARK)
        return moved

    def settle_high_watermark(self) -> None:
        """HW moves to LEO as far as the flush policy lets it."""
        if self.row.log_end_offset - self.row.flushed_offset < self.flush_interval:
            if self.row.log_end_offset >= self.row.high_watermark:
                self.put_high_watermark(self.row.log_end_offset, self.row.end_segment, self.row.end_position)
        elif self.row.flushed_offset > self.row.high_watermark:
            self.advance_high_watermark(self.row.flushed_offset)

    def refresh_stable(self) -> None:
        """Finds the transactions that hold LSO again, and the end of the aborted ones, after loading or truncation.
        OSError when the disk fails."""
        cdef int64_t before = self.row.last_stable_offset
        cdef int64_t end = aborted_end(
            self.directory, self.segments, self.segment_count, self.row.log_end_offset)
        cdef Transaction* transaction
        cdef int i
        if end < 0:
            self.raise_refused(<int>end, b"reading the index of aborted transactions")
        if transactions_rebuild(&self.transactions, self.producer_map, self.row.log_end_offset) != 0:
            raise MemoryError()
        for i in range(self.transactions.head, self.transactions.end):
            transaction = &self.transactions.places[i]
            if transaction.position < 0 or transaction.first_offset < self.row.log_start_offset:
                transaction.stable_offset = max(transaction.stable_offset, self.row.log_start_offset)
                transaction.segment, transaction.position = self.boundary_of(transaction.stable_offset)
        self.row_begin()
        self.row.aborted_end = end
        self.move_stable()
        self.row_end()
        if self.row.last_stable_offset > before:
            self.tell(ADVANCED_HIGH_WATERMARK)

    def truncated(self, int64_t end_offset, int64_t position) -> None:
        """The active segment was cut at `position` (its later ones are dropped already): watermarks follow."""
        cdef Segment* segment = self.active()
        segment.size = position
        segment.bytes_since_index = 0
        segment.max_timestamp = UNKNOWN
        segment.first_timestamp = UNKNOWN
        lookup_forget(&self.lookup)
        self.row_begin()
        self.row.generation += 1
        self.row.log_end_offset = end_offset
        self.row.end_segment = segment.base_offset
        self.row.end_position = position
        if self.row.log_start_offset > end_offset:
            self.row.log_start_offset = end_offset
        if self.row.flushed_offset > end_offset:
            self.row.flushed_offset = end_offset
        if self.row.high_watermark >= end_offset:
            self.row.high_watermark = end_offset
            self.row.high_watermark_segment = segment.base_offset
            self.row.high_watermark_position = position
        if self.row.last_stable_offset >= end_offset:
            self.row.last_stable_offset = end_offset
            self.row.stable_segment = segment.base_offset
            self.row.stable_position = position
        self.row_end()

    # -- flush ---------------------------------------------------------------------------------------------

    def files_to_flush(self) -> tuple:
        """(end offset, generation, [(base offset, FileRef)]): the segments with bytes at or beyond the flushed offset."""
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
        """Everything below `end_offset` is on the disk, unless the log was cut since `generation`. Whether the flush policy
        asks for another round at once."""
        self.flush_asked = False
        if generation == self.row.generation - self.exchanges and end_offset > self.row.flushed_offset:
            self.set_flushed(end_offset)
        if self.follows_end:
            self.settle_high_watermark()
        if self.row.log_end_offset - self.row.flushed_offset >= self.flush_interval:
            self.flush_asked = True
        return self.flush_asked

    def commit_with(self, GroupCommit group) -> None:
        """From now on this group, whose `publish` is called on our loop, flushes what needs no more than one fdatasync."""
        self.group_commit = group

    def flush(self) -> bool:
        """Whether the group commit sees to a flush of all that is there, or of what will be there then. False: the log
        must do it, and say `flushed` in the end, whatever comes of it."""
        if self.sync is not NULL and self.sync.state != SYNC_IDLE:
            self.flush_again = True
            return True
        self.flush_asked = True
        return self.commit()

    cdef void trim(self, Segment* segment) noexcept nogil:
        # Nothing more is appended: the blocks that the group commit took for it go back.
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
        # The plain case: all that is not flushed stands in the open active segment, and nothing beside it is to be synced.
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
        if self.failure:
            return
        if sync.failure:
            fail_log(self, sync.failure, b"fdatasync")
            return
        for i in range(self.segment_count):             # rolled meanwhile: what came later stands in another file
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

    # -- append and read, for Python -----------------------------------------------------------------------

    def try_append(self, records not None, int64_t now_ms, bint checked=False, int written=0, int admission=0,
                   uint32_t guard=0) -> tuple:
        """`append` on a writable buffer: (code, base_offset, end_offset, append_time_ms, log_start_offset, bad_record,
        message). `checked`: the records are the slow path's, valid as they stand. `admission`, `guard`: of AppendInfo;
        with NEED_TRANSACTION `self.guard` is what to ask with.

        `written`: NOT_IN_PLACE asks for all that can refuse them, and then wants to roll. IN_PLACE finds them in the active
        segment's file, where nothing else is."""
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
        """One batch of the broker's own making: (code, base_offset, message). Served also while not open to clients.
        `admission`: a group's commit in a transaction needs what a client's batch needs."""
        cdef Py_buffer view
        cdef AppendInfo info
        cdef int code
        PyObject_GetBuffer(batch, &view, PyBUF_WRITABLE)
        try:
            if view.len < HEADER_SIZE or get_i32(<uint8_t*>view.buf + LENGTH_AT) + LENGTH_OVERHEAD != view.len:
                raise ValueError("append takes exactly one batch")
            if self.failure:
                return (KAFKA_STORAGE_ERROR, -1, os.strerror(self.failure))
            if epoch != self.row.leader_epoch:
                self.flush_by_log = True                # the log is about to note where this epoch begins
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
        """What a transactional batch needs before it is appended: 0, nothing; NEED_TRANSACTION, and `self.guard` is what
        to come with; else Kafka's error code."""
        cdef uint32_t guard = 0
        cdef int code
        if not self.open:
            return self.closed_code
        code = guards_admit(&self.guards, self.producer_map, admission, producer_id, epoch, base_sequence, now_ms, False,
                            &guard)
        self.guard = guard
        return code

    def expire_guards(self, int64_t before_ms) -> None:
        """Forgets the guards that nobody came back with since."""
        guards_expire(&self.guards, before_ms)

    def append_marker(self, int64_t producer_id, int16_t producer_epoch, int32_t coordinator_epoch, bint commit,
                      int version, int64_t now_ms) -> tuple:
        """Ends a transaction, as a coordinator of this epoch and transaction.version asks: (code, offset, message)."""
        cdef uint8_t batch[MARKER_SIZE]
        cdef AppendInfo info
        cdef int code
        if not self.open:
            return (self.closed_code, -1, None)
        if producer_id < 0 or producer_epoch == -1 or version == -1:        # Kafka's code for it
            return (UNKNOWN_SERVER_ERROR, -1, "a marker has a producer id, its epoch and a transaction.version")
        marker_write(batch, producer_id, producer_epoch, coordinator_epoch, commit, now_ms)
        info.base_offset = -1
        info.message = NULL
        info.transaction_version = version
        code = self.append_checked(batch, MARKER_SIZE, COORDINATOR, self.row.leader_epoch, now_ms, &info)
        return (code, info.base_offset, None if info.message == NULL else info.message.decode())

    def aborted_transactions(self, int64_t start, int64_t upper) -> list:
        """(producer id, first offset, offset of the marker, last stable offset then) of the aborted transactions with a
        record in [start, upper). OSError when the disk fails."""
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
        """`read`, and the bytes themselves: (code, high_watermark, last_stable_offset, log_start_offset, bytes)."""
        cdef ReadInfo info
        cdef bytes data = b""
        cdef int code
        cdef int64_t n
        cdef bint was_open = self.open
        if isolation == 2 and not self.failure:
            self.open = True                # the broker reads its own logs before and beside leading them
        code = self.read(offset, max_bytes, at_least_one, isolation, leader_epoch, &info)
        if isolation == 2 and not self.failure:
            self.open = was_open
        if code == 0 and info.size:
            try:
                data = PyBytes_FromStringAndSize(NULL, info.size)
                n = read_at(info.file.fd, <uint8_t*>PyBytes_AS_STRING(data), info.size, info.position)
            finally:
                log_file_release(info.file)
            if n != info.size:
                return (self.refused(<int>n if n < 0 else -5, b"reading"), info.high_watermark, info.last_stable_offset,
                        info.log_start_offset, b"")
        return (code, info.high_watermark, info.last_stable_offset, info.log_start_offset, data)

    def read_region(self, int64_t offset, int64_t max_bytes, bint at_least_one=True, int isolation=0) -> tuple:
        """(code, segment position, size): what `read` would send. For tests."""
        cdef ReadInfo info
        cdef int code = self.read(offset, max_bytes, at_least_one, isolation, -1, &info)
        if info.file != NULL:
            log_file_release(info.file)
        return (code, info.position, info.size)


cdef void put_local_start(Partition self) noexcept nogil:
    # Before the files of dropped segments go: readers do not look for them any more.
    if self.segment_count and self.row.local_log_start_offset != self.segments[0].base_offset:
        row_begin(self.row)
        self.row.local_log_start_offset = self.segments[0].base_offset
        row_end(self.row)


cdef void call_log(Partition partition) noexcept:
    try:
        partition.log.on_advance()
    except Exception as e:
        unexpected(partition, e)


cdef void call_filling(Partition partition, int64_t now_ms) noexcept:
    partition.filling_at = INT64_MAX
    try:
        partition.log.on_filling(now_ms)
    except Exception as e:
        unexpected(partition, e)


cdef void fail_log(Partition partition, int error, const char* doing) noexcept:
    partition.failure = error
    partition.open = False
    partition.closed_code = KAFKA_STORAGE_ERROR
    try:
        if partition.log is not None:
            partition.log.on_failure(OSError(error, f"{doing.decode()}: {os.strerror(error)}"))
    except Exception as e:
        unexpected(partition, e)


cdef void call_short(Partition partition, int error, const char* doing) noexcept:
    try:
        if partition.log is not None:
            partition.log.on_shortage(OSError(error, f"{doing.decode()}: {os.strerror(error)}"))
    except Exception as e:
        unexpected(partition, e)


cdef void sync_ended(void* partition, Sync* sync) noexcept:
    cdef Partition held = <Partition>partition      # what is told may let it go
    held.committed(sync)


cdef void call_flush(Partition partition) noexcept:
    try:
        partition.log.request_flush()
    except Exception as e:
        unexpected(partition, e)


cdef object on_fatal = None


def set_on_fatal(callback):
    """Who ends this process when a log's callback finds that we are wrong (AssertionError). None: abort."""
    global on_fatal
    on_fatal = callback


cdef void unexpected(Partition partition, object error) noexcept:
    import logging

    if isinstance(error, AssertionError):
        if on_fatal is None:
            logging.getLogger("kafkad.log").critical("%s-%d is broken", partition.topic, partition.index, exc_info=error)
            os.abort()
        on_fatal(error)
        return
    logging.getLogger("kafkad.log").error("%s-%d", partition.topic, partition.index, exc_info=error)

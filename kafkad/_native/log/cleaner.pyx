"""The two passes of the log cleaner over the batches of a segment, without the GIL and without an object per record.

    Mapping.feed(chunk)    puts the keys of the dirty part into an OffsetMap
    Cleaning.feed(chunk)   copies the batches without the records for which the map has a later one

Both take whole batches from a chunk and give back the position of the first that they did not take: the chunk ends in
it, or it is compressed. Then the caller decompresses that one batch and calls `feed_plain`; a batch of which all records
stay is copied as it is, so only one that loses some is compressed again (`put_compressed`). In the second pass only one of
which some records stay and some go is decompressed, as far as the map followed the first. Of large batches that stay or go
as a whole, `skip` needs only the headers, which the first pass noted in the map, and the kernel copies those that stay from
file to file. Neither takes a message of magic 0 or 1: the caller makes a batch of it (legacy_cleaning).

The first pass checks the CRC of each batch whose keys it takes. A batch whose fate the map knows is not checked again. All
others are checked in the second pass, because damaged bytes must not get a new CRC.

What stays follows Kafka's Cleaner and MemoryRecords.filterTo:
- Records of an aborted transaction are removed. A marker is removed if the pass saw no batch of its transaction, but
  not before `delete.retention.ms` have passed since the first pass that found it so.
- A record stays if no later record has its key. A tombstone is removed `delete.retention.ms` after the first pass that
  kept it.
- The end of that time, the delete horizon, is stored in the batch: attribute bit 6 is set, and the base timestamp is
  the horizon.
- A batch keeps its offsets and its sequence. A batch with the last sequence of an active producer, or at the end of the
  pass, stays even without records.

Beware: timestamps may be any 64-bit value, so they are added and subtracted unsigned."""

import os

from libc.stdint cimport INT32_MAX, int16_t, int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcpy, memset

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.exc cimport PyErr_SetFromErrnoWithFilename
from posix.unistd cimport write

from kafkad._native.log.cleaned_transactions cimport CleanedTransactions
from kafkad._native.log.fileio cimport read_at
from kafkad._native.log.offset_map cimport ALL_STAY, UNKNOWN, Fate, Hashed, OffsetMap
from kafkad._native.wire.batch cimport (
    COMPRESSION_MASK, CONTROL, DELETE_HORIZON, HEADER_SIZE, LENGTH_OVERHEAD, RECORD_COMPLETE, TIMESTAMP_LOG_APPEND,
    TRANSACTIONAL, BatchInfo, RecordView, crc_matches, parse_header, record_read, record_varint,
)
from kafkad._native.wire.buffer cimport (
    WriteBuffer, buffer_free, buffer_init, reserve, write_i32, write_i64, write_raw,
)
from kafkad._native.wire.crc32c cimport crc32c
from kafkad._native.wire.malformed import Malformed
from kafkad._native.wire.primitives cimport get_i16, get_i32, put_i16, put_i32, put_i64, put_varint, put_varlong
from kafkad._native.wire.batch_layout cimport (
    ATTRIBUTES_AT, BASE_SEQUENCE_AT, BASE_TIMESTAMP_AT, CRC_AT, LAST_OFFSET_DELTA_AT, LEADER_EPOCH_AT, LENGTH_AT,
    MAGIC_AT, MAX_TIMESTAMP_AT, PRODUCER_EPOCH_AT, PRODUCER_ID_AT, RECORDS_COUNT_AT,
)

cdef extern from "<errno.h>" nogil:
    int errno
    enum: EINTR, EINVAL, ENOSYS

cdef extern from "<sys/sendfile.h>" nogil:
    ssize_t sendfile(int to, int source, int64_t* position, size_t size)

cdef enum:
    TOGETHER = 16                   # records whose slots are prefetched together, to hide memory latency
    SKIPPED_MIN = 8 << 10           # bytes of a batch: reading a smaller one costs no more than skipping it
    SKIPPED_MAX = 8 << 20           # bytes that one call skips: 1,024 reads, and the caller looks whether to stop
    COPIED_MAX = 1 << 20            # bytes after which a call copies no further batch from file to file
    ABORT_MARKER = 0
    COMMIT_MARKER = 1
    OTHER_CONTROL = 2
    NO_CONTROL_RECORD = 3

cdef enum Step:                     # the result of one batch
    TAKEN = 1
    COMPRESSED = 2                  # its records are needed: the caller must decompress it
    FULL = 3                        # the map is full
    REWRITE = 4                     # compressed, and it loses some records: `plain` has the rest
    WHOLE = 5                       # taken, and it stays as it is: the caller must copy its bytes to the output


cdef int malformed(int64_t base_offset, str trouble) except -1:
    raise Malformed(f"the batch at offset {base_offset} {trouble}")


cdef inline int next_batch(const uint8_t* data, size_t size, BatchInfo* info) except -1 nogil:
    """Return False if the bytes end before the batch does, or it is a message of magic 0 or 1."""
    cdef int32_t length
    if size < HEADER_SIZE:
        return False
    length = get_i32(data + LENGTH_AT)
    if data[MAGIC_AT] != 2:
        if data[MAGIC_AT] < 2:
            return False
        with gil:
            raise Malformed(f"a batch has magic {data[MAGIC_AT]}, and there is none above 2")
    if length < HEADER_SIZE - LENGTH_OVERHEAD or length > INT32_MAX - LENGTH_OVERHEAD:
        with gil:
            raise Malformed(f"a batch has the length {length}")
    if <size_t>length > size - LENGTH_OVERHEAD:
        return False
    parse_header(data, size, info)
    if info.records_count < 0 or info.last_offset_delta < 0:
        with gil:
            malformed(info.base_offset, f"has {info.records_count} records, last delta {info.last_offset_delta}")
    return True


cdef int write_all(int fd, const uint8_t* data, size_t size) except -1 nogil:
    cdef ssize_t written
    while size:
        written = write(fd, data, size)
        if written >= 0:
            data += written
            size -= <size_t>written
        elif errno != EINTR:
            with gil:
                PyErr_SetFromErrnoWithFilename(OSError, NULL)
    return 0


cdef int check_crc(const uint8_t* data, const BatchInfo* info) except -1 nogil:
    if not crc_matches(data, info):
        with gil:
            malformed(info.base_offset, "does not have the CRC of its bytes")
    return 0


cdef inline int control_kind(const uint8_t* data, const BatchInfo* info) except -1 nogil:
    """Return ABORT_MARKER, COMMIT_MARKER, OTHER_CONTROL, or NO_CONTROL_RECORD for a control batch without records."""
    cdef RecordView view
    cdef const uint8_t* next = NULL
    memset(&view, 0, sizeof(RecordView))                # silences a compiler warning
    if info.records_count == 0:
        return NO_CONTROL_RECORD
    if info.attributes & COMPRESSION_MASK:
        with gil:
            malformed(info.base_offset, "is a compressed control batch")
    if record_read(data + HEADER_SIZE, data + info.size, &view, &next) != RECORD_COMPLETE or view.key_size < 4:
        with gil:
            malformed(info.base_offset, "is a control batch whose record does not parse")
    if get_i16(view.key + 2) == 0:
        return ABORT_MARKER
    return COMMIT_MARKER if get_i16(view.key + 2) == 1 else OTHER_CONTROL


cdef inline int discardable(CleanedTransactions transactions, const uint8_t* data, const BatchInfo* info) except -1 nogil:
    """Return whether a batch was aborted, or is a marker without data left."""
    cdef int64_t last = info.base_offset + info.last_offset_delta
    cdef int kind
    if not info.attributes & CONTROL:
        return transactions.on_batch(info.producer_id, last, info.attributes & TRANSACTIONAL)
    kind = control_kind(data, info)
    if kind <= COMMIT_MARKER:
        return transactions.on_marker(info.producer_id, last, kind == COMMIT_MARKER)
    transactions.on_control(last)
    return kind == NO_CONTROL_RECORD


cdef class Mapping:
    """Fills `offsets` with the keys of records at `start_offset` and later."""

    cdef OffsetMap offsets
    cdef CleanedTransactions transactions
    cdef int64_t start_offset
    cdef int64_t segment            # base offset; -1: unknown
    cdef int64_t position           # in its file, of the first batch that was not taken
    cdef readonly bint full
    cdef readonly int64_t records

    def __init__(self, OffsetMap offsets not None, CleanedTransactions transactions not None, int64_t start_offset):
        self.offsets = offsets
        self.transactions = transactions
        self.start_offset = start_offset
        self.segment = -1

    def begin(self, int64_t segment):
        """Begin a segment: note, in the map, where its large batches are."""
        self.segment = segment
        self.position = 0

    def feed(self, const uint8_t[::1] data not None, size_t position=0):
        """Return the position of the first batch that was not taken. `full`: take no more. Raises Malformed."""
        cdef size_t size = data.shape[0]
        cdef const uint8_t* p
        cdef BatchInfo info
        cdef int step = TAKEN
        if position >= size or self.full:
            return position
        p = &data[0]
        with nogil:
            while step == TAKEN and next_batch(p + position, size - position, &info):
                step = self.take(p + position, &info)
                if step == TAKEN:
                    self.pass_by(p + position, &info)
                    position += <size_t>info.size
        self.full = step == FULL
        return position

    def feed_plain(self, const uint8_t[::1] data not None, size_t position, const uint8_t[::1] plain not None):
        """Take the compressed batch at `position`, whose records are `plain`. Return the position after it. Raises
        Malformed."""
        cdef BatchInfo info
        cdef uint8_t nothing = 0
        cdef const uint8_t* records = &plain[0] if plain.shape[0] else &nothing
        cdef int step
        if position >= <size_t>data.shape[0] or not next_batch(&data[position], data.shape[0] - position, &info):
            raise ValueError("no batch at this position")
        with nogil:
            step = self.put_records(records, records + plain.shape[0], &info)
        self.full = step == FULL
        if self.full:
            return position
        self.pass_by(&data[position], &info)
        return position + info.size

    cdef void pass_by(self, const uint8_t* data, const BatchInfo* info) noexcept nogil:
        if self.segment >= 0 and info.size >= SKIPPED_MIN and self.offsets.follows(
            info.base_offset, info.base_offset + info.last_offset_delta
        ):
            self.offsets.note_head(self.segment, self.position, data)
        self.position += info.size

    cdef int take(self, const uint8_t* data, const BatchInfo* info) except -1 nogil:
        cdef int gone
        if info.base_offset + info.last_offset_delta < self.start_offset and not info.attributes & TRANSACTIONAL:
            self.transactions.begin_aborted(info.base_offset + info.last_offset_delta)
            return TAKEN
        check_crc(data, info)
        gone = discardable(self.transactions, data, info)
        if gone or info.attributes & CONTROL or info.records_count == 0:
            self.read_to(info)
            return TAKEN
        if info.attributes & COMPRESSION_MASK:
            return COMPRESSED
        return self.put_records(data + HEADER_SIZE, data + info.size, info)

    cdef void read_to(self, const BatchInfo* info) noexcept nogil:
        cdef int64_t last = info.base_offset + info.last_offset_delta
        if last >= self.start_offset and last > self.offsets.latest_offset:
            self.offsets.latest_offset = last

    cdef int put_records(self, const uint8_t* p, const uint8_t* end, const BatchInfo* info) except -1 nogil:
        cdef Hashed hashed[TOGETHER]
        cdef int64_t offsets[TOGETHER]
        cdef RecordView view
        cdef const uint8_t* next = NULL
        cdef int64_t last = info.base_offset + info.last_offset_delta
        cdef int32_t left = info.records_count
        cdef bint is_ordinary = True
        cdef int count
        cdef int i
        memset(&view, 0, sizeof(RecordView))
        while left:
            count = 0
            while left and count < TOGETHER:
                if record_read(p, end, &view, &next) != RECORD_COMPLETE:
                    with gil:
                        malformed(info.base_offset, "has records that do not parse")
                p = next
                left -= 1
                self.records += 1
                offsets[count] = info.base_offset + view.offset_delta
                self.offsets.note_offset(offsets[count], info.base_offset, last)
                is_ordinary = is_ordinary and view.key_size >= 0 and view.value_size >= 0
                if view.key_size >= 0 and offsets[count] >= self.start_offset:
                    hashed[count] = self.offsets.hash_of(view.key, <size_t>view.key_size)
                    self.offsets.prefetch(hashed[count])
                    count += 1
            for i in range(count):
                if not self.offsets.put_hashed(hashed[i], offsets[i]):
                    return FULL
        if p != end:
            with gil:
                malformed(info.base_offset, "has bytes behind its records")
        self.offsets.note_batch(info.base_offset, is_ordinary)
        self.read_to(info)
        return TAKEN


cdef struct LastRecord:
    int64_t producer_id
    int64_t last_data_offset        # -1: the producer has only markers
    int16_t epoch


cdef class Cleaning:
    """Cleans segments into new segments. `upper_offset`: the pass ends before it. `now_ms` and `delete_retention_ms`
    set and check delete horizons. `index_interval_bytes`: the distance of index entries."""

    cdef OffsetMap offsets
    cdef CleanedTransactions transactions
    cdef int64_t upper_offset
    cdef int64_t now_ms
    cdef int64_t delete_retention_ms
    cdef int64_t index_interval
    # of the new segment
    cdef LastRecord* last_records   # by producer id
    cdef size_t last_count
    cdef int64_t base_offset
    cdef WriteBuffer out            # batches not written by `write_to` so far
    cdef WriteBuffer index
    cdef WriteBuffer time_index
    cdef size_t copied              # bytes that `skip` copied since the last `write_to`
    cdef int64_t since_entry        # bytes since the last index entry
    cdef int64_t timed              # timestamp of the last entry of the time index
    cdef int64_t max_offset_of_timestamp
    cdef readonly int64_t size
    cdef readonly int64_t max_timestamp
    cdef readonly int64_t last_offset
    # of the compressed batch that is being cleaned
    cdef WriteBuffer plain
    cdef BatchInfo header
    cdef bint pending
    # statistics
    cdef readonly int64_t bytes_read
    cdef readonly int64_t records_read
    cdef readonly int64_t records_kept
    cdef readonly int64_t keyless
    # for one batch: which of its records stay
    cdef uint8_t* kept
    cdef size_t kept_room

    def __cinit__(self):
        buffer_init(&self.out)
        buffer_init(&self.index)
        buffer_init(&self.time_index)
        buffer_init(&self.plain)

    def __init__(
        self, OffsetMap offsets not None, CleanedTransactions transactions not None, int64_t upper_offset, int64_t now_ms,
        int64_t delete_retention_ms, int64_t index_interval=4096,
    ):
        self.offsets = offsets
        self.transactions = transactions
        self.upper_offset = upper_offset
        self.now_ms = now_ms
        self.delete_retention_ms = delete_retention_ms
        self.index_interval = index_interval
        self.begin(0, {})

    def __dealloc__(self):
        buffer_free(&self.out)
        buffer_free(&self.index)
        buffer_free(&self.time_index)
        buffer_free(&self.plain)
        free(self.last_records)
        free(self.kept)

    def begin(self, int64_t base_offset, dict last_records not None):
        """Begin a new segment. `last_records`: producer id -> (last data offset or -1, epoch) of the active
        producers."""
        cdef size_t i = 0
        cdef LastRecord* table = <LastRecord*>calloc(len(last_records) or 1, sizeof(LastRecord))
        if table == NULL:
            raise MemoryError
        free(self.last_records)
        self.last_records = table
        self.last_count = len(last_records)
        for producer_id, (last_data_offset, epoch) in sorted(last_records.items()):
            table[i].producer_id = producer_id
            table[i].last_data_offset = last_data_offset
            table[i].epoch = epoch
            i += 1
        self.base_offset = base_offset
        self.out.size = self.index.size = self.time_index.size = self.plain.size = 0
        self.pending = False
        self.copied = 0
        self.size = self.since_entry = 0
        self.timed = self.max_timestamp = self.last_offset = -1
        self.max_offset_of_timestamp = base_offset

    # -- output

    def write_to(self, int fd):
        """Write the output since the last call to the file. Return the number of bytes; those that `skip` copied
        count twice, as they were read, too. Raises OSError."""
        cdef size_t done = self.out.size + 2 * self.copied
        with nogil:
            self.flush(fd)
        self.copied = 0
        return done

    cdef int flush(self, int fd) except -1 nogil:
        write_all(fd, self.out.data, self.out.size)
        self.out.size = 0
        return 0

    cdef int copy(self, int source, int64_t position, int64_t size, int fd) except -1 nogil:
        """Append `size` bytes of the file `source` to the file `fd`, where the output before them is already."""
        cdef int64_t done
        cdef int64_t piece
        self.copied += <size_t>size
        while size:
            done = sendfile(fd, source, &position, <size_t>size)
            if done < 0:
                done = -errno
            if done == -EINTR:
                continue
            if done == -EINVAL or done == -ENOSYS:     # not for these files
                piece = min(size, <int64_t>COPIED_MAX)
                self.plain.size = 0
                done = read_at(source, reserve(&self.plain, <size_t>piece), piece, position)
                if done > 0:
                    write_all(fd, self.plain.data, <size_t>done)
                    position += done
            if done <= 0:
                with gil:
                    if done < 0:
                        raise OSError(-done, os.strerror(-done))
                    raise Malformed(f"a segment ends at position {position}, within a batch")
            size -= done
        return 0

    def take(self):
        """Return the output since the last call, as bytes."""
        taken = PyBytes_FromStringAndSize(<const char*>self.out.data, self.out.size) if self.out.size else b""
        self.out.size = 0
        return taken

    def finish(self):
        """End the segment. Return the contents of its offset index and of its time index."""
        cdef bytes index
        cdef bytes time_index
        self.add_time_entry()
        index = PyBytes_FromStringAndSize(<const char*>self.index.data, self.index.size) if self.index.size else b""
        time_index = b""
        if self.time_index.size:
            time_index = PyBytes_FromStringAndSize(<const char*>self.time_index.data, self.time_index.size)
        return index, time_index

    # -- input

    def feed(self, const uint8_t[::1] data not None, size_t position=0):
        """Return the position of the first batch that was not taken. Raises Malformed."""
        cdef size_t size = data.shape[0]
        cdef const uint8_t* p
        cdef BatchInfo info
        cdef Fate fate
        cdef int step = TAKEN
        if self.pending:
            raise ValueError("the records of the batch before were not compressed yet")
        if position >= size:
            return position
        p = &data[0]
        with nogil:
            while step == TAKEN and next_batch(p + position, size - position, &info):
                fate = self.offsets.fate(info.base_offset, info.base_offset + info.last_offset_delta, info.records_count)
                if fate == UNKNOWN:
                    check_crc(p + position, &info)
                step = self.clean(p + position, &info, fate, NULL, 0)
                if step == WHOLE:
                    write_raw(&self.out, p + position, <size_t>info.size)
                    step = TAKEN
                if step == TAKEN:
                    position += <size_t>info.size
        return position

    def skip(self, int fd, int64_t position, int64_t end, int to, int64_t segment=-1):
        """Take the large batches at `position` of a file of `end` bytes, as long as all or none of their records stay,
        and read only their headers. Copy those that stay to the file `to`, behind the output so far. Return the
        position after them. `segment`: the map may have noted their headers. Raises OSError and Malformed."""
        cdef uint8_t read[HEADER_SIZE]
        cdef const uint8_t* head
        cdef int64_t stop = min(end, position + SKIPPED_MAX)
        cdef int64_t got = 0
        cdef int64_t kept = 0                          # bytes before `position` to be copied
        cdef BatchInfo info
        cdef Fate fate
        if self.pending:
            raise ValueError("the records of the batch before were not compressed yet")
        with nogil:
            while position < stop and self.copied + <size_t>kept < COPIED_MAX:
                head = self.offsets.head_at(segment, position) if segment >= 0 else NULL
                if head == NULL:
                    head = read
                    got = read_at(fd, read, HEADER_SIZE, position)
                    if got < HEADER_SIZE:
                        break
                if not next_batch(head, <size_t>(end - position), &info):
                    break
                if info.size < SKIPPED_MIN or info.attributes & CONTROL:
                    break
                fate = self.offsets.fate(info.base_offset, info.base_offset + info.last_offset_delta, info.records_count)
                if fate == UNKNOWN:
                    break
                if self.clean(head, &info, fate, NULL, 0) == WHOLE:
                    if kept == 0:
                        self.flush(to)
                    kept += info.size
                elif kept:
                    self.copy(fd, position - kept, kept, to)  # before an empty batch, which is in the output now
                    kept = 0
                position += info.size
            if kept:
                self.copy(fd, position - kept, kept, to)
        if got < 0:
            raise OSError(-got, os.strerror(-got))
        return position

    def feed_plain(self, const uint8_t[::1] data not None, size_t position, const uint8_t[::1] plain not None):
        """Take the compressed batch at `position`, whose records are `plain`. Return None, or the records that stay, to
        be compressed for `put_compressed`. Raises Malformed."""
        cdef uint8_t nothing = 0
        cdef const uint8_t* records = &plain[0] if plain.shape[0] else &nothing
        cdef size_t size = plain.shape[0]
        cdef BatchInfo info
        cdef int step
        if self.pending or position >= <size_t>data.shape[0]:
            raise ValueError("no batch is expected here")
        if not next_batch(&data[position], data.shape[0] - position, &info):
            raise ValueError("no batch at this position")
        with nogil:
            step = self.clean(&data[position], &info, UNKNOWN, records, size)
        if step == WHOLE:
            write_raw(&self.out, &data[position], <size_t>info.size)
        if step != REWRITE:
            return None
        self.pending = True
        return PyBytes_FromStringAndSize(<const char*>self.plain.data, self.plain.size)

    def put_compressed(self, const uint8_t[::1] data not None):
        """Take the records that `feed_plain` returned, compressed."""
        cdef size_t start = self.out.size
        if not self.pending:
            raise ValueError("no records wait to be compressed")
        if data.shape[0] > INT32_MAX - HEADER_SIZE:
            raise OverflowError(f"{data.shape[0]} bytes do not fit into a batch")
        reserve(&self.out, HEADER_SIZE)
        self.out.size += HEADER_SIZE
        if data.shape[0]:
            write_raw(&self.out, &data[0], data.shape[0])
        self.pending = False
        self.seal(start, &self.header)

    # -- one batch

    cdef int clean(
        self, const uint8_t* data, BatchInfo* info, Fate fate, const uint8_t* plain, size_t plain_size
    ) except -1 nogil:
        """`plain`: the records of a compressed batch, NULL: they were not asked for yet, and the fate may be known
        without them."""
        cdef int64_t last = info.base_offset + info.last_offset_delta
        cdef bint control = info.attributes & CONTROL
        cdef bint has_horizon = info.attributes & DELETE_HORIZON
        cdef bint discardable_now = discardable(self.transactions, data, info)
        cdef bint discard = discardable_now and (not control or (has_horizon and info.base_timestamp <= self.now_ms))
        cdef bint stays = last + 1 == self.upper_offset or self.is_last_record(info)
        cdef bint compressed = info.attributes & COMPRESSION_MASK
        cdef const uint8_t* p = NULL
        cdef const uint8_t* end = NULL
        cdef bint tombstones = False
        cdef int32_t count = 0
        cdef BatchInfo header
        cdef size_t start
        if not discard and info.records_count and fate == UNKNOWN:
            if compressed and plain == NULL:
                return COMPRESSED
            p = plain if compressed else data + HEADER_SIZE
            end = plain + plain_size if compressed else data + info.size
            if <int64_t>info.records_count > end - p:  # every record has more than one byte
                with gil:
                    malformed(info.base_offset, "has fewer records than it says")
            if control:
                count = self.keep_all(info.records_count)
            else:
                count = self.judge(p, end, info, has_horizon, &tombstones)
        elif not discard and fate == ALL_STAY:
            count = info.records_count
        self.bytes_read += info.size
        self.records_read += info.records_count
        if count == 0:
            if stays:
                self.put_empty(info)
            return TAKEN
        self.records_kept += count
        if has_horizon or not (tombstones or (control and discardable_now)):
            if count == info.records_count:
                self.note(info.size, last, info.max_timestamp)
                return WHOLE
            header = info[0]
            if not has_horizon:
                header.base_timestamp = -1             # the timestamp of the first record that stays
                header.attributes = header.attributes & ~DELETE_HORIZON
        else:
            header = info[0]
            header.base_timestamp = <int64_t>(<uint64_t>self.now_ms + <uint64_t>self.delete_retention_ms)
            header.attributes = header.attributes | DELETE_HORIZON
            has_horizon = True
        header.records_count = count
        if compressed:
            self.plain.size = 0
            self.rewrite(p, end, info, &header, has_horizon, &self.plain)
            self.header = header
            return REWRITE
        start = self.out.size
        reserve(&self.out, HEADER_SIZE)
        self.out.size += HEADER_SIZE
        self.rewrite(p, end, info, &header, has_horizon, &self.out)
        self.seal(start, &header)
        return TAKEN

    cdef bint is_last_record(self, const BatchInfo* info) noexcept nogil:
        """Return whether the batch has the last sequence, or the epoch, of an active producer."""
        cdef size_t low = 0
        cdef size_t high = self.last_count
        cdef size_t middle
        cdef LastRecord* last
        if info.producer_id < 0:
            return False
        while low < high:
            middle = low + (high - low) // 2
            if self.last_records[middle].producer_id < info.producer_id:
                low = middle + 1
            else:
                high = middle
        if low == self.last_count or self.last_records[low].producer_id != info.producer_id:
            return False
        last = &self.last_records[low]
        if last.last_data_offset >= 0:
            return info.base_offset + info.last_offset_delta == last.last_data_offset
        return info.attributes & CONTROL and info.producer_epoch == last.epoch

    cdef int make_room(self, int32_t count) except -1 nogil:
        cdef uint8_t* kept
        if <size_t>count > self.kept_room:
            kept = <uint8_t*>realloc(self.kept, <size_t>count)
            if kept == NULL:
                with gil:
                    raise MemoryError(f"no {count} bytes for the records of a batch")
            self.kept = kept
            self.kept_room = <size_t>count
        return 0

    cdef int32_t keep_all(self, int32_t count) except -1 nogil:
        cdef int32_t i
        self.make_room(count)
        for i in range(count):
            self.kept[i] = True
        return count

    cdef int32_t judge(
        self, const uint8_t* p, const uint8_t* end, const BatchInfo* info, bint has_horizon, bint* tombstones
    ) except -1 nogil:
        """Set `kept`. Return how many records stay, and whether there is a tombstone among them."""
        cdef bint keeps_tombstones = not has_horizon or self.now_ms < info.base_timestamp
        cdef Hashed hashed[TOGETHER]
        cdef RecordView views[TOGETHER]
        cdef const uint8_t* next = NULL
        cdef int64_t latest = self.offsets.latest_offset
        cdef int64_t offset
        cdef int32_t done = 0
        cdef int32_t kept = 0
        cdef int64_t last = info.base_offset + info.last_offset_delta
        cdef bint followed = self.offsets.follows(info.base_offset, last)
        cdef bint looked_up[TOGETHER]
        cdef int count
        cdef int i
        cdef bint stays
        self.make_room(info.records_count)
        while done < info.records_count:
            count = min(TOGETHER, info.records_count - done)
            for i in range(count):
                if record_read(p, end, &views[i], &next) != RECORD_COMPLETE:
                    with gil:
                        malformed(info.base_offset, "has records that do not parse")
                p = next
                offset = info.base_offset + views[i].offset_delta
                looked_up[i] = views[i].key_size >= 0 and not (followed and info.base_offset <= offset <= last)
                if looked_up[i]:
                    hashed[i] = self.offsets.hash_of(views[i].key, <size_t>views[i].key_size)
                    self.offsets.prefetch(hashed[i])
            for i in range(count):
                offset = info.base_offset + views[i].offset_delta
                if offset > latest:
                    stays = True
                elif views[i].key_size < 0:
                    self.keyless += 1
                    stays = False
                else:
                    stays = views[i].value_size >= 0 or keeps_tombstones
                    if stays and looked_up[i]:
                        stays = offset >= self.offsets.get_hashed(hashed[i])
                    elif stays:
                        stays = not self.offsets.is_outdated(offset)
                if stays and views[i].value_size < 0:
                    tombstones[0] = True
                self.kept[done + i] = stays
                kept += stays
            done += count
        if p != end:
            with gil:
                malformed(info.base_offset, "has bytes behind its records")
        return kept

    cdef int rewrite(
        self, const uint8_t* p, const uint8_t* end, const BatchInfo* info, BatchInfo* header, bint has_horizon,
        WriteBuffer* out,
    ) except -1 nogil:
        """Append the records that stay. Their timestamps are relative to `header.base_timestamp`, which is set here if
        there is no horizon. Sets the largest timestamp, too."""
        cdef bint appended = info.attributes & TIMESTAMP_LOG_APPEND
        cdef RecordView view
        cdef const uint8_t* next = NULL
        cdef const uint8_t* run = NULL                 # records that can be copied unchanged
        cdef const uint8_t* rest
        cdef uint8_t* to
        cdef int32_t i
        cdef int32_t length = 0
        cdef int64_t timestamp
        cdef int64_t delta
        cdef int64_t largest = -1
        cdef bint first = not has_horizon
        cdef uint8_t head[16]
        cdef int head_size
        memset(&view, 0, sizeof(RecordView))
        for i in range(info.records_count):
            if record_read(p, end, &view, &next) != RECORD_COMPLETE:
                with gil:
                    malformed(info.base_offset, "has records that do not parse")
            if not self.kept[i]:
                if run != NULL:
                    write_raw(out, run, <size_t>(p - run))
                    run = NULL
                p = next
                continue
            if appended:
                timestamp = info.max_timestamp
            else:
                timestamp = <int64_t>(<uint64_t>info.base_timestamp + <uint64_t>view.timestamp_delta)
            if first:
                header.base_timestamp = timestamp
                first = False
            if timestamp > largest:
                largest = timestamp
            delta = <int64_t>(<uint64_t>timestamp - <uint64_t>header.base_timestamp)
            if delta == view.timestamp_delta:
                if run == NULL:
                    run = p
                p = next
                continue
            if run != NULL:
                write_raw(out, run, <size_t>(p - run))
                run = NULL
            rest = record_varint(p, end, &length) + 1  # after the length and the attributes
            while rest[0] & 0x80:
                rest += 1
            rest += 1                                  # after the timestamp delta
            head[0] = 0
            head_size = 1 + put_varlong(head + 1, delta)
            if next - rest > INT32_MAX - head_size:
                with gil:
                    raise OverflowError("a record is too long for another timestamp")
            to = reserve(out, 5 + head_size + <size_t>(next - rest))
            length = put_varint(to, <int32_t>(next - rest) + head_size)
            memcpy(to + length, head, head_size)
            memcpy(to + length + head_size, rest, <size_t>(next - rest))
            out.size += <size_t>(length + head_size) + <size_t>(next - rest)
            p = next
        if run != NULL:
            write_raw(out, run, <size_t>(p - run))
        if not appended:
            header.max_timestamp = largest
        return 0

    cdef int put_empty(self, const BatchInfo* info) except -1 nogil:
        cdef BatchInfo header = info[0]
        cdef size_t start = self.out.size
        header.attributes = header.attributes & (TIMESTAMP_LOG_APPEND | TRANSACTIONAL | CONTROL)
        header.base_timestamp = -1
        header.records_count = 0
        reserve(&self.out, HEADER_SIZE)
        self.out.size += HEADER_SIZE
        return self.seal(start, &header)

    cdef int seal(self, size_t start, const BatchInfo* header) except -1 nogil:
        """Write the header of the batch that begins at `start` of `out`."""
        cdef uint8_t* p = self.out.data + start
        cdef size_t size = self.out.size - start
        if size > INT32_MAX:
            with gil:
                raise OverflowError(f"{size} bytes do not fit into a batch")
        put_i64(p, header.base_offset)
        put_i32(p + LENGTH_AT, <int32_t>(size - LENGTH_OVERHEAD))
        put_i32(p + LEADER_EPOCH_AT, header.leader_epoch)
        p[MAGIC_AT] = 2
        put_i16(p + ATTRIBUTES_AT, header.attributes)
        put_i32(p + LAST_OFFSET_DELTA_AT, header.last_offset_delta)
        put_i64(p + BASE_TIMESTAMP_AT, header.base_timestamp)
        put_i64(p + MAX_TIMESTAMP_AT, header.max_timestamp)
        put_i64(p + PRODUCER_ID_AT, header.producer_id)
        put_i16(p + PRODUCER_EPOCH_AT, header.producer_epoch)
        put_i32(p + BASE_SEQUENCE_AT, header.base_sequence)
        put_i32(p + RECORDS_COUNT_AT, header.records_count)
        put_i32(p + CRC_AT, <int32_t>crc32c(p + ATTRIBUTES_AT, size - ATTRIBUTES_AT))
        return self.note(<int32_t>size, header.base_offset + header.last_offset_delta, header.max_timestamp)

    cdef int note(self, int32_t size, int64_t last_offset, int64_t max_timestamp) except -1 nogil:
        """Add the index entries of a batch that was output."""
        if self.size + size > INT32_MAX or last_offset - self.base_offset > INT32_MAX:
            with gil:
                raise OverflowError(f"a segment of {self.size + size} bytes, up to offset {last_offset}, is too large")
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
            self.max_offset_of_timestamp = last_offset
        if self.since_entry > self.index_interval:
            write_i32(&self.index, <int32_t>(last_offset - self.base_offset))
            write_i32(&self.index, <int32_t>self.size)
            self.add_time_entry()
            self.since_entry = 0
        self.since_entry += size
        self.size += size
        self.last_offset = last_offset
        return 0

    cdef int add_time_entry(self) except -1 nogil:
        if self.max_timestamp > self.timed:
            write_i64(&self.time_index, self.max_timestamp)
            write_i32(&self.time_index, <int32_t>(self.max_offset_of_timestamp - self.base_offset))
            self.timed = self.max_timestamp
        return 0

"""Decode record batches, from a Fetch answer or a segment file, into Arrow columns: the seven columns of Spark's Kafka
source, or eight with headers.

    key z | value z | topic u | partition i | offset l | timestamp tsu:UTC | timestampType i
    | headers list<struct<key u, value z>>, null for a record without any

`feed` takes bytes. `take` decodes enough of them for one Arrow batch and returns it. When it returns None, all complete
record batches are used up, and the bytes from `consumed` on are the cut beginning of the next one. So this object holds
at most one Arrow batch, and one chunk of a compressed batch, or one record if that is larger. A batch that claims to
hold gigabytes takes no memory.

Uncompressed batches of magic 2 are read in place, without the GIL and without Python objects. Compressed batches come
from `decompress` in chunks of some 100 KB, which releases the GIL, too. Messages of magic 0 and 1 come as Python objects
from `legacy`, which is slow. (Both functions are arguments, because this layer imports nothing above it; see
kafkad/spark/record_columns.py.)

`position` is the next offset to read. After a batch it is the batch's last offset + 1, also if compaction has left
holes, or if a control batch or an aborted transaction gave no rows. Rows have offsets in [position, end), each at most
once. The work is done when `position` reaches `end`.

Aborted transactions (`read_committed`): A Fetch answer lists the aborted transactions of its records, each by producer
id and first offset. Such a transaction ends at its ABORT marker. A caller that knows the marker's offset, for example
from a .txnindex, may pass it as a third member. Passing a transaction again, as the next answer does, changes nothing.

Beware: the fed bytes must not change until `take` has returned None. Lengths, counts and offsets in them are untrusted
until they are checked; the CRC (`verify_crc`) only detects accidents. Timestamps are arbitrary 64-bit milliseconds. One
that does not fit as microseconds becomes the largest or smallest that fits, and is counted in `clamped`."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport INT32_MAX, INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from kafkad._native.values.arrow_build cimport (
    Column,
    Columns,
    append_bytes,
    append_i32,
    append_i64,
    append_list,
    append_null,
    append_row,
    column_reserve,
    column_truncate,
)
from kafkad._native.wire.batch cimport (
    COMPRESSION_MASK,
    CONTROL,
    HEADER_SIZE,
    LENGTH_OVERHEAD,
    RECORD_COMPLETE,
    RECORD_INCOMPLETE,
    TIMESTAMP_LOG_APPEND,
    TRANSACTIONAL,
    BatchInfo,
    RecordView,
    crc_matches,
    parse_header,
    record_read,
    record_varint,
)
from kafkad._native.wire.malformed import Malformed
from kafkad._native.wire.primitives cimport get_i16, get_i32, get_i64
from kafkad._native.wire.batch_layout cimport LAST_OFFSET_DELTA_AT, LENGTH_AT, MAGIC_AT

cdef enum:
    UP_TO_MAGIC = 17
    LEGACY_LENGTH_MIN = 14        # smallest message of magic 0: crc, magic, attributes, two sizes
    LAST_CODEC = 4
    ABORT = 0                     # a control record's kind
    NO_KIND = -2                  # kind of an emptied control batch
    RECORD_MAX = 1 << 30          # bytes of one record that comes in chunks

cdef enum:                        # the columns, in their order
    KEY = 0
    VALUE
    TOPIC
    PARTITION
    OFFSET
    TIMESTAMP
    TIMESTAMP_TYPE
    HEADERS

cdef enum Next:                   # why `advance` stopped
    FULL                          # the Arrow batch is full
    DRAINED                       # no complete record batch is left
    ENDED                         # `position` is at the end
    TO_JUDGE                      # a transactional batch, and only committed records are wanted
    TO_DECOMPRESS
    TO_GO_ON                      # continue with the next chunk
    TO_CONVERT                    # magic 0 or 1
    BAD
    NO_MEMORY

FIELDS = [
    ("key", "z", True),
    ("value", "z", True),
    ("topic", "u", True),
    ("partition", "i", True),
    ("offset", "l", True),
    ("timestamp", "tsu:UTC", True),
    ("timestampType", "i", True),
]
HEADERS_FIELD = ("headers", "+l", True, [("element", "+s", True, [("key", "u", True), ("value", "z", True)])])


cdef bint utf8_is_valid(const uint8_t* p, int32_t size) noexcept nogil:
    """Return whether the bytes are UTF-8: no surrogates, no overlong forms, nothing above U+10FFFF."""
    cdef const uint8_t* end = p + size
    cdef uint32_t byte
    cdef int more
    cdef uint8_t low
    cdef uint8_t high
    while p < end:
        byte = p[0]
        p += 1
        if byte < 0x80:
            continue
        low, high = 0x80, 0xBF
        if 0xC2 <= byte <= 0xDF:
            more = 1
        elif 0xE0 <= byte <= 0xEF:
            more = 2
            if byte == 0xE0:
                low = 0xA0
            elif byte == 0xED:
                high = 0x9F
        elif 0xF0 <= byte <= 0xF4:
            more = 3
            if byte == 0xF0:
                low = 0x90
            elif byte == 0xF4:
                high = 0x8F
        else:
            return False
        if end - p < more or p[0] < low or p[0] > high:
            return False
        p += 1
        more -= 1
        while more:
            if p[0] & 0xC0 != 0x80:
                return False
            p += 1
            more -= 1
    return True


cdef int append_text(Column* column, const uint8_t* p, int32_t size) noexcept nogil:
    """Append an untrusted string. Bytes that are not UTF-8 become U+FFFD, as in the Java client."""
    if utf8_is_valid(p, size):
        return append_bytes(column, p, size)
    with gil:
        return append_repaired(column, p, size)


cdef int append_repaired(Column* column, const uint8_t* p, int32_t size) noexcept:
    cdef bytes text
    try:
        text = (<const char*>p)[:size].decode("utf-8", "replace").encode()
        return append_bytes(column, <const char*>text, len(text))
    except MemoryError:
        return -1


def span(const uint8_t[::1] data not None):
    """Return (bytes of the complete batches at the start of `data`, the offset after the last one), by their headers
    only; (0, -1) if there is none. A reader can then send its next request before it decodes the batches."""
    cdef Py_ssize_t size = data.shape[0]
    cdef Py_ssize_t at = 0
    cdef int64_t behind = -1
    cdef const uint8_t* p
    cdef int32_t length
    while size - at >= UP_TO_MAGIC:
        p = &data[at]
        length = get_i32(p + LENGTH_AT)
        if length < LEGACY_LENGTH_MIN or length > size - at - LENGTH_OVERHEAD:
            break
        if p[MAGIC_AT] == 2:
            if length < HEADER_SIZE - LENGTH_OVERHEAD:
                break
            behind = get_i64(p) + get_i32(p + LAST_OFFSET_DELTA_AT) + 1
        else:
            behind = get_i64(p) + 1
        at += LENGTH_OVERHEAD + length
    return at, behind


cdef class RecordColumns:
    """Decode one range of a partition. `decompress(codec, data) -> iterable of buffers` and `legacy(entry, verify_crc) ->
    list of (offset, timestamp, timestamp type, key, value)` raise Malformed. An Arrow batch has at most `batch_rows` rows
    and `batch_bytes` bytes of keys, values and headers, unless a single record is larger. Raise ValueError for an invalid
    range or bound."""

    cdef Columns columns
    cdef Column* root
    cdef bytes topic
    cdef object topic_name
    cdef int32_t partition
    cdef readonly int64_t position
    cdef readonly int64_t end
    cdef readonly int64_t rows              # returned so far
    cdef readonly int64_t clamped           # number of timestamps that do not fit
    cdef readonly int64_t skipped_batches   # batches of aborted transactions
    cdef bint headers
    cdef bint verify_crc
    cdef bint read_committed
    cdef int64_t batch_bytes
    cdef int64_t batch_rows
    cdef int64_t filled                     # bytes of the current Arrow batch
    cdef object decompress
    cdef object legacy
    cdef bint finished
    # the fed bytes
    cdef object fed
    cdef Py_buffer fed_view
    cdef const uint8_t* begin
    cdef const uint8_t* at                  # the next or the open record batch
    cdef const uint8_t* stop
    cdef int64_t last_fed                   # the last offset of the previous batch
    # the open record batch
    cdef bint is_open
    cdef bint judged
    cdef BatchInfo info
    cdef object chunks                      # iterator over the remaining chunks of its decompressed records
    cdef bint has_more                      # `chunks` is set
    cdef Py_buffer body_view                # the current chunk, with `record` and `records_end` inside
    cdef const uint8_t* record
    cdef const uint8_t* records_end
    cdef int32_t records_left
    cdef int32_t last_delta
    cdef const char* trouble
    cdef list old                           # rows of an entry of magic 0 or 1, in reverse order
    cdef int64_t old_last
    # aborted transactions
    cdef list coming                        # (first offset, producer id), in reverse order
    cdef set named
    cdef set aborting                       # producer ids inside an aborted transaction
    cdef dict known_ranges                  # producer id: [(first, last offset)]

    def __init__(self, str topic, int32_t partition, int64_t start, int64_t end, *, decompress, legacy,
                 bint headers=False, int64_t batch_bytes=1 << 20, int64_t batch_rows=16384, bint verify_crc=True,
                 bint read_committed=False):
        if self.root is not NULL:
            raise TypeError("a RecordColumns is made once")
        if not 0 <= start <= end:
            raise ValueError(f"there are no offsets from {start} to {end}")
        if not 1 <= batch_bytes <= INT32_MAX // 2 or not 1 <= batch_rows <= INT32_MAX // 2:
            raise ValueError(f"a batch of {batch_rows} rows and {batch_bytes} bytes cannot be")
        self.columns = Columns([*FIELDS, HEADERS_FIELD] if headers else FIELDS)
        self.root = &self.columns.root
        self.topic_name, self.topic, self.partition = topic, topic.encode(), partition
        self.position, self.end = start, end
        self.headers, self.verify_crc, self.read_committed = headers, verify_crc, read_committed
        self.batch_bytes, self.batch_rows = batch_bytes, batch_rows
        # The topic's names in all rows must not exceed 2^31 - 1 bytes.
        self.batch_rows = min(batch_rows, INT32_MAX // max(len(self.topic), 1))
        self.decompress, self.legacy = decompress, legacy
        self.coming, self.named, self.aborting, self.known_ranges = [], set(), set(), {}

    def __dealloc__(self):
        self.drop_body()
        self.drop_fed()

    @property
    def done(self):
        """Whether `position` is at the end. There may still be rows to take."""
        return self.position >= self.end

    @property
    def consumed(self):
        """How many of the bytes that were fed last are used up."""
        return self.at - self.begin

    def __arrow_c_schema__(self):
        return self.columns.__arrow_c_schema__()

    def feed(self, data, aborted=()):
        """Feed bytes that start with a batch; the last batch may be cut. `aborted` has transactions, each as (producer id,
        first offset) or (producer id, first offset, offset of its marker). Raise ValueError if `take` has not used up
        the bytes that were fed before."""
        if self.root is NULL:
            raise TypeError("RecordColumns.__init__ was not called")
        if self.is_open or self.old or (self.fed is not None and self.position < self.end):
            raise ValueError("take() until it answers None before more is fed")
        self.drop_fed()
        self.fed = memoryview(data).cast("B")
        PyObject_GetBuffer(self.fed, &self.fed_view, PyBUF_SIMPLE)
        self.begin = self.at = <const uint8_t*>self.fed_view.buf
        self.stop = self.at + self.fed_view.len
        self.finished = False
        self.last_fed = -1
        if self.read_committed and aborted:
            self.note_aborted(aborted)

    def finish(self):
        """Declare that no more bytes follow: `take` then also returns a batch that is not full."""
        self.finished = True

    def skip_to(self, int64_t offset):
        """Continue at `offset`, because the records before it are lost. Never move backwards."""
        self.position = min(max(self.position, offset), self.end)

    def take(self):
        """Return the next Arrow batch (for `pa.record_batch`). Return None if more bytes must be fed, or at the end. Raise
        Malformed, with partition and position, for bytes that are not batches; this object is unusable then. Raise
        MemoryError."""
        cdef Next why
        if self.root is NULL:
            raise TypeError("RecordColumns.__init__ was not called")
        while True:
            if self.old:
                why = self.take_old()
            else:
                with nogil:
                    why = self.advance()
            if why == FULL:
                return self.leave()
            if why == DRAINED or why == ENDED:
                if self.root.length and (self.finished or why == ENDED):
                    return self.leave()
                self.drop_fed()
                return None
            if why == TO_JUDGE:
                self.judge()
            elif why == TO_DECOMPRESS:
                self.open_compressed()
            elif why == TO_GO_ON:
                self.go_on()
            elif why == TO_CONVERT:
                self.open_old()
            elif why == NO_MEMORY:
                column_truncate(self.root, self.root.length)
                raise MemoryError
            else:
                raise self.malformed((<bytes>self.trouble).decode())

    # -- without the GIL -----------------------------------------------------------------------------------

    cdef Next advance(self) noexcept nogil:
        cdef int64_t last
        cdef int32_t length
        cdef int codec
        cdef Next why
        while True:
            if self.is_open:
                why = self.read_records()
                if why != DRAINED:
                    return why
                self.close_batch()
            if self.position >= self.end:
                return ENDED
            if self.at is NULL or self.stop - self.at < UP_TO_MAGIC:
                return DRAINED
            length = get_i32(self.at + LENGTH_AT)
            if self.at[MAGIC_AT] > 2:
                return self.bad("a batch of an unknown magic")
            if length < (HEADER_SIZE - LENGTH_OVERHEAD if self.at[MAGIC_AT] == 2 else LEGACY_LENGTH_MIN):
                return self.bad("a batch shorter than its header")
            if length > self.stop - self.at - LENGTH_OVERHEAD:
                return DRAINED
            if self.at[MAGIC_AT] < 2:
                return TO_CONVERT
            parse_header(self.at, <size_t>(self.stop - self.at), &self.info)
            if self.verify_crc and not self.judged and not crc_matches(self.at, &self.info):
                return self.bad("the CRC does not match the bytes")
            if (self.info.base_offset < 0 or self.info.last_offset_delta < 0
                    or self.info.base_offset > INT64_MAX - 1 - self.info.last_offset_delta):
                return self.bad("a batch whose offsets cannot be")
            if self.info.base_offset <= self.last_fed and not self.judged:
                return self.bad("it stands behind one of the same offsets or later ones")
            last = self.info.base_offset + self.info.last_offset_delta
            self.last_fed = last
            if last < self.position and not (self.read_committed and self.info.attributes & CONTROL):
                self.at += self.info.size
                continue
            if self.info.base_offset >= self.end:
                self.position = self.end
                return ENDED
            codec = self.info.attributes & COMPRESSION_MASK
            if codec > LAST_CODEC:
                return self.bad("an unknown compression type")
            if self.info.records_count < 0:
                return self.bad("fewer than no records")
            if self.read_committed and not self.judged and self.info.attributes & (TRANSACTIONAL | CONTROL):
                return TO_JUDGE
            if self.info.attributes & CONTROL or self.info.records_count == 0:
                self.close_batch()
            elif codec:
                return TO_DECOMPRESS
            else:
                self.open_records(self.at + HEADER_SIZE, self.at + self.info.size)

    cdef Next bad(self, const char* trouble) noexcept nogil:
        self.trouble = trouble
        return BAD

    cdef void open_records(self, const uint8_t* begin, const uint8_t* end) noexcept nogil:
        self.is_open = True
        self.record, self.records_end = begin, end
        self.records_left = self.info.records_count
        self.last_delta = -1

    cdef void close_batch(self) noexcept nogil:
        """Finish this batch: all its records are read or skipped."""
        cdef int64_t behind = self.info.base_offset + self.info.last_offset_delta + 1
        self.is_open = self.judged = self.has_more = False
        self.at += self.info.size
        self.position = max(self.position, min(behind, self.end))

    cdef Next read_records(self) noexcept nogil:
        """Read records of the open batch. Return DRAINED at its end, or if the remaining records are beyond `end`."""
        cdef Column* columns = self.root.children
        cdef RecordView view
        cdef const uint8_t* next = NULL
        cdef int64_t offset
        cdef int64_t size
        cdef int64_t timestamp
        cdef int verdict
        cdef bint log_append_time = (self.info.attributes & TIMESTAMP_LOG_APPEND) != 0
        while self.records_left:
            verdict = record_read(self.record, self.records_end, &view, &next)
            if verdict != RECORD_COMPLETE:
                if verdict == RECORD_INCOMPLETE and self.has_more:
                    return TO_GO_ON
                return self.bad("a record does not parse")
            if view.offset_delta <= self.last_delta or view.offset_delta > self.info.last_offset_delta:
                return self.bad("the offsets of its records do not rise")
            offset = self.info.base_offset + view.offset_delta
            if offset >= self.end:
                break
            if offset >= self.position:
                size = max(view.key_size, 0) + <int64_t>max(view.value_size, 0)
                if self.headers and view.headers_count:
                    size += next - view.headers
                if self.root.length and (
                    self.root.length >= self.batch_rows or size > self.batch_bytes - self.filled
                ):
                    return FULL
                if log_append_time:
                    timestamp = self.info.max_timestamp
                else:
                    timestamp = <int64_t>(<uint64_t>self.info.base_timestamp + <uint64_t>view.timestamp_delta)
                if (
                    self.append_sized(&columns[KEY], view.key, view.key_size) < 0
                    or self.append_sized(&columns[VALUE], view.value, view.value_size) < 0
                    or append_i64(&columns[OFFSET], offset) < 0
                    or append_i64(&columns[TIMESTAMP], self.microseconds(timestamp)) < 0
                    or append_i32(&columns[TIMESTAMP_TYPE], log_append_time) < 0
                    or (self.headers and self.append_headers(&columns[HEADERS], &view, next) < 0)
                    or append_row(self.root) < 0
                ):
                    return NO_MEMORY
                self.filled += size
                self.position = offset + 1
            self.last_delta = view.offset_delta
            self.record = next
            self.records_left -= 1
        if self.records_left == 0:
            if self.record != self.records_end:
                return self.bad("bytes behind the last record")
            if self.has_more:
                return TO_GO_ON
        return DRAINED

    cdef inline int append_sized(self, Column* column, const uint8_t* data, int32_t size) noexcept nogil:
        return append_null(column) if size < 0 else append_bytes(column, data, size)

    cdef inline int64_t microseconds(self, int64_t timestamp) noexcept nogil:
        if timestamp > INT64_MAX // 1000 or timestamp < -(INT64_MAX // 1000):
            self.clamped += 1
            return INT64_MAX if timestamp > 0 else INT64_MIN
        return timestamp * 1000

    cdef int append_headers(self, Column* column, const RecordView* view, const uint8_t* end) noexcept nogil:
        # record_read has checked that every size fits.
        cdef Column* element = &column.children[0]
        cdef const uint8_t* p = view.headers
        cdef int32_t size = 0
        cdef int32_t i
        if view.headers_count == 0:
            return append_null(column)
        for i in range(view.headers_count):
            p = record_varint(p, end, &size)
            if append_text(&element.children[0], p, size) < 0:
                return -1
            p = record_varint(p + size, end, &size)
            if self.append_sized(&element.children[1], p, size) < 0 or append_row(element) < 0:
                return -1
            p += max(size, 0)
        return append_list(column)

    # -- with the GIL --------------------------------------------------------------------------------------

    cdef object leave(self):
        """Return the rows so far, with the columns that are the same in all rows."""
        cdef int64_t rows = self.root.length
        cdef int64_t size = len(self.topic)
        cdef const char* name = self.topic
        cdef Column* topic = &self.root.children[TOPIC]
        cdef Column* partition = &self.root.children[PARTITION]
        cdef int64_t i
        if column_reserve(topic, rows, rows * size) < 0 or column_reserve(partition, rows, 0) < 0:
            raise MemoryError
        with nogil:
            for i in range(rows):
                memcpy(topic.data + i * size, name, <size_t>size)
                topic.offsets[i + 1] = <int32_t>((i + 1) * size)
                (<int32_t*>partition.data)[i] = self.partition
        topic.length = partition.length = rows
        topic.data_size = rows * size
        self.filled = 0
        self.rows += rows
        return self.columns.take()

    cdef object malformed(self, str what):
        cdef int64_t offset = get_i64(self.at) if self.at is not NULL else -1
        return Malformed(f"{self.topic_name}-{self.partition}: the batch at offset {offset}: {what}")

    cdef void open_compressed(self) except *:
        codec = self.info.attributes & COMPRESSION_MASK
        cdef Py_ssize_t at = self.at - self.begin
        self.chunks = iter(self.decompress(codec, self.fed[at + HEADER_SIZE : at + self.info.size]))
        self.open_records(NULL, NULL)
        self.has_more = True

    cdef void go_on(self) except *:
        """Append the next chunk to the rest of the previous one, or as many chunks as a cut record needs. After the last
        record, check that nothing follows it."""
        cdef Py_ssize_t have = self.records_end - self.record
        cdef int32_t length = 0
        cdef const uint8_t* body = NULL
        cdef Py_ssize_t wanted = have + 1
        if have:
            body = record_varint(self.record, self.records_end, &length)
            if body is not NULL:
                wanted = (body - self.record) + <Py_ssize_t>length
            elif have >= 5:
                raise self.malformed("a record's length is no varint")
        if wanted > RECORD_MAX:
            raise self.malformed(f"a record of {wanted} bytes")
        pieces = [(<const char*>self.record)[:have]] if have else []
        try:
            while have < wanted:
                chunk = next(self.chunks, None)
                if chunk is None:
                    self.has_more = False
                    self.chunks = None
                    break
                if len(chunk):
                    have += len(chunk)
                    pieces.append(chunk)
        except Malformed as trouble:
            raise self.malformed(str(trouble)) from None
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        self.drop_body()
        PyObject_GetBuffer(data, &self.body_view, PyBUF_SIMPLE)
        self.record = <const uint8_t*>self.body_view.buf
        self.records_end = self.record + self.body_view.len

    cdef void drop_body(self) noexcept:
        if self.body_view.buf is not NULL:
            PyBuffer_Release(&self.body_view)
            self.body_view.buf = NULL

    cdef void drop_fed(self) noexcept:
        if self.fed_view.buf is not NULL:
            PyBuffer_Release(&self.fed_view)
            self.fed_view.buf = NULL
        self.drop_body()
        self.chunks = None                       # they refer to the fed bytes, too
        self.stop = self.at                      # `consumed` must still work
        self.fed = None

    # -- magic 0 and 1 -------------------------------------------------------------------------------------

    cdef void open_old(self) except *:
        """Open the entry at `at`, which is complete."""
        cdef int32_t size = LENGTH_OVERHEAD + get_i32(self.at + LENGTH_AT)
        cdef Py_ssize_t at = self.at - self.begin
        cdef int64_t last = get_i64(self.at)     # a wrapper has the offset of its last message
        if last < 0 or last == INT64_MAX:
            raise self.malformed("an offset that cannot be")
        if last >= self.position:
            try:
                self.old = self.legacy(self.fed[at : at + size], self.verify_crc)
            except Malformed as trouble:
                raise self.malformed(str(trouble)) from None
            self.old.reverse()
        self.at += size
        self.old_last = last
        if not self.old:
            self.position = max(self.position, min(last + 1, self.end))

    cdef Next take_old(self) except *:
        cdef Column* columns = self.root.children
        cdef int64_t offset
        cdef int64_t size
        cdef int result
        while self.old:
            offset, timestamp, timestamp_type, key, value = self.old[len(self.old) - 1]
            if offset >= self.end:
                self.old.clear()
                break
            if self.position <= offset <= self.old_last:
                size = len(key or b"") + len(value or b"")
                if self.root.length and (
                    self.root.length >= self.batch_rows or size > self.batch_bytes - self.filled
                ):
                    return FULL
                if (
                    self.append_object(&columns[KEY], key) < 0
                    or self.append_object(&columns[VALUE], value) < 0
                    or append_i64(&columns[OFFSET], offset) < 0
                    or append_i64(&columns[TIMESTAMP], self.microseconds(timestamp)) < 0
                    or append_i32(&columns[TIMESTAMP_TYPE], timestamp_type) < 0
                    or (self.headers and append_null(&columns[HEADERS]) < 0)
                    or append_row(self.root) < 0
                ):
                    return NO_MEMORY
                self.filled += size
                self.position = offset + 1
            self.old.pop()
        self.position = max(self.position, min(self.old_last + 1, self.end))
        return self.advance()

    cdef int append_object(self, Column* column, bytes data) except -2:
        if data is None:
            return append_null(column)
        return append_bytes(column, <const char*>data, len(data))

    # -- transactions --------------------------------------------------------------------------------------

    cdef void note_aborted(self, aborted) except *:
        for transaction in aborted:
            if transaction in self.named:
                continue
            self.named.add(transaction)
            if len(transaction) == 3:
                producer_id, first, marker = transaction
                self.known_ranges.setdefault(producer_id, []).append((first, marker))
            else:
                producer_id, first = transaction
                self.coming.append((first, producer_id))
        self.coming.sort(reverse=True)

    cdef void judge(self) except *:
        """Decide about the open batch, whose header is at `at`: it is transactional or a control batch."""
        cdef int64_t base = self.info.base_offset
        cdef int64_t last = base + self.info.last_offset_delta
        cdef int64_t producer_id = self.info.producer_id
        self.judged = True
        while self.coming and self.coming[len(self.coming) - 1][0] <= last:
            self.aborting.add(self.coming.pop()[1])
        if self.info.attributes & CONTROL:
            if self.control_kind() == ABORT:
                self.aborting.discard(producer_id)
            return
        if producer_id in self.aborting or any(
            first <= base <= marker for first, marker in self.known_ranges.get(producer_id, ())
        ):
            self.skipped_batches += 1
            self.close_batch()

    cdef int control_kind(self) except? -1:
        """Return the open batch's kind of marker. Return NO_KIND for a batch that Kafka's log cleaner has emptied (it keeps
        the header of a producer's last batch: Cleaner, BatchRetention.RETAIN_EMPTY)."""
        cdef RecordView view
        cdef const uint8_t* next = NULL
        memset(&view, 0, sizeof(RecordView))
        if self.info.attributes & COMPRESSION_MASK:
            raise self.malformed("a compressed control batch")
        if self.info.records_count == 0:
            return NO_KIND
        if (
            self.info.records_count < 0
            or record_read(self.at + HEADER_SIZE, self.at + self.info.size, &view, &next) != RECORD_COMPLETE
            or view.key_size < 4
        ):
            raise self.malformed("a control batch without its record")
        return get_i16(view.key + 2)

"""Check message sets of magic 0 and 1, from clients older than Kafka 0.11, and convert them to records of a v2 batch.

    offset i64 | size i32 | crc u32 | magic i8 | attributes i8 | timestamp i64 (magic 1) | key i32, bytes | value i32, bytes

The CRC is zlib's, from the magic to the end. A key or value of size -1 is null. A message with a codec in its attributes
wraps a message set in its value. `MessageSet` checks sizes, CRCs and codecs of the set that the client sent. `UpConverter`
is fed the plain messages, in pieces that may be cut anywhere, and returns records of a v2 batch. The new records go through
the same walk as those of newer clients (batch.pyx), so the same rules apply to keys and timestamps. `WholeSets` does both
in one pass for what most clients send: a small set without compression that is good.

The rules are those of Kafka 3.9's UnifiedLog.analyzeAndValidateRecords, LogValidator and AbstractLegacyRecordBatch:

- An incomplete message at the end of a set is left out, without an error.
- Offsets are ignored, except that the offset of a wrapper of magic 1 must be 0, or at least that of the last message
  inside.
- Bytes after a message's value are covered by the CRC and otherwise ignored.

Beware: a client may claim any size. For an incomplete message, only the received bytes are kept."""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize, PyByteArray_Resize
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memset

from kafkad._native.wire.batch cimport (
    AppendRules, BatchHeader, BatchInfo, COMPRESSION_MASK, HEADER_SIZE, LENGTH_OVERHEAD, Rules, TIMESTAMP_LOG_APPEND,
    parse_header, settle_timestamps, walk_begin, walk_end, walk_feed, walk_rules,
)
from kafkad._native.wire.batch_layout cimport (
    ATTRIBUTES_AT, BASE_SEQUENCE_AT, BASE_TIMESTAMP_AT, CRC_AT, LAST_OFFSET_DELTA_AT, LEADER_EPOCH_AT, LENGTH_AT,
    MAGIC_AT, MAX_TIMESTAMP_AT, PRODUCER_EPOCH_AT, PRODUCER_ID_AT, RECORDS_COUNT_AT,
)
from kafkad._native.wire.crc32 cimport crc32
from kafkad._native.wire.crc32c cimport crc32c
from kafkad._native.wire.errors cimport (
    CORRUPT_MESSAGE, INVALID_RECORD, INVALID_TIMESTAMP, MESSAGE_TOO_LARGE, NONE, UNSUPPORTED_COMPRESSION_TYPE,
)
from kafkad._native.wire.primitives cimport (
    KAFKAD_CHECK, get_i32, get_i64, get_u32, put_i16, put_i32, put_i64, put_varint, put_varlong,
)

cdef enum:
    # From the message's first byte, its offset. The timestamp of magic 1 moves key and value.
    SET_CRC_AT = 12
    SET_MAGIC_AT = 16
    SET_ATTRIBUTES_AT = 17
    SET_TIMESTAMP_AT = 18
    SIZE_MIN = 14                       # size field of a message of magic 0 without key and value
    SIZE_MIN_1 = 22
    RECORD_GROWTH = 32                  # most bytes of a record beside key and value
    # Of a set that the loop converts in one call, which takes less than 0.1 ms. A record has at most 6 bytes more than its message,
    # and a message has at least 26 bytes.
    WHOLE_SIZE_MAX = 128 << 10
    WHOLE_ROOM = HEADER_SIZE + WHOLE_SIZE_MAX + WHOLE_SIZE_MAX // 4 + RECORD_GROWTH

# The result of `read_message`. A size below 0 is null.
cdef struct Message:
    int64_t offset
    int64_t timestamp                   # -1 in magic 0
    int attributes
    int32_t key_size
    int32_t value_size
    const uint8_t* key
    const uint8_t* value


cdef bint read_message(const uint8_t* data, int32_t size, Message* message) noexcept nogil:
    """Read the fields of a message whose `size` bytes follow its size field. Return False if they do not fit into it."""
    cdef int magic = data[SET_MAGIC_AT]
    cdef const uint8_t* end = data + LENGTH_OVERHEAD + size
    cdef const uint8_t* p = data + SET_TIMESTAMP_AT
    message.offset = get_i64(data)
    message.attributes = data[SET_ATTRIBUTES_AT]
    message.timestamp = -1
    if magic == 1:
        if size < SIZE_MIN_1:
            return False
        message.timestamp = get_i64(p)
        p += 8
    message.key_size = get_i32(p)
    p += 4
    message.key = p
    if message.key_size > 0:
        if message.key_size > end - p - 4:
            return False
        p += message.key_size
    message.value_size = get_i32(p)
    p += 4
    message.value = p
    return message.value_size <= end - p


cdef inline bint crc_fits(const uint8_t* data, int32_t size) noexcept nogil:
    return crc32(data + SET_MAGIC_AT, <size_t>size - 4) == get_u32(data + SET_CRC_AT)


cdef class MessageSet:
    """The set that a client sent. Call `check` until it returns -1; then `verdict` is 0 or an error code, and the other
    attributes describe the set. No reference to the buffer is kept."""

    cdef int32_t bytes_max
    cdef readonly int verdict
    cdef readonly str message           # the error message, or None
    cdef readonly int count             # number of messages; a wrapper counts as one
    cdef readonly int magic             # magic of the first message; -1: there is none
    cdef readonly int codec             # 0: none is compressed
    cdef readonly Py_ssize_t size       # bytes of the complete messages
    cdef bint mixed
    cdef bint stamped
    cdef readonly int64_t offset        # offset of the last message
    cdef readonly int64_t timestamp
    cdef readonly bint is_null          # the last message's value is null
    cdef readonly Py_ssize_t value_at   # otherwise, its position
    cdef readonly Py_ssize_t value_size

    def __init__(self, int32_t bytes_max):
        self.bytes_max = bytes_max
        self.magic = -1

    cdef object refuse(self, int code, str message):
        self.verdict = code
        self.message = message
        return -1

    def check(self, const uint8_t[::1] data not None, Py_ssize_t piece):
        """Check about `piece` bytes more of the set. Return how many were checked, or -1 at the end of the set."""
        cdef const uint8_t* start = &data[0] if data.shape[0] else NULL
        cdef Py_ssize_t left = data.shape[0] - self.size
        cdef Py_ssize_t begin = self.size
        cdef const uint8_t* p
        cdef int32_t size
        cdef bint intact
        cdef Message message
        if self.verdict:
            return -1
        while self.size - begin < piece:
            left = data.shape[0] - self.size
            if left < LENGTH_OVERHEAD:
                return self.end(begin)
            p = start + self.size
            size = get_i32(p + LENGTH_AT)
            if size < SIZE_MIN:
                return self.refuse(CORRUPT_MESSAGE, "A message's size is less than the smallest possible")
            if left <= MAGIC_AT:
                return self.end(begin)
            if p[MAGIC_AT] > 2:
                return self.refuse(CORRUPT_MESSAGE, "A message has an unknown magic")
            if size > left - LENGTH_OVERHEAD:
                return self.end(begin)
            if size > self.bytes_max - LENGTH_OVERHEAD:
                return self.refuse(MESSAGE_TOO_LARGE, "A message is larger than max.message.bytes")
            if p[MAGIC_AT] == 2:
                self.mixed = True
            else:
                with nogil:
                    intact = crc_fits(p, size)
                if not intact or not read_message(p, size, &message):
                    return self.refuse(CORRUPT_MESSAGE, "A message's CRC does not match its bytes" if not intact else
                                       "A message's size and its fields do not agree")
                self.offset = message.offset
                self.timestamp = message.timestamp
                self.is_null = message.value_size < 0
                self.value_at = message.value - start
                self.value_size = message.value_size
                if p[MAGIC_AT] == 1 and message.attributes & TIMESTAMP_LOG_APPEND:
                    self.stamped = True
                if message.attributes & COMPRESSION_MASK:
                    self.codec = message.attributes & COMPRESSION_MASK
            if self.magic < 0:
                self.magic = p[MAGIC_AT]
            elif self.magic != p[MAGIC_AT]:
                self.mixed = True
            self.count += 1
            self.size += LENGTH_OVERHEAD + size
        return self.size - begin

    cdef object end(self, Py_ssize_t begin):
        """Check the rules about the set as a whole."""
        if self.mixed:
            return self.refuse(INVALID_RECORD, "The messages of a set must have the same magic")
        if self.codec and self.count > 1:
            return self.refuse(INVALID_RECORD, "A compressed message must be the only one of its set")
        if self.codec > 4:
            return self.refuse(UNSUPPORTED_COMPRESSION_TYPE, "The message has an unknown compression type")
        if self.codec == 4:
            return self.refuse(INVALID_RECORD, "Messages of magic 0 and 1 cannot be compressed with zstd")
        if self.codec and self.is_null:
            return self.refuse(INVALID_RECORD, "A compressed message without a value")
        if self.stamped:
            return self.refuse(INVALID_TIMESTAMP, "Producers must not set the timestamp type to LogAppendTime")
        return -1


cdef class UpConverter:
    """Convert plain messages of one magic to records of a v2 batch: `feed` them in pieces that may be cut anywhere, then
    call `end`. With `inner`, they come out of a wrapper, and their CRCs are checked. No message may be larger than
    `size_max`."""

    def __init__(self, AppendRules rules not None, int64_t now_ms, int magic, bint inner, int64_t size_max):
        self.rules = rules
        self.now_ms = now_ms
        self.magic = magic
        self.inner = inner
        self.size_max = size_max

    def __dealloc__(self):
        free(self.cut)
        free(self.walk.bad)

    @property
    def message(self): return None if self.why is NULL else self.why.decode()

    @property
    def held(self):
        """Bytes of memory that the current message claims to need."""
        if self.cut_size < LENGTH_OVERHEAD:
            return 0
        return min(<int64_t>get_i32(self.cut + LENGTH_AT), self.size_max)

    cdef size_t refuse(self, int code, const char* why) noexcept nogil:
        self.verdict = code
        self.why = why
        return 0

    cdef size_t add(self, const uint8_t* data, int32_t size, uint8_t* out) noexcept nogil:
        """Convert one message to a record at `out`. Return the record's size, 0 if it is refused."""
        cdef Message message
        cdef BatchInfo info
        cdef uint8_t head[RECORD_GROWTH]
        cdef uint8_t tail[5]
        cdef int head_size, tail_size
        cdef size_t key_size, value_size
        cdef uint8_t* at = out
        if data[SET_MAGIC_AT] != self.magic:
            return self.refuse(INVALID_RECORD, "A message's magic is not that of the one that wraps it")
        if self.inner and not crc_fits(data, size):
            return self.refuse(CORRUPT_MESSAGE, "A message's CRC does not match its bytes")
        if not read_message(data, size, &message):
            return self.refuse(CORRUPT_MESSAGE, "A message's size and its fields do not agree")
        self.attributes |= message.attributes
        if message.attributes & COMPRESSION_MASK:
            return self.refuse(INVALID_RECORD, "A compressed message wraps one that is compressed, too")
        if self.count == INT32_MAX:
            return self.refuse(MESSAGE_TOO_LARGE, "A message set has too many messages")
        if self.count == 0:
            self.base_timestamp = message.timestamp
            memset(&info, 0, sizeof(BatchInfo))
            info.base_timestamp = message.timestamp
            info.records_count = INT32_MAX
            walk_begin(&self.walk, &info)
            walk_rules(&self.walk, &self.rules.rules, self.now_ms)
        key_size = <size_t>max(message.key_size, 0)
        value_size = <size_t>max(message.value_size, 0)
        head[0] = 0                                     # attributes
        head_size = 1 + put_varlong(head + 1, <int64_t>(<uint64_t>message.timestamp - <uint64_t>self.base_timestamp))
        head_size += put_varint(head + head_size, self.count)
        head_size += put_varint(head + head_size, max(message.key_size, -1))
        tail_size = put_varint(tail, max(message.value_size, -1))
        at += put_varint(at, <int32_t>(head_size + key_size + tail_size + value_size + 1))
        memcpy(at, head, head_size)
        at += head_size
        memcpy(at, message.key, key_size)
        at += key_size
        memcpy(at, tail, tail_size)
        at += tail_size
        memcpy(at, message.value, value_size)
        at += value_size
        at[0] = 0                                       # no headers
        self.count += 1
        self.last_offset = message.offset
        return <size_t>(at + 1 - out)

    cdef bint may_have(self, int32_t size) noexcept nogil:
        if size < SIZE_MIN:
            self.refuse(CORRUPT_MESSAGE, "A message's size is less than the smallest possible")
        elif size > self.size_max:
            self.refuse(MESSAGE_TOO_LARGE, "A message is larger than a record batch may be")
        return self.verdict == NONE

    cdef bint keep(self, const uint8_t* data, size_t size) noexcept nogil:
        """Keep bytes of an incomplete message. Return False if there is no memory."""
        cdef size_t capacity
        cdef uint8_t* grown
        if self.cut_size + size > self.cut_capacity:
            capacity = max(self.cut_capacity * 2, self.cut_size + size)
            grown = <uint8_t*>realloc(self.cut, capacity)
            if grown is NULL:
                return False
            self.cut = grown
            self.cut_capacity = capacity
        memcpy(self.cut + self.cut_size, data, size)
        self.cut_size += size
        return True

    cdef int64_t convert(self, const uint8_t* p, const uint8_t* end, uint8_t* out) noexcept nogil:
        """Convert a piece. Return the size of the output; -1 if there is no memory."""
        cdef size_t made = 0, more
        cdef int32_t size
        while self.cut_size and self.verdict == NONE:   # first complete the message that began in the previous piece
            more = LENGTH_OVERHEAD
            if self.cut_size >= LENGTH_OVERHEAD:
                size = get_i32(self.cut + LENGTH_AT)
                if not self.may_have(size):
                    return 0
                more += <size_t>size
            if self.cut_size == more and more > LENGTH_OVERHEAD:
                made = self.add(self.cut, size, out)
                self.cut_size = 0
            elif p == end:
                return 0
            else:
                more = min(more - self.cut_size, <size_t>(end - p))
                if not self.keep(p, more):
                    return -1
                p += more
        while self.verdict == NONE and end - p >= LENGTH_OVERHEAD:
            size = get_i32(p + LENGTH_AT)
            if not self.may_have(size) or size > end - p - LENGTH_OVERHEAD:
                break
            made += self.add(p, size, out + made)
            p += LENGTH_OVERHEAD + size
        if self.verdict == NONE and p < end and not self.keep(p, <size_t>(end - p)):
            return -1
        if made:
            walk_feed(&self.walk, out, made)
        return <int64_t>made

    cdef void restart(self, int64_t now_ms, int magic, int64_t size_max) noexcept nogil:
        free(self.walk.bad)
        self.walk.bad = NULL
        self.now_ms = now_ms
        self.magic = magic
        self.size_max = size_max
        self.verdict = NONE
        self.count = 0
        self.attributes = 0

    cdef size_t whole(self, const uint8_t* p, size_t size, uint8_t* batch) noexcept nogil:
        """Convert a whole set of plain messages, and check it. Return the size of the batch, without a header yet; 0 if
        anything is wrong or missing."""
        cdef const uint8_t* end = p + size
        cdef size_t made = HEADER_SIZE
        cdef int32_t next_size
        while end - p >= LENGTH_OVERHEAD:
            next_size = get_i32(p + LENGTH_AT)
            if not self.may_have(next_size) or next_size > end - p - LENGTH_OVERHEAD:
                return 0
            made += self.add(p, next_size, batch + made)
            if self.verdict != NONE:
                return 0
            p += LENGTH_OVERHEAD + next_size
        if p != end or (self.magic == 1 and self.attributes & TIMESTAMP_LOG_APPEND):
            return 0
        walk_feed(&self.walk, batch + HEADER_SIZE, made - HEADER_SIZE)
        return made if self.finish(0) == NONE else 0

    def feed(self, const uint8_t[::1] piece not None):
        """Return the records of the messages that end in this piece; nothing after a refusal. The GIL is released."""
        cdef size_t capacity = self.cut_size + <size_t>piece.shape[0]
        cdef const uint8_t* p
        cdef bytearray records
        cdef uint8_t* out
        cdef int64_t made
        if self.verdict or piece.shape[0] == 0:
            return bytearray()
        # A record has at most 6 bytes more than its message. A message has at least 26 bytes.
        records = PyByteArray_FromStringAndSize(NULL, <Py_ssize_t>(capacity + capacity // 4 + RECORD_GROWTH))
        out = <uint8_t*>PyByteArray_AS_STRING(records)
        p = &piece[0]
        with nogil:
            made = self.convert(p, p + piece.shape[0], out)
        if made < 0:
            raise MemoryError
        PyByteArray_Resize(records, <Py_ssize_t>made)
        return records

    cdef int finish(self, int64_t wrapper_offset) noexcept nogil:
        if self.verdict == NONE and self.count == 0:
            self.refuse(INVALID_RECORD, "A compressed message that wraps none")
        if self.verdict == NONE and self.magic == 1 and wrapper_offset != 0 and wrapper_offset < self.last_offset:
            self.refuse(INVALID_RECORD, "A compressed message stands before the last one that it wraps")
        if self.verdict == NONE:
            self.walk.records_count = self.count
            self.verdict = walk_end(&self.walk)
            self.why = self.walk.message
        return self.verdict

    def end(self, int64_t wrapper_offset=0):
        """Return the verdict: 0 or an error code. `wrapper_offset` is the offset of the wrapper, if it is of magic 1."""
        return self.finish(wrapper_offset)

    @property
    def bad_record(self): return self.walk.bad_record if self.count else -1

    @property
    def bad_records(self):
        """Like RecordWalk.bad_records."""
        cdef uint32_t i
        return [] if self.walk.bad is NULL else [self.walk.bad[i + 1] for i in range(self.walk.bad[0])]

    cdef void write_header(self, uint8_t* data, size_t size, int codec, BatchInfo* info) noexcept nogil:
        KAFKAD_CHECK(self.verdict == NONE and self.count > 0 and size > HEADER_SIZE and size <= INT32_MAX)
        memset(data, 0, HEADER_SIZE)
        put_i32(data + LENGTH_AT, <int32_t>(size - LENGTH_OVERHEAD))
        put_i32(data + LEADER_EPOCH_AT, -1)
        data[MAGIC_AT] = 2
        put_i16(data + ATTRIBUTES_AT, <int>codec)
        put_i32(data + LAST_OFFSET_DELTA_AT, self.count - 1)
        put_i64(data + BASE_TIMESTAMP_AT, self.base_timestamp)
        put_i64(data + MAX_TIMESTAMP_AT, self.walk.max_timestamp)
        put_i64(data + PRODUCER_ID_AT, -1)
        put_i16(data + PRODUCER_EPOCH_AT, -1)
        put_i32(data + BASE_SEQUENCE_AT, -1)
        put_i32(data + RECORDS_COUNT_AT, self.count)
        put_i32(data + CRC_AT, <int32_t>crc32c(data + ATTRIBUTES_AT, size - ATTRIBUTES_AT))
        KAFKAD_CHECK(parse_header(data, size, info) == 0)
        info.walked_max_timestamp = self.walk.max_timestamp
        info.walked_max_offset = self.walk.max_timestamp_delta

    def seal(self, uint8_t[::1] batch not None, int codec):
        """Write and return the header of a batch. Its records, packed with `codec`, are after its first 61 bytes."""
        cdef BatchHeader header = BatchHeader.__new__(BatchHeader)
        cdef uint8_t* data = &batch[0] if batch.shape[0] else NULL
        with nogil:
            self.write_header(data, <size_t>batch.shape[0], codec, &header.info)
        return header


cdef class WholeSets:
    """Convert small, uncompressed sets in one call, on the event loop. Everything else is left to `MessageSet` and
    `UpConverter`, which name the error."""

    def __init__(self):
        self.rules = AppendRules()
        self.converter = UpConverter(self.rules, 0, 0, True, 0)

    def __dealloc__(self):
        free(self.room)

    cdef size_t convert(self, const uint8_t* data, size_t size, const Rules* rules, int64_t now_ms,
                        uint8_t** batch) noexcept nogil:
        cdef size_t made
        cdef BatchInfo info
        if size > WHOLE_SIZE_MAX or size <= SET_MAGIC_AT or data[SET_MAGIC_AT] > 1 or rules.compression_type > 0:
            return 0
        if self.room is NULL:
            self.room = <uint8_t*>malloc(WHOLE_ROOM)
            if self.room is NULL:
                return 0
        self.rules.rules = rules[0]
        self.converter.restart(now_ms, data[SET_MAGIC_AT], rules.max_message_bytes - LENGTH_OVERHEAD)
        made = self.converter.whole(data, size, self.room)
        if made == 0 or made > <size_t>rules.max_message_bytes:
            return 0
        self.converter.write_header(self.room, made, 0, &info)
        settle_timestamps(self.room, rules, now_ms, &info)
        batch[0] = self.room
        return made

    def convert_one(self, const uint8_t[::1] data not None, AppendRules rules not None, int64_t now_ms):
        """Return the batch for a set, None if it is left to the others. For tests."""
        cdef uint8_t* batch = NULL
        cdef size_t size = 0
        if data.shape[0]:
            size = self.convert(&data[0], <size_t>data.shape[0], &rules.rules, now_ms, &batch)
        return PyBytes_FromStringAndSize(<char*>batch, <Py_ssize_t>size) if size else None

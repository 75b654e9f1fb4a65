"""Check record batches in place: the header, the walk over the records, and the rules for a client's append.

The rules are those of Kafka's ProduceRequest.validateRecords, UnifiedLog.analyzeAndValidateRecords and
LogValidator, in the same order, so a batch with two faults gets Kafka's error for the first one. There are four
deliberate differences:

- Bytes after the batch are refused (INVALID_RECORD). Kafka cuts off a partial second batch without an error.
- An uncompressed batch with wrong offset deltas is rebuilt like a compressed one. Kafka stores it as it is.
- A client's batch marked LogAppendTime is always refused (INVALID_TIMESTAMP). Kafka resets the mark if the
  topic has CreateTime and the timestamp happens to be in range.
- An unknown compression type is UNSUPPORTED_COMPRESSION_TYPE. Kafka returns UNKNOWN_SERVER_ERROR.

All checks use one walk: `walk_feed` takes the records in chunks. A record that is complete in its chunk is read at
once (`record.h`). A record that a chunk's end cuts goes byte by byte through a state machine, which keeps sizes only.

Beware: a client's timestamps are arbitrary 64-bit numbers, so sums and differences use unsigned arithmetic."""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize
from libc.stdint cimport INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memset

from kafkad._native.wire.crc32c cimport crc32c
from kafkad._native.wire.primitives cimport get_i16, get_i32, get_i64, get_u32, put_i16, put_i32, put_i64
from kafkad._native.wire.errors cimport (
    CORRUPT_MESSAGE, INVALID_RECORD, INVALID_REQUEST, INVALID_TIMESTAMP, MESSAGE_TOO_LARGE, NONE,
    UNSUPPORTED_COMPRESSION_TYPE,
)
from kafkad._native.wire.batch_layout cimport (
    ATTRIBUTES_AT, BASE_SEQUENCE_AT, BASE_TIMESTAMP_AT, CRC_AT, LAST_OFFSET_DELTA_AT, LEADER_EPOCH_AT, LENGTH_AT,
    MAGIC_AT, MAX_TIMESTAMP_AT, PRODUCER_EPOCH_AT, PRODUCER_ID_AT, RECORDS_COUNT_AT,
)

cdef enum:
    MINIMUM_LENGTH = 14           # length of the smallest record of the oldest format
    UP_TO_MAGIC = 17
    LAST_CODEC = 4
    BAD_RECORDS_FIRST = 16        # first size of the list of bad records; a power of two

cdef enum Stage:                  # the next field of a cut record
    LENGTH = 0
    ATTRIBUTES
    TIMESTAMP
    OFFSET
    KEY
    VALUE
    HEADERS
    HEADER_KEY
    HEADER_VALUE
    DONE


# -- header ------------------------------------------------------------------------------------------------

cdef void read_header(const uint8_t* data, BatchInfo* info) noexcept nogil:
    info.base_offset = get_i64(data)
    info.size = <int32_t>(<uint32_t>get_i32(data + LENGTH_AT) + LENGTH_OVERHEAD)
    info.leader_epoch = get_i32(data + LEADER_EPOCH_AT)
    info.crc = get_u32(data + CRC_AT)
    info.attributes = get_i16(data + ATTRIBUTES_AT)
    info.last_offset_delta = get_i32(data + LAST_OFFSET_DELTA_AT)
    info.base_timestamp = get_i64(data + BASE_TIMESTAMP_AT)
    info.max_timestamp = get_i64(data + MAX_TIMESTAMP_AT)
    info.producer_id = get_i64(data + PRODUCER_ID_AT)
    info.producer_epoch = get_i16(data + PRODUCER_EPOCH_AT)
    info.base_sequence = get_i32(data + BASE_SEQUENCE_AT)
    info.records_count = get_i32(data + RECORDS_COUNT_AT)
    info.walked_max_timestamp = -1
    info.walked_max_offset = -1
    info.bad_record = -1
    info.message = NULL


cdef int parse_header(const uint8_t* data, size_t size, BatchInfo* info) noexcept nogil:
    cdef int32_t length
    if size < HEADER_SIZE or data[MAGIC_AT] != 2:
        return -1
    length = get_i32(data + LENGTH_AT)
    if length < HEADER_SIZE - LENGTH_OVERHEAD or <size_t>length > size - LENGTH_OVERHEAD:
        return -1
    read_header(data, info)
    return 0


cdef bint crc_matches(const uint8_t* data, const BatchInfo* info) noexcept nogil:
    return crc32c(data + ATTRIBUTES_AT, <size_t>info.size - ATTRIBUTES_AT) == info.crc


cdef inline int refuse(BatchInfo* info, int code, const char* message) noexcept nogil:
    info.message = message
    return code


# Check that there is exactly one batch of magic 2 and that its size is allowed. Then `info` holds the header.
cdef int check_outline(const uint8_t* data, size_t size, const Rules* rules, BatchInfo* info) noexcept nogil:
    cdef int32_t length
    memset(info, 0, sizeof(BatchInfo))
    info.walked_max_timestamp = -1
    info.walked_max_offset = -1
    info.bad_record = -1
    if size >= LENGTH_OVERHEAD and get_i32(data + LENGTH_AT) < MINIMUM_LENGTH:
        return refuse(info, CORRUPT_MESSAGE, "The record batch's length is less than the smallest possible")
    if size < UP_TO_MAGIC:
        return refuse(info, INVALID_RECORD, "There must be one record batch per partition, but there is none")
    length = get_i32(data + LENGTH_AT)
    if data[MAGIC_AT] > 2:
        return refuse(info, CORRUPT_MESSAGE, "The record batch has an unknown magic")
    if data[MAGIC_AT] < 2:
        return NEED_PYTHON
    if <size_t>length > size - LENGTH_OVERHEAD:
        return refuse(info, INVALID_RECORD, "The record batch is longer than the bytes that came")
    if <size_t>length < size - LENGTH_OVERHEAD:
        return refuse(info, INVALID_RECORD, "There must be exactly one record batch per partition")
    if get_i64(data) != 0:
        return refuse(info, INVALID_RECORD, "The base offset of a produced record batch must be 0")
    if length > rules.max_message_bytes - LENGTH_OVERHEAD:
        return refuse(info, MESSAGE_TOO_LARGE, "The record batch is larger than max.message.bytes")
    if length < HEADER_SIZE - LENGTH_OVERHEAD:
        return refuse(info, CORRUPT_MESSAGE, "The record batch is smaller than its header")
    read_header(data, info)
    return NONE


# Check the CRC, then the header fields.
cdef int check_fields(const uint8_t* data, const Rules* rules, BatchInfo* info) noexcept nogil:
    if not crc_matches(data, info):
        return refuse(info, CORRUPT_MESSAGE, "The record batch's CRC does not match its bytes")
    if info.attributes & COMPRESSION_MASK > LAST_CODEC:
        return refuse(info, UNSUPPORTED_COMPRESSION_TYPE, "The record batch has an unknown compression type")
    if info.last_offset_delta < 0:
        return refuse(info, INVALID_RECORD, "The record batch has an invalid offset range")
    if info.records_count <= 0:
        return refuse(info, INVALID_RECORD, "The record batch has an invalid count of records")
    if info.last_offset_delta != info.records_count - 1:
        return refuse(info, INVALID_RECORD, "The record batch's offset range and count of records differ")
    if info.attributes & CONTROL:
        return refuse(info, INVALID_RECORD, "Clients are not allowed to write control records")
    if info.producer_id >= 0 and info.base_sequence < 0:
        return refuse(info, INVALID_RECORD, "A record batch with a producer id has an invalid sequence number")
    if info.attributes & TRANSACTIONAL and not rules.transactions:
        return refuse(info, INVALID_REQUEST, "Transactions are not supported")
    if info.attributes & TIMESTAMP_LOG_APPEND:
        info.bad_record = 0
        return refuse(info, INVALID_TIMESTAMP, "Producers must not set the timestamp type to LogAppendTime")
    return NONE


cdef void settle_timestamps(uint8_t* data, const Rules* rules, int64_t now_ms, BatchInfo* info) noexcept nogil:
    cdef int16_t attributes = info.attributes
    if rules.log_append_time:
        attributes = attributes | TIMESTAMP_LOG_APPEND
        info.walked_max_timestamp = now_ms
        info.walked_max_offset = info.base_offset
    if info.attributes == attributes and info.max_timestamp == info.walked_max_timestamp:
        return
    info.attributes = attributes & KNOWN_ATTRIBUTES  # Kafka does so, too, when it rewrites the attributes
    info.max_timestamp = info.walked_max_timestamp
    put_i16(data + ATTRIBUTES_AT, info.attributes)
    put_i64(data + MAX_TIMESTAMP_AT, info.max_timestamp)
    info.crc = crc32c(data + ATTRIBUTES_AT, <size_t>info.size - ATTRIBUTES_AT)
    put_i32(data + CRC_AT, <int32_t>info.crc)


cdef int validate(uint8_t* data, size_t size, const Rules* rules, int64_t now_ms, BatchInfo* info) noexcept nogil:
    cdef Walk walk
    cdef int codec
    cdef int verdict = check_outline(data, size, rules, info)
    if verdict != NONE:
        return verdict
    codec = info.attributes & COMPRESSION_MASK
    if codec != 0 or rules.compression_type > 0:
        return NEED_PYTHON
    verdict = check_fields(data, rules, info)
    if verdict != NONE:
        return verdict
    walk_begin(&walk, info)
    walk_rules(&walk, rules, now_ms)
    walk_feed(&walk, data + HEADER_SIZE, size - HEADER_SIZE)
    verdict = walk_end(&walk)
    note_walk(&walk, info)
    if walk.bad is not NULL:
        free(walk.bad)
    if verdict != NONE:
        return verdict
    if not walk.consecutive:
        return NEED_PYTHON
    settle_timestamps(data, rules, now_ms, info)
    return NONE


cdef uint32_t* bad_records(const uint8_t* data, size_t size, const Rules* rules, int64_t now_ms) noexcept nogil:
    cdef Walk walk
    cdef BatchInfo info
    if parse_header(data, size, &info) != 0 or info.attributes & COMPRESSION_MASK:
        return NULL
    walk_begin(&walk, &info)
    walk_rules(&walk, rules, now_ms)
    walk_feed(&walk, data + HEADER_SIZE, size - HEADER_SIZE)
    return walk.bad


cdef void note_walk(const Walk* walk, BatchInfo* info) noexcept nogil:
    info.walked_max_timestamp = walk.max_timestamp
    info.walked_max_offset = info.base_offset + walk.max_timestamp_delta
    info.bad_record = walk.bad_record
    info.message = walk.message


# -- the walk ----------------------------------------------------------------------------------------------

cdef void walk_begin(Walk* walk, const BatchInfo* info) noexcept nogil:
    memset(walk, 0, sizeof(Walk))
    walk.records_count = info.records_count
    if info.attributes & TIMESTAMP_LOG_APPEND:
        walk.base_timestamp = info.max_timestamp
    else:
        walk.base_timestamp = info.base_timestamp
        walk.delta_mask = -1
    walk.earliest_timestamp = INT64_MIN
    walk.latest_timestamp = INT64_MAX
    walk.before_max_ms = INT64_MAX
    walk.after_max_ms = INT64_MAX
    walk.target_timestamp = INT64_MAX
    walk.target_delta = INT64_MAX
    walk.consecutive = True
    walk.max_timestamp = -1
    walk.bad_record = -1


cdef void walk_rules(Walk* walk, const Rules* rules, int64_t now_ms) noexcept nogil:
    walk.compacted = rules.compacted
    if rules.log_append_time:
        return
    walk.now_ms = now_ms
    walk.before_max_ms = rules.before_max_ms
    walk.after_max_ms = rules.after_max_ms
    if rules.before_max_ms < INT64_MAX:
        walk.earliest_timestamp = now_ms - rules.before_max_ms
    elif rules.after_max_ms < INT64_MAX:
        walk.earliest_timestamp = INT64_MIN + now_ms      # below this, Kafka's difference overflows
    if rules.after_max_ms < INT64_MAX - now_ms:
        walk.latest_timestamp = now_ms + rules.after_max_ms


cdef int walk_refuse(Walk* walk, const char* message) noexcept nogil:
    walk.verdict = INVALID_RECORD
    walk.bad_record = -1
    walk.message = message
    walk.stage = DONE
    return INVALID_RECORD


cdef void refuse_record(Walk* walk, int code, const char* message) noexcept nogil:
    # A bad timestamp takes precedence over a missing key, as in Kafka. Otherwise the first bad record decides.
    cdef uint32_t count = 0 if walk.bad is NULL else walk.bad[0]
    cdef uint32_t* grown
    if count < BAD_RECORDS_MAX:
        if count & (count - 1) == 0 and (count == 0 or count >= BAD_RECORDS_FIRST):
            # The list is full, because its size doubles each time. It lives until the answer is written.
            grown = <uint32_t*>realloc(walk.bad, (max(2 * count, <uint32_t>BAD_RECORDS_FIRST) + 1) * sizeof(uint32_t))
        else:
            grown = walk.bad
        if grown is not NULL:
            walk.bad = grown
            walk.bad[0] = count + 1
            walk.bad[count + 1] = <uint32_t>walk.records << 1 | (code == INVALID_TIMESTAMP)
    if walk.verdict == NONE or (code == INVALID_TIMESTAMP and walk.verdict != INVALID_TIMESTAMP):
        walk.verdict = code
        walk.bad_record = walk.records
        walk.message = message


# Kafka's rule, including its overflow (LogValidator.recordHasInvalidTimestamp): a timestamp near INT64_MIN counts as
# one in the far future.
cdef bint is_bad_timestamp(const Walk* walk, int64_t timestamp) noexcept nogil:
    cdef uint64_t difference = <uint64_t>walk.now_ms - <uint64_t>timestamp
    return <int64_t>difference > walk.before_max_ms or <int64_t>(0 - difference) > walk.after_max_ms


# Check one record's timestamp and key, and compare it with the target. `walk_whole` calls this only for records that
# may be bad or may be the target.
cdef void judge_record(Walk* walk, int64_t timestamp, int32_t offset_delta, int32_t key_size) noexcept nogil:
    if timestamp >= walk.target_timestamp and offset_delta >= walk.target_delta and not walk.found:
        walk.found = True
        walk.found_timestamp = timestamp
        walk.found_delta = offset_delta
    if walk.compacted and key_size < 0:
        refuse_record(walk, INVALID_RECORD, "Compacted topic cannot accept message without key")
    elif timestamp != -1 and is_bad_timestamp(walk, timestamp):
        refuse_record(walk, INVALID_TIMESTAMP, "Timestamp is out of the range that the topic allows")


cdef void take_record(Walk* walk, const RecordView* view) noexcept nogil:
    cdef int64_t timestamp = <int64_t>(
        <uint64_t>walk.base_timestamp + <uint64_t>(view.timestamp_delta & walk.delta_mask)
    )
    if view.offset_delta != walk.records:
        walk.consecutive = False
    if timestamp > walk.max_timestamp:
        walk.max_timestamp = timestamp
        walk.max_timestamp_delta = view.offset_delta
    judge_record(walk, timestamp, view.offset_delta, view.key_size)
    walk.records += 1


# Continue with a record that is not complete in memory. Return where it ends, `end` if it is still incomplete, NULL if
# it is malformed.
cdef const uint8_t* walk_cut(Walk* walk, const uint8_t* p, const uint8_t* end) noexcept nogil:
    cdef int64_t n
    cdef uint32_t byte
    cdef uint32_t raw
    cdef int32_t value
    while True:
        if walk.skip > 0:
            n = walk.skip if walk.skip < end - p else end - p
            p += n
            walk.skip -= n
            walk.left -= n
            if walk.skip > 0:
                return end
        if walk.stage == DONE:
            if walk.left != 0:
                return NULL
            walk.stage = LENGTH
            take_record(walk, &walk.cut)
            return p
        if p == end:
            return end
        byte = p[0]
        p += 1
        if walk.stage != LENGTH:
            if walk.left == 0:
                return NULL
            walk.left -= 1
        if walk.stage == ATTRIBUTES:
            walk.stage = TIMESTAMP
            continue
        walk.varint |= <uint64_t>(byte & 0x7F) << walk.shift
        walk.shift += 7
        if byte >= 0x80:
            if walk.shift >= (70 if walk.stage == TIMESTAMP else 35):
                return NULL
            continue
        raw = <uint32_t>walk.varint
        value = <int32_t>((raw >> 1) ^ (0 - (raw & 1)))
        if walk.stage == LENGTH:
            if value < 0:
                return NULL
            walk.left = value
            walk.stage = ATTRIBUTES
        elif walk.stage == TIMESTAMP:
            walk.cut.timestamp_delta = <int64_t>((walk.varint >> 1) ^ (0 - (walk.varint & 1)))
            walk.stage = OFFSET
        elif walk.stage == OFFSET:
            walk.cut.offset_delta = value
            walk.stage = KEY
        elif walk.stage == KEY:
            walk.cut.key_size = value
            walk.skip = value if value > 0 else 0
            walk.stage = VALUE
        elif walk.stage == VALUE:
            walk.skip = value if value > 0 else 0
            walk.stage = HEADERS
        elif walk.stage == HEADERS:
            if value < 0 or value > walk.left:
                return NULL
            walk.headers_left = value
            walk.stage = HEADER_KEY if value > 0 else DONE
        elif walk.stage == HEADER_KEY:
            if value < 0:
                return NULL
            walk.skip = value
            walk.stage = HEADER_VALUE
        else:
            walk.skip = value if value > 0 else 0
            walk.headers_left -= 1
            walk.stage = HEADER_KEY if walk.headers_left > 0 else DONE
        if walk.skip > walk.left:
            return NULL
        walk.varint = 0
        walk.shift = 0


# Walk over the complete records of the chunk. Return the start of the first incomplete one; NULL if one is malformed.
# The loop uses local variables so that they stay in registers.
cdef const uint8_t* walk_whole(Walk* walk, const uint8_t* p, const uint8_t* end) noexcept nogil:
    cdef int32_t records = walk.records
    cdef int32_t records_count = walk.records_count
    cdef uint64_t base_timestamp = <uint64_t>walk.base_timestamp
    cdef int64_t delta_mask = walk.delta_mask
    cdef int64_t earliest = walk.earliest_timestamp
    cdef int64_t latest = walk.latest_timestamp if walk.latest_timestamp < walk.target_timestamp \
        else walk.target_timestamp - 1
    cdef int32_t least_key_size = 0 if walk.compacted else INT32_MIN
    cdef int64_t max_timestamp = walk.max_timestamp
    cdef int32_t max_timestamp_delta = walk.max_timestamp_delta
    cdef int32_t misplaced = 0
    cdef int64_t timestamp
    cdef const uint8_t* next
    cdef RecordView view
    cdef int outcome = RECORD_COMPLETE
    while records < records_count:
        outcome = record_read(p, end, &view, &next)
        if outcome != RECORD_COMPLETE:
            break
        timestamp = <int64_t>(base_timestamp + <uint64_t>(view.timestamp_delta & delta_mask))
        misplaced |= view.offset_delta ^ records
        if timestamp > max_timestamp:
            max_timestamp = timestamp
            max_timestamp_delta = view.offset_delta
        if (timestamp < earliest) | (timestamp > latest) | (view.key_size < least_key_size):
            walk.records = records
            judge_record(walk, timestamp, view.offset_delta, view.key_size)
        records += 1
        p = next
    walk.records = records
    walk.max_timestamp = max_timestamp
    walk.max_timestamp_delta = max_timestamp_delta
    walk.consecutive = walk.consecutive and misplaced == 0
    if outcome == RECORD_MALFORMED:
        return NULL
    return p


cdef int walk_feed(Walk* walk, const uint8_t* data, size_t size) noexcept nogil:
    cdef const uint8_t* p = data
    cdef const uint8_t* end = data + size
    if walk.verdict != NONE and walk.bad_record < 0:
        return walk.verdict                       # the records did not parse; ignore the rest
    while p < end:
        if walk.stage == LENGTH and walk.shift == 0:
            p = walk_whole(walk, p, end)
            if p != NULL and walk.records == walk.records_count:
                if p < end:
                    return walk_refuse(walk, "The record batch has more bytes than its records")
                break
        if p != NULL:
            p = walk_cut(walk, p, end)
        if p == NULL:
            return walk_refuse(walk, "A record's length and its fields do not agree")
    return NONE


cdef int walk_end(Walk* walk) noexcept nogil:
    if walk.records != walk.records_count and not (walk.verdict != NONE and walk.bad_record < 0):
        return walk_refuse(walk, "The record batch ends before its last record")
    return walk.verdict


# -- for Python --------------------------------------------------------------------------------------------

def copied(const uint8_t[::1] data not None) -> bytearray:
    """Return a copy of the bytes. The GIL is released during the copy, and the memory is not zeroed first."""
    cdef bytearray copy = PyByteArray_FromStringAndSize(NULL, data.shape[0])
    cdef char* into = PyByteArray_AS_STRING(copy)
    cdef size_t size = data.shape[0]
    if size:
        with nogil:
            memcpy(into, &data[0], size)
    return copy



cdef class BatchHeader:
    """`BatchHeader(buffer, position=0)`: the header fields of one batch, and the results of a walk or a refusal."""

    def __init__(self, const uint8_t[::1] buffer not None, Py_ssize_t position=0):
        cdef Py_ssize_t size = buffer.shape[0]
        if position < 0 or position >= size or parse_header(&buffer[position], size - position, &self.info) != 0:
            raise ValueError(f"no whole record batch of magic 2 at position {position}")

    @property
    def base_offset(self): return self.info.base_offset
    @property
    def size(self): return self.info.size
    @property
    def leader_epoch(self): return self.info.leader_epoch
    @property
    def attributes(self): return self.info.attributes
    @property
    def compression(self): return self.info.attributes & COMPRESSION_MASK
    @property
    def is_transactional(self): return bool(self.info.attributes & TRANSACTIONAL)
    @property
    def is_control(self): return bool(self.info.attributes & CONTROL)
    @property
    def timestamp_type(self): return 1 if self.info.attributes & TIMESTAMP_LOG_APPEND else 0
    @property
    def last_offset_delta(self): return self.info.last_offset_delta
    @property
    def last_offset(self): return self.info.base_offset + self.info.last_offset_delta
    @property
    def base_timestamp(self): return self.info.base_timestamp
    @property
    def max_timestamp(self): return self.info.max_timestamp
    @property
    def producer_id(self): return self.info.producer_id
    @property
    def producer_epoch(self): return self.info.producer_epoch
    @property
    def base_sequence(self): return self.info.base_sequence
    @property
    def records_count(self): return self.info.records_count
    @property
    def crc(self): return self.info.crc
    @property
    def walked_max_timestamp(self): return self.info.walked_max_timestamp
    @property
    def walked_max_offset(self): return self.info.walked_max_offset
    @property
    def bad_record(self): return self.info.bad_record
    @property
    def message(self): return None if self.info.message == NULL else self.info.message.decode()

    def crc_matches(self, const uint8_t[::1] buffer not None, Py_ssize_t position=0):
        """Return whether the header's CRC matches the bytes of the batch at `position`."""
        if position < 0 or self.info.size > buffer.shape[0] - position:
            raise ValueError("the batch is not at this position")
        cdef bint matches
        with nogil:
            matches = crc_matches(&buffer[position], &self.info)
        return matches

    def seal(self, uint8_t[::1] buffer not None):
        """Update length and CRC of the batch that fills `buffer`, after its records were replaced, and read its header
        fields again. The results of a walk stay."""
        cdef BatchInfo walked = self.info
        cdef size_t size = buffer.shape[0]
        if size < HEADER_SIZE or size > INT32_MAX:
            raise ValueError("the batch is too short or too long")
        put_i32(&buffer[8], <int32_t>(size - LENGTH_OVERHEAD))
        put_i32(&buffer[CRC_AT], <int32_t>crc32c(&buffer[ATTRIBUTES_AT], size - ATTRIBUTES_AT))
        read_header(&buffer[0], &self.info)
        self.info.walked_max_timestamp = walked.walked_max_timestamp
        self.info.walked_max_offset = walked.walked_max_offset


cdef class AppendRules:
    """The configuration of a partition that applies to client appends. The defaults are Kafka's."""

    def __init__(
        self, *, int32_t max_message_bytes=1048588, int compression_type=-1, bint log_append_time=False,
        int64_t before_max_ms=INT64_MAX, int64_t after_max_ms=3600000, bint compacted=False, bint transactions=False,
    ):
        self.rules.max_message_bytes = max_message_bytes
        self.rules.compression_type = compression_type
        self.rules.log_append_time = log_append_time
        self.rules.before_max_ms = before_max_ms
        self.rules.after_max_ms = after_max_ms
        self.rules.compacted = compacted
        self.rules.transactions = transactions

    @property
    def max_message_bytes(self): return self.rules.max_message_bytes
    @property
    def compression_type(self): return self.rules.compression_type
    @property
    def log_append_time(self): return self.rules.log_append_time

    def validate(self, uint8_t[::1] buffer not None, int64_t now_ms):
        """Run `validate` of batch.pxd: return (verdict, BatchHeader). The header is zeros if it was not reached."""
        cdef BatchHeader header = BatchHeader.__new__(BatchHeader)
        cdef size_t size = buffer.shape[0]
        cdef uint8_t nothing = 0
        cdef uint8_t* data = &buffer[0] if size else &nothing
        cdef int verdict
        with nogil:
            verdict = validate(data, size, &self.rules, now_ms, &header.info)
        return verdict, header

    def check_header(self, const uint8_t[::1] buffer not None):
        """Check all that `validate` checks before the walk, for compressed batches, too. Return (verdict, BatchHeader)."""
        cdef BatchHeader header = BatchHeader.__new__(BatchHeader)
        cdef size_t size = buffer.shape[0]
        cdef uint8_t nothing = 0
        cdef const uint8_t* data = &buffer[0] if size else &nothing
        cdef int verdict
        with nogil:
            verdict = check_outline(data, size, &self.rules, &header.info)
            if verdict == NONE:
                verdict = check_fields(data, &self.rules, &header.info)
        return verdict, header

    def settle(self, uint8_t[::1] buffer not None, BatchHeader header not None, int64_t now_ms):
        """Correct timestamp type, max_timestamp and CRC in place, after a walk without errors."""
        if header.info.size != buffer.shape[0] or header.info.size < HEADER_SIZE:
            raise ValueError("the buffer must hold exactly the batch")
        settle_timestamps(&buffer[0], &self.rules, now_ms, &header.info)


cdef class RecordWalk:
    """A walk over the records of a batch. It is fed their uncompressed bytes in chunks that may be cut anywhere.

    With `rules`, the records are checked like a client's append. With `target`, the walk finds the first record whose
    timestamp is `target` or later and whose offset is at least `from_offset`."""

    cdef Walk walk
    cdef BatchHeader header

    def __dealloc__(self):
        free(self.walk.bad)

    def __init__(self, BatchHeader header not None, AppendRules rules=None, int64_t now_ms=0, target=None,
                 int64_t from_offset=INT64_MIN):
        self.header = header
        walk_begin(&self.walk, &header.info)
        if rules is not None:
            walk_rules(&self.walk, &rules.rules, now_ms)
        if target is not None:
            self.walk.target_timestamp = target if target > INT64_MIN else INT64_MIN + 1
            self.walk.target_delta = from_offset - header.info.base_offset if from_offset > 0 else INT64_MIN

    def feed(self, const uint8_t[::1] chunk not None):
        """Return 0, or INVALID_RECORD once the records do not parse. The GIL is released meanwhile."""
        cdef size_t size = chunk.shape[0]
        cdef int verdict = self.walk.verdict if self.walk.bad_record < 0 else NONE
        if size:
            with nogil:
                verdict = walk_feed(&self.walk, &chunk[0], size)
        return verdict

    def end(self):
        """Return 0 or the error code, and store the results in the header."""
        cdef int verdict = walk_end(&self.walk)
        note_walk(&self.walk, &self.header.info)
        return verdict

    @property
    def bad_records(self):
        """The refused records, at most BAD_RECORDS_MAX: (index << 1) | 1 if the timestamp is bad, else index << 1."""
        cdef uint32_t i
        return [] if self.walk.bad is NULL else [self.walk.bad[i + 1] for i in range(self.walk.bad[0])]

    @property
    def records(self): return self.walk.records
    @property
    def consecutive(self): return bool(self.walk.consecutive)

    @property
    def message(self): return None if self.walk.message == NULL else self.walk.message.decode()

    @property
    def found(self):
        """(timestamp, offset) of the record that `target` asks for, or None."""
        if not self.walk.found:
            return None
        return self.walk.found_timestamp, self.header.info.base_offset + self.walk.found_delta

    @property
    def largest(self):
        """(timestamp, offset) of the first record with the largest timestamp; None if no record has one."""
        if self.walk.max_timestamp == -1:
            return None
        return self.walk.max_timestamp, self.header.info.base_offset + self.walk.max_timestamp_delta

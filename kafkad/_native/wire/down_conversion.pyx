"""Records of batches v2 as messages of magic 0 and 1, for clients of before Kafka 0.11 (Kafka's RecordsUtil.downConvert).

Headers are left out, and so are control batches and, in magic 0, timestamps. Each record of an uncompressed batch becomes a
message of its own; those below the fetch offset are left out, since old librdkafka relies on it. A compressed batch becomes
one message that wraps all of its records, under the same codec: `feed` makes what it wraps, and `wrap` the message.

An answer has a bounded size. `room` is what is left of it: a message that does not fit is not begun, except the first,
which `first` says what to do with.

Beware: records come from a log, so they are whole; whatever does not parse ends the conversion (Malformed)."""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memmove

from kafkad._native.wire.batch cimport (
    BatchHeader, BatchInfo, COMPRESSION_MASK, CONTROL, HEADER_SIZE, LENGTH_OVERHEAD, RECORD_COMPLETE, RECORD_INCOMPLETE,
    RecordView, TIMESTAMP_LOG_APPEND, parse_header, record_read,
)
from kafkad._native.wire.batch_layout cimport LENGTH_AT, MAGIC_AT
from kafkad._native.wire.crc32 cimport crc32
from kafkad._native.wire.primitives cimport get_i32, get_i64, put_i32, put_i64

from kafkad._native.wire.malformed import Malformed

cdef enum:
    SET_CRC_AT = 12
    SET_MAGIC_AT = 16
    OVERHEAD = 26                       # of a message of magic 0; magic 1 has 8 bytes more

cdef enum First:                        # what becomes of a first message that is larger than the room
    LEFT_OUT = 0
    WHOLE = 1                           # Fetch v3: a client must get on (KIP-74)
    CUT = 2                             # Fetch v0-2: where the client's limit is, so that it sees that it is too low

cdef enum Outcome:
    DONE = 0
    FULL = 1                            # no room for the next record
    BROKEN = 2
    NO_MEMORY = 3


cdef class DownConverter:
    """The messages for one partition's part of an answer, of `magic` 0 or 1, from `from_offset` on."""

    cdef int magic
    cdef int64_t from_offset
    cdef size_t room
    cdef int first
    cdef size_t limit
    cdef uint8_t* out
    cdef size_t capacity
    cdef readonly size_t size
    cdef readonly bint full             # nothing more fits
    cdef readonly int64_t next_offset   # behind all that was looked at, -1 before
    cdef uint8_t* cut                   # a record that a piece of a compressed batch does not end
    cdef size_t cut_size
    cdef size_t cut_capacity
    cdef int64_t wrapped_base           # offset of the first record of the compressed batch, -1 before it
    cdef int64_t wrapped_last
    cdef int64_t wrapped_max

    def __init__(self, int magic, int64_t from_offset, int64_t room, int first, int64_t limit):
        self.magic = magic
        self.from_offset = from_offset
        self.room = <size_t>max(room, <int64_t>0)
        self.first = first
        self.limit = <size_t>max(limit, <int64_t>0)
        self.next_offset = -1

    def __dealloc__(self):
        free(self.out)
        free(self.cut)

    cdef bint reserve(self, size_t more) noexcept nogil:
        cdef size_t capacity
        cdef uint8_t* grown
        if self.size + more <= self.capacity:
            return True
        capacity = max(self.capacity * 2, self.size + more)
        grown = <uint8_t*>realloc(self.out, capacity)
        if grown is NULL:
            return False
        self.out = grown
        self.capacity = capacity
        return True

    cdef bint fits(self, size_t size) noexcept nogil:
        """Whether a message of this size may be added; `full` says that nothing more can."""
        if self.size + size <= self.room or (self.size == 0 and self.first != LEFT_OUT and not self.full):
            return True
        self.full = True
        return False

    cdef void added(self, size_t size) noexcept nogil:
        self.size += size
        if self.size > self.room:                       # a first one
            self.full = True
            if self.first == CUT and self.size > self.limit:
                self.size = self.limit

    cdef uint8_t* put(self, uint8_t* at, int64_t offset, int64_t timestamp, int attributes, const uint8_t* key, int32_t key_size,
                      const uint8_t* value, int32_t value_size) noexcept nogil:
        cdef uint8_t* begin = at
        put_i64(at, offset)
        at[SET_MAGIC_AT] = <uint8_t>self.magic
        at[SET_MAGIC_AT + 1] = <uint8_t>attributes
        at += SET_MAGIC_AT + 2
        if self.magic:
            put_i64(at, timestamp)
            at += 8
        put_i32(at, key_size if key_size >= 0 else -1)
        at += 4
        if key_size > 0:
            memcpy(at, key, <size_t>key_size)
            at += key_size
        put_i32(at, value_size if value_size >= 0 else -1)
        at += 4
        if value_size > 0:
            memcpy(at, value, <size_t>value_size)
            at += value_size
        put_i32(begin + LENGTH_AT, <int32_t>(at - begin - LENGTH_OVERHEAD))
        put_i32(begin + SET_CRC_AT, <int32_t>crc32(begin + SET_MAGIC_AT, <size_t>(at - begin) - SET_MAGIC_AT))
        return at

    cdef inline size_t message_size(self, int64_t key_size, int64_t value_size) noexcept nogil:
        return <size_t>(OVERHEAD + 8 * self.magic + max(key_size, <int64_t>0) + max(value_size, <int64_t>0))

    cdef int plain_batch(self, const uint8_t* data, const BatchInfo* info) noexcept nogil:
        cdef const uint8_t* p = data + HEADER_SIZE
        cdef const uint8_t* end = data + info.size
        cdef const uint8_t* next = NULL
        cdef bint stamped = info.attributes & TIMESTAMP_LOG_APPEND
        cdef int attributes = TIMESTAMP_LOG_APPEND if stamped and self.magic else 0
        cdef int64_t offset, timestamp
        cdef size_t size
        cdef RecordView view
        cdef int32_t left = info.records_count
        while left > 0:
            left -= 1
            if record_read(p, end, &view, &next) != RECORD_COMPLETE:
                return BROKEN
            p = next
            offset = info.base_offset + view.offset_delta
            if offset < self.from_offset:
                continue
            size = self.message_size(view.key_size, view.value_size)
            if not self.fits(size):
                return FULL
            if not self.reserve(size):
                return NO_MEMORY
            timestamp = info.max_timestamp if stamped else (
                <int64_t>(<uint64_t>info.base_timestamp + <uint64_t>view.timestamp_delta))
            self.put(self.out + self.size, offset, timestamp, attributes, view.key, view.key_size, view.value, view.value_size)
            self.added(size)
            self.next_offset = offset + 1
            if self.full:
                return FULL
        self.next_offset = info.base_offset + info.last_offset_delta + 1
        return DONE

    cdef int older_message(self, const uint8_t* data, size_t size) noexcept nogil:
        """A message that is stored in a format which the client knows goes as it is."""
        if not self.fits(size):
            return FULL
        if not self.reserve(size):
            return NO_MEMORY
        memcpy(self.out + self.size, data, size)
        self.added(size)
        self.next_offset = get_i64(data) + 1
        return FULL if self.full else DONE

    def convert(self, const uint8_t[::1] data not None, Py_ssize_t position):
        """Convert the batches from `position` on, up to one that is compressed (or a message of magic 1 for a client of magic
        0), that is not there as a whole, or for which there is no room: its position."""
        cdef const uint8_t* p = &data[0] if data.shape[0] else NULL
        cdef size_t size, end = <size_t>data.shape[0], at = <size_t>position
        cdef int outcome = DONE
        cdef BatchInfo info
        with nogil:
            while outcome == DONE and not self.full and at + MAGIC_AT < end:
                size = <size_t>max(get_i32(p + at + LENGTH_AT), 0) + LENGTH_OVERHEAD
                if size > end - at:
                    break
                if p[at + MAGIC_AT] < 2:
                    if p[at + MAGIC_AT] > self.magic:
                        break
                    outcome = self.older_message(p + at, size)
                elif parse_header(p + at, end - at, &info) != 0:
                    outcome = BROKEN
                elif info.attributes & CONTROL:
                    self.next_offset = info.base_offset + info.last_offset_delta + 1
                elif info.attributes & COMPRESSION_MASK:
                    break
                else:
                    outcome = self.plain_batch(p + at, &info)
                if outcome == DONE:
                    at += size
        if outcome == NO_MEMORY:
            raise MemoryError
        if outcome == BROKEN:
            raise Malformed(f"a batch at position {at} does not parse")
        return <Py_ssize_t>at

    # -- a compressed batch

    def begin(self):
        """A compressed batch comes."""
        self.cut_size = 0
        self.wrapped_base = -1
        self.wrapped_max = -1

    cdef int64_t wrap_records(self, const BatchInfo* info, const uint8_t** p, const uint8_t* end, uint8_t* out) noexcept nogil:
        """Messages at `out` for the records that are whole; NULL: only their size. -1: a record does not parse."""
        cdef const uint8_t* next = NULL
        cdef bint stamped = info.attributes & TIMESTAMP_LOG_APPEND
        cdef int attributes = TIMESTAMP_LOG_APPEND if stamped and self.magic else 0
        cdef int64_t offset, timestamp, made = 0
        cdef int64_t base = self.wrapped_base
        cdef RecordView view
        cdef int outcome
        while p[0] < end:
            outcome = record_read(p[0], end, &view, &next)
            if outcome == RECORD_INCOMPLETE:
                break
            if outcome != RECORD_COMPLETE:
                return -1
            p[0] = next
            offset = info.base_offset + view.offset_delta
            if base < 0:
                base = offset
            if out is NULL:
                made += <int64_t>self.message_size(view.key_size, view.value_size)
                continue
            timestamp = info.max_timestamp if stamped else (
                <int64_t>(<uint64_t>info.base_timestamp + <uint64_t>view.timestamp_delta))
            self.wrapped_base = base
            self.wrapped_last = offset
            self.wrapped_max = max(self.wrapped_max, timestamp)
            made = self.put(out + made, offset - base if self.magic else offset, timestamp, attributes, view.key, view.key_size,
                            view.value, view.value_size) - out
        return made

    cdef bint keep(self, const uint8_t* data, size_t size) noexcept nogil:
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

    @property
    def held(self):
        """Bytes of memory that a record takes which is not whole yet."""
        return self.cut_capacity

    def feed(self, BatchHeader header not None, const uint8_t[::1] piece not None):
        """The messages for the records that end in this piece of the batch's unpacked bytes."""
        cdef const uint8_t* begin
        cdef const uint8_t* p
        cdef const uint8_t* end
        cdef size_t left
        cdef int64_t made
        cdef bytearray messages
        cdef uint8_t* out
        if piece.shape[0] == 0:
            return bytearray()
        begin = &piece[0]
        end = begin + piece.shape[0]
        if self.cut_size:                               # a record that the piece before has begun
            if not self.keep(begin, <size_t>piece.shape[0]):
                raise MemoryError
            begin = self.cut
            end = begin + self.cut_size
        p = begin
        with nogil:
            made = self.wrap_records(&header.info, &p, end, NULL)
        if made < 0:
            raise Malformed("a record does not parse")
        messages = PyByteArray_FromStringAndSize(NULL, <Py_ssize_t>made)
        out = <uint8_t*>PyByteArray_AS_STRING(messages)
        p = begin
        with nogil:
            self.wrap_records(&header.info, &p, end, out)
        left = <size_t>(end - p)
        if self.cut_size:
            self.cut_size -= <size_t>(p - begin)
            memmove(self.cut, p, self.cut_size)
        elif left and not self.keep(p, left):
            raise MemoryError
        return messages

    def wrap(self, BatchHeader header not None, const uint8_t[::1] packed not None):
        """The message that wraps what `feed` made, as the batch's codec packed it. False: there is no room for it."""
        cdef bint stamped = header.info.attributes & TIMESTAMP_LOG_APPEND
        cdef int attributes = header.info.attributes & COMPRESSION_MASK
        cdef int64_t last = header.info.base_offset + header.info.last_offset_delta
        cdef size_t size
        if self.cut_size:
            raise Malformed("a batch ends within a record")
        if self.wrapped_base < 0:                       # the cleaner left none
            self.next_offset = last + 1
            return True
        if packed.shape[0] > INT32_MAX - 64:
            raise Malformed("a batch is too large for a message")
        size = self.message_size(0, packed.shape[0])
        if not self.fits(size):
            return False
        if not self.reserve(size):
            raise MemoryError
        if stamped and self.magic:
            attributes |= TIMESTAMP_LOG_APPEND
        self.put(self.out + self.size, self.wrapped_last, header.info.max_timestamp if stamped else self.wrapped_max, attributes,
                 NULL, -1, &packed[0], <int32_t>packed.shape[0])
        self.added(size)
        self.next_offset = last + 1
        return True

    def add(self, int64_t offset, object key, object value):
        """One message of magic 0. False: there is no room for it."""
        cdef const uint8_t[::1] key_bytes = key
        cdef const uint8_t[::1] value_bytes = value
        cdef int32_t key_size = -1 if key is None else <int32_t>key_bytes.shape[0]
        cdef int32_t value_size = -1 if value is None else <int32_t>value_bytes.shape[0]
        cdef size_t size = self.message_size(key_size, value_size)
        if offset >= self.from_offset:
            if not self.fits(size):
                return False
            if not self.reserve(size):
                raise MemoryError
            self.put(self.out + self.size, offset, -1, 0, &key_bytes[0] if key_size > 0 else NULL, key_size,
                     &value_bytes[0] if value_size > 0 else NULL, value_size)
            self.added(size)
        self.next_offset = offset + 1
        return True

    def messages(self):
        """All of them."""
        return PyBytes_FromStringAndSize(<const char*>self.out, <Py_ssize_t>self.size)

"""Convert records of v2 batches to messages of magic 0 and 1, for clients older than Kafka 0.11 (Kafka's
RecordsUtil.downConvert).

Headers and control batches are left out, and in magic 0 timestamps, too. Each record of an uncompressed batch becomes one
message. Records below the fetch offset are left out, because old librdkafka relies on it. A compressed batch becomes one
message that wraps all its records with the same codec: `feed` converts the records, and `wrap` builds the message. It is
left out if the cleaner removed all its records from the fetch offset on: a client that gets nothing else stays there.

`room` bounds the size of the answer. A message that does not fit is not begun, except the first one, which is treated as
`first` says.

Beware: records come from a log, so they are complete. Anything that does not parse ends the conversion (Malformed)."""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize
from cpython.buffer cimport PyBuffer_FillInfo
from libc.errno cimport errno
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memmove
from posix.mman cimport MAP_ANONYMOUS, MAP_FAILED, MAP_PRIVATE, PROT_READ, PROT_WRITE, mmap, munmap
from posix.unistd cimport pread

from kafkad._native.wire.batch cimport (
    BatchHeader, BatchInfo, COMPRESSION_MASK, CONTROL, HEADER_SIZE, LENGTH_OVERHEAD, RECORD_COMPLETE, RECORD_INCOMPLETE,
    RecordView, TIMESTAMP_LOG_APPEND, parse_header, record_read,
)
from kafkad._native.wire.batch_layout cimport LENGTH_AT, MAGIC_AT
from kafkad._native.wire.crc32 cimport crc32
from kafkad._native.wire.primitives cimport get_i32, get_i64, put_i32, put_i64

from kafkad._native.wire.malformed import Malformed

import os

cdef enum:
    SET_CRC_AT = 12
    SET_MAGIC_AT = 16
    OVERHEAD = 26                       # bytes of a message of magic 0 beside key and value; magic 1 has 8 more

cdef enum First:                        # what to do with a first message that is larger than the room
    LEFT_OUT = 0
    WHOLE = 1                           # Fetch v3: the client must make progress (KIP-74)
    CUT = 2                             # Fetch v0-2: cut at the client's limit, so the client sees that it is too low

cdef enum Outcome:
    DONE = 0
    FULL = 1                            # no room for the next record
    BROKEN = 2
    NO_MEMORY = 3

cdef enum:
    BLOCK = (1 << 20) + (64 << 10)      # a whole answer, if no message is larger
    SPARE_MAX = 2
    READ_BYTES = 128 << 10              # of a file, at once

cdef void* spare[SPARE_MAX]
cdef int spare_count = 0


cdef class Messages:
    """Bytes of an answer. Its memory is a block of a page map, which the next conversion gets: blocks of this size from
    malloc, made by threads and freed by the loop, cost a page fault for each page, and left threads' heaps in pieces."""

    def __dealloc__(self):
        release(self)

    def __len__(self):
        return <Py_ssize_t>self.size

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, self.data, <Py_ssize_t>self.size, 1, flags)


cdef void release(Messages messages) noexcept:
    global spare_count
    if not messages.is_block:
        free(messages.data)
    elif spare_count < SPARE_MAX:
        spare[spare_count] = messages.data
        spare_count += 1
    else:
        munmap(messages.data, BLOCK)


cdef bint grow(Messages messages, size_t size, size_t wanted) noexcept:
    """Room for so many bytes; the first `size` ones stay. False: there is no memory."""
    global spare_count
    cdef size_t capacity
    cdef void* grown
    cdef bint is_block = wanted <= BLOCK
    if is_block and spare_count:
        spare_count -= 1
        grown = spare[spare_count]
        capacity = BLOCK
    elif is_block:
        grown = mmap(NULL, BLOCK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
        if grown == MAP_FAILED:
            return False
        capacity = BLOCK
    else:
        capacity = max(messages.capacity * 2, wanted)
        grown = malloc(capacity)
        if grown is NULL:
            return False
    if size:
        memcpy(grown, messages.data, size)
    release(messages)
    messages.data = <uint8_t*>grown
    messages.capacity = capacity
    messages.is_block = is_block
    return True


cdef void give_back_spare_blocks() noexcept:
    global spare_count
    while spare_count:
        spare_count -= 1
        munmap(spare[spare_count], BLOCK)


cdef int accept(int outcome, int64_t position) except -1:
    if outcome == NO_MEMORY:
        raise MemoryError
    if outcome == BROKEN:
        raise Malformed(f"a batch at position {position} does not parse")
    return 0


cdef class DownConverter:
    """Build one partition's messages of an answer, with `magic` 0 or 1, from `from_offset` on."""

    cdef int magic
    cdef int64_t from_offset
    cdef size_t room
    cdef int first
    cdef size_t limit
    cdef Messages held_by
    cdef readonly size_t size
    cdef readonly bint full             # nothing more fits
    cdef readonly int64_t next_offset   # after the last record read, -1 at the start
    cdef uint8_t* cut                   # an incomplete record at the end of a piece of a compressed batch
    cdef size_t cut_size
    cdef size_t cut_capacity
    cdef bytearray read                 # what convert_file read: `read_size` bytes from `read_position` on
    cdef size_t read_size
    cdef int64_t read_position
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
        self.held_by = Messages()

    def __dealloc__(self):
        free(self.cut)

    cdef bint reserve(self, size_t more) noexcept nogil:
        if self.size + more <= self.held_by.capacity:
            return True
        with gil:
            return grow(self.held_by, self.size, self.size + more)

    cdef bint fits(self, size_t size) noexcept nogil:
        """Return whether a message of this size may be added. If not, set `full`."""
        if self.size + size <= self.room or (self.size == 0 and self.first != LEFT_OUT and not self.full):
            return True
        self.full = True
        return False

    cdef void added(self, size_t size) noexcept nogil:
        self.size += size
        if self.size > self.room:                       # a large first message
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
            self.put(self.held_by.data + self.size, offset, timestamp, attributes, view.key, view.key_size, view.value, view.value_size)
            self.added(size)
            self.next_offset = offset + 1
            if self.full:
                return FULL
        self.next_offset = info.base_offset + info.last_offset_delta + 1
        return DONE

    cdef int older_message(self, const uint8_t* data, size_t size) noexcept nogil:
        """Add a stored message whose format the client knows, unchanged."""
        if not self.fits(size):
            return FULL
        if not self.reserve(size):
            return NO_MEMORY
        memcpy(self.held_by.data + self.size, data, size)
        self.added(size)
        self.next_offset = get_i64(data) + 1
        return FULL if self.full else DONE

    cdef int convert_batches(self, const uint8_t* p, size_t end, size_t* position) noexcept nogil:
        cdef size_t size, at = position[0]
        cdef int outcome = DONE
        cdef BatchInfo info
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
        position[0] = at
        return outcome

    def convert(self, const uint8_t[::1] data not None, Py_ssize_t position):
        """Convert the batches from `position` on. Stop before a batch that is compressed, incomplete or larger than the
        room, and before a message of magic 1 for a client of magic 0. Return the position where it stopped."""
        cdef const uint8_t* p = &data[0] if data.shape[0] else NULL
        cdef size_t end = <size_t>data.shape[0], at = <size_t>position
        cdef int outcome
        with nogil:
            outcome = self.convert_batches(p, end, &at)
        accept(outcome, <int64_t>at)
        return <Py_ssize_t>at

    def convert_file(self, int fd, int64_t position, int64_t end):
        """Read at most READ_BYTES of a file, and convert their batches like `convert`. Return the position where it stopped.
        What was read from there on is in `unread`, and is not read again. Raises OSError."""
        cdef size_t used = self.read_size
        cdef int64_t wanted, got = 0
        cdef int outcome = DONE
        cdef int failure = 0
        cdef uint8_t* read
        if self.read is None:
            self.read = PyByteArray_FromStringAndSize(NULL, READ_BYTES)
        read = <uint8_t*>PyByteArray_AS_STRING(self.read)
        if self.read_position <= position <= self.read_position + <int64_t>self.read_size:
            used = <size_t>(position - self.read_position)
        with nogil:
            self.drop_read(read, used, position)
            wanted = min(<int64_t>(READ_BYTES - self.read_size), end - position - <int64_t>self.read_size)
            if wanted > 0:
                got = pread(fd, read + self.read_size, <size_t>wanted, position + <int64_t>self.read_size)
            if got < 0:
                failure = errno
            else:
                self.read_size += <size_t>got
                used = 0
                outcome = self.convert_batches(read, self.read_size, &used)
                position += <int64_t>used
                self.drop_read(read, used, position)
        if failure:
            raise OSError(failure, os.strerror(failure))
        accept(outcome, position)
        return position

    cdef void drop_read(self, uint8_t* read, size_t used, int64_t position) noexcept nogil:
        """Forget the first `used` bytes of what was read. The rest is at `position` of the file."""
        self.read_size -= used
        self.read_position = position
        if used and self.read_size:
            memmove(read, read + used, self.read_size)

    @property
    def unread(self):
        """What `convert_file` read and did not convert."""
        return memoryview(self.read)[:self.read_size]

    # -- a compressed batch

    def begin(self):
        """Begin a compressed batch."""
        self.cut_size = 0
        self.wrapped_base = -1
        self.wrapped_max = -1

    cdef int64_t wrap_records(self, const BatchInfo* info, const uint8_t** p, const uint8_t* end, uint8_t* out) noexcept nogil:
        """Write messages to `out` for the complete records, and return their size. With NULL, only compute the size.
        Return -1 if a record does not parse."""
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
        """Bytes of memory that hold an incomplete record."""
        return self.cut_capacity

    def feed(self, BatchHeader header not None, const uint8_t[::1] piece not None):
        """Return the messages for the records that end in this piece of the batch's unpacked bytes."""
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
        if self.cut_size:                               # a record that began in the previous piece
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
        """Add the message that wraps the output of `feed`, packed with the batch's codec. Return False if it does not
        fit."""
        cdef bint stamped = header.info.attributes & TIMESTAMP_LOG_APPEND
        cdef int attributes = header.info.attributes & COMPRESSION_MASK
        cdef int64_t last = header.info.base_offset + header.info.last_offset_delta
        cdef size_t size
        if self.cut_size:
            raise Malformed("a batch ends within a record")
        if self.wrapped_base < 0 or self.wrapped_last < self.from_offset:   # the cleaner removed all records, or the rest
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
        self.put(self.held_by.data + self.size, self.wrapped_last, header.info.max_timestamp if stamped else self.wrapped_max, attributes,
                 NULL, -1, &packed[0], <int32_t>packed.shape[0])
        self.added(size)
        self.next_offset = last + 1
        return True

    def add(self, int64_t offset, object key, object value):
        """Add a message of magic 0. Return False if it does not fit."""
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
            self.put(self.held_by.data + self.size, offset, -1, 0, &key_bytes[0] if key_size > 0 else NULL, key_size,
                     &value_bytes[0] if value_size > 0 else NULL, value_size)
            self.added(size)
        self.next_offset = offset + 1
        return True

    def messages(self):
        """Return all messages, once."""
        cdef Messages made = self.held_by
        if self.size == 0:
            return b""
        self.held_by = Messages()
        made.size = self.size
        return made

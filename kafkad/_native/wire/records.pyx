"""Convert records between Python objects and the bytes of a batch, for the control plane and the client.

The broker's produce and fetch path creates no such objects; it reads records in place (`batch.pyx`)."""

cimport cython
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport INT32_MAX, int16_t, int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy

from kafkad._native.wire.batch cimport (
    HEADER_SIZE,
    RECORD_COMPLETE,
    TIMESTAMP_LOG_APPEND,
    BatchHeader,
    RecordView,
    record_read,
    record_varint,
)
from kafkad._native.wire.crc32c cimport crc32c
from kafkad._native.wire.malformed import Malformed
from kafkad._native.wire.primitives cimport put_i16, put_i32, put_i64, put_varint, put_varlong
from kafkad._native.wire.batch_layout cimport (
    ATTRIBUTES_AT, BASE_SEQUENCE_AT, BASE_TIMESTAMP_AT, CRC_AT, LAST_OFFSET_DELTA_AT, LEADER_EPOCH_AT, LENGTH_AT,
    MAGIC_AT, MAX_TIMESTAMP_AT, PRODUCER_EPOCH_AT, PRODUCER_ID_AT, RECORDS_COUNT_AT,
)


@cython.freelist(64)
cdef class Record:
    """One record. An `offset` of -1 means the offset after the previous record, when a batch is built."""

    cdef public object key
    cdef public object value
    cdef public list headers
    cdef public int64_t timestamp
    cdef public int64_t offset

    def __init__(self, key=None, value=None, headers=None, int64_t timestamp=-1, int64_t offset=-1):
        self.key = key
        self.value = value
        self.headers = [] if headers is None else list(headers)
        self.timestamp = timestamp
        self.offset = offset

    def __eq__(self, other):
        if type(other) is not Record:
            return NotImplemented
        cdef Record that = other
        return (
            self.offset == that.offset and self.timestamp == that.timestamp and self.key == that.key
            and self.value == that.value and self.headers == that.headers
        )

    __hash__ = None

    def __repr__(self):
        return (
            f"Record(key={self.key!r}, value={self.value!r}, headers={self.headers!r}, "
            f"timestamp={self.timestamp}, offset={self.offset})"
        )


# -- reading -----------------------------------------------------------------------------------------------

cdef object sized(const uint8_t* data, int32_t size):
    return None if size < 0 else PyBytes_FromStringAndSize(<const char*>data, size)


cdef list read_headers(const RecordView* view, const uint8_t* end):
    # record_read has checked that every size fits.
    cdef list headers = []
    cdef const uint8_t* p = view.headers
    cdef int32_t size = -1
    cdef int32_t i
    cdef str name
    for i in range(view.headers_count):
        p = record_varint(p, end, &size)
        name = PyBytes_FromStringAndSize(<const char*>p, size).decode("utf-8", "replace")
        p = record_varint(p + size, end, &size)
        headers.append((name, sized(p, size)))
        if size > 0:
            p += size
    return headers


def decode(BatchHeader header not None, const uint8_t[::1] data not None):
    """Return the records of a batch, given their uncompressed bytes. Raise Malformed."""
    cdef list records = []
    cdef uint8_t nothing = 0
    cdef const uint8_t* p = &data[0] if data.shape[0] else &nothing
    cdef const uint8_t* end = p + data.shape[0]
    cdef const uint8_t* next = NULL
    cdef bint log_append_time = header.info.attributes & TIMESTAMP_LOG_APPEND
    cdef RecordView view
    cdef Record record
    cdef int32_t i
    for i in range(header.info.records_count):
        if record_read(p, end, &view, &next) != RECORD_COMPLETE:
            raise Malformed(f"record {i} of the batch at offset {header.info.base_offset} does not parse")
        record = Record.__new__(Record)
        record.key = sized(view.key, view.key_size)
        record.value = sized(view.value, view.value_size)
        record.headers = read_headers(&view, next) if view.headers_count else []
        if log_append_time:
            record.timestamp = header.info.max_timestamp
        else:
            record.timestamp = <int64_t>(<uint64_t>header.info.base_timestamp + <uint64_t>view.timestamp_delta)
        record.offset = header.info.base_offset + view.offset_delta
        records.append(record)
        p = next
    if p != end:
        raise Malformed(f"the batch at offset {header.info.base_offset} has more bytes than its records")
    return records


# -- writing -----------------------------------------------------------------------------------------------

cdef struct Output:
    uint8_t* data
    size_t size
    size_t capacity


cdef int reserve(Output* output, size_t more) except -1:
    cdef uint8_t* data
    cdef size_t capacity
    if output.capacity - output.size >= more:
        return 0
    capacity = 2 * (output.size + more)
    data = <uint8_t*>realloc(output.data, capacity)
    if data == NULL:
        raise MemoryError()
    output.data = data
    output.capacity = capacity
    return 0


cdef inline size_t varint_size(int32_t value) noexcept nogil:
    cdef uint8_t scratch[5]
    return put_varint(scratch, value)


cdef bytes as_bytes(object data):
    return data if type(data) is bytes else bytes(memoryview(data))


cdef inline size_t sized_size(bytes data) except? 0:
    if data is None:
        return 1
    if PyBytes_GET_SIZE(data) > INT32_MAX - 64:
        raise ValueError("a record's key or value is too long")
    return varint_size(<int32_t>PyBytes_GET_SIZE(data)) + PyBytes_GET_SIZE(data)


cdef inline uint8_t* put_sized(uint8_t* p, bytes data) noexcept:
    if data is None:
        p[0] = 1                  # -1
        return p + 1
    p += put_varint(p, <int32_t>PyBytes_GET_SIZE(data))
    memcpy(p, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
    return p + PyBytes_GET_SIZE(data)


cdef int put_record(Output* output, Record record, int64_t timestamp_delta, int32_t offset_delta) except -1:
    cdef bytes key = None if record.key is None else as_bytes(record.key)
    cdef bytes value = None if record.value is None else as_bytes(record.value)
    cdef list headers = None
    cdef bytes header_key
    cdef bytes header_value
    cdef uint8_t scratch[10]
    cdef uint8_t* p
    cdef size_t body = 1 + put_varlong(scratch, timestamp_delta) + varint_size(offset_delta)
    body += sized_size(key) + sized_size(value) + varint_size(<int32_t>len(record.headers))
    if record.headers:
        headers = []
        for name, data in record.headers:
            header_key = (<str?>name).encode()
            header_value = None if data is None else as_bytes(data)
            headers.append((header_key, header_value))
            body += sized_size(header_key) + sized_size(header_value)
    if body > INT32_MAX:
        raise ValueError("a record is too long")
    reserve(output, body + 5)
    p = output.data + output.size
    p += put_varint(p, <int32_t>body)
    p[0] = 0                      # attributes, unused
    p += 1
    p += put_varlong(p, timestamp_delta)
    p += put_varint(p, offset_delta)
    p = put_sized(p, key)
    p = put_sized(p, value)
    p += put_varint(p, <int32_t>len(record.headers))
    if headers is not None:
        for header_key, header_value in headers:
            p = put_sized(p, header_key)
            p = put_sized(p, header_value)
    output.size = p - output.data
    return 0


def encode(records, int64_t base_offset=0):
    """Encode records, uncompressed, after room for the batch header. Return (bytearray, count, last offset delta, base
    timestamp, max timestamp). The first record's timestamp is the base."""
    cdef Output output = Output(NULL, 0, 0)
    cdef int64_t base_timestamp = -1
    cdef int64_t max_timestamp = -1
    cdef int64_t delta = -1
    cdef int64_t last_delta = -1
    cdef int32_t count = 0
    cdef Record record
    try:
        reserve(&output, 1024)
        output.size = HEADER_SIZE
        for record in records:
            delta = last_delta + 1 if record.offset < 0 else record.offset - base_offset
            if delta <= last_delta or delta > INT32_MAX:
                raise ValueError(f"offset {record.offset} cannot follow in a batch from {base_offset} on")
            if count == 0:
                base_timestamp = record.timestamp
            if record.timestamp > max_timestamp:
                max_timestamp = record.timestamp
            put_record(&output, record, record.timestamp - base_timestamp, <int32_t>delta)
            if output.size > INT32_MAX:
                raise ValueError("the batch is too long")
            last_delta = delta
            count += 1
        buffer = PyByteArray_FromStringAndSize(<const char*>output.data, output.size)
        for i in range(HEADER_SIZE):
            buffer[i] = 0
        return buffer, count, last_delta, base_timestamp, max_timestamp
    finally:
        free(output.data)


cdef class Renumbering:
    """Give the records of a batch the offset deltas 0, 1, 2 …. The bytes may be cut anywhere. The records were walked
    before, so errors here are plain Malformed."""

    cdef Output output
    cdef uint8_t head[24]               # a record's length, attributes, timestamp delta and offset delta
    cdef int head_size
    cdef int64_t rest                   # remaining bytes of the record, which are copied unchanged
    cdef int32_t records

    def __dealloc__(self):
        free(self.output.data)

    def feed(self, const uint8_t[::1] chunk not None) -> bytes:
        """Return the output that is known after this chunk."""
        cdef const uint8_t* p = &chunk[0] if chunk.shape[0] else NULL
        cdef const uint8_t* end = p + chunk.shape[0]
        cdef int64_t size
        cdef int failed = 0
        reserve(&self.output, 2 * chunk.shape[0] + 64)      # a delta grows by at most 4 bytes; a record has at least 7
        self.output.size = 0
        with nogil:
            while p < end and not failed:
                if self.rest:
                    size = min(self.rest, end - p)
                    memcpy(self.output.data + self.output.size, p, size)
                    self.output.size += size
                    self.rest -= size
                    p += size
                elif self.head_size == sizeof(self.head):
                    failed = 1
                else:
                    self.head[self.head_size] = p[0]
                    self.head_size += 1
                    p += 1
                    if (p - 1)[0] < 0x80:
                        failed = self.put_head()
        if failed:
            raise Malformed(f"record {self.records} does not parse")
        return PyBytes_FromStringAndSize(<char*>self.output.data, self.output.size)

    def end(self, int32_t count) -> None:
        """Check that exactly `count` complete records were fed."""
        if self.rest or self.head_size or self.records != count:
            raise Malformed("the records end elsewhere than they should")

    cdef int put_head(self) noexcept nogil:
        # If the head is complete, write it with the new delta.
        cdef const uint8_t* end = self.head + self.head_size
        cdef const uint8_t* body
        cdef const uint8_t* p
        cdef int32_t length = 0, delta = 0
        cdef int size
        cdef uint8_t* out
        cdef uint8_t delta_bytes[5]
        body = record_varint(self.head, end, &length)
        if body is NULL or body == end:
            return 0
        p = body + 1
        while p < end and p[0] >= 0x80:
            p += 1
        if p >= end or p + 1 >= end or record_varint(p + 1, end, &delta) is NULL:
            return 0
        if length < end - body:
            return 1
        self.rest = length - (end - body)
        size = <int>(p + 1 - body)                          # attributes and the timestamp delta, unchanged
        out = self.output.data + self.output.size
        out += put_varint(out, <int32_t>(size + self.rest) + put_varint(delta_bytes, self.records))
        memcpy(out, body, size)
        out += size
        out += put_varint(out, self.records)
        self.output.size = out - self.output.data
        self.records += 1
        self.head_size = 0
        return 0

def write_header(
    bytearray buffer not None, *, int64_t base_offset, int32_t leader_epoch, int16_t attributes,
    int32_t last_offset_delta, int64_t base_timestamp, int64_t max_timestamp, int64_t producer_id,
    int16_t producer_epoch, int32_t base_sequence, int32_t records_count,
):
    """Write the header in front of the records; CRC and length last."""
    if len(buffer) < HEADER_SIZE or len(buffer) > INT32_MAX:
        raise ValueError("the batch is too short or too long")
    cdef uint8_t* p = <uint8_t*>PyByteArray_AS_STRING(buffer)
    put_i64(p, base_offset)
    put_i32(p + LENGTH_AT, <int32_t>(len(buffer) - 12))
    put_i32(p + LEADER_EPOCH_AT, leader_epoch)
    p[MAGIC_AT] = 2
    put_i16(p + ATTRIBUTES_AT, attributes)
    put_i32(p + LAST_OFFSET_DELTA_AT, last_offset_delta)
    put_i64(p + BASE_TIMESTAMP_AT, base_timestamp)
    put_i64(p + MAX_TIMESTAMP_AT, max_timestamp)
    put_i64(p + PRODUCER_ID_AT, producer_id)
    put_i16(p + PRODUCER_EPOCH_AT, producer_epoch)
    put_i32(p + BASE_SEQUENCE_AT, base_sequence)
    put_i32(p + RECORDS_COUNT_AT, records_count)
    put_i32(p + CRC_AT, <int32_t>crc32c(p + 21, len(buffer) - 21))

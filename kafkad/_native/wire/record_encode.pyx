"""Encode Arrow columns as records of v2 batches, without a Python object per row.

    encoder = RecordEncoder(partitions=3, batch_bytes=1 << 18)
    next = encoder.append(now_ms, value, key, headers, partition, start=0)    # encode rows, until enough is finished
    encoder.close()                                                           # finish the open batches
    for encoded in encoder.take(): ...                                        # in the order they were finished

A row goes to the same partition as with Kafka's producer (KIP-480): the one that it names, otherwise the one given by
murmur2 of its key, otherwise one partition after the other, batch by batch. An `Encoded` has room for the batch header,
followed by the uncompressed records. `kafkad.client.producer` does the rest (codec, producer id, sequence, CRC).

Columns are pyarrow arrays, or objects with their `buffers()`, `offset`, `type` and len: strings and binaries with
offsets of 32 or 64 bits, int32, and list<struct<key, value>>. This module does not import pyarrow. Every offset is
checked against its buffer before it is used.

Beware: an encoder belongs to one producer and one topic, and is not thread-safe."""

from cpython.buffer cimport PyBUF_SIMPLE, Py_buffer, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_FromStringAndSize
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcpy, memset

from kafkad._native.wire.batch cimport HEADER_SIZE
from kafkad._native.wire.primitives cimport put_varint, put_varlong

cdef enum:
    RECORD_MAX = 0x7FFFFBFF              # largest record, so that a batch with only it fits the length field
    OVERHEAD_MAX = 32                    # a record's length, attributes, two deltas and three sizes

# why a run over rows ends
cdef enum:
    DONE
    NO_MEMORY
    BATCH_FULL
    BAD_OFFSETS
    TOO_LONG
    NO_SUCH_PARTITION
    NO_HEADER
    NO_HEADER_KEY

SENTENCES = {
    BAD_OFFSETS: "the offsets of an Arrow column point outside of its data",
    TOO_LONG: "a record is longer than 2 GiB",
    NO_HEADER: "a header is null",
    NO_HEADER_KEY: "the key of a header is null",
}


class NoSuchPartition(ValueError):
    """A row names a partition that the topic does not have; `partition` is its number."""

    def __init__(self, row, partition):
        super().__init__(row, partition)
        self.row, self.partition = row, partition


# -- Arrow columns -----------------------------------------------------------------------------------------

cdef class Column:
    """The buffers of one Arrow array, held as long as this object lives. Row 0 is at the array's own offset."""

    cdef Py_buffer views[3]
    cdef int held
    cdef const uint8_t* validity          # NULL: no row is null
    cdef const uint8_t* offsets           # for strings, binaries and lists
    cdef const uint8_t* data
    cdef int64_t data_size
    cdef int64_t first
    cdef readonly int64_t length
    cdef bint large                       # offsets of 64 bits

    def __cinit__(self, array, int buffers, Py_ssize_t width=0):
        """`buffers` is 2 for a fixed width or a list, 3 for strings and binaries."""
        cdef list given = array.buffers()
        cdef Py_ssize_t offset_size
        self.length = len(array)
        self.first = array.offset
        self.large = str(array.type).startswith("large_")
        if self.length < 0 or self.first < 0:
            raise ValueError("an Arrow array of negative length")
        self.validity = self.hold(given[0], (self.first + self.length + 7) // 8)
        if width:
            self.data = self.hold(given[1], (self.first + self.length) * width)
            return
        offset_size = 8 if self.large else 4
        # An empty array may have no offsets.
        self.offsets = self.hold(given[1], (self.first + self.length + 1) * offset_size if self.length else 0)
        if buffers == 3:
            self.data = self.hold(given[2], 0)
            self.data_size = self.views[self.held - 1].len if self.data != NULL else 0

    cdef const uint8_t* hold(self, object buffer, Py_ssize_t size_min) except? NULL:
        if buffer is None:
            return NULL
        PyObject_GetBuffer(buffer, &self.views[self.held], PyBUF_SIMPLE)
        self.held += 1
        if self.views[self.held - 1].len < size_min:
            raise ValueError("a buffer of an Arrow array is too short")
        return <const uint8_t*>self.views[self.held - 1].buf

    def __dealloc__(self):
        while self.held:
            self.held -= 1
            PyBuffer_Release(&self.views[self.held])


cdef inline bint is_null(Column column, int64_t row) noexcept nogil:
    row += column.first
    return column.validity != NULL and not (column.validity[row >> 3] >> (row & 7)) & 1


cdef inline int64_t offset_at(Column column, int64_t row) noexcept nogil:
    cdef int32_t narrow
    cdef int64_t wide
    row += column.first
    if column.large:
        memcpy(&wide, column.offsets + row * 8, 8)
        return wide
    memcpy(&narrow, column.offsets + row * 4, 4)
    return narrow


cdef inline int bytes_at(Column column, int64_t row, const uint8_t** data, int64_t* size) noexcept nogil:
    """Set `data` and `size` of a row's value; size -1 is null. Return 0 or BAD_OFFSETS."""
    cdef int64_t begin, end
    size[0] = -1
    data[0] = NULL
    if column is None or is_null(column, row):
        return 0
    if column.offsets == NULL:
        return BAD_OFFSETS
    begin = offset_at(column, row)
    end = offset_at(column, row + 1)
    if begin < 0 or end < begin or end > column.data_size:
        return BAD_OFFSETS
    data[0] = column.data + begin if column.data != NULL else <const uint8_t*>b""
    size[0] = end - begin
    return 0


cdef class Headers:
    """A column list<struct<key: string, value: binary>>."""

    cdef Column lists
    cdef Column keys
    cdef Column values
    cdef int64_t count                    # number of structs

    def __init__(self, array):
        structs = array.values
        self.lists = Column(array, 2)
        self.keys = Column(structs.field(0), 3)
        self.values = Column(structs.field(1), 3)
        self.count = len(structs)
        if structs.null_count:
            raise ValueError(SENTENCES[NO_HEADER])


# -- an open batch -----------------------------------------------------------------------------------------

cdef struct Open:
    uint8_t* data
    size_t size                           # including the room for the header
    size_t capacity
    int32_t count
    int64_t base_timestamp
    int64_t max_timestamp


cdef int open_reserve(Open* batch, size_t more) noexcept nogil:
    cdef size_t capacity
    cdef uint8_t* data
    if batch.size == 0:
        more += HEADER_SIZE
    if batch.capacity - batch.size < more:
        capacity = batch.capacity + (batch.capacity >> 1) + more + 4096
        data = <uint8_t*>realloc(batch.data, capacity)
        if data == NULL:
            return -1
        batch.data = data
        batch.capacity = capacity
    if batch.size == 0:
        memset(batch.data, 0, HEADER_SIZE)
        batch.size = HEADER_SIZE
    return 0


cdef class Encoded:
    """The records of a future batch. `data` is a bytearray that begins with room for the header (61 bytes)."""

    cdef readonly int32_t partition
    cdef readonly bytearray data
    cdef readonly int32_t count
    cdef readonly int64_t base_timestamp
    cdef readonly int64_t max_timestamp


cdef inline uint8_t* put_sized(uint8_t* p, const uint8_t* data, int64_t size) noexcept nogil:
    p += put_varint(p, <int32_t>size)
    if size > 0:
        memcpy(p, data, size)
        return p + size
    return p


cdef inline size_t varint_size(int32_t value) noexcept nogil:
    cdef uint8_t scratch[5]
    return put_varint(scratch, value)


cdef inline uint32_t murmur2_of(const uint8_t* data, int64_t size) noexcept nogil:
    # Kafka's hash of keys (Utils.murmur2), with Kafka's seed and shifts, over little-endian words.
    cdef uint32_t m = 0x5BD1E995
    cdef uint32_t h = 0x9747B28Cu ^ <uint32_t>size
    cdef uint32_t k
    cdef int64_t whole = size & ~<int64_t>3
    cdef int64_t at = 0
    while at < whole:
        k = (<uint32_t>data[at] | <uint32_t>data[at + 1] << 8 | <uint32_t>data[at + 2] << 16
             | <uint32_t>data[at + 3] << 24)
        k *= m
        k ^= k >> 24
        k *= m
        h *= m
        h ^= k
        at += 4
    if size & 3:
        if size & 3 == 3:
            h ^= <uint32_t>data[whole + 2] << 16
        if size & 3 >= 2:
            h ^= <uint32_t>data[whole + 1] << 8
        h ^= <uint32_t>data[whole]
        h *= m
    h ^= h >> 13
    h *= m
    h ^= h >> 15
    return h


def murmur2(const uint8_t[::1] data not None):
    """Return Kafka's hash of a key, as an unsigned 32-bit number."""
    return murmur2_of(&data[0] if data.shape[0] else <const uint8_t*>b"", data.shape[0])


# -- the encoder -------------------------------------------------------------------------------------------

cdef class RecordEncoder:
    """Encode rows of Arrow columns as batches of one topic with `partitions` partitions. A batch ends before it
    exceeds `batch_bytes`, unless it has only one record. `sticky` is the first partition for records without key
    and partition."""

    cdef Open* opened
    cdef readonly int32_t partitions
    cdef readonly int64_t batch_bytes
    cdef int32_t sticky
    cdef list finished
    cdef readonly int64_t finished_bytes
    cdef readonly int64_t rows            # appended so far

    def __cinit__(self, int32_t partitions, int64_t batch_bytes=1 << 18, int32_t sticky=0):
        if partitions < 1 or batch_bytes < 1 or not 0 <= sticky < partitions:
            raise ValueError("an encoder has at least one partition, and batches of at least a byte")
        self.partitions = partitions
        self.batch_bytes = batch_bytes if batch_bytes < RECORD_MAX else RECORD_MAX
        self.sticky = sticky
        self.finished = []
        self.opened = <Open*>calloc(partitions, sizeof(Open))
        if self.opened == NULL:
            raise MemoryError()

    def __dealloc__(self):
        cdef int32_t i
        if self.opened != NULL:
            for i in range(self.partitions):
                free(self.opened[i].data)
            free(self.opened)

    def append(self, int64_t now_ms, value, key=None, headers=None, partition=None, timestamp=None, *,
               int64_t start=0, int64_t enough_bytes=1 << 62):
        """Encode rows from `start` on, until all are encoded or `enough_bytes` of batches are finished. Return the row
        to continue with; it is the number of rows if all are encoded. `timestamp` is a column of microseconds (null:
        `now_ms`). Raise ValueError, NoSuchPartition or MemoryError; the rows before the failed one are encoded."""
        cdef Column values = Column(value, 3)
        cdef Column keys = None if key is None else Column(key, 3)
        cdef Column places = None if partition is None else Column(partition, 2, 4)
        cdef Column times = None if timestamp is None else Column(timestamp, 2, 8)
        cdef Headers heads = None if headers is None else Headers(headers)
        cdef int64_t row = start
        cdef int32_t place = 0
        cdef int status = DONE
        for column in (keys, places, times, None if heads is None else heads.lists):
            if column is not None and (<Column>column).length != values.length:
                raise ValueError("the columns of a batch have different lengths")
        if start < 0:
            raise ValueError("rows begin at 0")
        while row < values.length and self.finished_bytes < enough_bytes:
            with nogil:
                while row < values.length:
                    status = self.put(values, keys, heads, places, times, now_ms, row, &place)
                    if status != DONE:
                        break
                    row += 1
            if status == BATCH_FULL:
                self.finish(place)
                status = DONE
            elif status != DONE:
                break
        self.rows += row - start
        if status == NO_MEMORY:
            raise MemoryError()
        if status == NO_SUCH_PARTITION:
            raise NoSuchPartition(row, place)
        if status != DONE:
            raise ValueError(f"row {row}: {SENTENCES[status]}")
        return row

    def close(self):
        """Finish the open batches."""
        cdef int32_t i
        for i in range(self.partitions):
            self.finish(i)

    def take(self):
        """Remove and return the finished batches, oldest first."""
        cdef list taken = self.finished
        self.finished = []
        self.finished_bytes = 0
        return taken

    cdef int finish(self, int32_t partition) except -1:
        cdef Open* batch = &self.opened[partition]
        cdef Encoded encoded
        if batch.count:
            encoded = Encoded.__new__(Encoded)
            encoded.partition = partition
            encoded.data = PyByteArray_FromStringAndSize(<const char*>batch.data, batch.size)
            encoded.count = batch.count
            encoded.base_timestamp = batch.base_timestamp
            encoded.max_timestamp = batch.max_timestamp
            self.finished.append(encoded)
            self.finished_bytes += batch.size
            batch.size = 0
            batch.count = 0
            if batch.capacity > <size_t>(2 * self.batch_bytes + 65536):   # free the memory of a single long record
                free(batch.data)
                batch.data = NULL
                batch.capacity = 0
            if partition == self.sticky:
                self.sticky = (self.sticky + 1) % self.partitions
        return 0

    cdef int put(self, Column values, Column keys, Headers heads, Column places, Column times, int64_t now_ms,
                 int64_t row, int32_t* place) noexcept nogil:
        """Encode one row. Return BATCH_FULL, without writing anything, if the batch of `place` must be finished first."""
        cdef const uint8_t* value
        cdef const uint8_t* key
        cdef const uint8_t* name
        cdef const uint8_t* data
        cdef int64_t value_size, key_size, name_size, size, body, timestamp
        cdef int64_t first = 0, last = 0, i
        cdef uint8_t scratch[10]
        cdef uint8_t* p
        cdef Open* batch
        if bytes_at(values, row, &value, &value_size) or bytes_at(keys, row, &key, &key_size):
            return BAD_OFFSETS
        # Choose the partition.
        if places is not None and not is_null(places, row):
            memcpy(place, places.data + (places.first + row) * 4, 4)
            if place[0] < 0 or place[0] >= self.partitions:
                return NO_SUCH_PARTITION
        elif key_size >= 0:
            place[0] = <int32_t>((murmur2_of(key, key_size) & 0x7FFFFFFF) % <uint32_t>self.partitions)
        else:
            place[0] = self.sticky
        batch = &self.opened[place[0]]
        # Compute the record's length.
        timestamp = now_ms
        if times is not None and not is_null(times, row):
            memcpy(&timestamp, times.data + (times.first + row) * 8, 8)
            timestamp = floor_ms(timestamp)
        if batch.count == 0:
            batch.base_timestamp = timestamp
            batch.max_timestamp = timestamp
        body = 1 + put_varlong(scratch, timestamp - batch.base_timestamp) + varint_size(batch.count)
        if value_size > RECORD_MAX or key_size > RECORD_MAX:
            return TOO_LONG
        body += varint_size(<int32_t>value_size) + (value_size if value_size > 0 else 0)
        body += varint_size(<int32_t>key_size) + (key_size if key_size > 0 else 0)
        if heads is not None and not is_null(heads.lists, row):
            first = offset_at(heads.lists, row)
            last = offset_at(heads.lists, row + 1)
            if first < 0 or last < first or last > heads.count or last - first > INT32_MAX:
                return BAD_OFFSETS
            for i in range(first, last):
                if bytes_at(heads.keys, i, &name, &name_size) or bytes_at(heads.values, i, &data, &size):
                    return BAD_OFFSETS
                if name_size < 0:
                    return NO_HEADER_KEY
                if name_size > RECORD_MAX or size > RECORD_MAX:
                    return TOO_LONG
                body += varint_size(<int32_t>name_size) + name_size
                body += varint_size(<int32_t>size) + (size if size > 0 else 0)
                if body > RECORD_MAX:
                    return TOO_LONG
        body += varint_size(<int32_t>(last - first))
        if body > RECORD_MAX:
            return TOO_LONG
        if batch.count and <int64_t>batch.size + body + 5 > self.batch_bytes:
            return BATCH_FULL
        if open_reserve(batch, <size_t>body + OVERHEAD_MAX) < 0:
            return NO_MEMORY
        # Write the record.
        p = batch.data + batch.size
        p += put_varint(p, <int32_t>body)
        p[0] = 0                          # attributes, unused
        p += 1
        p += put_varlong(p, timestamp - batch.base_timestamp)
        p += put_varint(p, batch.count)
        p = put_sized(p, key, key_size)
        p = put_sized(p, value, value_size)
        p += put_varint(p, <int32_t>(last - first))
        for i in range(first, last):
            bytes_at(heads.keys, i, &name, &name_size)
            bytes_at(heads.values, i, &data, &size)
            p = put_sized(p, name, name_size)
            p = put_sized(p, data, size)
        batch.size = p - batch.data
        batch.count += 1
        if timestamp > batch.max_timestamp:
            batch.max_timestamp = timestamp
        return DONE


cdef inline int64_t floor_ms(int64_t us) noexcept nogil:
    return us // 1000 if us >= 0 else -((-us + 999) // 1000)

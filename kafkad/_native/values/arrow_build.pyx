"""Growing Arrow arrays in malloc'ed memory, exported by the Arrow C data interface.

A `Column` is one growing Arrow array. A `Columns` is a struct of them, that is, a record batch. Decoders append to
them without the GIL and without an object per value. `take()` hands over the finished batch with its buffers; the
columns continue with new buffers of the size that the last batch had. The consumer of `__arrow_c_array__` (pyarrow,
duckdb, polars, ...) owns the memory from then on: each array has a callback that frees its buffers, so a batch can
outlive the decoder. Neither pyarrow nor numpy is needed, because the two structs below are the whole interface
(https://arrow.apache.org/docs/format/CDataInterface.html).

Types are named by the interface's format strings. These are supported:

    b c s i l   bool, int8, int16, int32, int64       z u        binary, string (32-bit offsets)
    f g         float32, float64                      +l +m +s   list, map (a list of structs of two), struct
    d:P,S       decimal128(P, S)                      tdD        date32
    tsu:ZONE    timestamp in microseconds; "tsu:" has no zone

Invariants:
  - Validity bits from `length` on are 1, so appending a value changes no bitmap. Only `append_null` clears a bit,
    and only `column_truncate` sets it again.
  - If there are offsets, offsets[0] is 0.
  - When a row is finished, the children of a struct are as long as the struct. In the middle of a row they may be
    longer; `column_truncate` to the struct's length corrects that.
  - Before a column grows a buffer, it takes the bytes from `room`. A batch that would exceed the limit is refused
    like one for which there is no memory (a few bytes of JSON can become a thousand nulls).

Beware: `Columns` has no lock. One thread appends at a time.
"""

from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_New
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memset, strlen

from kafkad._native.wire.primitives cimport KAFKAD_CHECK

cdef extern from * nogil:
    """
    #define SIZE_MAX_OF_COLUMN 0x7fffffffLL
    """
    const int64_t SIZE_MAX_OF_COLUMN       # bytes and rows: offsets have 32 bits

cdef enum:
    FEWEST_ROWS = 64               # a multiple of 8, so that bitmaps are whole bytes
    FEWEST_BYTES = 1024
    FLAG_NULLABLE = 2              # ARROW_FLAG_NULLABLE
    WORTH_SHRINKING = 1 << 16      # a finished array keeps less spare room than this, in bytes

FIXED = {
    "b": (KIND_BOOL, 0), "c": (KIND_INT8, 1), "s": (KIND_INT16, 2), "i": (KIND_INT32, 4), "l": (KIND_INT64, 8),
    "f": (KIND_FLOAT32, 4), "g": (KIND_FLOAT64, 8), "tdD": (KIND_DATE32, 4),
    "z": (KIND_BINARY, 0), "u": (KIND_STRING, 0), "+l": (KIND_LIST, 0), "+m": (KIND_LIST, 0), "+s": (KIND_STRUCT, 0),
}  # fmt: skip


cdef inline bint has_offsets(Column* column) noexcept nogil:
    return column.kind == KIND_BINARY or column.kind == KIND_STRING or column.kind == KIND_LIST


cdef inline int64_t fixed_size(Column* column, int64_t rows) noexcept nogil:
    """Return the bytes of `data` for `rows` rows of a fixed width."""
    return rows // 8 if column.kind == KIND_BOOL else rows * column.width


cdef inline int64_t rows_cost(Column* column, int64_t rows) noexcept nogil:
    """Return the bytes of all buffers for `rows` rows (a multiple of 8), without variable-width data, as if there were
    nulls."""
    cdef int64_t cost = rows // 8
    if has_offsets(column):
        return cost + rows * 4
    return cost if column.kind == KIND_STRUCT else cost + fixed_size(column, rows)


cdef inline void* resized(void* buffer, int64_t size) noexcept nogil:
    return realloc(buffer, <size_t>(size if size > 0 else 1))


cdef int set_rows_capacity(Column* column, int64_t rows) noexcept nogil:
    """Resize the buffers to `rows` rows, a multiple of 8. If there is no memory for one of them, every buffer still has
    the old capacity."""
    cdef void* buffer
    cdef int64_t cost = rows_cost(column, rows) - rows_cost(column, column.rows_capacity)
    if cost > column.room[0]:
        column.room[0] = -1
        return -1
    if column.validity is not NULL:
        buffer = resized(column.validity, rows // 8)
        if buffer is NULL:
            return -1
        column.validity = <uint8_t*>buffer
        memset(column.validity + column.rows_capacity // 8, 0xff, <size_t>((rows - column.rows_capacity) // 8))
    if has_offsets(column):
        buffer = resized(column.offsets, (rows + 1) * 4)
        if buffer is NULL:
            return -1
        column.offsets = <int32_t*>buffer
        if column.rows_capacity == 0:
            column.offsets[0] = 0
        if column.kind != KIND_LIST and column.data is NULL and column_grow_data(column, 0) < 0:
            return -1                          # data is never NULL, so NULL means no room, also for an empty value
    elif column.kind != KIND_STRUCT:
        buffer = resized(column.data, fixed_size(column, rows))
        if buffer is NULL:
            return -1
        column.data = <uint8_t*>buffer
        if column.kind == KIND_BOOL:           # unused bits of the last byte are zero
            memset(column.data + column.rows_capacity // 8, 0, <size_t>((rows - column.rows_capacity) // 8))
    column.rows_capacity = rows
    column.room[0] -= cost
    return 0


cdef int column_grow_rows(Column* column) noexcept nogil:
    """Make room for at least one more row: grow by half, or to the size of the last batch."""
    cdef int64_t rows = column.rows_capacity + column.rows_capacity // 2
    if column.rows_capacity == 0:
        rows = column.rows_hint
    if rows < FEWEST_ROWS:
        rows = FEWEST_ROWS
    if column.rows_capacity >= SIZE_MAX_OF_COLUMN - 7:
        return -1
    rows = min((rows + 7) // 8 * 8, SIZE_MAX_OF_COLUMN - 7)
    return set_rows_capacity(column, rows)


cdef int column_grow_data(Column* column, int64_t size) noexcept nogil:
    """Make room for `size` more bytes of variable-width data."""
    cdef int64_t capacity = column.data_capacity * 2
    cdef void* buffer
    if size < 0 or size > SIZE_MAX_OF_COLUMN - column.data_size:
        return -1
    if column.data_capacity == 0:
        capacity = column.bytes_hint
    capacity = max(capacity, FEWEST_BYTES, column.data_size + size)
    capacity = min(capacity, SIZE_MAX_OF_COLUMN)
    if capacity - column.data_capacity > column.room[0]:
        column.room[0] = -1
        return -1
    buffer = resized(column.data, capacity)
    if buffer is NULL:
        return -1
    column.data = <uint8_t*>buffer
    column.room[0] -= capacity - column.data_capacity
    column.data_capacity = capacity
    return 0


cdef int column_reserve(Column* column, int64_t rows, int64_t size) noexcept nogil:
    """Make room for `rows` more rows and, if the width varies, `size` more bytes. Do not change the children."""
    if rows < 0 or rows > SIZE_MAX_OF_COLUMN - 7 - column.length:
        return -1
    if column.length + rows > column.rows_capacity:
        if set_rows_capacity(column, (column.length + rows + 7) // 8 * 8) < 0:
            return -1
    if (column.kind == KIND_BINARY or column.kind == KIND_STRING) and size > column.data_capacity - column.data_size:
        return column_grow_data(column, size)
    return 0


cdef int append_null(Column* column) noexcept nogil:
    """Append a null, for a struct also to each child. On -1, a struct's children may be longer than it: truncate."""
    cdef int i
    if column_reserve_row(column) < 0:
        return -1
    if column.validity is NULL:
        column.validity = <uint8_t*>malloc(<size_t>(column.rows_capacity // 8))
        if column.validity is NULL:
            return -1
        memset(column.validity, 0xff, <size_t>(column.rows_capacity // 8))
    if column.kind == KIND_STRUCT:
        for i in range(column.children_count):
            if append_null(&column.children[i]) < 0:
                return -1
    elif has_offsets(column):
        column.offsets[column.length + 1] = column.offsets[column.length]
    elif column.kind == KIND_BOOL:
        column.data[column.length >> 3] &= ~<uint8_t>(1 << (column.length & 7))
    else:                                      # zeroes: uninitialised memory must not reach files and sockets
        memset(column.data + column.length * column.width, 0, <size_t>column.width)
    column.validity[column.length >> 3] &= ~<uint8_t>(1 << (column.length & 7))
    column.length += 1
    column.null_count += 1
    return 0


cdef void column_truncate(Column* column, int64_t length) noexcept nogil:
    """Truncate to `length` rows at every depth, including what an unfinished row has appended below this column."""
    cdef int64_t i
    KAFKAD_CHECK(0 <= length <= column.length)
    if column.validity is not NULL and column.null_count:
        for i in range(length, column.length):
            if not column.validity[i >> 3] >> (i & 7) & 1:
                column.null_count -= 1
                column.validity[i >> 3] |= <uint8_t>(1 << (i & 7))
    column.length = length
    if column.kind == KIND_STRUCT:
        for i in range(column.children_count):
            column_truncate(&column.children[i], length)
    elif column.kind == KIND_LIST:
        column_truncate(&column.children[0], column.offsets[length] if column.rows_capacity else 0)
    elif has_offsets(column):
        column.data_size = column.offsets[length] if column.rows_capacity else 0


cdef void forget_buffers(Column* column) noexcept nogil:
    """Drop the buffers, which have another owner now. Their sizes are the hints for the next ones."""
    column.rows_hint = column.length
    column.bytes_hint = column.data_size + column.data_size // 16
    column.validity = NULL
    column.offsets = NULL
    column.data = NULL
    column.length = column.null_count = column.rows_capacity = column.data_size = column.data_capacity = 0


cdef void column_clear(Column* column) noexcept nogil:
    cdef int i
    free(column.validity)
    free(column.offsets)
    free(column.data)
    forget_buffers(column)
    column.rows_hint = column.bytes_hint = 0
    for i in range(column.children_count):
        column_clear(&column.children[i])


cdef void column_free(Column* column) noexcept nogil:
    cdef int i
    for i in range(column.children_count):
        column_free(&column.children[i])
    free(column.children)
    free(column.validity)
    free(column.offsets)
    free(column.data)
    free(column.name)
    free(column.format)
    memset(column, 0, sizeof(Column))


cdef char* copied(const char* text) noexcept nogil:
    cdef size_t size = strlen(text) + 1
    cdef char* copy = <char*>malloc(size)
    if copy is not NULL:
        memcpy(copy, text, size)
    return copy


cdef int column_open(Column* column, str name, str format, bint nullable, children, int64_t* room) except -1:
    """Set up a zeroed column. Raise ValueError for an unsupported format."""
    cdef int i
    cdef bytes encoded = name.encode()
    if b"\0" in encoded:
        raise ValueError(f"a column's name cannot have a NUL: {name!r}")
    if format in FIXED:
        kind, width = FIXED[format]
    elif format.startswith("d:"):
        kind, width = KIND_DECIMAL128, 16
        precision, _, scale = format[2:].partition(",")
        column.precision, column.scale = int(precision), int(scale)
        if not (1 <= column.precision <= 38 and 0 <= column.scale <= column.precision):
            raise ValueError(f"decimals have a precision of 1 to 38 and a scale up to it, not {format!r}")
    elif format.startswith("tsu:"):
        kind, width = KIND_TIMESTAMP_US, 8
    else:
        raise ValueError(f"no Arrow array is built here for the format {format!r}")
    column.kind, column.width, column.is_nullable, column.room = kind, width, nullable, room
    column.name, column.format = copied(encoded), copied(format.encode())
    if column.name is NULL or column.format is NULL:
        raise MemoryError
    if (kind == KIND_LIST) != (len(children) == 1 and kind != KIND_STRUCT) or (children and width):
        raise ValueError(f"{name}: a list has one child, a struct any number, others none")
    if children:
        column.children = <Column*>calloc(len(children), sizeof(Column))
        if column.children is NULL:
            raise MemoryError
        column.children_count = <int>len(children)
        for i in range(column.children_count):
            column_open(&column.children[i], children[i][0], children[i][1], children[i][2],
                        children[i][3] if len(children[i]) > 3 else (), room)
    return 0


# Export: the private_data of an array is the table of its buffers, which its release callback frees.

cdef void release_array(ArrowArray* array) noexcept nogil:
    cdef int64_t i
    for i in range(array.n_buffers):
        free(<void*>array.buffers[i])
    for i in range(array.n_children):
        if array.children[i].release is not NULL:
            array.children[i].release(array.children[i])
        free(array.children[i])
    free(array.children)
    free(array.buffers)
    array.release = NULL


cdef void release_schema(ArrowSchema* schema) noexcept nogil:
    cdef int64_t i
    for i in range(schema.n_children):
        if schema.children[i].release is not NULL:
            schema.children[i].release(schema.children[i])
        free(schema.children[i])
    free(schema.children)
    free(<void*>schema.format)
    free(<void*>schema.name)
    schema.release = NULL


cdef int export_schema(Column* column, ArrowSchema* schema) noexcept nogil:
    """Export the schema. Return -1 if there is no memory; `schema` can be released even then."""
    cdef int i
    memset(schema, 0, sizeof(ArrowSchema))
    schema.release = release_schema
    schema.format = copied(column.format)
    schema.name = copied(column.name)
    schema.flags = FLAG_NULLABLE if column.is_nullable else 0
    if schema.format is NULL or schema.name is NULL:
        return -1
    if column.children_count:
        schema.children = <ArrowSchema**>calloc(<size_t>column.children_count, sizeof(ArrowSchema*))
        if schema.children is NULL:
            return -1
        for i in range(column.children_count):
            schema.children[i] = <ArrowSchema*>calloc(1, sizeof(ArrowSchema))
            if schema.children[i] is NULL:
                return -1
            schema.n_children += 1
            if export_schema(&column.children[i], schema.children[i]) < 0:
                return -1
    return 0


cdef int prepare_array(Column* column, ArrowArray* array) noexcept nogil:
    """Allocate everything before any buffer moves. Return -1 if there is no memory; the columns are unchanged then."""
    cdef int i
    memset(array, 0, sizeof(ArrowArray))
    array.release = release_array
    array.buffers = <const void**>calloc(3, sizeof(void*))
    if array.buffers is NULL:
        return -1
    # An array without rows still has one offset, and data.
    if column.rows_capacity == 0 and column.kind != KIND_STRUCT and set_rows_capacity(column, 8) < 0:
        return -1
    if column.children_count:
        array.children = <ArrowArray**>calloc(<size_t>column.children_count, sizeof(ArrowArray*))
        if array.children is NULL:
            return -1
        for i in range(column.children_count):
            array.children[i] = <ArrowArray*>calloc(1, sizeof(ArrowArray))
            if array.children[i] is NULL:
                return -1
            array.n_children += 1
            if prepare_array(&column.children[i], array.children[i]) < 0:
                return -1
    return 0


cdef void* shrunk(void* buffer, int64_t used, int64_t capacity) noexcept nogil:
    """Return the buffer without its spare room, if shrinking is worth a call; the same buffer if it fails."""
    cdef void* smaller
    if capacity - used < WORTH_SHRINKING or used * 8 > capacity * 7:
        return buffer
    smaller = resized(buffer, used)
    return buffer if smaller is NULL else smaller


cdef void move_buffers(Column* column, ArrowArray* array) noexcept nogil:
    cdef int i
    cdef int64_t fixed
    array.length = column.length
    array.null_count = column.null_count
    array.buffers[0] = column.validity
    if column.kind == KIND_STRUCT:
        array.n_buffers = 1
    elif column.kind == KIND_LIST:
        array.n_buffers = 2
        array.buffers[1] = column.offsets
    elif has_offsets(column):
        array.n_buffers = 3
        array.buffers[1] = column.offsets
        array.buffers[2] = shrunk(column.data, column.data_size, column.data_capacity)
    else:
        array.n_buffers = 2
        fixed = fixed_size(column, (column.length + 7) // 8 * 8)
        array.buffers[1] = shrunk(column.data, fixed, fixed_size(column, column.rows_capacity))
    forget_buffers(column)
    for i in range(column.children_count):
        move_buffers(&column.children[i], array.children[i])


cdef void free_schema_capsule(object capsule) noexcept:
    cdef ArrowSchema* schema = <ArrowSchema*>PyCapsule_GetPointer(capsule, b"arrow_schema")
    if schema.release is not NULL:
        schema.release(schema)
    free(schema)


cdef void free_array_capsule(object capsule) noexcept:
    cdef ArrowArray* array = <ArrowArray*>PyCapsule_GetPointer(capsule, b"arrow_array")
    if array.release is not NULL:
        array.release(array)
    free(array)


cdef object schema_capsule(Column* column):
    cdef ArrowSchema* schema = <ArrowSchema*>calloc(1, sizeof(ArrowSchema))
    if schema is NULL:
        raise MemoryError
    capsule = PyCapsule_New(schema, b"arrow_schema", free_schema_capsule)
    if export_schema(column, schema) < 0:
        raise MemoryError
    return capsule


cdef class Finished:
    """A finished batch: `pa.record_batch(finished)`. It can be consumed once."""
    cdef readonly object schema
    cdef object array
    cdef readonly int64_t row_count

    def __len__(self):
        return self.row_count

    def __arrow_c_schema__(self):
        """Return a new capsule. It may be called any number of times."""
        return self.schema.__arrow_c_schema__()

    def __arrow_c_array__(self, requested_schema=None):
        """Return (schema capsule, array capsule). The consumer owns the memory. A requested schema is ignored, as the
        interface allows. A second call raises ValueError."""
        if self.array is None:
            raise ValueError("this batch has been taken up already")
        array, self.array = self.array, None
        return self.schema.__arrow_c_schema__(), array


cdef class Columns:
    """Columns that grow together. `fields` has (name, format, nullable[, children as such tuples]) per column.

    Raise ValueError for a format that is not in the table at the top of this file."""

    def __cinit__(self, fields):
        self.limit(INT64_MAX)
        column_open(&self.root, "", "+s", False, list(fields), &self.room)

    def __dealloc__(self):
        column_free(&self.root)

    def __len__(self):
        return self.root.length

    @property
    def byte_count(self):
        """Bytes in use by values and offsets, approximately. It is good enough to decide when a batch ends."""
        return used_bytes(&self.root)

    def __arrow_c_schema__(self):
        return schema_capsule(&self.root)

    def truncate(self, int64_t length):
        """Truncate to `length` rows. Raise ValueError if there are fewer."""
        if not 0 <= length <= self.root.length:
            raise ValueError(f"cannot keep {length} of {self.root.length} rows")
        column_truncate(&self.root, length)

    def append(self, row):
        """Append one row of Python values, as pyarrow has them. For tests and rare cases.

        Timestamps and dates are integers here; decimals are their unscaled integers."""
        cdef int i
        if len(row) != self.root.children_count:
            raise ValueError(f"{len(row)} values for {self.root.children_count} columns")
        try:
            for i in range(self.root.children_count):
                append_object(&self.root.children[i], row[i])
            if append_row(&self.root) < 0:
                raise MemoryError
        except BaseException:
            column_truncate(&self.root, self.root.length)
            raise

    cdef void limit(self, int64_t bytes_max) noexcept:
        """Limit the bytes of all buffers of one batch. Call it while there are no buffers."""
        self.bytes_max = self.room = bytes_max

    cdef void clear(self) noexcept nogil:
        """Drop all rows, buffers and size hints."""
        column_clear(&self.root)
        self.room = self.bytes_max

    cpdef take(self):
        """Return the rows so far as a `Finished`. The columns are empty afterwards, and can be used again."""
        cdef ArrowArray* array = <ArrowArray*>calloc(1, sizeof(ArrowArray))
        cdef Finished finished = Finished.__new__(Finished)
        if array is NULL:
            raise MemoryError
        finished.array = PyCapsule_New(array, b"arrow_array", free_array_capsule)
        finished.schema = self
        finished.row_count = self.root.length
        self.room = INT64_MAX                  # the limit does not apply to finished rows
        if prepare_array(&self.root, array) < 0:
            raise MemoryError
        move_buffers(&self.root, array)
        self.room = self.bytes_max
        return finished


cdef int64_t used_bytes(Column* column) noexcept nogil:
    cdef int i
    cdef int64_t size = column.data_size
    if has_offsets(column):
        size += column.length * 4
    elif column.kind != KIND_STRUCT:
        size += fixed_size(column, (column.length + 7) // 8 * 8)
    for i in range(column.children_count):
        size += used_bytes(&column.children[i])
    return size


cdef int append_object(Column* column, value) except -1:
    cdef int i
    cdef int result
    cdef bytes data
    if value is None:
        result = append_null(column)
    elif column.kind == KIND_BOOL:
        result = append_bool(column, value)
    elif column.kind == KIND_INT8:
        result = append_i8(column, value)
    elif column.kind == KIND_INT16:
        result = append_i16(column, value)
    elif column.kind == KIND_INT32 or column.kind == KIND_DATE32:
        result = append_i32(column, value)
    elif column.kind == KIND_INT64 or column.kind == KIND_TIMESTAMP_US:
        result = append_i64(column, value)
    elif column.kind == KIND_FLOAT32:
        result = append_f32(column, value)
    elif column.kind == KIND_FLOAT64:
        result = append_f64(column, value)
    elif column.kind == KIND_DECIMAL128:
        result = append_decimal(column, value & 0xffffffffffffffff, value >> 64)
    elif column.kind == KIND_BINARY or column.kind == KIND_STRING:
        data = value.encode() if column.kind == KIND_STRING else value
        result = append_bytes(column, <const char*>data, len(data))
    elif column.kind == KIND_LIST:
        for element in value:
            append_object(&column.children[0], element)
        result = append_list(column)
    else:
        for i in range(column.children_count):
            append_object(&column.children[i], value[column.children[i].name.decode()])
        result = append_row(column)
    if result < 0:
        raise MemoryError
    return 0

"""Growing Arrow arrays in malloc'ed memory, exported by the Arrow C data interface. See arrow_build.pyx.

How to use it from C without the GIL: append one value (or a null) to every column `Columns.root.children[i]`, then
call `append_row(&root)`. If a row turns out to be bad in the middle, `column_truncate(&root, root.length)` removes what
was appended of it, in every column and at any depth.

Every append returns 0 or -1. It returns -1, and changes nothing, if there is no memory, if a column would exceed
2^31 - 1 bytes or rows, or if all columns together would exceed their limit (`Columns.limit`).
"""

from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memcpy


cdef enum Kind:
    KIND_BOOL
    KIND_INT8
    KIND_INT16
    KIND_INT32
    KIND_INT64
    KIND_FLOAT32
    KIND_FLOAT64
    KIND_DECIMAL128
    KIND_DATE32            # days since 1970-01-01
    KIND_TIMESTAMP_US      # microseconds since 1970-01-01T00:00, with or without a zone
    KIND_BINARY
    KIND_STRING
    KIND_LIST
    KIND_STRUCT


cdef struct Column:
    Kind kind
    int width                      # bytes of one value in `data`; 0: bits, or no fixed width
    int precision                  # for decimals
    int scale
    bint is_nullable               # for the schema only; nulls can be appended in any case
    int64_t length                 # rows
    int64_t null_count
    int64_t rows_capacity          # rows that validity, offsets and fixed-width data have room for
    int64_t data_size              # used bytes of variable-width data
    int64_t data_capacity
    int64_t rows_hint              # size of the last batch, the first size of the next one
    int64_t bytes_hint
    uint8_t* validity              # NULL until the first null; bits from `length` on are always 1
    int32_t* offsets               # length + 1 of them; binary, string and list
    uint8_t* data
    int children_count
    Column* children
    int64_t* room                  # bytes that the buffers of all columns may still grow by; -1: refused
    char* name                     # UTF-8, owned
    char* format                   # format string of the Arrow C data interface, owned


cdef int column_reserve(Column* column, int64_t rows, int64_t size) noexcept nogil     # make room for that many more
cdef int column_grow_rows(Column* column) noexcept nogil
cdef int column_grow_data(Column* column, int64_t size) noexcept nogil
cdef int append_null(Column* column) noexcept nogil                # for a struct: in its children, too
cdef void column_truncate(Column* column, int64_t length) noexcept nogil
cdef void column_clear(Column* column) noexcept nogil               # no rows, no buffers, no hints
cdef void column_free(Column* column) noexcept nogil


cdef inline int column_reserve_row(Column* column) noexcept nogil:
    return 0 if column.length < column.rows_capacity else column_grow_rows(column)


cdef inline int append_i8(Column* column, int8_t value) noexcept nogil:
    if column_reserve_row(column) < 0:
        return -1
    (<int8_t*>column.data)[column.length] = value
    column.length += 1
    return 0


cdef inline int append_i16(Column* column, int16_t value) noexcept nogil:
    if column_reserve_row(column) < 0:
        return -1
    (<int16_t*>column.data)[column.length] = value
    column.length += 1
    return 0


cdef inline int append_i32(Column* column, int32_t value) noexcept nogil:        # also DATE32
    if column_reserve_row(column) < 0:
        return -1
    (<int32_t*>column.data)[column.length] = value
    column.length += 1
    return 0


cdef inline int append_i64(Column* column, int64_t value) noexcept nogil:        # also TIMESTAMP_US
    if column_reserve_row(column) < 0:
        return -1
    (<int64_t*>column.data)[column.length] = value
    column.length += 1
    return 0


cdef inline int append_f32(Column* column, float value) noexcept nogil:
    if column_reserve_row(column) < 0:
        return -1
    (<float*>column.data)[column.length] = value
    column.length += 1
    return 0


cdef inline int append_f64(Column* column, double value) noexcept nogil:
    if column_reserve_row(column) < 0:
        return -1
    (<double*>column.data)[column.length] = value
    column.length += 1
    return 0


cdef inline int append_decimal(Column* column, uint64_t low, int64_t high) noexcept nogil:
    """Append the unscaled value, given as 128 bits of two's complement."""
    if column_reserve_row(column) < 0:
        return -1
    (<uint64_t*>column.data)[2 * column.length] = low
    (<int64_t*>column.data)[2 * column.length + 1] = high
    column.length += 1
    return 0


cdef inline int append_bool(Column* column, bint value) noexcept nogil:
    if column_reserve_row(column) < 0:
        return -1
    cdef uint8_t mask = <uint8_t>(1 << (column.length & 7))
    if value:
        column.data[column.length >> 3] |= mask
    else:
        column.data[column.length >> 3] &= ~mask
    column.length += 1
    return 0


cdef inline uint8_t* append_space(Column* column, int64_t size) noexcept nogil:
    """Return room for at most `size` bytes of the next binary or string value, or NULL. The value counts only after
    `append_written`."""
    if column_reserve_row(column) < 0:
        return NULL
    if size > column.data_capacity - column.data_size and column_grow_data(column, size) < 0:
        return NULL
    return column.data + column.data_size


cdef inline void append_written(Column* column, int64_t size) noexcept nogil:
    column.data_size += size
    column.length += 1
    column.offsets[column.length] = <int32_t>column.data_size


cdef inline int append_bytes(Column* column, const void* at, int64_t size) noexcept nogil:
    """Append a binary or string value. The caller makes sure that strings are valid UTF-8."""
    cdef uint8_t* space = append_space(column, size)
    if space is NULL:
        return -1
    memcpy(space, at, <size_t>size)
    append_written(column, size)
    return 0


cdef inline int append_row(Column* column) noexcept nogil:
    """Finish a row of a struct, after each of its children got its value."""
    if column_reserve_row(column) < 0:
        return -1
    column.length += 1
    return 0


cdef inline int append_list(Column* column) noexcept nogil:
    """Finish a list: it has the elements that were appended to its child since the previous list."""
    if column_reserve_row(column) < 0:
        return -1
    column.length += 1
    column.offsets[column.length] = <int32_t>column.children[0].length
    return 0


cdef class Columns:
    cdef Column root                   # a struct, whose children are the columns
    cdef int64_t room
    cdef readonly int64_t bytes_max

    cdef void limit(self, int64_t bytes_max) noexcept
    cdef void clear(self) noexcept nogil
    cdef inline bint is_full(self) noexcept nogil:
        """Return whether an append was refused because of the limit."""
        return self.room < 0

    cpdef take(self)


cdef struct ArrowSchema:               # as in the Arrow C data interface
    const char* format
    const char* name
    const char* metadata
    int64_t flags
    int64_t n_children
    ArrowSchema** children
    ArrowSchema* dictionary
    void (*release)(ArrowSchema*) noexcept nogil
    void* private_data


cdef struct ArrowArray:
    int64_t length
    int64_t null_count
    int64_t offset
    int64_t n_buffers
    int64_t n_children
    const void** buffers
    ArrowArray** children
    ArrowArray* dictionary
    void (*release)(ArrowArray*) noexcept nogil
    void* private_data

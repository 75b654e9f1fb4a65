"""Input values for decoders (an Arrow binary array, read in place), and the list of bad rows. See arrow_values.pyx."""

from libc.stdint cimport int32_t, int64_t, uint8_t


cdef enum Reason:                      # in the order of REASONS in arrow_values.pyx
    GOOD
    NO_MEMORY                          # not a bad row: becomes a MemoryError
    EMPTY
    ENDS_EARLY
    TRAILING_BYTES
    SYNTAX
    NOT_UTF8
    CONTROL_CHARACTER
    BAD_ESCAPE
    LONE_SURROGATE
    TOO_DEEP
    WRONG_TYPE
    OUT_OF_RANGE
    BAD_NUMBER
    BAD_DATE
    BAD_TIMESTAMP
    BAD_BASE64
    BAD_BOOLEAN
    DUPLICATE_MAP_KEY
    BAD_LENGTH
    BAD_BRANCH
    BAD_VARINT
    BAD_TAG
    BAD_MAGIC
    OTHER_SCHEMA
    TOO_FEW_FIELDS
    TOO_MANY_FIELDS
    BAD_QUOTE
    MISSING_FIELD
    TOO_LARGE
    NAME_TOO_LONG
    REASONS_COUNT


cdef struct BadRow:
    int64_t row
    int64_t position                   # position of the wrong byte in the value; -1: none
    int32_t reason
    int32_t field                      # index into the decoder's list of paths; -1: the value as a whole


cdef struct BadRows:
    int64_t count
    int64_t capacity
    BadRow* rows


cdef int bad_rows_add(BadRows* bad, int64_t row, int reason, int32_t field, int64_t position) noexcept nogil


cdef class BinaryValues:
    cdef object array                  # the capsules own the memory
    cdef object schema
    cdef readonly int64_t length
    cdef int64_t offset                # of the first value, in rows
    cdef const uint8_t* validity       # NULL: none is null
    cdef const int32_t* offsets        # one of these two
    cdef const int64_t* large_offsets
    cdef const uint8_t* data
    cdef const uint8_t* data_end       # bytes up to here may be read


cdef inline bint is_null(BinaryValues values, int64_t row) noexcept nogil:
    cdef int64_t at = values.offset + row
    return values.validity is not NULL and not values.validity[at >> 3] >> (at & 7) & 1


cdef inline const uint8_t* value_at(BinaryValues values, int64_t row, int64_t* size) noexcept nogil:
    cdef int64_t at = values.offset + row
    if values.offsets is not NULL:
        size[0] = values.offsets[at + 1] - values.offsets[at]
        return values.data + values.offsets[at]
    size[0] = values.large_offsets[at + 1] - values.large_offsets[at]
    return values.data + values.large_offsets[at]


cdef object bad_rows_described(BadRows* bad, list paths)    # (rows, reasons); empties `bad`

"""Input values for decoders, and the list of bad rows.

`BinaryValues` reads any Arrow array of binary, string, large binary or large string through the Arrow C data
interface, without pyarrow and without a copy. Decoders walk over it without the GIL.

A decoder stores a bad row as four integers and continues. After the batch, `bad_rows_described` turns them into error
messages: the field's path, what is wrong, and the byte's position. A message never quotes the value, so it is always
short, and a secret in a value does not reach a log."""

from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport free, realloc

from kafkad._native.values.arrow_build cimport ArrowArray, ArrowSchema

REASONS = (
    "good",
    "no memory",
    "the value is empty",
    "the value ends too early",
    "more bytes after the value's end",
    "not well-formed",
    "not UTF-8",
    "a control character in a string",
    "an unknown or cut escape in a string",
    "half of a surrogate pair",
    "nested too deeply",
    "a value of another type",
    "out of the column's range",
    "not a number",
    "not a date",
    "not a timestamp",
    "not base64",
    "not a boolean",
    "the same key twice in a map",
    "a length that goes past the value's end",
    "no such branch of the union or symbol of the enum",
    "a varint that is too long",
    "a tag that cannot be",
    "not the header of the schema registry (a zero byte and a schema id)",
    "written with a schema id that cannot be decoded",
    "fewer fields than the schema has",
    "more fields than the schema has",
    "a quote that is not closed, or not alone",
    "a required field is missing",
    "its columns would take more memory than those of a whole batch may",
    "a name of more than 50,000 characters",
)
assert len(REASONS) == REASONS_COUNT

PATH_CHARACTERS_MAX = 200


cdef int bad_rows_add(BadRows* bad, int64_t row, int reason, int32_t field, int64_t position) noexcept nogil:
    """Add a bad row. Return -1 if there is no memory."""
    cdef int64_t capacity
    cdef BadRow* rows
    if bad.count == bad.capacity:
        capacity = max(16, bad.capacity * 2)
        rows = <BadRow*>realloc(bad.rows, <size_t>capacity * sizeof(BadRow))
        if rows is NULL:
            return -1
        bad.rows, bad.capacity = rows, capacity
    bad.rows[bad.count] = BadRow(row=row, position=position, reason=reason, field=field)
    bad.count += 1
    return 0


cdef object bad_rows_described(BadRows* bad, list paths):
    cdef int64_t i
    cdef BadRow* one
    rows, reasons = [], []
    for i in range(bad.count):
        one = &bad.rows[i]
        reason = REASONS[one.reason]
        if one.field >= 0:
            path = paths[one.field]
            if len(path) > PATH_CHARACTERS_MAX:
                path = path[:PATH_CHARACTERS_MAX] + "..."
            reason = f"{path}: {reason}"
        if one.position >= 0:
            reason = f"{reason} at byte {one.position}"
        rows.append(one.row)
        reasons.append(reason)
    free(bad.rows)
    bad.rows = NULL
    bad.count = bad.capacity = 0
    return rows, reasons


cdef class BinaryValues:
    """`array` is an object with `__arrow_c_array__` whose type is (large) binary or string; otherwise raise TypeError."""

    def __cinit__(self, array):
        cdef ArrowArray* source
        cdef ArrowSchema* schema
        cdef bytes format
        self.schema, self.array = array.__arrow_c_array__()
        schema = <ArrowSchema*>PyCapsule_GetPointer(self.schema, b"arrow_schema")
        source = <ArrowArray*>PyCapsule_GetPointer(self.array, b"arrow_array")
        format = schema.format
        if format not in (b"z", b"u", b"Z", b"U"):
            raise TypeError(f"values are binary or string arrays, not of the Arrow format {format.decode()!r}")
        self.length, self.offset = source.length, source.offset
        self.validity = <const uint8_t*>source.buffers[0]
        self.data = <const uint8_t*>source.buffers[2]
        if self.data is NULL:
            self.data = b""
        self.data_end = self.data
        if format in (b"z", b"u"):
            self.offsets = <const int32_t*>source.buffers[1]
            if self.length:
                self.data_end = self.data + self.offsets[self.offset + self.length]
        else:
            self.large_offsets = <const int64_t*>source.buffers[1]
            if self.length:
                self.data_end = self.data + self.large_offsets[self.offset + self.length]

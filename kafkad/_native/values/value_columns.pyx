"""The common part of the value decoders: the walk over a batch, and the handling of bad rows.

A decoder is a `ValueColumns` whose `decode_row` appends one row to every column, or returns a reason. For a bad row,
this class removes what was appended, at any depth, and appends a row of nulls. So a bad value does not affect its
neighbours. The reason is stored as four integers, and reported after the batch.

Memory of a batch: A few bytes can need much memory, because `{}` in a list of structs is a null in each of its columns.
So the columns have a limit. When it is reached, the batch ends, and the next batch gets the remaining values. A value
that exceeds the limit alone is bad."""

from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport free

from kafkad._native.values.arrow_build cimport Column, Columns, append_null, append_row, column_truncate
from kafkad._native.values.arrow_values cimport (
    GOOD, NO_MEMORY, TOO_LARGE, BinaryValues, bad_rows_add, bad_rows_described, is_null, value_at,
)

COLUMNS_BYTES_MAX = 256 << 20          # most bytes of one batch


cdef class ValueColumns:
    """The base of the decoders. `fields` is as in arrow_build. Raise ValueError for an unsupported format."""

    def __cinit__(self, fields, *arguments, **options):
        self.columns = Columns(fields)
        self.columns.limit(COLUMNS_BYTES_MAX)
        self.paths = []

    def __dealloc__(self):
        free(self.bad.rows)

    def __arrow_c_schema__(self):
        return self.columns.__arrow_c_schema__()

    def decode(self, array):
        """Return (batch, numbers of the bad rows, their reasons). The batch has a row per value; it is all null if the
        value is bad or null.

        The batch is shorter than `array`, but not empty, if all of it would exceed COLUMNS_BYTES_MAX. `array` is an Arrow
        array of (large) binary or string. Raise MemoryError."""
        cdef BinaryValues values = BinaryValues(array)
        cdef Column* root = &self.columns.root
        cdef int64_t row
        cdef int reason = GOOD
        self.columns.truncate(0)
        self.bad.count = 0
        with nogil:
            for row in range(values.length):
                reason = GOOD
                if not is_null(values, row):
                    reason = self.decode_value(values, row)
                    if reason == NO_MEMORY and row == 0 and self.failure is None:
                        reason = self.decode_alone(values)
                    if reason == GOOD:
                        continue
                    column_truncate(root, row)
                if reason != NO_MEMORY and append_null_row(root) < 0:
                    reason = NO_MEMORY
                    if row == 0:
                        self.columns.clear()   # drop memory of the last batch or of a bad value
                        if append_null_row(root) == 0:
                            continue
                if reason == NO_MEMORY:
                    break
        if reason == NO_MEMORY and (root.length == 0 or self.failure is not None):
            self.columns.clear()
            failure, self.failure = self.failure, None
            raise failure or MemoryError("no memory for the decoded columns")
        self.columns.truncate(root.length)     # remove the row that had no room; some columns may have it already
        if self.bad.count and self.bad.rows[self.bad.count - 1].row == root.length:
            self.bad.count -= 1
        rows, reasons = bad_rows_described(&self.bad, self.paths)
        return self.columns.take(), rows, reasons

    cdef int decode_value(self, BinaryValues values, int64_t row) noexcept nogil:
        """Decode a value. Return GOOD, NO_MEMORY, or the reason, after storing it."""
        cdef int64_t size
        cdef int64_t position = -1
        cdef const uint8_t* start = value_at(values, row, &size)
        cdef int reason
        self.base = self.fault.at = start
        self.fault.path = -1
        reason = self.decode_row(start, size, values.data_end)
        if reason == GOOD or reason == NO_MEMORY:
            return reason
        if self.fault.at is not NULL and self.base <= self.fault.at <= self.base + size + 1:
            position = min(self.fault.at - self.base, size)
        if bad_rows_add(&self.bad, row, reason, self.fault.path, position) < 0:
            return NO_MEMORY
        return reason

    cdef int decode_alone(self, BinaryValues values) noexcept nogil:
        """Decode the first value again, without the memory that the sizes of the last batch suggest."""
        cdef int reason
        self.columns.clear()
        reason = self.decode_value(values, 0)
        if reason != NO_MEMORY or not self.columns.is_full() or self.failure is not None:
            return reason
        self.columns.clear()
        return NO_MEMORY if bad_rows_add(&self.bad, 0, TOO_LARGE, -1, -1) < 0 else TOO_LARGE

    cdef int decode_row(self, const uint8_t* p, int64_t size, const uint8_t* readable) noexcept nogil:
        """Decode a value of `size` bytes into a row of every column. Bytes before `readable` may be read. Return the reason;
        `fault` has the field and the position."""
        return NO_MEMORY


cdef int append_null_row(Column* root) noexcept nogil:
    cdef int i
    for i in range(root.children_count):
        if append_null(&root.children[i]) < 0:
            return -1
    return append_row(root)

"""The common part of the value decoders: the walk over a batch, and bad rows. See value_columns.pyx."""

from libc.stdint cimport int32_t, int64_t, uint8_t

from kafkad._native.values.arrow_build cimport Columns
from kafkad._native.values.arrow_values cimport BadRows, BinaryValues


cdef struct Fault:                     # why a row is bad
    int reason
    int32_t path                       # index into the decoder's paths; -1: the value as a whole
    const uint8_t* at                  # the position of the error; NULL: none


cdef inline const uint8_t* faulty(Fault* fault, int reason, int32_t path, const uint8_t* at) noexcept nogil:
    """Note the fault, and return NULL, the result of a reading function that fails."""
    fault.reason = reason
    fault.path = path
    fault.at = at
    return NULL


cdef class ValueColumns:
    cdef Columns columns
    cdef list paths                    # names of the columns and their nested fields, for error messages
    cdef Fault fault
    cdef const uint8_t* base           # the value's bytes: in the array, or in a decoder's copy
    cdef BadRows bad
    cdef object failure                # the exception that decode raises instead of a MemoryError

    cdef int decode_value(self, BinaryValues values, int64_t row) noexcept nogil
    cdef int decode_alone(self, BinaryValues values) noexcept nogil
    cdef int decode_row(self, const uint8_t* p, int64_t size, const uint8_t* readable) noexcept nogil

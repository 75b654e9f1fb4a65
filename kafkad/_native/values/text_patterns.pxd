"""Parse times and dates by a user's pattern (timestampFormat, dateFormat). See text_patterns.pyx."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

from kafkad._native.values.arrow_build cimport Column
from kafkad._native.values.text_values cimport Zone


cdef struct Item:
    int step
    int field                      # the field that a number, a text or an offset sets
    int width_min                  # digits of a number
    int width_max
    int width_behind               # digits of the directly following numbers
    int sign
    int form                       # form of an offset
    int32_t end                    # for an optional part: the item after it
    int64_t size                   # size of a literal
    uint8_t* text                  # the literal, in lower case


cdef struct Steps:
    Item* items
    int32_t count


cdef class Pattern:
    cdef Steps steps
    cdef readonly str text
    cdef readonly bint has_zone

    cdef int open_item(self, Item* item, dict given) except -1


cdef int pattern_timestamp(Steps* pattern, const uint8_t* p, int64_t size, Zone* zone, int64_t* micros) noexcept nogil
cdef int pattern_date(Steps* pattern, const uint8_t* p, int64_t size, int32_t* days) noexcept nogil
cdef Steps* pattern_for(Column* column, tuple patterns) except? NULL

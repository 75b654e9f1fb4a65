"""Parse numbers, dates and timestamps from text like Spark does. See text_values.pyx."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

from kafkad._native.values.arrow_build cimport Column

cdef extern from * nogil:
    """
    typedef unsigned __int128 kafkad_u128;
    """
    ctypedef unsigned long long u128 "kafkad_u128"

cdef enum:
    NUMBER_SIZE_MAX = 1000             # most characters of a number, as in Spark's parser by default


cdef struct Number:                    # value = digits * 10**exponent, and its text
    bint is_negative
    bint is_integer                    # neither a point nor an exponent
    bint is_exact                      # `digits` holds every digit
    uint64_t digits
    int64_t exponent
    const uint8_t* text                # from the sign on
    const uint8_t* end


cdef struct Zone:                      # offsets in seconds east of UTC
    int64_t count
    int64_t* thresholds                # local seconds from which offsets[i + 1] applies; ascending
    int32_t* offsets                   # count + 1


cdef class TimeZone:
    cdef Zone zone
    cdef readonly str name


cdef const uint8_t* scan_number(const uint8_t* p, const uint8_t* end, Number* number) noexcept nogil
cdef double number_f64(Number* number) noexcept nogil
cdef float number_f32(Number* number) noexcept nogil
cdef int number_decimal(Number* number, int precision, int scale, uint64_t* low, int64_t* high) noexcept nogil
cdef int digits_decimal(const uint8_t* p, int64_t size, Column* column, uint64_t* low, int64_t* high) noexcept nogil
cdef int text_date(const uint8_t* p, int64_t size, int32_t* days) noexcept nogil
cdef int text_timestamp(const uint8_t* p, int64_t size, Zone* zone, int64_t* micros) noexcept nogil
cdef bint is_utf8(const uint8_t* p, const uint8_t* end) noexcept nogil
cdef int64_t base64_decoded(const uint8_t* p, int64_t size, uint8_t* out) noexcept nogil
cdef bint decimal_fits(const uint8_t* p, int64_t size, int precision, uint64_t* low, int64_t* high) noexcept nogil
cdef int text_i64(const uint8_t* p, int64_t size, int64_t* value) noexcept nogil
cdef int text_f64(const uint8_t* p, int64_t size, bint is_single, double* value) noexcept nogil
cdef int64_t days_of(int64_t year, int month, int day) noexcept nogil
cdef bint is_date(int64_t year, int64_t month, int64_t day) noexcept nogil
cdef int64_t utc_of(Zone* zone, int64_t local) noexcept nogil
cdef bint micros_of(int64_t seconds, int64_t fraction, int64_t* micros) noexcept nogil

"""Parse numbers, dates and timestamps from text like Spark does, for the JSON and the CSV decoder.

Numbers: A double is correctly rounded. An integer up to 2^53, times or divided by a power of ten up to 10^22, is one
exact operation (Clinger); strtod reads everything else. A decimal is rounded half up to its column's scale, and must
then fit the precision.

Dates: [+-]y{4,7}[-m[m][-d[d]]], and after a whole date anything that starts with a space or T.
Timestamps: [+-]y{4,6}[-m[m][-d[d][ |T h[h][:m[m][:s[s][.f*][zone]]]]]]; digits of a second after the sixth are cut.
A zone is Z, +h[h][:m[m][:ss]] and the like, or a name such as UTC, GMT+1 or Europe/Berlin. Without a zone, the
session's zone applies. A local time in a gap of the zone is moved forward by the gap; an ambiguous local time means the
earlier instant. These are java.time's rules. (Spark: SparkDateTimeUtils.parseTimestampString and stringToDate.)

A zone is a table of (first local second, offset), built once with `zoneinfo`. The Gregorian calendar and the rules of
summer time repeat after 400 years, so the years 1850 to 2500 are enough."""

import re
import threading
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from libc.stdint cimport int8_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from kafkad._native.values.arrow_build cimport Column
from kafkad._native.values.arrow_values cimport BAD_DATE, BAD_NUMBER, BAD_TIMESTAMP, GOOD, OUT_OF_RANGE

cdef extern from * nogil:
    """
    #include <locale.h>
    #include <stdlib.h>
    static locale_t kafkad_c_locale;          /* strtod must not depend on the user's locale */
    static double kafkad_strtod(const char* text) { return strtod_l(text, NULL, kafkad_c_locale); }
    static float kafkad_strtof(const char* text) { return strtof_l(text, NULL, kafkad_c_locale); }
    /* Return whether the whole text is one number. */
    static int kafkad_whole_number(const char* text, int is_single, double* value) {
        char* end;
        *value = is_single ? strtof_l(text, &end, kafkad_c_locale) : strtod_l(text, &end, kafkad_c_locale);
        return end != text && *end == 0;
    }
    static int kafkad_open_locale(void) {
        kafkad_c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
        return kafkad_c_locale == (locale_t)0 ? -1 : 0;
    }
    """
    double kafkad_strtod(const char* text)
    float kafkad_strtof(const char* text)
    bint kafkad_whole_number(const char* text, int is_single, double* value)
    int kafkad_open_locale()
    bint __builtin_mul_overflow(int64_t a, int64_t b, int64_t* result)
    bint __builtin_add_overflow(int64_t a, int64_t b, int64_t* result)

if kafkad_open_locale() < 0:
    raise MemoryError("no C locale")

cdef double[23] POWERS
cdef u128[39] POWERS_128
cdef int power
POWERS_128[0] = 1
for power in range(23):
    POWERS[power] = 10.0**power            # exact up to 10^22
for power in range(1, 39):
    POWERS_128[power] = POWERS_128[power - 1] * 10


cdef const uint8_t* scan_number(const uint8_t* p, const uint8_t* end, Number* number) noexcept nogil:
    """Read a JSON number. Return where it ends, or NULL if it has no digits, a leading zero or too many characters."""
    cdef const uint8_t* start = p
    cdef const uint8_t* digits_start
    cdef uint64_t digits = 0
    cdef int64_t count = 0                 # number of significant digits
    cdef int64_t exponent = 0
    cdef int64_t written = 0
    cdef bint is_exponent_negative = False
    number.text = p
    number.is_integer = True
    number.is_exact = True
    number.is_negative = p < end and p[0] == c"-"
    if number.is_negative:
        p += 1
    digits_start = p
    while p < end and c"0" <= p[0] <= c"9":
        if count < 19:
            digits = digits * 10 + (p[0] - c"0")
            count += digits != 0
        else:
            number.is_exact = False
            exponent += 1
        p += 1
    if p == digits_start or (digits_start[0] == c"0" and p - digits_start > 1):
        return NULL
    if p < end and p[0] == c".":
        number.is_integer = False
        p += 1
        digits_start = p
        while p < end and c"0" <= p[0] <= c"9":
            if count < 19:
                digits = digits * 10 + (p[0] - c"0")
                count += digits != 0
                exponent -= 1
            else:
                number.is_exact = False
            p += 1
        if p == digits_start:
            return NULL
    if p < end and (p[0] == c"e" or p[0] == c"E"):
        number.is_integer = False
        p += 1
        if p < end and (p[0] == c"+" or p[0] == c"-"):
            is_exponent_negative = p[0] == c"-"
            p += 1
        digits_start = p
        while p < end and c"0" <= p[0] <= c"9":
            if written < 1000000000:
                written = written * 10 + (p[0] - c"0")
            p += 1
        if p == digits_start:
            return NULL
        exponent += -written if is_exponent_negative else written
    if p - start > NUMBER_SIZE_MAX:
        return NULL
    number.digits = digits
    number.exponent = exponent
    number.end = p
    return p


cdef double number_f64(Number* number) noexcept nogil:
    cdef double value
    cdef char[NUMBER_SIZE_MAX + 1] text
    if number.digits == 0 and number.is_exact:
        value = 0.0
    elif number.is_exact and number.digits <= <uint64_t>1 << 53 and -22 <= number.exponent <= 22:
        value = <double>number.digits
        value = value * POWERS[number.exponent] if number.exponent >= 0 else value / POWERS[-number.exponent]
    else:
        memcpy(text, number.text, <size_t>(number.end - number.text))
        text[number.end - number.text] = 0
        return kafkad_strtod(text)
    return -value if number.is_negative else value


cdef float number_f32(Number* number) noexcept nogil:
    cdef float value
    cdef char[NUMBER_SIZE_MAX + 1] text
    if number.is_exact and number.digits <= <uint64_t>1 << 24 and -10 <= number.exponent <= 10:
        value = <float>number.digits
        value = value * <float>POWERS[number.exponent] if number.exponent >= 0 else (
            value / <float>POWERS[-number.exponent])
        return -value if number.is_negative else value
    memcpy(text, number.text, <size_t>(number.end - number.text))
    text[number.end - number.text] = 0
    return kafkad_strtof(text)


cdef int number_decimal(Number* number, int precision, int scale, uint64_t* low, int64_t* high) noexcept nogil:
    """Convert a number to a decimal. Return GOOD or OUT_OF_RANGE. Every digit counts, so read the text again."""
    # java.math.BigDecimal refuses an exponent of more than 32 bits, even if the value is nearly zero.
    cdef const uint8_t* p = number.text
    cdef u128 value = 0
    cdef int64_t count = 0                 # number of significant digits
    cdef int64_t kept = 0
    cdef int64_t shift = number.exponent + scale
    cdef int rounding = 0
    if not -0x7fffffff <= number.exponent <= 0x7fffffff:
        return OUT_OF_RANGE
    if number.is_exact and 0 <= shift < 19:                 # all digits are in one word, and no rounding
        value = <u128>number.digits * POWERS_128[shift]
    else:
        shift = 0
        while p < number.end and p[0] != c"e" and p[0] != c"E":
            if c"0" <= p[0] <= c"9":
                count += 1 if count or p[0] != c"0" else 0
            p += 1
        if count == 0:
            low[0] = 0
            high[0] = 0
            return GOOD
        # number.exponent refers to the digits that fit its word; the others were dropped.
        shift = number.exponent - (count - 19 if count > 19 else 0) + scale
        kept = count + shift                                # digits of the result; negative: all are rounded away
        if kept > 38:
            return OUT_OF_RANGE
        if kept < 0:
            low[0] = 0
            high[0] = 0
            return GOOD
        p = number.text
        count = 0
        while p < number.end and p[0] != c"e" and p[0] != c"E":
            if c"0" <= p[0] <= c"9" and (count or p[0] != c"0"):
                if count == kept:
                    rounding = p[0] >= c"5"
                    break
                value = value * 10 + (p[0] - c"0")
                count += 1
            p += 1
        while count < kept and rounding == 0:
            value = value * 10
            count += 1
        value += <u128>rounding
    if value >= POWERS_128[precision]:
        return OUT_OF_RANGE
    if number.is_negative:
        value = ~value + 1
    low[0] = <uint64_t>value
    high[0] = <int64_t>(value >> 64)
    return GOOD


cdef int digits_decimal(const uint8_t* p, int64_t size, Column* column, uint64_t* low, int64_t* high) noexcept nogil:
    """Parse a decimal in a string: java.math.BigDecimal's format; commas are ignored."""
    cdef uint8_t[NUMBER_SIZE_MAX + 2] text                  # a sign, a zero before a point, and the text
    cdef const uint8_t* end = p + size
    cdef int64_t written = 0
    cdef int64_t digits = 0                                 # before the point
    cdef bint is_negative = False
    cdef Number number
    if size > NUMBER_SIZE_MAX:
        return BAD_NUMBER
    p = past_commas(p, end)
    if p < end and (p[0] == c"-" or p[0] == c"+"):
        is_negative = p[0] == c"-"
        p = past_commas(p + 1, end)
    while p < end and c"0" <= p[0] <= c"9":
        if written == 1 and text[0] == c"0":
            written = 0                                     # 007 is 7
        text[written] = p[0]
        written += 1
        digits += 1
        p = past_commas(p + 1, end)
    if p < end and p[0] == c".":
        p = past_commas(p + 1, end)
        if written == 0:
            text[0] = c"0"                                  # .5 is 0.5
            written = 1
        if p < end and c"0" <= p[0] <= c"9":
            text[written] = c"."
            written += 1
            while p < end and c"0" <= p[0] <= c"9":
                text[written] = p[0]
                written += 1
                digits += 1
                p = past_commas(p + 1, end)
    if digits == 0:
        return BAD_NUMBER
    while p < end:                                          # the exponent, which scan_number checks
        text[written] = p[0]
        written += 1
        p = past_commas(p + 1, end)
    if scan_number(text, text + written, &number) != text + written:
        return BAD_NUMBER
    number.is_negative = is_negative
    return number_decimal(&number, column.precision, column.scale, low, high)


cdef inline const uint8_t* past_commas(const uint8_t* p, const uint8_t* end) noexcept nogil:
    while p < end and p[0] == c",":
        p += 1
    return p


cdef int text_i64(const uint8_t* p, int64_t size, int64_t* value) noexcept nogil:
    """Parse an integer like Java's parseLong, in ASCII digits. Return GOOD, BAD_NUMBER or OUT_OF_RANGE."""
    cdef const uint8_t* end = p + size
    cdef bint is_negative = False
    cdef uint64_t digits = 0
    cdef const uint8_t* start
    if p < end and (p[0] == c"-" or p[0] == c"+"):
        is_negative = p[0] == c"-"
        p += 1
    if p == end:
        return BAD_NUMBER
    while p + 1 < end and p[0] == c"0":
        p += 1
    start = p
    while p < end:
        if not c"0" <= p[0] <= c"9":
            return BAD_NUMBER
        if p - start < 19:
            digits = digits * 10 + (p[0] - c"0")
        p += 1
    if end - start > 19 or digits > <uint64_t>0x7fffffffffffffff + is_negative:
        return OUT_OF_RANGE
    value[0] = <int64_t>(-digits if is_negative else digits)
    return GOOD


cdef int text_f64(const uint8_t* p, int64_t size, bint is_single, double* value) noexcept nogil:
    """Parse a decimal floating-point number like Java's parseDouble, without suffixes. Return GOOD or BAD_NUMBER."""
    cdef char[NUMBER_SIZE_MAX + 1] text
    cdef Number number
    cdef int64_t i
    if scan_number(p, p + size, &number) == p + size:
        value[0] = number_f32(&number) if is_single else number_f64(&number)
        return GOOD
    while size and is_blank(p[0]):
        p += 1
        size -= 1
    while size and is_blank(p[size - 1]):
        size -= 1
    if size == 0 or size > NUMBER_SIZE_MAX:
        return BAD_NUMBER
    for i in range(size):                                   # strtod alone would accept hex, inf and nan, too
        if not (c"0" <= p[i] <= c"9" or p[i] == c"." or p[i] == c"-" or p[i] == c"+" or p[i] | 0x20 == c"e"):
            return BAD_NUMBER
    memcpy(text, p, <size_t>size)
    text[size] = 0
    return GOOD if kafkad_whole_number(text, is_single, value) else BAD_NUMBER


cdef bint decimal_fits(const uint8_t* p, int64_t size, int precision, uint64_t* low, int64_t* high) noexcept nogil:
    """Read an unscaled value in big-endian two's complement, as in Avro. Return False if it has more digits than
    `precision`, or no bytes."""
    cdef u128 value = 0
    cdef u128 magnitude
    cdef bint is_negative = size > 0 and p[0] & 0x80
    cdef int64_t i
    if size == 0:
        return False
    if is_negative:
        value = ~value
    for i in range(size):
        if i < size - 16 and p[i] != (0xff if is_negative else 0):
            return False
        value = value << 8 | p[i]
    if is_negative != <bint>(value >> 127):
        return False
    magnitude = ~value + 1 if is_negative else value
    if magnitude >= POWERS_128[precision]:
        return False
    low[0] = <uint64_t>value
    high[0] = <int64_t>(value >> 64)
    return True


# Calendars

cdef inline int64_t days_of(int64_t year, int month, int day) noexcept nogil:
    """Return the days since 1970-01-01 in the proleptic Gregorian calendar. Years start in March here, so a leap day is
    the last one."""
    cdef int64_t era
    cdef int64_t year_of_era
    cdef int64_t day_of_year
    year -= month <= 2
    era = (year if year >= 0 else year - 399) // 400
    year_of_era = year - era * 400
    day_of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    return era * 146097 + year_of_era * 365 + year_of_era // 4 - year_of_era // 100 + day_of_year - 719468


cdef inline bint is_date(int64_t year, int64_t month, int64_t day) noexcept nogil:
    if month < 1 or month > 12 or day < 1 or day > 31:
        return False
    if day <= 28:
        return True
    if month == 2:
        return day == 29 and (year & 3) == 0 and (year % 100 != 0 or year % 400 == 0)
    return day <= 30 or not (month == 4 or month == 6 or month == 9 or month == 11)


cdef inline bint is_blank(uint8_t c) noexcept nogil:
    return c <= 0x20 or c == 0x7f


cdef inline int64_t digits_at(const uint8_t** at, const uint8_t* end, int64_t* count) noexcept nogil:
    """Read the number at `at`, and move `at` after it. With more than 9 digits, only the count is right."""
    cdef const uint8_t* p = at[0]
    cdef int64_t value = 0
    while p < end and c"0" <= p[0] <= c"9":
        if p - at[0] < 9:
            value = value * 10 + (p[0] - c"0")
        p += 1
    count[0] = p - at[0]
    at[0] = p
    return value


cdef bint part_at(
    const uint8_t** at, const uint8_t* end, uint8_t separator, uint8_t other, int64_t* value
) noexcept nogil:
    """Read one or two digits after a separator. Change nothing at the end of the text. Return False for any other text."""
    cdef int64_t count
    if at[0] >= end:
        return True
    if at[0][0] != separator and at[0][0] != other:
        return False
    at[0] += 1
    value[0] = digits_at(at, end, &count)
    return 1 <= count <= 2


cdef int text_date(const uint8_t* p, int64_t size, int32_t* days) noexcept nogil:
    """Parse a date. Return GOOD or BAD_DATE."""
    cdef const uint8_t* end = p + size
    cdef int64_t sign = 1
    cdef int64_t count
    cdef int64_t year
    cdef int64_t month = 1
    cdef int64_t day = 1
    cdef int64_t value
    cdef bint has_blanks
    while p < end and is_blank(p[0]):
        p += 1
    while end > p and is_blank((end - 1)[0]):
        end -= 1
    has_blanks = end - p < size
    if p < end and (p[0] == c"-" or p[0] == c"+"):
        sign = -1 if p[0] == c"-" else 1
        p += 1
    year = digits_at(&p, end, &count)
    if count < 4 or count > 7:
        if p < end or count == 0 or count > 9 or has_blanks:
            return BAD_DATE
        days[0] = <int32_t>(sign * year)                    # days since 1970, which Spark 1.5 wrote
        return GOOD
    if not part_at(&p, end, c"-", c"-", &month) or not part_at(&p, end, c"-", c"-", &day):
        return BAD_DATE
    if p < end and p[0] != c" " and p[0] != c"T":
        return BAD_DATE
    year = sign * year
    if not is_date(year, month, day):
        return BAD_DATE
    value = days_of(year, <int>month, <int>day)
    if value != <int32_t>value:
        return BAD_DATE
    days[0] = <int32_t>value
    return GOOD


cdef inline int two_digits(const uint8_t* p) noexcept nogil:
    """Return the value of two digits, or a number far above 99 if they are not digits."""
    cdef unsigned int high = <unsigned int>p[0] - c"0"
    cdef unsigned int low = <unsigned int>p[1] - c"0"
    return <int>(high * 10 + low) if high <= 9 and low <= 9 else 10000


cdef inline int64_t utc_of(Zone* zone, int64_t local) noexcept nogil:
    cdef int64_t low = 0
    cdef int64_t high = zone.count
    cdef int64_t middle
    cdef int64_t cycles = 0
    if zone.count == 0:
        return local - zone.offsets[0]
    if local > LAST_SECOND:
        cycles = (local - LAST_SECOND + CYCLE_SECONDS - 1) // CYCLE_SECONDS
        local -= cycles * CYCLE_SECONDS
    while low < high:
        middle = (low + high) // 2
        if zone.thresholds[middle] <= local:
            low = middle + 1
        else:
            high = middle
    return local - zone.offsets[low] + cycles * CYCLE_SECONDS


cdef int parse_zone(const uint8_t* p, const uint8_t* end, int64_t local, int64_t* utc) noexcept nogil:
    """Convert `local` seconds to UTC by the zone that the text from `p` to `end` names. Return the reason."""
    cdef int sign
    cdef int hours
    cdef int minutes = 0
    if end - p == 1 and p[0] == c"Z":
        utc[0] = local
        return GOOD
    if (end - p == 6 and p[3] == c":" or end - p == 5 or end - p == 3) and (p[0] == c"+" or p[0] == c"-"):
        hours = two_digits(p + 1)
        if end - p > 3:
            minutes = two_digits(end - 2)
        if hours < 18 and minutes < 60 or hours == 18 and minutes == 0:
            sign = -1 if p[0] == c"-" else 1
            utc[0] = local - sign * (hours * 3600 + minutes * 60)
            return GOOD
    return named_zone(p, end, local, utc)


cdef int named_zone(const uint8_t* p, const uint8_t* end, int64_t local, int64_t* utc) noexcept with gil:
    """Handle the rare cases of parse_zone: names of zones, and unusual forms of offsets."""
    cdef TimeZone zone
    if end - p > 64:
        return BAD_TIMESTAMP
    try:
        zone = time_zone((<const char*>p)[:end - p].decode())
    except Exception:
        return BAD_TIMESTAMP
    utc[0] = utc_of(&zone.zone, local)
    return GOOD


cdef int text_timestamp(const uint8_t* p, int64_t size, Zone* zone, int64_t* micros) noexcept nogil:
    """Parse a timestamp. `zone` is the session's; NULL means a timestamp without a zone, and a text with one is bad. Return
    the reason."""
    cdef const uint8_t* end = p + size
    cdef int64_t sign = 1
    cdef int64_t count
    cdef int64_t year
    cdef int64_t month = 1
    cdef int64_t day = 1
    cdef int64_t hour = 0
    cdef int64_t minute = 0
    cdef int64_t second = 0
    cdef int64_t fraction = 0
    cdef int64_t seconds
    cdef int digits = 0
    if size >= 19 and p[4] == c"-" and p[7] == c"-" and (p[10] == c"T" or p[10] == c" ") and p[13] == c":" and p[16] == c":":
        # The common form, with all parts at fixed positions. Other forms continue with the slow path below.
        year = two_digits(p) * 100 + two_digits(p + 2)
        month = two_digits(p + 5)
        day = two_digits(p + 8)
        hour = two_digits(p + 11)
        minute = two_digits(p + 14)
        second = two_digits(p + 17)
        if year > 9999:
            return BAD_TIMESTAMP
        p += 19
    else:
        while p < end and is_blank(p[0]):
            p += 1
        while end > p and is_blank((end - 1)[0]):
            end -= 1
        if p < end and (p[0] == c"-" or p[0] == c"+"):
            sign = -1 if p[0] == c"-" else 1
            p += 1
        year = sign * digits_at(&p, end, &count)
        if count < 4 or count > 6:
            return BAD_TIMESTAMP
        if (
            not part_at(&p, end, c"-", c"-", &month)
            or not part_at(&p, end, c"-", c"-", &day)
            or not part_at(&p, end, c" ", c"T", &hour)
            or not part_at(&p, end, c":", c":", &minute)
            or not part_at(&p, end, c":", c":", &second)
        ):
            return BAD_TIMESTAMP
    if p < end and p[0] == c".":
        p += 1
        while p < end and c"0" <= p[0] <= c"9":
            if digits < 6:
                fraction = fraction * 10 + (p[0] - c"0")
                digits += 1
            p += 1
        while digits < 6:
            fraction *= 10
            digits += 1
    while end > p and is_blank((end - 1)[0]):
        end -= 1
    while p < end and is_blank(p[0]):
        p += 1
    if not is_date(year, month, day) or hour > 23 or minute > 59 or second > 59:
        return BAD_TIMESTAMP
    seconds = days_of(year, <int>month, <int>day) * 86400 + hour * 3600 + minute * 60 + second
    if p < end:
        if zone is NULL or parse_zone(p, end, seconds, &seconds) != GOOD:
            return BAD_TIMESTAMP
    elif zone is not NULL:
        seconds = utc_of(zone, seconds)
    return GOOD if micros_of(seconds, fraction, micros) else BAD_TIMESTAMP


cdef inline bint micros_of(int64_t seconds, int64_t fraction, int64_t* micros) noexcept nogil:
    """Combine seconds and a fraction of 0 to 999,999 microseconds. Return False if the result does not fit into 64 bits."""
    if seconds < 0 and fraction:                            # avoids an overflow in the earliest second
        seconds += 1
        fraction -= 1000000
    return not (__builtin_mul_overflow(seconds, 1000000, &seconds)
                or __builtin_add_overflow(seconds, fraction, micros))


# Zones

cdef int64_t CYCLE_SECONDS = 146097 * 86400        # 400 years are 20871 weeks: every rule repeats
cdef int64_t LAST_SECOND = 16725225600             # 2500-01-01: from 400 years earlier on, no rule changes any more
FIRST_PROBE = datetime(1850, 1, 1, tzinfo=UTC)
LAST_PROBE = datetime(2500, 6, 1, tzinfo=UTC)
PROBE_STEP = timedelta(days=7)                     # no two changes that cancel each other are closer together
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?(\d{1,2})(?::?(\d{2}))?)?", re.ASCII)
# java.time.ZoneId.SHORT_IDS
SHORT_IDS = {
    "EST": "-05:00", "MST": "-07:00", "HST": "-10:00", "ACT": "Australia/Darwin", "AET": "Australia/Sydney",
    "AGT": "America/Argentina/Buenos_Aires", "ART": "Africa/Cairo", "AST": "America/Anchorage",
    "BET": "America/Sao_Paulo", "BST": "Asia/Dhaka", "CAT": "Africa/Harare", "CNT": "America/St_Johns",
    "CST": "America/Chicago", "CTT": "Asia/Shanghai", "EAT": "Africa/Addis_Ababa", "ECT": "Europe/Paris",
    "IET": "America/Indiana/Indianapolis", "IST": "Asia/Kolkata", "JST": "Asia/Tokyo", "MIT": "Pacific/Apia",
    "NET": "Asia/Yerevan", "NST": "Pacific/Auckland", "PLT": "Asia/Karachi", "PNT": "America/Phoenix",
    "PRT": "America/Puerto_Rico", "PST": "America/Los_Angeles", "SST": "Pacific/Guadalcanal",
    "VST": "Asia/Ho_Chi_Minh",
}  # fmt: skip

# zone files that Java does not know; they differ between machines
NO_ZONES = ("localtime", "posixrules", "Factory", "ROC")
NO_ZONES_BELOW = ("posix/", "right/")

zones = {}
zones_lock = threading.Lock()


def offset_seconds(text):
    """Return the seconds of an offset such as +1, -08:30, UTC+1 or GMT-0130; None for any other text."""
    if text in ("Z", "UTC", "GMT", "UT", "GMT0"):
        return 0
    found = OFFSET.fullmatch(text)
    if not found:
        return None
    hours, minutes, seconds = (int(part or 0) for part in found.groups()[1:])
    if minutes > 59 or seconds > 59 or hours * 3600 + minutes * 60 + seconds > 18 * 3600:
        return None
    return (hours * 3600 + minutes * 60 + seconds) * (-1 if found[1] == "-" else 1)


def transitions(zone):
    """Return [(UTC second, offset before, offset after)] for each change of a zone's offset."""
    def offset(at):
        return int(at.astimezone(zone).utcoffset().total_seconds())

    found = []
    at, now = FIRST_PROBE, offset(FIRST_PROBE)
    while at < LAST_PROBE:
        later = at + PROBE_STEP
        then = offset(later)
        while now != then:                         # the next iteration finds a second change in the same step
            low, high = at, later
            while high - low > timedelta(seconds=1):
                middle = (low + (high - low) / 2).replace(microsecond=0)
                if offset(middle) == now:
                    low = middle
                else:
                    high = middle
            found.append((int((high - EPOCH).total_seconds()), now, offset(high)))
            at, now = high, offset(high)
        at = later
    return found


def time_zone(str name):
    """Return the zone of a name that Spark accepts. Raise ValueError if there is none."""
    with zones_lock:
        zone = zones.get(name)
        if zone is None:
            zone = TimeZone(name)
            if len(zones) > 1000:                  # values are untrusted and may have many offsets
                zones.clear()
            zones[name] = zone
        return zone


cdef class TimeZone:
    def __cinit__(self, str name):
        cdef int64_t i
        self.name = name
        name = name.strip()
        name = SHORT_IDS.get(name, name)
        fixed = offset_seconds(name)
        changes = []
        if fixed is None:
            try:
                if name in NO_ZONES or name.startswith(NO_ZONES_BELOW):
                    raise KeyError(name)
                zone = ZoneInfo(name)
            except Exception as error:
                raise ValueError(f"no time zone is called {name!r}") from error
            changes = transitions(zone)
            fixed = int(FIRST_PROBE.astimezone(zone).utcoffset().total_seconds())
        self.zone.count = len(changes)
        self.zone.thresholds = <int64_t*>calloc(<size_t>max(self.zone.count, 1), sizeof(int64_t))
        self.zone.offsets = <int32_t*>calloc(<size_t>(self.zone.count + 1), sizeof(int32_t))
        if self.zone.thresholds is NULL or self.zone.offsets is NULL:
            raise MemoryError
        self.zone.offsets[0] = fixed
        for i in range(self.zone.count):
            at, before, after = changes[i]
            self.zone.thresholds[i] = at + max(before, after)
            self.zone.offsets[i + 1] = after

    def __dealloc__(self):
        free(self.zone.thresholds)
        free(self.zone.offsets)

    def to_utc(self, int64_t local):
        """Convert a local time, in seconds since 1970, to UTC seconds since 1970."""
        return utc_of(&self.zone, local)


# Strings

cdef bint is_utf8(const uint8_t* p, const uint8_t* end) noexcept nogil:
    """Return whether the bytes are UTF-8: no overlong forms, no surrogates, nothing above U+10FFFF."""
    cdef uint64_t eight
    cdef uint8_t c
    while p < end:
        if end - p >= 8:
            memcpy(&eight, p, 8)
            if not eight & 0x8080808080808080ULL:
                p += 8
                continue
        c = p[0]
        if c < 0x80:
            p += 1
        elif c < 0xc2:
            return False
        elif c < 0xe0:
            if end - p < 2 or p[1] & 0xc0 != 0x80:
                return False
            p += 2
        elif c < 0xf0:
            if end - p < 3 or p[1] & 0xc0 != 0x80 or p[2] & 0xc0 != 0x80:
                return False
            if (c == 0xe0 and p[1] < 0xa0) or (c == 0xed and p[1] >= 0xa0):
                return False
            p += 3
        elif c < 0xf5:
            if end - p < 4 or p[1] & 0xc0 != 0x80 or p[2] & 0xc0 != 0x80 or p[3] & 0xc0 != 0x80:
                return False
            if (c == 0xf0 and p[1] < 0x90) or (c == 0xf4 and p[1] >= 0x90):
                return False
            p += 4
        else:
            return False
    return True


cdef int8_t[256] BASE64
memset(BASE64, -1, 256)
cdef const uint8_t* ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
for power in range(64):
    BASE64[ALPHABET[power]] = <int8_t>power


cdef int64_t base64_decoded(const uint8_t* p, int64_t size, uint8_t* out) noexcept nogil:
    """Decode padded base64 to `out`, which has room for size * 3 // 4 + 3 bytes. Skip blanks between the groups. Return the
    number of bytes, or -1."""
    cdef int64_t written = 0
    cdef int64_t i = 0
    cdef uint32_t group
    cdef int have
    while True:
        while i < size and p[i] <= 0x20:
            i += 1
        if i == size:
            return written
        group = 0
        have = 0
        while i < size and have < 4 and BASE64[p[i]] >= 0:
            group = group << 6 | <uint32_t>BASE64[p[i]]
            have += 1
            i += 1
        if have == 4:
            out[written] = <uint8_t>(group >> 16)
            out[written + 1] = <uint8_t>(group >> 8)
            out[written + 2] = <uint8_t>group
            written += 3
            continue
        if have == 2 and size - i >= 2 and p[i] == c"=" and p[i + 1] == c"=":
            out[written] = <uint8_t>(group >> 4)
            written += 1
            i += 2
        elif have == 3 and size - i >= 1 and p[i] == c"=":
            out[written] = <uint8_t>(group >> 10)
            out[written + 1] = <uint8_t>(group >> 2)
            written += 2
            i += 1
        else:
            return -1

"""Read the text of JSON: strings, blanks, and values that are skipped.

It accepts what Spark's parser accepts by default: strings in single quotes, NaN and Infinity without quotes, but no
comments and no names without quotes. json_columns.pyx reads values into columns; it uses the hot part, parse_string,
inline from the .pxd.

Rule: the last byte of the text is a }, and ROOM bytes after it can be read (json_columns.pyx ensures that). So numbers,
blanks and literals stop by themselves, and strings are scanned 16 bytes at a time (SSE2)."""

from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport realloc
from libc.string cimport memcmp, memcpy, memset

from kafkad._native.values.arrow_values cimport (
    BAD_ESCAPE, BAD_NUMBER, CONTROL_CHARACTER, ENDS_EARLY, LONE_SURROGATE, NO_MEMORY, NOT_UTF8, TOO_DEEP, WRONG_TYPE,
)
from kafkad._native.values.text_values cimport Number, is_utf8, scan_number

cdef extern from "math.h" nogil:
    const double NAN, INFINITY


cdef inline int hex_digit(uint8_t c) noexcept nogil:
    if c"0" <= c <= c"9":
        return c - c"0"
    c |= 0x20
    return c - c"a" + 10 if c"a" <= c <= c"f" else -1


cdef int32_t hex_four(const uint8_t* p, const uint8_t* end) noexcept nogil:
    cdef int i
    cdef int digit
    cdef int32_t value = 0
    if end - p < 4:
        return -1
    for i in range(4):
        digit = hex_digit(p[i])
        if digit < 0:
            return -1
        value = value << 4 | digit
    return value


cdef uint8_t* room_for_text(Parser* parser, int64_t size) noexcept nogil:
    cdef uint8_t* text
    if size > parser.text_capacity:
        text = <uint8_t*>realloc(parser.text, <size_t>(size * 2))
        if text is NULL:
            return NULL
        parser.text, parser.text_capacity = text, size * 2
    return parser.text


cdef const uint8_t* parse_escaped(Parser* parser, int32_t path, const uint8_t* start, const uint8_t* p, uint8_t quote,
                                  const uint8_t** text, int64_t* size) noexcept nogil:
    """Read the rest of a string whose first backslash is at `p`. The unescaped bytes are in `parser.text`."""
    cdef const uint8_t* run = start
    cdef const uint8_t* at
    cdef int64_t written = 0
    cdef int high = 0
    cdef int32_t code
    cdef int32_t second
    cdef uint8_t* out
    p = start
    while True:
        run = p
        high = 0
        p = kafkad_scan_string(p, parser.end, quote, &high)
        if p >= parser.end:
            return wrong(parser, ENDS_EARLY, path, parser.end)
        if high and not is_utf8(run, p):
            return wrong(parser, NOT_UTF8, path, run)
        out = room_for_text(parser, written + (p - run) + 8)
        if out is NULL:
            return wrong(parser, NO_MEMORY, path, p)
        memcpy(out + written, run, <size_t>(p - run))
        written += p - run
        out += written
        if p[0] == quote:
            text[0] = parser.text
            size[0] = written
            return p + 1
        if p[0] < 0x20:
            return wrong(parser, CONTROL_CHARACTER, path, p)
        at = p
        p += 1
        if p >= parser.end:
            return wrong(parser, ENDS_EARLY, path, at)
        p += 1
        if (p - 1)[0] == c"u":
            code = hex_four(p, parser.end)
            if code < 0:
                return wrong(parser, BAD_ESCAPE, path, at)
            p += 4
            if 0xdc00 <= code < 0xe000:
                return wrong(parser, LONE_SURROGATE, path, at)
            if 0xd800 <= code < 0xdc00:
                second = -1
                if parser.end - p >= 6 and p[0] == c"\\" and p[1] == c"u":
                    second = hex_four(p + 2, parser.end)
                if second < 0xdc00 or second >= 0xe000:
                    return wrong(parser, LONE_SURROGATE, path, at)
                p += 6
                code = 0x10000 + ((code - 0xd800) << 10) + (second - 0xdc00)
                out[0] = <uint8_t>(0xf0 | code >> 18)
                out[1] = <uint8_t>(0x80 | (code >> 12 & 0x3f))
                out[2] = <uint8_t>(0x80 | (code >> 6 & 0x3f))
                out[3] = <uint8_t>(0x80 | (code & 0x3f))
                written += 4
            elif code < 0x80:
                out[0] = <uint8_t>code
                written += 1
            elif code < 0x800:
                out[0] = <uint8_t>(0xc0 | code >> 6)
                out[1] = <uint8_t>(0x80 | (code & 0x3f))
                written += 2
            else:
                out[0] = <uint8_t>(0xe0 | code >> 12)
                out[1] = <uint8_t>(0x80 | (code >> 6 & 0x3f))
                out[2] = <uint8_t>(0x80 | (code & 0x3f))
                written += 3
            continue
        code = (p - 1)[0]
        if code == c"n":
            out[0] = c"\n"
        elif code == c"t":
            out[0] = c"\t"
        elif code == c"r":
            out[0] = c"\r"
        elif code == c"b":
            out[0] = 8
        elif code == c"f":
            out[0] = 12
        elif code == c'"' or code == c"\\" or code == c"/" or code == c"'":
            out[0] = <uint8_t>code
        else:
            return wrong(parser, BAD_ESCAPE, path, at)
        written += 1


cdef const uint8_t* odd_number(const uint8_t* p, double* value) noexcept nogil:
    """Read NaN, Infinity, +-Infinity or +-INF without quotes. Return NULL for anything else. May read 9 bytes ahead."""
    cdef double sign = 1
    if p[0] == c"N":
        value[0] = NAN
        return p + 3 if memcmp(p, b"NaN", 3) == 0 else NULL
    if p[0] == c"-" or p[0] == c"+":
        sign = -1 if p[0] == c"-" else 1
        p += 1
        if memcmp(p, b"INF", 3) == 0:
            value[0] = sign * INFINITY
            return p + 3
    value[0] = sign * INFINITY
    return p + 8 if memcmp(p, b"Infinity", 8) == 0 else NULL


cdef bint is_odd_number(const uint8_t* text, int64_t size, double* value) noexcept nogil:
    """Read a whole string of 3 to 9 bytes like `odd_number`."""
    cdef uint8_t[24] padded
    memset(padded, 0, 24)
    memcpy(padded, text, <size_t>size)
    return odd_number(padded, value) == padded + size


cdef const uint8_t* skip_value(Parser* parser, int32_t path, const uint8_t* p, int depth) noexcept nogil:
    """Check any value and skip it."""
    cdef const uint8_t* text
    cdef const uint8_t* q
    cdef int64_t size
    cdef Number number
    cdef double value
    cdef uint8_t closing
    cdef uint8_t c = p[0]
    if c == c'"' or c == c"'":
        return parse_string(parser, path, p, &text, &size)
    if c == c"{" or c == c"[":
        if depth >= DEPTH_MAX:
            return wrong(parser, TOO_DEEP, path, p)
        closing = c + 2                            # in ASCII, } and ] are two places after { and [
        p = skip_space(p + 1)
        if p[0] == closing:
            return p + 1
        while True:
            if c == c"{":
                if p[0] != c'"' and p[0] != c"'":
                    return unexpected(parser, path, p)
                p = parse_name(parser, path, p, &text, &size)
                if p is NULL:
                    return NULL
                p = skip_space(p)
                if p[0] != c":":
                    return unexpected(parser, path, p)
                p = skip_space(p + 1)
            p = skip_value(parser, path, p, depth + 1)
            if p is NULL:
                return NULL
            if p == parser.end:
                return wrong(parser, ENDS_EARLY, path, p)
            p = skip_space(p)
            if p[0] == closing:
                return p + 1
            if p[0] != c",":
                return unexpected(parser, path, p)
            p = skip_space(p + 1)
    if c == c"t" and memcmp(p, b"true", 4) == 0:
        return p + 4
    if c == c"f" and memcmp(p, b"false", 5) == 0:
        return p + 5
    if c == c"n" and memcmp(p, b"null", 4) == 0:
        return p + 4
    if c == c"-" or c"0" <= c <= c"9":
        q = scan_number(p, parser.end, &number)
        if q is not NULL:
            return q
    q = odd_number(p, &value)
    if q is not NULL:
        return q
    return wrong(parser, BAD_NUMBER, path, p) if c == c"-" or c"0" <= c <= c"9" else unexpected(parser, path, p)


cdef const uint8_t* mistyped(Parser* parser, int32_t path, const uint8_t* p, int depth) noexcept nogil:
    """Refuse a value that has not the column's type. If it is not valid JSON, report that instead."""
    if skip_value(parser, path, p, depth) is NULL:
        return NULL
    return wrong(parser, WRONG_TYPE, path, p)

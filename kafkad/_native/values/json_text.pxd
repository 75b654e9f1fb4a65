"""Read the text of JSON: strings, blanks, and values that are skipped. See json_text.pyx.

Each function takes the position `p` and returns the position after what it has read, or NULL with the reason noted for
`path`."""

from libc.stdint cimport int32_t, int64_t, uint8_t

from kafkad._native.values.arrow_values cimport CONTROL_CHARACTER, ENDS_EARLY, NAME_TOO_LONG, NOT_UTF8, SYNTAX
from kafkad._native.values.text_values cimport is_utf8
from kafkad._native.values.value_columns cimport Fault, faulty

cdef extern from * nogil:
    """
    #include <stdint.h>
    #ifdef __SSE2__
    #include <emmintrin.h>
    #endif

    /* The first quote, backslash or control character from p on, at most `end`; *high is set if a byte before it
       may be above 0x7f. Reads up to 16 bytes past `end`. */
    CYTHON_UNUSED static inline const uint8_t *kafkad_scan_string(const uint8_t *p, const uint8_t *end, uint8_t quote, int *high) {
    #ifdef __SSE2__
        const __m128i quotes = _mm_set1_epi8((char)quote), slashes = _mm_set1_epi8('\\\\'), low = _mm_set1_epi8(0x1f);
        for (; p < end; p += 16) {
            __m128i v = _mm_loadu_si128((const __m128i *)p);
            unsigned stop = (unsigned)_mm_movemask_epi8(_mm_or_si128(
                _mm_or_si128(_mm_cmpeq_epi8(v, quotes), _mm_cmpeq_epi8(v, slashes)),
                _mm_cmpeq_epi8(_mm_min_epu8(v, low), v)));
            unsigned above = (unsigned)_mm_movemask_epi8(v);
            if (stop) {
                unsigned n = (unsigned)__builtin_ctz(stop);
                *high |= (int)(above & ((1u << n) - 1));
                return p + n < end ? p + n : end;
            }
            *high |= (int)above;
        }
        return end;
    #else
        for (; p < end && *p != quote && *p != '\\\\' && *p >= 0x20; p++) *high |= *p & 0x80;
        return p;
    #endif
    }
    """
    const uint8_t* kafkad_scan_string(const uint8_t* p, const uint8_t* end, uint8_t quote, int* high)


cdef enum:
    DEPTH_MAX = 1000                   # nested objects and arrays, as in Spark's parser
    ROOM = 32                          # bytes after a value that can be read
    NAME_MAX = 50000                   # UTF-16 units of a member's name, as in Spark's parser


cdef struct Parser:
    const uint8_t* end
    bint is_cut                        # the last byte before `end` was added
    Fault* fault
    uint8_t* text                      # unescaped strings
    int64_t text_capacity


cdef const uint8_t* parse_escaped(Parser* parser, int32_t path, const uint8_t* start, const uint8_t* p, uint8_t quote,
                                  const uint8_t** text, int64_t* size) noexcept nogil
cdef const uint8_t* odd_number(const uint8_t* p, double* value) noexcept nogil
cdef bint is_odd_number(const uint8_t* text, int64_t size, double* value) noexcept nogil
cdef const uint8_t* skip_value(Parser* parser, int32_t path, const uint8_t* p, int depth) noexcept nogil
cdef const uint8_t* mistyped(Parser* parser, int32_t path, const uint8_t* p, int depth) noexcept nogil


cdef inline const uint8_t* wrong(Parser* parser, int reason, int32_t path, const uint8_t* at) noexcept nogil:
    return faulty(parser.fault, reason, path, at)


cdef inline const uint8_t* unexpected(Parser* parser, int32_t path, const uint8_t* p) noexcept nogil:
    """Refuse an unexpected byte. At the added end, report that the value is cut."""
    if parser.is_cut and p + 1 >= parser.end:
        return wrong(parser, ENDS_EARLY, path, p)
    return wrong(parser, SYNTAX, path, p)


cdef inline bint is_space(uint8_t c) noexcept nogil:
    return c == c" " or c == c"\n" or c == c"\r" or c == c"\t"


cdef inline const uint8_t* skip_space(const uint8_t* p) noexcept nogil:
    """Skip blanks. Beware: p must be before the end."""
    while is_space(p[0]):
        p += 1
    return p


cdef inline const uint8_t* parse_string(Parser* parser, int32_t path, const uint8_t* p, const uint8_t** text,
                                        int64_t* size) noexcept nogil:
    """Read a string from its quote on. `text` is in the value itself, or in `parser.text` and valid until the next
    string."""
    cdef const uint8_t* start = p + 1
    cdef uint8_t quote = p[0]
    cdef int high = 0
    p = kafkad_scan_string(start, parser.end, quote, &high)
    if p >= parser.end:
        return wrong(parser, ENDS_EARLY, path, parser.end)
    if p[0] == c"\\":
        return parse_escaped(parser, path, start, p, quote, text, size)
    if p[0] != quote:
        return wrong(parser, CONTROL_CHARACTER, path, p)
    if high and not is_utf8(start, p):
        return wrong(parser, NOT_UTF8, path, start)
    text[0] = start
    size[0] = p - start
    return p + 1


cdef inline const uint8_t* parse_name(Parser* parser, int32_t path, const uint8_t* p, const uint8_t** text,
                                      int64_t* size) noexcept nogil:
    """Read a string that names a member of an object."""
    cdef const uint8_t* start = p
    p = parse_string(parser, path, p, text, size)
    if p is not NULL and size[0] > NAME_MAX and utf16_units(text[0], size[0]) > NAME_MAX:
        return wrong(parser, NAME_TOO_LONG, path, start)
    return p


cdef inline int64_t utf16_units(const uint8_t* p, int64_t size) noexcept nogil:
    """Count the UTF-16 units of valid UTF-8: one per sequence, two per sequence of four bytes."""
    cdef int64_t count = 0
    cdef int64_t i
    for i in range(size):
        count += ((p[i] & 0xC0) != 0x80) + (p[i] >= 0xF0)
    return count

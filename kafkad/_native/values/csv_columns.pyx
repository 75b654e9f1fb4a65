"""Decode CSV values, one line each, into Arrow columns, like Spark's from_csv.

A field is quoted if its first byte is the quote. In a quoted field, the escape character makes the next quote, or
escape character, literal. If the escape character is the quote, two quotes mean one. An empty field without quotes is
null, and so is a field that equals the null value, quoted or not. A value may end with one line end, LF or CR LF."""

from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memchr, memcmp

from kafkad._native.values.arrow_build cimport (
    KIND_BINARY, KIND_DATE32, KIND_DECIMAL128, KIND_FLOAT32, KIND_FLOAT64, KIND_INT8, KIND_INT16,
    KIND_INT32, KIND_INT64, KIND_STRING, KIND_TIMESTAMP_US, Column, append_bool, append_bytes,
    append_decimal, append_f32, append_f64, append_i8, append_i16, append_i32, append_i64, append_null, append_row,
)
from kafkad._native.values.arrow_values cimport (
    BAD_BOOLEAN, BAD_DATE, BAD_QUOTE, EMPTY, GOOD, NO_MEMORY, NOT_UTF8, OUT_OF_RANGE, TOO_FEW_FIELDS,
    TOO_MANY_FIELDS, TRAILING_BYTES,
)
from kafkad._native.values.text_patterns cimport Steps, pattern_date, pattern_for, pattern_timestamp
from kafkad._native.values.text_values cimport (
    TimeZone, Zone, digits_decimal, is_utf8, text_date, text_f64, text_i64, text_timestamp,
)

from kafkad._native.values.value_columns cimport ValueColumns

from kafkad._native.values.text_values import time_zone

cdef extern from * nogil:
    """
    #include <math.h>
    #include <strings.h>
    """
    int strncasecmp(const char* a, const char* b, size_t size)
    double NAN, INFINITY


cdef struct Field:
    Column* column                     # NULL: read and drop
    Zone* zone
    Steps* pattern                     # pattern of dates or times; NULL: Spark's default formats


cdef struct Words:                     # the words for NaN, infinity and negative infinity
    const uint8_t* at[3]
    int64_t sizes[3]


cdef int append_number(Column* column, const uint8_t* p, int64_t size) noexcept nogil:
    cdef int64_t value = 0
    cdef int reason = text_i64(p, size, &value)
    cdef int result
    if reason != GOOD:
        return reason
    if column.kind == KIND_INT32:
        if value != <int32_t>value:
            return OUT_OF_RANGE
        result = append_i32(column, <int32_t>value)
    elif column.kind == KIND_INT64:
        result = append_i64(column, value)
    elif column.kind == KIND_INT16:
        if value != <int16_t>value:
            return OUT_OF_RANGE
        result = append_i16(column, <int16_t>value)
    else:
        if value != <int8_t>value:
            return OUT_OF_RANGE
        result = append_i8(column, <int8_t>value)
    return GOOD if result == 0 else NO_MEMORY


cdef inline bint is_word(Words* words, int i, const uint8_t* p, int64_t size) noexcept nogil:
    return size == words.sizes[i] and memcmp(p, words.at[i], <size_t>size) == 0


cdef int append_floating(Column* column, Words* words, const uint8_t* p, int64_t size) noexcept nogil:
    cdef double value = 0
    cdef int reason = GOOD
    cdef int result
    cdef bint is_signed = size > 0 and (p[0] == c"-" or p[0] == c"+")
    if is_word(words, 0, p, size) or (size - is_signed == 3 and memcmp(p + is_signed, b"NaN", 3) == 0):
        value = NAN                                         # Java's parseDouble reads NaN and Infinity, too
    elif is_word(words, 1, p, size):
        value = INFINITY
    elif is_word(words, 2, p, size):
        value = -INFINITY
    elif size - is_signed == 8 and memcmp(p + is_signed, b"Infinity", 8) == 0:
        value = -INFINITY if p[0] == c"-" else INFINITY
    else:
        reason = text_f64(p, size, column.kind == KIND_FLOAT32, &value)
        if reason != GOOD:
            return reason
    result = append_f32(column, <float>value) if column.kind == KIND_FLOAT32 else append_f64(column, value)
    return GOOD if result == 0 else NO_MEMORY


cdef bint is_written_date(const uint8_t* p, int64_t size) noexcept nogil:
    """Return whether this is a date with a year of at least four digits. A count of days, which JSON may have, is not a
    date here."""
    cdef int64_t i
    cdef int64_t digits = 0
    for i in range(size):
        if c"0" <= p[i] <= c"9":
            digits += 1
        elif digits:
            break
    return 4 <= digits <= 7


cdef int append_text(Field* field, Words* words, const uint8_t* p, int64_t size) noexcept nogil:
    """Append a field's text to its column. Return the reason."""
    cdef Column* column = field.column
    cdef int kind = column.kind
    cdef int64_t value = 0
    cdef int32_t days = 0
    cdef uint64_t low = 0
    cdef int64_t high = 0
    cdef int reason = GOOD
    cdef int result = 0
    if kind == KIND_STRING or kind == KIND_BINARY:
        if kind == KIND_STRING and not is_utf8(p, p + size):
            return NOT_UTF8
        result = append_bytes(column, p, size)
    elif kind == KIND_INT32 or kind == KIND_INT64 or kind == KIND_INT16 or kind == KIND_INT8:
        return append_number(column, p, size)
    elif kind == KIND_FLOAT64 or kind == KIND_FLOAT32:
        return append_floating(column, words, p, size)
    elif kind == KIND_TIMESTAMP_US:
        if field.pattern is NULL:
            reason = text_timestamp(p, size, field.zone, &value)
        else:
            reason = pattern_timestamp(field.pattern, p, size, field.zone, &value)
        if reason == GOOD:
            result = append_i64(column, value)
    elif kind == KIND_DATE32:
        if field.pattern is not NULL:
            reason = pattern_date(field.pattern, p, size, &days)
        else:
            reason = text_date(p, size, &days) if is_written_date(p, size) else BAD_DATE
        if reason == GOOD:
            result = append_i32(column, days)
    elif kind == KIND_DECIMAL128:
        reason = digits_decimal(p, size, column, &low, &high)
        if reason == GOOD:
            result = append_decimal(column, low, high)
    elif size == 4 and strncasecmp(<const char*>p, b"true", 4) == 0:
        result = append_bool(column, True)
    elif size == 5 and strncasecmp(<const char*>p, b"false", 5) == 0:
        result = append_bool(column, False)
    else:
        reason = BAD_BOOLEAN
    return reason if result == 0 else NO_MEMORY


cdef class CsvColumns(ValueColumns):
    """Decode lines into columns. `fields` is as in arrow_build, without nesting. `places` has, for each field of a line,
    its column, or -1 for none. `quote` and `escape` have one byte, or are empty for none.

    Raise ValueError for a nested format, an empty delimiter or a quote of several bytes."""

    cdef Field* fields
    cdef int64_t fields_count
    cdef TimeZone zone
    cdef tuple patterns
    cdef bytes delimiter
    cdef bytes null_value
    cdef tuple spelled                 # NaN, Inf and -Inf
    cdef const uint8_t* delimiter_at
    cdef int64_t delimiter_size
    cdef const uint8_t* null_at
    cdef int64_t null_size
    cdef int quote                     # -1: none
    cdef int escape
    cdef uint8_t* text                 # the text of a field with escapes
    cdef int64_t text_capacity
    cdef Words words

    def __cinit__(self, fields, places, names, str delimiter=",", str quote='"', str escape="\\",
                  str null_value="", str zone="UTC", words=("NaN", "Inf", "-Inf"), patterns=(None, None, None)):
        cdef int64_t i
        self.paths = list(names)
        self.zone = time_zone(zone)
        self.delimiter, self.null_value = delimiter.encode(), null_value.encode()
        quotes, escapes = quote.encode(), escape.encode()
        if not self.delimiter or len(quotes) > 1 or len(escapes) > 1:
            raise ValueError("a delimiter has one character at least; a quote and an escape one of ASCII at most")
        self.quote = quotes[0] if quotes else -1
        self.escape = escapes[0] if escapes else -1
        self.delimiter_at, self.delimiter_size = self.delimiter, len(self.delimiter)
        self.null_at, self.null_size = self.null_value, len(self.null_value)
        self.patterns = patterns
        self.spelled = tuple(word.encode() for word in words)
        for i in range(3):
            self.words.at[i] = <const uint8_t*><bytes>self.spelled[i]
            self.words.sizes[i] = len(self.spelled[i])
        self.fields_count = len(places)
        self.fields = <Field*>calloc(<size_t>max(self.fields_count, 1), sizeof(Field))
        if self.fields is NULL:
            raise MemoryError
        for i in range(self.columns.root.children_count):
            if self.columns.root.children[i].children_count or self.columns.root.children[i].format[0] == c"+":
                raise ValueError("the columns of CSV are flat")
        for i in range(self.fields_count):
            if places[i] >= 0:
                self.fields[i].column = &self.columns.root.children[<int>places[i]]
                if self.fields[i].column.kind == KIND_TIMESTAMP_US and self.fields[i].column.format[4]:
                    self.fields[i].zone = &self.zone.zone
                self.fields[i].pattern = pattern_for(self.fields[i].column, patterns)

    def __dealloc__(self):
        free(self.fields)
        free(self.text)

    cdef int decode_row(self, const uint8_t* p, int64_t size, const uint8_t* readable) noexcept nogil:
        cdef const uint8_t* end = p + size
        cdef const uint8_t* text
        cdef int64_t text_size
        cdef int64_t i = 0
        cdef int reason
        cdef bint is_quoted
        cdef Field* field
        if size and (end - 1)[0] == c"\n":
            end -= 1
            if size > 1 and (end - 1)[0] == c"\r":
                end -= 1
        if p == end:
            return EMPTY
        while True:
            self.fault.at = p
            if i == self.fields_count:
                self.fault.path = -1
                return TOO_MANY_FIELDS
            self.fault.path = <int32_t>i
            is_quoted = p < end and p[0] == self.quote
            if is_quoted:
                p = self.quoted(p, end, &text, &text_size)
                if p is NULL:
                    return NO_MEMORY if self.fault.at is NULL else BAD_QUOTE
            else:
                text = p
                p = self.field_end(p, end)
                text_size = p - text
                if memchr(text, c"\n", <size_t>text_size) is not NULL:
                    return TRAILING_BYTES
            field = &self.fields[i]
            if field.column is NULL:
                if not is_utf8(text, text + text_size):
                    return NOT_UTF8
            elif (text_size == 0 and not is_quoted) or (
                    text_size == self.null_size and memcmp(text, self.null_at, <size_t>text_size) == 0):
                if append_null(field.column) < 0:
                    return NO_MEMORY
            else:
                reason = append_text(field, &self.words, text, text_size)
                if reason != GOOD:
                    return reason
            i += 1
            if p == end:
                break
            p += self.delimiter_size
        if i < self.fields_count:
            self.fault.at = end
            self.fault.path = -1
            return TOO_FEW_FIELDS
        return NO_MEMORY if append_row(&self.columns.root) < 0 else GOOD

    cdef inline const uint8_t* field_end(self, const uint8_t* p, const uint8_t* end) noexcept nogil:
        """Return the position of the next delimiter, or the end."""
        cdef uint8_t first = self.delimiter_at[0]
        while p < end:
            if p[0] == first and (self.delimiter_size == 1 or (
                    end - p >= self.delimiter_size and memcmp(p, self.delimiter_at, <size_t>self.delimiter_size) == 0)):
                return p
            p += 1
        return end

    cdef const uint8_t* quoted(self, const uint8_t* p, const uint8_t* end, const uint8_t** text,
                               int64_t* size) noexcept nogil:
        """Read a quoted field. Return the position of the delimiter after it. Return NULL if the quote is not closed or
        text follows it; if `at` is NULL, too, there is no memory."""
        cdef const uint8_t* start = p + 1
        cdef uint8_t* out
        cdef int64_t written = 0
        p = start
        while p < end and p[0] != self.quote and p[0] != self.escape:
            p += 1
        if p < end and p[0] == self.quote and self.is_end(p + 1, end):
            text[0] = start
            size[0] = p - start
            return p + 1
        if end - start > self.text_capacity:
            out = <uint8_t*>realloc(self.text, <size_t>(2 * (end - start)))
            if out is NULL:
                self.fault.at = NULL
                return NULL
            self.text, self.text_capacity = out, 2 * (end - start)
        p = start
        while p < end:
            if p[0] == self.escape and p + 1 < end and (p[1] == self.quote or p[1] == self.escape):
                self.text[written] = p[1]
                p += 2
            elif p[0] == self.quote:
                if not self.is_end(p + 1, end):
                    return NULL
                text[0] = self.text
                size[0] = written
                return p + 1
            else:
                self.text[written] = p[0]
                p += 1
            written += 1
        return NULL

    cdef inline bint is_end(self, const uint8_t* p, const uint8_t* end) noexcept nogil:
        return p == end or (end - p >= self.delimiter_size
                            and memcmp(p, self.delimiter_at, <size_t>self.delimiter_size) == 0)

"""Decode JSON objects into Arrow columns: one pass over the bytes, without a tree and without Python objects.

Values are read like Spark's from_json reads them by default (single quotes, bare NaN, text of other types in a string
column, seconds in a timestamp column, ...). The differences are listed in kafkad/values/decoder.py.

Why it is fast:
  - The records of a topic mostly have their keys in the same order, so each object remembers the order of the last
    one. Usually a key is recognised by one comparison with `"name":`, including the colon. Otherwise it is looked up.
  - If a value ends in }, numbers, blanks and literals need no check for the end, because they stop there. A value
    that does not end in }, or is at the very end of the memory, is first copied and extended by a } and some room. So
    16 bytes may be read anywhere, and a function that reaches the added } knows that the value is cut.
  - Strings are scanned 16 bytes at a time (json_text.pyx, which also skips values without a column).

Each function takes the position `p` and returns the position after what it has read, or NULL with the reason noted."""

from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcmp, memcpy, memset

from kafkad._native.values.arrow_build cimport (
    KIND_BOOL, KIND_DATE32, KIND_DECIMAL128, KIND_FLOAT32, KIND_FLOAT64, KIND_INT8, KIND_INT16,
    KIND_INT32, KIND_INT64, KIND_LIST, KIND_STRING, KIND_STRUCT, KIND_TIMESTAMP_US, Column, append_bool,
    append_decimal, append_f32, append_f64, append_i8, append_i16, append_i32, append_i64, append_list, append_null,
    append_row, append_space, append_written, column_truncate,
)
from kafkad._native.values.arrow_values cimport (
    BAD_BASE64, BAD_NUMBER, EMPTY, ENDS_EARLY, GOOD, NO_MEMORY, OUT_OF_RANGE, TOO_DEEP, TRAILING_BYTES, WRONG_TYPE,
)
from kafkad._native.values.json_text cimport (
    DEPTH_MAX, ROOM, Parser, is_odd_number, is_space, mistyped, odd_number, parse_name, parse_string, skip_space,
    skip_value, unexpected, wrong,
)
from kafkad._native.values.text_patterns cimport Steps, pattern_date, pattern_for, pattern_timestamp
from kafkad._native.values.text_values cimport (
    NUMBER_SIZE_MAX, Number, TimeZone, Zone, base64_decoded, digits_decimal, number_decimal, number_f32, number_f64,
    scan_number, text_date, text_timestamp,
)
from kafkad._native.values.value_columns cimport ValueColumns

from kafkad._native.values.text_values import time_zone

cdef extern from * nogil:
    """
    #include <stdint.h>
    static inline uint64_t kafkad_word(const uint8_t *p) { uint64_t v; __builtin_memcpy(&v, p, 8); return v; }
    /* p and q hold the same `size` bytes; 16 bytes may be read at both, and size is 1 or more */
    static inline int kafkad_same(const uint8_t *p, const uint8_t *q, int64_t size) {
        if (size < 8) return ((kafkad_word(p) ^ kafkad_word(q)) << (64 - 8 * size)) == 0;
        int64_t i = 0;
        for (; i + 8 <= size; i += 8) if (kafkad_word(p + i) != kafkad_word(q + i)) return 0;
        return kafkad_word(p + size - 8) == kafkad_word(q + size - 8);
    }
    static inline void kafkad_copy16(uint8_t *to, const uint8_t *from) { __builtin_memcpy(to, from, 16); }
    """
    bint kafkad_same(const uint8_t* p, const uint8_t* q, int64_t size)
    void kafkad_copy16(uint8_t* to, const uint8_t* source)
    bint __builtin_mul_overflow(int64_t a, int64_t b, int64_t* result)

cdef struct Node:                      # how to decode the values at one place of the schema
    Column* column                     # NULL: values are only checked
    bint is_map
    int32_t path                       # index into the decoder's paths
    Zone* zone                         # zone of a timestamp; NULL: a timestamp without a zone
    Steps* pattern                     # pattern of a timestamp or date; NULL: Spark's default formats
    int64_t token_size                 # size of `"name":`
    uint8_t* token                     # `"name":`, with room after it
    bint is_plain                      # the name needs no escapes, so it is always written like the token
    int32_t children_count             # fields of a struct, the element of a list, key and value of a map
    Node* children
    int32_t filled_max                 # number of fields that have a column
    int32_t order_count                # per place in an object: the field that was there last time, -1 none
    int32_t* order
    uint32_t table_mask
    int32_t* table                     # hash table by name, open addressing: 1 + field, 0 empty


cdef uint32_t hash_of(const uint8_t* p, int64_t size) noexcept nogil:
    cdef uint32_t value = 2166136261
    cdef int64_t i
    for i in range(size):
        value = (value ^ p[i]) * 16777619
    return value ^ value >> 15


cdef int32_t find_child(Node* node, const uint8_t* name, int64_t size) noexcept nogil:
    """Return the index of the field with that name, or -1."""
    cdef uint32_t slot = hash_of(name, size) & node.table_mask
    cdef Node* child
    while node.table[slot]:
        child = &node.children[node.table[slot] - 1]
        if child.token_size == size + 3 and memcmp(child.token + 1, name, <size_t>size) == 0:
            return node.table[slot] - 1
        slot = (slot + 1) & node.table_mask
    return -1


cdef const uint8_t* parse_integer(Parser* parser, Node* node, const uint8_t* p, int depth,
                                  int64_t* result) noexcept nogil:
    cdef bint is_negative = p[0] == c"-"
    cdef const uint8_t* q = p + is_negative
    cdef const uint8_t* start = q
    cdef uint64_t value = 0
    cdef unsigned int digit = <unsigned int>q[0] - c"0"
    if digit > 9:
        return mistyped(parser, node.path, p, depth)
    while digit <= 9:
        value = value * 10 + digit
        q += 1
        digit = <unsigned int>q[0] - c"0"
    if (start[0] == c"0" and q - start > 1) or q[0] == c"." or q[0] | 0x20 == c"e":
        return mistyped(parser, node.path, p, depth)
    if q - start >= 19:
        if q - start > NUMBER_SIZE_MAX:
            return wrong(parser, BAD_NUMBER, node.path, p)
        if q - start > 19 or value > <uint64_t>0x7fffffffffffffff + is_negative:
            return wrong(parser, OUT_OF_RANGE, node.path, p)
    result[0] = <int64_t>(-value if is_negative else value)
    return q


cdef const uint8_t* parse_float(Parser* parser, Node* node, const uint8_t* p, int depth, bint is_single) noexcept nogil:
    cdef Number number
    cdef const uint8_t* q = NULL
    cdef const uint8_t* text
    cdef int64_t size
    cdef double value = 0
    cdef int result
    if p[0] == c"-" or c"0" <= p[0] <= c"9":
        q = scan_number(p, parser.end, &number)
    if q is not NULL:
        if number.is_integer and number.digits == 0:
            number.is_negative = False             # the integer -0 is 0
        if is_single:
            result = append_f32(node.column, number_f32(&number))
        else:
            result = append_f64(node.column, number_f64(&number))
        return q if result == 0 else wrong(parser, NO_MEMORY, node.path, p)
    if p[0] == c'"' or p[0] == c"'":
        q = parse_string(parser, node.path, p, &text, &size)
        if q is NULL:
            return NULL
        if size < 3 or size > 9 or not is_odd_number(text, size, &value):
            return wrong(parser, WRONG_TYPE, node.path, p)
    else:
        q = odd_number(p, &value)
        if q is NULL:
            return mistyped(parser, node.path, p, depth)
    result = append_f32(node.column, <float>value) if is_single else append_f64(node.column, value)
    return q if result == 0 else wrong(parser, NO_MEMORY, node.path, p)


cdef inline bint is_token(Parser* parser, Node* node, const uint8_t* p) noexcept nogil:
    return node.is_plain and node.token_size <= parser.end - p and kafkad_same(p, node.token, node.token_size)


cdef const uint8_t* parse_object(Parser* parser, Node* node, const uint8_t* p, int depth) noexcept nogil:
    """Read an object, from after its {. Append a value or a null for each field of the struct, and the struct's row."""
    cdef int64_t row = node.column.length
    cdef int32_t place = 0
    cdef int32_t filled = 0
    cdef int32_t index
    cdef int32_t i
    cdef Node* child
    cdef const uint8_t* text
    cdef int64_t size
    p = skip_space(p)
    if p[0] == c"}":
        p += 1
    else:
        while True:
            index = node.order[place] if place < node.order_count else -1
            if index >= 0 and is_token(parser, &node.children[index], p):
                p += node.children[index].token_size
            else:
                if p[0] != c'"' and p[0] != c"'":
                    return unexpected(parser, node.path, p)
                p = parse_name(parser, node.path, p, &text, &size)
                if p is NULL:
                    return NULL
                index = find_child(node, text, size)
                if place < node.order_count:
                    node.order[place] = index
                p = skip_space(p)
                if p[0] != c":":
                    return unexpected(parser, node.path, p)
                p += 1
            place += 1
            p = skip_space(p)
            if index >= 0 and node.children[index].column is not NULL:
                child = &node.children[index]
                if child.column.length == row:
                    filled += 1
                else:                              # a repeated key: the last one wins
                    column_truncate(child.column, row)
                p = parse_value(parser, child, p, depth)
            elif index >= 0:
                p = skip_value(parser, node.children[index].path, p, depth)
            else:
                p = skip_value(parser, node.path, p, depth)
            if p is NULL:
                return NULL
            if p == parser.end:
                return wrong(parser, ENDS_EARLY, node.path, p)
            p = skip_space(p)
            if p[0] == c",":
                p = skip_space(p + 1)
            elif p[0] == c"}":
                p += 1
                break
            else:
                return unexpected(parser, node.path, p)
    if filled < node.filled_max:
        for i in range(node.children_count):
            child = &node.children[i]
            if child.column is not NULL and child.column.length == row and append_null(child.column) < 0:
                return wrong(parser, NO_MEMORY, child.path, p)
    if append_row(node.column) < 0:
        return wrong(parser, NO_MEMORY, node.path, p)
    return p


cdef const uint8_t* parse_list(Parser* parser, Node* node, const uint8_t* p, int depth) noexcept nogil:
    """Read a list, from after its [."""
    p = skip_space(p)
    if p[0] == c"]":
        p += 1
    else:
        while True:
            p = parse_value(parser, node.children, p, depth)
            if p is NULL:
                return NULL
            if p == parser.end:
                return wrong(parser, ENDS_EARLY, node.path, p)
            p = skip_space(p)
            if p[0] == c",":
                p = skip_space(p + 1)
            elif p[0] == c"]":
                p += 1
                break
            else:
                return unexpected(parser, node.path, p)
    if append_list(node.column) < 0:
        return wrong(parser, NO_MEMORY, node.path, p)
    return p


cdef const uint8_t* parse_map(Parser* parser, Node* node, const uint8_t* p, int depth) noexcept nogil:
    """Read a map, from after its {. Repeated keys are kept, as in Spark."""
    cdef const uint8_t* text
    cdef int64_t size
    cdef uint8_t* space
    p = skip_space(p)
    if p[0] == c"}":
        p += 1
    else:
        while True:
            if p[0] != c'"' and p[0] != c"'":
                return unexpected(parser, node.path, p)
            p = parse_name(parser, node.path, p, &text, &size)
            if p is NULL:
                return NULL
            space = append_space(node.children[0].column, size)
            if space is NULL:
                return wrong(parser, NO_MEMORY, node.path, p)
            memcpy(space, text, <size_t>size)
            append_written(node.children[0].column, size)
            p = skip_space(p)
            if p[0] != c":":
                return unexpected(parser, node.path, p)
            p = parse_value(parser, &node.children[1], skip_space(p + 1), depth)
            if p is NULL:
                return NULL
            if p == parser.end:
                return wrong(parser, ENDS_EARLY, node.path, p)
            if append_row(node.column.children) < 0:
                return wrong(parser, NO_MEMORY, node.path, p)
            p = skip_space(p)
            if p[0] == c",":
                p = skip_space(p + 1)
            elif p[0] == c"}":
                p += 1
                break
            else:
                return unexpected(parser, node.path, p)
    if append_list(node.column) < 0:
        return wrong(parser, NO_MEMORY, node.path, p)
    return p


cdef const uint8_t* parse_text(Parser* parser, Node* node, const uint8_t* p, int depth) noexcept nogil:
    """Read a value into a string column: a string, or the text of any other value."""
    cdef const uint8_t* start = p
    cdef const uint8_t* text
    cdef int64_t size
    cdef uint8_t* space
    if p[0] == c'"' or p[0] == c"'":
        p = parse_string(parser, node.path, p, &text, &size)
    else:
        p = skip_value(parser, node.path, p, depth)
        text, size = start, p - start
    if p is NULL:
        return NULL
    space = append_space(node.column, size + 16)
    if space is NULL:
        return wrong(parser, NO_MEMORY, node.path, start)
    if size <= 16 and text == start + 1:           # the usual case: both sides have room to copy 16 bytes
        kafkad_copy16(space, text)
    else:
        memcpy(space, text, <size_t>size)
    append_written(node.column, size)
    return p


cdef const uint8_t* parse_typed_text(Parser* parser, Node* node, const uint8_t* p, int depth) noexcept nogil:
    """Read a date, timestamp, decimal or binary from a string."""
    cdef const uint8_t* start = p
    cdef const uint8_t* text
    cdef int64_t size
    cdef int64_t value
    cdef int32_t days
    cdef uint64_t low
    cdef int64_t high
    cdef uint8_t* space
    cdef int reason
    cdef int result = 0
    p = parse_string(parser, node.path, p, &text, &size)
    if p is NULL:
        return NULL
    if node.column.kind == KIND_TIMESTAMP_US:
        if node.pattern is NULL:
            reason = text_timestamp(text, size, node.zone, &value)
        else:
            reason = pattern_timestamp(node.pattern, text, size, node.zone, &value)
        if reason == GOOD:
            result = append_i64(node.column, value)
    elif node.column.kind == KIND_DATE32:
        if node.pattern is NULL:
            reason = text_date(text, size, &days)
        else:
            reason = pattern_date(node.pattern, text, size, &days)
        if reason == GOOD:
            result = append_i32(node.column, days)
    elif node.column.kind == KIND_DECIMAL128:
        reason = digits_decimal(text, size, node.column, &low, &high)
        if reason == GOOD:
            result = append_decimal(node.column, low, high)
    else:
        space = append_space(node.column, size + 3)
        if space is NULL:
            return wrong(parser, NO_MEMORY, node.path, start)
        size = base64_decoded(text, size, space)
        reason = GOOD if size >= 0 else BAD_BASE64
        if size >= 0:
            append_written(node.column, size)
    if result < 0:
        return wrong(parser, NO_MEMORY, node.path, start)
    return p if reason == GOOD else wrong(parser, reason, node.path, start)


cdef const uint8_t* parse_value(Parser* parser, Node* node, const uint8_t* p, int depth) noexcept nogil:
    """Read any value into its column. `depth` is that of the object or array around it."""
    cdef const uint8_t* start = p
    cdef int64_t value = 0
    cdef int kind = node.column.kind
    cdef uint8_t c = p[0]
    cdef Number number
    cdef uint64_t low
    cdef int64_t high
    cdef int result = 0
    if c == c"n":
        if memcmp(p, b"null", 4) != 0:
            return unexpected(parser, node.path, p)
        return p + 4 if append_null(node.column) == 0 else wrong(parser, NO_MEMORY, node.path, p)
    if kind == KIND_INT32 or kind == KIND_INT64 or kind == KIND_INT16 or kind == KIND_INT8:
        p = parse_integer(parser, node, p, depth, &value)
        if p is NULL:
            return NULL
        if kind == KIND_INT32:
            if value != <int32_t>value:
                return wrong(parser, OUT_OF_RANGE, node.path, start)
            result = append_i32(node.column, <int32_t>value)
        elif kind == KIND_INT64:
            result = append_i64(node.column, value)
        elif kind == KIND_INT16:
            if value != <int16_t>value:
                return wrong(parser, OUT_OF_RANGE, node.path, start)
            result = append_i16(node.column, <int16_t>value)
        else:
            if value != <int8_t>value:
                return wrong(parser, OUT_OF_RANGE, node.path, start)
            result = append_i8(node.column, <int8_t>value)
    elif kind == KIND_STRING:
        return parse_text(parser, node, p, depth)
    elif kind == KIND_FLOAT64 or kind == KIND_FLOAT32:
        return parse_float(parser, node, p, depth, kind == KIND_FLOAT32)
    elif kind == KIND_BOOL:
        if c == c"t" and memcmp(p, b"true", 4) == 0:
            p += 4
        elif c == c"f" and memcmp(p, b"false", 5) == 0:
            p += 5
        else:
            return mistyped(parser, node.path, p, depth)
        result = append_bool(node.column, c == c"t")
    elif kind == KIND_STRUCT or node.is_map:
        if c != c"{":
            return mistyped(parser, node.path, p, depth)
        if depth >= DEPTH_MAX:
            return wrong(parser, TOO_DEEP, node.path, p)
        return (parse_map if node.is_map else parse_object)(parser, node, p + 1, depth + 1)
    elif kind == KIND_LIST:
        if c != c"[":
            return mistyped(parser, node.path, p, depth)
        if depth >= DEPTH_MAX:
            return wrong(parser, TOO_DEEP, node.path, p)
        return parse_list(parser, node, p + 1, depth + 1)
    elif c == c'"' or c == c"'":
        return parse_typed_text(parser, node, p, depth)
    elif kind == KIND_TIMESTAMP_US and node.zone is not NULL:           # a number: seconds since 1970
        p = parse_integer(parser, node, p, depth, &value)
        if p is NULL:
            return NULL
        if __builtin_mul_overflow(value, 1000000, &value):
            return wrong(parser, OUT_OF_RANGE, node.path, start)
        result = append_i64(node.column, value)
    elif kind == KIND_DECIMAL128 and (c == c"-" or c"0" <= c <= c"9"):
        p = scan_number(p, parser.end, &number)
        if p is NULL:
            return wrong(parser, BAD_NUMBER, node.path, start)
        if number_decimal(&number, node.column.precision, node.column.scale, &low, &high) != GOOD:
            return wrong(parser, OUT_OF_RANGE, node.path, start)
        result = append_decimal(node.column, low, high)
    else:
        return mistyped(parser, node.path, p, depth)
    return p if result == 0 else wrong(parser, NO_MEMORY, node.path, start)


cdef int node_open(Node* node, Column* column, str path, list paths, skipped, TimeZone zone,
                   tuple patterns) except -1:
    """Build the plan for `column` in a zeroed `node`. `skipped` has the names of other expected keys."""
    cdef int32_t i
    cdef uint32_t slot
    cdef Node* child
    node.column = column
    node.path = <int32_t>len(paths)
    paths.append(path)
    if column.kind == KIND_TIMESTAMP_US and column.format[4]:
        node.zone = &zone.zone
    node.pattern = pattern_for(column, patterns)
    node.is_map = column.kind == KIND_LIST and column.format[1] == c"m"
    if column.kind == KIND_STRUCT:
        node.filled_max = column.children_count
        node.children_count = column.children_count + <int32_t>len(skipped)
        node.children = <Node*>calloc(max(node.children_count, 1), sizeof(Node))
        node.order_count = 2 * node.children_count + 16
        node.order = <int32_t*>malloc(node.order_count * sizeof(int32_t))
        node.table_mask = 7
        while node.table_mask < 2 * <uint32_t>node.children_count:
            node.table_mask = node.table_mask * 2 + 1
        node.table = <int32_t*>calloc(node.table_mask + 1, sizeof(int32_t))
        if node.children is NULL or node.order is NULL or node.table is NULL:
            raise MemoryError
        for i in range(node.order_count):
            node.order[i] = i if i < node.children_count else -1
        for i in range(node.children_count):
            child = &node.children[i]
            if i < column.children_count:
                name = column.children[i].name.decode()
                node_open(child, &column.children[i], f"{path}.{name}" if path else name, paths, (), zone, patterns)
            else:
                name = skipped[i - column.children_count]
                child.path = <int32_t>len(paths)
                paths.append(name)
            token = b'"' + name.encode() + b'":'
            child.token_size = len(token)
            child.is_plain = not any(c in '"\\' or c < " " for c in name)
            child.token = <uint8_t*>calloc(len(token) + 16, 1)
            if child.token is NULL:
                raise MemoryError
            memcpy(child.token, <const uint8_t*>token, <size_t>len(token))
            slot = hash_of(child.token + 1, child.token_size - 3) & node.table_mask
            while node.table[slot]:
                slot = (slot + 1) & node.table_mask
            node.table[slot] = i + 1
    elif column.kind == KIND_LIST:
        column = column.children
        node.children_count = column.children_count if node.is_map else 1
        node.children = <Node*>calloc(node.children_count, sizeof(Node))
        if node.children is NULL:
            raise MemoryError
        if node.is_map:
            for i in range(2):
                node_open(&node.children[i], &column.children[i], path, paths, (), zone, patterns)
        else:
            node_open(node.children, column, path + "[]", paths, (), zone, patterns)
    return 0


cdef void node_close(Node* node) noexcept:
    cdef int32_t i
    for i in range(node.children_count):
        if node.children is not NULL:
            node_close(&node.children[i])
    free(node.children)
    free(node.order)
    free(node.table)
    free(node.token)


cdef class JsonColumns(ValueColumns):
    """Decode JSON objects into columns. `fields` is as in arrow_build. `skipped` has keys that are expected but not
    decoded (knowing them is faster). `zone` is the zone of timestamps that name none. `patterns` are those of timestamps,
    of timestamps without a zone, and of dates.

    Raise ValueError for an unknown zone or format."""

    cdef Node root
    cdef TimeZone zone
    cdef tuple patterns                # keeps alive the patterns that the nodes point to
    cdef Parser parser
    cdef uint8_t* copy
    cdef int64_t copy_capacity

    def __cinit__(self, fields, skipped=(), str zone="UTC", tuple patterns=(None, None, None)):
        self.zone = time_zone(zone)
        self.patterns = patterns
        node_open(&self.root, &self.columns.root, "", self.paths, tuple(skipped), self.zone, patterns)

    def __dealloc__(self):
        node_close(&self.root)
        free(self.parser.text)
        free(self.copy)

    cdef int decode_row(self, const uint8_t* p, int64_t size, const uint8_t* readable) noexcept nogil:
        cdef const uint8_t* end = p + size
        cdef bint is_cut
        cdef uint8_t* copy
        while end > p and is_space((end - 1)[0]):
            end -= 1
        if p == end:
            self.fault.at = NULL
            return EMPTY
        size = end - p
        is_cut = (end - 1)[0] != c"}"
        if is_cut or readable - end < ROOM:
            if size + ROOM + 1 > self.copy_capacity:
                copy = <uint8_t*>realloc(self.copy, <size_t>(2 * size + ROOM + 1))
                if copy is NULL:
                    return NO_MEMORY
                self.copy, self.copy_capacity = copy, 2 * size + ROOM + 1
            memcpy(self.copy, p, <size_t>size)
            memset(self.copy + size, 0, ROOM + 1)
            p = self.base = self.copy
            if is_cut:
                self.copy[size] = c"}"
                size += 1
        self.parser.fault = &self.fault
        self.parser.end = p + size
        self.parser.is_cut = is_cut
        p = skip_space(p)
        if p[0] != c"{":
            mistyped(&self.parser, -1, p, 0)
            return self.fault.reason
        p = parse_object(&self.parser, &self.root, p + 1, 1)
        if p is NULL:
            if self.fault.path == self.root.path:
                self.fault.path = -1
            return self.fault.reason
        if p == self.parser.end:
            if not is_cut:
                return GOOD
            self.fault.at = p - 1
            return ENDS_EARLY
        self.fault.at = skip_space(p)
        return TRAILING_BYTES

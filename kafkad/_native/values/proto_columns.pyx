"""Decode Protobuf messages into Arrow columns, by a plan built from the message's descriptor
(kafkad/values/proto_schema.py).

Fields may come in any order and any number of times, so a message is decoded in two steps. First, the bytes are walked
once: scalars are appended at once, repeated ones to their list's element; for a message in a field, only its position
is stored. Then these messages are decoded, and each field that did not occur gets its default or a null. The last of
several scalars wins, a field of a oneof removes the others, and repeated messages of one field are merged, which is the
same as decoding their concatenated bytes: the rules of the wire format
(https://protobuf.dev/programming-guides/encoding/). A known field with another wire type is treated as unknown.

Recursive types have no columns, so the schema bounds the depth of decoding. Only skipped groups need a limit."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcpy

from kafkad._native.values.arrow_build cimport (
    Column, append_bool, append_bytes, append_decimal, append_f32, append_f64, append_i32, append_i64,
    append_list, append_null, append_row, column_truncate,
)
from kafkad._native.values.arrow_values cimport (
    BAD_LENGTH, BAD_MAGIC, BAD_TAG, BAD_VARINT, ENDS_EARLY, GOOD, MISSING_FIELD, NO_MEMORY, NOT_UTF8, OUT_OF_RANGE,
    TOO_DEEP,
)
from kafkad._native.values.text_values cimport is_utf8
from kafkad._native.values.value_columns cimport Fault, ValueColumns, faulty

cdef extern from * nogil:
    """
    #include <stdio.h>
    """
    int snprintf(char* out, size_t size, const char* format, ...)
    bint __builtin_mul_overflow(int64_t a, int64_t b, int64_t* result)
    bint __builtin_add_overflow(int64_t a, int64_t b, int64_t* result)

cdef enum:
    GROUPS_DEPTH_MAX = 100
    DIRECT_NUMBERS = 256               # fields with a smaller number are found in one step
    NAME_MAX = 64                      # longer names "UNKNOWN_ENUM_VALUE_..." are cut

cdef enum Op:
    OP_INT32
    OP_UINT32                          # into a column of 64 bits
    OP_INT64
    OP_UINT64                          # into a decimal
    OP_SINT32
    OP_SINT64
    OP_FIXED32
    OP_UFIXED32                        # into a column of 64 bits
    OP_FIXED64
    OP_UFIXED64                        # into a decimal
    OP_FLOAT
    OP_DOUBLE
    OP_BOOL
    OP_ENUM
    OP_ENUM_INT
    OP_STRING
    OP_BYTES
    OP_MESSAGE
    OP_TIMESTAMP                       # the well-known message, as a timestamp

OPS = {
    "int32": OP_INT32, "uint32": OP_UINT32, "int64": OP_INT64, "uint64": OP_UINT64, "sint32": OP_SINT32,
    "sint64": OP_SINT64, "fixed32": OP_FIXED32, "ufixed32": OP_UFIXED32, "fixed64": OP_FIXED64,
    "ufixed64": OP_UFIXED64, "float": OP_FLOAT, "double": OP_DOUBLE, "bool": OP_BOOL, "enum": OP_ENUM,
    "enum_int": OP_ENUM_INT, "string": OP_STRING, "bytes": OP_BYTES, "message": OP_MESSAGE,
    "timestamp": OP_TIMESTAMP,
}  # fmt: skip
cdef enum:
    WIRE_VARINT = 0
    WIRE_64 = 1
    WIRE_BYTES = 2
    WIRE_GROUP = 3
    WIRE_END_GROUP = 4
    WIRE_32 = 5


cdef struct Node:                      # a field or the message itself
    int op
    int wire
    uint32_t number
    int32_t path
    Column* column                     # the value's column; the list of a repeated field. NULL: drop the value
    bint is_repeated
    bint is_required
    bint is_open                       # an enum that may have values without a name
    int32_t oneof                      # 1 + index; 0: not in a oneof
    bint was_seen                      # occurred in this message; for fields whose column does not show it
    const uint8_t* at                  # position of a message in a singular field
    int64_t size
    uint8_t* merged                    # its concatenated bytes, if it occurred more than once
    int64_t merged_capacity
    uint8_t* default                   # encoded as on the wire, without the tag
    int64_t default_size
    int32_t symbols_count
    int32_t* symbols                   # number, start of the name, end of the name
    uint8_t* names
    char* type_name                    # name of the enum
    int32_t children_count
    Node* children
    int32_t* direct                    # by number: 1 + child
    int32_t next                       # the most likely next child


cdef inline const uint8_t* wrong(Fault* fault, int reason, Node* node, const uint8_t* at) noexcept nogil:
    return faulty(fault, reason, node.path, at)


cdef inline const uint8_t* read_varint(Fault* fault, Node* node, const uint8_t* p, const uint8_t* end,
                                       uint64_t* value) noexcept nogil:
    cdef const uint8_t* start = p
    cdef uint64_t found = 0
    cdef int shift = 0
    if p < end and p[0] < 0x80:
        value[0] = p[0]
        return p + 1
    while True:
        if p == end:
            return wrong(fault, ENDS_EARLY, node, p)
        if shift > 63:
            return wrong(fault, BAD_VARINT, node, start)
        found |= <uint64_t>(p[0] & 0x7f) << shift
        shift += 7
        p += 1
        if (p - 1)[0] < 0x80:
            value[0] = found
            return p


cdef const uint8_t* skip_field(Fault* fault, Node* node, const uint8_t* p, const uint8_t* end, int wire,
                               uint64_t number, int depth) noexcept nogil:
    cdef uint64_t value = 0
    cdef const uint8_t* start = p
    if wire == WIRE_VARINT:
        return read_varint(fault, node, p, end, &value)
    if wire == WIRE_64 or wire == WIRE_32:
        value = 8 if wire == WIRE_64 else 4
    elif wire == WIRE_BYTES:
        p = read_varint(fault, node, p, end, &value)
        if p is NULL:
            return NULL
    elif wire == WIRE_GROUP:
        if depth >= GROUPS_DEPTH_MAX:
            return wrong(fault, TOO_DEEP, node, p)
        while True:
            p = read_varint(fault, node, p, end, &value)
            if p is NULL:
                return NULL
            if value >> 3 == 0:
                return wrong(fault, BAD_TAG, node, p - 1)
            if value & 7 == WIRE_END_GROUP:
                return p if value >> 3 == number else wrong(fault, BAD_TAG, node, p - 1)
            p = skip_field(fault, node, p, end, <int>(value & 7), value >> 3, depth + 1)
            if p is NULL:
                return NULL
    else:
        return wrong(fault, BAD_TAG, node, start)
    if value > <uint64_t>(end - p):
        return wrong(fault, ENDS_EARLY, node, start)
    return p + value


cdef int append_symbol(Node* node, Column* column, int32_t number) noexcept nogil:
    """Append an enum's value. Return 1 if a closed enum lacks the number; it is then treated as an unknown field."""
    cdef int32_t i
    cdef char[NAME_MAX + 32] name
    for i in range(node.symbols_count):
        if node.symbols[3 * i] == number:
            return append_bytes(column, node.names + node.symbols[3 * i + 1],
                                node.symbols[3 * i + 2] - node.symbols[3 * i + 1])
    if not node.is_open:
        return 1
    i = snprintf(name, sizeof(name), b"UNKNOWN_ENUM_VALUE_%.*s_%d", NAME_MAX, node.type_name, number)
    return append_bytes(column, name, min(i, <int>sizeof(name) - 1))


cdef const uint8_t* read_scalar(Fault* fault, Node* node, Column* column, const uint8_t* p,
                                const uint8_t* end) noexcept nogil:
    """Read one scalar into `column`."""
    cdef uint64_t raw = 0
    cdef uint32_t half
    cdef float single
    cdef double number
    cdef int op = node.op
    cdef int result = 0
    cdef const uint8_t* start = p
    if node.wire == WIRE_VARINT:
        p = read_varint(fault, node, p, end, &raw)
        if p is NULL:
            return NULL
        if op == OP_INT32 or op == OP_ENUM_INT:
            result = append_i32(column, <int32_t>raw)
        elif op == OP_INT64:
            result = append_i64(column, <int64_t>raw)
        elif op == OP_UINT32:
            result = append_i64(column, <int64_t><uint32_t>raw)
        elif op == OP_UINT64:
            result = append_decimal(column, raw, 0)
        elif op == OP_SINT32:
            half = <uint32_t>raw
            result = append_i32(column, <int32_t>(half >> 1) ^ -<int32_t>(half & 1))
        elif op == OP_SINT64:
            result = append_i64(column, <int64_t>(raw >> 1) ^ -<int64_t>(raw & 1))
        elif op == OP_BOOL:
            result = append_bool(column, raw != 0)
        else:
            result = append_symbol(node, column, <int32_t>raw)
            if result == 1:
                return p
    elif node.wire == WIRE_64:
        if end - p < 8:
            return wrong(fault, ENDS_EARLY, node, start)
        memcpy(&raw, p, 8)
        p += 8
        if op == OP_DOUBLE:
            memcpy(&number, &raw, 8)
            result = append_f64(column, number)
        elif op == OP_UFIXED64:
            result = append_decimal(column, raw, 0)
        else:
            result = append_i64(column, <int64_t>raw)
    elif node.wire == WIRE_32:
        if end - p < 4:
            return wrong(fault, ENDS_EARLY, node, start)
        memcpy(&half, p, 4)
        p += 4
        if op == OP_FLOAT:
            memcpy(&single, &half, 4)
            result = append_f32(column, single)
        elif op == OP_UFIXED32:
            result = append_i64(column, half)
        else:
            result = append_i32(column, <int32_t>half)
    else:
        p = read_varint(fault, node, p, end, &raw)
        if p is NULL:
            return NULL
        if raw > <uint64_t>(end - p):
            return wrong(fault, ENDS_EARLY, node, start)
        if op == OP_STRING and not is_utf8(p, p + raw):
            return wrong(fault, NOT_UTF8, node, p)
        result = append_bytes(column, p, <int64_t>raw)
        p += raw
    return p if result == 0 else wrong(fault, NO_MEMORY, node, start)


cdef const uint8_t* read_timestamp(Fault* fault, Node* node, Column* column, const uint8_t* p,
                                   const uint8_t* end) noexcept nogil:
    """Read a google.protobuf.Timestamp: field 1 has seconds, field 2 nanoseconds."""
    cdef uint64_t tag = 0
    cdef uint64_t raw = 0
    cdef int64_t seconds = 0
    cdef int64_t nanos = 0
    cdef const uint8_t* start = p
    while p < end:
        p = read_varint(fault, node, p, end, &tag)
        if p is NULL:
            return NULL
        if tag == 8 or tag == 16:
            p = read_varint(fault, node, p, end, &raw)
            if tag == 8:
                seconds = <int64_t>raw
            else:
                nanos = <int32_t>raw
        elif tag >> 3 == 0:
            return wrong(fault, BAD_TAG, node, p - 1)
        else:
            p = skip_field(fault, node, p, end, <int>(tag & 7), tag >> 3, 0)
        if p is NULL:
            return NULL
    nanos = nanos // 1000                          # rounds towards zero, like Java's TimeUnit
    if __builtin_mul_overflow(seconds, 1000000, &seconds) or __builtin_add_overflow(seconds, nanos, &seconds):
        return wrong(fault, OUT_OF_RANGE, node, start)
    return p if append_i64(column, seconds) == 0 else wrong(fault, NO_MEMORY, node, start)


cdef const uint8_t* read_below(Fault* fault, Node* node, Column* column, const uint8_t* p,
                               const uint8_t* end) noexcept nogil:
    if node.op == OP_TIMESTAMP:
        return read_timestamp(fault, node, column, p, end)
    return read_message(fault, node, column, p, end)


cdef inline Node* find_field(Node* node, uint64_t number) noexcept nogil:
    cdef int32_t i = node.next
    if i < node.children_count and node.children[i].number == number:
        node.next = i + 1
        return &node.children[i]
    if number < DIRECT_NUMBERS:
        i = node.direct[number] - 1
        if i < 0:
            return NULL
        node.next = i + 1
        return &node.children[i]
    for i in range(node.children_count):
        if node.children[i].number == number:
            node.next = i + 1
            return &node.children[i]
    return NULL


cdef bint remember(Node* field, const uint8_t* p, int64_t size) noexcept nogil:
    """Store the position of a singular message. If there was one before, concatenate both."""
    cdef uint8_t* merged
    if not field.was_seen or field.size == 0:
        field.was_seen, field.at, field.size = True, p, size
        return True
    if size == 0:
        return True
    if field.size + size > field.merged_capacity:
        merged = <uint8_t*>realloc(field.merged, <size_t>(2 * (field.size + size)))
        if merged is NULL:
            return False
        if field.at == field.merged:
            field.at = merged
        field.merged, field.merged_capacity = merged, 2 * (field.size + size)
    if field.at != field.merged:
        memcpy(field.merged, field.at, <size_t>field.size)
        field.at = field.merged
    memcpy(field.merged + field.size, p, <size_t>size)
    field.size += size
    return True


cdef void clear_oneof(Node* node, Node* kept, int64_t row) noexcept nogil:
    cdef int32_t i
    cdef Node* field
    for i in range(node.children_count):
        field = &node.children[i]
        if field.oneof == kept.oneof and field != kept:
            field.was_seen = False
            if field.column is not NULL and field.op < OP_MESSAGE:
                column_truncate(field.column, row)


cdef bint is_symbol(Node* field, const uint8_t* p, const uint8_t* end) noexcept nogil:
    """Return whether the varint at `p` is a number of the enum. Also return True for a cut varint, which is refused when
    it is read."""
    cdef Fault ignored
    cdef uint64_t raw = 0
    cdef int32_t i
    if read_varint(&ignored, field, p, end, &raw) is NULL:
        return True
    for i in range(field.symbols_count):
        if field.symbols[3 * i] == <int32_t>raw:
            return True
    return False


cdef const uint8_t* read_message(Fault* fault, Node* node, Column* column, const uint8_t* p,
                                 const uint8_t* end) noexcept nogil:
    """Read the message from `p` to `end` as one row of the struct `column`."""
    cdef int64_t row = column.length
    cdef uint64_t tag = 0
    cdef uint64_t size = 0
    cdef int wire
    cdef int32_t i
    cdef Node* field
    cdef Column* element
    cdef const uint8_t* start
    cdef const uint8_t* stop
    node.next = 0
    for i in range(node.children_count):
        node.children[i].was_seen = False
    while p < end:
        start = p
        p = read_varint(fault, node, p, end, &tag)
        if p is NULL:
            return NULL
        wire = <int>(tag & 7)
        if tag >> 3 == 0 or tag >> 32 != 0:
            return wrong(fault, BAD_TAG, node, start)
        field = find_field(node, tag >> 3)
        if field is NULL or field.column is NULL or (wire != field.wire and not (
                wire == WIRE_BYTES and field.is_repeated and field.wire != WIRE_BYTES)):
            if field is not NULL and wire == field.wire:           # it has no column, but it counts as present
                field.was_seen = True
                if field.oneof:
                    clear_oneof(node, field, row)
            p = skip_field(fault, node if field is NULL else field, p, end, wire, tag >> 3, 0)
        elif field.is_repeated:
            element = field.column.children
            if wire == WIRE_BYTES and (field.op >= OP_MESSAGE or field.wire != WIRE_BYTES):
                p = read_varint(fault, field, p, end, &size)
                if p is NULL:
                    return NULL
                if size > <uint64_t>(end - p):
                    return wrong(fault, ENDS_EARLY, field, start)
                stop = p + size
                if field.op >= OP_MESSAGE:
                    p = read_below(fault, field, element, p, stop)
                else:
                    while p is not NULL and p < stop:               # packed
                        p = read_scalar(fault, field, element, p, stop)
            else:
                p = read_scalar(fault, field, element, p, end)
        elif field.op >= OP_MESSAGE:
            p = read_varint(fault, field, p, end, &size)
            if p is NULL:
                return NULL
            if size > <uint64_t>(end - p):
                return wrong(fault, ENDS_EARLY, field, start)
            if field.oneof:
                clear_oneof(node, field, row)
            if not remember(field, p, <int64_t>size):
                return wrong(fault, NO_MEMORY, field, p)
            p += size
        elif field.op == OP_ENUM and not field.is_open and not is_symbol(field, p, end):
            p = skip_field(fault, field, p, end, wire, tag >> 3, 0)    # unknown: keep the previous value
        else:
            if field.oneof:
                clear_oneof(node, field, row)
            if field.column.length != row:
                column_truncate(field.column, row)
            p = read_scalar(fault, field, field.column, p, end)
        if p is NULL:
            return NULL
    for i in range(node.children_count):
        field = &node.children[i]
        if field.column is NULL:
            if field.is_required and not field.was_seen:
                return wrong(fault, MISSING_FIELD, field, end)
            continue
        if field.is_repeated:
            if append_list(field.column) < 0:
                return wrong(fault, NO_MEMORY, field, end)
            continue
        if field.op >= OP_MESSAGE and not field.was_seen and field.default is not NULL:
            field.was_seen, field.at, field.size = True, field.default, field.default_size
        if field.op >= OP_MESSAGE and field.was_seen:
            if read_below(fault, field, field.column, field.at, field.at + field.size) is NULL:
                return NULL
            continue
        if field.column.length != row:
            continue
        if field.is_required:
            return wrong(fault, MISSING_FIELD, field, end)
        if field.default is not NULL:
            if read_scalar(fault, field, field.column, field.default, field.default + field.default_size) is NULL:
                return NULL
        elif append_null(field.column) < 0:
            return wrong(fault, NO_MEMORY, field, end)
    return end if append_row(column) == 0 else wrong(fault, NO_MEMORY, node, end)


cdef int node_open(Node* node, plan, Column* column, str path, list paths) except -1:
    """Fill a zeroed `node` from `plan`, a dict as described in kafkad/values/proto_schema.py."""
    cdef int32_t i
    cdef Column* value = column
    node.op = OPS[plan["op"]]
    node.column = column
    node.number = plan.get("number", 0)
    node.path = <int32_t>len(paths)
    paths.append(path)
    node.is_repeated = plan.get("repeated", False)
    node.is_required = plan.get("required", False)
    node.is_open = plan.get("open", False)
    node.oneof = plan.get("oneof", 0)
    if node.op >= OP_STRING:
        node.wire = WIRE_BYTES
    elif node.op == OP_DOUBLE or node.op == OP_FIXED64 or node.op == OP_UFIXED64:
        node.wire = WIRE_64
    elif node.op == OP_FLOAT or node.op == OP_FIXED32 or node.op == OP_UFIXED32:
        node.wire = WIRE_32
    default = plan.get("default")
    if default is not None:
        node.default_size = len(default)
        node.default = <uint8_t*>calloc(len(default) + 1, 1)
        if node.default is NULL:
            raise MemoryError
        memcpy(node.default, <const uint8_t*>default, <size_t>len(default))
    if node.op == OP_ENUM:
        symbols = plan["symbols"]
        text = b"".join(name.encode() for name in symbols.values())
        type_name = plan["type"].encode()
        node.names = <uint8_t*>calloc(len(text) + 1, 1)
        node.type_name = <char*>calloc(len(type_name) + 1, 1)
        node.symbols = <int32_t*>calloc(3 * len(symbols) + 1, sizeof(int32_t))
        if node.names is NULL or node.symbols is NULL or node.type_name is NULL:
            raise MemoryError
        node.symbols_count = <int32_t>len(symbols)
        memcpy(node.names, <const uint8_t*>text, <size_t>len(text))
        memcpy(node.type_name, <const char*>type_name, <size_t>len(type_name))
        begin = 0
        for i, (number, name) in enumerate(symbols.items()):
            node.symbols[3 * i], node.symbols[3 * i + 1] = number, begin
            begin += len(name.encode())
            node.symbols[3 * i + 2] = begin
    children = plan.get("children", ())
    if node.op == OP_MESSAGE:
        node.direct = <int32_t*>calloc(DIRECT_NUMBERS, sizeof(int32_t))
        node.children = <Node*>calloc(max(len(children), 1), sizeof(Node))
        if node.direct is NULL or node.children is NULL:
            raise MemoryError
        node.children_count = <int32_t>len(children)
        if column is not NULL and node.is_repeated:
            value = column.children
        for i, child in enumerate(children):
            name = f"{path}.{child['name']}" if path else child["name"]
            place = child.get("place", -1)
            node_open(&node.children[i], child,
                      &value.children[<int>place] if value is not NULL and place >= 0 else NULL, name, paths)
            if node.children[i].number < DIRECT_NUMBERS:
                node.direct[node.children[i].number] = i + 1
    return 0


cdef void node_close(Node* node) noexcept:
    cdef int32_t i
    for i in range(node.children_count):
        node_close(&node.children[i])
    free(node.children)
    free(node.merged)
    free(node.default)
    free(node.symbols)
    free(node.names)
    free(node.type_name)
    free(node.direct)


cdef class ProtoColumns(ValueColumns):
    """Decode messages into columns. `fields` is as in arrow_build, `plan` is the message's plan. With `has_header`, values
    begin with a schema registry's header, which is skipped: 0, four bytes of an id, the message's indexes."""

    cdef Node root
    cdef bint has_header

    def __cinit__(self, fields, plan, bint has_header=False):
        self.has_header = has_header
        node_open(&self.root, plan, &self.columns.root, "", self.paths)

    def __dealloc__(self):
        node_close(&self.root)

    cdef int decode_row(self, const uint8_t* p, int64_t size, const uint8_t* readable) noexcept nogil:
        cdef int reason = self.read_row(p, p + size)
        if self.fault.path == self.root.path:
            self.fault.path = -1
        return reason

    cdef int read_row(self, const uint8_t* p, const uint8_t* end) noexcept nogil:
        cdef uint64_t count = 0
        cdef uint64_t index = 0
        cdef uint64_t i
        if self.has_header:
            if end - p < 6 or p[0] != 0:
                return BAD_MAGIC
            p = read_varint(&self.fault, &self.root, p + 5, end, &count)      # zigzag; 0 means [0]
            if p is NULL:
                return self.fault.reason
            if count & 1 or count // 2 > <uint64_t>(end - p):
                self.fault.at = p
                return BAD_LENGTH
            for i in range(count // 2):
                p = read_varint(&self.fault, &self.root, p, end, &index)
                if p is NULL:
                    return self.fault.reason
        if read_message(&self.fault, &self.root, &self.columns.root, p, end) is NULL:
            return self.fault.reason
        return GOOD

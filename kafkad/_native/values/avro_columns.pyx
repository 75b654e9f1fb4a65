"""Decode Avro values into Arrow columns, by a plan that maps each field of the writer to a column.

Avro values have no field names or types, so a value can only be read with the writer's schema. The plan
(kafkad/values/avro_schema.py builds it) is that schema, resolved against the reader's: a tree of nodes, each with an
operation and a column for the value. A node without a column reads the value and drops it. Promotions need no nodes
of their own: an int or a long is appended in the column's type.

With `plan_of`, values begin with the five bytes of a schema registry: 0 and the schema's id. Each id has its plan,
which is built when the id first occurs.

Lengths and counts are untrusted: each is compared with the remaining bytes of the value before it is used. Elements
that take no bytes (nulls) are limited to EMPTY_ELEMENTS_MAX per value, over all of its arrays."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from kafkad._native.values.arrow_build cimport (
    KIND_DATE32, KIND_FLOAT32, KIND_FLOAT64, KIND_INT32, KIND_INT64, KIND_STRING, KIND_TIMESTAMP_US, Column, Columns,
    append_bool, append_bytes, append_decimal, append_f32, append_f64, append_i32, append_i64, append_list,
    append_null, append_row,
)
from kafkad._native.values.arrow_values cimport (
    BAD_BOOLEAN, BAD_BRANCH, BAD_LENGTH, BAD_MAGIC, BAD_VARINT, ENDS_EARLY, GOOD, NO_MEMORY, NOT_UTF8, OTHER_SCHEMA,
    OUT_OF_RANGE, TOO_DEEP, TRAILING_BYTES,
)
from kafkad._native.values.text_values cimport decimal_fits, is_utf8
from kafkad._native.values.value_columns cimport Fault, ValueColumns, faulty

cdef extern from * nogil:
    bint __builtin_mul_overflow(int64_t a, int64_t b, int64_t* result)

cdef enum:
    DEPTH_MAX = 200
    EMPTY_ELEMENTS_MAX = 65536
    PLANS_MAX = 1000                   # plans kept; above that, the ids whose values are bad are forgotten

cdef enum Op:
    OP_NULL
    OP_BOOLEAN
    OP_INT
    OP_LONG
    OP_FLOAT
    OP_DOUBLE
    OP_BYTES               # also string
    OP_DECIMAL             # in bytes
    OP_FIXED
    OP_FIXED_DECIMAL
    OP_ENUM
    OP_UNION
    OP_MEMBER              # a branch of a union that is a struct: one child gets the value
    OP_RECORD
    OP_ARRAY
    OP_MAP
    OP_MISMATCH            # a branch that the reader's schema does not have

OPS = {
    "null": OP_NULL, "boolean": OP_BOOLEAN, "int": OP_INT, "long": OP_LONG, "float": OP_FLOAT, "double": OP_DOUBLE,
    "bytes": OP_BYTES, "decimal": OP_DECIMAL, "fixed": OP_FIXED, "fixed_decimal": OP_FIXED_DECIMAL,
    "enum": OP_ENUM, "union": OP_UNION, "member": OP_MEMBER, "record": OP_RECORD, "array": OP_ARRAY, "map": OP_MAP,
    "mismatch": OP_MISMATCH,
}  # fmt: skip


cdef struct Node:
    int op
    int32_t path
    Column* column                     # NULL: read and drop
    int64_t scale                      # factor of an integer: milliseconds to microseconds
    int64_t size                       # size of a fixed, size of a default, or index of a member's child
    bint is_empty                      # the value takes no bytes
    int32_t children_count             # branches, fields in the writer's order, the element, or key and value
    Node* children
    int32_t missing_count              # fields of the reader that the writer lacks, with their defaults
    Node* missing
    uint8_t* bytes                     # a default in Avro's encoding, or the concatenated symbols of an enum
    int32_t* ends                      # end of each symbol; -1: the reader lacks the symbol


cdef struct Parser:
    const uint8_t* end
    Fault* fault
    int64_t empty_left                 # how many more elements without bytes this value may have


cdef inline const uint8_t* wrong(Parser* parser, int reason, Node* node, const uint8_t* at) noexcept nogil:
    return faulty(parser.fault, reason, node.path, at)


cdef inline const uint8_t* read_long(Parser* parser, Node* node, const uint8_t* p, int64_t* value) noexcept nogil:
    """Read a zigzag varint of at most 64 bits."""
    cdef const uint8_t* start = p
    cdef uint64_t raw = 0
    cdef int shift = 0
    if p < parser.end and p[0] < 0x80:
        value[0] = <int64_t>(p[0] >> 1) ^ -<int64_t>(p[0] & 1)
        return p + 1
    while True:
        if p == parser.end:
            return wrong(parser, ENDS_EARLY, node, p)
        if shift == 63 and p[0] > 1:
            return wrong(parser, BAD_VARINT, node, start)
        raw |= <uint64_t>(p[0] & 0x7f) << shift
        shift += 7
        p += 1
        if (p - 1)[0] < 0x80:
            break
    value[0] = <int64_t>(raw >> 1) ^ -<int64_t>(raw & 1)
    return p


cdef inline int append_integer(Node* node, int64_t value) noexcept nogil:
    """Append an integer. Return 0, NO_MEMORY or OUT_OF_RANGE."""
    cdef Column* column = node.column
    cdef int result
    if column.kind == KIND_INT32 or column.kind == KIND_DATE32:
        if value != <int32_t>value:
            return OUT_OF_RANGE
        result = append_i32(column, <int32_t>value)
    elif column.kind == KIND_INT64:
        result = append_i64(column, value)
    elif column.kind == KIND_TIMESTAMP_US:
        if __builtin_mul_overflow(value, node.scale, &value):
            return OUT_OF_RANGE
        result = append_i64(column, value)
    elif column.kind == KIND_FLOAT64:
        result = append_f64(column, <double>value)
    else:
        result = append_f32(column, <float>value)
    return NO_MEMORY if result < 0 else GOOD


cdef const uint8_t* read_bytes(Parser* parser, Node* node, const uint8_t* p, int64_t size) noexcept nogil:
    """Read `size` bytes into a binary, string or decimal column."""
    cdef uint64_t low
    cdef int64_t high
    cdef int result
    if size < 0 or size > parser.end - p:
        return wrong(parser, BAD_LENGTH if size < 0 else ENDS_EARLY, node, p)
    if node.column is NULL:
        return p + size
    if node.op == OP_DECIMAL or node.op == OP_FIXED_DECIMAL:
        if not decimal_fits(p, size, node.column.precision, &low, &high):
            return wrong(parser, OUT_OF_RANGE, node, p)
        result = append_decimal(node.column, low, high)
    else:
        if node.column.kind == KIND_STRING and not is_utf8(p, p + size):
            return wrong(parser, NOT_UTF8, node, p)
        result = append_bytes(node.column, p, size)
    return p + size if result == 0 else wrong(parser, NO_MEMORY, node, p)


cdef const uint8_t* read_blocks(Parser* parser, Node* node, const uint8_t* p, int depth) noexcept nogil:
    """Read the blocks of an array or a map."""
    cdef int64_t count
    cdef int64_t size
    cdef int64_t i
    cdef Node* element = &node.children[node.children_count - 1]
    while True:
        p = read_long(parser, node, p, &count)
        if p is NULL:
            return NULL
        if count == 0:
            break
        if count < 0:                              # the block's size in bytes follows; it is for skipping
            p = read_long(parser, node, p, &size)
            if p is NULL:
                return NULL
            if count == <int64_t>0x8000000000000000ULL or size < 0 or size > parser.end - p:
                return wrong(parser, BAD_LENGTH, node, p)
            count = -count
        if element.is_empty and node.op == OP_ARRAY:
            if count > parser.empty_left:
                return wrong(parser, BAD_LENGTH, node, p)
            parser.empty_left -= count
        elif count > parser.end - p:
            return wrong(parser, BAD_LENGTH, node, p)
        for i in range(count):
            if node.op == OP_MAP:
                p = read_value(parser, node.children, p, depth)
                if p is NULL:
                    return NULL
            p = read_value(parser, element, p, depth)
            if p is NULL:
                return NULL
            if node.op == OP_MAP and node.column is not NULL and append_row(node.column.children) < 0:
                return wrong(parser, NO_MEMORY, node, p)
    if node.column is not NULL and append_list(node.column) < 0:
        return wrong(parser, NO_MEMORY, node, p)
    return p


cdef const uint8_t* read_record(Parser* parser, Node* node, const uint8_t* p, int depth) noexcept nogil:
    cdef int32_t i
    cdef const uint8_t* end = parser.end
    cdef Node* child
    for i in range(node.children_count):
        p = read_value(parser, &node.children[i], p, depth)
        if p is NULL:
            return NULL
    for i in range(node.missing_count):
        child = &node.missing[i]
        parser.end = child.bytes + child.size
        if read_value(parser, child.children, child.bytes, depth) is NULL:
            parser.fault.at = p
            return NULL
        parser.end = end
    if node.column is not NULL and append_row(node.column) < 0:
        return wrong(parser, NO_MEMORY, node, p)
    return p


cdef const uint8_t* read_value(Parser* parser, Node* node, const uint8_t* p, int depth) noexcept nogil:
    cdef const uint8_t* start = p
    cdef int64_t value = 0
    cdef float single
    cdef double number
    cdef int result = 0
    cdef int32_t i
    cdef int32_t begin
    cdef int op = node.op
    if op == OP_INT or op == OP_LONG:
        p = read_long(parser, node, p, &value)
        if p is NULL:
            return NULL
        if op == OP_INT and value != <int32_t>value:
            return wrong(parser, BAD_VARINT, node, start)
        if node.column is NULL:
            return p
        result = append_integer(node, value)
        return p if result == GOOD else wrong(parser, result, node, start)
    if op == OP_UNION:
        p = read_long(parser, node, p, &value)
        if p is NULL:
            return NULL
        if value < 0 or value >= node.children_count:
            return wrong(parser, BAD_BRANCH, node, start)
        return read_value(parser, &node.children[value], p, depth)
    if op == OP_BYTES or op == OP_DECIMAL:
        p = read_long(parser, node, p, &value)
        if p is NULL:
            return NULL
        return read_bytes(parser, node, p, value)
    if op == OP_NULL:
        result = 0 if node.column is NULL else append_null(node.column)
    elif op == OP_DOUBLE or op == OP_FLOAT:
        if parser.end - p < (8 if op == OP_DOUBLE else 4):
            return wrong(parser, ENDS_EARLY, node, parser.end)
        if op == OP_DOUBLE:
            memcpy(&number, p, 8)
            p += 8
        else:
            memcpy(&single, p, 4)
            number = single
            p += 4
        if node.column is not NULL:
            if node.column.kind == KIND_FLOAT32:
                result = append_f32(node.column, <float>number)
            else:
                result = append_f64(node.column, number)
    elif op == OP_BOOLEAN:
        if p == parser.end:
            return wrong(parser, ENDS_EARLY, node, p)
        if p[0] > 1:
            return wrong(parser, BAD_BOOLEAN, node, p)
        if node.column is not NULL:
            result = append_bool(node.column, p[0])
        p += 1
    elif op == OP_FIXED or op == OP_FIXED_DECIMAL:
        return read_bytes(parser, node, p, node.size)
    elif op == OP_ENUM:
        p = read_long(parser, node, p, &value)
        if p is NULL:
            return NULL
        if value < 0 or value >= node.size or node.ends[2 * value + 1] < 0:
            return wrong(parser, BAD_BRANCH, node, start)
        if node.column is not NULL:
            begin = node.ends[2 * value]
            result = append_bytes(node.column, node.bytes + begin, node.ends[2 * value + 1] - begin)
    elif op == OP_MISMATCH:
        return wrong(parser, BAD_BRANCH, node, p)
    elif depth >= DEPTH_MAX:
        return wrong(parser, TOO_DEEP, node, p)
    elif op == OP_RECORD:
        return read_record(parser, node, p, depth + 1)
    elif op == OP_MEMBER:
        p = read_value(parser, node.children, p, depth + 1)
        if p is NULL or node.column is NULL:
            return p
        for i in range(node.column.children_count):
            if i != node.size and append_null(&node.column.children[i]) < 0:
                return wrong(parser, NO_MEMORY, node, p)
        result = append_row(node.column)
    else:
        return read_blocks(parser, node, p, depth + 1)
    return p if result == 0 else wrong(parser, NO_MEMORY, node, start)


cdef int node_open(Node* node, plan, Column* column, str path, list paths) except -1:
    """Fill a zeroed `node` from `plan`, a dict as described in kafkad/values/avro_schema.py."""
    cdef int32_t i
    cdef Column* below
    node.op = OPS[plan["op"]]
    node.column = column
    node.path = <int32_t>len(paths)
    paths.append(path)
    node.scale = plan.get("scale", 1)
    node.size = plan.get("size", 0)
    node.is_empty = plan["op"] == "null" or (node.op == OP_FIXED and node.size == 0)
    children = plan.get("children", ())
    if node.op == OP_ENUM:
        text = b"".join(symbol.encode() for symbol in plan["symbols"] if symbol is not None)
        node.size = len(plan["symbols"])
        node.bytes = <uint8_t*>calloc(len(text) + 1, 1)
        node.ends = <int32_t*>calloc(2 * node.size + 1, sizeof(int32_t))
        if node.bytes is NULL or node.ends is NULL:
            raise MemoryError
        memcpy(node.bytes, <const uint8_t*>text, <size_t>len(text))
        written = 0
        for i, symbol in enumerate(plan["symbols"]):
            node.ends[2 * i] = written
            written += len(symbol.encode()) if symbol is not None else 0
            node.ends[2 * i + 1] = written if symbol is not None else -1
    if children:
        node.children = <Node*>calloc(len(children), sizeof(Node))
        if node.children is NULL:
            raise MemoryError
        node.children_count = <int32_t>len(children)
    node.is_empty = node.is_empty or node.op == OP_RECORD or node.op == OP_MEMBER
    for i, child in enumerate(children):
        name = path
        if node.op == OP_RECORD:
            name = f"{path}.{child['name']}" if path else child["name"]
        elif node.op == OP_ARRAY:
            name = path + "[]"
        below = NULL
        if column is not NULL:
            if node.op == OP_UNION:
                below = column
            elif node.op == OP_MEMBER:
                below = &column.children[node.size]
            elif node.op == OP_ARRAY:
                below = column.children
            elif node.op == OP_MAP:
                below = &column.children.children[i]
            elif child.get("place", -1) >= 0:
                below = &column.children[<int>child["place"]]
        node_open(&node.children[i], child, below, name, paths)
        node.is_empty = node.is_empty and node.children[i].is_empty
    missing = plan.get("missing", ()) if column is not NULL else ()
    if missing:
        node.missing = <Node*>calloc(len(missing), sizeof(Node))
        if node.missing is NULL:
            raise MemoryError
        node.missing_count = <int32_t>len(missing)
    for i, (child, encoded) in enumerate(missing):
        node.missing[i].children = <Node*>calloc(1, sizeof(Node))
        node.missing[i].bytes = <uint8_t*>calloc(len(encoded) + 1, 1)
        if node.missing[i].children is NULL or node.missing[i].bytes is NULL:
            raise MemoryError
        node.missing[i].children_count = 1
        node.missing[i].size = len(encoded)
        memcpy(node.missing[i].bytes, <const uint8_t*>encoded, <size_t>len(encoded))
        name = f"{path}.{child['name']}" if path else child["name"]
        node_open(node.missing[i].children, child, &column.children[<int>child["place"]], name, paths)
    return 0


cdef void node_close(Node* node) noexcept:
    cdef int32_t i
    for i in range(node.children_count):
        node_close(&node.children[i])
    for i in range(node.missing_count):
        node_close(&node.missing[i])
    free(node.children)
    free(node.missing)
    free(node.bytes)
    free(node.ends)


cdef class Plan:
    """One writer's schema, resolved to the columns of a decoder."""

    cdef Node root
    cdef uint32_t id
    cdef Columns columns               # keeps alive the columns that the nodes point to
    cdef str refusal                   # instead of a plan: why values with this id are bad

    def __cinit__(self, Columns columns, plan, list paths, uint32_t id=0, str refusal=None):
        self.columns, self.id, self.refusal = columns, id, refusal
        if refusal is None:
            node_open(&self.root, plan, &columns.root, "", paths)

    def __dealloc__(self):
        node_close(&self.root)


cdef class AvroColumns(ValueColumns):
    """Decode bare Avro values (with `plan`), or values with a registry's header (with `plan_of`).

    fields   the reader's columns, as in arrow_build
    plan_of  id -> a plan, or a str that says why values with this id are bad. `decode` raises what it raises."""

    cdef dict plans
    cdef object plan_of
    cdef bint has_header
    cdef list free_paths               # places in `paths` of error messages that are not used any more
    cdef Plan current
    cdef Parser parser

    def __cinit__(self, fields, plan=None, plan_of=None):
        self.free_paths = []
        self.plans = {}
        self.plan_of = plan_of
        self.has_header = plan_of is not None
        if plan is not None:
            self.current = Plan(self.columns, plan, self.paths)

    cdef int decode_row(self, const uint8_t* p, int64_t size, const uint8_t* readable) noexcept nogil:
        cdef uint32_t id
        self.parser.end = p + size
        self.parser.fault = &self.fault
        self.parser.empty_left = EMPTY_ELEMENTS_MAX
        if self.has_header:
            if size < 5 or p[0] != 0:
                return BAD_MAGIC
            id = <uint32_t>p[1] << 24 | <uint32_t>p[2] << 16 | <uint32_t>p[3] << 8 | p[4]
            if self.current is None or self.current.id != id:
                if not self.take_plan(id):
                    return NO_MEMORY
            if self.current.refusal is not None:
                self.fault.at = NULL
                self.fault.path = <int32_t>self.current.root.size
                return OTHER_SCHEMA
            p += 5
        p = read_value(&self.parser, &self.current.root, p, 0)
        if p is NULL:
            if self.fault.path == self.current.root.path:
                self.fault.path = -1
            return self.fault.reason
        if p != self.parser.end:
            self.fault.at = p
            return TRAILING_BYTES
        return GOOD

    cdef bint take_plan(self, uint32_t id) noexcept with gil:
        """Make the plan of `id` the current one. If that fails, return False and set `failure`."""
        cdef Plan plan
        try:
            plan = self.plans.get(id)
            if plan is None:
                found = self.plan_of(id)
                if len(self.plans) >= PLANS_MAX:           # values are untrusted and may have any id
                    self.forget_refusals()
                if isinstance(found, str):
                    plan = Plan(self.columns, None, self.paths, id, found)
                    plan.root.size = self.path_of(found)   # the error message takes the place of a field's path
                else:
                    plan = Plan(self.columns, found, self.paths, id)
                self.plans[id] = plan
            self.current = plan
            return True
        except BaseException as error:
            self.failure = error
            return False

    cdef int64_t path_of(self, str sentence) except -1:
        if self.free_paths:
            at = self.free_paths.pop()
            self.paths[at] = sentence
        else:
            at = len(self.paths)
            self.paths.append(sentence)
        return at

    cdef int forget_refusals(self) except -1:
        """Forget all refused ids, except those that this batch's reasons refer to: they were added since it began."""
        cdef Plan plan
        cdef int64_t i
        named = {self.bad.rows[i].field for i in range(self.bad.count)}
        for id in [id for id, plan in self.plans.items() if plan.refusal is not None]:
            plan = self.plans[id]
            if plan.root.size not in named:
                self.free_paths.append(plan.root.size)
                del self.plans[id]
        return 0

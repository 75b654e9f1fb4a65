"""The codec: one interpreter for every Kafka message, driven by plans instead of generated code.

A message class is a `Message` with one slot per field. A `Spec` describes it; protocol/schema.py and messages.py build
both from the notation. At the first use of a version, the spec builds a `Plan`: an array of C steps with the fields in
wire order, then the tagged fields by tag, then the fields that this version lacks. Decoding and encoding walk the
steps and switch on their kind. They read and write the objects' slots directly; a step knows its slot's address.

The rules are those of Kafka's generated classes, except where noted:

- Reading. An array cannot claim more elements than the remaining bytes can hold, each at its smallest size, so a small
  frame cannot claim millions. A message has at most as many values as its reader allows. These are Malformed: a null
  that the version does not allow, a length below -1 (Kafka reads it as null), and a string above 32767 bytes, also if
  only U+FFFD for bytes that are not UTF-8 makes it so long. So every string that was read can be written. Fields that
  the version lacks get their default.
- Writing. These raise ValueError: a field that the version lacks and that is neither ignorable nor at its default, a
  null that the version does not allow, an integer out of range, and any value of a wrong type.
- Tagged fields (KIP-482). A known tag is read by its content; its size is ignored. If a tag is repeated, the last one
  wins. A tag that this message has only in other versions is Malformed. Unknown tags are kept in `unknown_tags` and
  written back in the order of their numbers. A tagged field at its default is not written.
- Nullable structs. An int8 precedes the struct, negative for null. Before a tagged one it is an unsigned varint, 0 for
  null.

Recursion follows the nesting of the schema only, so the schemas bound its depth.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.float cimport PyFloat_AsDouble, PyFloat_FromDouble
from cpython.list cimport PyList_GET_SIZE, PyList_New, PyList_SET_ITEM
from cpython.long cimport PyLong_AsLongLongAndOverflow, PyLong_FromLong, PyLong_FromLongLong
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.object cimport PyObject, PyObject_TypeCheck, PyTypeObject
from cpython.ref cimport Py_INCREF, Py_XDECREF
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport INT64_MAX, INT64_MIN, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t
from libc.string cimport memcpy, memset

from kafkad._native.wire.buffer cimport (
    WriteBuffer,
    back_fill_uvarint,
    buffer_free,
    buffer_init,
    reserve,
    write_i8,
    write_i16,
    write_i32,
    write_i64,
    write_raw,
    write_uvarint,
)
from kafkad._native.wire.primitives cimport (
    Cursor,
    cursor_init,
    read_i8,
    read_i16,
    read_i32,
    read_i64,
    read_raw,
    read_uvarint,
    remaining,
)

from kafkad._native.wire.malformed import Malformed


cdef extern from "structmember.h":
    ctypedef struct PyMemberDef:
        Py_ssize_t offset
    ctypedef struct PyMemberDescrObject:
        PyMemberDef* d_member


cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size) except NULL
    void PyObject_GC_UnTrack(void* object)


# The kind by its name in the notation, then the sizes in bytes of the kinds with a fixed size.
KINDS = {
    "bool": BOOL,
    "int8": INT8,
    "int16": INT16,
    "uint16": UINT16,
    "int32": INT32,
    "uint32": UINT32,
    "int64": INT64,
    "float64": FLOAT64,
    "uuid": UUID,
    "string": STRING,
    "bytes": BYTES,
    "records": BYTES,
    "{}": STRUCT,
}
cdef size_t[9] FIXED_SIZE = [1, 1, 2, 2, 4, 4, 8, 8, 16]

cdef int STRING_SIZE_MAX = 0x7FFF
cdef int REPLACED_SIZE_MAX = STRING_SIZE_MAX // 3     # U+FFFD has three bytes and may replace a single one
cdef int64_t[7] LOWEST = [0, -0x80, -0x8000, 0, -0x80000000, 0, INT64_MIN]
cdef int64_t[7] HIGHEST = [1, 0x7F, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 0x7FFFFFFFFFFFFFFF]

cdef enum:
    UNKNOWN_TAG_VALUES = 16             # values that an unknown tag counts for: it is a dict entry and read in one go

cdef tuple NOTHING = ()


# -- what a message looks like ------------------------------------------------------------------------------


cdef class Field:
    """One field of a spec, over all versions. A range (low, high) with high < low is empty."""

    def __init__(
        self, name, type, default, struct, versions, nullable, tagged, tag, ignorable, never_compact
    ):
        self.name = name
        self.type = type
        self.default = default
        self.struct = struct
        self.versions = versions
        self.nullable = nullable
        self.tagged = tagged
        self.tag = tag
        self.ignorable = ignorable
        self.never_compact = never_compact
        if type.startswith("[]"):
            self.kind = ARRAY
            self.element = STRUCT if struct is not None else KINDS[type[2:]]
        else:
            self.kind = KINDS[type]

    cdef object fresh_default(self):
        if self.default is None:
            return None
        if self.kind == ARRAY:
            return untracked_list(0)
        if self.kind == STRUCT:
            return self.struct.cls()
        return self.default

    cdef bint is_default(self, object value) except -1:
        if value is self.default:
            return True
        if value is None or self.default is None:
            return False
        if self.kind == ARRAY or self.kind == BYTES:
            return not value
        if self.kind == STRUCT:
            if self.empty_struct is None:
                self.empty_struct = self.struct.cls()
            return value == self.empty_struct
        return value == self.default


cdef class Spec:
    """A message or struct over all versions, bound to its class by `bind`."""

    def __init__(self, path, fields, versions, flexible):
        self.path = path
        self.fields = tuple(fields)
        self.versions = versions
        self.flexible = flexible
        self.by_name = {field.name: field for field in fields}
        self.plans = [None] * (versions[1] + 1)

    def bind(self, cls):
        """Set the class, whose __slots__ are the fields' names."""
        cdef Field field
        self.cls = cls
        for field in self.fields:
            descriptor = cls.__dict__[field.name]
            field.slot = (<PyMemberDescrObject*><PyObject*>descriptor).d_member.offset

    def prepare(self, int version):
        """Build the plan of a version before its first use."""
        self.plan(version)

    cdef Plan plan(self, int version):
        cdef Plan plan
        if version < 0 or version > <int>self.versions[1] or version < <int>self.versions[0]:
            raise ValueError(f"{self.path} has no version {version}")
        plan = self.plans[version]
        if plan is None:
            plan = self.plans[version] = Plan(self, version)
        return plan


cdef class Plan:
    """The wire layout of one version of a struct."""

    def __cinit__(self, Spec spec, int version):
        cdef Field field
        cdef list tagged = [f for f in spec.fields if holds(f.tagged, version)]
        cdef list absent = [f for f in spec.fields if not holds(f.versions, version)]
        cdef list present = [f for f in spec.fields if f not in tagged and f not in absent]
        cdef int at = 0
        self.spec = spec
        self.cls = <PyTypeObject*><PyObject*>spec.cls
        self.version = version
        self.flexible = holds(spec.flexible, version)
        tagged.sort(key=lambda f: f.tag)
        self.present = len(present)
        self.tagged = self.present + len(tagged)
        self.count = len(spec.fields)
        self.other_tags = frozenset([f.tag for f in spec.fields if f.tag >= 0 and f not in tagged])
        self.children = []
        self.least_size = 1 if self.flexible else 0
        self.steps = <Step*>PyMem_Malloc((self.count + 1) * sizeof(Step))
        if self.steps == NULL:
            raise MemoryError()
        memset(self.steps, 0, (self.count + 1) * sizeof(Step))
        for field in present:
            self.prepare(&self.steps[at], field)
            self.least_size += self.size_at_least(&self.steps[at])
            if field.kind == ARRAY or (field.kind == STRUCT and (<Plan>self.steps[at].plan).nests):
                self.nests = True
            at += 1
        for field in tagged:
            self.prepare(&self.steps[at], field)
            at += 1
        for field in absent:
            self.prepare(&self.steps[at], field)
            self.steps[at].must_be_default = not field.ignorable
            at += 1

    def __dealloc__(self):
        PyMem_Free(self.steps)

    cdef int prepare(self, Step* step, Field field) except -1:
        cdef Plan child
        step.kind = field.kind
        step.element = field.element
        step.compact = self.flexible and not field.never_compact
        step.nullable = holds(field.nullable, self.version)
        step.tag = field.tag
        step.slot = field.slot
        step.field = <PyObject*>field
        step.has_constant = field.default is None or field.kind not in (ARRAY, STRUCT)
        step.constant = <PyObject*>field.default
        step.element_values = 1
        if field.struct is not None and holds(field.versions, self.version):
            child = field.struct.plan(self.version)
            self.children.append(child)
            step.plan = <PyObject*>child
            step.element_size = child.least_size if child.least_size else 1
            step.element_values = 2 + child.present
        elif field.kind == ARRAY and field.element <= UUID:
            step.element_size = FIXED_SIZE[<int>field.element]
        else:
            step.element_size = 1 if step.compact else (2 if field.element == STRING else 4)
        return 0

    cdef size_t size_at_least(self, Step* step) noexcept:
        if step.kind <= UUID:
            return FIXED_SIZE[<int>step.kind]
        if step.kind == STRUCT:
            return 1 if step.nullable else (<Plan>step.plan).least_size
        if step.compact:
            return 1
        return 2 if step.kind == STRING else 4


cdef bint holds(tuple versions, int version) except -1:
    return <int>versions[0] <= version <= <int>versions[1]


cdef list untracked_list(Py_ssize_t size):
    cdef list items = PyList_New(size)
    PyObject_GC_UnTrack(<PyObject*>items)
    return items


# -- the messages' base class -------------------------------------------------------------------------------


cdef class Message:
    """The base of all message classes. Fields are given by keyword; the others get the schema's defaults.

    `unknown_tags` has the tagged fields that the schema does not know, as {tag: content}, or None.

    The garbage collector does not track messages and the lists that the codec creates: they are trees, so reference
    counts free them, and walking the objects of a wide message would take longer than decoding it. So a message must
    not refer to anything that refers to the message."""

    def __init__(self, **values):
        cdef Spec spec = type(self).SPEC
        cdef Field field
        PyObject_GC_UnTrack(<PyObject*>self)
        for field in spec.fields:
            if field.name in values:
                set_slot(self, field.slot, values.pop(field.name))
            else:
                set_slot(self, field.slot, field.fresh_default())
        if values:
            self.unknown_tags = values.pop("unknown_tags", None)
            if values:
                raise TypeError(f"{spec.path} has no field {', '.join(values)}")

    def __eq__(self, other):
        if type(self) is not type(other):
            return NotImplemented
        cdef Spec spec = type(self).SPEC
        for field in spec.fields:
            if getattr(self, field.name) != getattr(other, field.name):
                return False
        return (self.unknown_tags or None) == ((<Message>other).unknown_tags or None)

    __hash__ = None

    def __repr__(self):
        cdef Spec spec = type(self).SPEC
        parts = [f"{field.name}={getattr(self, field.name, '?')!r}" for field in spec.fields]
        if self.unknown_tags:
            parts.append(f"unknown_tags={self.unknown_tags!r}")
        return f"{spec.path.rpartition('.')[2]}({', '.join(parts)})"

    def __reduce__(self):
        cdef Spec spec = type(self).SPEC
        values = {field.name: getattr(self, field.name) for field in spec.fields}
        return rebuild, (type(self), values, self.unknown_tags)


def rebuild(cls, values, unknown_tags):
    """Build a message again, for copy and pickle."""
    message = cls(**values)
    message.unknown_tags = unknown_tags
    return message


cdef inline void set_slot(object message, Py_ssize_t slot, object value) noexcept:
    cdef PyObject** place = slot_of(message, slot)
    cdef PyObject* before = place[0]
    Py_INCREF(value)
    place[0] = <PyObject*>value
    Py_XDECREF(before)


# -- reading ------------------------------------------------------------------------------------------------


cdef object malformed(Plan plan, Step* step, str trouble):
    name = f".{(<Field>step.field).name}" if step != NULL else ""
    return Malformed(f"{plan.spec.path} v{plan.version}{name}: {trouble}")


cdef inline int spend(Plan plan, Cursor* c, int64_t values) except -1:
    """Count values of arrays before they are created, and unknown tags. Raise Malformed if there are too many."""
    cdef Reader* reader = <Reader*>c
    reader.values_left -= values
    if reader.values_left < 0:
        raise malformed(plan, NULL, "more values than one message may have")
    return 0


cdef Message new_message(Plan plan):
    """Return a message with empty slots."""
    cdef Message message = <Message>plan.cls.tp_new(<object>plan.cls, <PyObject*>NOTHING, NULL)
    PyObject_GC_UnTrack(<PyObject*>message)
    return message


cdef Message read_struct(Plan plan, Cursor* c):
    cdef Message message = new_message(plan)
    cdef Step* step
    cdef int at
    for at in range(plan.present):
        step = &plan.steps[at]
        set_slot(message, step.slot, read_value(plan, step, c))
    read_rest(plan, message, c)
    return message


cdef int read_rest(Plan plan, Message message, Cursor* c) except -1:
    """Read the tagged fields, which follow the others, and set the defaults of fields that the version lacks."""
    cdef Step* step
    cdef int at
    for at in range(plan.present, plan.count):
        step = &plan.steps[at]
        set_slot(
            message,
            step.slot,
            <object>step.constant if step.has_constant else (<Field>step.field).fresh_default(),
        )
    if plan.flexible:
        read_tags(plan, message, c)
    return 0


cdef int read_tags(Plan plan, Message message, Cursor* c) except -1:
    cdef uint32_t count = read_uvarint(c)
    cdef uint32_t tag, size
    cdef const uint8_t* content
    cdef Step* step
    while count and not c.failed:
        count -= 1
        tag = read_uvarint(c)
        size = read_uvarint(c)
        if c.failed:
            break
        step = find_tag(plan, tag)
        if step != NULL:
            if step.kind == STRUCT and step.nullable:
                if read_uvarint(c) == 0:
                    set_slot(message, step.slot, None)
                    continue
                set_slot(message, step.slot, read_struct(<Plan>step.plan, c))
            else:
                set_slot(message, step.slot, read_value(plan, step, c))
        elif tag in plan.other_tags:
            raise malformed(plan, NULL, f"tag {tag} is of another version")
        else:
            content = read_raw(c, size)
            if content == NULL:
                break
            spend(plan, c, UNKNOWN_TAG_VALUES)
            if message.unknown_tags is None:
                message.unknown_tags = {}
            message.unknown_tags[tag] = PyBytes_FromStringAndSize(<const char*>content, size)
    if c.failed:
        raise malformed(plan, NULL, "tagged fields end early")
    return 0


cdef Step* find_tag(Plan plan, uint32_t tag) noexcept:
    cdef int at
    for at in range(plan.present, plan.tagged):
        if <uint32_t>plan.steps[at].tag == tag:
            return &plan.steps[at]
    return NULL


cdef object read_value(Plan plan, Step* step, Cursor* c):
    cdef int64_t size
    if step.kind <= UUID:
        return read_fixed(plan, step, step.kind, c)
    if step.kind == STRUCT:
        if step.nullable and read_i8(c) < 0:
            return None
        return read_struct(<Plan>step.plan, c)
    size = read_size(plan, step, step.kind, c)
    if size < 0:
        if not step.nullable:
            raise malformed(plan, step, "null where it may not be")
        return None
    if step.kind == STRING:
        return read_text(plan, step, size, c)
    if step.kind == BYTES:
        return read_bytes(plan, step, size, c)
    return read_array(plan, step, size, c)


cdef object read_fixed(Plan plan, Step* step, Kind kind, Cursor* c):
    cdef int64_t number
    cdef double fraction
    cdef const uint8_t* raw
    if kind == BOOL:
        number = read_i8(c)
        if not c.failed:
            return number != 0
    elif kind == INT8:
        number = read_i8(c)
        if not c.failed:
            return PyLong_FromLong(<long>number)
    elif kind == INT16:
        number = read_i16(c)
        if not c.failed:
            return PyLong_FromLong(<long>number)
    elif kind == UINT16:
        number = <uint16_t>read_i16(c)
        if not c.failed:
            return PyLong_FromLong(<long>number)
    elif kind == INT32:
        number = read_i32(c)
        if not c.failed:
            return PyLong_FromLong(<long>number)
    elif kind == UINT32:
        number = <uint32_t>read_i32(c)
        if not c.failed:
            return PyLong_FromLongLong(number)
    elif kind == INT64:
        number = read_i64(c)
        if not c.failed:
            return PyLong_FromLongLong(number)
    elif kind == FLOAT64:
        number = read_i64(c)
        memcpy(&fraction, &number, 8)
        if not c.failed:
            return PyFloat_FromDouble(fraction)
    else:
        raw = read_raw(c, 16)
        if raw != NULL:
            return PyBytes_FromStringAndSize(<const char*>raw, 16)
    raise malformed(plan, step, "ends early")


cdef int64_t read_size(Plan plan, Step* step, Kind kind, Cursor* c) except -2:
    """Read the size of a string, bytes or an array; -1 for null."""
    cdef int64_t size
    if step.compact:
        size = <int64_t>read_uvarint(c) - 1
    elif kind == STRING:
        size = read_i16(c)
    else:
        size = read_i32(c)
    if c.failed:
        raise malformed(plan, step, "ends early")
    if size < -1 or size > 0x7FFFFFFF:
        raise malformed(plan, step, f"a size of {size}")
    return size


cdef object read_text(Plan plan, Step* step, int64_t size, Cursor* c):
    cdef const uint8_t* raw
    if size > STRING_SIZE_MAX:
        raise malformed(plan, step, f"a string of {size} bytes")
    raw = read_raw(c, size)
    if raw == NULL:
        raise malformed(plan, step, f"a string of {size} bytes where {remaining(c)} remain")
    # As in Java, bytes that are not UTF-8 become U+FFFD. Clients in C do send binary offset metadata.
    text = PyUnicode_DecodeUTF8(<const char*>raw, size, b"replace")
    if size > REPLACED_SIZE_MAX and len(text.encode()) > STRING_SIZE_MAX:
        raise malformed(plan, step, f"a string of {size} bytes, many of which are not UTF-8")
    return text


cdef object read_bytes(Plan plan, Step* step, int64_t size, Cursor* c):
    cdef const uint8_t* raw = read_raw(c, size)
    if raw == NULL:
        raise malformed(plan, step, f"{size} bytes where {remaining(c)} remain")
    return PyBytes_FromStringAndSize(<const char*>raw, size)


cdef list new_array(Plan plan, Step* step, int64_t count, Cursor* c):
    """Return a list of `count` empty places. Raise Malformed if the remaining bytes cannot hold so many elements."""
    if <size_t>count > remaining(c) // step.element_size:
        raise malformed(plan, step, f"{count} elements where {remaining(c)} bytes remain")
    spend(plan, c, count * step.element_values)
    return untracked_list(count)


cdef object read_array(Plan plan, Step* step, int64_t count, Cursor* c):
    cdef list items = new_array(plan, step, count, c)
    cdef object item
    cdef int64_t at
    for at in range(count):
        item = read_element(plan, step, c)
        Py_INCREF(item)
        PyList_SET_ITEM(items, at, item)
    return items


cdef object read_element(Plan plan, Step* step, Cursor* c):
    cdef int64_t size
    if step.element == STRUCT:
        return read_struct(<Plan>step.plan, c)
    if step.element <= UUID:
        return read_fixed(plan, step, step.element, c)
    size = read_size(plan, step, step.element, c)
    if size < 0:
        raise malformed(plan, step, "a null element")
    if step.element == STRING:
        return read_text(plan, step, size, c)
    return read_bytes(plan, step, size, c)


# -- writing ------------------------------------------------------------------------------------------------


cdef int check_class(Plan plan, object message) except -1:
    if not PyObject_TypeCheck(message, plan.cls):
        raise ValueError(f"a {type(message).__name__} where {plan.spec.path} belongs")
    return 0


cdef int write_struct(Plan plan, object message, WriteBuffer* out) except -1:
    cdef Step* step = NULL
    cdef int at
    cdef PyObject* held
    cdef object value
    check_class(plan, message)
    try:
        for at in range(plan.present):
            step = &plan.steps[at]
            held = slot_of(message, step.slot)[0]
            if held == NULL:
                raise ValueError(f"{plan.spec.path}.{(<Field>step.field).name} was deleted")
            value = <object>held  # keep a reference while it is written, whatever its buffer or __index__ does
            write_value(plan, step, value, out)
    except (TypeError, OverflowError, BufferError) as error:
        raise ValueError(f"{plan.spec.path}.{(<Field>step.field).name}: {error}")
    return write_rest(plan, <Message>message, out)


cdef int write_rest(Plan plan, Message message, WriteBuffer* out) except -1:
    """Write the tagged fields, which follow the others, and check that fields that the version lacks are defaults."""
    cdef Step* step = NULL
    cdef int at
    cdef PyObject* held
    try:
        for at in range(plan.present, plan.count):
            step = &plan.steps[at]
            held = slot_of(message, step.slot)[0]
            if held == NULL:
                raise ValueError(f"{plan.spec.path}.{(<Field>step.field).name} was deleted")
            if step.must_be_default and held != step.constant:
                if not (<Field>step.field).is_default(<object>held):
                    raise ValueError(f"{plan.spec.path} v{plan.version} has no {(<Field>step.field).name}")
    except (TypeError, OverflowError, BufferError) as error:
        raise ValueError(f"{plan.spec.path}.{(<Field>step.field).name}: {error}")
    if plan.flexible:
        write_tags(plan, message, out)
    elif message.unknown_tags:
        raise ValueError(f"{plan.spec.path} v{plan.version} has no tagged fields")
    return 0


cdef int write_tags(Plan plan, Message message, WriteBuffer* out) except -1:
    cdef Step* step
    cdef int at
    cdef uint32_t count = 0
    cdef object value
    cdef object unknown = message.unknown_tags or None
    for at in range(plan.present, plan.tagged):
        count += says_more_than_default(&plan.steps[at], message)
    if unknown is None:
        write_uvarint(out, count)
        if count == 0:
            return 0
    else:
        write_uvarint(out, count + <uint32_t>len(unknown))
        unknown = sorted(unknown.items())
    for at in range(plan.present, plan.tagged):
        step = &plan.steps[at]
        if unknown is not None:
            unknown = write_unknown_tags(plan, unknown, step.tag, out)
        if says_more_than_default(step, message):
            value = <object>slot_of(message, step.slot)[0]
            write_uvarint(out, step.tag)
            write_tagged(plan, step, value, out)
    if unknown is not None:
        write_unknown_tags(plan, unknown, 1 << 40, out)
    return 0


cdef bint says_more_than_default(Step* step, Message message) except -1:
    cdef PyObject* value = slot_of(message, step.slot)[0]
    return value != step.constant and not (<Field>step.field).is_default(<object>value)


cdef list write_unknown_tags(Plan plan, list entries, int64_t below, WriteBuffer* out):
    """Writes the leading entries whose tag is below, and answers the others."""
    cdef int at = 0
    for tag, content in entries:
        if tag >= below:
            if tag == below:
                raise ValueError(f"{plan.spec.path} v{plan.version} knows tag {tag}")
            break
        if not 0 <= tag <= 0xFFFFFFFF:
            raise ValueError(f"{tag} is no tag")
        write_uvarint(out, tag)
        write_uvarint(out, len(content))
        write_buffer(content, out)
        at += 1
    return entries[at:]


cdef int write_tagged(Plan plan, Step* step, object value, WriteBuffer* out) except -1:
    cdef size_t start = out.size
    try:
        if step.kind == STRUCT and step.nullable:
            write_uvarint(out, 0 if value is None else 1)
            if value is not None:
                write_struct(<Plan>step.plan, value, out)
        else:
            write_value(plan, step, value, out)
    except (TypeError, OverflowError, BufferError) as error:
        raise ValueError(f"{plan.spec.path}.{(<Field>step.field).name}: {error}")
    back_fill_uvarint(out, start)
    return 0


cdef int write_value(Plan plan, Step* step, object value, WriteBuffer* out) except -1:
    if step.kind <= UUID:
        return write_fixed(step.kind, value, out)
    if value is None:
        if not step.nullable:
            raise ValueError(f"{plan.spec.path} v{plan.version}: {(<Field>step.field).name} may not be null")
        if step.kind == STRUCT:
            return write_i8(out, -1)
        if step.compact:
            return write_uvarint(out, 0)
        return write_i16(out, -1) if step.kind == STRING else write_i32(out, -1)
    if step.kind == STRUCT:
        if step.nullable:
            write_i8(out, 1)
        return write_struct(<Plan>step.plan, value, out)
    if step.kind == STRING:
        return write_text(step, value, out)
    if step.kind == BYTES:
        return write_bytes(step, value, out)
    return write_array(plan, step, value, out)


cdef int write_fixed(Kind kind, object value, WriteBuffer* out) except -1:
    cdef int64_t number
    cdef double fraction
    cdef int overflow = 0
    if kind <= INT64:
        number = PyLong_AsLongLongAndOverflow(value, &overflow)
        if overflow or number < LOWEST[<int>kind] or number > HIGHEST[<int>kind]:
            raise ValueError(f"{value} is out of range")
        if kind <= INT8:
            return write_i8(out, <int>number)
        if kind <= UINT16:
            return write_i16(out, <int16_t>number)
        if kind <= UINT32:
            return write_i32(out, <int32_t>number)
        return write_i64(out, number)
    if kind == FLOAT64:
        fraction = PyFloat_AsDouble(value)
        memcpy(&number, &fraction, 8)
        return write_i64(out, number)
    if len(value) != 16:
        raise ValueError("a uuid has 16 bytes")
    return write_buffer(value, out)


cdef int write_size(Step* step, Kind kind, Py_ssize_t size, WriteBuffer* out) except -1:
    if size > 0x7FFFFFFF - 1:
        raise ValueError(f"{(<Field>step.field).name} is too large")
    if step.compact:
        return write_uvarint(out, <uint32_t>(size + 1))
    if kind == STRING:
        return write_i16(out, <int16_t>size)
    return write_i32(out, <int32_t>size)


cdef int write_text(Step* step, object value, WriteBuffer* out) except -1:
    cdef Py_ssize_t size
    cdef const char* text = PyUnicode_AsUTF8AndSize(value, &size)
    if size > STRING_SIZE_MAX:
        raise ValueError(f"{(<Field>step.field).name} is longer than {STRING_SIZE_MAX} bytes")
    write_size(step, STRING, size, out)
    return write_raw(out, text, size)


cdef int write_bytes(Step* step, object value, WriteBuffer* out) except -1:
    cdef Py_buffer view
    if type(value) is bytes:
        write_size(step, BYTES, PyBytes_GET_SIZE(value), out)
        return write_raw(out, PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value))
    PyObject_GetBuffer(value, &view, PyBUF_SIMPLE)
    try:
        write_size(step, BYTES, view.len, out)
        return write_raw(out, view.buf, view.len)
    finally:
        PyBuffer_Release(&view)


cdef int write_buffer(object value, WriteBuffer* out) except -1:
    cdef Py_buffer view
    PyObject_GetBuffer(value, &view, PyBUF_SIMPLE)
    try:
        return write_raw(out, view.buf, view.len)
    finally:
        PyBuffer_Release(&view)


cdef int write_array(Plan plan, Step* step, object value, WriteBuffer* out) except -1:
    cdef list items = value if type(value) is list else list(value)
    cdef Writer* writer = <Writer*>out
    writer.values_left -= PyList_GET_SIZE(items) * step.element_values
    if writer.values_left < 0:
        raise TooWide
    write_size(step, ARRAY, PyList_GET_SIZE(items), out)
    for item in items:
        write_element(plan, step, item, out)
    return 0


cdef int write_element(Plan plan, Step* step, object item, WriteBuffer* out) except -1:
    if step.element == STRUCT:
        return write_struct(<Plan>step.plan, item, out)
    if step.element <= UUID:
        return write_fixed(step.element, item, out)
    if step.element == STRING:
        return write_text(step, item, out)
    return write_bytes(step, item, out)


# -- entry points -------------------------------------------------------------------------------------------


class TooWide(Exception):
    """The arrays of a message have more values than the limit for one call."""


def encode(Message message, int version, bytes prefix=b"", int64_t values_max=INT64_MAX):
    """Return `prefix` and the message's bytes. Raise ValueError if this version cannot express a value, and TooWide if
    the arrays have more than `values_max` values, counted as in `decode`."""
    cdef Writer writer
    cdef WriteBuffer* out = &writer.buffer
    cdef Spec spec = type(message).SPEC
    cdef Plan plan = spec.plan(version)
    buffer_init(out)
    writer.values_left = values_max
    try:
        reserve(out, 256)
        write_raw(out, PyBytes_AS_STRING(prefix), PyBytes_GET_SIZE(prefix))
        write_struct(plan, message, out)
        return PyBytes_FromStringAndSize(<const char*>out.data, out.size)
    finally:
        buffer_free(out)


def decode(cls, int version, buffer, Py_ssize_t offset=0, int64_t values_max=INT64_MAX):
    """Return (message, position of the first byte after it). Raise Malformed, also for more than `values_max` values in
    arrays. An object counts for two values more than its fields, and an unknown tag for 16."""
    cdef Py_buffer view
    cdef Reader reader
    cdef Spec spec = cls.SPEC
    cdef Plan plan = spec.plan(version)
    cdef object message
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        if offset < 0 or offset > view.len:
            raise Malformed(f"{spec.path}: starts at {offset} of {view.len} bytes")
        cursor_init(&reader.cursor, <const uint8_t*>view.buf + offset, view.len - offset)
        reader.values_left = values_max
        message = read_struct(plan, &reader.cursor)
        return message, <Py_ssize_t>(reader.cursor.at - <const uint8_t*>view.buf)
    finally:
        PyBuffer_Release(&view)

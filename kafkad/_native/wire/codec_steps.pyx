"""The codec in steps: read, write and free wide messages in pieces, so that other requests run in between.

A message of 100,000 elements takes 0.1 s to decode, and as long to encode and to free. `Decoding`, `Encoding` and
`Remains` work in steps of about `values` values, counted as in `codec.decode`. They walk the same plans as codec.pyx
and read and write each value with its functions. Instead of recursing into arrays, they keep a stack of levels:

    struct  │ the message that is read or written, and its next field
    array   │ its list, and the next place; a step may end before any place
    struct  │ an element that has arrays itself
    ...

Elements without arrays, and tagged fields, are read or written in one go. The schema bounds their size; the limit of
values bounds unknown tags.

Beware: a message must not change between the steps that encode it. A message that is being decoded must not be used
before it is complete."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE, PyList_SET_ITEM
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF, Py_XDECREF
from libc.stdint cimport INT64_MAX, int64_t, uint8_t

from kafkad._native.wire.buffer cimport buffer_free, buffer_init, reserve, write_i8, write_raw
from kafkad._native.wire.codec cimport (
    ARRAY,
    STRUCT,
    Field,
    Message,
    Plan,
    Reader,
    Spec,
    Step,
    Writer,
    check_class,
    malformed,
    new_array,
    new_message,
    read_element,
    read_rest,
    read_size,
    read_value,
    slot_of,
    write_element,
    write_rest,
    write_size,
    write_value,
)
from kafkad._native.wire.primitives cimport KAFKAD_CHECK, cursor_init, read_i8

from kafkad._native.wire.malformed import Malformed


cdef extern from "Python.h":
    Py_ssize_t Py_REFCNT(PyObject* object)
    void Py_SET_SIZE(PyObject* object, Py_ssize_t size)


cdef enum:
    DEPTH_MAX = 32                      # nested structs and arrays; no schema has more than 10
    REMAINS_AT_LEAST = 64               # shorter lists are freed in one go, with their owner


cdef struct Level:
    PyObject* plan                      # the plan of the struct, or of the struct that has the array
    PyObject* holder                    # the message or list; `Decoding` or `Encoding` keeps it alive
    Step* array                         # NULL: a struct
    int64_t at                          # the next field or place
    int64_t count                       # number of places


# -- reading ------------------------------------------------------------------------------------------------


cdef class Decoding:
    """`Decoding(cls, version, frame, offset, values_max)`: reads a message like `codec.decode`, in steps."""

    cdef bytes frame
    cdef Message root                   # owns everything read so far; not visible outside before the end
    cdef Reader reader
    cdef Level[DEPTH_MAX] levels
    cdef int depth

    def __cinit__(self, cls, int version, bytes frame not None, Py_ssize_t offset=0, int64_t values_max=INT64_MAX):
        cdef Spec spec = cls.SPEC
        cdef Plan plan = spec.plan(version)
        cdef Py_ssize_t size = PyBytes_GET_SIZE(frame)
        if offset < 0 or offset > size:
            raise Malformed(f"{spec.path}: starts at {offset} of {size} bytes")
        self.frame = frame
        cursor_init(&self.reader.cursor, <const uint8_t*>PyBytes_AS_STRING(frame) + offset, <size_t>(size - offset))
        self.reader.values_left = values_max
        self.root = new_message(plan)
        self.open(plan, self.root, NULL, 0)

    @property
    def message(self):
        """The message, once `step` has returned True."""
        if self.depth or self.root is None:
            raise ValueError("this message has not been read to its end")
        return self.root

    def remains(self):
        """Return the `Remains` of what was read before Malformed."""
        cdef Level* level
        cdef Message root = self.root
        for depth in range(self.depth):
            level = &self.levels[depth]
            if level.array != NULL:
                Py_SET_SIZE(level.holder, level.at)     # the other places are empty
        self.depth = 0
        self.root = None
        return Remains(root)

    def step(self, int64_t values):
        """Read about `values` more values. Return whether the message is complete. After Malformed there is no message."""
        cdef Level* level
        cdef Plan plan
        while self.depth:
            level = &self.levels[self.depth - 1]
            plan = <Plan>level.plan
            if level.array != NULL:
                if values <= 0:
                    return False
                values -= self.read_places(plan, level, values)
            elif level.at < plan.present:
                level.at += 1
                self.read_field(plan, &plan.steps[level.at - 1], <Message>level.holder)
            else:
                read_rest(plan, <Message>level.holder, &self.reader.cursor)
                self.depth -= 1
        return True

    cdef int open(self, Plan plan, object holder, Step* array, int64_t count) except -1:
        cdef Level* level
        KAFKAD_CHECK(self.depth < DEPTH_MAX)
        level = &self.levels[self.depth]
        level.plan = <PyObject*>plan
        level.holder = <PyObject*>holder
        level.array = array
        level.at = 0
        level.count = count
        self.depth += 1
        return 0

    cdef int read_field(self, Plan plan, Step* step, Message message) except -1:
        cdef object value
        cdef int64_t count
        if step.kind == ARRAY:
            count = read_size(plan, step, ARRAY, &self.reader.cursor)
            if count >= 0:
                value = new_array(plan, step, count, &self.reader.cursor)
                fill(slot_of(message, step.slot), value)
                return self.open(plan, value, step, count)
            if not step.nullable:
                raise malformed(plan, step, "null where it may not be")
            value = None
        elif step.kind == STRUCT and (<Plan>step.plan).nests:
            if step.nullable and read_i8(&self.reader.cursor) < 0:
                value = None
            else:
                value = new_message(<Plan>step.plan)
                fill(slot_of(message, step.slot), value)
                return self.open(<Plan>step.plan, value, NULL, 0)
        else:
            value = read_value(plan, step, &self.reader.cursor)
        fill(slot_of(message, step.slot), value)
        return 0

    cdef int64_t read_places(self, Plan plan, Level* level, int64_t values) except -1:
        """Read elements of an array until they count for `values`, or up to one that needs its own level. Return the
        values that they count for."""
        cdef Step* step = level.array
        cdef bint nested = step.element == STRUCT and (<Plan>step.plan).nests
        cdef list items = <list>level.holder
        cdef object item
        cdef int64_t spent = 0
        while level.at < level.count and spent < values:
            item = new_message(<Plan>step.plan) if nested else read_element(plan, step, &self.reader.cursor)
            Py_INCREF(item)
            PyList_SET_ITEM(items, level.at, item)
            level.at += 1
            spent += step.element_values
            if nested:
                self.open(<Plan>step.plan, item, NULL, 0)
                return spent
        if level.at == level.count:
            self.depth -= 1
        return spent


cdef inline void fill(PyObject** place, object value) noexcept:
    """Set an empty slot."""
    cdef PyObject* before = place[0]
    Py_INCREF(value)
    place[0] = <PyObject*>value
    Py_XDECREF(before)


# -- writing ------------------------------------------------------------------------------------------------


cdef class Encoding:
    """`Encoding(message, version, prefix)`: writes a message like `codec.encode`, in pieces."""

    cdef Writer writer
    cdef list holders                   # keeps the holders of the levels alive
    cdef Level[DEPTH_MAX] levels
    cdef int depth

    def __cinit__(self, Message message not None, int version, bytes prefix=b""):
        cdef Spec spec = type(message).SPEC
        buffer_init(&self.writer.buffer)
        self.writer.values_left = INT64_MAX
        self.holders = []
        reserve(&self.writer.buffer, 256)
        write_raw(&self.writer.buffer, PyBytes_AS_STRING(prefix), PyBytes_GET_SIZE(prefix))
        self.open(spec.plan(version), message, NULL, 0)

    def __dealloc__(self):
        buffer_free(&self.writer.buffer)

    @property
    def ended(self):
        return self.depth == 0

    def step(self, int64_t values):
        """Return the bytes of about `values` more values. Raise ValueError if the version cannot express a value; there
        are no more bytes then."""
        cdef bytes piece
        while self.depth and self.go_on(&values):
            pass
        piece = PyBytes_FromStringAndSize(<const char*>self.writer.buffer.data, <Py_ssize_t>self.writer.buffer.size)
        self.writer.buffer.size = 0
        return piece

    cdef bint go_on(self, int64_t* values) except -1:
        cdef Level* level = &self.levels[self.depth - 1]
        cdef Plan plan = <Plan>level.plan
        if level.array != NULL:
            if values[0] <= 0:
                return False
            values[0] -= self.write_places(plan, level, values[0])
        elif level.at < plan.present:
            level.at += 1
            self.write_field(plan, &plan.steps[level.at - 1], <Message>level.holder)
        else:
            write_rest(plan, <Message>level.holder, &self.writer.buffer)
            self.shut()
        return True

    cdef int open(self, Plan plan, object holder, Step* array, int64_t count) except -1:
        cdef Level* level
        KAFKAD_CHECK(self.depth < DEPTH_MAX)
        self.holders.append(holder)
        level = &self.levels[self.depth]
        level.plan = <PyObject*>plan
        level.holder = <PyObject*>holder
        level.array = array
        level.at = 0
        level.count = count
        self.depth += 1
        return 0

    cdef int shut(self) except -1:
        self.depth -= 1
        self.holders.pop()
        return 0

    cdef int write_field(self, Plan plan, Step* step, Message message) except -1:
        cdef PyObject* held = slot_of(message, step.slot)[0]
        cdef Plan child
        cdef object value
        cdef list items
        if held == NULL:
            raise ValueError(f"{plan.spec.path}.{(<Field>step.field).name} was deleted")
        value = <object>held
        try:
            if value is not None and step.kind == ARRAY:
                items = value if type(value) is list else list(value)
                write_size(step, ARRAY, PyList_GET_SIZE(items), &self.writer.buffer)
                return self.open(plan, items, step, PyList_GET_SIZE(items))
            if value is not None and step.kind == STRUCT and (<Plan>step.plan).nests:
                child = <Plan>step.plan
                if step.nullable:
                    write_i8(&self.writer.buffer, 1)
                check_class(child, value)
                return self.open(child, value, NULL, 0)
            return write_value(plan, step, value, &self.writer.buffer)
        except (TypeError, OverflowError, BufferError) as error:
            raise ValueError(f"{plan.spec.path}.{(<Field>step.field).name}: {error}")

    cdef int64_t write_places(self, Plan plan, Level* level, int64_t values) except -1:
        """See `Decoding.read_places`."""
        cdef Step* step = level.array
        cdef bint nested = step.element == STRUCT and (<Plan>step.plan).nests
        cdef list items = <list>level.holder
        cdef object item
        cdef int64_t spent = 0
        try:
            while level.at < level.count and spent < values:
                if PyList_GET_SIZE(items) != level.count:
                    raise ValueError(f"{plan.spec.path}.{(<Field>step.field).name} changed while it was encoded")
                item = <object>PyList_GET_ITEM(items, level.at)
                level.at += 1
                spent += step.element_values
                if nested:
                    check_class(<Plan>step.plan, item)
                    self.open(<Plan>step.plan, item, NULL, 0)
                    return spent
                write_element(plan, step, item, &self.writer.buffer)
        except (TypeError, OverflowError, BufferError) as error:
            raise ValueError(f"{plan.spec.path}.{(<Field>step.field).name}: {error}")
        if level.at == level.count:
            self.shut()
        return spent


# -- freeing ------------------------------------------------------------------------------------------------


cdef class Remains:
    """`Remains(message)`: frees a message in steps. The caller drops its own reference; then `step` frees lists in
    pieces, except those that something else still refers to, directly or through their owner."""

    cdef Message root
    cdef list lists                     # the last one is emptied first

    def __cinit__(self, Message message not None):
        self.root = message
        self.lists = []

    def step(self, int64_t values):
        """Free about `values` elements more. Return whether everything is freed."""
        cdef list items
        cdef object item = self.root
        self.root = None
        if item is not None:
            self.take(<PyObject*>item)
        while self.lists:
            if values <= 0:
                return False
            items = <list>self.lists[PyList_GET_SIZE(self.lists) - 1]
            if PyList_GET_SIZE(items) == 0:
                self.lists.pop()
                continue
            item = items.pop()
            values -= 4
            if isinstance(item, Message):
                self.take(<PyObject*>item)
            item = None
        return True

    cdef int take(self, PyObject* message) except -1:
        """Take the long lists out of a message that only the caller refers to."""
        cdef Field field
        cdef PyObject** place
        if Py_REFCNT(message) > 1:
            return 0
        for field in (<Spec>type(<object>message).SPEC).fields:
            if field.kind != ARRAY and field.kind != STRUCT:
                continue
            place = slot_of(<object>message, field.slot)
            if place[0] == NULL or Py_REFCNT(place[0]) > 1:
                continue
            if field.kind == STRUCT:
                if isinstance(<object>place[0], Message):
                    self.take(place[0])
            elif type(<object>place[0]) is list and PyList_GET_SIZE(<object>place[0]) >= least_of(field):
                self.lists.append(<object>place[0])
                fill(place, None)
        return 0


cdef Py_ssize_t least_of(Field field) noexcept:
    """Return the shortest length at which a list is freed in steps. A short list of structs may hold long lists."""
    return 1 if field.element == STRUCT else REMAINS_AT_LEAST

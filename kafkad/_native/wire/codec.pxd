"""Declarations that the codec's modules share: the description of a message, and reading and writing one value
(codec.pyx)."""

from cpython.object cimport PyObject, PyTypeObject
from libc.stdint cimport int32_t, int64_t

from kafkad._native.wire.buffer cimport WriteBuffer
from kafkad._native.wire.primitives cimport Cursor


cdef enum Kind:
    BOOL
    INT8
    INT16
    UINT16
    INT32
    UINT32
    INT64
    FLOAT64
    UUID
    STRING
    BYTES
    STRUCT
    ARRAY


cdef struct Step:
    Kind kind
    Kind element
    bint compact
    bint nullable
    bint must_be_default  # the version lacks the field, and dropping another value would lose data
    bint has_constant     # an absent or tagged field starts as `constant`, otherwise as a fresh default
    int32_t tag
    Py_ssize_t slot
    PyObject* constant    # borrowed from the field
    PyObject* field       # borrowed: Field
    PyObject* plan        # borrowed: Plan of the struct or of the array's elements
    size_t element_size   # smallest size of an array's element in bytes
    int element_values    # values that an element adds to `values_left`


cdef struct Reader:
    Cursor cursor                        # must be first: the codec casts a Cursor* to Reader*
    int64_t values_left


cdef struct Writer:
    WriteBuffer buffer                   # must be first: the codec casts a WriteBuffer* to Writer*
    int64_t values_left


cdef class Spec


cdef class Field:
    cdef readonly str name
    cdef readonly str type
    cdef readonly object default         # None for null; [] for an array, a Message class for a struct
    cdef readonly Spec struct            # the struct's spec, or that of an array's elements
    cdef readonly tuple versions
    cdef readonly tuple nullable
    cdef readonly tuple tagged
    cdef readonly int tag
    cdef readonly bint ignorable
    cdef readonly bint never_compact
    cdef Kind kind
    cdef Kind element
    cdef Py_ssize_t slot
    cdef object empty_struct             # the default, for comparisons
    cdef object fresh_default(self)
    cdef bint is_default(self, object value) except -1


cdef class Plan


cdef class Spec:
    cdef readonly str path               # "MetadataResponse.Topics", for error messages
    cdef readonly tuple fields
    cdef readonly tuple versions
    cdef readonly tuple flexible
    cdef readonly object cls
    cdef dict by_name
    cdef list plans
    cdef Plan plan(self, int version)


cdef class Plan:
    cdef Spec spec
    cdef PyTypeObject* cls
    cdef int version
    cdef bint flexible
    cdef bint nests                     # it, or a struct in it, has arrays that are not tagged
    cdef Step* steps                    # [:present] in wire order, [present:tagged] by tag,
    cdef int present                    # [tagged:count] fields that this version lacks
    cdef int tagged
    cdef int count
    cdef size_t least_size
    cdef list children
    cdef frozenset other_tags           # tags that only other versions have
    cdef int prepare(self, Step* step, Field field) except -1
    cdef size_t size_at_least(self, Step* step) noexcept


cdef class Message:
    cdef public object unknown_tags


cdef Message new_message(Plan plan)
cdef object malformed(Plan plan, Step* step, str trouble)
cdef object read_value(Plan plan, Step* step, Cursor* c)
cdef int64_t read_size(Plan plan, Step* step, Kind kind, Cursor* c) except -2
cdef list new_array(Plan plan, Step* step, int64_t count, Cursor* c)
cdef object read_element(Plan plan, Step* step, Cursor* c)
cdef int read_rest(Plan plan, Message message, Cursor* c) except -1

cdef int check_class(Plan plan, object message) except -1
cdef int write_value(Plan plan, Step* step, object value, WriteBuffer* out) except -1
cdef int write_size(Step* step, Kind kind, Py_ssize_t size, WriteBuffer* out) except -1
cdef int write_element(Plan plan, Step* step, object item, WriteBuffer* out) except -1
cdef int write_rest(Plan plan, Message message, WriteBuffer* out) except -1


cdef inline PyObject** slot_of(object message, Py_ssize_t slot) noexcept:
    return <PyObject**>(<char*><PyObject*>message + slot)

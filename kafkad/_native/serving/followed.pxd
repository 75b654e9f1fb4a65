"""The partitions that a leader is asked for: see followed.pyx."""

from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t, uint8_t

from kafkad._native.log.partition cimport Partition
from kafkad._native.wire.buffer cimport WriteBuffer

cpdef enum:                        # states of a followed partition
    FETCHING = 0
    DELAYED = 1                     # after an error; until `resume`
    TRUNCATING = 2                  # Python finds out where to cut; until `resume`
    FAILED = 3                      # until the next leader epoch

cdef struct Followed:
    uint8_t topic_id[16]
    int32_t index
    int32_t leader_epoch
    PyObject* partition             # Partition, a reference
    int64_t asked_offset            # of the latest Fetch that named it; -1: none has since it was added or cut. An answer
    int32_t asked_epoch             # counts only if the log still ends there
    int32_t asked_last_epoch
    int64_t asked_start
    int64_t lag                     # the leader's HW less our LEO, -1: not known
    uint8_t state
    bint in_session                 # the leader's session has it
    bint listed                     # in `changed`
    bint held                       # by a throttle: it is not asked for now

# Sorts partitions by topic id and index, and writes them as the topics of a Fetch (v13 and later). Notes what it asks for.
cdef int followed_write(Followed** asked, int32_t count, int32_t partition_bytes, WriteBuffer* out) except -1

# Writes the keys, (topic id, index), as the forgotten topics of a Fetch, and empties the dict.
cdef int forgotten_write(dict forgotten, WriteBuffer* out) except -1

cdef class FollowedPartitions:
    cdef Followed** followed        # in the order of topic id and index
    cdef int32_t count, capacity
    cdef Followed** changed         # those that the next request must name, or tell the session to forget
    cdef int32_t changed_count, changed_capacity
    cdef int32_t truncating         # how many are in this state
    cdef dict forgotten             # keys: (topic id, index) that the session has, and the next request removes
    cdef list removed               # partitions removed during parsing: kept until it is over
    cdef Followed* current          # NULL: not asked for, or stopped or removed since
    cdef bint reading               # the buffer is being parsed

    cdef Followed* find(self, const uint8_t* topic_id, int32_t index) noexcept nogil
    cdef int32_t place_of(self, const uint8_t* topic_id, int32_t index) noexcept nogil
    cdef Followed* known(self, bytes topic_id, int32_t index) except? NULL
    cdef int follow(self, Partition partition, bytes topic_id, int32_t index, int32_t leader_epoch) except -1
    cdef bint restart(self, bytes topic_id, int32_t index) except -1
    cdef void enter(self, Followed* followed, uint8_t state) noexcept nogil
    cdef void list_changed(self, Followed* followed) noexcept nogil

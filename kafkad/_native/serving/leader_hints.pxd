"""Who leads a partition, for a client that has it wrong: see leader_hints.pyx."""

from libc.stdint cimport int16_t, int32_t, uint8_t, uint32_t

from kafkad._native.serving.connection cimport Slot
from kafkad._native.serving.fetch_state cimport Fetching
from kafkad._native.serving.partition_table cimport Entry
from kafkad._native.wire.errors cimport FENCED_LEADER_EPOCH, NOT_LEADER_OR_FOLLOWER

cdef enum:
    LEADER_TAG_SIZE = 12                # of a partition's tags with the current leader

cdef struct Hint:                       # of one partition's error in an answer
    uint32_t tag_at                     # where its list of tags stands, which is empty
    int32_t leader_id
    int32_t leader_epoch

cdef struct Hints:
    uint32_t count
    uint32_t capacity
    Hint* hints

cdef inline bint is_of_leader(int code) noexcept nogil:
    """Whether an error means that the client has the wrong leader, or a leader of before."""
    return code == NOT_LEADER_OR_FOLLOWER or code == FENCED_LEADER_EPOCH

# The leader of a partition, and its epoch. False: -1 and -1, it is not known.
cdef bint leader_of(Fetching self, Entry* entry, int32_t* leader_id, int32_t* leader_epoch) noexcept nogil

# A partition's tags, at `at`: the current leader alone, with this tag.
cdef void put_leader(uint8_t* at, uint8_t tag, int32_t leader_id, int32_t leader_epoch) noexcept nogil

# The tags of an answer that names these brokers, as clients of its listener reach them. None: it is not known how.
cdef object nodes_named(Fetching self, Slot* slot, set named)

# Makes `hints` if there are none yet, and notes the leader of this partition, if it is known.
cdef void hints_add(Hints** hints, Fetching self, Entry* entry, uint32_t tag_at) noexcept nogil
# Puts them into an answer that is whole otherwise: each partition's leader, and the nodes at the end.
cdef void hints_put(Hints* hints, Fetching self, Slot* slot) noexcept nogil
cdef void hints_free(Hints* hints) noexcept nogil

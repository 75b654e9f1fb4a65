"""Who leads a partition, for a client that has it wrong: see leader_hints.pyx."""

from libc.stdint cimport int16_t, int32_t, uint8_t, uint32_t

from kafkad._native.serving.connection cimport Conn, Slot
from kafkad._native.serving.fetch_state cimport Fetching
from kafkad._native.serving.partition_table cimport Entry, TopicKey
from kafkad._native.wire.errors cimport (
    FENCED_LEADER_EPOCH, NOT_LEADER_OR_FOLLOWER, UNKNOWN_TOPIC_ID, UNKNOWN_TOPIC_OR_PARTITION)

cdef enum:
    LEADER_TAG_SIZE = 12                # of a partition's tags with the current leader
    ELSEWHERE_MAX = 1024                # a look-up in Python's metadata takes a microsecond

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

# A request begins, which may ask `led_elsewhere` a bounded number of times.
cdef inline void begin_elsewhere(Fetching self) noexcept nogil:
    self.elsewhere_left = ELSEWHERE_MAX if <void*>self.elsewhere is not <void*>None else 0

# Whether the cluster has a partition that the table has not: other brokers have its replicas. `name_size` -1: `topic` is
# an id. The leader is -1 if it has none; and both are -1 if False. The caller has checked the client's rights.
cdef bint led_elsewhere(Fetching self, const void* topic, int32_t name_size, int32_t index, int32_t* leader_id,
                        int32_t* leader_epoch) noexcept nogil

# The key of a topic that the cluster has and the table has not, with its name and this id: a new reference. NULL: no such
# topic is known.
cdef TopicKey* key_elsewhere(Fetching self, const uint8_t* id) noexcept nogil

# Whether the client lacks this right to such a topic. False if it is not known: the client gets UNKNOWN_TOPIC_ID.
cdef bint is_denied_elsewhere(Fetching self, Conn* conn, const uint8_t* id, int right) noexcept nogil

# Whether the cluster has a topic with this id that the table has not.
cdef bint is_topic_elsewhere(Fetching self, const uint8_t* id) noexcept nogil

# The error of a partition that the table has not. `by_id`: the topic is not there, and was named by its id.
cdef inline int code_elsewhere(Fetching self, const void* topic, int32_t name_size, int32_t index, bint by_id) noexcept nogil:
    cdef int32_t leader_id, leader_epoch
    if led_elsewhere(self, topic, name_size, index, &leader_id, &leader_epoch):
        return NOT_LEADER_OR_FOLLOWER
    if by_id and not is_topic_elsewhere(self, <const uint8_t*>topic):
        return UNKNOWN_TOPIC_ID
    return UNKNOWN_TOPIC_OR_PARTITION

# A partition's tags, at `at`: the current leader alone, with this tag.
cdef void put_leader(uint8_t* at, uint8_t tag, int32_t leader_id, int32_t leader_epoch) noexcept nogil

# The tags of an answer that names these brokers, as clients of its listener reach them. None: it is not known how.
cdef object nodes_named(Fetching self, Slot* slot, set named)

# Makes `hints` if there are none yet, and notes the leader of this partition.
cdef void hints_add(Hints** hints, int32_t leader_id, int32_t leader_epoch, uint32_t tag_at) noexcept nogil
# Puts them into an answer that is whole otherwise: each partition's leader, and the nodes at the end.
cdef void hints_put(Hints* hints, Fetching self, Slot* slot) noexcept nogil
cdef void hints_free(Hints* hints) noexcept nogil

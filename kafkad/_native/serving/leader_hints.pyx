"""Hints for clients that asked the wrong broker (KIP-951), in the answers of Fetch and Produce.

An error that means "not the leader" names the leader and its epoch, and the answer ends with the leaders' addresses.

A Produce answer may be written long before one of its partitions fails. Then only its error code can be patched, because
there is no room for more. So the positions of the errors are noted (`Hints`). When the answer is sent, it is spread once,
from its end, to make room for all hints. An answer without such errors notes nothing."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, uint8_t, uint32_t
from libc.stdlib cimport calloc, free, qsort, realloc
from libc.string cimport memcpy, memmove

from kafkad._native.log.partition cimport Partition
from kafkad._native.serving.connection cimport Conn, core_failed, Slot, slot_extend
from kafkad._native.serving.fetch_state cimport Fetching
from kafkad._native.serving.partition_table cimport Entry, TopicKey, key_new, key_release
from kafkad._native.serving.topic_rights cimport may_topic
from kafkad._native.shared.watermarks cimport ROLE_NONE, Row
from kafkad._native.wire.primitives cimport KAFKAD_CHECK, put_i32

cdef enum:
    PRODUCE_LEADER_TAG = 0
    NODE_ENDPOINTS_TAG = 0              # of the answer
    LEADERS_MAX = 32                    # that one answer names: of the others its client asks Metadata
    NAME_SIZE_MAX = 249                 # of a topic
    TOPIC_ID_SIZE = 16


cdef bint leader_of(Fetching self, Entry* entry, int32_t* leader_id, int32_t* leader_epoch) noexcept nogil:
    cdef const Row* row
    leader_id[0] = -1
    leader_epoch[0] = -1
    if entry is NULL or self.broker_id < 0 or (<Partition>entry.partition).freshen():   # or its owner has gone
        return False
    row = (<Partition>entry.partition).row
    leader_id[0] = row.leader_id
    leader_epoch[0] = row.leader_epoch
    if leader_id[0] < 0 and leader_epoch[0] >= 0 and row.role == ROLE_NONE:
        return False                                    # nobody leads
    if leader_id[0] < 0:
        leader_id[0] = self.broker_id
    return True


cdef bint led_elsewhere(Fetching self, const void* topic, int32_t name_size, int32_t index, int32_t* leader_id,
                        int32_t* leader_epoch) noexcept nogil:
    leader_id[0] = -1
    leader_epoch[0] = -1
    if self.elsewhere_left == 0 or name_size > NAME_SIZE_MAX:
        return False
    self.elsewhere_left -= 1
    with gil:
        return ask_elsewhere(self, topic, name_size, index, leader_id, leader_epoch)


cdef bint ask_elsewhere(Fetching self, const void* topic, int32_t name_size, int32_t index, int32_t* leader_id,
                        int32_t* leader_epoch) noexcept:
    try:
        name = PyBytes_FromStringAndSize(<const char*>topic, TOPIC_ID_SIZE if name_size < 0 else name_size)
        found = self.elsewhere(name, name_size < 0, index)
        if found is not None:
            leader_id[0], leader_epoch[0] = found
        return found is not None
    except BaseException:
        core_failed(self.core, "looking up the leader of a partition")
        return False


cdef TopicKey* key_elsewhere(Fetching self, const uint8_t* id) noexcept nogil:
    if self.elsewhere_left == 0:
        return NULL
    self.elsewhere_left -= 1
    with gil:
        return ask_key(self, id)


cdef TopicKey* ask_key(Fetching self, const uint8_t* id) noexcept:
    cdef bytes name
    try:
        name = self.name_elsewhere(PyBytes_FromStringAndSize(<const char*>id, TOPIC_ID_SIZE))
    except BaseException:
        core_failed(self.core, "looking up the leader of a partition")
        return NULL
    if name is None:
        return NULL
    return key_new(&self.table.table, PyBytes_AS_STRING(name), <size_t>PyBytes_GET_SIZE(name), id)


cdef bint is_topic_elsewhere(Fetching self, const uint8_t* id) noexcept nogil:
    cdef TopicKey* key = key_elsewhere(self, id)
    if key is NULL:
        return False
    key_release(key)
    return True


cdef bint is_denied_elsewhere(Fetching self, Conn* conn, const uint8_t* id, int right) noexcept nogil:
    cdef TopicKey* key = key_elsewhere(self, id)
    cdef bint denied
    if key is NULL:
        return False
    denied = not may_topic(self.core, conn, NULL, key.name, key.name_size, right)
    key_release(key)
    return denied


cdef void put_leader(uint8_t* at, uint8_t tag, int32_t leader_id, int32_t leader_epoch) noexcept nogil:
    at[0] = 1                                           # one tag, of 9 bytes, without tags of its own
    at[1] = tag
    at[2] = 9
    put_i32(at + 3, leader_id)
    put_i32(at + 7, leader_epoch)
    at[11] = 0


cdef object nodes_named(Fetching self, Slot* slot, set named):
    if slot.conn.listener is NULL:
        return None
    listener = <object>slot.conn.listener
    named.discard(-1)
    if named == {self.broker_id}:
        return (<dict>self.nodes).get(listener)
    entries = [self.leader_nodes[listener, each] for each in sorted(named) if (listener, each) in self.leader_nodes]
    entries = entries[:LEADERS_MAX]
    if not entries:
        return None
    content = bytes((len(entries) + 1,)) + b"".join(entries)
    size = bytes((len(content) & 0x7F | 0x80, len(content) >> 7)) if len(content) > 0x7F else bytes((len(content),))
    return bytes((1, NODE_ENDPOINTS_TAG)) + size + content


# -- errors in an answer that is written already ------------------------------------------------------------------

cdef void hints_add(Hints** hints, int32_t leader_id, int32_t leader_epoch, uint32_t tag_at) noexcept nogil:
    cdef Hints* some = hints[0]
    if some is NULL:
        some = hints[0] = <Hints*>calloc(1, sizeof(Hints))
        KAFKAD_CHECK(some is not NULL)
    if some.count == some.capacity:
        some.capacity = max(<uint32_t>4, some.capacity * 2)
        some.hints = <Hint*>realloc(some.hints, some.capacity * sizeof(Hint))
        KAFKAD_CHECK(some.hints is not NULL)
    some.hints[some.count].tag_at = tag_at
    some.hints[some.count].leader_id = leader_id
    some.hints[some.count].leader_epoch = leader_epoch
    some.count += 1


cdef int by_place(const void* one, const void* other) noexcept nogil:
    cdef uint32_t a = (<const Hint*>one).tag_at, b = (<const Hint*>other).tag_at
    return (a > b) - (a < b)


cdef void hints_put(Hints* hints, Fetching self, Slot* slot) noexcept nogil:
    cdef uint32_t end = slot.size
    cdef uint32_t i = hints.count
    cdef uint32_t shift
    cdef const Hint* hint
    qsort(hints.hints, hints.count, sizeof(Hint), by_place)
    slot_extend(slot, hints.count * (LEADER_TAG_SIZE - 1))
    while i > 0:
        i -= 1
        hint = &hints.hints[i]
        shift = i * (LEADER_TAG_SIZE - 1)
        KAFKAD_CHECK(hint.tag_at < end and slot.data[hint.tag_at] == 0)
        memmove(slot.data + hint.tag_at + shift + LEADER_TAG_SIZE, slot.data + hint.tag_at + 1, end - hint.tag_at - 1)
        end = hint.tag_at
        put_leader(slot.data + hint.tag_at + shift, PRODUCE_LEADER_TAG, hint.leader_id, hint.leader_epoch)
    with gil:
        put_nodes_behind(hints, self, slot)


cdef void put_nodes_behind(Hints* hints, Fetching self, Slot* slot) noexcept:
    """In place of the answer's empty list of tags, which is its last byte."""
    cdef uint32_t i
    cdef size_t size
    named = set()
    for i in range(hints.count):
        named.add(hints.hints[i].leader_id)
    node = nodes_named(self, slot, named)
    if node is not None:
        slot.size -= 1
        size = <size_t>PyBytes_GET_SIZE(node)
        memcpy(slot_extend(slot, size), PyBytes_AS_STRING(node), size)


cdef void hints_free(Hints* hints) noexcept nogil:
    if hints is not NULL:
        free(hints.hints)
        free(hints)

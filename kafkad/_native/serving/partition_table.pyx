"""The partitions of this worker: the table in which Produce and Fetch look up without the GIL.

Topics are in two chained hash tables, by name and by id. A topic has an array of its partitions by index. Python adds
and removes. The reactor's C looks up, links its waiters to an entry, and gets every advance of a partition by
`table_advanced`, which only adds the entry to a list. The reactor serves the waiters when it has finished its current
work, for all advances of a turn at once.

With several workers, the entries of other workers' partitions are remote: their Partition is a reader. A waiter on one
listens (`table_listen`): it sets a bit in the shared row and looks once more, because the owner may have advanced in
between. The owner's advance takes the bits and notifies each worker, where `table_remote_advanced` finds the entry by
its row. A notification is for one advance: entries that still have waiters listen again.

Keys (`TopicKey`) have reference counts, because fetch sessions outlive topics. A removed entry answers its waiters, and
is freed at the start of a later turn, when no C frame can hold its address. Code that caches an address compares
`generation`. Beware: everything here belongs to the event loop's thread."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcmp, memcpy, memset

from kafkad._native.log.partition cimport Partition
from kafkad._native.log.partition_state cimport PARTITION_GONE, partition_listen
from kafkad._native.shared.watermarks cimport ROLE_LEADER, Row, kafkad_fence, kafkad_load
from kafkad._native.wire.primitives cimport KAFKAD_CHECK

import os

cdef extern from * nogil:
    """
    static inline uint64_t kafkad_mix(uint64_t a, uint64_t b) {
        unsigned __int128 product = (unsigned __int128)a * b;
        return (uint64_t)product ^ (uint64_t)(product >> 64);
    }
    """
    uint64_t kafkad_mix(uint64_t a, uint64_t b)

# Tells the garbage collector about the partitions in the entries, beside an object's own attributes. It clears nothing
# there: a cycle through a table is broken elsewhere, and the table then releases its partitions.
cdef extern from *:
    """
    static traverseproc kafkad_traverse_attributes;
    """
    ctypedef int (*visitproc)(PyObject* seen, void* context) noexcept
    ctypedef int (*traverseproc)(PyObject* self, visitproc visit, void* context) noexcept
    ctypedef struct PyTypeObject:
        traverseproc tp_traverse
    traverseproc kafkad_traverse_attributes

cdef extern from * nogil:
    """
    #define kafkad_exchange(p, v) __atomic_exchange_n((p), (v), __ATOMIC_SEQ_CST)
    """
    uint64_t kafkad_exchange(uint64_t* p, uint64_t value)

# Kafka's internal topics (org.apache.kafka.common.internals.Topic)
INTERNAL_TOPICS = frozenset(("__consumer_offsets", "__transaction_state", "__share_group_state"))


cdef enum:
    NAME_SIZE_MAX = 249                 # of a topic


cdef uint64_t hash_bytes(uint64_t seed, const void* data, size_t size) noexcept nogil:
    """Return a seeded hash, so that a client cannot choose names that collide."""
    cdef const uint8_t* at = <const uint8_t*>data
    cdef uint64_t hash = seed ^ (size * <uint64_t>0x9E3779B97F4A7C15)
    cdef uint64_t word
    while size >= 8:
        memcpy(&word, at, 8)
        hash = kafkad_mix(hash ^ word, seed | 1) ^ (hash >> 29)
        at += 8
        size -= 8
    if size:
        word = 0
        memcpy(&word, at, size)
        hash = kafkad_mix(hash ^ word, seed | 1) ^ (hash >> 29)
    return kafkad_mix(hash ^ <uint64_t>0xD6E8FEB86659FD93, <uint64_t>0xA0761D6478BD642F)


# -- keys --------------------------------------------------------------------------------------------------

cdef TopicKey* key_new(Table* table, const char* name, size_t name_size, const uint8_t* id) noexcept nogil:
    cdef TopicKey* key = <TopicKey*>malloc(sizeof(TopicKey) + name_size)
    KAFKAD_CHECK(key is not NULL)
    memset(key, 0, sizeof(TopicKey))
    key.references = 1
    if name is not NULL:
        key.has_name = True
        key.name_size = <uint32_t>name_size
        memcpy(key.name, name, name_size)
        key.name_hash = hash_bytes(table.seed, name, name_size)
    if id is not NULL:
        key.has_id = True
        memcpy(key.id, id, 16)
        key.id_hash = hash_bytes(table.seed, id, 16)
    return key


cdef void key_release(TopicKey* key) noexcept nogil:
    key.references -= 1
    if key.references == 0:
        free(key)


# -- lookups -----------------------------------------------------------------------------------------------

cdef bint same_name(const TopicKey* one, const TopicKey* other) noexcept nogil:
    """Compare names. A name too long for a topic is compared by its hash only: a request may compare 32 KB for each of
    64,000 partitions, none of which exists."""
    return one.name_hash == other.name_hash and one.name_size == other.name_size and (
        one.name_size > NAME_SIZE_MAX or memcmp(one.name, other.name, one.name_size) == 0)


cdef Topic* topic_by_key(Table* table, const TopicKey* key) noexcept nogil:
    cdef Topic* topic = table.by_name[key.name_hash & (table.buckets - 1)]
    while topic is not NULL and not same_name(topic.key, key):
        topic = topic.name_next
    return topic


cdef Topic* topic_by_name(Table* table, const char* name, size_t size) noexcept nogil:
    cdef uint64_t hash = hash_bytes(table.seed, name, size)
    cdef Topic* topic = table.by_name[hash & (table.buckets - 1)]
    while topic is not NULL:
        if topic.key.name_hash == hash and topic.key.name_size == size and memcmp(topic.key.name, name, size) == 0:
            return topic
        topic = topic.name_next
    return NULL


cdef Topic* topic_by_id(Table* table, const uint8_t* id) noexcept nogil:
    cdef uint64_t hash = hash_bytes(table.seed, id, 16)
    cdef Topic* topic = table.by_id[hash & (table.buckets - 1)]
    while topic is not NULL:
        if topic.key.has_id and memcmp(topic.key.id, id, 16) == 0:
            return topic
        topic = topic.id_next
    return NULL


# -- waiters -----------------------------------------------------------------------------------------------

cdef void watch_produce(Entry* entry, Watch* watch) noexcept nogil:
    """Add the waiter at the end: appends assign offsets, and the high watermark reaches them, in this order."""
    watch.entry = entry
    watch.next = NULL
    watch.previous = entry.last_produce
    if entry.last_produce is NULL:
        entry.produces = watch
    else:
        entry.last_produce.next = watch
    entry.last_produce = watch


cdef void watch_fetch(Entry* entry, Watch* watch) noexcept nogil:
    watch.entry = entry
    watch.previous = NULL
    watch.next = entry.fetches
    if entry.fetches is not NULL:
        entry.fetches.previous = watch
    entry.fetches = watch


cdef void unwatch(Watch* watch, bint is_produce) noexcept nogil:
    cdef Entry* entry = watch.entry
    if entry is NULL:
        return
    if watch.previous is not NULL:
        watch.previous.next = watch.next
    elif is_produce:
        entry.produces = watch.next
    else:
        entry.fetches = watch.next
    if watch.next is not NULL:
        watch.next.previous = watch.previous
    elif is_produce:
        entry.last_produce = watch.previous
    watch.entry = NULL
    watch.previous = NULL
    watch.next = NULL


cdef void ring_readers(Entry* entry) noexcept nogil:
    """Notify other workers that listen, and clear their bits, so that each is notified once. The fence pairs with the
    one in `partition_listen`: either the reader sees the write, or its bit is seen here."""
    cdef Row* row = (<Partition>entry.partition).row
    cdef uint64_t workers
    kafkad_fence()
    if row.waiters:
        workers = kafkad_exchange(&row.waiters, 0)
        if workers:
            entry.table.ring(entry.table.ring_context, <uint32_t>(<Partition>entry.partition).slot.number, workers)


cdef void table_advanced(void* context, void* partition, int why) noexcept nogil:
    """Handle `Partition.advanced`: note that waiters of this entry may be answered now."""
    cdef Entry* entry = <Entry*>context
    cdef Table* table = entry.table
    if table.ring is not NULL and not entry.remote:
        ring_readers(entry)
    if entry.produces is NULL and entry.fetches is NULL:
        return
    if not entry.advanced:
        entry.pending_next = table.pending
        table.pending = entry
    entry.advanced |= <uint32_t>why
    if table.wake is not NULL:
        table.wake(table.wake_context)


cdef inline int look(Entry* entry) noexcept nogil:
    cdef int why = (<Partition>entry.partition).look()
    if entry.produces is not NULL and (<Partition>entry.partition).row.role != ROLE_LEADER:
        why |= PARTITION_GONE
    return why


cdef void table_remote_advanced(Table* table, size_t row) noexcept nogil:
    cdef Entry* entry = entry_by_row(table, row)
    cdef int why
    if entry is NULL or not entry.remote:
        return
    why = look(entry)
    if why:
        table_advanced(<void*>entry, <void*>entry.partition, why)
    elif entry.produces is not NULL or entry.fetches is not NULL:
        table_listen(entry)


cdef void table_listen(Entry* entry) noexcept nogil:
    cdef int why
    partition_listen(<Partition>entry.partition, entry.table.me)
    why = look(entry)
    if why:
        table_advanced(<void*>entry, <void*>entry.partition, why)


cdef void table_owner_lost(Table* table, int owner) noexcept nogil:
    cdef size_t row
    cdef Entry* entry
    cdef Row* shared
    for row in range(table.row_capacity):
        entry = table.by_row[row]
        if entry is not NULL and entry.remote and (<Partition>entry.partition).owner == owner and (
                entry.produces is not NULL or entry.fetches is not NULL):
            table_listen(entry)
            # Reads go on with the version before a change. But if it has died in the middle of one, none follows.
            shared = (<Partition>entry.partition).shared
            if kafkad_load(&shared.sequence) & 1 or (<Partition>entry.partition).freshen() != 0:
                table_advanced(<void*>entry, <void*>entry.partition, PARTITION_GONE)


# -- topics ------------------------------------------------------------------------------------------------

cdef void table_link(Table* table, Topic* topic) noexcept nogil:
    cdef uint32_t name_bucket = <uint32_t>(topic.key.name_hash & (table.buckets - 1))
    cdef uint32_t id_bucket = <uint32_t>(topic.key.id_hash & (table.buckets - 1))
    topic.name_next = table.by_name[name_bucket]
    table.by_name[name_bucket] = topic
    if topic.key.has_id:
        topic.id_next = table.by_id[id_bucket]
        table.by_id[id_bucket] = topic


cdef void table_unlink(Table* table, Topic* topic) noexcept nogil:
    cdef Topic** link = &table.by_name[topic.key.name_hash & (table.buckets - 1)]
    while link[0] is not topic:
        link = &link[0].name_next
    link[0] = topic.name_next
    if topic.key.has_id:
        link = &table.by_id[topic.key.id_hash & (table.buckets - 1)]
        while link[0] is not topic:
            link = &link[0].id_next
        link[0] = topic.id_next


cdef void table_grow(Table* table) noexcept nogil:
    cdef Topic** old = table.by_name
    cdef uint32_t buckets = table.buckets
    cdef Topic* topic
    cdef Topic* following
    free(table.by_id)
    table.buckets = buckets * 2
    table.by_name = <Topic**>calloc(table.buckets, sizeof(Topic*))
    table.by_id = <Topic**>calloc(table.buckets, sizeof(Topic*))
    KAFKAD_CHECK(table.by_name is not NULL and table.by_id is not NULL)
    for i in range(buckets):
        topic = old[i]
        while topic is not NULL:
            following = topic.name_next
            table_link(table, topic)
            topic = following
    free(old)


cdef void note_row(Table* table, size_t row, Entry* entry) noexcept:
    cdef size_t capacity = max(row + 1, table.row_capacity * 2)
    cdef Entry** by_row
    if row >= table.row_capacity:
        by_row = <Entry**>realloc(table.by_row, capacity * sizeof(Entry*))
        KAFKAD_CHECK(by_row is not NULL)
        memset(by_row + table.row_capacity, 0, (capacity - table.row_capacity) * sizeof(Entry*))
        table.by_row = by_row
        table.row_capacity = capacity
    table.by_row[row] = entry


cdef void ring_python(void* context, uint32_t row, uint64_t workers) noexcept nogil:
    with gil:
        (<PartitionTable>context).ringing(row, workers)


cdef class PartitionTable:
    def __cinit__(self):
        memset(&self.table, 0, sizeof(Table))
        self.table.seed = int.from_bytes(os.urandom(8), "little") | 1
        self.table.buckets = 64
        self.table.by_name = <Topic**>calloc(self.table.buckets, sizeof(Topic*))
        self.table.by_id = <Topic**>calloc(self.table.buckets, sizeof(Topic*))
        if self.table.by_name is NULL or self.table.by_id is NULL:
            raise MemoryError
        self.partitions = {}

    def __dealloc__(self):
        cdef Topic* topic
        cdef Topic* following
        cdef Entry* entry
        while self.table.pending is not NULL:
            entry = self.table.pending
            self.table.pending = entry.pending_next
            if entry.removed:
                self.bury_entry(entry)
        for i in range(self.table.buckets):
            topic = self.table.by_name[i]
            while topic is not NULL:
                following = topic.name_next
                for j in range(topic.capacity):
                    if topic.entries[j] is not NULL:
                        self.detach(topic.entries[j])
                        self.bury_entry(topic.entries[j])
                key_release(topic.key)
                free(topic.entries)
                free(topic)
                topic = following
        self.bury()
        free(self.table.by_name)
        free(self.table.by_id)
        free(self.table.by_row)

    cdef void detach(self, Entry* entry) noexcept:
        cdef Partition partition = <Partition>entry.partition
        if partition.advanced_context is <void*>entry:
            partition.advanced = NULL
            partition.advanced_context = NULL

    cdef void bury_entry(self, Entry* entry) noexcept:
        key_release(entry.key)
        Py_DECREF(<object>entry.partition)
        free(entry)

    cdef void bury(self) noexcept:
        cdef Entry* entry
        while self.table.graveyard is not NULL:
            entry = self.table.graveyard
            self.table.graveyard = entry.pending_next
            self.bury_entry(entry)

    def add(self, Partition partition not None, str topic not None, bytes topic_id=None, *, internal=None):
        """Serve `partition` (its index is `partition.index`). ValueError if (topic, index) is there already, or the
        topic is there with another id: remove the old partitions first."""
        cdef bytes name = topic.encode()
        cdef const uint8_t* id = NULL
        cdef Topic* found = topic_by_name(&self.table, PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name))
        cdef int32_t index = partition.index
        cdef int32_t capacity
        cdef Entry** entries
        cdef Entry* entry
        if topic_id is not None:
            if len(topic_id) != 16:
                raise ValueError("a topic id has 16 bytes")
            if topic_id != bytes(16):
                id = <const uint8_t*>PyBytes_AS_STRING(topic_id)
        if index < 0 or not name:
            raise ValueError("a partition has a topic and an index that is not negative")
        if found is not NULL and (found.key.has_id != (id is not NULL) or (
                id is not NULL and memcmp(found.key.id, id, 16) != 0)):
            raise ValueError(f"topic {topic} is there with another id")
        if topic_entry(found, index) is not NULL:
            raise ValueError(f"partition {topic}-{index} is there already")
        if found is NULL:
            if id is not NULL and topic_by_id(&self.table, id) is not NULL:
                raise ValueError(f"the id of topic {topic} is another topic's")
            if self.table.topics >= self.table.buckets:
                table_grow(&self.table)
            found = <Topic*>calloc(1, sizeof(Topic))
            KAFKAD_CHECK(found is not NULL)
            found.key = key_new(&self.table, PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name), id)
            found.internal = (topic in INTERNAL_TOPICS) if internal is None else bool(internal)
            table_link(&self.table, found)
            self.table.topics += 1
        if index >= found.capacity:
            capacity = max(index + 1, found.capacity * 2)
            entries = <Entry**>realloc(found.entries, capacity * sizeof(Entry*))
            KAFKAD_CHECK(entries is not NULL)
            memset(entries + found.capacity, 0, (capacity - found.capacity) * sizeof(Entry*))
            found.entries = entries
            found.capacity = capacity
        entry = <Entry*>calloc(1, sizeof(Entry))
        KAFKAD_CHECK(entry is not NULL)
        Py_INCREF(partition)
        entry.partition = <PyObject*>partition
        entry.table = &self.table
        entry.key = key_retain(found.key)
        entry.index = index
        entry.internal = found.internal
        entry.remote = partition.owner >= 0
        if partition.slot.table is not None and partition.slot.table.shared:
            note_row(&self.table, partition.slot.number, entry)
        found.entries[index] = entry
        found.count += 1
        partition.advanced = table_advanced
        partition.advanced_context = <void*>entry
        self.table.generation += 1
        self.partitions[topic, index] = partition
        if self.table.ring is not NULL and not entry.remote:
            ring_readers(entry)                     # they may have listened to an owner that died

    def replace(self, str topic not None, int32_t index, Partition partition not None):
        """The owner changed to another worker, or to this one: answer the waiters from `partition` from now on."""
        cdef bytes name = topic.encode()
        cdef Topic* found = topic_by_name(&self.table, PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name))
        cdef bytes topic_id
        cdef bint internal
        if topic_entry(found, index) is NULL or partition.index != index:
            raise KeyError((topic, index))
        topic_id = PyBytes_FromStringAndSize(<char*>found.key.id, 16) if found.key.has_id else None
        internal = found.internal
        self.remove(topic, index)
        self.add(partition, topic, topic_id, internal=internal)

    def remote_advanced(self, size_t row) -> None:
        """Handle an owner's message: waiters for the partition with this row look again."""
        table_remote_advanced(&self.table, row)

    def owner_lost(self, int owner) -> None:
        """Worker `owner` has died: look for advances that it did not report."""
        table_owner_lost(&self.table, owner)

    def remove(self, str topic not None, int32_t index):
        """Stop serving it, and answer its waiters. KeyError if it is not there."""
        cdef bytes name = topic.encode()
        cdef Topic* found = topic_by_name(&self.table, PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name))
        cdef Entry* entry = topic_entry(found, index)
        cdef size_t row
        if entry is NULL:
            raise KeyError((topic, index))
        del self.partitions[topic, index]
        found.entries[index] = NULL
        found.count -= 1
        self.table.generation += 1
        self.detach(entry)
        entry.removed = True
        row = (<Partition>entry.partition).slot.number
        if entry_by_row(&self.table, row) is entry:
            self.table.by_row[row] = NULL
        if self.table.ring is not NULL and not entry.remote:
            ring_readers(entry)
        if entry.produces is not NULL or entry.fetches is not NULL:
            table_advanced(<void*>entry, entry.partition, PARTITION_GONE)
        if not entry.advanced:                     # otherwise the reactor frees it after answering its waiters
            entry.pending_next = self.table.graveyard
            self.table.graveyard = entry
        if found.count == 0:
            table_unlink(&self.table, found)
            self.table.topics -= 1
            key_release(found.key)
            free(found.entries)
            free(found)

    def mark_moving(self, str topic not None, int32_t index, bint moving) -> None:
        """Note whether another broker is about to lead it. Nothing happens if it is not there."""
        cdef bytes name = topic.encode()
        cdef Entry* entry = topic_entry(
            topic_by_name(&self.table, PyBytes_AS_STRING(name), PyBytes_GET_SIZE(name)), index)
        if entry is not NULL:
            entry.moving = moving

    def release_idle_readers(self) -> int:
        """Close files of other workers' partitions not read since the last call. Return the number of segments."""
        cdef Partition partition
        closed = 0
        for partition in self.partitions.values():
            if partition.owner >= 0:
                closed += partition.release_idle()
        return closed

    def ring_with(self, ring, int me) -> None:
        """Without mailboxes: call `ring(row, workers)` at each advance with listeners; `me` is our bit."""
        self.ringing = ring
        self.table.ring = NULL
        self.table.me = me
        if ring is not None:
            self.table.ring = ring_python
            self.table.ring_context = <void*>self

    def get(self, str topic not None, int32_t index):
        """Return the Partition, or None."""
        return self.partitions.get((topic, index))

    def get_by_id(self, bytes topic_id not None, int32_t index):
        """Return the Partition, or None."""
        cdef Entry* entry
        if len(topic_id) != 16:
            raise ValueError("a topic id has 16 bytes")
        entry = topic_entry(topic_by_id(&self.table, <const uint8_t*>PyBytes_AS_STRING(topic_id)), index)
        return None if entry is NULL else <object>entry.partition

    def __len__(self):
        return len(self.partitions)

    def __contains__(self, key):
        return key in self.partitions

    def __iter__(self):
        return iter(self.partitions)


cdef int visit_entries(PyObject* self, visitproc visit, void* context) noexcept:
    cdef Table* table = &(<PartitionTable>self).table
    cdef Topic* topic
    cdef Entry* entry
    cdef uint32_t bucket
    cdef int32_t index
    cdef int stop = kafkad_traverse_attributes(self, visit, context)
    for bucket in range(table.buckets):
        topic = table.by_name[bucket]
        while topic is not NULL:
            for index in range(topic.capacity):
                if topic.entries[index] is not NULL and stop == 0:
                    stop = visit(topic.entries[index].partition, context)
            topic = topic.name_next
    entry = table.graveyard
    while entry is not NULL and stop == 0:
        stop = visit(entry.partition, context)
        entry = entry.pending_next
    entry = table.pending
    while entry is not NULL and stop == 0:
        if entry.removed:
            stop = visit(entry.partition, context)
        entry = entry.pending_next
    return stop


kafkad_traverse_attributes = (<PyTypeObject*>PartitionTable).tp_traverse
(<PyTypeObject*>PartitionTable).tp_traverse = visit_entries

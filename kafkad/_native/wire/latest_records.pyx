"""Find the last record of each key in the batches of a compacted topic, for a coordinator that loads the topic.

    feed(bytes)  any thread, without the GIL: put batches into a hash table with one entry per key
    take(...)    the loop, some entries per turn: create Python objects for committed offsets, return the other records

A topic of commits has a million records of a few thousand keys, so after one pass in C little is left for Python.
`feed` stops before compressed, control and transactional batches; the caller handles them.

`take_records` returns all records as bytes, for topics without committed offsets (`has_offsets=False`).

Beware: use it from one thread at a time. Clients choose the keys, so the hash is keyed (SipHash-1-3), and no client can
make loading quadratic. Keys of OffsetCommit types 0 and 1 name the same offset and are stored as type 1."""

import os

from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcmp, memcpy

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.unicode cimport PyUnicode_DecodeUTF8

from kafkad._native.wire.batch cimport (
    COMPRESSION_MASK, CONTROL, HEADER_SIZE, LENGTH_OVERHEAD, TRANSACTIONAL,
)
from kafkad._native.wire.malformed import Malformed
from kafkad._native.wire.primitives cimport get_i16, get_i32, get_i64
from kafkad._native.wire.siphash cimport siphash
from kafkad._native.wire.batch_layout cimport (
    ATTRIBUTES_AT, LAST_OFFSET_DELTA_AT, LENGTH_AT, MAGIC_AT, RECORDS_COUNT_AT,
)

cdef extern from "record.h" nogil:
    ctypedef struct RecordView:
        int64_t timestamp_delta
        int32_t offset_delta
        int32_t key_size
        int32_t value_size
        int32_t headers_count
        const uint8_t* key
        const uint8_t* value
        const uint8_t* headers
    enum: RECORD_COMPLETE
    int record_read(const uint8_t* p, const uint8_t* end, RecordView* view, const uint8_t** next)

cdef enum:
    OK = 0
    NO_MEMORY = -1
    BAD_BATCH = -2
    BAD_RECORD = -3
    NO_KEY = -4

cdef enum:
    LEGACY_OFFSET_COMMIT = 0
    OFFSET_COMMIT = 1
    SLOTS_MIN = 256
    KEY_MAX = 1 << 17             # an offset's key has two strings of at most 32 KB, so it is never longer

cdef struct Entry:
    uint64_t hash
    int64_t offset                # the record's offset in the log
    uint8_t* data                 # the key, then the value
    uint32_t key_size
    int32_t value_size            # below 0: a tombstone
    uint32_t room                 # bytes at `data`


cdef class LatestRecords:
    """A table from key to last record. len() counts the keys that were not taken yet, including tombstones."""

    cdef Entry* entries
    cdef size_t count
    cdef size_t room
    cdef size_t taken
    cdef uint32_t* slots          # entry number + 1, 0: free
    cdef size_t slots_count       # a power of two
    cdef uint64_t seed0
    cdef uint64_t seed1
    cdef dict names
    cdef bint has_offsets         # the topic is `__consumer_offsets`: key types 0 and 1 name the same offset

    def __cinit__(self, bint has_offsets=True):
        self.names = {}
        self.has_offsets = has_offsets
        seed = os.urandom(16)
        self.seed0 = int.from_bytes(seed[:8], "little")
        self.seed1 = int.from_bytes(seed[8:], "little")
        self.slots_count = SLOTS_MIN
        self.slots = <uint32_t*>calloc(SLOTS_MIN, sizeof(uint32_t))
        if self.slots == NULL:
            raise MemoryError

    def __dealloc__(self):
        cdef size_t i
        for i in range(self.taken, self.count):
            free(self.entries[i].data)
        free(self.entries)
        free(self.slots)

    def __len__(self):
        return self.count - self.taken

    # -- the table

    cdef uint64_t hash_of(self, const uint8_t* key, size_t size) noexcept nogil:
        return siphash(self.seed0, self.seed1, key, size)

    cdef Entry* find(self, uint64_t hashed, const uint8_t* key, size_t size, size_t* slot) noexcept nogil:
        """Return the entry of a key. If there is none, return NULL and set `slot` to its place."""
        cdef size_t at = hashed & (self.slots_count - 1)
        cdef Entry* entry
        while self.slots[at]:
            entry = &self.entries[self.slots[at] - 1]
            if entry.hash == hashed and entry.key_size == size and memcmp(entry.data, key, size) == 0:
                return entry
            at = (at + 1) & (self.slots_count - 1)
        slot[0] = at
        return NULL

    cdef int widen(self) noexcept nogil:
        """Make room for one more entry."""
        cdef Entry* entries
        cdef uint32_t* slots
        cdef size_t count
        cdef size_t i
        cdef size_t at
        if self.count == self.room:
            count = self.room * 2 if self.room else 64
            entries = <Entry*>realloc(self.entries, count * sizeof(Entry))
            if entries == NULL:
                return NO_MEMORY
            self.entries = entries
            self.room = count
        if (self.count + 1) * 2 > self.slots_count:
            count = self.slots_count * 2
            if count > <size_t>1 << 31:
                return NO_MEMORY
            slots = <uint32_t*>calloc(count, sizeof(uint32_t))
            if slots == NULL:
                return NO_MEMORY
            for i in range(self.count):
                at = self.entries[i].hash & (count - 1)
                while slots[at]:
                    at = (at + 1) & (count - 1)
                slots[at] = <uint32_t>(i + 1)
            free(self.slots)
            self.slots = slots
            self.slots_count = count
        return OK

    cdef int put_c(
        self, const uint8_t* key, size_t key_size, const uint8_t* value, int32_t value_size, int64_t offset
    ) noexcept nogil:
        cdef uint8_t renamed[KEY_MAX]
        cdef Entry* entry
        cdef size_t slot = 0
        cdef size_t size = key_size + (value_size if value_size > 0 else 0)
        cdef uint64_t hashed
        cdef uint8_t* data
        if self.has_offsets and 2 <= key_size <= KEY_MAX and key[0] == 0 and key[1] == LEGACY_OFFSET_COMMIT:
            memcpy(renamed, key, key_size)
            renamed[1] = OFFSET_COMMIT
            key = renamed
        hashed = self.hash_of(key, key_size)
        entry = self.find(hashed, key, key_size, &slot)
        if entry == NULL:
            if self.widen() != OK:
                return NO_MEMORY
            self.find(hashed, key, key_size, &slot)   # the table may have grown
            data = <uint8_t*>malloc(size if size else 1)
            if data == NULL:
                return NO_MEMORY
            memcpy(data, key, key_size)
            entry = &self.entries[self.count]
            entry.hash = hashed
            entry.key_size = <uint32_t>key_size
            entry.data = data
            entry.room = <uint32_t>size
            self.count += 1
            self.slots[slot] = <uint32_t>self.count
        elif size > entry.room:
            data = <uint8_t*>realloc(entry.data, size)
            if data == NULL:
                return NO_MEMORY
            entry.data = data
            entry.room = <uint32_t>size
        entry.offset = offset
        entry.value_size = value_size
        if value_size > 0:
            memcpy(entry.data + key_size, value, value_size)
        return OK

    # -- filling the table

    cdef int put_records(self, const uint8_t* p, const uint8_t* end, int64_t base, int32_t count) noexcept nogil:
        cdef RecordView view
        cdef const uint8_t* next = NULL
        cdef int32_t i
        cdef int code
        for i in range(count):
            if record_read(p, end, &view, &next) != RECORD_COMPLETE:
                return BAD_RECORD
            if view.key_size < 0:
                return NO_KEY
            code = self.put_c(view.key, view.key_size, view.value, view.value_size, base + view.offset_delta)
            if code != OK:
                return code
            p = next
        return OK if p == end else BAD_RECORD

    cdef int feed_c(self, const uint8_t* data, size_t size, int64_t start_offset, size_t* at) noexcept nogil:
        cdef const uint8_t* p
        cdef int64_t length
        cdef int attributes
        cdef int code
        while size - at[0] >= HEADER_SIZE:
            p = data + at[0]
            length = get_i32(p + LENGTH_AT)
            if p[MAGIC_AT] != 2 or length < HEADER_SIZE - LENGTH_OVERHEAD or get_i32(p + RECORDS_COUNT_AT) < 0:
                return BAD_BATCH
            if <size_t>(length + LENGTH_OVERHEAD) > size - at[0]:
                break
            attributes = get_i16(p + ATTRIBUTES_AT)
            if get_i64(p) + get_i32(p + LAST_OFFSET_DELTA_AT) >= start_offset:
                if attributes & (COMPRESSION_MASK | TRANSACTIONAL | CONTROL):
                    break
                code = self.put_records(p + HEADER_SIZE, p + LENGTH_OVERHEAD + length, get_i64(p), get_i32(p + RECORDS_COUNT_AT))
                if code != OK:
                    return code
            at[0] += <size_t>(length + LENGTH_OVERHEAD)
        return OK

    def feed(self, const uint8_t[::1] data not None, size_t position=0, int64_t start_offset=0):
        """Add complete batches from `position` on, except those that end below `start_offset`. Stop before a compressed,
        transactional, control or incomplete batch, or at the end, and return that position. Raise Malformed."""
        cdef size_t size = data.shape[0]
        cdef size_t at = position
        cdef int code = OK
        if at <= size and size - at >= HEADER_SIZE:
            with nogil:
                code = self.feed_c(&data[0], size, start_offset, &at)
        if code != OK:
            raise_for(code, get_i64(&data[at]))
        return at

    def feed_records(self, const uint8_t[::1] data not None, int64_t base_offset, int32_t count):
        """Add the `count` uncompressed records of one batch. Raise Malformed."""
        cdef int code
        cdef uint8_t nothing = 0
        cdef const uint8_t* p = &data[0] if data.shape[0] else &nothing
        with nogil:
            code = self.put_records(p, p + data.shape[0], base_offset, count)
        if code != OK:
            raise_for(code, base_offset)

    def put(self, bytes key not None, bytes value, int64_t offset):
        """Add one record. A value of None is a tombstone."""
        cdef const uint8_t* bytes_of_value = NULL
        cdef int32_t size = -1
        if len(key) > INT32_MAX or (value is not None and len(value) > INT32_MAX):
            raise ValueError("a record is too long")
        if value is not None:
            bytes_of_value = value
            size = <int32_t>len(value)
        if self.put_c(key, len(key), bytes_of_value, size, offset) != OK:
            raise MemoryError

    def last(self, const uint8_t[::1] key not None):
        """Return (offset of a key's last record, whether it is a tombstone), or None if the key has no record."""
        cdef size_t slot = 0
        cdef uint8_t nothing = 0
        cdef const uint8_t* p = &key[0] if key.shape[0] else &nothing
        assert self.taken == 0, "what was taken cannot be looked up"
        cdef Entry* entry = self.find(self.hash_of(p, key.shape[0]), p, key.shape[0], &slot)
        return None if entry == NULL else (entry.offset, entry.value_size < 0)

    # -- emptying the table

    def take(self, size_t limit, dict groups not None, dict topics not None, make not None):
        """Remove up to `limit` entries. Nothing may be fed afterwards. Add committed offsets to `groups` (group -> topic ->
        partition -> offset) and to `topics` (topic -> groups); `make((offset, leader epoch, metadata, commit timestamp,
        expire timestamp, topic id, record's offset))` creates them. Leave out tombstones.

        Return the number of offsets, and the other records as (key, value, offset): records of other types, and those
        that do not parse here."""
        cdef list others = []
        cdef size_t last = min(self.taken + limit, self.count)
        cdef size_t made = 0
        cdef Entry* entry
        while self.taken < last:
            entry = &self.entries[self.taken]
            if entry.value_size >= 0:
                if take_offset(entry, groups, topics, self.names, make):
                    made += 1
                else:
                    others.append((
                        PyBytes_FromStringAndSize(<const char*>entry.data, entry.key_size),
                        PyBytes_FromStringAndSize(<const char*>entry.data + entry.key_size, entry.value_size),
                        entry.offset,
                    ))
            free(entry.data)
            entry.data = NULL
            self.taken += 1
        return made, others

    def take_records(self, size_t limit):
        """Remove up to `limit` entries, and return them as (key, value, offset) without tombstones. Nothing may be fed
        afterwards."""
        cdef list taken = []
        cdef size_t last = min(self.taken + limit, self.count)
        cdef Entry* entry
        while self.taken < last:
            entry = &self.entries[self.taken]
            if entry.value_size >= 0:
                taken.append((
                    PyBytes_FromStringAndSize(<const char*>entry.data, entry.key_size),
                    PyBytes_FromStringAndSize(<const char*>entry.data + entry.key_size, entry.value_size),
                    entry.offset,
                ))
            free(entry.data)
            entry.data = NULL
            self.taken += 1
        return taken


cdef int take_offset(Entry* entry, dict groups, dict topics, dict names, make) except -1:
    """Add a committed offset. Return False if the entry is not one of version 1, 3 or 4 as Kafka and kafkad write it."""
    cdef const uint8_t* p = entry.data
    cdef const uint8_t* end = p + entry.key_size
    cdef int32_t group_size
    cdef int32_t topic_size
    cdef const uint8_t* group_at
    cdef const uint8_t* topic_at
    cdef int32_t partition
    cdef int version
    cdef int64_t offset
    cdef int32_t leader_epoch = -1
    cdef int32_t metadata_size
    cdef const uint8_t* metadata_at
    cdef int64_t commit_timestamp
    cdef int64_t expire_timestamp = -1
    cdef const uint8_t* topic_id = NULL
    if end - p < 10 or p[0] != 0 or p[1] != OFFSET_COMMIT:
        return False
    group_size = get_i16(p + 2)
    group_at = p + 4
    if group_size < 0 or end - group_at < group_size + 6:
        return False
    topic_size = get_i16(group_at + group_size)
    topic_at = group_at + group_size + 2
    if topic_size < 0 or end - topic_at != topic_size + 4:
        return False
    partition = get_i32(topic_at + topic_size)

    p = end
    end = p + entry.value_size
    if end - p < 2 + 8:
        return False
    version = get_i16(p)
    offset = get_i64(p + 2)
    p += 10
    if version == 4 or version == 3:
        if end - p < 5:
            return False
        leader_epoch = get_i32(p)
        p += 4
    elif version != 1:
        return False
    if version == 4:
        metadata_size = p[0]          # length + 1, compact
        if metadata_size == 0 or metadata_size >= 0x80:
            return False
        metadata_size -= 1
        p += 1
    else:
        if end - p < 2:
            return False
        metadata_size = get_i16(p)
        p += 2
    metadata_at = p
    if metadata_size < 0 or end - p < metadata_size + 8:
        return False
    p += metadata_size
    commit_timestamp = get_i64(p)
    p += 8
    if version == 1:
        if end - p != 8:
            return False
        expire_timestamp = get_i64(p)
    elif version == 3:
        if p != end:
            return False
    elif end - p == 19 and p[0] == 1 and p[1] == 0 and p[2] == 16:   # one tag: the topic id
        topic_id = p + 3
    elif end - p != 1 or p[0] != 0:                                  # no tags
        return False

    try:
        group = PyUnicode_DecodeUTF8(<char*>group_at, group_size, NULL)
        topic = PyUnicode_DecodeUTF8(<char*>topic_at, topic_size, NULL)
        metadata = PyUnicode_DecodeUTF8(<char*>metadata_at, metadata_size, NULL) if metadata_size else ""
    except UnicodeDecodeError:
        return False
    group = names.setdefault(group, group)   # one object per name instead of one per offset
    topic = names.setdefault(topic, topic)
    committed = make((
        offset,
        leader_epoch,
        metadata,
        commit_timestamp,
        expire_timestamp,
        NO_TOPIC_ID if topic_id == NULL else PyBytes_FromStringAndSize(<const char*>topic_id, 16),
        entry.offset,
    ))
    its_groups = topics.get(topic)
    if its_groups is None:
        its_groups = topics[topic] = set()
    its_topics = groups.get(group)
    if its_topics is None:
        its_topics = groups[group] = {}
    partitions = (<dict?>its_topics).get(topic)
    if partitions is None:
        partitions = its_topics[topic] = {}
        (<set?>its_groups).add(group)
    (<dict?>partitions)[partition] = committed
    return True


NO_TOPIC_ID = bytes(16)


cdef int raise_for(int code, int64_t base_offset) except -1:
    if code == NO_MEMORY:
        raise MemoryError
    if code == NO_KEY:
        raise Malformed(f"a record of the batch at offset {base_offset} has no key")
    if code == BAD_RECORD:
        raise Malformed(f"the records of the batch at offset {base_offset} do not parse")
    raise Malformed(f"the batch at offset {base_offset} has an impossible length, count or magic")

"""The partitions that a replica_fetch.ReplicaFetch follows: which there are, what they wait for, and how a Fetch names them.

A Fetch names the partitions that `changed` since the last one, and the ones that its session must forget (KIP-227)."""

from cpython.bytes cimport PyBytes_AS_STRING
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport int32_t, uint8_t, uint32_t
from libc.stdlib cimport calloc, free, qsort, realloc
from libc.string cimport memcmp, memcpy, memmove

from kafkad._native.log.epochs cimport epochs_latest
from kafkad._native.log.partition cimport Partition
from kafkad._native.wire.buffer cimport WriteBuffer, write_i32, write_i64, write_i8, write_raw, write_uvarint
from kafkad._native.wire.primitives cimport KAFKAD_CHECK


cdef int by_place(const void* one, const void* other) noexcept nogil:
    cdef const Followed* a = (<const Followed* const*>one)[0]
    cdef const Followed* b = (<const Followed* const*>other)[0]
    cdef int order = memcmp(a.topic_id, b.topic_id, 16)
    return order if order else (a.index > b.index) - (a.index < b.index)


cdef int followed_write(Followed** asked, int32_t count, int32_t partition_bytes, WriteBuffer* out) except -1:
    cdef Followed* followed
    cdef Partition partition
    cdef int32_t i, j, k, last_epoch
    if count > 1:
        qsort(asked, count, sizeof(Followed*), by_place)
    i = 0
    j = 0
    while i < count:                                 # topics
        if i == 0 or memcmp(asked[i].topic_id, asked[i - 1].topic_id, 16) != 0:
            j += 1
        i += 1
    write_uvarint(out, j + 1)
    i = 0
    while i < count:
        j = i
        while j < count and memcmp(asked[i].topic_id, asked[j].topic_id, 16) == 0:
            j += 1
        write_raw(out, asked[i].topic_id, 16)
        write_uvarint(out, j - i + 1)
        for k in range(i, j):
            followed = asked[k]
            partition = <Partition>followed.partition
            last_epoch = epochs_latest(&partition.epochs.list)
            followed.asked_offset = partition.row.log_end_offset
            followed.asked_epoch = followed.leader_epoch
            followed.asked_last_epoch = last_epoch
            followed.asked_start = partition.row.log_start_offset
            followed.in_session = True
            followed.listed = False
            write_i32(out, followed.index)
            write_i32(out, followed.leader_epoch)
            write_i64(out, followed.asked_offset)
            write_i32(out, last_epoch)
            write_i64(out, followed.asked_start)
            write_i32(out, partition_bytes)
            write_i8(out, 0)
        write_i8(out, 0)
        i = j
    return 0


cdef int forgotten_write(dict forgotten, WriteBuffer* out) except -1:
    cdef dict by_topic = {}
    for topic_id, index in forgotten:
        by_topic.setdefault(topic_id, []).append(index)
    forgotten.clear()
    write_uvarint(out, <uint32_t>(len(by_topic) + 1))
    for topic_id, indexes in by_topic.items():
        write_raw(out, PyBytes_AS_STRING(topic_id), 16)
        write_uvarint(out, <uint32_t>(len(indexes) + 1))
        for index in indexes:
            write_i32(out, <int32_t>index)
        write_i8(out, 0)
    return 0


cdef class FollowedPartitions:
    """The partitions of one connection to a leader."""

    def __cinit__(self, *arguments, **options):
        self.forgotten = {}
        self.removed = []

    def __dealloc__(self):
        cdef int32_t i
        for i in range(self.count):
            Py_DECREF(<object>self.followed[i].partition)
            free(self.followed[i])
        free(self.followed)
        free(self.changed)

    cdef Followed* find(self, const uint8_t* topic_id, int32_t index) noexcept nogil:
        cdef int32_t at = self.place_of(topic_id, index)
        if at < self.count and self.followed[at].index == index and memcmp(self.followed[at].topic_id, topic_id, 16) == 0:
            return self.followed[at]
        return NULL

    cdef int32_t place_of(self, const uint8_t* topic_id, int32_t index) noexcept nogil:
        cdef int32_t low = 0, high = self.count, middle
        cdef int order
        while low < high:
            middle = low + (high - low) // 2
            order = memcmp(self.followed[middle].topic_id, topic_id, 16)
            if order < 0 or (order == 0 and self.followed[middle].index < index):
                low = middle + 1
            else:
                high = middle
        return low

    cdef Followed* known(self, bytes topic_id, int32_t index) except? NULL:
        if len(topic_id) != 16:
            raise ValueError("a topic id has 16 bytes")
        return self.find(<const uint8_t*>PyBytes_AS_STRING(topic_id), index)

    cdef int follow(self, Partition partition, bytes topic_id, int32_t index, int32_t leader_epoch) except -1:
        cdef Followed* followed = self.known(topic_id, index)
        cdef Followed** more
        cdef int32_t at, capacity
        if followed is not NULL:
            raise ValueError("this partition is followed already")
        if partition.epochs is None:
            raise ValueError("a reader's partition is not followed")
        if self.count == self.capacity:
            capacity = self.capacity * 2 if self.capacity else 8
            more = <Followed**>realloc(self.followed, capacity * sizeof(Followed*))
            if more is NULL:
                raise MemoryError()
            self.followed = more
            self.capacity = capacity
        if self.changed_capacity < self.capacity:
            more = <Followed**>realloc(self.changed, self.capacity * sizeof(Followed*))
            if more is NULL:
                raise MemoryError()
            self.changed = more
            self.changed_capacity = self.capacity
        followed = <Followed*>calloc(1, sizeof(Followed))
        if followed is NULL:
            raise MemoryError()
        memcpy(followed.topic_id, PyBytes_AS_STRING(topic_id), 16)
        followed.index = index
        followed.leader_epoch = leader_epoch
        followed.asked_offset = -1
        followed.lag = -1
        followed.partition = <PyObject*>partition
        Py_INCREF(partition)
        if self.forgotten.pop((topic_id, index), None):
            followed.in_session = True
        at = self.place_of(followed.topic_id, index)
        memmove(&self.followed[at + 1], &self.followed[at], (self.count - at) * sizeof(Followed*))
        self.followed[at] = followed
        self.count += 1
        self.list_changed(followed)
        return 0

    def remove(self, bytes topic_id not None, int32_t index):
        """Return whether it was followed. Its log is not used any more."""
        cdef Followed* followed = self.known(topic_id, index)
        cdef int32_t at, i
        if followed is NULL:
            return False
        at = self.place_of(followed.topic_id, index)
        self.count -= 1
        self.truncating -= followed.state == TRUNCATING
        memmove(&self.followed[at], &self.followed[at + 1], (self.count - at) * sizeof(Followed*))
        if followed.listed:
            for i in range(self.changed_count):
                if self.changed[i] is followed:
                    self.changed_count -= 1
                    self.changed[i] = self.changed[self.changed_count]
                    break
        if followed.in_session:
            self.forgotten[topic_id, index] = True
        if self.current is followed:
            self.current = NULL
        if self.reading:                        # one of its methods may have called us
            self.removed.append(<object>followed.partition)
        Py_DECREF(<object>followed.partition)
        free(followed)
        return True

    cdef bint restart(self, bytes topic_id, int32_t index) except -1:
        # Continues a partition that stopped. Returns whether it is followed.
        cdef Followed* followed = self.known(topic_id, index)
        if followed is NULL:
            return False
        self.enter(followed, FETCHING)
        followed.asked_offset = -1              # the current answer is ignored
        if self.current is followed:
            self.current = NULL
        self.list_changed(followed)
        return True

    def stop(self, bytes topic_id not None, int32_t index, int state):
        """Do not fetch a partition until `resume`, or until it is removed and added again."""
        cdef Followed* followed = self.known(topic_id, index)
        KAFKAD_CHECK(DELAYED <= state <= FAILED)
        if followed is not NULL:
            self.enter(followed, <uint8_t>state)
            if self.current is followed:
                self.current = NULL
            self.list_changed(followed)

    def state_of(self, bytes topic_id not None, int32_t index):
        """Return (state, leader epoch, lag or -1), or None if it is not followed."""
        cdef Followed* followed = self.known(topic_id, index)
        return None if followed is NULL else (followed.state, followed.leader_epoch, followed.lag)

    def __len__(self):
        return self.count

    cdef void enter(self, Followed* followed, uint8_t state) noexcept nogil:
        self.truncating += (state == TRUNCATING) - (followed.state == TRUNCATING)
        followed.state = state

    cdef void list_changed(self, Followed* followed) noexcept nogil:
        if not followed.listed:
            KAFKAD_CHECK(self.changed_count < self.changed_capacity)
            followed.listed = True
            self.changed[self.changed_count] = followed
            self.changed_count += 1

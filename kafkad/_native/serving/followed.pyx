"""Followed partitions in a Fetch: those to read, and those that the session forgets (replica_fetch.pyx)."""

from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport int32_t, uint32_t
from libc.stdlib cimport qsort
from libc.string cimport memcmp

from kafkad._native.log.epochs cimport epochs_latest
from kafkad._native.log.partition cimport Partition
from kafkad._native.wire.buffer cimport WriteBuffer, write_i32, write_i64, write_i8, write_raw, write_uvarint


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

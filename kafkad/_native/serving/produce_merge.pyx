"""Partitions and topics that a Produce names twice (KafkaApis.handleProduceRequest).

Kafka collects a request in a map by topic and partition. So a partition that is named twice is appended once, with the
records named last, and has one entry in the answer. A topic that is named twice has one entry, too, and a topic without
partitions has none. Records that fail ProduceRequest.validateRecords are in a second map, which overrides the first in
the answer: such a partition answers INVALID_RECORD although Kafka has appended its valid records. Here nothing is
appended then, because an error must mean that nothing was appended.

No known client does this, so produce.pyx calls this module only for a request that needs merging. The work is linear:
two open-addressing tables, seeded like the partition table against names chosen to collide."""

from libc.stddef cimport size_t
from libc.stdint cimport int16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp

from kafkad._native.serving.partition_table cimport hash_bytes
from kafkad._native.serving.produce_state cimport Part, TopicParts
from kafkad._native.wire.primitives cimport KAFKAD_CHECK


cdef inline size_t table_size(uint32_t count) noexcept nogil:
    cdef size_t size = 16
    while size < <size_t>count * 2:
        size *= 2
    return size


cdef inline bint same_name(const TopicParts* one, const TopicParts* other) noexcept nogil:
    return one.name_size == other.name_size and memcmp(
        one.name, other.name, 16 if one.name_size < 0 else <size_t>one.name_size) == 0


cdef void find_first_topics(uint64_t seed, const TopicParts* topics, uint32_t count, uint32_t* first) noexcept nogil:
    """For each topic, find the number of the first one with the same name."""
    cdef size_t mask = table_size(count) - 1, at
    cdef uint32_t* table = <uint32_t*>calloc(mask + 1, sizeof(uint32_t))     # number + 1
    cdef uint32_t i
    KAFKAD_CHECK(table is not NULL)
    for i in range(count):
        at = hash_bytes(seed, topics[i].name, 16 if topics[i].name_size < 0 else <size_t>topics[i].name_size) & mask
        while table[at] and not same_name(&topics[table[at] - 1], &topics[i]):
            at = (at + 1) & mask
        if table[at] == 0:
            table[at] = i + 1
        first[i] = table[at] - 1
    free(table)


cdef void merge_parts(uint64_t seed, int16_t version, TopicParts* topics, uint32_t* topic_count, Part* parts,
                      uint32_t* part_count, InvalidFunction invalid) noexcept nogil:
    cdef uint32_t topics_before = topic_count[0], parts_before = part_count[0]
    cdef size_t mask = table_size(parts_before) - 1, at
    cdef uint32_t* first = <uint32_t*>malloc((<size_t>topics_before + 1) * sizeof(uint32_t))
    cdef uint32_t* owner = <uint32_t*>malloc((<size_t>parts_before + 1) * sizeof(uint32_t))
    cdef uint32_t* table = <uint32_t*>calloc(mask + 1, sizeof(uint32_t))     # number + 1
    cdef Part* merged = <Part*>malloc((<size_t>parts_before + 1) * sizeof(Part))
    cdef uint32_t kept = 0, used = 0, i, j
    cdef uint64_t key
    cdef Part* part
    cdef Part* there
    KAFKAD_CHECK(first is not NULL and owner is not NULL and table is not NULL and merged is not NULL)
    find_first_topics(seed, topics, topics_before, first)
    for i in range(topics_before):
        for j in range(topics[i].first, topics[i].first + topics[i].count):
            part = &parts[j]
            key = <uint64_t>first[i] << 32 | <uint32_t>part.index
            at = hash_bytes(seed, &key, 8) & mask
            while table[at] and not (owner[table[at] - 1] == first[i] and merged[table[at] - 1].index == part.index):
                at = (at + 1) & mask
            if table[at] == 0:
                owner[kept] = first[i]
                merged[kept] = part[0]
                kept += 1
                table[at] = kept
            else:
                there = &merged[table[at] - 1]
                if invalid(part, version) or not invalid(there, version):
                    there[0] = part[0]
    # Copies back to the arrays of the request, by topic in the order of their first names.
    for i in range(topics_before):
        topics[i].count = 0
    for j in range(kept):
        topics[owner[j]].count += 1
    for i in range(topics_before):
        topics[i].first = used
        used += topics[i].count
        first[i] = topics[i].first
    for j in range(kept):
        parts[first[owner[j]]] = merged[j]
        first[owner[j]] += 1
    used = 0
    for i in range(topics_before):
        if topics[i].count:
            topics[used] = topics[i]
            used += 1
    topic_count[0] = used
    part_count[0] = kept
    free(first)
    free(owner)
    free(table)
    free(merged)

"""Partitions and topics that a Produce names twice. See produce_merge.pyx."""

from libc.stdint cimport int16_t, uint32_t, uint64_t

from kafkad._native.serving.produce_state cimport Part, TopicParts

ctypedef bint (*InvalidFunction)(const void* part, int16_t version) noexcept nogil

# Removes topics without partitions, and merges repeated topics and repeated partitions. In place; updates the counts.
# The last records of a partition are kept, unless some are `invalid`: then the last of those.
cdef void merge_parts(uint64_t seed, int16_t version, TopicParts* topics, uint32_t* topic_count, Part* parts,
                      uint32_t* part_count, InvalidFunction invalid) noexcept nogil

"""Replicas near a consumer: see near_replicas.pyx."""

from libc.stdint cimport uint8_t, uint32_t

from kafkad._native.log.partition cimport Partition
from kafkad._native.serving.fetch_state cimport Fetching, Result
from kafkad._native.serving.partition_table cimport Entry

# The number of a consumer's rack; 0: none that a replica could be in, or ours.
cdef uint32_t rack_number(Fetching self, const uint8_t* name, size_t size) noexcept nogil

# Whether the consumer is to read from a follower in its rack: then `result` says so, and holds no records.
cdef bint find_near(uint32_t rack, Entry* entry, Partition partition, Result* result) noexcept nogil

"""A partition's hot state: see partition.pyx, and partition_state.pyx for the layers that it is made of."""

from kafkad._native.log.partition_runs cimport PartitionRuns

cdef class Partition(PartitionRuns):
    pass

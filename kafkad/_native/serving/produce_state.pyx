"""What is known of a Produce at hand, and of those that wait: the structs are in produce_state.pxd, each with its owner."""

from libc.stdlib cimport free

from kafkad._native.serving.partition_table cimport PartitionTable


cdef class Producing:
    def __cinit__(self, PartitionTable table not None):
        self.table = table
        self.unpacking = {}

    def __dealloc__(self):
        free(self.parts)
        free(self.outcomes)
        free(self.topics)
        free(self.waits)

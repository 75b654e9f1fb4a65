"""The state of the current Produce and of waiting ones. produce_state.pxd has the structs, each with its owner."""

from libc.stdlib cimport free

from kafkad._native.serving.partition_table cimport PartitionTable
from kafkad._native.wire.message_set cimport WholeSets


cdef class Producing:
    def __cinit__(self, PartitionTable table not None):
        self.table = table
        self.unpacking = {}
        self.moving = []
        self.sets = WholeSets()

    def __dealloc__(self):
        free(self.parts)
        free(self.outcomes)
        free(self.topics)
        free(self.waits)

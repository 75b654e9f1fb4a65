"""The shared table of partition rows: 256 bytes each, one writer, read by every worker without a lock.

The table is a memfd mapped MAP_SHARED, so that forked workers share it (Docker's /dev/shm has 64 MB, and a memfd goes
with the last process). Its address space is reserved for `capacity` rows at once; memory comes with the first touch.
What stands in a row, and how it is written under its sequence number, is partition.pxd's."""

import os

cimport cython
from libc.stdint cimport uint8_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

cdef extern from "<sys/mman.h>" nogil:
    void* mmap(void* address, size_t length, int protection, int flags, int fd, long offset)
    int munmap(void* address, size_t length)
    void* MAP_FAILED
    enum: PROT_READ, PROT_WRITE, MAP_SHARED, MAP_NORESERVE

cdef enum:
    ROW_SIZE = 256


@cython.no_gc                   # a row goes back to its table also when both are found to be garbage together
cdef class WatermarkTable:
    def __cinit__(self, size_t capacity=1 << 18):
        cdef void* map
        self.fd = os.memfd_create("kafkad-watermarks", os.MFD_CLOEXEC)
        os.ftruncate(self.fd, capacity * ROW_SIZE)
        map = mmap(NULL, capacity * ROW_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, self.fd, 0)
        if map == MAP_FAILED:
            raise MemoryError("no address space for the watermark table")
        self.base = <uint8_t*>map
        self.capacity = capacity
        self.free_rows = []

    def __dealloc__(self):
        if self.base != NULL:
            munmap(self.base, self.capacity * ROW_SIZE)
            os.close(self.fd)

    def allocate(self) -> RowSlot:
        """A zeroed row; it returns to the table with the slot object."""
        cdef RowSlot slot = RowSlot.__new__(RowSlot)
        cdef size_t number
        if self.free_rows:
            number = self.free_rows.pop()
        elif self.used < self.capacity:
            number = self.used
            self.used += 1
        else:
            raise MemoryError("the watermark table is full")
        slot.table = self
        slot.number = number
        slot.at = self.base + number * ROW_SIZE
        memset(slot.at, 0, ROW_SIZE)
        return slot


@cython.no_gc
cdef class RowSlot:
    """One row. Made by `WatermarkTable.allocate` or `private_row`, never by hand."""

    def __dealloc__(self):
        if self.owned:
            free(self.at)
        elif self.table is not None:
            self.table.free_rows.append(self.number)


def private_row() -> RowSlot:
    """A row outside of any table: the metadata log's, a tool's, a test's."""
    cdef RowSlot slot = RowSlot.__new__(RowSlot)
    slot.at = <uint8_t*>calloc(1, ROW_SIZE)
    slot.owned = True
    if slot.at == NULL:
        raise MemoryError()
    return slot

"""The shared table of partition rows: see watermarks.pyx."""

from libc.stdint cimport uint8_t

cdef class WatermarkTable:
    cdef uint8_t* base
    cdef readonly size_t capacity
    cdef readonly size_t used
    cdef readonly int fd
    cdef list free_rows

cdef class RowSlot:
    cdef WatermarkTable table       # None: the row is private to this process
    cdef readonly size_t number
    cdef uint8_t* at                # 256 bytes, a partition.Row
    cdef bint owned                 # `at` is heap memory of this slot's

"""Key -> last offset, in a fixed amount of memory: see offset_map.pyx."""

from libc.stdint cimport int64_t, uint8_t, uint64_t


cdef struct Hashed:
    uint64_t low
    uint64_t high


cdef struct Slot:
    Hashed key
    int64_t last                    # offset + 1; 0: the slot is free


cdef class OffsetMap:
    cdef Slot* table
    cdef readonly uint64_t slots
    cdef readonly uint64_t size     # keys in it
    cdef readonly uint64_t size_max
    cdef public int64_t latest_offset
    cdef Hashed seed

    cdef Slot* slot_of(self, Hashed hashed) noexcept nogil
    cdef Hashed hash_of(self, const uint8_t* key, size_t size) noexcept nogil
    cdef void prefetch(self, Hashed hashed) noexcept nogil
    # False when the map is full; then nothing changed.
    cdef bint put_hashed(self, Hashed hashed, int64_t offset) noexcept nogil
    # -1 when the key is not in the map.
    cdef int64_t get_hashed(self, Hashed hashed) noexcept nogil

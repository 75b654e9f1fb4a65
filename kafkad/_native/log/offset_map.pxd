"""Key -> last offset, in a fixed amount of memory: see offset_map.pyx."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

from kafkad._native.wire.batch cimport HEADER_SIZE


cdef struct Hashed:
    uint64_t low
    uint64_t high


cdef struct Slot:
    Hashed key
    int64_t last                    # offset + 1; 0: the slot is free


cdef struct Head:
    int64_t segment                 # base offset
    int64_t position
    uint8_t bytes[HEADER_SIZE]


cdef enum Fate:                     # of all records of a batch
    UNKNOWN = 0                     # look at each
    ALL_GO = 1
    ALL_STAY = 2                    # and none is a tombstone


cdef class OffsetMap:
    cdef Slot* table
    cdef readonly uint64_t slots
    cdef readonly uint64_t size     # number of keys
    cdef readonly uint64_t size_max
    cdef public int64_t latest_offset
    cdef Hashed seed
    # One bit for each offset from `followed_from` on.
    cdef int64_t followed_from
    cdef uint64_t followed          # how many
    cdef int64_t followed_to        # the last offset that was seen; they only grow
    cdef uint64_t* outdated         # a later record has its key
    cdef uint64_t* ordinary         # at a batch's first offset: each of its records has a key and a value
    # The headers of large batches, in order, so that the second pass need not read them.
    cdef Head* heads
    cdef readonly size_t heads_count
    cdef size_t heads_room
    cdef size_t heads_next          # those before were passed

    cdef Slot* slot_of(self, Hashed hashed) noexcept nogil
    cdef Hashed hash_of(self, const uint8_t* key, size_t size) noexcept nogil
    cdef void prefetch(self, Hashed hashed) noexcept nogil
    # False if the map is full; then nothing has changed.
    cdef bint put_hashed(self, Hashed hashed, int64_t offset) noexcept nogil
    # -1 if the key is not in the map.
    cdef int64_t get_hashed(self, Hashed hashed) noexcept nogil

    cdef void stop_following(self) noexcept nogil
    # The records of one batch were put, in this order: `note_offset` of each, then `note_batch`.
    cdef void note_offset(self, int64_t offset, int64_t base_offset, int64_t last_offset) noexcept nogil
    cdef void note_batch(self, int64_t base_offset, bint is_ordinary) noexcept nogil
    # Whether `is_outdated` may be asked of the offsets between these.
    cdef bint follows(self, int64_t base_offset, int64_t last_offset) noexcept nogil
    cdef bint is_outdated(self, int64_t offset) noexcept nogil
    cdef void note_head(self, int64_t segment, int64_t position, const uint8_t* data) noexcept nogil
    # NULL: it was not noted. Positions only grow.
    cdef const uint8_t* head_at(self, int64_t segment, int64_t position) noexcept nogil
    cdef Fate fate(self, int64_t base_offset, int64_t last_offset, int32_t records) noexcept nogil

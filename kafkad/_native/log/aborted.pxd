"""The index of aborted transactions beside a segment: see aborted.pyx."""

from libc.stdint cimport int64_t, uint8_t

from kafkad._native.log.segments cimport Segment

cdef enum:
    ABORTED_SIZE = 34               # bytes of an entry
    TOLD_AT = 2                     # the part of it that a Fetch answer carries: producer id and first offset
    TOLD_SIZE = 16

cdef struct Aborted:                # result of a search; the caller frees `entries`
    uint8_t* entries                # ABORTED_SIZE bytes each, as in the files; NULL: none
    int64_t count
    int64_t capacity

# Appends one entry to the index of the segment; the first entry creates the file. `before`: the size without the entry,
# for `aborted_undo`. 0, or -errno with the file unchanged, or -EIO with its state unknown.
cdef int aborted_append(const char* directory, int64_t segment, int64_t producer_id, int64_t first_offset,
                        int64_t last_offset, int64_t stable_offset, int64_t* before) noexcept nogil

# Removes the last entry, because its marker was not written. 0, or -errno.
cdef int aborted_undo(const char* directory, int64_t segment, int64_t before) noexcept nogil

# Finds the transactions that have a record in [start, upper), in segments number `at` and later, oldest first. `end`:
# the offset after the newest abort marker; segments from there on are not searched. 0, or -errno and nothing to free.
cdef int aborted_search(const char* directory, Segment* segments, int count, int at, int64_t start, int64_t upper,
                        int64_t end, Aborted* found) noexcept nogil

# Returns an offset at or after all records of the segment before `position`, by its offset index. It is never too low,
# and at most one index interval too high. `unknown` if the index does not say.
cdef int64_t offset_behind(const char* directory, const Segment* segment, int64_t position, int64_t unknown) noexcept nogil

# The offset after the newest abort marker in the indexes, 0 if there is none; `log_end` if an index names an impossible
# one. -errno if the disk fails.
cdef int64_t aborted_end(const char* directory, Segment* segments, int count, int64_t log_end) noexcept nogil

"""The index of aborted transactions beside a segment: see aborted.pyx."""

from libc.stdint cimport int64_t, uint8_t

from kafkad._native.log.segments cimport Segment

cdef enum:
    ABORTED_SIZE = 34               # an entry
    TOLD_AT = 2                     # what a Fetch answer tells of it: producer id and first offset
    TOLD_SIZE = 16

cdef struct Aborted:                # what a search found; `entries` is the caller's to free
    uint8_t* entries                # ABORTED_SIZE bytes each, as they stand in the files; NULL when there are none
    int64_t count
    int64_t capacity

# Appends one entry to the index of the segment, which is made with its first. 0, or -errno; then it is as it was, or the
# error is -EIO. `before`: its size without the entry, for `aborted_undo`.
cdef int aborted_append(const char* directory, int64_t segment, int64_t producer_id, int64_t first_offset,
                        int64_t last_offset, int64_t stable_offset, int64_t* before) noexcept nogil

# Takes the last entry back: its marker was not written. 0, or -errno.
cdef int aborted_undo(const char* directory, int64_t segment, int64_t before) noexcept nogil

# Those that have a record in [start, upper), from segment number `at` on, oldest first. `end`: behind the newest abort
# marker; no segment that begins there or later is looked at. 0, or -errno; then nothing is held.
cdef int aborted_search(const char* directory, Segment* segments, int count, int at, int64_t start, int64_t upper,
                        int64_t end, Aborted* found) noexcept nogil

# An offset at or behind all that stands in the segment before `position`, by its offset index: never too low, and by an
# index entry at most too high. `unknown` where the index does not say.
cdef int64_t offset_behind(const char* directory, int64_t segment, int64_t position, int64_t unknown) noexcept nogil

# The offset behind the newest abort marker that an index names, 0 when none does; `log_end` where the index names one that
# cannot be. -errno when the disk fails.
cdef int64_t aborted_end(const char* directory, Segment* segments, int count, int64_t log_end) noexcept nogil

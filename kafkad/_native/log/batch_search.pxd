"""Where in a segment an offset stands: what is remembered, and the search for the rest. See batch_search.pyx."""

from libc.stdint cimport int64_t, uint32_t
from libc.stdlib cimport free, malloc

from kafkad._native.log.cold_reads cimport ColdReads
from kafkad._native.log.read_positions cimport Places, places_forget
from kafkad._native.log.segments cimport LogFile, Segment

cdef enum:
    COLD = -1001                    # the data is on disk, and the caller does not want to wait for it
    RECENT = 128                    # a power of two

cdef struct RecentBatch:            # positions of the latest batches of the active segment: tail reads look here first
    int64_t base_offset
    int64_t position

cdef struct Lookup:                 # belongs to a partition; zeros to begin with
    RecentBatch* recent             # a ring, made at the first append
    uint32_t recent_end             # entries ever added; the last RECENT of them are there
    uint32_t recent_count
    Places* places                  # where sequential reads will continue; made at the first note
    ColdReads* cold                 # set during a search that may return COLD; NULL: the search waits for the disk
    LogFile* missing                # after COLD: the file to read, retained for the caller
    int64_t missing_position
    int64_t missing_size
    int64_t wanted_size             # bytes, of the current read


cdef inline bint lookup_make_ring(Lookup* self) noexcept nogil:
    """Return False if there is no memory."""
    if self.recent == NULL:
        self.recent = <RecentBatch*>malloc(RECENT * sizeof(RecentBatch))
        self.recent_count = 0
    return self.recent != NULL


cdef inline void lookup_remember(Lookup* self, int64_t base_offset, int64_t position) noexcept nogil:
    """Add a batch of the active segment, in log order. The ring exists."""
    cdef RecentBatch* entry = &self.recent[self.recent_end & (RECENT - 1)]
    entry.base_offset = base_offset
    entry.position = position
    self.recent_end += 1
    if self.recent_count < RECENT:
        self.recent_count += 1


cdef inline bint lookup_recent(const Lookup* self, int64_t target, int64_t limit, RecentBatch* batch,
                               int64_t* end) noexcept nogil:
    """Find the last batch that begins at or before `target`, and where the next begins, or `limit`. False: not here."""
    cdef uint32_t low = self.recent_end - self.recent_count
    cdef uint32_t high = self.recent_end
    cdef uint32_t middle
    if self.recent_count == 0 or self.recent[low & (RECENT - 1)].base_offset > target:
        return False
    while high - low > 1:
        middle = low + (high - low) // 2
        if self.recent[middle & (RECENT - 1)].base_offset <= target:
            low = middle
        else:
            high = middle
    batch[0] = self.recent[low & (RECENT - 1)]
    end[0] = limit if high == self.recent_end else self.recent[high & (RECENT - 1)].position
    return True


cdef inline int64_t lookup_newest(const Lookup* self) noexcept nogil:
    """The base offset of the newest entry, or -1 if the ring is empty."""
    return self.recent[(self.recent_end - 1) & (RECENT - 1)].base_offset if self.recent_count else -1


cdef inline void lookup_forget(Lookup* self) noexcept nogil:
    """Forget everything: bytes were cut or replaced."""
    self.recent_count = 0
    places_forget(self.places)


cdef inline void lookup_free_ring(Lookup* self) noexcept nogil:
    self.recent_count = 0
    free(self.recent)
    self.recent = NULL


cdef inline void lookup_free_places(Lookup* self) noexcept nogil:
    free(self.places)
    self.places = NULL


# For all of these the segment is open. They find the first batch that ends at or after `target` and begins below
# `limit`, and return 1, 0 if there is none, -errno, or COLD. Searches the whole segment, without the ring:
cdef int lookup_search(Lookup* self, Segment* segment, const char* directory, int64_t target, int64_t limit,
                       int64_t* position, int64_t* batch_size) noexcept nogil
# Tries where an earlier read ended, and the front. 0 only means: search elsewhere.
cdef int lookup_place(Lookup* self, Segment* segment, int64_t target, int64_t limit, int64_t* position,
                      int64_t* batch_size) noexcept nogil
# Tries position `at`, if the batch there begins at or before `begins_max`. 0: search elsewhere.
cdef int lookup_at(Lookup* self, Segment* segment, int64_t at, int64_t begins_max, int64_t target, int64_t limit,
                   int64_t* position, int64_t* batch_size) noexcept nogil

# 0, or COLD if a walk from position `at` would wait for the disk.
cdef int lookup_missing(Lookup* self, Segment* segment, int64_t at) noexcept nogil

# Whether to send a large batch alone, because `max_bytes` would cut the batch after it. Clients would discard that
# part, and fetch it again.
cdef bint lookup_goes_alone(Lookup* self, Segment* segment, int64_t position, int64_t batch_size, int64_t max_bytes,
                            int64_t limit) noexcept nogil

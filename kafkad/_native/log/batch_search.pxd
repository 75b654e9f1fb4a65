"""Where in a segment an offset stands: what is remembered of it, and the search for the rest. See batch_search.pyx."""

from libc.stdint cimport int64_t, uint32_t
from libc.stdlib cimport free, malloc

from kafkad._native.log.cold_reads cimport ColdReads
from kafkad._native.log.read_positions cimport Places, places_forget
from kafkad._native.log.segments cimport LogFile, Segment

cdef enum:
    COLD = -1001                    # the place is on the disk, and who asks does not want to wait for it
    RECENT = 128                    # a power of two

cdef struct RecentBatch:            # where the latest batches of the active segment stand: tail reads find theirs here
    int64_t base_offset
    int64_t position

cdef struct Lookup:                 # a partition's; zeros to begin with
    RecentBatch* recent             # a ring, made at the first append
    uint32_t recent_end             # entries ever put; the last RECENT of them stand
    uint32_t recent_count
    Places* places                  # where reads will go on, made at the first that finds a batch by its header
    ColdReads* cold                 # set around a search that may answer COLD; NULL: it waits for the disk
    LogFile* missing                # then, retained for the caller: what to have read
    int64_t missing_position
    int64_t missing_size
    int64_t wanted_size             # bytes, of the read at hand


cdef inline bint lookup_make_ring(Lookup* self) noexcept nogil:
    """False: no memory."""
    if self.recent == NULL:
        self.recent = <RecentBatch*>malloc(RECENT * sizeof(RecentBatch))
        self.recent_count = 0
    return self.recent != NULL


cdef inline void lookup_remember(Lookup* self, int64_t base_offset, int64_t position) noexcept nogil:
    """A batch of the active segment, in their order. There is a ring."""
    cdef RecentBatch* entry = &self.recent[self.recent_end & (RECENT - 1)]
    entry.base_offset = base_offset
    entry.position = position
    self.recent_end += 1
    if self.recent_count < RECENT:
        self.recent_count += 1


cdef inline bint lookup_recent(const Lookup* self, int64_t target, int64_t limit, RecentBatch* batch,
                               int64_t* end) noexcept nogil:
    """The last one that begins at or before `target`, and where the next begins, or `limit`. False: it is not there."""
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
    """Its base offset, -1 when the ring is empty."""
    return self.recent[(self.recent_end - 1) & (RECENT - 1)].base_offset if self.recent_count else -1


cdef inline void lookup_forget(Lookup* self) noexcept nogil:
    """Bytes were cut or replaced."""
    self.recent_count = 0
    places_forget(self.places)


cdef inline void lookup_free_ring(Lookup* self) noexcept nogil:
    self.recent_count = 0
    free(self.recent)
    self.recent = NULL


cdef inline void lookup_free_places(Lookup* self) noexcept nogil:
    free(self.places)
    self.places = NULL


# The segment is open, for all of these. They answer with the first batch that ends at or after `target` and begins below
# `limit`: 1, 0 when there is none, -errno, COLD.
# In all of the segment, without the ring:
cdef int lookup_search(Lookup* self, Segment* segment, const char* directory, int64_t target, int64_t limit,
                       int64_t* position, int64_t* batch_size) noexcept nogil
# Where a read before this one ended, or at the front. 0 says only that it must be looked for elsewhere.
cdef int lookup_place(Lookup* self, Segment* segment, int64_t target, int64_t limit, int64_t* position,
                      int64_t* batch_size) noexcept nogil
# At position `at`, if the batch there begins at or before `begins_max`. 0 as above.
cdef int lookup_at(Lookup* self, Segment* segment, int64_t at, int64_t begins_max, int64_t target, int64_t limit,
                   int64_t* position, int64_t* batch_size) noexcept nogil

# 0, or COLD when a walk that begins at position `at` would wait for the disk.
cdef int lookup_missing(Lookup* self, Segment* segment, int64_t at) noexcept nogil

# Whether the batch after a large one, with which the next read will begin, is cut by `max_bytes`: then it stays away.
# Clients would throw the part of it away, and ask for it again.
cdef bint lookup_goes_alone(Lookup* self, Segment* segment, int64_t position, int64_t batch_size, int64_t max_bytes,
                            int64_t limit) noexcept nogil

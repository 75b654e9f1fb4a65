"""Positions in a log that are known without an index: where sequential consumers will continue.

A consumer asks for the offset after the last batch that it got. A read that finds a batch by its header also learns
where the next one begins, and notes it here. This is a fact about one segment's bytes, true until they are cut or
replaced. Then the partition forgets all positions.

    (segment, offset) -> position      the first batch of the segment that ends at or after `offset` begins at `position`
                         size, last    of that batch, if its header was read; otherwise size is 0

The latest sixteen are kept: that many consumers may read a partition side by side, and later ones use the notes of the
first.
"""

from libc.stdint cimport INT64_MAX, int64_t, uint8_t, uint32_t
from libc.stdlib cimport malloc
from libc.string cimport memset

from kafkad._native.log.fileio cimport read_at
from kafkad._native.wire.primitives cimport get_i32, get_i64
from kafkad._native.wire.batch_layout cimport LAST_OFFSET_DELTA_AT, LENGTH_AT, MAGIC_AT

cdef enum:
    PLACES = 16                     # a power of two
    PLACE_HEADER = 27               # bytes of a batch up to its last offset delta
    PLACE_BATCH_MIN = 61            # a batch v2 without records

cdef struct Places:
    int64_t offsets[PLACES]
    int64_t segments[PLACES]        # base offsets
    int64_t positions[PLACES]
    int64_t sizes[PLACES]
    int64_t lasts[PLACES]
    uint32_t end                    # entries ever noted


cdef inline int place_of(const Places* places, int64_t segment, int64_t offset) noexcept nogil:
    """Return the number of the entry, or -1."""
    cdef int i
    if places != NULL:
        for i in range(PLACES):
            if places.offsets[i] == offset and places.segments[i] == segment:
                return i
    return -1


cdef inline Places* place_note(Places* places, int64_t segment, int64_t offset, int64_t position, int64_t size,
                               int64_t last) noexcept nogil:
    """Note a position. Allocates the table if necessary; without memory nothing is noted."""
    cdef int at
    if places == NULL:
        places = <Places*>malloc(sizeof(Places))
        if places == NULL:
            return NULL
        memset(places, 0xFF, sizeof(Places))
        places.end = 0
    at = place_of(places, segment, offset)
    if at < 0:
        at = places.end & (PLACES - 1)
        places.end += 1
    elif size == 0:
        return places
    places.offsets[at] = offset
    places.segments[at] = segment
    places.positions[at] = position
    places.sizes[at] = size
    places.lasts[at] = last
    return places


cdef inline void places_forget(Places* places) noexcept nogil:
    if places != NULL:
        memset(places.offsets, 0xFF, sizeof(places.offsets))


cdef struct BatchAt:
    int64_t base_offset
    int64_t last_offset
    int64_t size


cdef inline bint batch_at(int fd, int64_t segment, int64_t at, int64_t limit, BatchAt* batch) noexcept nogil:
    """Return whether the bytes at `at` may be a v2 batch of this segment that is whole below `limit`. If False, the
    caller must walk from a position that is certain."""
    cdef uint8_t header[PLACE_HEADER]
    if limit - at < PLACE_BATCH_MIN or read_at(fd, header, PLACE_HEADER, at) != PLACE_HEADER or header[MAGIC_AT] != 2:
        return False
    batch.base_offset = get_i64(header)
    batch.last_offset = batch.base_offset + get_i32(header + LAST_OFFSET_DELTA_AT)
    batch.size = <int64_t>get_i32(header + LENGTH_AT) + 12
    return segment <= batch.base_offset <= batch.last_offset and PLACE_BATCH_MIN <= batch.size <= limit - at

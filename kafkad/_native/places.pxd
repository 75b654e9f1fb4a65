"""Places in a log that are known without an index: where consumers that read on will begin.

A consumer asks for the offset after the last batch that it got. Who finds a batch by its header learns where the next one
stands, and keeps it here: a fact about one segment's bytes, which stays true until they are cut or replaced. Then the
owner of the places forgets all of them.

    (segment, offset) -> position      the first batch of the segment that ends at or after `offset` begins at `position`

Sixteen, the latest: as many consumers may read a partition side by side, and those behind find what the first left.
"""

from libc.stdint cimport INT64_MAX, int64_t, uint8_t, uint32_t
from libc.stdlib cimport malloc
from libc.string cimport memset

from kafkad._native.fileio cimport read_at
from kafkad._native.wire cimport get_i32, get_i64

cdef enum:
    PLACES = 16                     # a power of two
    PLACE_HEADER = 27               # bytes of a batch up to its last offset delta
    PLACE_BATCH_MIN = 61            # a batch v2 without records

cdef struct Places:
    int64_t offsets[PLACES]
    int64_t segments[PLACES]        # base offsets
    int64_t positions[PLACES]
    uint32_t end                    # places ever noted


cdef inline int64_t place_of(const Places* places, int64_t segment, int64_t offset) noexcept nogil:
    """Its position, -1 when nothing is known."""
    cdef int i
    if places != NULL:
        for i in range(PLACES):
            if places.offsets[i] == offset and places.segments[i] == segment:
                return places.positions[i]
    return -1


cdef inline Places* place_note(Places* places, int64_t segment, int64_t offset, int64_t position) noexcept nogil:
    """Made when there is something to note; without memory nothing is."""
    cdef uint32_t at
    if places == NULL:
        places = <Places*>malloc(sizeof(Places))
        if places == NULL:
            return NULL
        memset(places, 0xFF, sizeof(Places))
        places.end = 0
    if place_of(places, segment, offset) < 0:
        at = places.end & (PLACES - 1)
        places.offsets[at] = offset
        places.segments[at] = segment
        places.positions[at] = position
        places.end += 1
    return places


cdef inline void places_forget(Places* places) noexcept nogil:
    if places != NULL:
        memset(places.offsets, 0xFF, sizeof(places.offsets))


cdef inline bint batch_at(int fd, int64_t segment, int64_t at, int64_t begins_max, int64_t target, int64_t limit,
                          int64_t* size, int64_t* last_offset) noexcept nogil:
    """Whether a whole batch stands at position `at` below `limit` that begins at or before `begins_max` and ends at or
    after `target`. False says nothing: who is told it walks from what is certain."""
    cdef uint8_t header[PLACE_HEADER]
    cdef int64_t base_offset
    if limit - at < PLACE_BATCH_MIN or read_at(fd, header, PLACE_HEADER, at) != PLACE_HEADER or header[16] != 2:
        return False
    base_offset = get_i64(header)
    size[0] = <int64_t>get_i32(header + 8) + 12
    last_offset[0] = base_offset + get_i32(header + 23)
    return (segment <= base_offset <= begins_max and target <= last_offset[0]
            and PLACE_BATCH_MIN <= size[0] <= limit - at)

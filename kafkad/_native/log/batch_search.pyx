"""Where in a segment an offset stands.

The search tries, in this order: the ring of recent batches (of the active segment; the caller does it), where an
earlier read ended (read_positions.pxd), the offset index, and from there a walk over headers. The result is noted for
the next read.

A caller that must not wait for the disk sets `cold`. A step whose bytes are not in memory then returns COLD, and
`missing` names the bytes that a helper thread must read before the search is repeated."""

from libc.stdint cimport INT64_MAX, int32_t, int64_t

from kafkad._native.log.cold_reads cimport READ_MAX, cold_mapped, cold_warm
from kafkad._native.log.fileio cimport WINDOW, open_path
from kafkad._native.log.index cimport (
    OFFSET_ENTRY_SIZE, offset_entry_offset, offset_entry_position, offset_index_floor)
from kafkad._native.log.read_positions cimport PLACE_HEADER, BatchAt, Places, batch_at, place_note, place_of
from kafkad._native.log.segments cimport (
    PATH_SIZE, Segment, log_file_hot, log_file_new, log_file_retain, segment_can_use_offsets,
    segment_open_offsets, segment_path, segment_walk)

cdef extern from "<fcntl.h>" nogil:
    enum: O_RDONLY, O_CLOEXEC


cdef int lookup_search(Lookup* self, Segment* segment, const char* directory, int64_t target, int64_t limit,
                       int64_t* position, int64_t* batch_size) noexcept nogil:
    cdef int64_t at = 0, indexed = -1, following, gap
    cdef int32_t slot
    cdef bint usable
    cdef int found = lookup_place(self, segment, target, limit, position, batch_size)
    if found != 0:
        return found
    if self.cold == NULL:
        usable = segment_can_use_offsets(segment, directory)
    else:
        usable = not segment.index_ignored and segment_open_offsets(segment, directory) == 0 and segment.offsets.entries > 0
        if usable and find_missing_index(self, segment, directory) != 0:
            return COLD
    if usable:
        slot = offset_index_floor(&segment.offsets, target - segment.base_offset)
        if slot + 1 < segment.offsets.entries:
            # Batches above index.interval.bytes are all indexed: the next entry's batch is it, if it begins early
            # enough.
            following = offset_entry_position(&segment.offsets, slot + 1)
            gap = following - (offset_entry_position(&segment.offsets, slot) if slot >= 0 else 0)
            if gap > WINDOW:
                found = lookup_at(self, segment, following, target, target, limit, position, batch_size)
                if found != 0:
                    return found
        if slot >= 0:
            at = offset_entry_position(&segment.offsets, slot)
            indexed = segment.base_offset + offset_entry_offset(&segment.offsets, slot)
            if at <= 0 or at >= segment.size:
                segment.index_ignored = True
                at = 0
                indexed = -1
    if lookup_missing(self, segment, at) != 0:
        return COLD
    return segment_walk(segment, at, indexed, target, limit, position, batch_size)


cdef int lookup_place(Lookup* self, Segment* segment, int64_t target, int64_t limit, int64_t* position,
                      int64_t* batch_size) noexcept nogil:
    cdef Places* places = self.places
    cdef int number = place_of(places, segment.base_offset, target)
    if number < 0:
        if target != segment.base_offset:
            return 0
        return lookup_at(self, segment, 0, INT64_MAX, target, limit, position, batch_size)
    position[0] = places.positions[number]
    batch_size[0] = places.sizes[number]
    if 0 < batch_size[0] <= limit - position[0]:
        place_note(places, segment.base_offset, places.lasts[number] + 1, position[0] + batch_size[0], 0, 0)
        return 1
    return lookup_at(self, segment, position[0], INT64_MAX, target, limit, position, batch_size)


cdef int lookup_at(Lookup* self, Segment* segment, int64_t at, int64_t begins_max, int64_t target, int64_t limit,
                   int64_t* position, int64_t* batch_size) noexcept nogil:
    cdef BatchAt batch
    if lookup_missing(self, segment, at) != 0:
        return COLD
    if not batch_at(segment.file.fd, segment.base_offset, at, limit, &batch) or (
            batch.base_offset > begins_max or batch.last_offset < target):
        return 0
    self.places = place_note(self.places, segment.base_offset, batch.last_offset + 1, at + batch.size, 0, 0)
    position[0] = at
    batch_size[0] = batch.size
    return 1


cdef bint lookup_goes_alone(Lookup* self, Segment* segment, int64_t position, int64_t batch_size, int64_t max_bytes,
                            int64_t limit) noexcept nogil:
    cdef BatchAt batch
    position += batch_size
    if batch_size > max_bytes or batch_size < max_bytes - batch_size or limit - position < PLACE_HEADER:
        return False
    if self.cold != NULL and not log_file_hot(segment.file, position, self.cold.monotonic_ms) and (
            cold_warm(self.cold, segment.file, position, PLACE_HEADER) != PLACE_HEADER):
        return False
    if not batch_at(segment.file.fd, segment.base_offset, position, limit, &batch):
        return False
    self.places = place_note(
        self.places, segment.base_offset, batch.base_offset, position, batch.size, batch.last_offset)
    return batch.size > max_bytes - batch_size


# -- data that is not in memory ----------------------------------------------------------------------------

cdef int lookup_missing(Lookup* self, Segment* segment, int64_t at) noexcept nogil:
    # The bytes that follow will be needed, too.
    cdef int64_t size = segment.size - at
    if self.cold == NULL or size <= 0:
        return 0
    if size > WINDOW:
        size = WINDOW
    if log_file_hot(segment.file, at, self.cold.monotonic_ms) or cold_warm(self.cold, segment.file, at, size) == size:
        return 0
    log_file_retain(segment.file)
    self.missing = segment.file
    self.missing_position = at
    self.missing_size = min(self.wanted_size, <int64_t>READ_MAX) + WINDOW
    if self.missing_size > segment.size - at:
        self.missing_size = segment.size - at
    return COLD


cdef int find_missing_index(Lookup* self, Segment* segment, const char* directory) noexcept nogil:
    cdef char path[PATH_SIZE]
    cdef int64_t size = <int64_t>segment.offsets.entries * OFFSET_ENTRY_SIZE
    cdef int fd
    if cold_mapped(self.cold, segment.offsets.map, size, &segment.offsets_found_ms):
        return 0
    segment_path(directory, segment.base_offset, b"index", path)
    fd = open_path(path, O_RDONLY | O_CLOEXEC)
    if fd < 0:
        return 0
    self.missing = log_file_new(fd)
    if self.missing == NULL:
        return 0
    self.missing_position = 0
    self.missing_size = size
    return COLD

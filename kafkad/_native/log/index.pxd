"""Kafka's sparse indexes of a segment, mapped: see index.pyx."""

from libc.stdint cimport int32_t, int64_t, uint8_t

from kafkad._native.wire.primitives cimport get_i32, get_i64

cdef enum:
    OFFSET_ENTRY_SIZE = 8       # relative offset i32, position i32: where the batch that ends with the offset begins
    TIME_ENTRY_SIZE = 12        # timestamp i64, relative offset i32: no record up to the offset is younger

cdef struct Index:
    uint8_t* map                # NULL: not open
    size_t mapped
    int64_t allocated           # bytes of the file with disk blocks: only these may be written through the map
    int32_t entries
    int32_t entries_max
    int32_t entry_size
    bint writable


cdef inline int32_t offset_entry_offset(const Index* index, int32_t n) noexcept nogil:
    return get_i32(index.map + <size_t>n * OFFSET_ENTRY_SIZE)


cdef inline int32_t offset_entry_position(const Index* index, int32_t n) noexcept nogil:
    return get_i32(index.map + <size_t>n * OFFSET_ENTRY_SIZE + 4)


cdef inline int64_t time_entry_timestamp(const Index* index, int32_t n) noexcept nogil:
    return get_i64(index.map + <size_t>n * TIME_ENTRY_SIZE)


cdef inline int32_t time_entry_offset(const Index* index, int32_t n) noexcept nogil:
    return get_i32(index.map + <size_t>n * TIME_ENTRY_SIZE + 8)


# The last entry whose relative offset is <= `target`, or -1.
cdef inline int32_t offset_index_floor(const Index* index, int64_t target) noexcept nogil:
    cdef int32_t low = 0, high = index.entries, middle
    while low < high:
        middle = low + (high - low) // 2
        if offset_entry_offset(index, middle) <= target:
            low = middle + 1
        else:
            high = middle
    return low - 1


# The last entry whose timestamp is <= `target`, or -1.
cdef inline int32_t time_index_floor(const Index* index, int64_t target) noexcept nogil:
    cdef int32_t low = 0, high = index.entries, middle
    while low < high:
        middle = low + (high - low) // 2
        if time_entry_timestamp(index, middle) <= target:
            low = middle + 1
        else:
            high = middle
    return low - 1


# Maps the index at `path`. Writable: created if missing and stretched to `size_max`, as Kafka does for the active
# segment. 0, or -errno.
cdef int index_open(Index* index, const char* path, int32_t entry_size, int64_t size_max, bint writable) noexcept nogil

cdef int index_map(Index* index, int fd, int32_t entry_size, int64_t size_max, bint writable) noexcept nogil

# Whether the entries can be read: otherwise touching them may end the process. Waits for the disk.
cdef bint index_is_readable(const Index* index, const char* path) noexcept nogil

# Allocates disk blocks for the first `size` bytes. 0, or -errno.
cdef int index_allocate(Index* index, int fd, int64_t size) noexcept nogil

# Allocates disk blocks for one more entry, so that a full disk is an error here and not a SIGBUS. 0, or -errno.
cdef int index_reserve(Index* index, const char* path) noexcept nogil

# Call `index_reserve` first.
cdef void offset_index_append(Index* index, int32_t relative_offset, int32_t position) noexcept nogil
cdef void time_index_append(Index* index, int64_t timestamp, int32_t relative_offset) noexcept nogil

# Unmaps; cuts a writable index to its entries. 0, or -errno: then it is still open.
cdef int index_close(Index* index, const char* path) noexcept nogil
# Unmaps without the cut, for a file that is deleted.
cdef void index_drop(Index* index) noexcept nogil

# Whether index_reserve has nothing to do: nearly always.
cdef inline bint index_has_room(const Index* index) noexcept nogil:
    return (<int64_t>index.entries + 1) * index.entry_size <= index.allocated

"""Open segments: a .log with its two indexes, opened by path when first needed, closed when not in use.

Functions of a segment and its directory. The active segment's indexes are mapped for writing, and cut to their entries
when the segment is closed; those of older segments are mapped for reading. A batch is found by the last index entry
before it and a walk over headers. The walk notices a wrong index, and the index is ignored from then on."""

from libc.errno cimport EACCES, EIO, ENOMEM, EROFS
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t
from libc.stdio cimport snprintf
from libc.stdlib cimport free, malloc

from kafkad._native.wire.batch cimport HEADER_SIZE, LENGTH_OVERHEAD
from kafkad._native.log.fileio cimport Window, close_fd, open_path, read_at, window_at, window_init
from kafkad._native.log.index cimport (
    OFFSET_ENTRY_SIZE, TIME_ENTRY_SIZE, index_close, index_drop, index_is_readable, index_open, index_reserve,
    offset_entry_position, time_entry_offset, time_entry_timestamp, time_index_append)
from kafkad._native.wire.primitives cimport get_i32, get_i64
from kafkad._native.wire.batch_layout cimport LAST_OFFSET_DELTA_AT, LENGTH_AT, MAGIC_AT, MAX_TIMESTAMP_AT

cdef extern from "<fcntl.h>" nogil:
    enum: O_RDONLY, O_RDWR, O_CLOEXEC

cdef extern from "<errno.h>" nogil:
    enum: EBADMSG

cdef extern from * nogil:
    """
    #define kafkad_add(p, n) __atomic_add_fetch((p), (n), __ATOMIC_ACQ_REL)
    """
    int kafkad_add(int* p, int n)


cdef LogFile* log_file_new(int fd) noexcept nogil:
    cdef LogFile* file = <LogFile*>malloc(sizeof(LogFile))
    if file == NULL:
        close_fd(fd)
        return NULL
    file.fd = fd
    file.references = 1
    file.hot_start = INT64_MAX
    file.next_hot_start = INT64_MAX
    file.turn_ms = 0
    file.written_ms = 0
    file.warm = NULL
    return file


cdef void log_file_retain(LogFile* file) noexcept nogil:
    kafkad_add(&file.references, 1)


cdef void log_file_release(LogFile* file) noexcept nogil:
    if kafkad_add(&file.references, -1) == 0:
        close_fd(file.fd)
        free(file.warm)
        free(file)


cdef class FileRef:
    """An open log file, kept open for a flush in another thread, even if its segment is closed or dropped."""

    def __dealloc__(self):
        if self.file != NULL:
            log_file_release(self.file)

    @property
    def fd(self) -> int:
        return self.file.fd


cdef FileRef file_ref(Segment* segment):
    cdef FileRef reference = FileRef.__new__(FileRef)
    log_file_retain(segment.file)
    reference.file = segment.file
    return reference


cdef int segment_floor(const Segment* segments, int count, int64_t offset) noexcept nogil:
    cdef int low = 0, high = count, middle
    if high and segments[high - 1].base_offset <= offset:
        return high - 1
    while low < high:
        middle = (low + high) // 2
        if segments[middle].base_offset <= offset:
            low = middle + 1
        else:
            high = middle
    return low - 1


cdef void segment_path(const char* directory, int64_t base_offset, const char* suffix, char* out) noexcept nogil:
    snprintf(out, PATH_SIZE, "%s/%020lld.%s", directory, <long long>base_offset, suffix)


cdef int segment_open_file(Segment* segment, const char* directory, bint writable) noexcept nogil:
    cdef char path[PATH_SIZE]
    cdef int fd
    segment_path(directory, segment.base_offset, b"log", path)
    fd = open_path(path, (O_RDWR if writable else O_RDONLY) | O_CLOEXEC)
    if fd == -EROFS or fd == -EACCES:
        fd = open_path(path, O_RDONLY | O_CLOEXEC)
    if fd < 0:
        return fd
    segment.file = log_file_new(fd)
    return 0 if segment.file != NULL else -ENOMEM


cdef int segment_open_for_append(Segment* segment, const char* directory, int64_t index_size_max) noexcept nogil:
    cdef char path[PATH_SIZE]
    cdef int failure = segment_open(segment, directory, True)
    if failure != 0:
        return failure
    if not segment.offsets.writable:
        segment_path(directory, segment.base_offset, b"index", path)
        index_close(&segment.offsets, path)
        failure = index_open(&segment.offsets, path, OFFSET_ENTRY_SIZE, index_size_max, True)
        if failure != 0:
            return failure
    if not segment.times.writable:
        segment_path(directory, segment.base_offset, b"timeindex", path)
        index_close(&segment.times, path)
        failure = index_open(&segment.times, path, TIME_ENTRY_SIZE, index_size_max, True)
        if failure != 0:
            return failure
    return segment_load_max_timestamp(segment, directory)


cdef int segment_open_offsets(Segment* segment, const char* directory) noexcept nogil:
    cdef char path[PATH_SIZE]
    segment.touched = True
    if segment.offsets.map != NULL or segment.offsets.writable:
        return 0
    segment_path(directory, segment.base_offset, b"index", path)
    return index_open(&segment.offsets, path, OFFSET_ENTRY_SIZE, 0, False)


cdef bint segment_can_use_offsets(Segment* segment, const char* directory) noexcept nogil:
    cdef char path[PATH_SIZE]
    if segment.index_ignored or segment_open_offsets(segment, directory) != 0 or segment.offsets.entries == 0:
        return False
    segment_path(directory, segment.base_offset, b"index", path)
    if not index_is_readable(&segment.offsets, path):
        segment.index_ignored = True
        return False
    return True


cdef bint segment_can_use_times(Segment* segment, const char* directory) noexcept nogil:
    cdef char path[PATH_SIZE]
    if segment_open_times(segment, directory) != 0 or segment.times.entries == 0:
        return False
    segment_path(directory, segment.base_offset, b"timeindex", path)
    return index_is_readable(&segment.times, path)


cdef int segment_open_times(Segment* segment, const char* directory) noexcept nogil:
    cdef char path[PATH_SIZE]
    segment.touched = True
    if segment.times.map != NULL or segment.times.writable:
        return 0
    segment_path(directory, segment.base_offset, b"timeindex", path)
    return index_open(&segment.times, path, TIME_ENTRY_SIZE, 0, False)


cdef bint last_time_is_readable(Segment* segment, const char* directory) noexcept nogil:
    # As index_is_readable, for the last entry only.
    cdef uint8_t entry[TIME_ENTRY_SIZE]
    cdef char path[PATH_SIZE]
    cdef bint readable
    cdef int fd
    if segment.times.writable:
        return True
    segment_path(directory, segment.base_offset, b"timeindex", path)
    fd = open_path(path, O_RDONLY | O_CLOEXEC)
    if fd < 0:
        return True
    readable = read_at(fd, entry, TIME_ENTRY_SIZE, <int64_t>(segment.times.entries - 1) * TIME_ENTRY_SIZE) == TIME_ENTRY_SIZE
    close_fd(fd)
    return readable


cdef int segment_load_max_timestamp(Segment* segment, const char* directory) noexcept nogil:
    cdef bint was_open
    cdef int failure
    if segment.max_timestamp != UNKNOWN:
        return 0
    if segment.size:
        was_open = segment.times.map != NULL
        failure = segment_open_times(segment, directory)
        if failure == 0 and segment.times.entries and not last_time_is_readable(segment, directory):
            failure = -EIO
        if failure == 0 and segment.times.entries:
            segment.max_timestamp = time_entry_timestamp(&segment.times, segment.times.entries - 1)
            segment.max_timestamp_offset = segment.base_offset + time_entry_offset(
                &segment.times, segment.times.entries - 1)
        if not was_open and not segment.times.writable:     # retention asks every partition: keep no mapping
            index_close(&segment.times, b"")
        if failure != 0:
            return failure                      # still UNKNOWN: the next call tries again
    if segment.max_timestamp == UNKNOWN:
        segment.max_timestamp = -1
        segment.max_timestamp_offset = segment.base_offset
    return 0


cdef int64_t segment_first_timestamp(Segment* segment, const char* directory) noexcept nogil:
    cdef uint8_t header[HEADER_SIZE]
    if segment.first_timestamp == UNKNOWN and segment.size >= HEADER_SIZE and segment_open(segment, directory, True) == 0:
        if read_at(segment.file.fd, header, HEADER_SIZE, 0) == HEADER_SIZE:
            segment.first_timestamp = get_i64(header + MAX_TIMESTAMP_AT) if header[MAGIC_AT] >= 2 else -1
    return segment.first_timestamp if segment.first_timestamp >= 0 else -1


cdef int segment_close(Segment* segment, const char* directory) noexcept nogil:
    cdef char path[PATH_SIZE]
    cdef int failure = 0
    segment_path(directory, segment.base_offset, b"timeindex", path)
    if segment.times.writable and segment.max_timestamp > -1 and segment.times.entries < segment.times.entries_max and (
            segment.times.entries == 0
            or segment.max_timestamp > time_entry_timestamp(&segment.times, segment.times.entries - 1)):
        failure = index_reserve(&segment.times, path)
        if failure != 0:
            return failure
        time_index_append(&segment.times, segment.max_timestamp,
                          <int32_t>(segment.max_timestamp_offset - segment.base_offset))
    failure = index_close(&segment.times, path)
    if failure != 0:
        return failure
    segment_path(directory, segment.base_offset, b"index", path)
    failure = index_close(&segment.offsets, path)
    if failure == 0:
        segment_drop(segment)
    return failure


cdef void segment_drop(Segment* segment) noexcept nogil:
    index_drop(&segment.times)
    index_drop(&segment.offsets)
    if segment.file != NULL:
        log_file_release(segment.file)
        segment.file = NULL
    if segment.index_file != NULL:
        log_file_release(segment.index_file)
        segment.index_file = NULL


cdef int segment_walk(Segment* segment, int64_t at, int64_t indexed, int64_t target, int64_t limit, int64_t* position,
                      int64_t* batch_size) noexcept nogil:
    cdef Window window
    cdef const uint8_t* header
    cdef int64_t size, last, wanted
    window_init(&window, segment.file.fd)
    while at < limit:
        wanted = limit - at
        if wanted > HEADER_SIZE:
            wanted = HEADER_SIZE
        header = window_at(&window, at, wanted, limit) if wanted > MAGIC_AT else NULL
        size = -1
        if header != NULL:
            size = <int64_t>get_i32(header + LENGTH_AT) + LENGTH_OVERHEAD
            last = get_i64(header)
            if header[MAGIC_AT] >= 2 and wanted == HEADER_SIZE:
                last += get_i32(header + LAST_OFFSET_DELTA_AT)
        if header == NULL or size <= MAGIC_AT or size > limit - at or header[MAGIC_AT] > 2 or (
                indexed >= 0 and (last > indexed or last < segment.base_offset)):
            if indexed < 0:
                return -EBADMSG
            segment.index_ignored = True        # the entry was wrong: from the start, without the index
            at = 0
            indexed = -1
            continue
        if last >= target:
            position[0] = at
            batch_size[0] = size
            return 1
        at += size
        indexed = -1
    return 0


cdef int64_t segment_end_offset(Segment* segment, const char* directory, int64_t* bad) noexcept nogil:
    cdef Window window
    cdef const uint8_t* header
    cdef int64_t at = 0, next_offset = segment.base_offset, size, last
    cdef bint indexed = False
    if segment_can_use_offsets(segment, directory):
        at = offset_entry_position(&segment.offsets, segment.offsets.entries - 1)
        indexed = True
        if at <= 0 or at >= segment.size:
            at = 0
            indexed = False
    window_init(&window, segment.file.fd)
    while at < segment.size:
        size = segment.size - at
        if size > HEADER_SIZE:
            size = HEADER_SIZE
        header = window_at(&window, at, size, segment.size) if size > MAGIC_AT else NULL
        last = -1
        if header != NULL and header[MAGIC_AT] <= 2:
            last = get_i64(header)
            if header[MAGIC_AT] == 2:
                last = last + get_i32(header + LAST_OFFSET_DELTA_AT) if size == HEADER_SIZE else -1
            size = <int64_t>get_i32(header + LENGTH_AT) + LENGTH_OVERHEAD
        if last < next_offset or size <= MAGIC_AT or size > segment.size - at:
            if not indexed:
                bad[0] = at
                return -1
            segment.index_ignored = True
            at = 0
            next_offset = segment.base_offset
            indexed = False
            continue
        next_offset = last + 1
        at += size
    return next_offset

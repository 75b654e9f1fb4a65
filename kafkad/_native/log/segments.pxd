"""Open segments: a .log with its indexes. See segments.pyx."""

from libc.stdint cimport int64_t

from kafkad._native.log.index cimport Index

cdef enum:
    PATH_SIZE = 4352                # PATH_MAX and a file name

cdef enum:
    HOT_MS = 3000                   # data written within this time (up to twice as long) is in memory

cdef extern from * nogil:
    """
    #include <stdint.h>
    #include <time.h>
    /* of the last tick: up to 4 ms late, and cheaper than the exact time */
    static inline int64_t kafkad_monotonic_ms(void) {
        struct timespec t;
        clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
        return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
    }
    """
    int64_t kafkad_monotonic_ms()

cdef struct LogFile:                # an open .log; a response that is being sent holds a reference
    int fd
    int references
    int64_t hot_start               # data from here on is recent, if `written_ms` is recent
    int64_t next_hot_start
    int64_t turn_ms                 # when `hot_start` was moved; monotonic, as all times here
    int64_t written_ms
    void* warm                      # what cold_reads.pyx knows to be in memory

cdef LogFile* log_file_new(int fd) noexcept nogil            # with one reference; NULL: no memory, and the fd is closed
cdef void log_file_retain(LogFile* file) noexcept nogil
cdef void log_file_release(LogFile* file) noexcept nogil     # the last release closes the fd

# Bytes were written from `position` to the end of the file.
cdef inline void log_file_written(LogFile* file, int64_t position) noexcept nogil:
    cdef int64_t now_ms = kafkad_monotonic_ms()
    if now_ms - file.turn_ms > HOT_MS:
        file.hot_start = file.next_hot_start if now_ms - file.written_ms <= HOT_MS else position
        file.next_hot_start = position
        file.turn_ms = now_ms
    file.written_ms = now_ms


# Whether the data from `position` on was written a moment ago. `now_ms`: monotonic.
cdef inline bint log_file_hot(const LogFile* file, int64_t position, int64_t now_ms) noexcept nogil:
    return position >= file.hot_start and now_ms - file.written_ms <= HOT_MS

cdef struct Segment:                # one .log with its indexes; the last one of a partition is active
    int64_t base_offset
    int64_t size
    LogFile* file                   # NULL until the first read or append
    Index offsets                   # opened when needed
    Index times
    int64_t max_timestamp           # the largest in it, and the last offset of the batch that has it; UNKNOWN: read the
    int64_t max_timestamp_offset    # time index
    int64_t first_timestamp         # max timestamp of its first batch, for its age; UNKNOWN: not read yet, -1: none
    int64_t created_ms
    int64_t bytes_since_index
    bint index_ignored              # the index was found to be wrong: every lookup scans from the start
    bint touched                    # read since the last sweep of idle files
    bint no_aborts                  # closed, and has no index of aborted transactions
    int64_t offsets_found_ms        # when the mapped index was found to be in memory; 0: not yet
    LogFile* index_file             # a reader's offset index: not mapped, because the owner may cut the file

cdef extern from * nogil:
    """
    #define KAFKAD_UNKNOWN INT64_MIN
    """
    int64_t UNKNOWN "KAFKAD_UNKNOWN"    # a timestamp

cdef class FileRef:
    cdef LogFile* file              # retained

cdef FileRef file_ref(Segment* segment)

# The last segment whose base offset is <= offset, or -1.
cdef int segment_floor(const Segment* segments, int count, int64_t offset) noexcept nogil

cdef void segment_path(const char* directory, int64_t base_offset, const char* suffix, char* out) noexcept nogil

# Whether the index has entries that can be read. These wait for the disk.
cdef bint segment_can_use_offsets(Segment* segment, const char* directory) noexcept nogil
cdef bint segment_can_use_times(Segment* segment, const char* directory) noexcept nogil

# All of these return 0, or -errno.
cdef int segment_open_file(Segment* segment, const char* directory, bint writable) noexcept nogil
cdef int segment_open_for_append(Segment* segment, const char* directory, int64_t index_size_max) noexcept nogil
cdef int segment_open_offsets(Segment* segment, const char* directory) noexcept nogil
cdef int segment_open_times(Segment* segment, const char* directory) noexcept nogil

# Adds the last time entry to writable indexes, and cuts them to size. 0, or -errno: then the rest is still open, and
# can be closed later.
cdef int segment_close(Segment* segment, const char* directory) noexcept nogil
# Closes the segment and leaves its files unchanged.
cdef void segment_drop(Segment* segment) noexcept nogil

cdef inline int segment_open(Segment* segment, const char* directory, bint writable) noexcept nogil:
    segment.touched = True
    return 0 if segment.file != NULL else segment_open_file(segment, directory, writable)

# Loads them from the time index and the first batch, unless known. The first returns 0, or -errno: call it again later.
cdef int segment_load_max_timestamp(Segment* segment, const char* directory) noexcept nogil
cdef int64_t segment_first_timestamp(Segment* segment, const char* directory) noexcept nogil

# Walks from batch to batch to the first that ends at or after `target` and begins below `limit`. Begins at position
# `at`; the batch there ends with offset `indexed` according to the index (-1: unknown). The file is open. 1, 0 if there
# is none, -EBADMSG.
cdef int segment_walk(Segment* segment, int64_t at, int64_t indexed, int64_t target, int64_t limit, int64_t* position,
                      int64_t* batch_size) noexcept nogil

# The offset after its last batch, by a walk from its last index entry. -1: there are bytes beyond the last whole batch,
# and `bad` is their position. The file is open.
cdef int64_t segment_end_offset(Segment* segment, const char* directory, int64_t* bad) noexcept nogil

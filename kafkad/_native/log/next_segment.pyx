"""The files of a segment before it has a name, which is its first offset: made ahead (O_TMPFILE), named at the roll (linkat).

Making them, stretching and mapping the indexes and asking for blocks is done in a thread; what is left to the loop is
three links, and the segment is open for appends at once. Files without a name are gone when the process is.

Beware: `__init__` is the thread's, the rest the loop's."""

import os

from libc.errno cimport errno
from libc.stdint cimport int64_t
from libc.stdio cimport snprintf
from libc.string cimport memset

from kafkad._native.log.fileio cimport close_fd, open_path
from kafkad._native.log.index cimport (
    OFFSET_ENTRY_SIZE, TIME_ENTRY_SIZE, index_allocate, index_close, index_map)
from kafkad._native.log.segments cimport PATH_SIZE, log_file_new, log_file_release, segment_path

cdef extern from "<fcntl.h>" nogil:
    enum: O_TMPFILE, O_RDWR, O_CLOEXEC, AT_FDCWD, AT_SYMLINK_FOLLOW

cdef extern from "<unistd.h>" nogil:
    int linkat(int from_directory, const char* from_path, int to_directory, const char* to_path, int flags)


cdef int name_fd(int fd, const char* directory, int64_t base_offset, const char* suffix) noexcept nogil:
    cdef char path[PATH_SIZE]
    cdef char link[64]
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd)
    segment_path(directory, base_offset, suffix, path)
    return 0 if linkat(AT_FDCWD, link, AT_FDCWD, path, AT_SYMLINK_FOLLOW) == 0 else -errno


cdef class NextSegment:
    """`offset_entries`, `time_entries`: so many are expected; they get their blocks now. OSError where it cannot be."""

    def __cinit__(self):
        self.offsets_fd = -1
        self.times_fd = -1

    def __init__(self, str directory, int64_t index_size_max, int64_t offset_entries=0, int64_t time_entries=0):
        cdef bytes path = os.fsencode(directory)
        cdef const char* where = path
        cdef int failure
        self.index_size_max = index_size_max
        with nogil:
            failure = self.make(where, offset_entries, time_entries)
        if failure != 0:
            raise OSError(-failure, os.strerror(-failure), directory)

    cdef int make(self, const char* directory, int64_t offset_entries, int64_t time_entries) noexcept nogil:
        cdef int flags = O_TMPFILE | O_RDWR | O_CLOEXEC
        cdef int fd = open_path(directory, flags)
        cdef int failure
        if fd < 0:
            return fd
        self.file = log_file_new(fd)
        if self.file == NULL:
            return -12                                  # ENOMEM
        self.offsets_fd = open_path(directory, flags)
        if self.offsets_fd < 0:
            return self.offsets_fd
        self.times_fd = open_path(directory, flags)
        if self.times_fd < 0:
            return self.times_fd
        failure = index_map(&self.offsets, self.offsets_fd, OFFSET_ENTRY_SIZE, self.index_size_max, True)
        if failure == 0:
            failure = index_map(&self.times, self.times_fd, TIME_ENTRY_SIZE, self.index_size_max, True)
        if failure == 0:
            failure = index_allocate(&self.offsets, self.offsets_fd, (offset_entries + 1) * OFFSET_ENTRY_SIZE)
        if failure == 0:
            failure = index_allocate(&self.times, self.times_fd, (time_entries + 1) * TIME_ENTRY_SIZE)
        return failure

    def __dealloc__(self):
        self.offsets.writable = False                   # there is no path to cut it by
        self.times.writable = False
        index_close(&self.offsets, b"")
        index_close(&self.times, b"")
        if self.file != NULL:
            log_file_release(self.file)
        self.close_fds()

    cdef void close_fds(self) noexcept nogil:
        if self.offsets_fd >= 0:
            close_fd(self.offsets_fd)
        if self.times_fd >= 0:
            close_fd(self.times_fd)
        self.offsets_fd = -1
        self.times_fd = -1

    def link(self, str directory, int64_t base_offset) -> bool:
        """Gives the files their names; False when one of them could not get it: then what there is must be made anew."""
        cdef bytes path = os.fsencode(directory)
        cdef const char* where = path
        cdef bint good
        with nogil:
            good = (name_fd(self.file.fd, where, base_offset, b"log") == 0
                    and name_fd(self.offsets_fd, where, base_offset, b"index") == 0
                    and name_fd(self.times_fd, where, base_offset, b"timeindex") == 0)
            self.close_fds()
        return good

    cdef void give(self, Segment* segment) noexcept:
        """The files are an empty segment's, which is open for appends."""
        segment.file = self.file
        segment.offsets = self.offsets
        segment.times = self.times
        segment.max_timestamp = -1
        segment.max_timestamp_offset = segment.base_offset
        segment.touched = True
        self.file = NULL
        memset(&self.offsets, 0, sizeof(self.offsets))
        memset(&self.times, 0, sizeof(self.times))

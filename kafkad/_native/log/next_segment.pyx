"""The files of a segment before it has its name, which is its first offset: created ahead (O_TMPFILE), named at the
roll (linkat).

A thread creates the files, stretches and maps the indexes, and allocates blocks. The loop only makes three links, and
the segment is open for appends at once. Files without a name disappear with the process.

A thread also writes a very large batch into such a file, before the batch has its offset. The append then writes offset
and leader epoch into it (the CRC does not cover them), and the file becomes the active segment's.

Beware: `__init__` and `write` run in the thread, everything else on the loop."""

import os

from libc.errno cimport errno
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdio cimport rename, snprintf
from libc.string cimport memcpy, memset

from kafkad._native.log.fileio cimport close_fd, open_path, write_at
from kafkad._native.log.index cimport (
    OFFSET_ENTRY_SIZE, TIME_ENTRY_SIZE, index_allocate, index_close, index_map)
from kafkad._native.log.segments cimport PATH_SIZE, log_file_new, log_file_release, segment_path
from kafkad._native.wire.batch cimport HEADER_SIZE
from kafkad._native.wire.primitives cimport put_i32, put_i64

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
    """`offset_entries`, `time_entries`: how many are expected; their blocks are allocated now. Raises OSError."""

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
        """Give the files their names. Return False if one of them failed: then the files must be created anew."""
        cdef bytes path = os.fsencode(directory)
        cdef const char* where = path
        cdef bint good
        with nogil:
            good = (name_fd(self.file.fd, where, base_offset, b"log") == 0
                    and name_fd(self.offsets_fd, where, base_offset, b"index") == 0
                    and name_fd(self.times_fd, where, base_offset, b"timeindex") == 0)
            self.close_fds()
        return good

    def write(self, const uint8_t[::1] data not None, int64_t position) -> None:
        """Write `data` into the .log. The GIL is not held. Raises OSError."""
        cdef int failure = 0
        cdef int64_t size = data.shape[0]
        if size:
            with nogil:
                failure = write_at(self.file.fd, &data[0], size, position)
        if failure != 0:
            raise OSError(-failure, os.strerror(-failure))

    def stamp(self, const uint8_t[::1] batch not None, int64_t base_offset, int32_t leader_epoch) -> None:
        """Write the header of `batch`, which begins the .log, as an append would. Raises OSError."""
        cdef uint8_t header[HEADER_SIZE]
        cdef int failure
        if batch.shape[0] < HEADER_SIZE:
            raise ValueError("not a batch")
        memcpy(header, &batch[0], HEADER_SIZE)
        put_i64(header, base_offset)
        put_i32(header + 12, leader_epoch)
        failure = write_at(self.file.fd, header, HEADER_SIZE, 0)
        if failure != 0:
            raise OSError(-failure, os.strerror(-failure))

    def replace_log(self, str directory, int64_t base_offset) -> bool:
        """Put the .log in the place of another one. Return False if that failed, and nothing has changed.

        It is named *.deleted in between: a start removes such files."""
        cdef bytes path = os.fsencode(directory)
        cdef const char* where = path
        cdef char beside[PATH_SIZE]
        cdef char place[PATH_SIZE]
        segment_path(where, base_offset, b"log.deleted", beside)
        segment_path(where, base_offset, b"log", place)
        if name_fd(self.file.fd, where, base_offset, b"log.deleted") != 0:
            return False
        if rename(beside, place) != 0:
            os.unlink(os.fsdecode(<bytes>beside))
            return False
        return True

    cdef LogFile* take_log(self) noexcept:
        cdef LogFile* file = self.file
        self.file = NULL
        return file

    cdef void give(self, Segment* segment) noexcept:
        """Hand the files over to an empty segment, which is then open for appends."""
        segment.file = self.file
        segment.offsets = self.offsets
        segment.times = self.times
        segment.max_timestamp = -1
        segment.max_timestamp_offset = segment.base_offset
        segment.touched = True
        self.file = NULL
        memset(&self.offsets, 0, sizeof(self.offsets))
        memset(&self.times, 0, sizeof(self.times))

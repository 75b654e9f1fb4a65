"""The files of a segment that has no name yet: see next_segment.pyx."""

from libc.stdint cimport int64_t

from kafkad._native.log.index cimport Index
from kafkad._native.log.segments cimport LogFile, Segment

cdef class NextSegment:
    cdef LogFile* file              # NULL: handed over to a segment
    cdef Index offsets              # mapped for writing
    cdef Index times
    cdef int offsets_fd             # open until the files have their names
    cdef int times_fd
    cdef readonly int64_t index_size_max
    cdef int make(self, const char* directory, int64_t offset_entries, int64_t time_entries) noexcept nogil
    cdef void close_fds(self) noexcept nogil
    cdef void give(self, Segment* segment) noexcept
    cdef LogFile* take_log(self) noexcept

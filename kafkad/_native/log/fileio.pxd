"""System calls on log files: see fileio.pyx."""

from libc.stdint cimport int64_t, uint8_t

# Both continue after a short transfer or a signal. Returns bytes read (fewer only at the end of the file), or -errno.
cdef int64_t read_at(int fd, uint8_t* into, int64_t size, int64_t position) noexcept nogil
# 0, or -errno; the file may then contain a part of the data.
cdef int write_at(int fd, const uint8_t* data, int64_t size, int64_t position) noexcept nogil

cdef int open_path(const char* path, int flags) noexcept nogil          # a fd, or -errno
cdef int cut(int fd, int64_t size) noexcept nogil                       # 0, or -errno
cdef void close_fd(int fd) noexcept nogil
cdef bint is_fatal(int failure) noexcept nogil                          # whether this -errno takes a log directory offline

cdef enum:
    WINDOW = 8192

cdef struct Window:             # a small read-ahead buffer for walks over batch headers
    int fd
    int64_t start
    int64_t size
    uint8_t bytes[WINDOW]

cdef inline void window_init(Window* window, int fd) noexcept nogil:
    window.fd = fd
    window.start = 0
    window.size = 0

# `size` (<= WINDOW) bytes at `position` of a file that ends at `end`; NULL on an error, or if the file is shorter.
cdef const uint8_t* window_at(Window* window, int64_t position, int64_t size, int64_t end) noexcept nogil

"""System calls on log files, without the GIL: reads and writes that complete, and which errors mean a broken disk.

A full disk recovers when there is room again (KAFKA_STORAGE_ERROR; the partition stays online). EIO and similar errors
take the whole log directory offline, and it is not used again. Tests inject both with `fail_writes`."""

from libc.errno cimport EBADF, EINTR, EIO, ENODEV, ENXIO, EROFS, errno
from libc.stdint cimport int64_t, uint8_t

cdef extern from "<fcntl.h>" nogil:
    int c_open "open"(const char* path, int flags, ...)

cdef extern from "<unistd.h>" nogil:
    int c_close "close"(int fd)
    int ftruncate(int fd, int64_t length)
    int64_t c_pread "pread"(int fd, void* into, size_t size, int64_t offset)
    int64_t c_pwrite "pwrite"(int fd, const void* data, size_t size, int64_t offset)

cdef extern from "<errno.h>" nogil:
    enum: ESTALE, EUCLEAN, ENOTCONN

cdef int fault = 0              # the errno that writes return once `fault_after` more bytes are written
cdef int64_t fault_after = 0


def fail_writes(int error, int64_t after_bytes=0) -> None:
    """For tests: every write to a log fails with `error` after that many bytes. 0 ends it."""
    global fault, fault_after
    fault = error
    fault_after = after_bytes


cdef int64_t read_at(int fd, uint8_t* into, int64_t size, int64_t position) noexcept nogil:
    cdef int64_t done = 0, n
    while done < size:
        n = c_pread(fd, into + done, size - done, position + done)
        if n < 0:
            if errno == EINTR:
                continue
            return -errno
        if n == 0:
            break
        done += n
    return done


cdef int write_at(int fd, const uint8_t* data, int64_t size, int64_t position) noexcept nogil:
    global fault_after
    cdef int64_t done = 0, n, room
    while done < size:
        room = size - done
        if fault != 0:
            if fault_after == 0:
                return -fault
            if room > fault_after:
                room = fault_after
            fault_after -= room
        n = c_pwrite(fd, data + done, room, position + done)
        if n < 0:
            if errno == EINTR:
                continue
            return -errno
        if n == 0:
            return -EIO
        done += n
    return 0


cdef int open_path(const char* path, int flags) noexcept nogil:
    cdef int fd
    while True:
        fd = c_open(path, flags, 0o644)
        if fd >= 0:
            return fd
        if errno != EINTR:
            return -errno


cdef int cut(int fd, int64_t size) noexcept nogil:
    return 0 if ftruncate(fd, size) == 0 else -errno


cdef void close_fd(int fd) noexcept nogil:
    c_close(fd)


cdef bint is_fatal(int failure) noexcept nogil:
    return (failure == -EIO or failure == -EROFS or failure == -ENODEV or failure == -ENXIO or failure == -EBADF
            or failure == -ESTALE or failure == -EUCLEAN or failure == -ENOTCONN)


cdef const uint8_t* window_at(Window* window, int64_t position, int64_t size, int64_t end) noexcept nogil:
    cdef int64_t n
    if position < window.start or position + size > window.start + window.size:
        n = end - position
        if n > WINDOW:
            n = WINDOW
        if n < size:
            return NULL
        n = read_at(window.fd, window.bytes, n, position)
        if n < size:
            window.size = 0
            return NULL
        window.start = position
        window.size = n
    return window.bytes + (position - window.start)

"""An answer for many connections, stored once.

Its bytes are in a memfd. A slot refers to them like to a region of a log file, so sendfile passes the same pages to
each socket: an answer to a thousand slow clients takes the memory of one. The last reference, this object's or that of
a slot, closes the memfd.

Beware: these bytes count against no connection's memory. Code that makes many such answers must limit those
`in_use`."""

from libc.stdint cimport int64_t, uint32_t

import os

from kafkad._native.serving.connection cimport Connection, Slot, slot_finish, slot_region
from kafkad._native.log.segments cimport LogFile, log_file_new, log_file_release, log_file_retain


cdef class SharedAnswer:
    """`body` is everything after the correlation id. Raises OSError if there is no descriptor or memory for it."""

    cdef LogFile* file
    cdef readonly int64_t size

    def __cinit__(self, body):
        cdef int fd
        cdef object rest = memoryview(body)
        self.size = len(rest)
        fd = os.memfd_create("kafkad-answer", os.MFD_CLOEXEC)
        try:
            while len(rest):
                rest = rest[os.write(fd, rest):]
        except BaseException:
            os.close(fd)
            raise
        self.file = log_file_new(fd)
        if self.file is NULL:
            raise MemoryError()

    def __dealloc__(self):
        if self.file is not NULL:
            log_file_release(self.file)

    def __len__(self):
        return self.size

    @property
    def in_use(self):
        """Whether an answer that refers to it has not been sent yet."""
        return self.file.references > 1

    def content(self):
        """Return the bytes. For tests."""
        return os.pread(self.file.fd, self.size, 0)

    def respond(self, Connection connection not None, uint32_t request_id):
        """Answer a dispatched request with these bytes."""
        cdef Slot* slot = connection.slot_of(request_id)
        if slot is NULL:
            return
        slot.size = 8                               # the size and the correlation id, as `slot_open` wrote them
        log_file_retain(self.file)
        slot_region(slot, self.file, 0, self.size)
        slot_finish(slot)
        connection.answered()

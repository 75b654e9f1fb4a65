"""Decompression in threads. See unpacking.pyx."""

from libc.stdint cimport int64_t

cdef class Job:
    cdef object work
    cdef object deliver
    cdef object error
    cdef object lane
    cdef int64_t held                   # bytes of memory that count as its own
    cdef public bint cancelled
    cdef bint slice(self)

cdef class Unpacker:
    cdef int wake_fd
    cdef int threads_max
    cdef object condition               # protects all below, except `jobs`, `waiting` and `threads`: the loop's
    cdef dict lanes                     # lane: its jobs, never empty
    cdef object ring                    # lanes that wait for a thread
    cdef object aside                   # lanes whose first job waits for memory
    cdef object done
    cdef list threads
    cdef int resting
    cdef int64_t held
    cdef bint closed
    cdef bint on_hold                   # for tests
    cdef readonly int64_t jobs          # ever submitted
    cdef readonly int64_t waiting       # of these, not delivered yet
    cdef void _wake(self) noexcept
    cdef bint _turn(self, bint may_rest) except -1
    cdef Job _next(self)

cdef int64_t unpack_now_ns() noexcept nogil
cdef bint unpack_turn(object work, int64_t ns) except -1

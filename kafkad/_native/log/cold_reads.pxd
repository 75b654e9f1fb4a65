"""Reading data that is not in memory, in helper threads: see cold_reads.pyx."""

from libc.stdint cimport int64_t

from kafkad._native.log.segments cimport LogFile

ctypedef void (*ColdDone)(void* waiter, ColdJob* job) noexcept nogil

cdef struct ColdJob:
    void* work                      # the part that helpers see
    LogFile* file                   # retained
    int64_t position
    int64_t size                    # how much the waiter needs; the job may read more
    void* waiter                    # NULL: nobody waits (any more)
    ColdDone done                   # called on the loop, with `waiter`

cdef enum:
    READ_MAX = 2 << 20              # bytes of one log per job, so that other readers get their turn

cdef struct ColdReads:              # belongs to the loop
    void* helpers                   # NULL: not needed so far
    int wake_fd                     # an eventfd, written when jobs are done
    int64_t monotonic_ms            # as of the current turn of the loop
    bint held
    int ahead_jobs                  # running
    int64_t checks                  # calls that ask the kernel what is in memory
    int64_t reads                   # jobs started
    int64_t bytes_read

cdef void cold_init(ColdReads* cold, int wake_fd) noexcept nogil
cdef void cold_close(ColdReads* cold) noexcept nogil        # does not wait for the disk

# Returns how many of the `size` bytes at `position` are in memory. If fewer than `size`, the byte after them is not.
# Call this for data that is not hot (segments.pxd).
cdef int64_t cold_warm(ColdReads* cold, LogFile* file, int64_t position, int64_t size) noexcept nogil

# The same for `size` mapped bytes, last found in memory at `found_ms`. Asks rarely: a positive result is kept for a
# while.
cdef bint cold_mapped(ColdReads* cold, void* map, int64_t size, int64_t* found_ms) noexcept nogil

# Starts a job that reads these bytes. `cold_settle` calls `done` at the end, whether or not the read succeeded.
# NULL: there is no helper.
cdef ColdJob* cold_ask(ColdReads* cold, LogFile* file, int64_t position, int64_t size, void* waiter,
                       ColdDone done) noexcept nogil

# Call after a wake-up: calls the waiters of all finished jobs.
cdef void cold_settle(ColdReads* cold) noexcept nogil

cdef void cold_hold(ColdReads* cold, bint held) noexcept nogil      # for tests: no job begins

"""Reads of what is not in memory, by helper threads: see cold_reads.pyx."""

from libc.stdint cimport int64_t

from kafkad._native.log.segments cimport LogFile

ctypedef void (*ColdDone)(void* waiter, ColdJob* job) noexcept nogil

cdef struct ColdJob:
    void* work                      # what the helpers see of it
    LogFile* file                   # retained
    int64_t position
    int64_t size                    # what is waited for; it may be that more is read
    void* waiter                    # NULL: nobody waits, or has gone
    ColdDone done                   # called with `waiter` on the loop

cdef enum:
    READ_MAX = 2 << 20              # of a log at once, so that others have their turn

cdef struct ColdReads:              # the loop's
    void* helpers                   # NULL: none was needed yet
    int wake_fd                     # an eventfd that is written to when jobs are done
    int64_t now_ms                  # wall clock, as of the loop's last look
    int64_t monotonic_ms
    bint held
    int ahead_jobs                  # at work
    int64_t checks                  # questions to the kernel
    int64_t reads                   # jobs
    int64_t bytes_read

cdef void cold_init(ColdReads* cold, int wake_fd) noexcept nogil
cdef void cold_close(ColdReads* cold) noexcept nogil        # does not wait for the disk

# How many of the `size` bytes at `position` are in memory; fewer than `size`: the next one is not. For what is not
# hot (segments.pxd).
cdef int64_t cold_warm(ColdReads* cold, LogFile* file, int64_t position, int64_t size) noexcept nogil

# The same of `size` mapped bytes that were looked at `since_ms` ago. Few questions: what is found stands for a while.
cdef bint cold_mapped(ColdReads* cold, void* map, int64_t size, int64_t* found_ms) noexcept nogil

# Has these bytes read; `done` follows from `cold_settle`, whatever the disk says.
# NULL: there is no helper.
cdef ColdJob* cold_ask(ColdReads* cold, LogFile* file, int64_t position, int64_t size, void* waiter,
                       ColdDone done) noexcept nogil

# After a wake-up: tells the waiters of all jobs that are done.
cdef void cold_settle(ColdReads* cold) noexcept nogil

cdef void cold_hold(ColdReads* cold, bint held) noexcept nogil      # for tests: no job begins

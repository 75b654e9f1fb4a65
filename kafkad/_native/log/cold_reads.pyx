"""Cold reads: what is not in the page cache is read by helper threads, not by the loop.

Before bytes of a log are touched, `cold_warm` tells how many of them are in memory:

    written a moment ago         known without a question (`log_file_hot`)
    in a range that was found    known for WARM_MS; a file remembers a few ranges, and each reader extends his own
    else                         the kernel is asked, a mebibyte at a time: cachestat counts the pages, and reads of
                                 single bytes with RWF_NOWAIT tell whether they have arrived

What is missing becomes a job for a helper (cold_reads.h), which reads it as the loop would have, and wakes the loop. So the
kernel reads ahead for who goes on reading, as ever. That alone leaves the disk idle while he is sent what it read: who
reads on, and has less than AHEAD / 2 left, is followed by a job that nobody waits for, for the next AHEAD bytes. (WILLNEED,
and touching each page, were tried: the kernel then takes small pages and sees each used twice, and a GB costs twice the
CPU.)

Where the file system cannot tell (RWF_NOWAIT is refused on tmpfs), all counts as being in memory. The kernel may give
pages back between the question and the read: then that read waits, as every read did before there were helpers.

Beware: all of this is the loop's. Helpers see the fd, position and size of a job; the job holds its file, so a waiter
may leave (it sets `waiter` to NULL), and the file may be removed or cut."""

from libc.stdint cimport int64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memset

from kafkad._native.log.segments cimport LogFile, log_file_release, log_file_retain

cdef extern from "cold_reads.h" nogil:
    ctypedef struct kafkad_job:
        kafkad_job* next
        int fd
        int64_t position
        int64_t size
        int64_t found
        void* context
    ctypedef struct kafkad_helpers:
        int queued
    bint kafkad_resident(int fd, int64_t at, int64_t size)
    bint kafkad_mapped_resident(void* map, int64_t size)
    kafkad_helpers* kafkad_helpers_new(int wake_fd, int threads_max, void (*forget)(kafkad_job*) noexcept nogil)
    bint kafkad_helpers_put(kafkad_helpers* helpers, kafkad_job* job)
    kafkad_job* kafkad_helpers_take(kafkad_helpers* helpers)
    void kafkad_helpers_hold(kafkad_helpers* helpers, bint held)
    void kafkad_helpers_close(kafkad_helpers* helpers)

cdef enum:
    WARM_MS = 2_000                 # a range that was found to be in memory counts as such for so long
    RANGES = 8                      # of one file: as many readers of it, each at his own place
    ASKED = 1 << 20                 # the kernel is asked about so much at once, if all of it is there
    ASKED_MAX = 4 << 20
    READ_MIN = 128 * 1024           # a job reads as much as the kernel would by itself
    AHEAD = 4 << 20                 # is read beyond what is asked for, for who reads on and has less than half of it left
    AHEAD_JOBS_MAX = 4              # at a time, so that there is a thread for who waits
    THREADS_MAX = 8                 # so many reads does a disk see at once

cdef struct Range:
    int64_t start
    int64_t end
    int64_t found_ms
    bint cold                       # some of it was read from the disk by a job
    bint busy                       # a job reads ahead of it
    bint ended                      # there is nothing behind it

cdef struct Warm:                   # LogFile.warm
    Range ranges[RANGES]


cdef struct Job:
    ColdJob told                    # first
    kafkad_job work


cdef Range* range_at(LogFile* file, int64_t position, int64_t now_ms) noexcept nogil:
    """The one that holds `position`, or ends there; NULL when none does, or it was too long ago."""
    cdef Warm* warm = <Warm*>file.warm
    cdef Range* found = NULL
    cdef int i
    if warm is NULL:
        return NULL
    for i in range(RANGES):
        if (warm.ranges[i].start <= position <= warm.ranges[i].end and warm.ranges[i].end
                and now_ms - warm.ranges[i].found_ms < WARM_MS
                and (found is NULL or warm.ranges[i].end > found.end)):
            found = &warm.ranges[i]
    return found


cdef void range_note(LogFile* file, int64_t start, int64_t end, int64_t now_ms) noexcept nogil:
    """These bytes are in memory: a range goes on with them, or the oldest gives way to one."""
    cdef Range* at = range_at(file, start, now_ms)
    cdef Warm* warm
    cdef bint cold = False
    cdef int i
    if at is not NULL:
        at.end = max(at.end, end)
        return
    if file.warm is NULL:
        file.warm = calloc(1, sizeof(Warm))
        if file.warm is NULL:
            return
    warm = <Warm*>file.warm
    at = &warm.ranges[0]
    for i in range(RANGES):
        if warm.ranges[i].start <= start <= warm.ranges[i].end and warm.ranges[i].cold:
            cold = True                                 # it goes on with one whose time is over
        if warm.ranges[i].found_ms < at.found_ms:
            at = &warm.ranges[i]
    memset(at, 0, sizeof(Range))
    at.start = start
    at.end = end
    at.found_ms = now_ms
    at.cold = cold


cdef void read_ahead(ColdReads* cold, LogFile* file, int64_t position) noexcept nogil:
    """Who reads on at `position` shall find what comes next in memory: a disk that waits for his next question does
    nothing while he is sent what it read."""
    cdef Range* known = range_at(file, position, cold.monotonic_ms)
    if (known is NULL or not known.cold or known.busy or known.ended or known.end - position >= AHEAD // 2
            or cold.ahead_jobs >= AHEAD_JOBS_MAX):
        return
    if put(cold, file, known.end, 0, AHEAD, NULL, NULL) is not NULL:
        known.busy = True
        cold.ahead_jobs += 1


cdef int64_t cold_warm(ColdReads* cold, LogFile* file, int64_t position, int64_t size) noexcept nogil:
    cdef int64_t now_ms = cold.monotonic_ms
    cdef Range* known = range_at(file, position, now_ms)
    cdef int64_t at = position, wanted
    if known is not NULL:
        at = known.end
    if at - position < size:
        wanted = min(position + size - at, <int64_t>ASKED_MAX)
        cold.checks += 1
        if wanted < ASKED and kafkad_resident(file.fd, at, ASKED):
            wanted = ASKED
        elif not kafkad_resident(file.fd, at, wanted):
            wanted = 0
        if wanted:
            range_note(file, at, at + wanted, now_ms)
            at += wanted
    read_ahead(cold, file, position)
    return min(at - position, size)


cdef bint cold_mapped(ColdReads* cold, void* map, int64_t size, int64_t* found_ms) noexcept nogil:
    if found_ms[0] and cold.monotonic_ms - found_ms[0] < WARM_MS:
        return True
    cold.checks += 1
    if not kafkad_mapped_resident(map, size):
        return False
    found_ms[0] = cold.monotonic_ms
    return True


# -- jobs --------------------------------------------------------------------------------------------------

cdef void forget(kafkad_job* work) noexcept nogil:
    cdef Job* job = <Job*>work.context
    log_file_release(job.told.file)
    free(job)


cdef Job* put(ColdReads* cold, LogFile* file, int64_t position, int64_t size, int64_t read, void* waiter,
              ColdDone done) noexcept nogil:
    cdef Job* job
    if cold.helpers is NULL:
        cold.helpers = kafkad_helpers_new(cold.wake_fd, THREADS_MAX, forget)
        if cold.helpers is NULL:
            return NULL
        kafkad_helpers_hold(<kafkad_helpers*>cold.helpers, cold.held)
    job = <Job*>malloc(sizeof(Job))
    if job is NULL:
        return NULL
    memset(job, 0, sizeof(Job))
    job.told.work = &job.work
    job.told.file = file
    job.told.position = position
    job.told.size = size
    job.told.waiter = waiter
    job.told.done = done
    job.work.fd = file.fd
    job.work.position = position
    job.work.size = read
    job.work.context = job
    log_file_retain(file)
    if not kafkad_helpers_put(<kafkad_helpers*>cold.helpers, &job.work):
        forget(&job.work)
        return NULL
    return job


cdef ColdJob* cold_ask(ColdReads* cold, LogFile* file, int64_t position, int64_t size, void* waiter,
                       ColdDone done) noexcept nogil:
    cdef Range* before = range_at(file, position, cold.monotonic_ms)
    cdef Job* job = put(cold, file, position, size, max(size, <int64_t>READ_MIN), waiter, done)
    if job is NULL:
        return NULL
    if before is not NULL:
        before.cold = True                              # he reads on, and from the disk
    cold.reads += 1
    return &job.told


cdef void cold_settle(ColdReads* cold) noexcept nogil:
    cdef kafkad_job* work
    cdef kafkad_job* following
    cdef Job* job
    cdef Range* known
    cdef int64_t end
    if cold.helpers is NULL:
        return
    work = kafkad_helpers_take(<kafkad_helpers*>cold.helpers)
    while work is not NULL:
        following = work.next
        job = <Job*>work.context
        cold.bytes_read += work.found
        if job.told.size == 0:                          # read ahead
            cold.ahead_jobs -= 1
            known = range_at(job.told.file, work.position, cold.monotonic_ms)
            if known is not NULL:
                known.busy = False
                known.ended = work.found < work.size
        # What was waited for counts as being there even if it is not: then the disk fails, and the reader shall see it.
        end = work.position + max(work.found, job.told.size)
        if end > work.position:
            range_note(job.told.file, work.position, end, cold.monotonic_ms)
        if job.told.waiter is not NULL:
            job.told.done(job.told.waiter, &job.told)
        forget(work)
        work = following


cdef void cold_init(ColdReads* cold, int wake_fd) noexcept nogil:
    memset(cold, 0, sizeof(ColdReads))
    cold.wake_fd = wake_fd


cdef void cold_close(ColdReads* cold) noexcept nogil:
    if cold.helpers is not NULL:
        kafkad_helpers_close(<kafkad_helpers*>cold.helpers)
        cold.helpers = NULL


cdef void cold_hold(ColdReads* cold, bint held) noexcept nogil:
    cold.held = held
    if cold.helpers is not NULL:
        kafkad_helpers_hold(<kafkad_helpers*>cold.helpers, held)


def resident(int fd, int64_t position, int64_t size) -> bool:
    """Whether these bytes of a file are in the page cache, as far as can be known. For tests."""
    return kafkad_resident(fd, position, size)

"""Cold reads: helper threads, not the loop, read data that is not in the page cache.

Before the loop touches bytes of a log, `cold_warm` finds out how many of them are in memory:

    written a moment ago         in memory, without asking (`log_file_hot`)
    in a range found before      counts as in memory for WARM_MS; a file remembers a few ranges, one per reader
    otherwise                    ask the kernel, a mebibyte at a time: cachestat counts the pages, and reads of single
                                 bytes with RWF_NOWAIT probe whether they have arrived

Missing bytes become a job for a helper (cold_reads.h), which reads them as the loop would have, and wakes the loop. So
the kernel's read-ahead works as usual for sequential readers. That alone would leave the disk idle while the data is
sent: therefore a sequential reader with less than AHEAD / 2 left also gets a background read of the next AHEAD bytes,
which nobody waits for. (WILLNEED and touching each page were tried. The kernel then uses small pages and counts each as
used twice, and a GB costs twice the CPU.)

If the file system cannot report residency (tmpfs refuses RWF_NOWAIT), everything counts as in memory. The kernel may
drop pages between the question and the read: then the loop waits for that read.

Beware: all of this belongs to the loop. Helpers see only the fd, position and size of a job. The job holds its file, so
a waiter may leave (it sets `waiter` to NULL), and the file may be removed or cut."""

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
    WARM_MS = 2_000                 # how long a range counts as in memory after it was found there
    RANGES = 8                      # per file: one for each concurrent reader
    ASKED = 1 << 20                 # bytes per question to the kernel, as long as all of them are there
    ASKED_MAX = 4 << 20
    READ_MIN = 128 * 1024           # minimum size of a job: what the kernel would read ahead by itself
    AHEAD = 4 << 20                 # bytes read beyond the request, for a sequential reader with less than half of it left
    AHEAD_JOBS_MAX = 4              # at a time, so that a thread is free for readers that wait
    THREADS_MAX = 8                 # at most this many reads at a time per disk

cdef struct Range:
    int64_t start
    int64_t end
    int64_t found_ms
    bint cold                       # a job read some of it from the disk
    bint busy                       # a job is reading ahead of it
    bint ended                      # the file ends there

cdef struct Warm:                   # LogFile.warm
    Range ranges[RANGES]


cdef struct Job:
    ColdJob told                    # must be the first field
    kafkad_job work


cdef Range* range_at(LogFile* file, int64_t position, int64_t now_ms) noexcept nogil:
    """Return the range that holds `position` or ends there; NULL if there is none, or it is too old."""
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
    """Record that these bytes are in memory: extend a range, or replace the oldest."""
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
            cold = True                                 # it continues an expired range
        if warm.ranges[i].found_ms < at.found_ms:
            at = &warm.ranges[i]
    memset(at, 0, sizeof(Range))
    at.start = start
    at.end = end
    at.found_ms = now_ms
    at.cold = cold


cdef void read_ahead(ColdReads* cold, LogFile* file, int64_t position) noexcept nogil:
    """Read ahead for a sequential reader at `position`, so that the disk is not idle while data is sent."""
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
        before.cold = True                              # a sequential reader, and from the disk
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
        if job.told.size == 0:                          # a read-ahead job
            cold.ahead_jobs -= 1
            known = range_at(job.told.file, work.position, cold.monotonic_ms)
            if known is not NULL:
                known.busy = False
                known.ended = work.found < work.size
        # Bytes that were waited for count as in memory even if the read failed: the reader must get the disk error.
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
    """Whether these bytes of a file are in the page cache, if the kernel can report it. For tests."""
    return kafkad_resident(fd, position, size)

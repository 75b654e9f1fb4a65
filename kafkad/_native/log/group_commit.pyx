"""Group commit: the fsyncs that acknowledgements wait for, in a few C threads, without the GIL.

A partition that must be flushed asks here during an append. When the reactor has served all ready requests (outside of
its turns: at once) a thread begins an fdatasync of the partition's active segment. It includes everything appended
until it begins. Data that is appended while it runs waits for the next fdatasync, which the partition asks for when
this one has been published. So a file is never synced twice at the same time, a lone record waits for one fdatasync and
no timer, and under load each fdatasync covers everything that came in the meantime. Different files are synced in
parallel, because journaling file systems put concurrent syncs into one commit; none waits for another. When some have
ended, the eventfd becomes readable and the loop calls `publish`, which moves the flushed offset and HW and wakes the
waiters for all ended syncs.

Before it syncs, a thread allocates blocks behind the end of the file (the file keeps its size). Otherwise each
fdatasync would allocate some, and commit the allocation with the data. The partition gives back the rest when it closes
the file; after a kill the blocks stay allocated until the segment is deleted.

No thread exists, and nothing here costs anything, until the first partition asks. Then a thread is added whenever one
asks while all are busy, up to `threads_max`.

`log.flusher` does the rare cases in Python: several files to sync, small files, directory entries.
Beware: the threads see a `Sync` and a file, never a partition. A failed fdatasync is not retried: the partition's
directory goes offline, and waiting syncs of the same directory are given up."""

import os

from libc.errno cimport EINTR, EIO, errno
from libc.stdint cimport INT64_MAX, int64_t, uint64_t
from libc.stdlib cimport calloc, free

from kafkad._native.log.segments cimport log_file_release, log_file_retain
from kafkad._native.wire.primitives cimport KAFKAD_CHECK

cdef extern from * nogil:
    """
    #include <pthread.h>
    #include <semaphore.h>
    #include <signal.h>
    #include <fcntl.h>
    #include <stdint.h>
    #include <unistd.h>
    #define sync_load(p) __atomic_load_n((p), __ATOMIC_ACQUIRE)
    #define sync_store(p, value) __atomic_store_n((p), (value), __ATOMIC_RELEASE)

    /* Signals are the loop's. Thread number `at` of `threads`; 0 or an errno. */
    static int kafkad_start(pthread_t* threads, int at, void* (*work)(void*), void* context) {
        pthread_attr_t attributes;
        sigset_t all, before;
        int failure = pthread_attr_init(&attributes);
        if (failure)
            return failure;
        pthread_attr_setstacksize(&attributes, 256 << 10);
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        failure = pthread_create(&threads[at], &attributes, work, context);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        pthread_attr_destroy(&attributes);
        return failure;
    }
    """
    ctypedef struct pthread_t:
        pass
    ctypedef struct pthread_mutex_t:
        pass
    ctypedef struct sem_t:
        pass
    int pthread_mutex_init(pthread_mutex_t* mutex, const void* attributes)
    int pthread_mutex_lock(pthread_mutex_t* mutex)
    int pthread_mutex_unlock(pthread_mutex_t* mutex)
    int pthread_mutex_destroy(pthread_mutex_t* mutex)
    int sem_init(sem_t* semaphore, int shared, unsigned int value)
    int sem_wait(sem_t* semaphore)
    int sem_post(sem_t* semaphore)
    int sem_destroy(sem_t* semaphore)
    int pthread_join(pthread_t thread, void** result)
    int kafkad_start(pthread_t* threads, int at, void* (*work)(void*) noexcept nogil, void* context)
    int fdatasync(int fd)
    enum: FALLOC_FL_KEEP_SIZE
    int c_fallocate "fallocate"(int fd, int mode, int64_t offset, int64_t size)
    ssize_t c_read "read"(int fd, void* into, size_t size)
    ssize_t c_write "write"(int fd, const void* data, size_t size)
    int64_t load_offset "sync_load"(int64_t* p)
    void store_offset "sync_store"(int64_t* p, int64_t value)
    int load_flag "sync_load"(int* p)
    void store_flag "sync_store"(int* p, int value)

cdef enum:
    THREADS_MAX = 64
    PREPARED_MIN = 64 << 10
    PREPARED_MAX = 16 << 20

cdef struct Committing:
    pthread_mutex_t lock
    sem_t there                     # posted once per waiting Sync. (A condition of glibc before 2.41 loses signals.)
    Sync* first                     # waiting for a thread
    Sync* last
    int waiting
    Sync* asked_first               # the loop's: asked for in this turn of the reactor
    Sync* asked_last
    int asked_count
    Committing* asked_next          # the next group that was asked in this turn
    Sync* ended_first               # ended, waiting for the loop
    Sync* ended_last
    int busy                        # threads that have a Sync
    int count
    int count_max
    bint stopping
    int fd                          # eventfd: something has ended
    uint64_t syncs
    pthread_t threads[THREADS_MAX]

cdef bint in_turn = False           # the loop's, like the next field: a reactor is in a turn
cdef Committing* asked_groups = NULL

cdef int fault = 0                  # an errno that each fdatasync returns, for tests
cdef int held = 0                   # whether each fdatasync stops before it begins, for tests


def fail_syncs(int error) -> None:
    """For tests: every fdatasync of a group fails with `error`. 0 ends it."""
    global fault
    store_flag(&fault, error)


def hold_syncs(bint hold) -> None:
    """For tests: every fdatasync of a group begins, and stops until this is called with False."""
    global held
    store_flag(&held, hold)


cdef extern from "<unistd.h>" nogil:
    int usleep(unsigned int microseconds)


cdef int sync_file(int fd) noexcept nogil:
    while load_flag(&held):
        usleep(1000)
    if load_flag(&fault):
        return load_flag(&fault)
    while fdatasync(fd) != 0:
        if errno != EINTR:
            return errno
    return 0


cdef void prepare(Sync* sync) noexcept nogil:
    # Allocates blocks behind the end, as many as the file has, within bounds. Skipped if the file system does not
    # support it, or has no room.
    cdef int64_t position = load_offset(&sync.end_position), size = position
    if size > PREPARED_MAX:
        size = PREPARED_MAX
    if size < PREPARED_MIN:
        size = PREPARED_MIN
    if position + size // 4 > sync.prepared:
        sync.prepared = INT64_MAX
        if c_fallocate(sync.file.fd, FALLOC_FL_KEEP_SIZE, position, size) == 0:
            sync.prepared = position + size


cdef void* work(void* context) noexcept nogil:
    cdef Committing* self = <Committing*>context
    cdef Sync* sync
    cdef uint64_t one = 1
    cdef bint tell
    while True:
        if sem_wait(&self.there) != 0:
            continue                                    # EINTR
        pthread_mutex_lock(&self.lock)
        if self.stopping:
            pthread_mutex_unlock(&self.lock)
            return NULL
        sync = self.first
        KAFKAD_CHECK(sync is not NULL)
        self.first = sync.next
        self.waiting -= 1
        self.busy += 1
        pthread_mutex_unlock(&self.lock)
        # The loop writes the data before it moves the offset, and this thread reads the offset before it syncs.
        sync.synced_offset = load_offset(&sync.end_offset)
        prepare(sync)
        sync.failure = EIO if load_flag(&sync.given_up) else sync_file(sync.file.fd)
        pthread_mutex_lock(&self.lock)
        self.busy -= 1
        self.syncs += 1
        sync.next = NULL
        tell = self.ended_first is NULL
        if tell:
            self.ended_first = sync
        else:
            self.ended_last.next = sync
        self.ended_last = sync
        pthread_mutex_unlock(&self.lock)
        if tell:
            KAFKAD_CHECK(c_write(self.fd, &one, 8) == 8)


cdef Sync* sync_new(void* partition, SyncEnded ended) noexcept nogil:
    cdef Sync* sync = <Sync*>calloc(1, sizeof(Sync))
    if sync is not NULL:
        sync.partition = partition
        sync.ended = ended
    return sync


cdef void sync_drop(Sync* sync) noexcept nogil:
    if sync is NULL:
        return
    sync.partition = NULL
    if sync.state == SYNC_IDLE:
        free(sync)


cdef void sync_reach(Sync* sync, int64_t end_offset, int64_t end_position) noexcept nogil:
    store_offset(&sync.end_position, end_position)
    store_offset(&sync.end_offset, end_offset)


cdef void sync_give_up(Sync* sync) noexcept nogil:
    store_flag(&sync.given_up, 1)


cdef bint commit_ask(GroupCommit group, Sync* sync, LogFile* file) noexcept nogil:
    global asked_groups
    cdef Committing* self = <Committing*>group.committing
    KAFKAD_CHECK(sync.state == SYNC_IDLE)
    if self.stopping:
        return False
    if self.count == 0:
        if kafkad_start(self.threads, 0, work, self) != 0:
            return False
        self.count = 1
    log_file_retain(file)
    sync.file = file
    sync.next = NULL
    sync.state = SYNC_UNDER_WAY
    if self.asked_first is NULL:
        self.asked_first = sync
        self.asked_next = asked_groups
        asked_groups = self
    else:
        self.asked_last.next = sync
    self.asked_last = sync
    self.asked_count += 1
    if not in_turn:
        commit_turn(False)
    return True


cdef void commit_turn(bint goes_on) noexcept nogil:
    global in_turn, asked_groups
    cdef Committing* group
    in_turn = goes_on
    while asked_groups is not NULL:
        group = asked_groups
        asked_groups = group.asked_next
        begin(group)


cdef void begin(Committing* self) noexcept nogil:
    cdef int count = self.asked_count
    pthread_mutex_lock(&self.lock)
    if self.first is NULL:
        self.first = self.asked_first
    else:
        self.last.next = self.asked_first
    self.last = self.asked_last
    self.waiting += count
    self.asked_first = NULL
    self.asked_count = 0
    while self.count < self.waiting + self.busy and self.count < self.count_max:
        if kafkad_start(self.threads, self.count, work, self) != 0:
            break
        self.count += 1
    pthread_mutex_unlock(&self.lock)
    while count:
        sem_post(&self.there)
        count -= 1


cdef Sync* let_go(Sync* sync) noexcept nogil:
    """Give the Sync back to the loop. Return the next one."""
    cdef Sync* following = sync.next
    log_file_release(sync.file)
    sync.file = NULL
    sync.next = NULL
    sync.state = SYNC_IDLE
    if sync.partition is NULL:
        free(sync)
    return following


cdef class GroupCommit:
    def __cinit__(self, int threads_max=4):
        cdef Committing* group
        if not 0 < threads_max <= THREADS_MAX:
            raise ValueError(threads_max)
        group = <Committing*>calloc(1, sizeof(Committing))
        if group is NULL:
            raise MemoryError()
        self.committing = group
        group.fd = -1
        group.count_max = threads_max
        pthread_mutex_init(&group.lock, NULL)
        sem_init(&group.there, 0, 0)
        group.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def __dealloc__(self):
        cdef Committing* group = <Committing*>self.committing
        if group is NULL:
            return
        self.close()
        if group.fd >= 0:
            os.close(group.fd)
        sem_destroy(&group.there)
        pthread_mutex_destroy(&group.lock)
        free(group)

    def fileno(self):
        """A descriptor that is readable when there is something to `publish`."""
        return (<Committing*>self.committing).fd

    @property
    def threads(self):
        return (<Committing*>self.committing).count

    @property
    def syncs(self):
        """The number of fdatasyncs that have ended."""
        return (<Committing*>self.committing).syncs

    def publish(self):
        """On the owner's loop: report all ended syncs to their partitions."""
        cdef Committing* group = <Committing*>self.committing
        cdef Sync* sync
        cdef Sync* following
        cdef void* partition
        cdef uint64_t count
        pthread_mutex_lock(&group.lock)
        c_read(group.fd, &count, 8)
        sync = group.ended_first
        group.ended_first = NULL
        pthread_mutex_unlock(&group.lock)
        while sync is not NULL:
            partition = sync.partition
            following = let_go(sync)
            if partition is not NULL:
                sync.ended(partition, sync)         # may ask again
            sync = following

    def close(self):
        """Let the threads end after their current sync. Nothing is reported any more, and later requests are
        refused."""
        cdef Committing* group = <Committing*>self.committing
        cdef Sync* sync
        cdef int i
        with nogil:
            commit_turn(in_turn)
            pthread_mutex_lock(&group.lock)
            group.stopping = True
            pthread_mutex_unlock(&group.lock)
            for i in range(group.count):
                sem_post(&group.there)
            for i in range(group.count):
                pthread_join(group.threads[i], NULL)
            group.count = 0
            sync = group.first
            while sync is not NULL:
                sync = let_go(sync)
            sync = group.ended_first
            while sync is not NULL:
                sync = let_go(sync)
            group.first = NULL
            group.ended_first = NULL
            group.waiting = 0

"""What clients have used of their quotas, in memory that all workers of a broker share.

    lock | keys u64 × ROWS | used_ms i64 × ROWS | cells: ROWS × workers × (Cell, Sample × (samples + 1))

A row is one bucket (kafkad/quota.py) of one kind of quota. Each worker adds to its own cell of it, without a lock, and a
rate is the sum over all workers' cells: what another worker has just added is seen a moment later. The arithmetic is Kafka's
(SampledStat, Rate, QuotaUtils):

    a sample takes what comes within `window_ms` of its start; `samples` of them, and one that ends, are kept
    rate = all live samples / the time since the oldest one began, which counts as at least samples - 1 whole windows
    pause = (rate - limit) / limit × that time

so ten windows' worth of bytes pass before the first pause.

**Rows.** They are found by key, in a table with open addressing, and made under a robust mutex: a worker that dies with it
frees it. A row in which nobody has counted for longer than its samples live is worth nothing, and is taken back when the
table is nearly full. If all rows are in use, the keys that find none share the last one, so they hold each other up; none
goes unlimited. Who remembers a row must look whether it is still its own (`table_holds`). Memory comes with the first touch.

**Death.** A worker's samples age by themselves. Its successor clears what is left of its cells."""

from libc.math cimport floor
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from kafkad._native.shared.robust_mutex cimport (
    robust_mutex_give, robust_mutex_new, robust_mutex_size, robust_mutex_take)
from kafkad._native.wire.primitives cimport KAFKAD_CHECK

import os

cdef extern from * nogil:
    """
    #include <sys/mman.h>

    #define quota_load(p) __atomic_load_n(p, __ATOMIC_ACQUIRE)
    #define quota_store(p, value) __atomic_store_n(p, value, __ATOMIC_RELEASE)
    """
    uint64_t key_at "quota_load"(uint64_t* p)
    void put_key "quota_store"(uint64_t* p, uint64_t value)
    uint32_t count_of "quota_load"(uint32_t* p)
    void put_count "quota_store"(uint32_t* p, uint32_t value)
    void* mmap(void* address, size_t length, int protection, int flags, int fd, long offset)
    int munmap(void* address, size_t length)
    void* MAP_FAILED
    enum: PROT_READ, PROT_WRITE, MAP_SHARED, MAP_ANONYMOUS, MAP_NORESERVE

cdef enum:
    ROWS = 16384                    # a power of two
    LOCK_SIZE = 64
    PATIENCE_MS = 50                # for a worker that is stopped with the lock; then the shared row is taken
    FREE = 0
    DELETED = 1
    SIZE_MAX_SHIFT = 36             # bytes of address space; with more samples or workers there are fewer rows

if robust_mutex_size > LOCK_SIZE:
    raise ImportError("the layout of what workers share of quotas has changed")


cdef class QuotaTable:
    """Made once for `workers`; each then calls `enter`, also one that takes a dead one's place."""

    def __cinit__(self, int workers, int samples=11, int window_seconds=1, uint32_t rows=ROWS):
        if workers < 1 or samples < 1 or window_seconds < 1 or rows < 2 or rows & (rows - 1):
            raise ValueError("a quota table has workers, samples, a window, and a power of two of rows")
        self.me = -1
        self.workers = workers
        self.samples = samples
        self.window_ms = <int64_t>window_seconds * 1000
        self.secret = os.urandom(16)
        self.cell_size = sizeof(Cell) + (<size_t>samples + 1) * sizeof(Sample)
        while rows > 2 and <size_t>rows * workers * self.cell_size > <size_t>1 << SIZE_MAX_SHIFT:
            rows >>= 1
        self.row_count = rows
        self.size = LOCK_SIZE + <size_t>rows * (sizeof(uint64_t) + sizeof(int64_t) + workers * self.cell_size)
        self.memory = <uint8_t*>mmap(
            NULL, self.size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
        if self.memory == MAP_FAILED:
            self.memory = NULL
            raise MemoryError("no address space for the table of quotas")
        if robust_mutex_new(self.memory) != 0:
            raise OSError("no mutex for the table of quotas")
        self.keys = <uint64_t*>(self.memory + LOCK_SIZE)
        self.used_ms = <int64_t*>(self.keys + rows)
        self.cells = <uint8_t*>(self.used_ms + rows)

    def __dealloc__(self):
        if self.memory is not NULL:
            munmap(self.memory, self.size)

    def enter(self, int me):
        """From now on this process counts as worker `me`, which has counted nothing yet."""
        cdef uint32_t row
        if not 0 <= me < self.workers:
            raise ValueError("no such worker")
        self.me = me
        for row in range(self.row_count):
            if self.keys[row] != FREE or row == self.row_count - 1:
                cell_clear(cell_of(self, <int32_t>row, me))

    def claim(self, uint64_t key, int64_t now_ms):
        return table_claim(self, key, now_ms)

    def holds(self, int32_t row, uint64_t key):
        return table_holds(self, row, key)

    def record(self, int32_t row, double amount, double limit, int64_t now_ms):
        """Return for how many milliseconds the client must pause."""
        return table_record(self, row, amount, limit, now_ms)

    def rate(self, int32_t row, int64_t now_ms):
        """A second."""
        cdef int64_t elapsed_ms
        cdef double total = table_total(self, row, now_ms, &elapsed_ms)
        return total * 1000.0 / elapsed_ms

    def used(self):
        """How many rows have a key."""
        return sum(1 for row in range(self.row_count) if self.keys[row] > DELETED)

    def become(self, int me):
        """For tests: count as another worker that has entered."""
        self.me = me

    def lock(self):
        """For tests: hold the lock, as one that is stopped with it does."""
        return robust_mutex_take(self.memory, PATIENCE_MS)


# -- rows --------------------------------------------------------------------------------------------------

cdef inline Cell* cell_of(QuotaTable self, int32_t row, int worker) noexcept nogil:
    return <Cell*>(self.cells + (<size_t>row * self.workers + worker) * self.cell_size)


cdef inline Sample* samples_of(Cell* cell) noexcept nogil:
    return <Sample*>(cell + 1)


cdef inline void cell_clear(Cell* cell) noexcept nogil:
    put_count(&cell.count, 0)
    cell.current = 0


cdef bint table_holds(QuotaTable self, int32_t row, uint64_t key) noexcept nogil:
    return key_at(&self.keys[row]) == key or row == <int32_t>self.row_count - 1


cdef int32_t table_claim(QuotaTable self, uint64_t key, int64_t now_ms) noexcept nogil:
    cdef uint32_t last = self.row_count - 1             # the shared row; no key stands there
    cdef int32_t row
    if key <= DELETED:
        key += 2
    if not robust_mutex_take(self.memory, PATIENCE_MS):
        self.shared += 1
        return <int32_t>last
    row = find(self, key)
    if row < 0:
        row = make(self, key, now_ms)
        if row < 0 and sweep(self, now_ms):
            row = make(self, key, now_ms)
        if row < 0:
            self.shared += 1
            row = <int32_t>last
    self.used_ms[row] = now_ms
    robust_mutex_give(self.memory)
    return row


cdef int32_t find(QuotaTable self, uint64_t key) noexcept nogil:
    cdef uint32_t mask = self.row_count - 1
    cdef uint32_t at = <uint32_t>key & mask
    cdef uint32_t i
    for i in range(self.row_count):
        if self.keys[at] == key:
            return <int32_t>at
        if self.keys[at] == FREE and at != mask:
            return -1
        at = (at + 1) & mask
    return -1


cdef int32_t make(QuotaTable self, uint64_t key, int64_t now_ms) noexcept nogil:
    cdef uint32_t mask = self.row_count - 1
    cdef uint32_t at = <uint32_t>key & mask
    cdef uint32_t i
    cdef int worker
    for i in range(self.row_count):
        if at != mask and self.keys[at] <= DELETED:
            for worker in range(self.workers):          # nobody counts there: see `sweep`
                cell_clear(cell_of(self, <int32_t>at, worker))
            self.used_ms[at] = now_ms
            put_key(&self.keys[at], key)
            return <int32_t>at
        at = (at + 1) & mask
    return -1


cdef bint sweep(QuotaTable self, int64_t now_ms) noexcept nogil:
    """Take back all rows whose samples are too old to count, so that nothing is lost with them. False: there are none."""
    cdef int64_t keep_ms = (<int64_t>self.samples + 2) * self.window_ms
    cdef uint32_t mask = self.row_count - 1
    cdef uint32_t row
    cdef int64_t before = self.swept
    for row in range(mask):
        if self.keys[row] > DELETED and now_ms - self.used_ms[row] > keep_ms:
            put_key(&self.keys[row], DELETED)
            self.swept += 1
    if self.swept == before:
        return False
    for row in range(mask, 0, -1):                      # where a chain of rows ends, nothing is looked for behind it
        if self.keys[row - 1] == DELETED and (row == mask or self.keys[row] == FREE) and not (
                row == mask and self.keys[0] != FREE):
            put_key(&self.keys[row - 1], FREE)
    return True


# -- counting ----------------------------------------------------------------------------------------------

cdef void table_add(QuotaTable self, int32_t row, double amount, int64_t now_ms) noexcept nogil:
    cdef Cell* cell = cell_of(self, row, self.me)
    cdef Sample* sample
    KAFKAD_CHECK(self.me >= 0)
    if cell.count == 0:
        cell.current = 0
        sample_start(samples_of(cell), now_ms)
        put_count(&cell.count, 1)
    sample = samples_of(cell) + cell.current
    if now_ms - sample.start_ms >= self.window_ms:
        cell.current = (cell.current + 1) % (<uint32_t>self.samples + 1)
        sample = samples_of(cell) + cell.current
        sample_start(sample, now_ms)
        if cell.current >= cell.count:
            put_count(&cell.count, cell.current + 1)
    sample.amount += amount
    sample.last_ms = now_ms
    self.used_ms[row] = now_ms


cdef int64_t table_record(QuotaTable self, int32_t row, double amount, double limit, int64_t now_ms) noexcept nogil:
    cdef int64_t elapsed_ms = 1
    cdef double rate, pause
    table_add(self, row, amount, now_ms)
    rate = table_total(self, row, now_ms, &elapsed_ms) / (<double>elapsed_ms / 1000.0)
    if rate <= limit:
        return 0
    pause = floor((rate - limit) / limit * <double>elapsed_ms + 0.5)
    return <int64_t>min(pause, <double>(<int64_t>1 << 40))


cdef inline void sample_start(Sample* sample, int64_t now_ms) noexcept nogil:
    sample.amount = 0
    sample.start_ms = now_ms
    sample.last_ms = now_ms


cdef double table_sum(QuotaTable self, int32_t row, int64_t now_ms, int64_t* oldest_ms) noexcept nogil:
    cdef int64_t keep_ms = <int64_t>self.samples * self.window_ms
    cdef double total = 0
    cdef Cell* cell
    cdef Sample* sample
    cdef uint32_t count, i
    cdef int worker
    oldest_ms[0] = now_ms
    for worker in range(self.workers):
        cell = cell_of(self, row, worker)
        count = min(count_of(&cell.count), <uint32_t>self.samples + 1)
        sample = samples_of(cell)
        for i in range(count):
            if now_ms - sample.last_ms < keep_ms:
                total += sample.amount
                oldest_ms[0] = min(oldest_ms[0], sample.start_ms)
            sample += 1
    return total


cdef double table_total(QuotaTable self, int32_t row, int64_t now_ms, int64_t* elapsed_ms) noexcept nogil:
    cdef int64_t oldest_ms = now_ms
    cdef int64_t windows
    cdef double total = table_sum(self, row, now_ms, &oldest_ms)
    elapsed_ms[0] = now_ms - oldest_ms
    windows = elapsed_ms[0] // self.window_ms
    if windows < self.samples - 1:
        elapsed_ms[0] += (self.samples - 1 - windows) * self.window_ms
    elapsed_ms[0] = max(elapsed_ms[0], <int64_t>1)
    return total

"""What the clients of a broker have used of their quotas, counted by all of its workers. See quota_table.pyx."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

cdef struct Sample:                 # what one worker counted in about one window
    int64_t start_ms                # monotonic, as all times here
    int64_t last_ms
    double amount

cdef struct Cell:                   # one worker's samples of a row, written by it alone; they follow
    uint32_t current
    uint32_t count

cdef class QuotaTable:
    cdef readonly int me            # -1 before `enter`
    cdef readonly int workers
    cdef readonly uint32_t row_count
    cdef readonly int samples       # quota.window.num
    cdef readonly int64_t window_ms # quota.window.size.seconds
    cdef readonly bytes secret      # keys are made with it, so that no client can choose one
    cdef uint8_t* memory
    cdef size_t size
    cdef size_t cell_size
    cdef uint64_t* keys             # 0: a free row, 1: one that was in use
    cdef int64_t* used_ms           # when a row was last counted in
    cdef uint8_t* cells
    cdef readonly int64_t swept     # rows that were taken back, by this worker
    cdef readonly int64_t shared    # how often this worker had to count in the row for all that find no place
    cdef bint locked

# The row of a key, which is made if there is none. With no place left: the last row, which all such keys share.
cdef int32_t table_claim(QuotaTable self, uint64_t key, int64_t now_ms) noexcept nogil
# Whether a row is still this key's: rows that nobody counts in are taken back.
cdef bint table_holds(QuotaTable self, int32_t row, uint64_t key) noexcept nogil
# Count, and tell how long the client must pause: milliseconds, 0 within the limit.
cdef int64_t table_record(QuotaTable self, int32_t row, double amount, double limit, int64_t now_ms) noexcept nogil
# Count.
cdef void table_add(QuotaTable self, int32_t row, double amount, int64_t now_ms) noexcept nogil
# What all workers have counted in the window, and when the oldest of it began to be counted.
cdef double table_sum(QuotaTable self, int32_t row, int64_t now_ms, int64_t* oldest_ms) noexcept nogil
# What all workers have counted in the window, and its length in milliseconds.
cdef double table_total(QuotaTable self, int32_t row, int64_t now_ms, int64_t* elapsed_ms) noexcept nogil

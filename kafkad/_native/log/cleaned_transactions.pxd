"""Which batches of a pass over a log were aborted, and which markers have no data left: see
cleaned_transactions.pyx."""

from libc.stdint cimport int64_t

from kafkad._native.wire.buffer cimport WriteBuffer


cdef struct AbortedEntry:
    int64_t producer_id
    int64_t first_offset
    int64_t last_offset
    int64_t last_stable_offset


cdef struct Ongoing:
    int64_t producer_id             # -1: a free slot
    int64_t aborted                 # number of its current aborted transaction, -1: none
    bint observed                   # the pass has seen a batch of that transaction
    bint committed                  # the pass has seen a batch that was not aborted


cdef class CleanedTransactions:
    cdef AbortedEntry* aborted
    cdef int64_t aborted_count
    cdef int64_t next_aborted
    cdef Ongoing* ongoing
    cdef size_t slots               # a power of two
    cdef size_t used
    cdef WriteBuffer kept           # the entries of the new .txnindex

    # For a data batch: returns whether its transaction was aborted; -1: no memory.
    cdef int on_batch(self, int64_t producer_id, int64_t last_offset, bint transactional) except -1 nogil
    # For a marker: returns whether no batch of its transaction was seen, so that it may be removed; -1: no memory.
    cdef int on_marker(self, int64_t producer_id, int64_t last_offset, bint commit) except -1 nogil
    # For any other control batch.
    cdef int on_control(self, int64_t last_offset) except -1 nogil
    cdef int begin_aborted(self, int64_t offset) except -1 nogil
    cdef Ongoing* find(self, int64_t producer_id) noexcept nogil
    cdef Ongoing* find_or_add(self, int64_t producer_id) except NULL nogil
    cdef void remove(self, Ongoing* entry) noexcept nogil

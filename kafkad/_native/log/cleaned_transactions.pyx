"""The transactions that one pass of the cleaner over a log meets (Kafka's CleanedTransactionMetadata).

Aborted data is removed at once. Its marker is removed later: it stays while the pass still sees a batch of its
transaction, so that readers do not take leftover data for an open transaction. `kept` collects the index entries of
aborts that stay."""

from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport calloc, free, malloc

from cpython.bytes cimport PyBytes_FromStringAndSize

from kafkad._native.wire.buffer cimport buffer_free, buffer_init, write_i16, write_i64

cdef enum:
    SLOTS_MIN = 64


cdef inline size_t hashed(int64_t producer_id) noexcept nogil:
    return <size_t>((<uint64_t>producer_id * 0x9E3779B97F4A7C15ULL) >> 20)


cdef Ongoing* new_table(size_t slots) noexcept nogil:
    cdef Ongoing* table = <Ongoing*>malloc(slots * sizeof(Ongoing))
    cdef size_t i
    if table != NULL:
        for i in range(slots):
            table[i].producer_id = -1
    return table


cdef class CleanedTransactions:
    """`aborted`: (producer id, first offset, last offset, last stable offset) of all aborts in the range of the
    pass."""

    def __cinit__(self, aborted=()):
        cdef AbortedEntry* entry
        buffer_init(&self.kept)
        ordered = sorted(set(map(tuple, aborted)), key=lambda each: each[1])
        self.slots = SLOTS_MIN
        self.ongoing = new_table(SLOTS_MIN)
        self.aborted = <AbortedEntry*>calloc(len(ordered) or 1, sizeof(AbortedEntry))
        if self.ongoing == NULL or self.aborted == NULL:
            raise MemoryError
        for producer_id, first_offset, last_offset, last_stable_offset in ordered:
            entry = &self.aborted[self.aborted_count]
            entry.producer_id = producer_id
            entry.first_offset = first_offset
            entry.last_offset = last_offset
            entry.last_stable_offset = last_stable_offset
            self.aborted_count += 1

    def __dealloc__(self):
        free(self.aborted)
        free(self.ongoing)
        buffer_free(&self.kept)

    def take_kept(self):
        """Return the entries of the .txnindex that were kept since the last call."""
        taken = PyBytes_FromStringAndSize(<const char*>self.kept.data, self.kept.size) if self.kept.size else b""
        self.kept.size = 0
        return taken

    cdef Ongoing* find(self, int64_t producer_id) noexcept nogil:
        cdef size_t at = hashed(producer_id) & (self.slots - 1)
        while self.ongoing[at].producer_id != -1:
            if self.ongoing[at].producer_id == producer_id:
                return &self.ongoing[at]
            at = (at + 1) & (self.slots - 1)
        return NULL

    cdef Ongoing* find_or_add(self, int64_t producer_id) except NULL nogil:
        cdef Ongoing* entry = self.find(producer_id)
        cdef Ongoing* table
        cdef size_t slots
        cdef size_t i
        cdef size_t at
        if entry != NULL:
            return entry
        if (self.used + 1) * 2 > self.slots:
            slots = self.slots * 2
            table = new_table(slots)
            if table == NULL:
                with gil:
                    raise MemoryError(f"no room for {slots} transactions")
            for i in range(self.slots):
                if self.ongoing[i].producer_id != -1:
                    at = hashed(self.ongoing[i].producer_id) & (slots - 1)
                    while table[at].producer_id != -1:
                        at = (at + 1) & (slots - 1)
                    table[at] = self.ongoing[i]
            free(self.ongoing)
            self.ongoing = table
            self.slots = slots
        at = hashed(producer_id) & (self.slots - 1)
        while self.ongoing[at].producer_id != -1:
            at = (at + 1) & (self.slots - 1)
        entry = &self.ongoing[at]
        entry.producer_id = producer_id
        entry.aborted = -1
        entry.observed = False
        entry.committed = False
        self.used += 1
        return entry

    cdef void remove(self, Ongoing* entry) noexcept nogil:
        """Free the slot of an empty entry, and move up the entries behind it."""
        cdef size_t hole = <size_t>(entry - self.ongoing)
        cdef size_t at = hole
        cdef size_t home
        if entry.aborted != -1 or entry.committed:
            return
        while True:
            at = (at + 1) & (self.slots - 1)
            if self.ongoing[at].producer_id == -1:
                break
            home = hashed(self.ongoing[at].producer_id) & (self.slots - 1)
            if ((at - home) & (self.slots - 1)) >= ((at - hole) & (self.slots - 1)):
                self.ongoing[hole] = self.ongoing[at]
                hole = at
        self.ongoing[hole].producer_id = -1
        self.used -= 1

    cdef int begin_aborted(self, int64_t offset) except -1 nogil:
        cdef Ongoing* entry
        while self.next_aborted < self.aborted_count and self.aborted[self.next_aborted].first_offset <= offset:
            entry = self.find_or_add(self.aborted[self.next_aborted].producer_id)
            if entry.aborted == -1:
                entry.aborted = self.next_aborted
                entry.observed = False
            self.next_aborted += 1
        return 0

    cdef int on_batch(self, int64_t producer_id, int64_t last_offset, bint transactional) except -1 nogil:
        cdef Ongoing* entry
        self.begin_aborted(last_offset)
        if not transactional or producer_id < 0:
            return False
        entry = self.find_or_add(producer_id)
        if entry.aborted != -1:
            entry.observed = True
            return True
        entry.committed = True
        return False

    cdef int on_marker(self, int64_t producer_id, int64_t last_offset, bint commit) except -1 nogil:
        cdef Ongoing* entry
        cdef AbortedEntry* aborted = NULL
        cdef bint seen = False
        self.begin_aborted(last_offset)
        entry = self.find(producer_id)
        if entry == NULL:
            return True
        if commit:
            seen = entry.committed
            entry.committed = False
        elif entry.aborted != -1:
            seen = entry.observed
            aborted = &self.aborted[entry.aborted]
            entry.aborted = -1
        self.remove(entry)
        if aborted != NULL and seen:
            write_i16(&self.kept, 0)
            write_i64(&self.kept, aborted.producer_id)
            write_i64(&self.kept, aborted.first_offset)
            write_i64(&self.kept, aborted.last_offset)
            write_i64(&self.kept, aborted.last_stable_offset)
        return not seen

    cdef int on_control(self, int64_t last_offset) except -1 nogil:
        self.begin_aborted(last_offset)
        return 0

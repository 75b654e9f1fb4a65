"""The shared table of partition rows: 256 bytes each, one writer, read by every worker without a lock.

The table is a memfd mapped MAP_SHARED, so that forked workers share it (Docker's /dev/shm has 64 MB, and a memfd goes
with the last process). Its address space is reserved for `capacity` rows at once; memory comes with the first touch.
What stands in a row is watermarks.pxd's.

A row belongs to the process that allocated it, or that found it after its owner's death. It alone writes the row, under
its sequence number: odd while it is written. A reader copies the row between two looks at that number; when it stays
odd (its writer was put to sleep, or killed) the reader does with what it knew.

With `shared=True` several processes allocate: rows are counted with an atomic behind the last row, and a row says itself
whether it is free or who has it. So what a dead process had in its list of free rows, or had counted and not taken yet,
is found when the table is full; and what it had taken is its successor's, to `find`, or to `reclaim` where it has no use
for it.
Beware: a row that is given back keeps its sequence, generation and waiters; what cached it sees another topic id."""

import os
from array import array
from collections import namedtuple

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memset

cdef extern from "<sys/mman.h>" nogil:
    void* mmap(void* address, size_t length, int protection, int flags, int fd, long offset)
    int munmap(void* address, size_t length)
    void* MAP_FAILED
    enum: PROT_READ, PROT_WRITE, MAP_SHARED, MAP_NORESERVE

cdef extern from * nogil:
    """
    #define kafkad_count(p) __atomic_fetch_add((p), 1, __ATOMIC_ACQ_REL)
    #define kafkad_counted(p) __atomic_load_n((p), __ATOMIC_ACQUIRE)
    static inline int kafkad_take(uint32_t* state, uint32_t from, uint32_t to) {
        return __atomic_compare_exchange_n(state, &from, to, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
    }
    /* A copy that races with its writer is thrown away: what it reads meanwhile must only be no undefined behaviour. */
    static inline void kafkad_copy_words(uint64_t* to, const uint64_t* from, int words) {
        for (int i = 0; i < words; i++)
            to[i] = __atomic_load_n(from + i, __ATOMIC_RELAXED);
    }
    #define kafkad_fence_reads() __atomic_thread_fence(__ATOMIC_ACQUIRE)
    #if defined(__x86_64__) || defined(__i386__)
    #define kafkad_pause() __builtin_ia32_pause()
    #else
    #define kafkad_pause() ((void)0)
    #endif
    """
    uint64_t kafkad_count(uint64_t* p)
    uint64_t kafkad_counted(const uint64_t* p)
    bint kafkad_take(uint32_t* state, uint32_t before, uint32_t after)
    void kafkad_copy_words(uint64_t* to, const uint64_t* source, int words)
    void kafkad_fence_reads()
    void kafkad_pause()

cdef enum:
    ROW_SIZE = 256
    STATE = 3                   # of Row.state: RowState
    WORKER_SHIFT = 2
    WORKERS_MAX = 64
    PID_SHIFT = 8
    SPINS = 1000                # about 20 us; a writer needs some 20 ns

if sizeof(Row) != ROW_SIZE:
    raise ImportError("a partition's row is 256 bytes")

FOLLOWER = ROLE_FOLLOWER
LEADER = ROLE_LEADER

RowValues = namedtuple(
    "RowValues",
    "whole topic_id partition generation leader_epoch log_end_offset high_watermark last_stable_offset log_start_offset "
    "local_log_start_offset flushed_offset end_segment end_position waiters role led_since leader_id durable_offset "
    "epoch_start partition_epoch isr_count isr_count_max isr_count_min last_epoch")


cdef bint row_read(const Row* shared, Row* copy) noexcept nogil:
    cdef uint32_t before
    cdef int i
    for i in range(SPINS):
        before = kafkad_load(&shared.sequence)
        if before & 1:
            kafkad_pause()
            continue
        kafkad_copy_words(<uint64_t*>copy, <const uint64_t*>shared, ROW_WORDS)
        kafkad_fence_reads()
        if kafkad_load(&shared.sequence) == before:
            copy.sequence = before
            return True
    return False


cdef bint row_peek(const Row* shared, Row* copy) noexcept nogil:
    cdef Row before, after
    kafkad_copy_words(<uint64_t*>&before, <const uint64_t*>shared, ROW_WORDS)
    kafkad_fence_reads()
    kafkad_copy_words(<uint64_t*>copy, <const uint64_t*>shared, ROW_WORDS)
    kafkad_fence_reads()
    kafkad_copy_words(<uint64_t*>&after, <const uint64_t*>shared, ROW_WORDS)
    copy.led_since = after.led_since
    return before.led_since == after.led_since and before.partition == after.partition and (
        memcmp(before.topic_id, after.topic_id, 16) == 0)


@cython.no_gc                   # a row goes back to its table also when both are found to be garbage together
cdef class WatermarkTable:
    def __cinit__(self, size_t capacity=1 << 18, bint shared=False):
        cdef size_t size = capacity * ROW_SIZE + sizeof(uint64_t)
        cdef void* map
        self.fd = os.memfd_create("kafkad-watermarks", os.MFD_CLOEXEC)
        os.ftruncate(self.fd, size)
        map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, self.fd, 0)
        if map == MAP_FAILED:
            raise MemoryError("no address space for the watermark table")
        self.base = <uint8_t*>map
        self.count = <uint64_t*>(self.base + capacity * ROW_SIZE)
        self.capacity = capacity
        self.shared = shared
        self.free_rows = array("Q")  # an int object for each would lie where the log was, and keep its page

    def __dealloc__(self):
        if self.base != NULL:
            munmap(self.base, self.capacity * ROW_SIZE + sizeof(uint64_t))
            os.close(self.fd)

    @property
    def used(self) -> int:
        """Rows ever given, by any process."""
        return min(kafkad_counted(self.count), self.capacity)

    cdef Row* at(self, size_t number) noexcept:
        return <Row*>(self.base + number * ROW_SIZE)

    cdef RowSlot slot(self, size_t number):
        cdef RowSlot slot = RowSlot.__new__(RowSlot)
        slot.table = self
        slot.number = number
        slot.at = self.base + number * ROW_SIZE
        return slot

    def allocate(self) -> RowSlot:
        """An empty row; it returns to the table with the slot object."""
        cdef size_t number
        cdef uint32_t taken = self.taken()
        while self.free_rows:
            number = self.free_rows.pop()
            if kafkad_take(&self.at(number).state, ROW_FREE, taken):
                return self.cleared(number)
        while kafkad_counted(self.count) < self.capacity:
            number = kafkad_count(self.count)
            if number < self.capacity and kafkad_take(&self.at(number).state, ROW_NEW, taken):
                return self.cleared(number)
        for number in range(self.capacity):         # what another process gave back, or left when it died
            if (kafkad_take(&self.at(number).state, ROW_FREE, taken)
                    or kafkad_take(&self.at(number).state, ROW_NEW, taken)):
                return self.cleared(number)
        raise MemoryError("the watermark table is full")

    cdef uint32_t taken(self) except 0:
        return ROW_TAKEN | <uint32_t>self.me << WORKER_SHIFT | <uint32_t>os.getpid() << PID_SHIFT

    def enter(self, int me):
        """This process is worker `me`."""
        if not 0 <= me < WORKERS_MAX:
            raise ValueError("there is no such worker")
        self.me = me

    cdef RowSlot cleared(self, size_t number):
        cdef Row* row = self.at(number)
        if self.shared:
            row_empty(row)
        else:
            memset(row, 0, ROW_SIZE)
            row.state = self.taken()
        return self.slot(number)

    def find(self, bytes topic_id not None, int index):
        """The row that an owner of this partition left when it died, which is the caller's from now on; or None. For
        a process that takes over from another: what others allocate later is not looked for."""
        cdef Row* row
        cdef size_t number
        cdef uint32_t before
        if len(topic_id) != 16:
            raise ValueError("a topic id is 16 bytes")
        if self.found_by != os.getpid():
            self.found = {}
            self.found_by = os.getpid()
            for number in range(<size_t>self.used):
                row = self.at(number)
                if row.state & STATE == ROW_TAKEN:
                    self.found[PyBytes_FromStringAndSize(<char*>row.topic_id, 16), row.partition] = number
        found = self.found.pop((topic_id, index), None)
        if found is None:
            return None
        row = self.at(found)
        before = row.state
        if before & STATE != ROW_TAKEN or row.partition != index or (
                memcmp(row.topic_id, PyBytes_AS_STRING(topic_id), 16) != 0):
            return None
        return self.slot(found) if kafkad_take(&row.state, before, self.taken()) else None

    def reclaim(self) -> int:
        """Gives back the rows that a former life of this worker had and that were not found: of topics that were deleted
        while nobody owned them, and those that it had just taken. How many."""
        cdef uint32_t taken = self.taken()
        cdef uint32_t mine = taken & ((1 << PID_SHIFT) - 1)
        cdef Row* row
        cdef size_t number
        count = 0
        for number in range(<size_t>self.used):
            row = self.at(number)
            if row.state != taken and row.state & ((1 << PID_SHIFT) - 1) == mine:
                row_empty(row)
                kafkad_store(&row.state, ROW_FREE)
                self.free_rows.append(number)
                count += 1
        return count

    def row(self, size_t number) -> RowSlot:
        """A reader's view of another worker's row."""
        cdef RowSlot slot
        if number >= self.capacity:
            raise IndexError(number)
        slot = self.slot(number)
        slot.viewed = True
        return slot


cdef void row_empty(Row* row) noexcept nogil:
    """Nobody's: but its sequence goes on and its generation is a new one, so that no reader takes it for what it was."""
    cdef uint32_t generation = row.generation
    cdef uint64_t* word = <uint64_t*>row
    cdef int i
    row_begin(row)
    row.partition = 0
    for i in range(1, ROW_WORDS):
        if i != STATE_WORD:
            word[i] = 0
    row.led_since = -1              # beside it, `state` stays: others may look at it
    row.leader_id = -1
    row.last_epoch = -1
    row.generation = generation + 1
    row.leader_epoch = -1
    row_end(row)


@cython.no_gc
cdef class RowSlot:
    """One row. Made by `WatermarkTable.allocate`, `find` or `row`, or by `private_row`, never by hand."""

    def __dealloc__(self):
        cdef Row* row = <Row*>self.at
        if self.owned:
            free(self.at)
        elif self.table is not None and not self.viewed:
            if self.table.shared:
                row_empty(row)
            kafkad_store(&row.state, ROW_FREE)
            self.table.free_rows.append(self.number)

    def values(self):
        """What the row says. `whole` is False where its writer died in the midst: single values are right, but may
        belong to two moments."""
        cdef Row* row = <Row*>self.at
        cdef Row copy
        cdef bint whole = row_read(row, &copy)
        if not whole:
            kafkad_copy_words(<uint64_t*>&copy, <const uint64_t*>row, ROW_WORDS)
        return RowValues(
            whole, PyBytes_FromStringAndSize(<char*>copy.topic_id, 16), copy.partition, copy.generation, copy.leader_epoch,
            copy.log_end_offset, copy.high_watermark, copy.last_stable_offset, copy.log_start_offset,
            copy.local_log_start_offset, copy.flushed_offset, copy.end_segment, copy.end_position, row.waiters,
            copy.role, copy.led_since, copy.leader_id, copy.durable_offset, copy.epoch_start, copy.partition_epoch,
            copy.isr_count, copy.isr_count_max, copy.isr_count_min, copy.last_epoch)


def leave_odd(RowSlot slot not None) -> None:
    """A successor is about to finish an exchange of files that the row's dead owner began: readers open none until it
    adopts the row."""
    row_begin(<Row*>slot.at)


def private_row() -> RowSlot:
    """A row outside of any table: the metadata log's, a tool's, a test's."""
    cdef RowSlot slot = RowSlot.__new__(RowSlot)
    slot.at = <uint8_t*>calloc(1, ROW_SIZE)
    slot.owned = True
    if slot.at == NULL:
        raise MemoryError()
    return slot

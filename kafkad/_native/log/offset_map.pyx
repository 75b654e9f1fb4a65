"""The last offset of each key of a log, as the cleaner collects it, in a fixed amount of memory.

A slot takes 24 bytes, as in Kafka, so `log.cleaner.dedupe.buffer.size` means the same: 16 bytes of the key's hash, and
the offset. The keys themselves are not stored. Two keys with the same 128-bit hash would count as one key, and the
older record would be lost. The hash is keyed (SipHash-1-3 with a new random key each time), so such keys cannot be
constructed.

The memory is mapped, and only the pages that are used take any. `close` gives it back.

`follow` makes the map note, beside, which records went out of date: a bit for each offset from one on. So the second pass
knows what becomes of a batch without its records, which it then need not decompress, and of a record without its key.

It keeps the headers of large batches, too (at most 2.5 MB of them), so that the second pass does not read them again.

Beware: what the bits say holds for batches of which all records were put, with offsets that only grow and lie within their batch.
Otherwise the map stops following, and the second pass looks at keys."""

import os

from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcpy
from posix.mman cimport MAP_ANONYMOUS, MAP_FAILED, MAP_PRIVATE, PROT_READ, PROT_WRITE, mmap, munmap

from kafkad._native.wire.siphash cimport siphash_128

cdef extern from * nogil:
    """
    static inline uint64_t kafkad_scaled(uint64_t hash, uint64_t slots) {
        return (uint64_t)(((unsigned __int128)hash * slots) >> 64);
    }
    """
    uint64_t kafkad_scaled(uint64_t hash, uint64_t slots)
    void __builtin_prefetch(const void* address)
    int __builtin_popcountll(unsigned long long x)

cdef extern from "<sys/mman.h>" nogil:
    int madvise(void* address, size_t length, int advice)
    int MADV_HUGEPAGE

cdef enum:
    FOLLOWED_MAX = 1 << 23              # offsets: 2 MB
    HEADS_FIRST = 256
    HEADS_MAX = 1 << 15                 # 2.5 MB; of at least 8 KB each


cdef inline void mark(uint64_t* bits, uint64_t i) noexcept nogil:
    bits[i >> 6] |= <uint64_t>1 << (i & 63)


cdef inline bint has(const uint64_t* bits, uint64_t i) noexcept nogil:
    return bits[i >> 6] >> (i & 63) & 1


cdef class OffsetMap:
    """A table of `memory` bytes, of which `load_factor` may be filled."""

    def __cinit__(self, uint64_t memory, double load_factor=0.9):
        if not 0 < load_factor <= 1:
            raise ValueError(f"load factor {load_factor} is not between 0 and 1")
        self.slots = memory // sizeof(Slot)
        self.size_max = <uint64_t>(self.slots * load_factor)
        if self.size_max < 1:
            raise ValueError(f"{memory} bytes hold no slot of an offset map")
        if self.size_max == self.slots:
            self.size_max -= 1                         # a search ends at a free slot
            if self.size_max < 1:
                raise ValueError(f"{memory} bytes hold no slot of an offset map")
        self.latest_offset = -1
        seed = os.urandom(16)
        self.seed.low = int.from_bytes(seed[:8], "little")
        self.seed.high = int.from_bytes(seed[8:], "little")
        memory_at = mmap(NULL, self.slots * sizeof(Slot), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
        if memory_at == MAP_FAILED:
            raise MemoryError(f"no {memory} bytes for an offset map")
        # A key may be anywhere: with small pages most look-ups would wait for the page table, too.
        madvise(memory_at, self.slots * sizeof(Slot), MADV_HUGEPAGE)
        self.table = <Slot*>memory_at

    def __dealloc__(self):
        self.close()

    def follow(self, int64_t start_offset, int64_t end_offset):
        """Note which records between these offsets go out of date, as far as the memory for it goes. Before the first
        one is put."""
        cdef uint64_t count = <uint64_t>min(max(end_offset - start_offset, <int64_t>0), <int64_t>FOLLOWED_MAX)
        cdef size_t words = <size_t>(count // 64 + 1)
        if self.outdated != NULL:
            raise ValueError("this offset map follows already")
        self.outdated = <uint64_t*>calloc(2 * words, sizeof(uint64_t))
        if self.outdated == NULL:
            raise MemoryError(f"no memory for the fates of {count} records")
        self.ordinary = self.outdated + words
        self.followed_from = start_offset
        self.followed = count
        self.followed_to = start_offset - 1

    def unfollow(self):
        """No batch's fate is known from now on."""
        self.stop_following()

    def close(self):
        """Give the memory back. Nothing may be put or looked up afterwards."""
        free(self.outdated)
        free(self.heads)
        self.outdated = self.ordinary = NULL
        self.heads = NULL
        self.heads_count = self.heads_room = 0
        self.followed = 0
        if self.table != NULL:
            munmap(self.table, self.slots * sizeof(Slot))
            self.table = NULL
            self.size_max = 0

    def __len__(self):
        return self.size

    cdef Hashed hash_of(self, const uint8_t* key, size_t size) noexcept nogil:
        cdef Hashed found
        siphash_128(self.seed.low, self.seed.high, key, size, &found.low, &found.high)
        return found

    cdef void prefetch(self, Hashed hashed) noexcept nogil:
        __builtin_prefetch(&self.table[kafkad_scaled(hashed.low, self.slots)])

    cdef Slot* slot_of(self, Hashed hashed) noexcept nogil:
        # Returns the key's slot, or the free slot for it.
        cdef Slot* slot = self.table + kafkad_scaled(hashed.low, self.slots)
        cdef Slot* end = self.table + self.slots
        while slot.last and (slot.key.low != hashed.low or slot.key.high != hashed.high):
            slot += 1
            if slot == end:
                slot = self.table
        return slot

    cdef bint put_hashed(self, Hashed hashed, int64_t offset) noexcept nogil:
        cdef Slot* slot
        if self.size >= self.size_max:                 # Kafka refuses a known key here, too
            return False
        slot = self.slot_of(hashed)
        if slot.last == 0:
            slot.key = hashed
            self.size += 1
        elif <uint64_t>(slot.last - 1 - self.followed_from) < self.followed:
            mark(self.outdated, <uint64_t>(slot.last - 1 - self.followed_from))
        slot.last = offset + 1
        self.latest_offset = offset
        return True

    cdef int64_t get_hashed(self, Hashed hashed) noexcept nogil:
        return self.slot_of(hashed).last - 1

    # -- what became of records

    cdef void stop_following(self) noexcept nogil:
        self.followed = 0

    cdef void note_offset(self, int64_t offset, int64_t base_offset, int64_t last_offset) noexcept nogil:
        if offset < base_offset or offset > last_offset or self.followed_from <= self.followed_to >= offset:
            self.followed = 0
        self.followed_to = offset

    cdef void note_batch(self, int64_t base_offset, bint is_ordinary) noexcept nogil:
        if is_ordinary and <uint64_t>(base_offset - self.followed_from) < self.followed:
            mark(self.ordinary, <uint64_t>(base_offset - self.followed_from))

    cdef void note_head(self, int64_t segment, int64_t position, const uint8_t* data) noexcept nogil:
        cdef Head* heads
        cdef size_t room
        if self.heads_count == self.heads_room:
            room = 2 * self.heads_room if self.heads_room else HEADS_FIRST
            heads = <Head*>realloc(self.heads, room * sizeof(Head)) if room <= HEADS_MAX else NULL
            if heads == NULL:                          # the second pass reads them
                return
            self.heads = heads
            self.heads_room = room
        self.heads[self.heads_count].segment = segment
        self.heads[self.heads_count].position = position
        memcpy(self.heads[self.heads_count].bytes, data, HEADER_SIZE)
        self.heads_count += 1

    cdef const uint8_t* head_at(self, int64_t segment, int64_t position) noexcept nogil:
        cdef Head* head
        while self.heads_next < self.heads_count:
            head = &self.heads[self.heads_next]
            if head.segment == segment and head.position == position:
                return head.bytes
            if head.segment > segment or (head.segment == segment and head.position > position):
                break
            self.heads_next += 1
        return NULL

    cdef bint follows(self, int64_t base_offset, int64_t last_offset) noexcept nogil:
        return self.followed_from <= base_offset <= last_offset and last_offset - self.followed_from < <int64_t>self.followed

    cdef bint is_outdated(self, int64_t offset) noexcept nogil:
        return has(self.outdated, <uint64_t>(offset - self.followed_from))

    cdef Fate fate(self, int64_t base_offset, int64_t last_offset, int32_t records) noexcept nogil:
        cdef uint64_t first, last
        cdef uint64_t i
        cdef uint64_t word
        cdef int64_t count = 0
        if records <= 0 or not self.follows(base_offset, last_offset):
            return UNKNOWN
        first = <uint64_t>(base_offset - self.followed_from)
        last = <uint64_t>(last_offset - self.followed_from)
        for i in range(first >> 6, (last >> 6) + 1):
            word = self.outdated[i]
            if i == first >> 6:
                word &= ~<uint64_t>0 << (first & 63)
            if i == last >> 6:
                word &= ~<uint64_t>0 >> (63 - (last & 63))
            count += __builtin_popcountll(word)
        if count == records:
            return ALL_GO
        return ALL_STAY if count == 0 and has(self.ordinary, first) else UNKNOWN

    def put(self, bytes key not None, int64_t offset):
        """Return False if the map is full; then nothing has changed."""
        if self.table == NULL:
            raise ValueError("the offset map is closed")
        return self.put_hashed(self.hash_of(<const uint8_t*><char*>key, len(key)), offset)

    def get(self, bytes key not None):
        """Return the last offset of a key, or -1."""
        if self.table == NULL:
            raise ValueError("the offset map is closed")
        return self.get_hashed(self.hash_of(<const uint8_t*><char*>key, len(key)))

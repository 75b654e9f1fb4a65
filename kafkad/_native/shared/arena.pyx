"""Memory that other workers can read: a sparse shared region, allocated in whole pages by a buddy allocator.

A worker reads its sockets into buffers of its arena. To forward a Produce, it sends only the address to the owner of
the partition, which writes the file from there. An arena is a memfd that all workers have mapped at the same address
since before the fork. It is mostly address space: freeing a block returns its memory to the system (a hole is
punched), so free blocks, and rounding up to a power of two, use no memory.

The allocator's tables are private to the worker that owns the arena, and outside of the shared memory. So a worker
that dies cannot leave them half changed. Blocks merge with their buddies. If the live blocks have at most L bytes, and
the largest has 2^k pages, L * (k + 1) bytes of address space are always enough: 8 GiB for 512 MiB of buffers of up to
128 MiB."""

from libc.stdint cimport uint8_t, uint32_t
from libc.string cimport memset

from kafkad._native.wire.primitives cimport KAFKAD_CHECK

cdef extern from * nogil:
    """
    #include <fcntl.h>
    #include <linux/falloc.h>
    #include <sys/mman.h>
    """
    void* mmap(void* address, size_t length, int protection, int flags, int fd, long offset)
    int munmap(void* address, size_t length)
    int fallocate(int fd, int mode, long offset, long size)
    void* MAP_FAILED
    enum: PROT_READ, PROT_WRITE, MAP_PRIVATE, MAP_ANONYMOUS, MAP_NORESERVE
    enum: FALLOC_FL_PUNCH_HOLE, FALLOC_FL_KEEP_SIZE


cdef inline int order_of(size_t size) noexcept nogil:
    cdef int order = 0
    while (<size_t>ARENA_PAGE << order) < size:
        order += 1
    return order


cdef void link(Arena* arena, uint32_t page, int order) noexcept nogil:
    arena.orders[page] = <uint8_t>(order + 1)
    arena.previous[page] = 0
    arena.following[page] = arena.free[order]
    if arena.free[order]:
        arena.previous[arena.free[order] - 1] = page + 1
    arena.free[order] = page + 1


cdef void unlink(Arena* arena, uint32_t page, int order) noexcept nogil:
    arena.orders[page] = 0
    if arena.previous[page]:
        arena.following[arena.previous[page] - 1] = arena.following[page]
    else:
        arena.free[order] = arena.following[page]
    if arena.following[page]:
        arena.previous[arena.following[page] - 1] = arena.previous[page]


cdef bint arena_open(Arena* arena, int fd, uint8_t* map, size_t at, size_t size) noexcept nogil:
    """Open an arena of `size` free bytes, from `at` of a mapped memfd. Return False if there is no memory for the tables."""
    cdef size_t pages = size // ARENA_PAGE
    cdef void* tables = mmap(NULL, pages * 9, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                             -1, 0)
    if tables == MAP_FAILED:
        return False
    memset(arena, 0, sizeof(Arena))
    arena.fd = fd
    arena.map = map
    arena.base = map + at
    arena.size = size
    arena.following = <uint32_t*>tables
    arena.previous = arena.following + pages
    arena.orders = <uint8_t*>(arena.previous + pages)
    link(arena, 0, order_of(size))
    return True


cdef void arena_close(Arena* arena) noexcept nogil:
    if arena.following is not NULL:
        munmap(arena.following, arena.size // ARENA_PAGE * 9)
        arena.following = NULL


cdef uint8_t* arena_take(Arena* arena, size_t size) noexcept nogil:
    cdef int wanted = order_of(size)
    cdef int order = wanted
    cdef uint32_t page
    while (<size_t>ARENA_PAGE << order) <= arena.size and not arena.free[order]:
        order += 1
    if (<size_t>ARENA_PAGE << order) > arena.size:
        return NULL
    page = arena.free[order] - 1
    unlink(arena, page, order)
    while order > wanted:
        order -= 1
        link(arena, page + (<uint32_t>1 << order), order)
    return arena.base + <size_t>page * ARENA_PAGE


cdef void arena_give(Arena* arena, uint8_t* at, size_t size) noexcept nogil:
    cdef int order = order_of(size)
    cdef uint32_t page = <uint32_t>(<size_t>(at - arena.base) // ARENA_PAGE)
    cdef uint32_t buddy
    KAFKAD_CHECK(at >= arena.base and at + size <= arena.base + arena.size)
    KAFKAD_CHECK(<size_t>(at - arena.base) % (<size_t>ARENA_PAGE << order) == 0)
    arena_punch(arena.fd, <size_t>(at - arena.map), (size + ARENA_PAGE - 1) // ARENA_PAGE * ARENA_PAGE)
    while (<size_t>ARENA_PAGE << order) < arena.size:
        buddy = page ^ (<uint32_t>1 << order)
        if arena.orders[buddy] != order + 1:
            break
        unlink(arena, buddy, order)
        page = min(page, buddy)
        order += 1
    KAFKAD_CHECK(arena.orders[page] == 0)
    link(arena, page, order)


cdef void arena_punch(int fd, size_t at, size_t size) noexcept nogil:
    fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, <long>at, <long>size)

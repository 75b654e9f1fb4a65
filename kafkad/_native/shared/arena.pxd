"""Memory that other workers can read: one sparse region per worker, with its allocator. See arena.pyx."""

from libc.stdint cimport uint8_t, uint32_t

cdef enum:
    ARENA_PAGE = 4096

cdef struct Arena:                  # one worker's arena, or the half that it uses
    int fd                          # memfd, mapped from its offset 0 at `map`
    uint8_t* map
    uint8_t* base                   # start of the used part
    size_t size                     # size of that part, a power of two
    uint8_t* orders                 # per page: 1 + order of the free block that starts here, else 0; private
    uint32_t* following             # per page: links of the free lists; page number + 1, 0: none
    uint32_t* previous
    uint32_t free[32]               # per order: the first free block

cdef bint arena_open(Arena* arena, int fd, uint8_t* map, size_t at, size_t size) noexcept nogil
cdef void arena_close(Arena* arena) noexcept nogil
cdef uint8_t* arena_take(Arena* arena, size_t size) noexcept nogil         # page aligned; NULL: no room
cdef void arena_give(Arena* arena, uint8_t* at, size_t size) noexcept nogil
cdef void arena_punch(int fd, size_t at, size_t size) noexcept nogil

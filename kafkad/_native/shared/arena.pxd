"""Memory that other workers can read: a sparse region of each worker, and what of it is free. See arena.pyx."""

from libc.stdint cimport uint8_t, uint32_t

cdef enum:
    ARENA_PAGE = 4096

cdef struct Arena:                  # one worker's, or the half of it that is in use
    int fd                          # memfd, mapped from its offset 0 at `map`
    uint8_t* map
    uint8_t* base                   # of the part that is in use
    size_t size                     # of that part, a power of two
    uint8_t* orders                 # by page: 1 + order of the free block that starts here, else 0; private
    uint32_t* following             # by page: the free lists' links; page number + 1, 0: none
    uint32_t* previous
    uint32_t free[32]               # by order: the first free block

cdef bint arena_open(Arena* arena, int fd, uint8_t* map, size_t at, size_t size) noexcept nogil
cdef void arena_close(Arena* arena) noexcept nogil
cdef uint8_t* arena_take(Arena* arena, size_t size) noexcept nogil         # NULL: no room. Page aligned.
cdef void arena_give(Arena* arena, uint8_t* at, size_t size) noexcept nogil
cdef void arena_punch(int fd, size_t at, size_t size) noexcept nogil

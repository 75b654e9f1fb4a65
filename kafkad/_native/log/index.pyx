"""Kafka's sparse indexes of a segment, mapped.

An entry of `.index` has 8 bytes, of `.timeindex` 12: big-endian, sorted, with offsets relative to the segment's base.
The active segment's files are stretched to segment.index.bytes (a hole on disk) and cut to their entries when the
segment is rolled or closed, as Kafka does. A file that was not closed ends in zeros, and recovery rebuilds it.

Beware: writing to a hole of a mapped file on a full disk is a SIGBUS. `index_reserve` allocates the blocks first. So is
a page that the disk cannot read: `index_is_readable` reads an index that is not in memory as a file first.
"""

from libc.errno cimport EINTR, EIO, EOPNOTSUPP, ENOSYS, errno
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memset

from kafkad._native.log.fileio cimport read_at
from kafkad._native.wire.primitives cimport KAFKAD_CHECK, put_i32, put_i64

cdef extern from "<fcntl.h>" nogil:
    int c_open "open"(const char* path, int flags, ...)
    int fallocate(int fd, int mode, int64_t offset, int64_t length)
    enum: O_RDONLY, O_RDWR, O_CREAT, O_CLOEXEC

cdef extern from "<unistd.h>" nogil:
    int c_close "close"(int fd)
    int ftruncate(int fd, int64_t length)
    int truncate(const char* path, int64_t length)
    int64_t pwrite(int fd, const void* data, size_t size, int64_t offset)
    int64_t lseek(int fd, int64_t offset, int whence)
    enum: SEEK_END

cdef extern from "<sys/mman.h>" nogil:
    void* mmap(void* address, size_t length, int protection, int flags, int fd, int64_t offset)
    int munmap(void* address, size_t length)
    int madvise(void* address, size_t length, int advice)
    void* MAP_FAILED
    enum: PROT_READ, PROT_WRITE, MAP_SHARED, MADV_RANDOM

cdef extern from "mapped_pages.h" nogil:
    bint kafkad_mapped_resident(void* map, int64_t size)

cdef enum:
    READ_SIZE = 16 * 1024       # of one read by `index_is_readable`
    BLOCK = 4096                # blocks are allocated by the page


cdef int index_allocate(Index* index, int fd, int64_t size) noexcept nogil:
    # Allocates blocks for the file's first `size` bytes, in whole pages, never beyond its end.
    cdef int64_t wanted = (size + BLOCK - 1) // BLOCK * BLOCK
    cdef uint8_t zeros[BLOCK]
    cdef int64_t length
    if wanted > <int64_t>index.mapped:
        wanted = index.mapped
    if wanted <= index.allocated:
        return 0
    while fallocate(fd, 0, index.allocated, wanted - index.allocated) != 0:
        if errno == EINTR:
            continue
        if errno != EOPNOTSUPP and errno != ENOSYS:
            return -errno
        memset(zeros, 0, BLOCK)             # without fallocate: write zeros into the hole
        while index.allocated < wanted:
            length = wanted - index.allocated
            if length > BLOCK:
                length = BLOCK
            length = pwrite(fd, zeros, length, index.allocated)
            if length < 0:
                return -errno
            index.allocated += length
        break
    index.allocated = wanted
    return 0


cdef int index_open(Index* index, const char* path, int32_t entry_size, int64_t size_max, bint writable) noexcept nogil:
    cdef int fd, failure
    memset(index, 0, sizeof(Index))
    fd = c_open(path, (O_RDWR | O_CREAT if writable else O_RDONLY) | O_CLOEXEC, 0o644)
    if fd < 0:
        return -errno
    failure = index_map(index, fd, entry_size, size_max, writable)
    c_close(fd)
    return failure


cdef int index_map(Index* index, int fd, int32_t entry_size, int64_t size_max, bint writable) noexcept nogil:
    cdef uint8_t block[BLOCK]
    cdef int64_t size, stretched, tail
    cdef void* map
    cdef int failure
    memset(index, 0, sizeof(Index))
    index.entry_size = entry_size
    size = lseek(fd, 0, SEEK_END)
    size -= size % entry_size
    index.entries = <int32_t>(size // entry_size)
    stretched = size
    if writable:
        tail = (size - 1) % BLOCK + 1 if size else 0
        if read_at(fd, block, tail, size - tail) != tail:   # the next entry goes there
            return -EIO
        stretched = size_max - size_max % entry_size
        if stretched < size:
            stretched = size
        if ftruncate(fd, stretched) != 0:
            return -errno
    if stretched == 0:                      # an empty index: open, nothing to map
        index.writable = writable
        return 0
    map = mmap(NULL, stretched, PROT_READ | PROT_WRITE if writable else PROT_READ, MAP_SHARED, fd, 0)
    if map == MAP_FAILED:
        failure = -errno
        if writable:
            ftruncate(fd, size)             # otherwise its zeros would count as entries at the next open
        return failure
    if writable:
        # Otherwise the first store reads the hole around it into the page cache: megabytes of zeros, which the cut then
        # drops. That takes 4 ms and 0.8 ms on a disk that reads 8 MB ahead, instead of 15 and 6 us.
        madvise(map, stretched, MADV_RANDOM)
    index.map = <uint8_t*>map
    index.mapped = stretched
    index.entries_max = <int32_t>(stretched // entry_size)
    index.writable = writable
    index.allocated = size - size % BLOCK   # the page of the last entry is allocated again: it may be new
    return 0


cdef bint index_is_readable(const Index* index, const char* path) noexcept nogil:
    cdef uint8_t scratch[READ_SIZE]
    cdef int64_t size = <int64_t>index.entries * index.entry_size
    cdef int64_t at = 0, wanted
    cdef int fd
    if size == 0 or kafkad_mapped_resident(index.map, size):
        return True
    fd = c_open(path, O_RDONLY | O_CLOEXEC)
    if fd < 0:
        return True                         # not because of the disk's bytes
    while at < size:
        wanted = size - at
        if wanted > READ_SIZE:
            wanted = READ_SIZE
        if read_at(fd, scratch, wanted, at) != wanted:
            break
        at += wanted
    c_close(fd)
    return at == size


cdef int index_reserve(Index* index, const char* path) noexcept nogil:
    cdef int fd, failure
    cdef int64_t needed = (<int64_t>index.entries + 1) * index.entry_size
    if index_has_room(index):
        return 0
    fd = c_open(path, O_RDWR | O_CLOEXEC)
    if fd < 0:
        return -errno
    failure = index_allocate(index, fd, needed)
    c_close(fd)
    return failure


cdef void offset_index_append(Index* index, int32_t relative_offset, int32_t position) noexcept nogil:
    cdef uint8_t* at = index.map + <size_t>index.entries * OFFSET_ENTRY_SIZE
    KAFKAD_CHECK(index.entries < index.entries_max)
    put_i32(at, relative_offset)
    put_i32(at + 4, position)
    index.entries += 1


cdef void time_index_append(Index* index, int64_t timestamp, int32_t relative_offset) noexcept nogil:
    cdef uint8_t* at = index.map + <size_t>index.entries * TIME_ENTRY_SIZE
    KAFKAD_CHECK(index.entries < index.entries_max)
    put_i64(at, timestamp)
    put_i32(at + 8, relative_offset)
    index.entries += 1


cdef int index_close(Index* index, const char* path) noexcept nogil:
    # Cut by path, which needs no descriptor: there may be none left. An index that cannot be cut stays open, because
    # the zeros behind its entries would count as entries at the next open.
    if index.writable and truncate(path, <int64_t>index.entries * index.entry_size) != 0:
        return -errno
    index_drop(index)
    return 0


cdef void index_drop(Index* index) noexcept nogil:
    if index.map != NULL:
        munmap(index.map, index.mapped)
    memset(index, 0, sizeof(Index))

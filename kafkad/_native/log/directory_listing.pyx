"""What a partition's directory holds, in one pass: names, sizes, and the contents of its small files.

A start with 10,000 partitions spends most of its time here, so this is C without the GIL: one pass over the names, a
stat of each log and index, a read of the files of a few bytes. Only names are judged here. `log/recovery` handles
missing, damaged and leftover files."""

import os

from libc.errno cimport EINTR, ENOENT, ENOMEM, errno
from libc.stdint cimport INT64_MAX, int64_t, uint8_t
from libc.stdlib cimport free, realloc
from libc.string cimport memset, strcmp, strlen

from cpython.bytes cimport PyBytes_FromStringAndSize

cdef extern from "<fcntl.h>" nogil:
    int c_openat "openat"(int directory, const char* path, int flags, ...)
    enum: O_RDONLY, O_CLOEXEC

cdef extern from "<unistd.h>" nogil:
    int c_close "close"(int fd)
    int64_t c_read "read"(int fd, void* into, size_t size)

cdef extern from "<dirent.h>" nogil:
    ctypedef struct DIR:
        pass
    cdef struct dirent:
        char* d_name
    DIR* opendir(const char* path)
    dirent* readdir(DIR* directory)
    int closedir(DIR* directory)
    int dirfd(DIR* directory)

cdef extern from "<sys/stat.h>" nogil:
    cdef struct timespec:
        int64_t tv_sec
        long tv_nsec
    cdef struct stat_result "stat":
        int64_t st_size
        int st_mode
        timespec st_mtim
    int fstatat(int directory, const char* path, stat_result* result, int flags)
    bint S_ISREG(int mode)

cdef extern from * nogil:
    """
    #define kafkad_clear_errno() (errno = 0)
    """
    void kafkad_clear_errno()

cdef enum:
    OFFSET_DIGITS = 20
    SMALL = 4096                    # small files are smaller than this, except for a long leader-epoch-checkpoint
    ONE_PRODUCER = 10 + 46          # a snapshot with at most one producer

cdef enum Kind:
    OTHER = 0
    A_LOG
    AN_INDEX
    A_TIME_INDEX
    A_SNAPSHOT

cdef struct Found:
    int64_t base
    int64_t size
    int64_t changed_ms
    int kind

cdef struct Small:                  # the contents of a small file
    bint there
    int64_t size                    # SMALL: the file may be larger
    uint8_t bytes[SMALL]

cdef struct Look:
    Found* found
    size_t count
    size_t capacity
    int64_t newest_snapshot         # -1: none
    bint interrupted                # there are files of an unfinished deletion, cleaning or swap
    Small epochs
    Small metadata
    Small snapshot                  # the newest one


cdef bint ends_with(const char* name, size_t size, const char* suffix) noexcept nogil:
    cdef size_t length = strlen(suffix)
    return size >= length and strcmp(name + size - length, suffix) == 0


cdef int64_t offset_of(const char* name) noexcept nogil:
    # Returns the base offset in the name of a segment file; -1 for other names.
    cdef int64_t offset = 0
    cdef int i, digit
    for i in range(OFFSET_DIGITS):
        digit = name[i] - c"0"
        if digit < 0 or digit > 9 or offset > (INT64_MAX - digit) // 10:
            return -1
        offset = offset * 10 + digit
    return offset if name[OFFSET_DIGITS] == c"." else -1


cdef int kind_of(const char* suffix) noexcept nogil:
    if strcmp(suffix, b".log") == 0:
        return A_LOG
    if strcmp(suffix, b".index") == 0:
        return AN_INDEX
    if strcmp(suffix, b".timeindex") == 0:
        return A_TIME_INDEX
    return A_SNAPSHOT if strcmp(suffix, b".snapshot") == 0 else OTHER


cdef int read_small(int directory, const char* name, int64_t size_max, Small* small) noexcept nogil:
    cdef int fd
    cdef int64_t n
    while True:
        fd = c_openat(directory, name, O_RDONLY | O_CLOEXEC)
        if fd >= 0:
            break
        if errno == ENOENT:
            return 0
        if errno != EINTR:
            return -errno
    small.there = True
    while small.size < size_max:
        n = c_read(fd, small.bytes + small.size, size_max - small.size)
        if n == 0:
            break
        if n > 0:
            small.size += n
        elif errno != EINTR:
            n = -errno
            c_close(fd)
            return <int>n
    c_close(fd)
    return 0


cdef int note(Look* look, int directory, const char* name, int kind, int64_t base) noexcept nogil:
    cdef stat_result status
    cdef size_t capacity = look.capacity * 2 + 8
    cdef Found* found
    if look.count == look.capacity:
        found = <Found*>realloc(look.found, capacity * sizeof(Found))
        if found == NULL:
            return -ENOMEM
        look.found = found
        look.capacity = capacity
    found = &look.found[look.count]
    memset(found, 0, sizeof(Found))
    found.kind = kind
    found.base = base
    if kind == A_SNAPSHOT:
        if base > look.newest_snapshot:
            look.newest_snapshot = base
    else:
        if fstatat(directory, name, &status, 0) != 0:
            return -errno
        if not S_ISREG(status.st_mode):
            return 0
        found.size = status.st_size
        found.changed_ms = status.st_mtim.tv_sec * 1000 + status.st_mtim.tv_nsec // 1000000
    look.count += 1
    return 0


cdef int look_into(const char* path, Look* look) noexcept nogil:
    # 0 or -errno.
    cdef DIR* directory = opendir(path)
    cdef dirent* entry
    cdef const char* name
    cdef size_t size
    cdef int64_t base
    cdef int kind, failure = 0
    cdef bint epochs = False, metadata = False
    cdef char snapshot[OFFSET_DIGITS + 10]
    if directory == NULL:
        return -errno
    while failure == 0:
        kafkad_clear_errno()
        entry = readdir(directory)
        if entry == NULL:
            failure = -errno
            break
        name = entry.d_name
        size = strlen(name)
        if ends_with(name, size, b".deleted") or ends_with(name, size, b".cleaned") or ends_with(name, size, b".swap"):
            look.interrupted = True
            break
        base = offset_of(name) if size > OFFSET_DIGITS else -1
        if base < 0:
            epochs = epochs or strcmp(name, b"leader-epoch-checkpoint") == 0
            metadata = metadata or strcmp(name, b"partition.metadata") == 0
            continue
        kind = kind_of(name + OFFSET_DIGITS)
        if kind != OTHER:
            failure = note(look, dirfd(directory), name, kind, base)
    if failure == 0 and not look.interrupted:
        if epochs:
            failure = read_small(dirfd(directory), b"leader-epoch-checkpoint", SMALL, &look.epochs)
        if failure == 0 and metadata:
            failure = read_small(dirfd(directory), b"partition.metadata", SMALL, &look.metadata)
        if failure == 0 and look.newest_snapshot >= 0:
            snapshot_name(look.newest_snapshot, snapshot)
            failure = read_small(dirfd(directory), snapshot, ONE_PRODUCER + 1, &look.snapshot)
    closedir(directory)
    return failure


cdef void snapshot_name(int64_t offset, char* out) noexcept nogil:
    cdef int i
    for i in range(OFFSET_DIGITS - 1, -1, -1):
        out[i] = <char>(c"0" + offset % 10)
        offset //= 10
    for i in range(10):
        out[OFFSET_DIGITS + i] = b".snapshot"[i]


cdef object bytes_of(const Small* small):
    return PyBytes_FromStringAndSize(<const char*>small.bytes, small.size) if small.there else None


def list_partition(str directory):
    """Return (sizes of the logs, their modification times in ms, sizes of the offset indexes, sizes of the time
    indexes, all by base offset; offsets of the snapshots, ascending; contents of leader-epoch-checkpoint and of
    partition.metadata, or None; contents of the newest snapshot, or None if it has more than one producer). Return None
    if there are files of an unfinished deletion, cleaning or swap. Raises OSError."""
    cdef bytes encoded = os.fsencode(directory)
    cdef const char* path = encoded
    cdef Look look
    cdef Found* found
    cdef size_t i
    cdef int failure
    cdef dict sizes = {}, changed = {}, indexes = {}, times = {}
    cdef list snapshots = []
    look.found = NULL
    look.count = 0
    look.capacity = 0
    look.newest_snapshot = -1
    look.interrupted = False
    look.epochs.there = look.metadata.there = look.snapshot.there = False
    look.epochs.size = look.metadata.size = look.snapshot.size = 0
    with nogil:
        failure = look_into(path, &look)
    try:
        if failure != 0:
            raise OSError(-failure, os.strerror(-failure), directory)
        if look.interrupted:
            return None
        for i in range(look.count):
            found = &look.found[i]
            if found.kind == A_LOG:
                sizes[found.base] = found.size
                changed[found.base] = found.changed_ms
            elif found.kind == AN_INDEX:
                indexes[found.base] = found.size
            elif found.kind == A_TIME_INDEX:
                times[found.base] = found.size
            else:
                snapshots.append(found.base)
    finally:
        free(look.found)
    snapshots.sort()
    epochs = bytes_of(&look.epochs)
    if look.epochs.size == SMALL:
        with open(os.path.join(directory, "leader-epoch-checkpoint"), "rb") as file:
            epochs = file.read()
    snapshot = bytes_of(&look.snapshot) if look.snapshot.size <= ONE_PRODUCER else None
    return sizes, changed, indexes, times, snapshots, epochs, bytes_of(&look.metadata), snapshot

"""The index of aborted transactions beside a segment, `<base offset>.txnindex`, without the GIL.

An entry has 34 bytes: version i16 = 0, then producer id, first offset, last offset (of the marker) and last stable
offset at that time, i64 each (Kafka's TransactionIndex; log/txn_index.py reads and writes whole files). An entry is
stored with the segment of its marker, so the transactions of a range of records may be in the indexes of later
segments. Entries ascend by last offset.

The file is opened for each call: the owner replaces it at recovery and truncation, other workers only read it, and most
logs have none. `Segment.no_aborts` remembers that a closed segment has no index.

A reader of committed data asks for one range after the other, so a search starts where the search before it ended. These
places are kept in a small table of the process (`hints`). A hint is only a guess: the entries that it leads to are
checked, so a wrong one costs a read, and nothing has to remove it when a file is replaced."""

from libc.errno cimport EIO, ENOENT, ENOMEM
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport free, realloc
from libc.string cimport memmove, memset

from kafkad._native.log.fileio cimport close_fd, cut, open_path, read_at, write_at
from kafkad._native.log.index cimport OFFSET_ENTRY_SIZE
from kafkad._native.log.segments cimport PATH_SIZE, Segment, segment_path
from kafkad._native.wire.primitives cimport get_i32, get_i64, put_i64

cdef extern from "<fcntl.h>" nogil:
    enum: O_RDONLY, O_WRONLY, O_CREAT, O_CLOEXEC

cdef extern from "<unistd.h>" nogil:
    int64_t lseek(int fd, int64_t offset, int whence)
    enum: SEEK_END

cdef enum:
    BLOCK_ENTRIES = 240             # read at once: 8,160 bytes
    BLOCK_ENTRIES_MAX = 1920        # if many transactions are told of
    PROBE_ENTRIES = 256             # of an offset index, read at once: 2 KB
    GUESSES = 4                     # before the rest is halved
    NEAR_ENTRIES = 100              # of an index of aborted transactions: two guesses may leave one block between them
    FOUND_MAX = 1 << 24             # by one search; no Fetch of an intact log has as many
    HINT_SETS = 32                  # logs whose readers are remembered, by a hash
    HINTS_A_SET = 4                 # readers of one of them, or of several with the same hash
    BEHIND_ENTRIES = 32             # before the end of a search: the next read begins a little before that

# Positions of the fields of an entry.
cdef enum:
    PRODUCER_AT = 2
    FIRST_AT = 10
    LAST_AT = 18
    STABLE_AT = 26


# Bytes of a log per entry of its offset index, as the last search found them: for the first guess only. At the beginning
# log.index.interval.bytes, by default.
cdef double index_interval = 4096


cdef struct Hint:                   # the end of a search
    const char* directory           # of the log; compared only
    int64_t segment
    int64_t start                   # the range that was searched
    int64_t upper
    int64_t entry                   # a little before the first entry that ends at or after `upper`
    int64_t count                   # of entries that were looked at

cdef Hint[HINT_SETS * HINTS_A_SET] hints
cdef int next_hint = 0              # of its set: the one to replace


cdef inline Hint* hints_of(const char* directory, int64_t segment) noexcept nogil:
    return hints + <size_t>HINTS_A_SET * (((<size_t>directory >> 4) ^ <size_t>segment) % HINT_SETS)


cdef Hint* hint_find(const char* directory, int64_t segment, int64_t start) noexcept nogil:
    cdef Hint* hint = hints_of(directory, segment)
    cdef int i
    for i in range(HINTS_A_SET):
        if hint.directory == directory and hint.segment == segment and hint.start < start <= hint.upper:
            return hint
        hint += 1
    return NULL


cdef void hint_note(Hint* hint, const char* directory, int64_t segment, int64_t start, int64_t upper, int64_t entry,
                    int64_t count) noexcept nogil:
    """`hint`: the one that led here, which is replaced, or NULL."""
    global next_hint
    if hint == NULL:
        hint = hints_of(directory, segment) + next_hint
        next_hint = (next_hint + 1) % HINTS_A_SET
    hint.directory = directory
    hint.segment = segment
    hint.start = start
    hint.upper = upper
    hint.entry = max(<int64_t>0, entry - BEHIND_ENTRIES)
    hint.count = count


cdef int aborted_append(const char* directory, int64_t segment, int64_t producer_id, int64_t first_offset,
                        int64_t last_offset, int64_t stable_offset, int64_t* before) noexcept nogil:
    cdef char path[PATH_SIZE]
    cdef uint8_t entry[ABORTED_SIZE]
    cdef int fd, failure
    segment_path(directory, segment, b"txnindex", path)
    fd = open_path(path, O_WRONLY | O_CREAT | O_CLOEXEC)
    if fd < 0:
        return fd
    before[0] = lseek(fd, 0, SEEK_END)
    before[0] -= before[0] % ABORTED_SIZE       # an entry after an incomplete one could not be read
    memset(entry, 0, 2)
    put_i64(entry + PRODUCER_AT, producer_id)
    put_i64(entry + FIRST_AT, first_offset)
    put_i64(entry + LAST_AT, last_offset)
    put_i64(entry + STABLE_AT, stable_offset)
    failure = write_at(fd, entry, ABORTED_SIZE, before[0])
    if failure != 0 and cut(fd, before[0]) != 0:
        failure = -EIO                          # the file may contain a part of the entry
    close_fd(fd)
    return failure


cdef int aborted_undo(const char* directory, int64_t segment, int64_t before) noexcept nogil:
    cdef char path[PATH_SIZE]
    cdef int fd, failure
    segment_path(directory, segment, b"txnindex", path)
    fd = open_path(path, O_WRONLY | O_CLOEXEC)
    if fd < 0:
        return fd
    failure = cut(fd, before)
    close_fd(fd)
    return failure


cdef int reserve(Aborted* found, int64_t more) noexcept nogil:
    cdef int64_t capacity = found.count + more
    cdef uint8_t* entries
    if capacity > FOUND_MAX:
        return -ENOMEM
    if capacity > found.capacity:
        capacity = max(capacity, 2 * found.capacity)
        entries = <uint8_t*>realloc(found.entries, <size_t>(capacity * ABORTED_SIZE))
        if entries == NULL:
            return -ENOMEM
        found.entries = entries
        found.capacity = capacity
    return 0


cdef int64_t entry_near(int fd, int64_t count, int64_t base, int64_t start) noexcept nogil:
    # Of `count` entries, one that is at most BLOCK_ENTRIES before the first that ends at or after `start`; or -errno.
    # Transactions are about equally long, so the first guesses are by offset: a little too low, then a little too high.
    cdef uint8_t probe[ABORTED_SIZE]
    cdef int64_t low = 0, high = count, middle, offset, n
    cdef double low_offset = base, high_offset = base, share
    cdef int guesses = 0
    while high - low > BLOCK_ENTRIES:
        middle = low + (high - low) // 2
        if high == count:
            middle = count - 1                  # tells where the last one ends
        elif guesses < GUESSES and high_offset > low_offset:
            share = max(0.0, min((<double>start - low_offset) / (high_offset - low_offset), 1.0))    # of any bytes
            middle = low + <int64_t>(share * (high - low)) + (NEAR_ENTRIES if guesses & 1 else -NEAR_ENTRIES)
            middle = max(low, min(middle, high - 1))
            guesses += 1
        n = read_at(fd, probe, ABORTED_SIZE, middle * ABORTED_SIZE)
        if n < 0:
            return n
        if n < ABORTED_SIZE:                    # the owner has cut the file meanwhile
            high = middle
            continue
        offset = get_i64(probe + LAST_AT)
        if offset < start:
            low = middle + 1
            low_offset = offset
        else:
            high = middle
            high_offset = offset
    return low


cdef int search_file(int fd, const char* directory, int64_t base, int64_t start, int64_t upper,
                     Aborted* found) noexcept nogil:
    # 1 if later entries and segments cannot matter, 0 if later segments may matter, -errno. Entries are read to where
    # they stay, those that do not matter are overwritten by the following ones.
    cdef Hint* hint = hint_find(directory, base, start)
    cdef int64_t first = -1, low, n = 0, i, end = -1
    cdef int64_t wanted = BLOCK_ENTRIES
    cdef uint8_t* block
    cdef uint8_t* entry
    cdef bint is_last
    if hint != NULL:
        first = hint.entry
        wanted = max(wanted, min(hint.count + hint.count // 16 + BEHIND_ENTRIES // 2, <int64_t>BLOCK_ENTRIES_MAX))
        if reserve(found, wanted) != 0:
            return -ENOMEM
        block = found.entries + found.count * ABORTED_SIZE
        n = read_at(fd, block, wanted * ABORTED_SIZE, first * ABORTED_SIZE)
        if n < 0:
            return <int>n
        n //= ABORTED_SIZE
        if (first > 0 and (n == 0 or get_i64(block + LAST_AT) >= start)
                or n > 0 and get_i64(block + (n - 1) * ABORTED_SIZE + LAST_AT) < start):
            hint = NULL                         # it leads too far, or not far enough, or the file is another one
            first = -1
            wanted = BLOCK_ENTRIES
    if first < 0:
        first = entry_near(fd, lseek(fd, 0, SEEK_END) // ABORTED_SIZE, base, start)
        if first < 0:
            return <int>first
    low = first
    while True:
        if low > first or hint == NULL:
            if reserve(found, wanted) != 0:
                return -ENOMEM
            block = found.entries + found.count * ABORTED_SIZE
            n = read_at(fd, block, wanted * ABORTED_SIZE, low * ABORTED_SIZE)
            if n < 0:
                return <int>n
            n //= ABORTED_SIZE
        for i in range(n):
            entry = block + i * ABORTED_SIZE
            if get_i64(entry + LAST_AT) < start:
                continue
            if end < 0 and get_i64(entry + LAST_AT) >= upper:
                end = low + i
            is_last = get_i64(entry + STABLE_AT) >= upper
            if get_i64(entry + FIRST_AT) < upper:
                memmove(found.entries + found.count * ABORTED_SIZE, entry, ABORTED_SIZE)
                found.count += 1
            if is_last:
                hint_note(hint, directory, base, start, upper, end if end >= 0 else low + i, low + i + 1 - first)
                return 1
        low += n
        if n < wanted:
            hint_note(hint, directory, base, start, upper, end if end >= 0 else low, low - first)
            return 0
        wanted = BLOCK_ENTRIES if hint != NULL and low - n == first else min(4 * wanted, BLOCK_ENTRIES_MAX)


cdef int aborted_search(const char* directory, Segment* segments, int count, int at, int64_t start, int64_t upper,
                        int64_t end, Aborted* found) noexcept nogil:
    cdef char path[PATH_SIZE]
    cdef int fd, status
    memset(found, 0, sizeof(Aborted))
    for at in range(at, count):
        if segments[at].base_offset >= end:
            break
        if segments[at].no_aborts:
            continue
        segment_path(directory, segments[at].base_offset, b"txnindex", path)
        fd = open_path(path, O_RDONLY | O_CLOEXEC)
        if fd == -ENOENT:
            segments[at].no_aborts = at + 1 < count     # the active one may still get its first entry
            continue
        status = fd
        if fd >= 0:
            status = search_file(fd, directory, segments[at].base_offset, start, upper, found)
            close_fd(fd)
        if status < 0:
            free(found.entries)
            memset(found, 0, sizeof(Aborted))
            return status
        if status == 1:
            break
    return 0


cdef inline bint is_before(const uint8_t* entry, int64_t position) noexcept nogil:
    return 0 < get_i32(entry + 4) < position


cdef int64_t offset_behind(const char* directory, const Segment* segment, int64_t position,
                           int64_t unknown) noexcept nogil:
    # An index entry says where the batch begins that ends with its offset.
    cdef const uint8_t* entry
    cdef int32_t low = 0, high = segment.offsets.entries, middle
    if segment.offsets.map == NULL or segment.index_ignored:    # a reader's, not looked at yet, or perhaps not readable
        return offset_behind_in_file(directory, segment.base_offset, position, unknown)
    while low < high:
        middle = low + (high - low) // 2
        if is_before(segment.offsets.map + <size_t>middle * OFFSET_ENTRY_SIZE, position):
            low = middle + 1
        else:
            high = middle
    if low == segment.offsets.entries:
        return unknown
    entry = segment.offsets.map + <size_t>low * OFFSET_ENTRY_SIZE
    return segment.base_offset + get_i32(entry) if get_i32(entry + 4) >= position and get_i32(entry) > 0 else unknown


cdef int64_t offset_behind_in_file(const char* directory, int64_t segment, int64_t position,
                                   int64_t unknown) noexcept nogil:
    global index_interval
    # The file of an active segment ends in zeros. Entries are about equally far from each other, so one that was read
    # says about where the right one is.
    cdef char path[PATH_SIZE]
    cdef uint8_t block[PROBE_ENTRIES * OFFSET_ENTRY_SIZE]
    cdef const uint8_t* entry = NULL            # the first one that is not before `position`
    cdef int64_t low = 0, high, entries, at, count, size, guess, guesses = 0
    cdef int64_t found = unknown
    cdef int fd
    segment_path(directory, segment, b"index", path)
    fd = open_path(path, O_RDONLY | O_CLOEXEC)
    if fd < 0:
        return unknown
    entries = lseek(fd, 0, SEEK_END) // OFFSET_ENTRY_SIZE
    high = entries
    guess = <int64_t>(position / index_interval)
    while low < entries and entry == NULL:
        at = max(low, min(guess - PROBE_ENTRIES // 2, high - PROBE_ENTRIES))
        count = min(<int64_t>PROBE_ENTRIES, entries - at)
        size = count * OFFSET_ENTRY_SIZE
        if read_at(fd, block, size, at * OFFSET_ENTRY_SIZE) != size:
            break
        if is_before(block + size - OFFSET_ENTRY_SIZE, position):
            low = at + count
        elif at > low and not is_before(block, position):
            high = at
        else:
            entry = block
            while is_before(entry, position):
                entry += OFFSET_ENTRY_SIZE
        guesses += 1
        guess = low + (high - low) // 2
        if guesses < GUESSES and at > 0 and get_i32(block + 4) > 0:
            guess = <int64_t>(<double>at * position / get_i32(block + 4))
    if entry != NULL and get_i32(entry + 4) >= position and get_i32(entry) > 0:
        found = segment + get_i32(entry)
        index_interval = max(1.0, <double>position / (at + (entry - block) // OFFSET_ENTRY_SIZE + 1))
    close_fd(fd)
    return found


cdef int64_t aborted_end(const char* directory, Segment* segments, int count, int64_t log_end) noexcept nogil:
    cdef char path[PATH_SIZE]
    cdef uint8_t entry[ABORTED_SIZE]
    cdef int64_t n, entries
    cdef int at, fd
    for at in range(count - 1, -1, -1):
        if segments[at].no_aborts:
            continue
        segment_path(directory, segments[at].base_offset, b"txnindex", path)
        fd = open_path(path, O_RDONLY | O_CLOEXEC)
        if fd == -ENOENT:
            segments[at].no_aborts = at + 1 < count
            continue
        if fd < 0:
            return fd
        entries = lseek(fd, 0, SEEK_END) // ABORTED_SIZE
        n = ABORTED_SIZE
        if entries > 0:
            n = read_at(fd, entry, ABORTED_SIZE, (entries - 1) * ABORTED_SIZE)
        close_fd(fd)
        if n != ABORTED_SIZE:
            return n if n < 0 else -EIO
        if entries > 0:
            n = get_i64(entry + LAST_AT)
            return n + 1 if 0 <= n < log_end else log_end
    return 0
